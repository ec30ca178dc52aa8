//! Our back-end or front-end as one end: a thread that does what testpmd does as `txonly` or `rxonly`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass_memory::{Burst, Cache, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_port::{Error, Port, PortConfig, Queues, Role, State, VhostConfig, VirtioUserConfig};
use ringpass_vhost::{Copies, Vhost};
use ringpass_virtio_user::VirtioUser;

use super::pairing::{Done, End, Job, Kind, Layout, Ring, Site};
use crate::worker::cycles;

/// A port with its thread.
pub struct Ours {
    port: Box<dyn Port>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    before: (Instant, u64, u64),
}

/// What the thread is told and what it has done.
#[derive(Default)]
#[repr(align(128))]
struct Shared {
    /// Size of the frames that it sends, or one of the constants below.
    order: AtomicUsize,
    moved: AtomicU64,
    busy: AtomicU64,
}

impl Shared {
    const REST: usize = 0;
    const DROP: usize = 1;
    const END: usize = 2;

    /// Adds to what was done. Only the thread does.
    fn add(&self, moved: usize, busy: u64) {
        self.moved.store(self.moved.load(Ordering::Relaxed) + moved as u64, Ordering::Relaxed);
        self.busy.store(self.busy.load(Ordering::Relaxed) + busy, Ordering::Relaxed);
    }
}

impl Ours {
    /// Huge pages of 2 MiB that one of them takes at most.
    pub const HUGE_PAGES: usize = 24;
    const BURST: usize = 32;
    /// How often an order is looked for while packets move, in rounds.
    const LOOK: usize = 64;

    /// The back-end, which listens.
    pub fn backend(socket: &Path, kind: Kind, site: &Site) -> Result<Self, Error> {
        Self::new(kind, site, site.cores[0], |port, pool, features| {
            let config = VhostConfig { path: socket.into(), role: Role::Listen, queues: None, features };
            Ok(Box::new(Vhost::open(&config, port, pool, Copies::default())?))
        })
    }

    /// The front-end, which connects.
    pub fn frontend(socket: &Path, kind: Kind, site: &Site) -> Result<Self, Error> {
        Self::new(kind, site, site.cores[1], |port, pool, features| {
            let path = socket.into();
            let config =
                VirtioUserConfig { path, role: Role::Connect, queues: None, features, mac: None, inflight: true };
            Ok(Box::new(VirtioUser::open("the front-end", &config, port, pool)?))
        })
    }

    fn new(
        Kind { ring, layout }: Kind,
        site: &Site,
        core: CoreId,
        open: impl FnOnce(&PortConfig, &Mempool, Option<String>) -> Result<Box<dyn Port>, Error>,
    ) -> Result<Self, Error> {
        // Mergeable buffers are taken where frames may be longer than a buffer.
        let mtu = if layout == Layout::Mergeable { 9000 } else { 1500 };
        let config = PortConfig { rx_ring: site.descriptors, tx_ring: site.descriptors, mtu, ..Default::default() };
        let region = RegionConfig { pages: PageSize::Huge2M, ..Default::default() };
        let pool = Mempool::new(&MempoolConfig { buffers: 4 * site.descriptors + 4096, region, ..Default::default() })?;
        let mut port = open(&config, &pool, Some(features(ring, layout)))?;
        let queues = port.take_queues().remove(0);
        let shared = Arc::new(Shared::default());
        let worker = Worker { queues, cache: pool.cache(), shared: shared.clone() };
        let thread = thread::spawn(move || worker.run(core));
        Ok(Self { port, shared, thread: Some(thread), before: (Instant::now(), 0, 0) })
    }

    fn now(&self) -> (Instant, u64, u64) {
        (Instant::now(), self.shared.moved.load(Ordering::Relaxed), self.shared.busy.load(Ordering::Relaxed))
    }

    fn order(&mut self, order: usize) {
        self.shared.order.store(order, Ordering::Relaxed);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl End for Ours {
    fn start(&mut self, job: Job) -> Result<(), Error> {
        self.order(match job {
            Job::Generate(size) => size,
            Job::Drop => Shared::DROP,
        });
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.before = self.now();
        Ok(())
    }

    fn end(&mut self) -> Result<Done, Error> {
        let ((then, moved_then, busy_then), (now, moved, busy)) = (self.before, self.now());
        if let State::Gone(why) = self.port.state() {
            return Err(Error::Other(format!("{}: {why}", self.port.name())));
        }
        let (moved, busy) = ((moved - moved_then) as f64, (busy - busy_then) as f64);
        Ok(Done { mpps: moved / (now - then).as_secs_f64() / 1e6, cycles: busy / moved.max(1.0) })
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.order(Shared::REST);
        Ok(())
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.order(Shared::END);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// As addresses have them. What testpmd has no option for is off there: event indices.
pub fn features(ring: Ring, layout: Layout) -> String {
    let ring = if ring == Ring::Packed { "packed" } else { "-packed" };
    let layout = match layout {
        Layout::InOrder => "+in_order-mrg_rxbuf",
        Layout::Plain => "-in_order-mrg_rxbuf",
        Layout::Mergeable => "+mrg_rxbuf-in_order",
    };
    format!("{ring}{layout}-event_idx")
}

/// The thread's side.
struct Worker {
    queues: Queues,
    cache: Cache,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(mut self, core: CoreId) {
        core_affinity::set_for_current(core);
        let mut burst = Burst::new(Ours::BURST);
        loop {
            match self.shared.order.load(Ordering::Relaxed) {
                Shared::END => return,
                Shared::REST => thread::park_timeout(Duration::from_millis(100)),
                Shared::DROP => (0..Ours::LOOK).for_each(|_| self.receive(&mut burst)),
                size => (0..Ours::LOOK).for_each(|_| self.generate(&mut burst, size)),
            }
        }
    }

    #[inline]
    fn receive(&mut self, burst: &mut Burst) {
        let start = cycles();
        let received = self.queues.rx.rx_burst(burst);
        if received > 0 {
            burst.clear();
            self.shared.add(received, cycles() - start);
        }
    }

    #[inline]
    fn generate(&mut self, burst: &mut Burst, size: usize) {
        let start = cycles();
        self.cache.alloc(burst);
        for packet in burst.iter_mut() {
            packet.set_len(size);
            packet.write(0, &HEADERS);
        }
        let sent = self.queues.tx.tx_burst(burst);
        burst.clear();
        self.shared.add(sent, cycles() - start);
    }
}

/// Ethernet, IPv4 and UDP between addresses for documentation: as much as testpmd writes to each frame.
const HEADERS: [u8; 42] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
    0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0xf6, 0xb7, 192, 0, 2, 1, 192, 0, 2, 2, // IPv4
    0, 9, 0, 9, 0, 30, 0, 0, // UDP
];
