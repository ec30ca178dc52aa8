//! Tests of mapped queues: frames reach a guest's buffers without a copy from a NIC, or with one copy from
//! another guest. The NIC is the model with our driver.

use std::time::{Duration, Instant};

use crate::common::mapped::*;
use crate::common::*;
use proptest::prelude::*;
use ringpass_memory::{Burst, Packet};
use ringpass_port::{Port, PortConfig};
use ringpass_vhost_user::Device;
use ringpass_virtio::features::*;

#[test]
fn frames_reach_the_guest_without_a_copy() {
    for features in features() {
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        guest.attach(&mut mapped.rig.device);
        for round in 1..20 {
            let sent = frames(40, 60);
            let packets = mapped.arrive(&sent);
            assert_eq!(lent(&packets), 40, "{features:#x}, round {round}");
            assert_eq!(mapped.send(packets), 0);
            assert!(bare(guest.received(0), guest.header()) == sent, "{features:#x}: in order, byte for byte");
            assert_eq!(mapped.counter("mapped_packets"), 40 * round);
            guest.offer_all(0);
        }
        assert_eq!(mapped.counter("mapped_host_buffers"), 0);
        mapped.while_polled(|device| guest.detach(device));
        guest.reset();
        assert_eq!(mapped.card.counters().dma_faults, 0);
        assert!(matches!(mapped.driver.state(), ringpass_port::State::Running));
    }
}

/// IN_ORDER is not offered to a mapped guest.
#[test]
fn in_order_is_not_offered() {
    let mapped = Mapped::new();
    assert_eq!(mapped.rig.device.features() & IN_ORDER, 0);
    assert_ne!(Rig::new(&PortConfig::default()).device.features() & IN_ORDER, 0);
}

/// Dropped frames, frames for other ports, frames cut at the front (VXLAN), and frames of the host among
/// them.
#[test]
fn frames_that_were_changed_or_are_not_the_cards_arrive_as_well() {
    for features in features() {
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        guest.attach(&mut mapped.rig.device);
        let mut expected = Vec::new();
        let mut packets = mapped.arrive(&frames(40, 150));
        let mut mixed = Vec::new();
        for (n, mut packet) in packets.drain(..).enumerate() {
            match n % 4 {
                0 => continue,
                1 => assert!(packet.trim_front(50)),
                2 => mixed.push(mapped.rig.packet(&frame(n, 300))),
                _ => packet.set_len(100),
            }
            mixed.push(packet);
        }
        expected.extend(mixed.iter().map(bytes_of));
        assert_eq!(mapped.send(mixed), 0);
        assert!(bare(guest.received(0), guest.header()) == expected, "{features:#x}");
        assert_eq!(mapped.counter("mapped_packets"), 30);
        mapped.while_polled(|device| guest.detach(device));
        guest.reset();
    }
}

/// Line 20 of the list of hostile inputs (`docs/security.md`). Buffers that are too short for a NIC, or in
/// pieces, still take copied frames that fit.
#[test]
fn buffers_that_a_card_cannot_use_take_copies() {
    for (features, lens) in [
        (VERSION_1 | MRG_RXBUF, &[1000][..]),
        (VERSION_1 | MRG_RXBUF | RING_PACKED, &[1000]),
        (VERSION_1, &[12, 1600]),
        (VERSION_1 | INDIRECT_DESC, &[12, 1600]),
        (VERSION_1 | RING_PACKED, &[500, 500, 600]),
    ] {
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        (0..16).for_each(|_| assert!(guest.offer(0, lens)));
        guest.attach(&mut mapped.rig.device);
        let start = Instant::now();
        while mapped.counter("mapped_host_buffers") == 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "the card's ring stays empty");
            mapped.look();
        }
        let sent = frames(8, 900);
        let packets = mapped.arrive(&sent);
        assert_eq!((packets.len(), lent(&packets)), (8, 0), "{features:#x}");
        assert_eq!(mapped.send(packets), 0);
        let received: Vec<_> = guest.received(0).into_iter().map(|(_, frame)| frame).collect();
        assert!(received == sent, "{features:#x}");
        mapped.while_polled(|device| guest.detach(device));
        guest.reset();
    }
}

/// Guests come and go, their queues stop and restart, and their memory changes, always with buffers in the
/// NIC.
#[test]
fn the_card_lets_go_when_the_guest_goes() {
    for features in features() {
        let mut mapped = Mapped::new();
        for _ in 0..3 {
            let mut guest = Guest::new(features, 1, 64);
            guest.offer_all(0);
            guest.attach(&mut mapped.rig.device);
            let packets = mapped.arrive(&frames(10, 60));
            assert_eq!(lent(&packets), 10);
            mapped.send(packets);
            assert_eq!(guest.received(0).len(), 10);

            // All buffers in the NIC come back empty and are lent again.
            let bases = mapped.while_polled(|device| guest.detach(device));
            let empty = guest.received_empty(0);
            assert!((38..=48).contains(&empty), "{features:#x}: {empty} were lent");
            guest.offer_all(0);
            for (queue, base) in bases.into_iter().enumerate() {
                guest.start(&mut mapped.rig.device, queue, base);
            }
            let packets = mapped.arrive(&frames(20, 60));
            assert_eq!(lent(&packets), 20);
            mapped.send(packets);
            assert_eq!(guest.received(0).len(), 20);
            guest.offer_all(0);

            let memory = guest.remap(0);
            mapped.while_polled(|device| device.set_memory(&memory)).unwrap();
            guest.received_empty(0);
            guest.offer_all(0);
            let packets = mapped.arrive(&frames(20, 60));
            assert!(packets.len() == 20 && lent(&packets) > 0, "those that were offered at once");

            // The guest dies.
            drop(packets);
            mapped.while_polled(|device| device.disconnected("it died"));
            let held = mapped.arrive(&frames(30, 60));
            assert_eq!((held.len(), lent(&held)), (30, 0));
            guest.reset();
        }
        assert_eq!(mapped.card.counters().dma_faults, 0);
    }
}

/// Frames that are still held when the guest dies: its memory stays until they are dropped. The session waits
/// for that, up to a limit.
#[test]
fn frames_under_way_outlive_their_guest() {
    let mut mapped = Mapped::new();
    let mut guest = Guest::new(VERSION_1, 1, 64);
    guest.offer_all(0);
    guest.attach(&mut mapped.rig.device);
    let packets = mapped.arrive(&frames(20, 60));
    assert_eq!(lent(&packets), 20);
    mapped.while_polled(|device| device.disconnected("it died"));
    guest.memory = Default::default();
    assert!(packets.iter().zip(frames(20, 60)).all(|(packet, frame)| packet.to_vec() == frame));
    assert_eq!(mapped.send(packets), 20, "there is nobody to take them");
    guest.reset();
}

/// Lines 20 and 21 of the list of hostile inputs (`docs/security.md`). A hostile guest posts one buffer many
/// times and rewrites descriptors that are in use.
#[test]
fn a_hostile_guest_hurts_itself_only() {
    for features in features() {
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        let slots = if features & RING_PACKED == 0 { 64 } else { 32 };
        // All descriptors name the same buffer.
        let address: Vec<u16> = (0..4).map(|word| guest.peek(0, Area::Descriptors, 2 * word)).collect();
        for slot in 1..slots {
            (0..4).for_each(|word| guest.poke(0, Area::Descriptors, 16 * slot + 2 * word, address[word]));
        }
        guest.attach(&mut mapped.rig.device);
        let packets = mapped.arrive(&frames(20, 60));
        assert!(packets.iter().all(|packet| packet.len() >= 60));
        // Descriptors changed now are not read again.
        for slot in 0..slots {
            (0..4).for_each(|word| guest.poke(0, Area::Descriptors, 16 * slot + 2 * word, 0xffff));
        }
        mapped.send(packets);
        let more = mapped.arrive(&frames(20, 60));
        mapped.send(more);
        mapped.while_polled(|device| device.disconnected("enough"));
        assert_eq!(mapped.card.counters().dma_faults, 0);
        // The next guest is served as usual.
        let mut next = Guest::new(features, 1, 64);
        next.offer_all(0);
        next.attach(&mut mapped.rig.device);
        let packets = mapped.arrive(&frames(20, 60));
        assert_eq!((mapped.send(packets), next.received(0).len()), (0, 20));
        mapped.while_polled(|device| next.detach(device));
        next.reset();
        guest.reset();
    }
}

/// Line 20 of the list of hostile inputs (`docs/security.md`). A buffer overlaps the guest's own ring: a
/// frame is written there and breaks that ring only.
#[test]
fn a_buffer_over_its_own_ring_ends_that_guests_session() {
    for features in features() {
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        let ring = guest.setup(0, 0).descriptors - (1 << 40);
        for slot in 0..4 {
            for word in 0..4 {
                guest.poke(0, Area::Descriptors, 16 * slot + 2 * word, (ring >> (16 * word)) as u16);
            }
        }
        guest.attach(&mut mapped.rig.device);
        for _ in 0..5 {
            let packets = mapped.arrive(&vec![vec![0xff; 1500]; 20]);
            mapped.send(packets);
        }
        mapped.rig.fault();
        mapped.while_polled(|device| device.disconnected("enough"));
        guest.reset();
    }
}

/// Two guests in a chain: what the first sends is copied once, into the buffers of the second.
#[test]
fn a_chain_of_guests_copies_once() {
    for features in features() {
        let (mut first, mut second) = (Rig::new(&PortConfig::default()), Rig::new(&PortConfig::default()));
        first.queues[0].rx.borrow_from(&second.port.lending(0).unwrap()).unwrap();
        let (mut one, mut two) = (Guest::new(features, 1, 64), Guest::new(features, 1, 64));
        one.attach(&mut first.device);
        let mut expected = Vec::new();
        for round in 0..20 {
            let is_there = round > 2;
            if round == 3 {
                two.offer_all(0);
                two.attach(&mut second.device);
            }
            for n in 0..10 {
                let frame = frame(n, 60 + 100 * n);
                assert!(one.send(0, [0; 12], &frame, &[]));
                expected.push(frame);
            }
            let packets = first.receive(0);
            assert_eq!((packets.len(), lent(&packets)), (10, if is_there { 10 } else { 0 }));
            assert_eq!(one.sent(0), 10, "its buffers are back at once");
            let mut burst = Burst::new(32);
            packets.into_iter().for_each(|packet| burst.push(packet));
            second.queues[0].tx.tx_burst(&mut burst);
            assert_eq!(burst.len(), if is_there { 0 } else { 10 });
            let received: Vec<_> = two.received(0).into_iter().map(|(_, frame)| frame).collect();
            assert!(received == expected || !is_there, "{features:#x}");
            expected.clear();
            two.offer_all(0);
        }
        first.device.disconnected("done");
        let (device, rx) = (&mut second.device, &mut first.queues[0].rx);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| device.disconnected("done"));
            while !ending.is_finished() {
                rx.rx_burst(&mut Burst::new(32));
            }
        });
        one.reset();
        two.reset();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(usize),
    Deliver,
    Drop,
    Copy(usize),
    Offer,
    Restart,
    Scribble(usize, u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..60usize).prop_map(Step::Arrive),
        4 => Just(Step::Deliver),
        1 => Just(Step::Drop),
        1 => (1..40usize).prop_map(Step::Copy),
        4 => Just(Step::Offer),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

fn hostile_steps() -> impl Strategy<Value = Vec<Step>> {
    let scribble = (0..1200usize, any::<u16>()).prop_map(|(at, value)| Step::Scribble(at, value));
    let step = prop_oneof![3 => scribble, 2 => (1..60usize).prop_map(Step::Arrive), 2 => Just(Step::Deliver)];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, frames arrive once and in order, or were dropped by an operation that reports it.
    #[test]
    fn frames_arrive_once_or_not_at_all(which in 0..6usize, steps in steps()) {
        let features = features().nth(which).expect("six of them");
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        guest.attach(&mut mapped.rig.device);
        let (mut number, mut held, mut expected) = (0, Vec::<Packet>::new(), Vec::new());
        for step in steps {
            match step {
                Step::Arrive(n) => {
                    let sent: Vec<_> = (number..number + n).map(|n| frame(n, 60 + n % 1000)).collect();
                    number += n;
                    held.extend(mapped.arrive(&sent));
                    held.drain(..held.len().saturating_sub(200));
                }
                Step::Copy(n) => held.extend((0..n).map(|n| mapped.rig.packet(&frame(n, 80)))),
                Step::Deliver => {
                    held.truncate(256);
                    let bytes: Vec<_> = held.iter().map(bytes_of).collect();
                    let left = mapped.send(std::mem::take(&mut held));
                    expected.extend_from_slice(&bytes[..bytes.len() - left]);
                }
                Step::Drop => held.clear(),
                Step::Offer => guest.offer_all(0),
                Step::Restart => {
                    held.clear();
                    let bases = mapped.while_polled(|device| guest.detach(device));
                    for (queue, base) in bases.into_iter().enumerate() {
                        guest.start(&mut mapped.rig.device, queue, base);
                    }
                }
                Step::Scribble(..) => {}
            }
            let received: Vec<_> = guest.received_full(0);
            prop_assert!(expected == received);
            expected.clear();
        }
        prop_assert_eq!(mapped.rig.fault(), None);
        drop(held);
        mapped.while_polled(|device| guest.detach(device));
        guest.reset();
        let pool = mapped.rig.pool.clone();
        drop(mapped);
        prop_assert_eq!(pool.outstanding(1), 0);
    }

    /// A guest that writes anything into its rings at any time does no harm, and the next guest is served.
    #[test]
    fn a_guest_may_scribble_over_its_rings(which in 0..6usize, steps in hostile_steps()) {
        let features = features().nth(which).expect("six of them");
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        guest.attach(&mut mapped.rig.device);
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Scribble(at, value) => guest.poke(0, Area::Descriptors, 2 * at, value),
                Step::Arrive(n) => held = mapped.arrive(&frames(n, 60)),
                _ => drop(mapped.send(std::mem::take(&mut held))),
            }
        }
        drop(held);
        mapped.while_polled(|device| device.disconnected("enough"));
        let mut next = Guest::new(features, 1, 64);
        next.offer_all(0);
        next.attach(&mut mapped.rig.device);
        mapped.rig.fault();
        let packets = mapped.arrive(&frames(20, 60));
        prop_assert_eq!((mapped.send(packets), next.received(0).len()), (0, 20));
        mapped.while_polled(|device| next.detach(device));
        next.reset();
        guest.reset();
    }
}
