//! Programs that monitor the ports of others.

use crate::programs::*;
use ringpass_memory::RegionConfig;
use ringpass_netmap::csb::Csb;
use ringpass_netmap::{Buffers, Flags, Notifier, Pools, PortMemory, PortRing, Region, Shape, attach};
use ringpass_netmap_server::{ServedPort, Watched};
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
        Self::of_rings(of, Watched::all(ways), [1, slots])
    }

    /// Monitors some of the rings, with as many Rx rings of so many slots.
    fn of_rings(of: &Program, watched: Watched, [rings, slots]: [u32; 2]) -> Self {
        let pools = Pools { buffers: 200, ..Pools::default() };
        let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape { rings: [1, rings as u16], slots: [2, slots], host_rings: [0; 2] };
        let (memory, served) = PortMemory::new(&mut region, "watcher", shape, true).unwrap_or_else(|e| panic!("{e}"));
        let buffers = Buffers::of(region.memory(), &pools).unwrap();
        let control = of.control.monitor(watched, served, &region).unwrap();
        let notifier: Notifier = Arc::new(|| ());
        let [_, rx] =
            attach(region.memory(), memory.interface(), &memory.csb().clone().into(), &notifier).expect("rings");
        Self { control, rx, buffers, memory, region }
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        self.seen_with(0).into_iter().map(|(frame, _)| frame).collect()
    }

    /// Frames that have come to a ring, and whether they are marked as sent.
    fn seen_with(&self, ring: usize) -> Vec<(Vec<u8>, bool)> {
        let ring = &self.rx[ring];
        ring.sync().unwrap();
        let own = ring.own();
        let frame = |position| {
            let slot = ring.ring().slot(position);
            let mut bytes = vec![0; usize::from(slot.len)];
            self.buffers.read(slot, &mut bytes).expect("a frame");
            (bytes, slot.flags.any(Flags::TX_MONITOR))
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
    let file = region.allocated().unwrap().clone();
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

/// A monitor's rings get the frames of the port's rings with their numbers, or of one of them; what was sent is marked.
#[test]
fn rings_are_monitored_one_by_one() {
    let mut vale = Vale::new();
    let several = Shape { rings: [2, 3], slots: [64; 2], host_rings: [0; 2] };
    let (one, other) = (vale.open(0, several), vale.open(1, pair(64)));
    let all = Watcher::of_rings(&one, Watched::all([true; 2]), [3, 64]);
    let second = Watcher::of_rings(&one, Watched { ways: [true; 2], rings: 0b10 }, [3, 64]);
    let sent: Vec<_> = (0..2).map(|ring| frame(BROADCAST, mac(0), [60, 5000][ring])).collect();
    let pieces: Vec<_> = sent[1].chunks(2048).collect();
    assert!(one.put(0, &[&sent[0]]) && one.put(1, &pieces));
    one.sync();
    vale.work();
    assert_eq!(other.receive().len(), 2);
    assert_eq!((all.seen_with(0), second.seen_with(0)), (vec![(sent[0].clone(), true)], vec![]));
    // Each slot of the long frame is marked.
    for watcher in [&all, &second] {
        let pieces = watcher.seen_with(1);
        assert!(pieces.len() == 3 && pieces.iter().all(|(_, marked)| *marked));
        assert_eq!(pieces.into_iter().flat_map(|(piece, _)| piece).collect::<Vec<_>>(), sent[1]);
    }
    for station in 1..60 {
        other.send(&frame(BROADCAST, mac(station), 60));
        vale.work();
    }
    for ring in 0..3 {
        let received: Vec<_> = one.receive_on(ring).into_iter().map(|frame| (frame, false)).collect();
        assert!(!received.is_empty(), "a ring without a flow");
        assert_eq!(all.seen_with(ring), received);
        assert_eq!(second.seen_with(ring), if ring == 1 { received } else { Vec::new() });
    }
}
