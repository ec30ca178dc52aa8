//! Rings whose buffers are exchanged with a port's packets: where each buffer is, and programs that name
//! buffers that are not theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::programs::{frame, mac};
use crate::wires::{OWN, Port, Program, ring_forwarder};
use proptest::prelude::*;
use ringpass_memory::RegionConfig;
use ringpass_netmap::{Buffers, Flags, Pools, PortMemory, PortRing, Region, Shape, SharedPool, Slot, attach};
use ringpass_netmap_server::{ServedPort, Watched};

fn exchange(port: &Port) -> Arc<SharedPool> {
    port.region.exchange().expect("a pool").clone()
}

/// Buffers that the slots of a ring name, from slot 0 on.
fn buffers(ring: &PortRing) -> Vec<u32> {
    (0..ring.ring().slots()).map(|position| ring.ring().slot(position).buffer).collect()
}

/// Releases slots with frames, whatever buffers they name.
fn send(ring: &PortRing, slots: &[Slot]) {
    ring.sync().unwrap();
    for (position, slot) in ring.first(slots.len() as u32).zip(slots) {
        ring.ring().set(position, *slot);
    }
    ring.release_slots(slots.len() as u32);
    ring.sync().unwrap();
}

#[test]
fn each_frame_has_another_buffer_than_its_slot_had() {
    let mut port = Port::exchanging(1);
    let program = port.open(16);
    port.wires[0].take(1000);
    let (exchange, before) = (exchange(&port), [buffers(&program.tx[0]), buffers(&program.rx[0])]);
    assert_eq!(exchange.owner_counts(), [4098 - 32, 32, OWN as usize]);
    for n in 0..15 {
        assert!(program.put(0, &frame(mac(1), mac(n), 60 + usize::from(n))));
        port.wires[0].bring(frame(mac(n), mac(1), 80 + usize::from(n)));
    }
    port.work();
    let sent: Vec<_> = (0..15).map(|n| frame(mac(1), mac(n), 60 + usize::from(n))).collect();
    let came: Vec<_> = (0..15).map(|n| frame(mac(n), mac(1), 80 + usize::from(n))).collect();
    assert!(port.wires[0].sent() == sent && program.receive(0) == came);
    for (ring, before) in [&program.tx[0], &program.rx[0]].into_iter().zip(&before) {
        for (position, &before) in before.iter().enumerate() {
            let slot = ring.ring().slot(position as u32);
            assert_eq!(slot.flags.any(Flags::BUFFER_CHANGED), position < 15, "{slot:?}");
            assert_eq!(slot.buffer != before, position < 15, "{slot:?}");
        }
    }
    assert_eq!(exchange.owner_counts(), [4098 - 32, 32, OWN as usize]);
    assert!(program.joined.counters()["bad_slots"] == 0);
    // Whatever a program's slots named is free, even if those are other buffers than at first.
    port.close(program);
    assert_eq!(exchange.owner_counts(), [4098, 0, OWN as usize]);
    drop(exchange);
    port.assert_all_is_back();
}

/// Slots name each kind of buffer that is not the program's own, in both rings.
#[test]
fn what_a_program_may_not_name_is_emptied_and_counted() {
    let mut port = Port::exchanging(1);
    let program = port.open(16);
    port.wires[0].take(1000);
    let own = buffers(&program.tx[0]);
    let free = (2..4098).find(|buffer| !own.contains(buffer) && !buffers(&program.rx[0]).contains(buffer)).unwrap();
    let of = |buffer| Slot { buffer, len: 60, ..Slot::default() };
    // A valid one, the same again, one of the pool, a free one, the reserved ones (0 and 1), two that do not
    // exist, and another valid one.
    let said = [own[0], own[0], 4098 + 7, free, 0, 1, 4098 + OWN, u32::MAX, own[1]];
    send(&program.tx[0], &said.map(of));
    port.work();
    assert_eq!(port.wires[0].sent().len(), 2);
    assert_eq!(program.joined.counters()["bad_slots"], 7);
    let after = buffers(&program.tx[0]);
    assert_eq!(after[1..8], [0; 7]);
    assert!(after[0] >= 4098 && after[8] >= 4098, "of the pool: {after:?}");
    // The same in the Rx ring: frames go to the slots after those.
    let rx = program.rx[0].ring();
    let theirs = buffers(&program.rx[0]);
    for (position, buffer) in [(0, theirs[5]), (1, after[0]), (2, own[0]), (3, free), (4, u32::MAX)] {
        rx.set(position, Slot { buffer, ..Slot::default() });
    }
    (0..4).for_each(|n| port.wires[0].bring(frame(mac(1), mac(n), 60)));
    port.work();
    assert_eq!(
        program.joined.counters()["bad_slots"],
        7 + 4,
        "the pool's, a free one, none, and what was named before"
    );
    let came = program.receive(0);
    let whole: Vec<_> = (0..4).map(|n| frame(mac(1), mac(n), 60)).collect();
    assert_eq!(came.into_iter().filter(|frame| !frame.is_empty()).collect::<Vec<_>>(), whole);
    port.close(program);
    port.assert_all_is_back();
}

#[test]
fn frames_in_several_slots() {
    let mut port = Port::exchanging(1);
    let program = port.open(16);
    port.wires[0].take(1000);
    let tx = &program.tx[0];
    let whole = frame(mac(1), mac(2), 300);
    let own = buffers(tx);
    let pieces: Vec<_> = (0..3)
        .map(|n| {
            let slot = Slot { buffer: own[n], len: 100, ..Slot::default() };
            assert!(program.buffers.write(slot, &whole[100 * n..100 * n + 100]));
            Slot { flags: if n < 2 { Flags::MORE_FRAGMENTS } else { Flags::default() }, ..slot }
        })
        .collect();
    send(tx, &pieces[..2]);
    port.work();
    assert!(port.wires[0].sent().is_empty(), "its last slot is missing");
    send(tx, &pieces[2..]);
    port.work();
    assert_eq!(port.wires[0].sent(), [whole]);
    // The first fragment gets a buffer of the pool, the next gets the first one's, and so on.
    assert!(buffers(tx)[0] >= 4098 && buffers(tx)[1..3] == own[..2]);
    // One fragment is named twice: there is no frame, but the valid buffers are exchanged.
    let more = |n: usize, flags| Slot { buffer: own[n], len: 100, flags, ..Slot::default() };
    send(tx, &[more(3, Flags::MORE_FRAGMENTS), more(3, Flags::MORE_FRAGMENTS), more(4, Flags::default())]);
    // Longer than a buffer.
    let long = |n: usize, flags| Slot { len: 1100, ..more(n, flags) };
    send(tx, &[long(6, Flags::MORE_FRAGMENTS), long(7, Flags::default()), more(8, Flags::default())]);
    port.work();
    assert_eq!(port.wires[0].sent().iter().map(Vec::len).collect::<Vec<_>>(), [100]);
    let counters = program.joined.counters();
    assert_eq!((&counters["bad_slots"], &counters["rx_drops"]), (&1.into(), &2.into()));
    port.close(program);
    port.assert_all_is_back();
}

/// Lists of extra buffers are read from what programs have left, which may be the pool's by then.
#[test]
fn extra_buffers() {
    let mut port = Port::exchanging(1);
    let mut program = port.open(16);
    port.wires[0].take(1000);
    let bind = |port: &mut Port, program: &Program| program.memory.bind(&mut port.region, |_, _| true).unwrap();
    let first = |program: &Program, interface| {
        let cells = program.buffers.memory().cells::<ringpass_netmap::layout::Interface>(interface, 1).unwrap();
        cells[0].extra_buffers.load(Relaxed)
    };
    let link = |program: &Program, buffer: u32| {
        let mut bytes = [0; 4];
        let slot = Slot { buffer, len: 4, ..Slot::default() };
        assert_eq!(program.buffers.read(slot, &mut bytes), Some(4));
        u32::from_le_bytes(bytes)
    };
    let interface = bind(&mut port, &program);
    assert_eq!(port.region.alloc_extra_buffers(interface, 10), 10);
    assert_eq!(exchange(&port).owner_counts(), [4098 - 42, 42, OWN as usize]);
    let one = first(&program, interface);
    let list: Vec<_> =
        std::iter::successors(Some(one), |&buffer| Some(link(&program, buffer)).filter(|&next| next > 0)).collect();
    assert_eq!(list.len(), 10);
    // The fourth is sent: the list ends there, and the pool keeps its buffer.
    send(&program.tx[0], &[Slot { buffer: list[3], len: 60, ..Slot::default() }]);
    port.work();
    assert_eq!(port.wires[0].sent().len(), 1);
    port.region.free_extra_buffers(interface, 10);
    assert_eq!(exchange(&port).owner_counts(), [4098 - 39, 39, OWN as usize]);
    port.region.release_interface(interface);
    // Lost buffers are freed with the last ring.
    port.close(program);
    assert_eq!(exchange(&port).owner_counts(), [4098, 0, OWN as usize]);
    program = port.open(16);
    port.close(program);
    port.assert_all_is_back();
}

/// Monitors see each frame once, before it goes to a program.
#[test]
fn monitors() {
    let mut port = Port::exchanging(1);
    let program = port.open(16);
    port.wires[0].take(1000);
    let mut region = Region::new(Pools::default(), &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let shape = Shape { rings: [1; 2], slots: [2, 64], host_rings: [0; 2] };
    let (memory, served) = PortMemory::new(&mut region, "m", shape, false).unwrap_or_else(|error| panic!("{error}"));
    let monitor: Box<dyn ServedPort> = program
        .joined
        .monitor(Watched::all([true; 2]), served, &region)
        .unwrap_or_else(|refusal| panic!("{}", refusal.why));
    let [_, rx] =
        attach(region.memory(), memory.interface(), &memory.csb().clone().into(), &(Arc::new(|| ()) as _)).unwrap();
    // A slot without a buffer in between.
    program.rx[0].ring().set(1, Slot::default());
    let frames: Vec<_> = (0..6).map(|n| frame(mac(1), mac(n), 60 + usize::from(n))).collect();
    assert!(program.put(0, &frames[0]));
    frames[1..].iter().for_each(|frame| port.wires[0].bring(frame.clone()));
    port.work();
    rx[0].sync().unwrap();
    let seen: Vec<_> = rx[0].first(rx[0].own()).map(|position| rx[0].ring().slot(position).len).collect();
    assert_eq!(seen, [60, 61, 62, 63, 64, 65]);
    assert_eq!(program.receive(0).iter().map(Vec::len).collect::<Vec<_>>(), [61, 0, 62, 63, 64, 65]);
    drop(monitor);
    port.close(program);
    port.assert_all_is_back();
}

/// A monitor in the port's own memory gets copies in buffers of its own, which are exchanged for those of its slots.
#[test]
fn monitors_in_the_same_memory() {
    let mut port = Port::exchanging(1);
    let program = port.open(16);
    port.wires[0].take(1000);
    let shape = Shape { rings: [1; 2], slots: [2, 64], host_rings: [0; 2] };
    let (memory, served) =
        PortMemory::new(&mut port.region, "m", shape, false).unwrap_or_else(|error| panic!("{error}"));
    let monitor = program.joined.monitor(Watched::all([true; 2]), served, &port.region);
    let monitor = monitor.unwrap_or_else(|refusal| panic!("{}", refusal.why));
    let [_, rx] =
        attach(port.region.memory(), memory.interface(), &memory.csb().clone().into(), &(Arc::new(|| ()) as _))
            .unwrap();
    // A slot that names a buffer of the pool, and one that names the buffer of the slot behind it.
    let (mine, pools) = (rx[0].ring().slot(3).buffer, port.region.exchange().unwrap().buffers() as u32 - 1);
    rx[0].ring().set(1, Slot { buffer: pools, ..Slot::default() });
    rx[0].ring().set(2, Slot { buffer: mine, ..Slot::default() });
    let frames: Vec<_> = (0..60).map(|n| frame(mac(1), mac(n), 60 + usize::from(n))).collect();
    let mut sent = Vec::new();
    for some in frames.chunks(4) {
        assert!(program.put(0, &some[0]));
        some[1..].iter().for_each(|frame| port.wires[0].bring(frame.clone()));
        port.work();
        sent.extend(port.wires[0].sent());
        assert_eq!(program.receive(0), some[1..]);
    }
    assert_eq!(sent, frames.iter().step_by(4).cloned().collect::<Vec<_>>());
    rx[0].sync().unwrap();
    let slots: Vec<_> = rx[0].first(rx[0].own()).map(|position| rx[0].ring().slot(position)).collect();
    let seen: Vec<_> = slots.iter().filter(|slot| slot.len > 0).map(|slot| slot.len).collect();
    assert_eq!(seen, (60..120).collect::<Vec<u16>>());
    assert!(slots.iter().all(|slot| slot.buffer != mine && slot.buffer != pools));
    for slot in slots.iter().filter(|slot| slot.len > 0) {
        let mut bytes = vec![0; usize::from(slot.len)];
        program.buffers.read(*slot, &mut bytes).expect("a frame");
        assert_eq!(bytes, frames[usize::from(slot.len) - 60]);
        assert_eq!(slot.flags.any(Flags::TX_MONITOR), slot.len % 4 == 0);
    }
    drop(monitor);
    memory.release(&mut port.region);
    port.close(program);
    port.assert_all_is_back();
}

/// With zero-copy there is no access to the buffers for copies.
#[test]
fn memory_ends_before_the_buffers() {
    let port = Port::exchanging(1);
    assert!(Buffers::of(port.region.memory(), port.region.pools()).is_none());
    assert!(port.region.exchange().is_some());
    assert!(!port.region.memory().write(port.region.pools().buffers_at(), &[1]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Slots name any buffers, lengths and flags: the owner counts balance after each step, and each frame that
    /// was sent or received was put there by somebody.
    #[test]
    fn books_balance(steps in prop::collection::vec((0_u8..8, 0_u32..6200, 0_u16..2100, 0_u16..0x40), 1..120)) {
        let mut port = Port::exchanging(1);
        let exchange = exchange(&port);
        let program = port.open(8);
        port.wires[0].take(10_000);
        for (what, buffer, len, flags) in steps {
            let ring = if what & 1 == 0 { &program.tx[0] } else { &program.rx[0] };
            let slot = Slot { buffer, len, flags: Flags(flags), ..Slot::default() };
            match what {
                0 | 1 => ring.ring().set(buffer % 8, slot),
                // The program's own buffer of another slot, so that two slots name it.
                2 | 3 => ring.ring().set(buffer % 8, ring.ring().slot(u32::from(len % 8))),
                4 | 5 => {
                    ring.sync().unwrap();
                    ring.release_slots(ring.own());
                    ring.sync().unwrap();
                }
                _ => port.wires[0].bring(frame(mac(1), mac(2), 60 + usize::from(len % 1400))),
            }
            port.work();
            prop_assert!(port.wires[0].sent().iter().all(|frame| (14..=2048).contains(&frame.len())));
            let [free, programs, own] = exchange.owner_counts();
            prop_assert_eq!((free, programs + free, own), (4098 - 16, 4098, OWN as usize));
        }
        port.close(program);
        prop_assert_eq!(exchange.owner_counts(), [4098, 0, OWN as usize]);
        drop(exchange);
        port.assert_all_is_back();
    }
}

/// Two ports in one memory, each with its forwarder on a thread of its own. Programs name each other's buffers,
/// the pool's and any others in all rings all the time, and end at any instant. No forwarder fails, and the
/// owner counts balance each time.
#[test]
fn hostile_programs_of_two_ports_at_full_speed() {
    let mut port = Port::exchanging(1);
    let exchange = exchange(&port);
    let (control, mut other_forwarder, other_wires) = ring_forwarder(1, exchange.pool());
    let mut first_joint = port.ring_forwarder.take().unwrap();
    let first_wires = port.wires.clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (ring_forwarder, wires) in [(&mut first_joint, &first_wires), (&mut other_forwarder, &other_wires)] {
            let stop = &stop;
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(Relaxed) {
                    wires[0].take(64);
                    if round % 8 == 0 {
                        wires[0].bring(frame(mac(1), mac(2), 60 + round % 1400));
                    }
                    ring_forwarder.round();
                    assert!(wires[0].sent().iter().all(|frame| (14..=2048).contains(&frame.len())));
                    round += 1;
                }
            });
        }
        for round in 0..40_u64 {
            let program = port.open(32);
            let shape = Shape { rings: [1; 2], slots: [32; 2], host_rings: [0; 2] };
            let (memory, served) =
                PortMemory::new(&mut port.region, "y", shape, false).unwrap_or_else(|e| panic!("{e}"));
            let joined = control.join(served, &port.region).unwrap();
            let csb = memory.csb().clone().into();
            let [tx, rx] = attach(port.region.memory(), memory.interface(), &csb, &(Arc::new(|| ()) as _)).unwrap();
            let all: Vec<&PortRing> = [&program.tx[0], &program.rx[0], &tx[0], &rx[0]].into();
            let mut state = round | 1;
            for _ in 0..3000 {
                // xorshift64 (Marsaglia).
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let (ring, at) = (all[state as usize % 4], (state >> 8) as u32 % 32);
                match (state >> 16) % 4 {
                    0 => ring.ring().set(at, Slot { buffer: (state >> 32) as u32 % 6200, len: 60, ..Slot::default() }),
                    1 => ring.ring().set(at, all[(state >> 20) as usize % 4].ring().slot((state >> 24) as u32 % 32)),
                    2 => ring.ring().header().head.store((state >> 40) as u32 % 34, Relaxed),
                    _ => {
                        let _ = ring.sync();
                        ring.release_slots(ring.own());
                        let _ = ring.sync();
                    }
                }
            }
            // In either order.
            if round % 2 == 0 {
                drop(joined);
                memory.release(&mut port.region);
                port.close(program);
            } else {
                port.close(program);
                drop(joined);
                memory.release(&mut port.region);
            }
            assert_eq!((exchange.owner_counts(), port.region.free_buffers()), ([4098, 0, OWN as usize], 4096));
        }
        stop.store(true, Relaxed);
    });
    drop((first_joint, other_forwarder, exchange));
    port.wires.clear();
    port.assert_all_is_back();
}

/// Like the previous test, with what programs write into the first fields of their memory, those of descriptors
/// and rings.
#[test]
fn extra_buffers_of_a_program_that_writes_anything() {
    let mut port = Port::exchanging(1);
    let exchange = exchange(&port);
    let mut state = 99_u64;
    for _ in 0..50 {
        let program = port.open(16);
        let interface = program.memory.bind(&mut port.region, |_, _| true).unwrap();
        port.region.alloc_extra_buffers(interface, 20);
        let cells = program.buffers.memory().cells::<AtomicU32>(port.region.pools().buffers_at(), 6140 * 512).unwrap();
        for _ in 0..400 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            cells[(state >> 33) as usize % 6140 * 512].store((state >> 20) as u32 % 6200, Relaxed);
        }
        port.region.free_extra_buffers(interface, 20);
        port.region.release_interface(interface);
        let [free, programs, own] = exchange.owner_counts();
        assert_eq!((free + programs, own, port.region.free_buffers() + 2), (4098, OWN as usize, free));
        port.close(program);
        assert_eq!(exchange.owner_counts(), [4098, 0, OWN as usize]);
    }
}
