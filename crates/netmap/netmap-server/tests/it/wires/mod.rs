//! Native ports of simulated wires, and programs that have them.
#![allow(dead_code)] // Each test file uses its part.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use ringpass_memory::{Burst, Cache, Memory, Mempool, MempoolConfig, RegionConfig};
use ringpass_netmap::{Buffers, Pools, PortMemory, PortRing, Region, Shape, Slot, attach};
use ringpass_netmap_server::ServedPort;
use ringpass_netmap_server::{NativePort, RingForwarder};
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};
use rustix::event::{EventfdFlags, eventfd};

use crate::programs::{elsewhere, notifier};

/// The wire behind a queue of a port, with the test at its other end.
#[derive(Clone)]
pub struct Wire(Arc<Inner>);

impl Wire {
    /// The port may send this many frames from now on.
    pub fn take(&self, frames: u64) {
        self.0.room.store(frames, Relaxed);
    }
}

struct Inner {
    /// Frames for the port to receive.
    coming: Mutex<VecDeque<Vec<u8>>>,
    arrived: OwnedFd,
    /// Frames that the port has sent, while there was room.
    sent: Mutex<Vec<Vec<u8>>>,
    room: AtomicU64,
}

impl Wire {
    fn new() -> Self {
        let arrived = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Self(Arc::new(Inner { coming: Mutex::default(), arrived, sent: Mutex::default(), room: 0.into() }))
    }

    pub fn bring(&self, frame: Vec<u8>) {
        // Under the lock, so that nobody takes the frame before it is signalled.
        let mut coming = self.0.coming.lock().unwrap();
        coming.push_back(frame);
        rustix::io::write(&self.0.arrived, &1u64.to_ne_bytes()).unwrap();
    }

    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.sent.lock().unwrap())
    }
}

struct Rx(Wire, Cache);

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut coming = self.0.0.coming.lock().unwrap();
        let most = burst.room().min(coming.len());
        for mut packet in self.1.take(most) {
            assert!(packet.copy_from(&coming.pop_front().unwrap()));
            burst.push(packet);
        }
        burst.len()
    }
}

impl Wakeable for Rx {
    /// Frames that arrived before do not wake.
    fn arm(&mut self) {
        self.disarm();
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.0.0.arrived, &mut [0; 8]);
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.0.0.arrived.as_fd()));
    }
}

struct Tx(Wire);

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len().min(self.0.0.room.load(Relaxed) as usize);
        self.0.0.room.fetch_sub(taken as u64, Relaxed);
        self.0.0.sent.lock().unwrap().extend(burst[..taken].iter().map(|packet| packet.to_vec()));
        burst.discard(taken);
        taken
    }
}

/// Buffers of the pool, if buffers are exchanged.
pub const OWN: u32 = 2048;

/// Creates a link to a switch, whose packets are of `pool`. The test is the switch, at the other end of the wire.
pub fn link(pool: &Mempool) -> (Wire, QueuePair) {
    let wire = Wire::new();
    let queues = QueuePair { rx: Box::new(Rx(wire.clone(), pool.cache())), tx: Box::new(Tx(wire.clone())) };
    (wire, queues)
}

/// Creates a native port of wires, without rings so far.
pub fn ring_forwarder(queues: usize, pool: &Mempool) -> (NativePort, RingForwarder, Vec<Wire>) {
    let wires: Vec<_> = (0..queues).map(|_| Wire::new()).collect();
    let pair = |wire: &Wire| QueuePair { rx: Box::new(Rx(wire.clone(), pool.cache())), tx: Box::new(Tx(wire.clone())) };
    let (control, ring_forwarder) = NativePort::new(wires.iter().map(pair).collect(), None, pool, 32).unwrap();
    (control, ring_forwarder, wires)
}

/// A native port of wires.
pub struct Port {
    pub control: NativePort,
    pub ring_forwarder: Option<RingForwarder>,
    pub wires: Vec<Wire>,
    pub region: Region,
    pub pool: Mempool,
}

/// A program that has the port.
pub struct Program {
    pub joined: Box<dyn ServedPort>,
    pub tx: Vec<PortRing>,
    pub rx: Vec<PortRing>,
    pub buffers: Buffers,
    pub csb: Memory,
    pub kicks: Arc<AtomicU64>,
    pub memory: PortMemory,
}

impl Port {
    /// Frames are copied.
    pub fn copying(queues: usize) -> Self {
        let pool = Mempool::new(&MempoolConfig { buffers: 2048, ..Default::default() }).unwrap();
        let region = Region::new(Pools::default(), &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
        Self::new(queues, pool, region)
    }

    /// Buffers are exchanged: [`OWN`] are the pool's.
    pub fn exchanging(queues: usize) -> Self {
        let pools = Pools { buffers: Pools::default().buffers + OWN, ..Pools::default() };
        let region = Region::exchanging(pools, OWN, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
        Self::new(queues, region.exchange().expect("a pool").pool().clone(), region)
    }

    fn new(queues: usize, pool: Mempool, region: Region) -> Self {
        let (control, ring_forwarder, wires) = ring_forwarder(queues, &pool);
        Self { control, ring_forwarder: Some(ring_forwarder), wires, region, pool }
    }

    /// Checks that no packet is outside of the pool, and that all buffers of the region are free except the
    /// pool's.
    pub fn assert_all_is_back(&mut self) {
        self.ring_forwarder = None;
        self.wires.clear();
        let handles = 1 + usize::from(self.region.exchange().is_some());
        assert_eq!((self.region.free_buffers(), self.pool.outstanding(handles)), (4096, 0));
        if let Some(exchange) = self.region.exchange() {
            // The two reserved ones count as free.
            assert_eq!(exchange.owner_counts(), [4098, 0, OWN as usize]);
        }
    }

    pub fn work(&mut self) {
        let ring_forwarder = self.ring_forwarder.as_mut().expect("not on a thread");
        while ring_forwarder.round() > 0 {}
    }

    pub fn open(&mut self, slots: u32) -> Program {
        let shape = Shape { rings: [self.wires.len() as u16; 2], slots: [slots; 2], host_rings: [0; 2] };
        let (memory, served) = PortMemory::new(&mut self.region, "x", shape, false).unwrap_or_else(|e| panic!("{e}"));
        let joined = self.control.join(served, &self.region).unwrap();
        let (notifier, kicks) = notifier(&*joined);
        let (mapped, csb) = (elsewhere(self.region.allocated().unwrap()), elsewhere(memory.csb()));
        let [tx, rx] = attach(&mapped, memory.interface(), &csb, &notifier).expect("rings");
        let buffers = Buffers::of(&mapped, self.region.pools()).unwrap();
        Program { joined, tx, rx, buffers, csb, kicks, memory }
    }

    pub fn close(&mut self, program: Program) {
        drop(program.joined);
        program.memory.release(&mut self.region);
    }
}

impl Program {
    /// Sends a frame in one slot. Returns `false` if there is no room.
    pub fn put(&self, ring: usize, frame: &[u8]) -> bool {
        let ring = &self.tx[ring];
        ring.sync().unwrap();
        let room = ring.own() > 0;
        if room {
            let position = ring.position(0);
            let slot = Slot { len: frame.len() as u16, ..ring.ring().slot(position) };
            assert!(self.buffers.write(slot, frame));
            ring.ring().set(position, slot);
            ring.release_slots(1);
            ring.sync().unwrap();
        }
        room
    }

    /// Receives all frames. An empty slot, without a buffer, counts as an empty frame.
    pub fn receive(&self, ring: usize) -> Vec<Vec<u8>> {
        let ring = &self.rx[ring];
        ring.sync().unwrap();
        let own = ring.own();
        let frame = |position| {
            let mut bytes = vec![0; 2048];
            let slot = ring.ring().slot(position);
            let len = if slot == Slot::default() { 0 } else { self.buffers.read(slot, &mut bytes).expect("a frame") };
            bytes.truncate(len);
            bytes
        };
        let frames = ring.first(own).map(frame).collect();
        ring.release_slots(own);
        ring.sync().unwrap();
        frames
    }
}
