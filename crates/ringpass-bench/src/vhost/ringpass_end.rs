//! Ringpass's back-end or front-end as one end: a thread that does what testpmd does as `txonly` or `rxonly`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::{
    Burst, Config, Error, Mempool, MempoolConfig, PageSize, Port, PortConfig, QueuePair, State, Workers, cycles,
};
use ringpass_memory::{Cache, RegionConfig};
use ringpass_port::{Role, VhostConfig, VirtioUserConfig};
use ringpass_vhost::{CopyModes, Vhost};
use ringpass_virtio_user::VirtioUser;

use super::end::{Kind, Layout, Ring, Testbed, TrafficEnd, WorkDone, Workload};

/// A port with its thread.
pub struct RingpassEnd {
    /// Dropped first, which waits for the thread.
    _workers: Workers,
    thread: Thread,
    port: Box<dyn Port>,
    shared: Arc<TrafficState>,
    before: Moment,
}

/// Order to the thread, and its counters.
#[derive(Default)]
#[repr(align(128))]
struct TrafficState {
    /// Size of the frames to send, or one of the constants below.
    order: AtomicUsize,
    moved: AtomicU64,
    busy: AtomicU64,
}

impl TrafficState {
    const REST: usize = 0;
    const DROP: usize = 1;
    const END: usize = 2;

    /// Adds to the counters. Only the thread may call this, because load and store are not atomic together.
    fn add(&self, moved: usize, busy: u64) {
        self.moved.store(self.moved.load(Ordering::Relaxed) + moved as u64, Ordering::Relaxed);
        self.busy.store(self.busy.load(Ordering::Relaxed) + busy, Ordering::Relaxed);
    }
}

/// The counters at a time.
struct Moment {
    time: Instant,
    moved: u64,
    busy: u64,
}

impl RingpassEnd {
    /// Largest number of huge pages of 2 MiB that one end takes.
    pub const HUGE_PAGES: usize = 24;
    const BURST: usize = 32;
    /// Rounds between two checks for a new order.
    const LOOK: usize = 64;

    /// Creates the back-end, which listens.
    pub fn backend(socket: &Path, kind: Kind, site: &Testbed) -> Result<Self, Error> {
        Self::new(kind, site, site.cores[0], |port, pool, features| {
            let config = VhostConfig { features, ..VhostConfig::new(socket, Role::Listen) };
            Ok(Box::new(Vhost::open(&config, port, pool, CopyModes::default())?))
        })
    }

    /// Creates the front-end, which connects.
    pub fn frontend(socket: &Path, kind: Kind, site: &Testbed) -> Result<Self, Error> {
        Self::new(kind, site, site.cores[1], |port, pool, features| {
            let config = VirtioUserConfig { features, ..VirtioUserConfig::new(socket, Role::Connect) };
            Ok(Box::new(VirtioUser::open("the front-end", &config, port, pool)?))
        })
    }

    fn new(
        Kind { ring, layout }: Kind,
        site: &Testbed,
        core: CoreId,
        open: impl FnOnce(&PortConfig, &Mempool, Option<String>) -> Result<Box<dyn Port>, Error>,
    ) -> Result<Self, Error> {
        // Mergeable buffers are used only if frames may be longer than a buffer.
        let mtu = if layout == Layout::Mergeable { 9000 } else { 1500 };
        let config = PortConfig { rx_ring: site.descriptors, tx_ring: site.descriptors, mtu, ..Default::default() };
        let region = RegionConfig { pages: PageSize::Huge2M, ..Default::default() };
        let pool = Mempool::new(&MempoolConfig { buffers: 4 * site.descriptors + 4096, region, ..Default::default() })?;
        let mut port = open(&config, &pool, Some(features(ring, layout)))?;
        let queues = port.take_queues().remove(0);
        let shared = Arc::new(TrafficState::default());
        let traffic = TrafficThread { queues, cache: pool.cache(), shared: shared.clone() };
        let mut workers = Workers::new(&Config { cpu: vec![core.id], ..Config::default() })?;
        let (started, thread) = channel();
        // Counts and waits by itself rather than by `Worker`: as testpmd does, so that the two compare.
        workers.spawn("traffic", move |_| {
            let _ = started.send(thread::current());
            traffic.run();
            Ok(())
        })?;
        let thread = thread.recv().expect("the thread sends this first");
        Ok(Self { _workers: workers, thread, port, shared, before: Moment { time: Instant::now(), moved: 0, busy: 0 } })
    }

    fn now(&self) -> Moment {
        let moved = self.shared.moved.load(Ordering::Relaxed);
        Moment { time: Instant::now(), moved, busy: self.shared.busy.load(Ordering::Relaxed) }
    }

    fn order(&mut self, order: usize) {
        self.shared.order.store(order, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl TrafficEnd for RingpassEnd {
    fn start(&mut self, job: Workload) -> Result<(), Error> {
        self.order(match job {
            Workload::Generate(size) => size,
            Workload::Drop => TrafficState::DROP,
        });
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.before = self.now();
        Ok(())
    }

    fn end(&mut self) -> Result<WorkDone, Error> {
        let now = self.now();
        if let State::Gone(why) = self.port.state() {
            return Err(Error::Gone(format!("{}: {why}", self.port.name())));
        }
        let moved = (now.moved - self.before.moved) as f64;
        let busy = (now.busy - self.before.busy) as f64;
        let seconds = (now.time - self.before.time).as_secs_f64();
        Ok(WorkDone { mpps: moved / seconds / 1e6, cycles: busy / moved.max(1.0) })
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.order(TrafficState::REST);
        Ok(())
    }
}

impl Drop for RingpassEnd {
    fn drop(&mut self) {
        self.order(TrafficState::END);
    }
}

/// Returns the features in the syntax of port addresses. Event indices are off, because testpmd has no option
/// for them and leaves them off.
pub fn features(ring: Ring, layout: Layout) -> String {
    let ring = if ring == Ring::Packed { "packed" } else { "-packed" };
    let layout = match layout {
        Layout::InOrder => "+in_order-mrg_rxbuf",
        Layout::Plain => "-in_order-mrg_rxbuf",
        Layout::Mergeable => "+mrg_rxbuf-in_order",
    };
    format!("{ring}{layout}-event_idx")
}

/// State of the thread.
struct TrafficThread {
    queues: QueuePair,
    cache: Cache,
    shared: Arc<TrafficState>,
}

impl TrafficThread {
    fn run(mut self) {
        let mut burst = Burst::new(RingpassEnd::BURST);
        loop {
            match self.shared.order.load(Ordering::Relaxed) {
                TrafficState::END => return,
                TrafficState::REST => thread::park_timeout(Duration::from_millis(100)),
                TrafficState::DROP => (0..RingpassEnd::LOOK).for_each(|_| self.receive(&mut burst)),
                size => (0..RingpassEnd::LOOK).for_each(|_| self.generate(&mut burst, size)),
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

/// Ethernet, IPv4 and UDP headers between documentation addresses: as many bytes as testpmd writes to each
/// frame.
const HEADERS: [u8; 42] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
    0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0xf6, 0xb7, 192, 0, 2, 1, 192, 0, 2, 2, // IPv4
    0, 9, 0, 9, 0, 30, 0, 0, // UDP
];
