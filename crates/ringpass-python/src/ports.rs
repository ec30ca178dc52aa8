//! Ports: opening, receiving, sending, closing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyTuple};
use ringpass::{
    Address, Burst, Config, Idle, Notices, PageSize, PortConfig, RxQueue, State, TxQueue, WakeSource, Wakeable,
};
use ringpass_memory::{Cache, DmaRegion, MAX_BATCH};

use crate::error::{BusyError, GoneError, InvalidError, closed, exception};
use crate::packet::{Held, Packet};

/// How long a wait lasts before Python's signals are handled, and how often the port's state is looked at.
const SLICE: Duration = Duration::from_millis(50);

/// Received packets of a queue pair that may stay in the pool while Python holds them; further ones are copied. The pool has
/// 1024 buffers for each pair beside its rings.
const MAX_HELD: usize = MAX_BATCH;

/// Longest frame that may be sent, in bytes: the longest IP packet behind two VLAN tags.
const MAX_FRAME_LEN: usize = 14 + 8 + 65535;

/// Counters of a port since it was opened. Bytes are those of the frames, without CRC.
#[pyclass(frozen, get_all, module = "ringpass")]
#[derive(Clone)]
pub struct Stats {
    rx_packets: u64,
    rx_bytes: u64,
    rx_drops: u64,
    tx_packets: u64,
    tx_bytes: u64,
    tx_drops: u64,
}

impl From<ringpass::Stats> for Stats {
    fn from(stats: ringpass::Stats) -> Self {
        let ringpass::Stats { rx_packets, rx_bytes, rx_drops, tx_packets, tx_bytes, tx_drops } = stats;
        Self { rx_packets, rx_bytes, rx_drops, tx_packets, tx_bytes, tx_drops }
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        let Self { rx_packets, rx_bytes, rx_drops, tx_packets, tx_bytes, tx_drops } = self;
        format!(
            "Stats(rx_packets={rx_packets}, rx_bytes={rx_bytes}, rx_drops={rx_drops}, tx_packets={tx_packets}, \
             tx_bytes={tx_bytes}, tx_drops={tx_drops})"
        )
    }
}

/// State of a port's link.
#[pyclass(frozen, get_all, module = "ringpass")]
pub struct Link {
    up: bool,
    mbps: u32,
}

#[pymethods]
impl Link {
    fn __repr__(&self) -> String {
        format!("Link(up={}, mbps={})", if self.up { "True" } else { "False" }, self.mbps)
    }
}

/// The receiving half of a queue pair, and the state of waiting for it.
struct Rx {
    queue: Box<dyn RxQueue>,
    idle: Idle,
    /// When the port's state was last looked at.
    checked: Instant,
}

/// The sending half of a queue pair, and free buffers.
struct Tx {
    queue: Box<dyn TxQueue>,
    cache: Cache,
}

/// A queue pair. The halves are `None` once the ports are closed. No lock is held while code of Python may run: a signal
/// handler may close the ports, and on this very thread.
struct Pair {
    rx: Mutex<Option<Rx>>,
    /// Whether a thread is receiving. It locks `rx` for each slice of its wait, and not in between.
    receiving: AtomicBool,
    tx: Mutex<Option<Tx>>,
}

/// The right to receive from a queue, until dropped.
struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    fn take(receiving: &'a AtomicBool) -> PyResult<Self> {
        match receiving.swap(true, Ordering::Acquire) {
            true => Err(BusyError::new_err("another thread receives from this queue")),
            false => Ok(Self(receiving)),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// State that `Ports` and each `Port` share.
struct Shared {
    /// `None` once closed.
    control: Mutex<Option<ringpass::Ports>>,
    pairs: Vec<Vec<Pair>>,
    names: Vec<String>,
    /// Final counters, once closed.
    last: Mutex<Vec<ringpass::Stats>>,
    closing: AtomicBool,
    /// Memory of the ports' packets; the ports can send no other.
    region: Arc<DmaRegion>,
    /// Counter of packets that Python holds in the pool. `None` if somebody else can write to its memory: then all are copied.
    held: Option<Arc<Held>>,
    notes: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a port keeps the memory of the packets to this process (and its cards).
fn keeps_private(address: &Address) -> bool {
    match address {
        Address::Pci(_) | Address::Tap(_) | Address::Packet(_) | Address::Xdp(_) | Address::Pcap(_) | Address::Null => {
            true
        }
        // What guests send is copied into the pool.
        Address::Vhost(_) => true,
        Address::Model(_, inner) | Address::Capture(_, inner) | Address::Faults(_, inner) => keeps_private(inner),
        Address::VfioUser(_) | Address::VirtioUser(_) | Address::Netmap(_) => false,
    }
}

impl Shared {
    fn open(addresses: &[String], config: &Config) -> Result<Self, ringpass::Error> {
        let mut ports = ringpass::open(addresses, config)?;
        let private = addresses.iter().all(|address| address.parse().is_ok_and(|address| keeps_private(&address)));
        let pool = ports.pool().clone();
        let region = pool.region().clone();
        let pair = |queues: ringpass::QueuePair| Pair {
            rx: Mutex::new(Some(Rx { queue: queues.rx, idle: config.idle(), checked: Instant::now() })),
            receiving: AtomicBool::new(false),
            tx: Mutex::new(Some(Tx { queue: queues.tx, cache: pool.cache() })),
        };
        let pairs: Vec<Vec<Pair>> =
            ports.take_queues().into_iter().map(|pairs| pairs.into_iter().map(pair).collect()).collect();
        let held = private.then(|| Held::new(MAX_HELD * pairs.iter().flatten().count()));
        let names = ports.iter().map(|port| port.name().to_owned()).collect();
        let notes = ports.notes();
        let closing = AtomicBool::new(false);
        Ok(Self {
            control: Mutex::new(Some(ports)),
            pairs,
            names,
            last: Mutex::default(),
            closing,
            region,
            held,
            notes,
        })
    }

    /// Closes everything, once receivers that wait have noticed.
    fn close(&self) -> Result<(), ringpass::Error> {
        self.closing.store(true, Ordering::Relaxed);
        for pair in self.pairs.iter().flatten() {
            (*lock(&pair.rx), *lock(&pair.tx)) = (None, None);
        }
        let Some(mut ports) = lock(&self.control).take() else { return Ok(()) };
        *lock(&self.last) = ports.stats();
        // Packets that the program still holds are its own business.
        ports.close_and_count().map(drop)
    }

    /// Whether a packet lies in the memory that these ports can reach.
    fn owns(&self, packet: &ringpass::Packet) -> bool {
        let start = self.region.at(0).addr();
        (start..start + self.region.len()).contains(&packet.as_ptr().addr())
    }

    /// Calls a port's control side, without the GIL: a card in another process may keep the call waiting for seconds.
    fn port<R: Send>(
        &self,
        py: Python<'_>,
        index: usize,
        with: impl FnOnce(&mut dyn ringpass::Port) -> R + Send,
    ) -> PyResult<R> {
        py.detach(|| lock(&self.control).as_mut().map(|ports| with(&mut *ports[index]))).ok_or_else(closed)
    }
}

impl Drop for Shared {
    /// Closes ports that nobody has closed, in the same order.
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// Opens ports at addresses such as "0000:01:00.0", "tap:a" or "model:null".
#[pyfunction]
#[pyo3(signature = (*addresses, queues = 1, rx_ring = 512, tx_ring = 512, mtu = 1500, promiscuous = true, rejoin = false,
                    huge_pages = None, poll = false, latency_budget = 50e-6, take_over = Vec::new()))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub fn open(
    py: Python<'_>,
    addresses: Vec<String>,
    queues: usize,
    rx_ring: usize,
    tx_ring: usize,
    mtu: usize,
    promiscuous: bool,
    rejoin: bool,
    huge_pages: Option<bool>,
    poll: bool,
    latency_budget: f64,
    take_over: Vec<String>,
) -> PyResult<Ports> {
    if addresses.is_empty() {
        return Err(InvalidError::new_err("no address; as ringpass.open('model:null')"));
    }
    let latency_budget = Duration::try_from_secs_f64(latency_budget)
        .map_err(|_| InvalidError::new_err("latency_budget: seconds from 0 on, such as 50e-6"))?;
    let notices = Arc::new(Mutex::new(Vec::new()));
    let gathered = notices.clone();
    let config = Config {
        port: PortConfig { queues, rx_ring, tx_ring, mtu, promiscuous, rejoin, ..Default::default() },
        hugepages: huge_pages.map(|huge| if huge { PageSize::Huge2M } else { PageSize::Ordinary }),
        poll,
        latency_budget,
        take_over,
        notices: Notices::new(move |text| lock(&gathered).push(text.to_owned())),
        ..Default::default()
    };
    let shared = py.detach(|| Shared::open(&addresses, &config)).map_err(exception)?;
    let shared = Arc::new(shared);
    let port = |index| Py::new(py, Port { shared: shared.clone(), index });
    let ports = (0..shared.names.len()).map(port).collect::<PyResult<_>>()?;
    Ok(Ports { shared, ports, notices })
}

/// Ports that were opened together: a sequence of Port, and a context manager that closes them.
#[pyclass(frozen, module = "ringpass")]
pub struct Ports {
    shared: Arc<Shared>,
    ports: Vec<Py<Port>>,
    /// Choices that the library has made on its own.
    notices: Arc<Mutex<Vec<String>>>,
}

#[pymethods]
impl Ports {
    fn __len__(&self) -> usize {
        self.ports.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Py<Port>> {
        let at = if index < 0 { index + self.ports.len() as isize } else { index };
        let port = usize::try_from(at).ok().and_then(|at| self.ports.get(at));
        port.map(|port| port.clone_ref(py)).ok_or_else(|| PyIndexError::new_err("there is no port of this number"))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyTuple::new(py, &self.ports)?.try_iter()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    /// Closes the ports and stops their devices. Waits end with ClosedError; packets stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.shared.close()).map_err(exception)
    }

    /// Choices that were made as the ports were opened, such as ordinary pages in place of huge ones.
    #[getter]
    fn notes(&self) -> Vec<String> {
        [lock(&self.notices).clone(), self.shared.notes.clone()].concat()
    }

    fn __repr__(&self) -> String {
        format!("<ringpass.Ports {}>", self.shared.names.join(" "))
    }
}

/// A port. Different threads may receive and send at the same time; only one at a time may receive from a queue.
#[pyclass(frozen, module = "ringpass")]
pub struct Port {
    shared: Arc<Shared>,
    index: usize,
}

/// A time that ends a sleep.
struct Deadline(Instant);

impl Wakeable for Deadline {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::At(self.0));
    }
}

impl Port {
    fn pair(&self, queue: usize) -> PyResult<&Pair> {
        let pair = self.shared.pairs[self.index].get(queue);
        pair.ok_or_else(|| PyIndexError::new_err("the port has no queue of this number"))
    }

    /// Fails from the start of a close on, whoever has which lock: the thread that closes waits for those who receive.
    fn check_open(&self) -> PyResult<()> {
        if self.shared.closing.load(Ordering::Relaxed) { Err(closed()) } else { Ok(()) }
    }

    /// Waits until there is a packet, `until` has passed, or the ports are being closed.
    fn receive_until(&self, pair: &Pair, burst: &mut Burst, until: Instant) {
        let (mut rx, mut deadline) = (lock(&pair.rx), Deadline(until));
        let Some(Rx { queue, idle, .. }) = rx.as_mut() else { return };
        while queue.rx_burst(burst) == 0 && Instant::now() < until && !self.shared.closing.load(Ordering::Relaxed) {
            idle.after(0, &mut [&mut **queue, &mut deadline]);
        }
    }

    /// Receives what is there. Returns whether the port's state should be looked at, which takes longer than a look at the queue.
    fn receive_now(&self, pair: &Pair, burst: &mut Burst) -> PyResult<bool> {
        let mut rx = lock(&pair.rx);
        let rx = rx.as_mut().ok_or_else(closed)?;
        Ok(rx.queue.rx_burst(burst) == 0 && rx.checked.elapsed() >= SLICE && {
            rx.checked = Instant::now();
            true
        })
    }

    /// Returns whether the port has delivered all of its input.
    fn is_finished(&self, py: Python<'_>) -> PyResult<bool> {
        match self.shared.port(py, self.index, |port| port.state())? {
            State::Running => Ok(false),
            State::Finished => Ok(true),
            State::Gone(why) => Err(GoneError::new_err(format!("{}: {why}", self.shared.names[self.index]))),
        }
    }
}

/// A frame to be sent.
enum Item<'py> {
    Packet(Bound<'py, Packet>),
    Bytes(Vec<u8>),
}

impl<'py> Item<'py> {
    fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(packet) = object.cast::<Packet>() {
            return Ok(Self::Packet(packet.clone()));
        }
        let bytes = match object.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes().to_vec(),
            Err(_) => PyBuffer::<u8>::get(object)?.to_vec(object.py())?,
        };
        // A longer one might never fit into the pool, and a caller who repeats what was not taken would never end.
        match bytes.len() {
            ..=MAX_FRAME_LEN => Ok(Self::Bytes(bytes)),
            len => Err(InvalidError::new_err(format!("a frame of {len} bytes; the longest have {MAX_FRAME_LEN}"))),
        }
    }

    /// Returns the packet to be sent; `None` if the pool is empty.
    fn packet(&self, shared: &Shared, cache: &mut Cache) -> PyResult<Option<ringpass::Packet>> {
        match self {
            Self::Packet(packet) => packet.get().take(|packet| shared.owns(packet), |bytes| copy_in(cache, bytes)),
            Self::Bytes(bytes) => Ok(copy_in(cache, bytes)),
        }
    }
}

/// Copies a frame into buffers of the pool; `None` if it is empty.
fn copy_in(cache: &mut Cache, bytes: &[u8]) -> Option<ringpass::Packet> {
    let size = cache.pool().buffer_size();
    let mut pieces = bytes.chunks(size.max(1));
    let mut one = |piece: &[u8]| {
        let mut burst = Burst::new(1);
        cache.alloc(&mut burst);
        burst.pop().and_then(|mut packet| packet.copy_from(piece).then_some(packet))
    };
    let mut packet = one(pieces.next().unwrap_or_default())?;
    for piece in pieces {
        packet.append(one(piece)?);
    }
    Some(packet)
}

#[pymethods]
impl Port {
    /// Receives up to `max` packets, of which at most 256 come at a time. If there are none, waits up to `wait` seconds.
    #[pyo3(signature = (max = 32, wait = 0.0, queue = 0))]
    fn receive(&self, py: Python<'_>, max: usize, wait: f64, queue: usize) -> PyResult<Vec<Packet>> {
        let until = match wait {
            wait if wait.is_nan() || wait < 0.0 => {
                return Err(InvalidError::new_err("wait: a number of seconds from 0"));
            }
            wait => Duration::try_from_secs_f64(wait).ok().and_then(|wait| Instant::now().checked_add(wait)),
        };
        if max == 0 {
            return Err(InvalidError::new_err("max: a number of packets from 1"));
        }
        let pair = self.pair(queue)?;
        self.check_open()?;
        let _turn = Turn::take(&pair.receiving)?;
        let mut burst = Burst::new(max);
        // A dead port ends also loops that never wait.
        let mut ended = self.receive_now(pair, &mut burst)? && self.is_finished(py)?;
        while burst.is_empty() && !ended && until.is_none_or(|until| Instant::now() < until) {
            let slice = Instant::now() + SLICE;
            let slice = until.map_or(slice, |until| until.min(slice));
            py.detach(|| self.receive_until(pair, &mut burst, slice));
            if burst.is_empty() {
                py.check_signals()?;
                self.check_open()?;
                ended = self.is_finished(py)?;
            }
        }
        if ended && burst.is_empty() {
            // Frames that came between the last look at the queue and the one at the state.
            self.receive_now(pair, &mut burst)?;
        }
        Ok(burst.drain().map(|packet| Packet::new(packet, self.shared.held.as_ref())).collect())
    }

    /// Sends frames from the front of the list, without waiting, and returns their number.
    #[pyo3(signature = (frames, queue = 0))]
    fn send(&self, py: Python<'_>, frames: &Bound<'_, PyAny>, queue: usize) -> PyResult<usize> {
        let mut items = Vec::new();
        for frame in frames.try_iter()? {
            // An iterator may be endless, and not be Python code, which other threads and signals interrupt.
            if items.len() % MAX_BATCH == MAX_BATCH - 1 {
                py.detach(|| ());
                py.check_signals()?;
            }
            items.push(Item::new(&frame?)?);
        }
        let mut tx = lock(&self.pair(queue)?.tx);
        let Tx { queue, cache } = tx.as_mut().ok_or_else(closed)?;
        let mut sent = 0;
        for chunk in items.chunks(MAX_BATCH) {
            let mut burst = Burst::new(MAX_BATCH);
            let mut failure = None;
            for item in chunk {
                match item.packet(&self.shared, cache) {
                    Ok(Some(packet)) => burst.push(packet),
                    Ok(None) => break,
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            let taken = queue.tx_burst(&mut burst);
            sent += taken;
            for (item, packet) in chunk[taken..].iter().zip(burst.drain()) {
                if let Item::Packet(place) = item {
                    place.get().put_back(packet, self.shared.held.as_ref());
                }
            }
            match failure {
                Some(error) if sent == 0 => return Err(error),
                _ if taken < chunk.len() => break,
                _ => {}
            }
        }
        Ok(sent)
    }

    /// Sets whether the port receives frames for any MAC address.
    fn set_promiscuous(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.shared.port(py, self.index, |port| port.set_promiscuous(on))?.map_err(exception)
    }

    /// Address that the port was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.shared.names[self.index]
    }

    /// MAC address, such as "02:00:00:00:00:01".
    #[getter]
    fn mac(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.port(py, self.index, |port| port.mac().to_string())
    }

    /// Present state of the link.
    #[getter]
    fn link(&self, py: Python<'_>) -> PyResult<Link> {
        let ringpass::Link { up, mbps } = self.shared.port(py, self.index, |port| port.link())?;
        Ok(Link { up, mbps })
    }

    /// Counters since the port was opened; once the ports are closed, the final ones.
    #[getter]
    fn stats(&self, py: Python<'_>) -> Stats {
        match self.shared.port(py, self.index, |port| port.stats()) {
            Ok(stats) => stats.into(),
            Err(_) => lock(&self.shared.last).get(self.index).copied().unwrap_or_default().into(),
        }
    }

    /// Counters of each queue pair; empty where the port does not count by queue.
    #[getter]
    fn queue_stats(&self, py: Python<'_>) -> PyResult<Vec<Stats>> {
        let stats = self.shared.port(py, self.index, |port| port.queue_stats())?;
        Ok(stats.into_iter().map(Stats::from).collect())
    }

    /// Further counters of this kind of port, by name.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.shared.port(py, self.index, |port| port.extended())?;
        let dict = PyDict::new(py);
        counters.into_iter().try_for_each(|(name, value)| dict.set_item(name, value))?;
        Ok(dict)
    }

    /// Number of queue pairs.
    #[getter]
    fn queues(&self) -> usize {
        self.shared.pairs[self.index].len()
    }

    /// Whether the port has delivered all of its input (the end of a capture file). Raises GoneError if what is behind it has
    /// disappeared.
    #[getter]
    fn finished(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_finished(py)
    }

    fn __repr__(&self) -> String {
        format!("<ringpass.Port {}>", self.name())
    }
}
