//! Measures what a frame costs between a program's rings and a native port, copied and by exchange of buffers.
//!
//! The program sends by moving `head` alone to a port that accepts everything, or receives from a port that
//! always has frames. One thread does the work of both sides in turn and times the forwarder's part. The median
//! of its rounds is robust on a machine that has other work, too.
//!
//! `cargo run --release -p ringpass-netmap --example native -- LENGTH`

use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAGAZINE, Mempool, MempoolConfig, RegionConfig};
use ringpass_netmap::{Notifier, Pools, PortMemory, Region, Shape, Slot, attach};
use ringpass_netmap_server::NativePort;
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};

/// Always has frames of the given length, if it has a pool. Their content is whatever the buffers hold.
struct Source(Option<(Cache, usize)>);

impl RxQueue for Source {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let Some((cache, len)) = &mut self.0 else { return 0 };
        for mut packet in cache.take(MAGAZINE.min(burst.room())) {
            packet.set_len(*len);
            burst.push(packet);
        }
        burst.len()
    }
}

impl Wakeable for Source {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

/// Accepts and drops all packets.
struct Sink;

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        burst.clear();
        taken
    }
}

/// Reads the time stamp counter.
fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it reads nothing but the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Frames of a round.
const BATCH: u32 = 256;

/// Buffers of the pool.
const OWN: u32 = 4096;

/// Returns the cycles that the forwarder spends on a frame.
fn measure(exchanged: bool, receiving: bool, len: usize) -> u64 {
    let (pools, config) = (Pools::default(), RegionConfig::default());
    let region = if exchanged {
        Region::exchanging(Pools { buffers: pools.buffers + OWN, ..pools }, OWN, &config)
    } else {
        Region::new(pools, &config)
    };
    let mut region = region.unwrap_or_else(|error| panic!("{error}"));
    let pool = match region.exchange() {
        Some(exchange) => exchange.pool().clone(),
        None => Mempool::new(&MempoolConfig { buffers: OWN as usize, ..Default::default() }).expect("memory"),
    };
    let source = Source(receiving.then(|| (pool.cache(), len)));
    let queues = vec![QueuePair { rx: Box::new(source), tx: Box::new(Sink) }];
    let (control, mut ring_forwarder) = NativePort::new(queues, None, &pool, 256).expect("a port");
    let shape = Shape { rings: [1; 2], slots: [1024; 2], host_rings: [0; 2] };
    let (memory, served) = PortMemory::new(&mut region, "x", shape, false).unwrap_or_else(|error| panic!("{error}"));
    let joined = control.join(served, &region).expect("rings");
    let notifier: Notifier = Arc::new(|| panic!("the port does not sleep"));
    let csb = memory.csb().clone().into();
    let [tx, rx] = attach(region.memory(), memory.interface(), &csb, &notifier).expect("rings");
    let ring = if receiving { &rx[0] } else { &tx[0] };
    if !receiving {
        for position in 0..ring.ring().slots() {
            ring.ring().set(position, Slot { len: len as u16, ..ring.ring().slot(position) });
        }
    }
    let mut costs: Vec<u64> = (0..20_000)
        .map(|_| {
            ring.sync().expect("a ring");
            ring.release_slots(ring.own().min(BATCH));
            ring.sync().expect("a ring");
            let start = cycles();
            let moved = ring_forwarder.round() as u64;
            (cycles() - start) / moved.max(1)
        })
        .collect();
    drop(joined);
    assert!(control.dropped() < 1000, "the program had no room");
    costs.sort_unstable();
    costs[costs.len() / 2]
}

fn main() {
    let len = std::env::args().nth(1).map_or(60, |text| text.parse().expect("bytes of a frame"));
    for (what, receiving) in [("sent", false), ("received", true)] {
        let [copied, exchanged] = [false, true].map(|exchanged| measure(exchanged, receiving, len));
        println!("{len} bytes: cycles of the joint for a frame that is {what}: {copied} copied, {exchanged} exchanged");
    }
}
