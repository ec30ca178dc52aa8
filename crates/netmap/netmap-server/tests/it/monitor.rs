//! Programs that monitor the ports of others.

use crate::programs::*;
use ringpass_memory::RegionConfig;
use ringpass_netmap::csb::Csb;
use ringpass_netmap::{Buffers, Notifier, Pools, PortMemory, PortRing, Region, Shape, attach};
use ringpass_netmap_server::ServedPort;
use serde_json::Value;
use std::sync::Arc;

/// A program's rings that get copies.
struct Watcher {
    control: Box<dyn ServedPort>,
    rx: Vec<PortRing>,
    buffers: Buffers,
    memory: PortMemory,
    region: Region,
}

impl Watcher {
    /// Monitors what a program sends, what it receives, or both.
    fn new(of: &Program, ways: [bool; 2], slots: u32) -> Self {
        let pools = Pools { buffers: 200, ..Pools::default() };
        let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape { rings: [1; 2], slots: [2, slots], host_rings: [0; 2] };
        let (memory, served) = PortMemory::new(&mut region, "watcher", shape, true).unwrap_or_else(|e| panic!("{e}"));
        let buffers = Buffers::of(region.memory(), &pools).unwrap();
        let control = of.control.monitor(ways, served, &buffers).unwrap();
        let notifier: Notifier = Arc::new(|| ());
        let [_, rx] =
            attach(region.memory(), memory.interface(), &memory.csb().clone().into(), &notifier).expect("rings");
        Self { control, rx, buffers, memory, region }
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        let ring = &self.rx[0];
        ring.sync().unwrap();
        let own = ring.own();
        let frame = |position| {
            let slot = ring.ring().slot(position);
            let mut bytes = vec![0; usize::from(slot.len)];
            self.buffers.read(slot, &mut bytes).expect("a frame");
            bytes
        };
        let frames = ring.first(own).map(frame).collect();
        ring.release_slots(own);
        ring.sync().unwrap();
        frames
    }

    fn counters(&self) -> Value {
        self.control.counters()
    }
}

#[test]
fn monitors_see_what_is_sent_and_what_is_received() {
    let mut vale = Vale::new();
    let [one, other] = [0, 1].map(|place| vale.open(place, pair(64)));
    let [sent, received, both] = [[true, false], [false, true], [true; 2]].map(|ways| Watcher::new(&one, ways, 64));
    for len in [14, 60, 61, 1514, 2048] {
        let (there, back) = (frame(BROADCAST, mac(0), len), frame(BROADCAST, mac(1), len));
        one.send(&there);
        vale.work();
        other.send(&back);
        vale.work();
        assert_eq!((other.receive(), one.receive()), (vec![there.clone()], vec![back.clone()]));
        assert_eq!((sent.seen(), received.seen()), (vec![there.clone()], vec![back.clone()]));
        assert_eq!(both.seen(), [there, back], "in order");
    }
    // A monitor that has ended gets nothing more, and its memory is not accessed.
    let Watcher { control, memory, mut region, rx, buffers } = sent;
    let file = region.file().clone();
    drop((control, rx, buffers));
    memory.release(&mut region);
    assert_eq!(region.free_buffers(), 198);
    drop(region);
    assert_eq!(Arc::strong_count(&file), 1, "nobody else has it");
    one.send(&frame(BROADCAST, mac(0), 60));
    vale.work();
    assert_eq!((other.receive().len(), both.seen().len(), received.seen().len()), (1, 1, 0));
    // When a port ends, its monitors keep what they have.
    drop(one);
    vale.work();
    assert_eq!(both.seen().len(), 0);
    assert_eq!(both.counters()["tx_packets"], 11);
}

#[test]
fn a_full_monitor_costs_copies_only() {
    let mut vale = Vale::new();
    let [one, other] = [0, 1].map(|place| vale.open(place, pair(64)));
    let slow = Watcher::new(&one, [true; 2], 16);
    for round in 0..20 {
        for number in 0..10 {
            assert!(one.put(0, &[&frame(BROADCAST, mac(0), 60 + round + number)]));
        }
        one.sync();
        vale.work();
        one.sync();
        assert_eq!(other.receive().len(), 10);
    }
    let stats = one.control.stats();
    assert_eq!((stats.rx_packets, stats.rx_drops), (200, 0));
    let counters = slow.counters();
    assert_eq!((&counters["tx_packets"], &counters["tx_drops"]), (&15.into(), &185.into()));
    assert_eq!(slow.seen().len(), 15);
    // Frames that the port itself does not get are not monitored either.
    for _ in 0..10 {
        (0..10).for_each(|_| assert!(other.put(0, &[&frame(BROADCAST, mac(1), 60)])));
        other.sync();
        vale.work();
        other.sync();
        slow.seen();
    }
    let came = one.receive().len();
    assert_eq!((came, &slow.counters()["tx_packets"]), (63, &(15 + 63).into()));
}

/// A monitor's program may write anything into its rings: the monitored port is not affected.
#[test]
fn a_monitor_that_lies_is_alone_with_it() {
    let mut vale = Vale::new();
    let [one, other] = [0, 1].map(|place| vale.open(place, pair(64)));
    let liar = Watcher::new(&one, [true; 2], 32);
    let csb = Csb::new(&liar.memory.csb().clone().into(), 0, 4096, 64).unwrap();
    let mut random = 7_u32;
    for round in 0..500 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let ring = liar.rx[0].ring();
        let slot = ring.slot(random % 32);
        ring.set(random % 32, ringpass_netmap::Slot { buffer: random >> (round % 32), len: random as u16, ..slot });
        // Its Rx ring has entry 1.
        csb.write_atok(1, random >> 24 & 63, random >> 16 & 63, random & 1);
        one.send(&frame(BROADCAST, mac(0), 60));
        vale.work();
        one.sync();
        assert_eq!(other.receive(), [frame(BROADCAST, mac(0), 60)]);
    }
    assert_eq!((one.control.resets(), one.control.bad_slots()), (0, 0));
    assert!(liar.counters()["resets"].as_u64() > Some(10), "{}", liar.counters());
}
