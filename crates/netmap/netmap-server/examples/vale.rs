//! Measures how fast frames go from one port of a VALE switch to another. A program that sends by moving `head`
//! alone and receives runs on one core, the switch's thread on another.
//!
//! `cargo run --release -p ringpass-netmap --example vale -- BATCH SECONDS LENGTH BUFFERSIZE`
//!
//! Without a second thread, so that callgrind counts the switch's instructions: `valgrind --tool=callgrind
//! --toggle-collect='*Datapath*round*' target/release/examples/vale BATCH 0`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ringpass_memory::{DmaRegion, ForeignMemory, MAX_BATCH, Memory, Mempool, MempoolConfig, RegionConfig};
use ringpass_netmap::{Buffers, Notifier, Pools, PortMemory, PortRing, Region, Shape, Slot, attach};
use ringpass_netmap_server::{RingPort, ServedRings};
use ringpass_switch::{Config, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch};

/// A port, and its program's rings.
struct Port {
    _control: RingPort,
    tx: PortRing,
    rx: PortRing,
    region: Region,
}

fn port(switch: &mut Switch, place: usize, pool: &Mempool, buffer_size: u32) -> Port {
    let pools = Pools { buffer_size, ..Pools::default() };
    let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let shape = Shape { rings: [1; 2], slots: [1024; 2], host_rings: [0; 2] };
    let (memory, served) =
        PortMemory::new(&mut region, "vale0:x", shape, true).unwrap_or_else(|error| panic!("{error}"));
    let buffers = Buffers::of(region.memory(), &pools).unwrap();
    let (control, queues) =
        RingPort::new(ServedRings::new(served, buffers).expect("an eventfd"), pool).expect("a port");
    switch.insert(place, vec![DatapathQueues { rx: vec![(queues.rx, Forwarding::Lookup)], tx: queues.tx }]);
    let notifier: Notifier = Arc::new(|| panic!("the switch does not sleep"));
    let theirs = |file: &Arc<DmaRegion>| -> Memory {
        let fd = file.file().expect("memory that is shared").try_clone_to_owned().expect("a descriptor");
        ForeignMemory::map_shared(fd, 0, file.len()).expect("a mapping").into()
    };
    let mapped = theirs(region.allocated().expect("a region of this process"));
    let [tx, rx] = attach(&mapped, memory.interface(), &theirs(memory.csb()), &notifier).expect("rings");
    let (tx, rx) = (tx.into_iter().next().expect("a ring"), rx.into_iter().next().expect("a ring"));
    Port { _control: control, tx, rx, region }
}

/// Fills all slots of the Tx ring with a frame.
fn prepare(port: &Port, to: u8, from: u8, len: u16) {
    let buffers = Buffers::of(port.region.memory(), port.region.pools()).unwrap();
    let frame = [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5][..], &vec![0; usize::from(len) - 14]].concat();
    let ring = port.tx.ring();
    for position in 0..ring.slots() {
        let slot = Slot { len, ..ring.slot(position) };
        let bytes = buffers.bytes(slot).expect("a buffer").cast::<u8>();
        // SAFETY: `bytes` has checked that the slot's length, which is the frame's, lies in the region. Neither
        // the switch nor another thread uses the region at this time.
        unsafe { bytes.as_ptr().copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        ring.set(position, slot);
    }
}

/// Sends up to `batch` frames and receives what has arrived. Returns the number of received frames.
fn turn(from: &PortRing, to: &PortRing, batch: u32) -> u32 {
    from.release_slots(from.own().min(batch));
    from.sync().expect("a ring");
    to.sync().expect("a ring");
    let received = to.own();
    to.release_slots(received);
    received
}

/// Reads the time stamp counter.
fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it reads nothing but the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What the switch's thread has done in rounds that moved packets.
#[derive(Default)]
struct Work {
    rounds: u64,
    packets: u64,
    cycles: u64,
}

fn work(datapath: &mut Datapath, stop: &AtomicBool) -> Work {
    let mut work = Work::default();
    while !stop.load(Relaxed) {
        let start = cycles();
        let packets = datapath.round() as u64;
        if packets > 0 {
            work.rounds += 1;
            work.packets += packets;
            work.cycles += cycles() - start;
        }
    }
    work
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>().expect("a number"));
    let mut number = |usual| numbers.next().unwrap_or(usual);
    let (batch, seconds, len, buffer_size) = (number(256), number(3), number(60), number(2048));
    let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).expect("memory");
    let mut switch = Switch::new(&Config::default(), &vec![PortPolicy::default(); 4]).expect("a switch");
    let mut datapath = switch.datapath(&pool, MAX_BATCH).expect("a datapath");
    let [a, b] = [0, 1].map(|place| port(&mut switch, place, &pool, buffer_size));
    for (port, to, from) in [(&a, 2, 1), (&b, 1, 2)] {
        prepare(port, to, from, len as u16);
        // The first frame lets the switch learn the port's address.
        port.tx.release_slots(1);
        port.tx.sync().expect("a ring");
    }
    (0..4).for_each(|_| _ = datapath.round());
    if seconds == 0 {
        let mut packets = 0;
        for _ in 0..400 {
            packets += turn(&a.tx, &b.rx, batch);
            while datapath.round() > 0 {}
        }
        return println!("{packets} packets received");
    }
    let stop = AtomicBool::new(false);
    let (received, work) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&mut datapath, &stop));
        let (start, mut received) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds.into()) {
            (0..100).for_each(|_| received += u64::from(turn(&a.tx, &b.rx, batch)));
        }
        stop.store(true, Relaxed);
        (received, worker.join().expect("it does not panic"))
    });
    let rate = |packets: u64| packets as f64 / f64::from(seconds) / 1e6;
    println!(
        "{:.2} Mpps received of {:.2} switched, {} packets a round, {} cycles a packet",
        rate(received),
        rate(work.packets),
        work.packets / work.rounds.max(1),
        work.cycles / work.packets.max(1),
    );
}
