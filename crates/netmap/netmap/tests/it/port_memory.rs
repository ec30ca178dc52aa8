//! A port's memory, mapped a second time as another process would: each side finds what the other has written.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ringpass_memory::{DmaRegion, ForeignMemory, Memory, RegionConfig};
use ringpass_netmap::{Kring, Notifier, Pools, PortMemory, PortRing, Region, Shape, Slot, attach, attach_pipe};

fn elsewhere(region: &Arc<DmaRegion>) -> Memory {
    let file = region.file().unwrap().try_clone_to_owned().unwrap();
    ForeignMemory::map_shared(file, 0, region.len()).unwrap().into()
}

fn nobody() -> Notifier {
    Arc::new(|| ())
}

fn region(pools: Pools) -> Region {
    Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn frame(region: &Region, memory: &Memory, slot: Slot) -> Vec<u8> {
    let (start, len) = region.check(slot).expect("a slot of the region's");
    let start = memory.bytes(start, len).unwrap();
    // SAFETY: `bytes` has checked that `len` bytes lie in the memory, and neither side writes them at this
    // time.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }.to_vec()
}

fn write(region: &Region, memory: &Memory, slot: Slot, bytes: &[u8]) {
    let (start, len) = region.check(slot).expect("a slot of the region's");
    assert_eq!(len, bytes.len());
    // SAFETY: `bytes` has checked that `len` bytes lie in the memory; `bytes.len() == len`. No other side
    // accesses them at this time.
    unsafe { memory.bytes(start, len).unwrap().copy_from(NonNull::from(bytes).cast(), len) };
}

/// Sends frames on a ring and has the server return them on the Rx ring.
fn round_trip(region: &Region, theirs: &Memory, tx: &PortRing, rx: &PortRing, served: &mut [Kring; 2]) {
    let frames: Vec<Vec<u8>> = (0..5).map(|n| vec![n; 60 + usize::from(n)]).collect();
    for (n, bytes) in (0..).zip(&frames) {
        let position = tx.position(n);
        let slot = Slot { len: bytes.len() as u16, ..tx.ring().slot(position) };
        write(region, theirs, slot, bytes);
        tx.ring().set(position, slot);
    }
    tx.release_slots(5);
    assert_eq!(tx.sync(), Ok(()));
    let [from, to] = served;
    assert_eq!(from.poll_released(), Ok(5));
    for n in 0..5 {
        let bytes = frame(region, region.memory(), from.ring().slot(from.hwcur_plus(n)));
        let position = to.hwtail_plus(n);
        let slot = Slot { len: bytes.len() as u16, ..to.ring().slot(position) };
        write(region, region.memory(), slot, &bytes);
        to.ring().set(position, slot);
    }
    from.advance_hwcur(5);
    from.advance_hwtail(5);
    to.advance_hwtail(5);
    assert!(!from.publish() && !to.publish());
    assert_eq!((rx.sync(), rx.own()), (Ok(()), 5));
    let came: Vec<Vec<u8>> = (0..5).map(|n| frame(region, theirs, rx.ring().slot(rx.position(n)))).collect();
    assert!(came == frames);
    rx.release_slots(5);
    assert_eq!((rx.sync(), to.poll_released()), (Ok(()), Ok(5)));
    to.advance_hwcur(5);
    assert_eq!((tx.sync(), tx.own()), (Ok(()), tx.ring().slots() - 1));
}

#[test]
fn what_one_side_writes_the_other_finds() {
    let shape = Shape { rings: [2, 3], slots: [64, 32], host_rings: [0; 2] };
    let mut region = region(Pools::default());
    let (port, served) = PortMemory::new(&mut region, "vale0:1", shape, true).unwrap();
    let theirs = elsewhere(region.allocated().unwrap());
    let rings = attach(&theirs, port.interface(), &elsewhere(port.csb()), &nobody()).expect("rings");
    let rings: Vec<PortRing> = rings.into_iter().flatten().collect();
    assert_eq!(rings.iter().map(|ring| ring.ring().slots()).collect::<Vec<_>>(), [64, 64, 32, 32, 32]);
    assert_eq!(rings.iter().map(PortRing::own).collect::<Vec<_>>(), [63, 63, 0, 0, 0]);
    let mut served: Vec<Option<Kring>> = served.into_iter().map(Some).collect();
    for (tx, rx) in [(0, 2), (1, 4)] {
        let mut pair = [tx, rx].map(|number: usize| served[number].take().unwrap());
        // Goes around both rings several times.
        (0..30).for_each(|_| round_trip(&region, &theirs, &rings[tx], &rings[rx], &mut pair));
    }
    port.release(&mut region);
    assert_eq!(region.free_buffers(), 4096);
}

#[test]
fn what_does_not_fit_takes_nothing() {
    let pools = Pools { buffers: 300, ring_bytes: 8192, ..Pools::default() };
    let mut region = region(pools);
    let shape = Shape { rings: [1, 1], slots: [200, 200], host_rings: [0; 2] };
    for (shape, why) in [
        (shape, "98 buffers left of 200"),
        (Shape { slots: [250, 16], ..shape }, "no room left for a ring"),
        (Shape { rings: [33, 32], ..shape }, "at most 64 rings"),
        (Shape { slots: [1, 2], ..shape }, "2 to 65536 slots"),
    ] {
        let error = PortMemory::new(&mut region, "x", shape, true).map(drop).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(region.free_buffers(), 298);
    }
    let (port, _served) = PortMemory::new(&mut region, "x", Shape { slots: [100, 100], ..shape }, true).unwrap();
    assert_eq!(region.free_buffers(), 98);
    port.release(&mut region);
    assert_eq!(region.free_buffers(), 298);
}

/// An interface descriptor with contents that another process may have written.
#[test]
fn rings_that_lie_elsewhere_are_none() {
    let mut region = region(Pools::default());
    let shape = Shape { rings: [1, 1], slots: [16, 16], host_rings: [0; 2] };
    let (port, _served) = PortMemory::new(&mut region, "x", shape, false).unwrap();
    let (theirs, csb) = (elsewhere(region.allocated().unwrap()), elsewhere(port.csb()));
    let place = port.interface();
    assert!(attach(&theirs, place, &csb, &nobody()).is_some());
    for wrong in [place + 4, region.bytes(), usize::MAX - 8] {
        assert!(attach(&theirs, wrong, &csb, &nobody()).is_none(), "{wrong}");
    }
    for (ring, offset) in [(0, usize::MAX / 2), (2, 3), (0, region.bytes() - 256 - place)] {
        region.set_ring(place, ring, Some(offset));
        assert!(attach(&theirs, place, &csb, &nobody()).is_none(), "{offset}");
        region.set_ring(place, ring, None);
        assert!(attach(&theirs, place, &csb, &nobody()).is_some(), "the others are there");
    }
}

/// Both ends, each in its own memory, and a further descriptor with only the Rx ring.
#[test]
fn ends_of_a_pipe_find_each_other() {
    let mut region = region(Pools { interfaces: 3, ..Pools::default() });
    let all = region.free_buffers();
    let shape = Shape { rings: [1; 2], slots: [64, 32], host_rings: [0; 2] };
    let ends = PortMemory::pipe(&mut region, ["x{1", "x}1"], shape).unwrap();
    assert_eq!(region.free_buffers(), all - 64 - 32, "only rings to send have buffers");
    let places = ends.each_ref().map(PortMemory::interface);
    let reading = ends[1].bind(&mut region, |direction, _| direction == ringpass_netmap::Direction::Rx).unwrap();
    let attach = |own, other, first| {
        let (memory, csb) = (elsewhere(region.allocated().unwrap()), elsewhere(ends[0].csb()));
        attach_pipe(&memory, (own, other), first, &csb, &nobody(), None).expect("rings")
    };
    let [tx, rx] = attach(places[0], places[1], true);
    let [other_tx, other_rx] = attach(places[1], places[0], false);
    let [none, reader] = attach(reading, places[0], false);
    assert_eq!([&tx, &rx, &other_tx, &other_rx, &none, &reader].map(Vec::len), [1, 1, 1, 1, 0, 1]);
    for (slots, from, to) in [(64, &tx[0], &other_rx[0]), (32, &other_tx[0], &rx[0]), (64, &tx[0], &reader[0])] {
        assert_eq!([from, to].map(|end| end.ring().slots()), [slots; 2]);
        for round in 0..100 {
            let slot = Slot { len: 60 + round, ..from.ring().slot(from.position(0)) };
            from.ring().set(from.position(0), slot);
            from.release_slots(1);
            assert_eq!((from.sync(), to.sync()), (Ok(()), Ok(())));
            assert_eq!((to.own(), to.ring().slot(to.position(0))), (1, slot));
            to.release_slots(1);
            assert_eq!((to.sync(), from.sync(), from.own()), (Ok(()), Ok(()), slots - 1));
        }
    }
    region.release_interface(reading);
    ends.into_iter().for_each(|end| end.release(&mut region));
    assert_eq!(region.free_buffers(), all);
}

/// Each ring of a pipe has a counterpart with the same number, also for a descriptor with only some of the rings.
#[test]
fn rings_of_a_pipe_are_apart() {
    let most = PortMemory::MAX_PIPE_RINGS;
    let shape = Shape { rings: [most, 3], slots: [8, 16], host_rings: [0; 2] };
    let mut region = region(Pools { interfaces: 4, ring_bytes: 1 << 20, ..Pools::default() });
    let all = region.free_buffers();
    let more = Shape { rings: [1, most + 1], ..shape };
    assert!(PortMemory::pipe(&mut region, ["x{1", "x}1"], more).is_err());
    let ends = PortMemory::pipe(&mut region, ["x{1", "x}1"], shape).unwrap();
    assert_eq!(ends[1].shape(), Shape { rings: [3, most], slots: [16, 8], host_rings: [0; 2] });
    let places = ends.each_ref().map(PortMemory::interface);
    let second = ends[1].bind(&mut region, |_, id| id == 2).unwrap();
    let (memory, csb) = (elsewhere(region.allocated().unwrap()), elsewhere(ends[0].csb()));
    let attach = |own, other, first| attach_pipe(&memory, (own, other), first, &csb, &nobody(), None).expect("rings");
    let [tx, rx] = attach(places[0], places[1], true);
    let [other_tx, other_rx] = attach(places[1], places[0], false);
    let [one_tx, one_rx] = attach(second, places[0], false);
    let counts = [&tx, &rx, &other_tx, &other_rx, &one_tx, &one_rx].map(Vec::len);
    assert_eq!(counts, [most.into(), 3, 3, most.into(), 1, 1]);
    let pass = |from: &PortRing, to: &PortRing, others: &[&PortRing]| {
        let slot = Slot { len: 60 + to.ring().slots() as u16, ..from.ring().slot(from.position(0)) };
        from.ring().set(from.position(0), slot);
        from.release_slots(1);
        assert_eq!((from.sync(), to.sync()), (Ok(()), Ok(())));
        assert!(others.iter().all(|ring| ring.sync().is_ok() && ring.own() == 0), "no other ring has a frame");
        assert_eq!((to.own(), to.ring().slot(to.position(0))), (1, slot));
        to.release_slots(1);
        assert_eq!(to.sync(), Ok(()));
    };
    for (from, to) in tx.iter().zip(&other_rx).chain(other_tx.iter().zip(&rx)) {
        let others: Vec<_> = rx.iter().chain(&other_rx).filter(|ring| !std::ptr::eq(*ring, to)).collect();
        pass(from, to, &others);
    }
    pass(&tx[2], &one_rx[0], &[&other_rx[1], &other_rx[3], &rx[2]]);
    pass(&one_tx[0], &rx[2], &[&rx[1], &other_rx[3]]);
    // A program that writes other counts into the descriptor gets no rings.
    let counts = memory.cells::<AtomicU32>(places[1] + 24, 2).unwrap();
    counts[1].store(u32::from(most) - 1, Relaxed);
    assert!(attach_pipe(&memory, (places[0], places[1]), true, &csb, &nobody(), None).is_none());
    region.release_interface(second);
    ends.into_iter().for_each(|end| end.release(&mut region));
    assert_eq!(region.free_buffers(), all);
}

/// Two processes have a pipe's sending end. One comes back to the slot at which it was when it last looked, a round of the ring later.
#[test]
fn what_another_process_has_sent() {
    const LAST_OWNER: usize = 2 * 4096;
    let shape = Shape { rings: [1, 1], slots: [8; 2], host_rings: [0; 2] };
    let mut region = region(Pools { interfaces: 4, ring_bytes: 1 << 20, ..Pools::default() });
    let ends = PortMemory::pipe(&mut region, ["x{1", "x}1"], shape).unwrap();
    let [own, other] = ends.each_ref().map(PortMemory::interface);
    let (memory, csb) = (elsewhere(region.allocated().unwrap()), elsewhere(ends[0].csb()));
    let attach = |places, first| attach_pipe(&memory, places, first, &csb, &nobody(), None).expect("rings");
    let [a, b] = [attach((own, other), true), attach((own, other), true)].map(|[mut tx, _]| tx.remove(0));
    let [_, mut receiver] = attach((other, own), false);
    let receiver = receiver.remove(0);
    let last_owner = csb.cells::<AtomicU32>(LAST_OWNER, 1).unwrap();
    let send = |ring: &PortRing, head| {
        let _locked = ring.lock().expect("nobody else has it");
        ring.pass(head, head, 0).map(|positions| positions.hwtail())
    };
    assert_eq!(send(&a, 0), Ok(7), "seven slots are free");
    let process = last_owner[0].swap(2 * 4_000_000, Relaxed);
    assert_eq!(process, std::process::id() << 1, "the last owner of the lock");
    assert_eq!(send(&b, 7), Ok(7));
    assert_eq!(receiver.pass(1, 1, 0).map(|positions| positions.hwtail()), Ok(7));
    assert_eq!(send(&b, 0), Ok(0), "and all are sent, all but one not received");
    last_owner[0].store(2 * 4_000_000, Relaxed);
    assert!(send(&a, 3).is_err(), "slots that the receiver has are sent again");
    assert_eq!(send(&a, 0), Ok(0));
}
