//! What frames cost between a program's rings and a port in netmap mode, copied and by exchange of buffers: a program that
//! sends by moving `head` alone to a port that takes all, or receives what a port always has. One thread does both sides'
//! work in turns, and times the joint's: the median of its rounds says what a frame costs on a machine that has other work,
//! too.
//!
//! `cargo run --release -p ringpass-netmap --example native -- LENGTH`

use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAGAZINE, Mempool, MempoolConfig, RegionConfig};
use ringpass_netmap::native::NativePort;
use ringpass_netmap::{Bell, Pools, PortMemory, Region, Shape, Slot, attach};
use ringpass_port::{Queues, RxQueue, TxQueue, Wake, Wakeable};

/// Always has frames of a length, if it has a pool; what lies in the buffers is sent.
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
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Turns);
    }
}

/// Takes all.
struct Sink;

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        burst.clear();
        taken
    }
}

/// The time stamp counter.
fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it reads nothing but the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Frames of a round.
const BATCH: u32 = 256;

/// Buffers of the pool.
const OWN: u32 = 4096;

/// Cycles of the joint for a frame.
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
    let queues = vec![Queues { rx: Box::new(source), tx: Box::new(Sink) }];
    let (control, mut joint) = NativePort::new(queues, &pool, 256).expect("a port");
    let shape = Shape { rings: [1; 2], slots: [1024; 2] };
    let (memory, served) = PortMemory::new(&mut region, "x", shape, false).unwrap_or_else(|error| panic!("{error}"));
    let joined = control.join(served, &region.place()).expect("rings");
    let bell: Bell = Arc::new(|| panic!("the joint does not sleep"));
    let csb = memory.csb().clone().into();
    let [tx, rx] = attach(region.memory(), memory.interface(), &csb, &bell).expect("rings");
    let ring = if receiving { &rx[0] } else { &tx[0] };
    if !receiving {
        for position in 0..ring.ring().slots() {
            ring.ring().set(position, Slot { len: len as u16, ..ring.ring().slot(position) });
        }
    }
    let mut costs: Vec<u64> = (0..20_000)
        .map(|_| {
            ring.sync().expect("a ring");
            ring.give_up(ring.own().min(BATCH));
            ring.sync().expect("a ring");
            let start = cycles();
            let moved = joint.round() as u64;
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
