//! Programs that exchange frames through a switch by their rings.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::programs::*;
use proptest::prelude::*;
use ringpass_memory::MempoolConfig;
use ringpass_netmap::{Flags, Offsets, Pools, Shape, Slot};
use ringpass_netmap_server::ServedPort;
use ringpass_switch::Counter;

#[test]
fn frames_go_to_whom_they_are_for() {
    let mut vale = Vale::new();
    let programs: Vec<_> = (0..3).map(|place| vale.open(place, pair(64))).collect();
    let counts = |vale: &mut Vale| {
        vale.work();
        programs.iter().map(|program| program.receive().len()).collect::<Vec<_>>()
    };
    programs[0].send(&frame(BROADCAST, mac(0), 60));
    assert_eq!(counts(&mut vale), [0, 1, 1]);
    programs[1].send(&frame(mac(0), mac(1), 60));
    assert_eq!(counts(&mut vale), [1, 0, 0]);
    // All lengths, several times around the rings.
    for len in (14..2049).step_by(3) {
        programs[0].send(&frame(mac(1), mac(0), len));
        vale.work();
        assert_eq!(programs[1].receive(), [frame(mac(1), mac(0), len)]);
        assert_eq!(programs[0].tx[0].own(), 62, "as of the sync before");
    }
    let stats = programs[1].control.stats();
    assert_eq!((stats.rx_packets, stats.rx_drops, stats.tx_packets, stats.tx_drops), (1, 0, 680, 0));
    let sent: usize = (14..2049).step_by(3).sum::<usize>() + 60;
    assert_eq!((stats.rx_bytes, stats.tx_bytes), (60, sent as u64));
    assert_eq!(programs[2].receive().len(), 0);
    assert!(programs.iter().all(|program| program.kicks.load(Relaxed) == 0), "nobody sleeps");
}

#[test]
fn a_ring_that_is_full_costs_its_own_frames_only() {
    let mut vale = Vale::new();
    let [from, slow, fast] = [0, 1, 2].map(|place| vale.open(place, pair(32)));
    for _ in 0..3 {
        (0..20).for_each(|_| assert!(from.put(0, &[&frame(BROADCAST, mac(0), 100)])));
        from.sync();
        vale.work();
        from.sync();
        assert_eq!(fast.receive().len(), 20);
    }
    assert_eq!(slow.receive().len(), 31);
    assert_eq!(vale.switch.counts(1).of(Counter::TxDrops), 29);
    assert_eq!(vale.switch.counts(2).of(Counter::TxDrops), 0);
}

#[test]
fn slots_that_say_what_cannot_be_are_counted() {
    let mut vale = Vale::new();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(64)));
    let ring = from.tx[0].ring();
    let good = frame(BROADCAST, mac(0), 60);
    let buffers = |place: usize| ring.slot(place as u32).buffer;
    let wrong = [
        Slot { buffer: buffers(1), len: 2049, ..Slot::default() },
        Slot { buffer: 0, len: 60, ..Slot::default() },
        Slot { buffer: 1, len: 60, ..Slot::default() },
        Slot { buffer: 4098, len: 60, ..Slot::default() },
        Slot { buffer: u32::MAX, len: 60, ..Slot::default() },
        Slot { buffer: buffers(1), len: 60, flags: Flags::INDIRECT, pointer: 0xdead_beef },
        Slot { buffer: buffers(1), len: 13, ..Slot::default() },
        Slot { buffer: buffers(1), len: 0, ..Slot::default() },
    ];
    for slot in wrong {
        assert!(from.put(0, &[&good]));
        ring.set(from.tx[0].position(0), slot);
        from.tx[0].release_slots(1);
        assert!(from.put(0, &[&good]));
        from.sync();
        vale.work();
        from.sync();
        assert_eq!(to.receive(), [&good[..]; 2], "{slot:?}");
    }
    let stats = from.control.stats();
    assert_eq!((stats.rx_packets, stats.rx_drops, from.control.bad_slots()), (16, 8, 6));
    assert_eq!((from.control.resets(), from.control.fault()), (0, None));
}

#[test]
fn frames_go_where_there_are_buffers() {
    let mut vale = Vale::new();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(64)));
    let ring = to.rx[0].ring();
    let kept: Vec<_> = [1, 2, 5].map(|place| ring.slot(place)).into();
    for (place, buffer) in [(1, 0), (2, 4098), (5, u32::MAX)] {
        ring.set(place, Slot { buffer, ..Slot::default() });
    }
    for len in [60, 61, 62] {
        from.send(&frame(BROADCAST, mac(0), len));
    }
    // In two slots.
    let (long, last) = (frame(BROADCAST, mac(0), 3000), frame(BROADCAST, mac(0), 63));
    assert!(from.put(0, &[&long[..2000], &long[2000..]]));
    from.send(&last);
    vale.work();
    let lens: Vec<_> = to.receive().iter().map(Vec::len).collect();
    assert_eq!((lens, to.control.bad_slots()), (vec![60, 61, 62, 3000, 63], 3));
    for (place, slot) in [1, 2, 5].into_iter().zip(kept) {
        assert_eq!((ring.slot(place).buffer, ring.slot(place).len), (0, 0));
        ring.set(place, slot);
    }
    assert_eq!(to.close(), 4096);
}

#[test]
fn nothing_is_learned_of_frames_that_forbid_it() {
    let mut vale = Vale::new();
    let [a, b, c] = [0, 1, 2].map(|place| vale.open(place, pair(64)));
    let send = |from: &Program, to: [u8; 6], pieces: usize, flags: Flags| {
        let position = from.tx[0].position(0);
        let bytes = frame(to, mac(9), 60);
        assert!(from.put(0, &bytes.chunks(60 / pieces).collect::<Vec<_>>()));
        let slot = from.tx[0].ring().slot(position);
        from.tx[0].ring().set(position, Slot { flags: slot.flags | flags, ..slot });
    };
    // The receivers of a frame to the station show where it was learned: all, or its port.
    let mut found = |by: &Program| {
        vale.work();
        by.send(&frame(mac(9), mac(1), 61));
        vale.work();
        let got = |program: &Program| program.receive().iter().any(|frame| frame.len() == 61);
        [&a, &b, &c].map(got)
    };
    for pieces in [1, 2] {
        send(&b, BROADCAST, pieces, Flags::NO_LEARN);
        b.sync();
        assert_eq!(found(&a), [false, true, true], "in {pieces} slots");
    }
    // Between other frames of a burst, each on its own.
    send(&b, BROADCAST, 1, Flags::NO_LEARN);
    send(&b, mac(7), 1, Flags::default());
    send(&b, BROADCAST, 1, Flags::NO_LEARN);
    b.sync();
    assert_eq!(found(&a), [false, true, false]);
    send(&c, BROADCAST, 1, Flags::NO_LEARN);
    c.sync();
    assert_eq!(found(&a), [false, true, false], "it did not move");
    send(&c, BROADCAST, 1, Flags::default());
    c.sync();
    assert_eq!(found(&a), [false, false, true]);
    assert!(
        [&a, &b, &c].iter().all(|program| program.control.bad_slots() == 0 && program.control.stats().rx_drops == 0)
    );
}

/// A chain that never ends, one that is too long, and one that is incomplete.
#[test]
fn chains() {
    let mut vale = Vale::new();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(64)));
    let good = frame(BROADCAST, mac(0), 60);
    let more = |n: u32, len: usize| {
        let ring = from.tx[0].ring();
        for _ in 0..n {
            let position = from.tx[0].position(0);
            assert!(from.put(0, &[&frame(BROADCAST, mac(0), len)]));
            ring.set(position, Slot { flags: Flags::MORE_FRAGMENTS, ..ring.slot(position) });
        }
        from.sync();
    };
    // Incomplete: it waits for the rest; the frame before it does not.
    from.send(&good);
    more(3, 100);
    vale.work();
    assert_eq!(to.receive().len(), 1);
    from.send(&good);
    vale.work();
    assert_eq!(to.receive().iter().map(Vec::len).collect::<Vec<_>>(), [360]);
    // Longer than any frame: dropped with its rest, which arrives later.
    more(33, 2048);
    more(5, 2048);
    vale.work();
    more(3, 2048);
    vale.work();
    from.send(&good);
    from.send(&good);
    vale.work();
    from.sync();
    assert_eq!((to.receive(), from.control.stats().rx_drops), (vec![good.clone()], 1));
    assert_eq!(from.tx[0].own(), 63);
    // A ring that is full with the beginning of a frame.
    more(63, 100);
    vale.work();
    from.sync();
    assert_eq!((from.tx[0].own(), from.control.stats().rx_drops), (63, 2));
    more(4, 100);
    from.send(&good);
    from.send(&good);
    vale.work();
    assert_eq!((to.receive(), from.control.stats().rx_drops), (vec![good], 2));
}

#[test]
fn frames_wait_while_the_pool_is_dry() {
    let mut vale = Vale::with(&MempoolConfig { buffers: 300, ..Default::default() });
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(64)));
    let long = frame(BROADCAST, mac(0), 5000);
    let taken: Vec<_> = std::iter::from_fn(|| vale.pool.alloc()).collect();
    assert!(from.put(0, &[&frame(BROADCAST, mac(0), 60)]));
    assert!(from.put(0, &long.chunks(2000).collect::<Vec<_>>()));
    from.sync();
    vale.work();
    assert!(to.receive().is_empty() && taken.len() == 300);
    drop(taken);
    vale.work();
    assert_eq!(to.receive().iter().map(Vec::len).collect::<Vec<_>>(), [60, 5000]);
    assert_eq!((from.control.stats().rx_drops, vale.switch.counts(1).of(Counter::TxDrops)), (0, 0));
}

#[test]
fn the_longest_frame() {
    let mut vale = Vale::new();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(128)));
    for (len, comes) in [(65_536, true), (65_537, false)] {
        let long = frame(BROADCAST, mac(0), len);
        assert!(from.put(0, &long.chunks(2048).collect::<Vec<_>>()));
        from.sync();
        vale.work();
        from.sync();
        let came = to.receive();
        assert!(came.len() == usize::from(comes) && came.iter().all(|came| *came == long), "{len}");
    }
    assert_eq!(from.control.stats().rx_drops, 1);
    // To a ring that has too few slots for it.
    let small = vale.open(2, pair(16));
    let long = frame(BROADCAST, mac(0), 40_000);
    assert!(from.put(0, &long.chunks(1000).collect::<Vec<_>>()));
    from.send(&frame(BROADCAST, mac(0), 60));
    vale.work();
    assert_eq!([to.receive().len(), small.receive().len()], [2, 1]);
    assert_eq!(small.control.stats().tx_drops, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..Default::default() })]
    /// Frames in any number of slots arrive complete, for all sizes of buffers.
    #[test]
    fn frames_come_whole(
        sizes in prop::array::uniform2(prop::sample::select(vec![512_u32, 1024, 2048, 2112, 9216, 65536])),
        buffers in prop::sample::select(vec![1024_usize, 2048, 9000]),
        frames in prop::collection::vec((14..9000_usize, prop::collection::vec(1..5000_usize, 0..20), 1..4_usize), 1..40),
    ) {
        let mut vale = Vale::with(&MempoolConfig { buffers: 600, size: buffers, ..Default::default() });
        let open = |(place, buffer_size): (usize, u32)| {
            vale.open_with(place, pair(64), Pools { buffer_size, buffers: 200, ..Pools::default() })
        };
        let programs: Vec<_> = sizes.into_iter().enumerate().map(open).collect();
        let (from, to) = (&programs[0], &programs[1]);
        let mut waiting = Vec::new();
        for (len, cuts, turn) in frames {
            let bytes = frame(mac(1), mac(0), len);
            let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
            for cut in cuts.into_iter().chain(std::iter::repeat(usize::MAX)) {
                let (piece, behind) = rest.split_at(cut.min(rest.len()).min(sizes[0] as usize).min(65_535));
                pieces.push(piece);
                rest = behind;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert!(from.put(0, &pieces));
            waiting.push(bytes.clone());
            if turn == 1 || waiting.len() == 2 {
                from.sync();
                vale.work();
                from.sync();
                prop_assert_eq!(to.receive(), std::mem::take(&mut waiting));
            }
        }
        from.sync();
        vale.work();
        prop_assert_eq!(to.receive(), waiting);
        let stats = programs.iter().map(|program| program.control.stats());
        prop_assert!(stats.clone().all(|stats| stats.rx_drops + stats.tx_drops == 0));
        let left: Vec<_> = programs.into_iter().map(Program::close).collect();
        prop_assert_eq!(left, [198, 198]);
        vale.datapath = None;
        prop_assert_eq!(vale.pool.outstanding(1), 0, "buffers came back");
    }
}

/// Returns UDP over IPv4 from a port.
fn udp(flow: u8, number: u8) -> Vec<u8> {
    let ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [0x10, flow, 0, 7, 0, 26, 0, 0, flow, number];
    [&mac(1)[..], &mac(0), &[8, 0], &ip, &udp, &[0; 16]].concat()
}

/// Frames that begin behind offsets, which leave less room in each slot, or none.
#[test]
fn offsets_leave_less_room() {
    let mut vale = Vale::new();
    let [mut from, mut to] = [0, 1].map(|place| vale.open(place, pair(64)));
    let set = |program: &mut Program, max| {
        let offsets = Offsets::new(max, 0).unwrap();
        let Program { memory, region, control, .. } = program;
        assert_eq!(memory.set_offsets(region, 0b11, offsets, None), Some(offsets));
        control.set_offsets(&|entry| memory.offsets(entry));
    };
    set(&mut from, 2048);
    set(&mut to, 2048);
    for (offset, len, slots) in [(0, 2048, 1), (1, 2048, 2), (1000, 4000, 4), (2047, 50, 50), (2047, 63, 63)] {
        for position in 0..64 {
            let slot = to.rx[0].ring().slot(position);
            to.rx[0].ring().set(position, Slot { pointer: offset, ..slot });
        }
        // Sent in two pieces, behind offsets of their own.
        let sent = frame(mac(1), mac(0), len);
        let ring = &from.tx[0];
        for (n, piece, offset, flags) in
            [(0, &sent[..20], 30, Flags::MORE_FRAGMENTS), (1, &sent[20..], 0, Flags::default())]
        {
            let slot = ring.ring().slot(ring.position(n));
            let slot = Slot { len: piece.len() as u16, pointer: offset, flags, ..slot };
            assert!(from.buffers.put(slot.buffer, offset as usize, &piece[..piece.len().min(2048)]));
            ring.ring().set(ring.position(n), slot);
        }
        let fits = len - 20 <= 2048;
        ring.release_slots(2);
        from.sync();
        vale.work();
        let ring = &to.rx[0];
        ring.sync().unwrap();
        let mut received = Vec::new();
        for n in 0..ring.own() {
            let slot = ring.ring().slot(ring.position(n));
            let mut piece = vec![0; slot.len.into()];
            assert!(to.buffers.get(slot.buffer, offset as usize, &mut piece));
            assert_eq!(slot.pointer, offset);
            received.extend(piece);
        }
        let expected = if fits { (slots, sent) } else { (0, Vec::new()) };
        assert_eq!((ring.own(), received), expected, "{len} bytes behind {offset}");
        ring.release_slots(ring.own());
        ring.sync().unwrap();
    }
    // Slots without room are returned empty, and the frame does not come.
    for position in 0..64 {
        let slot = to.rx[0].ring().slot(position);
        to.rx[0].ring().set(position, Slot { pointer: 2048, ..slot });
    }
    from.send(&frame(mac(1), mac(0), 60));
    vale.work();
    assert_eq!(to.receive().len(), 0);
    assert!(to.control.bad_slots() > 0);
}

#[test]
fn several_rings() {
    let mut vale = Vale::new();
    let shape = Shape { rings: [3, 4], slots: [32, 512], host_rings: [0; 2] };
    let (from, to) = (vale.open(0, shape), vale.open(1, shape));
    to.send(&frame(BROADCAST, mac(1), 60));
    vale.work();
    assert_eq!(from.receive().len(), 1);
    for number in 0..20 {
        for flow in 0..40 {
            assert!(from.put(usize::from(flow % 3), &[&udp(flow, number)]));
        }
        from.sync();
        vale.work();
        from.sync();
    }
    let rings: Vec<_> = (0..4).map(|ring| to.receive_on(ring)).collect();
    assert_eq!(rings.iter().map(Vec::len).sum::<usize>(), 800);
    assert!(rings.iter().all(|frames| frames.len() > 100), "{:?}", rings.iter().map(Vec::len).collect::<Vec<_>>());
    for flow in 0..40 {
        let numbers = |ring: &Vec<Vec<u8>>| {
            ring.iter().filter(|frame| frame[42] == flow).map(|frame| frame[43]).collect::<Vec<_>>()
        };
        let came: Vec<_> = rings.iter().map(numbers).filter(|numbers| !numbers.is_empty()).collect();
        assert_eq!(came, [(0..20).collect::<Vec<_>>()], "all of a flow in one ring, in order");
    }
    // A full ring does not hold up the others.
    for number in 0..255 {
        for flow in 0..4 {
            assert!(from.put(0, &[&udp(flow, number)]));
        }
        from.sync();
        vale.work();
        from.sync();
    }
    let came: usize = (0..4).map(|ring| to.receive_on(ring).len()).sum();
    let stats = to.control.stats();
    assert_eq!(800 + came as u64 + stats.tx_drops, 800 + 255 * 4);
    assert_eq!(stats.tx_packets, 800 + came as u64);
}

#[test]
fn a_port_that_ends_is_left_alone_at_once() {
    let mut vale = Vale::new();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(64)));
    from.send(&frame(BROADCAST, mac(0), 60));
    vale.work();
    (0..5).for_each(|_| from.send(&frame(BROADCAST, mac(0), 60)));
    let memory = from.region.allocated().unwrap().clone();
    let Program { control, memory: part, region, buffers, tx, rx, notifier, .. } = from;
    drop((control, part, region, buffers, tx, rx, notifier));
    assert_eq!(Arc::strong_count(&memory), 1, "nobody else has it, though the queues are there");
    vale.work();
    assert_eq!(to.receive().len(), 1);
    to.send(&frame(mac(0), mac(1), 60));
    vale.work();
    assert_eq!(vale.switch.counts(0).of(Counter::TxDrops), 1);
    vale.switch.remove(0);
    let again = vale.open(0, pair(64));
    to.send(&frame(mac(0), mac(1), 60));
    vale.work();
    assert_eq!(again.receive().len(), 1);
}
