//! Tests of the driver on the model: frames pass both ways with every kind of ring and set of features, and
//! commands reach the card.

use std::time::Duration;

use crate::common::{BUFFERS, Rig, frame};
use ringpass_memory::{Flags, Packet};
use ringpass_models::virtio::{Interface, VirtioConfig};
use ringpass_port::{MacAddress, Offloads, Port, PortConfig, State, WakeSource};
use ringpass_testing::bytes_of;
use ringpass_virtio::features::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
const DEFAULT_FEATURES: u64 = VirtioConfig::DEFAULT_FEATURES;

/// A configuration with small rings, which wrap often.
fn small() -> PortConfig {
    PortConfig { rx_ring: 64, tx_ring: 64, ..Default::default() }
}

/// Passes frames of many lengths through the port and back, more than the rings have room for.
fn forward(rig: &mut Rig, longest: usize) {
    let mut lengths =
        [60, 61, 64, 1000, 1514, longest, 14, 2036, 2037, 4000].into_iter().filter(|&len| len <= longest).cycle();
    for round in 0..40 {
        let frames: Vec<Vec<u8>> = lengths.by_ref().take(7).map(frame).collect();
        let packets = rig.receive(0, frames.clone());
        assert_eq!(packets.iter().map(bytes_of).collect::<Vec<_>>(), frames, "round {round}, received");
        assert_eq!(rig.send(packets), frames, "round {round}, sent");
    }
    let stats = rig.port.stats();
    assert_eq!((stats.rx_packets, stats.tx_packets, stats.rx_drops, stats.tx_drops), (280, 280, 0, 0));
    assert_eq!(stats.rx_bytes, stats.tx_bytes);
    rig.judge();
}

#[test]
fn every_set_of_features_forwards_frames_as_they_are() {
    let choices = [RING_PACKED, IN_ORDER, INDIRECT_DESC, EVENT_IDX, MRG_RXBUF, NOTIFICATION_DATA | RING_RESET];
    for (offloads, mtu) in [(Offloads::default(), 1500), (ALL, 1500), (Offloads::default(), 9000), (ALL, 9000)] {
        for set in 0..1u32 << choices.len() {
            let chosen = choices.iter().enumerate().filter(|(bit, _)| set & 1 << bit != 0);
            let without = choices.iter().fold(DEFAULT_FEATURES | MTU, |features, choice| features & !choice);
            let features = chosen.fold(without, |features, (_, choice)| features | choice);
            let config = PortConfig { offloads, mtu, ..small() };
            let card = VirtioConfig { features, mtu: 9710, queue_size: 64, ..Default::default() };
            let mut rig = Rig::new(&config, &card);
            assert_eq!(rig.card.accepted() & (RING_PACKED | EVENT_IDX), features & (RING_PACKED | EVENT_IDX));
            forward(&mut rig, mtu + 18);
        }
    }
}

#[test]
fn the_plain_port_takes_what_it_needs_and_no_more() {
    let mut rig = Rig::new(&small(), &VirtioConfig::default());
    let offloads = CSUM | GUEST_CSUM | MRG_RXBUF | HOST_TSO4 | GUEST_TSO4;
    assert_eq!(rig.card.accepted() & offloads, 0);
    assert_eq!(rig.port.mac(), VirtioConfig::default().mac);
    let notes = rig.port.notes().join("\n");
    assert!(notes.contains("modern") && notes.contains("split rings") && notes.contains("packed=on"), "{notes}");
    assert!(matches!(rig.port.state(), State::Running));
}

#[test]
fn rings_are_as_large_as_asked_for_or_as_the_card_has() {
    for (queue_size, rx_ring, found) in [(256, 512, 256), (1024, 128, 128), (64, 64, 64)] {
        let config = PortConfig { rx_ring, tx_ring: 64, ..Default::default() };
        let rig = Rig::new(&config, &VirtioConfig { queue_size, ..Default::default() });
        let notes = rig.port.notes().join("\n");
        assert!(notes.contains(&format!("rings of {found} and 64")), "{notes}");
        assert_eq!(notes.contains("were asked for"), found != rx_ring, "{notes}");
    }
}

#[test]
fn a_transitional_card_is_driven_by_its_modern_interface() {
    let card = VirtioConfig { interface: Interface::Transitional, ..Default::default() };
    let mut rig = Rig::new(&small(), &card);
    assert!(rig.card.accepted() & VERSION_1 != 0);
    forward(&mut rig, 1518);
}

#[test]
fn frames_that_do_not_fit_are_dropped_and_counted() {
    for (offloads, features) in
        [(Offloads::default(), DEFAULT_FEATURES), (ALL, DEFAULT_FEATURES), (ALL, DEFAULT_FEATURES & !CSUM & !MRG_RXBUF)]
    {
        let mut rig = Rig::new(&PortConfig { offloads, ..small() }, &VirtioConfig { features, ..Default::default() });
        let mut packets: Vec<Packet> = [1519, 13, 60, 1518].iter().map(|&len| rig.packet(&frame(len), 2000)).collect();
        packets.insert(1, rig.pool.alloc().unwrap());
        assert_eq!(rig.send(packets), [frame(60), frame(1518)]);
        assert_eq!((rig.port.stats().tx_packets, rig.port.stats().tx_drops), (2, 3));
        rig.judge();
    }
}

#[test]
fn headers_lie_in_the_headroom_or_in_a_buffer_of_their_own() {
    for ring in [0, RING_PACKED, RING_PACKED | IN_ORDER] {
        let mut rig = Rig::new(&small(), &VirtioConfig { features: DEFAULT_FEATURES | ring, ..Default::default() });
        for headroom in [12, 11, 0, 128] {
            let mut packet = rig.packet(&frame(100), 2000);
            let before = packet.headroom() - headroom;
            let bytes = packet.to_vec();
            assert!(packet.prepend(before), "there is headroom");
            packet.set_len(bytes.len());
            packet.write(0, &bytes);
            assert_eq!(packet.headroom(), headroom);
            assert_eq!(rig.send([packet]), [frame(100)], "{headroom} bytes of headroom");
        }
        rig.judge();
    }
}

#[test]
fn a_full_queue_leaves_the_rest_in_the_burst() {
    for ring in [0, RING_PACKED] {
        let mut rig = Rig::new(&small(), &VirtioConfig { features: DEFAULT_FEATURES | ring, ..Default::default() });
        let mut burst = ringpass_memory::Burst::new(256);
        (0..100).for_each(|_| burst.push(rig.packet(&frame(60), 2000)));
        assert_eq!(rig.queues[0].tx.tx_burst(&mut burst), 64);
        assert_eq!(burst.len(), 36);
        rig.step();
        assert_eq!(rig.queues[0].tx.tx_burst(&mut burst), 36);
        rig.step();
        assert_eq!(rig.sent().len(), 100);
        rig.judge();
    }
}

#[test]
fn at_most_one_doorbell_a_burst_and_none_while_suppressed() {
    for features in [DEFAULT_FEATURES, DEFAULT_FEATURES & !EVENT_IDX, DEFAULT_FEATURES | RING_PACKED] {
        let mut rig = Rig::new(&small(), &VirtioConfig { features, ..Default::default() });
        let doorbells = |rig: &mut Rig| rig.port.extended().iter().find(|(name, _)| *name == "doorbells").unwrap().1;
        let before = (doorbells(&mut rig), rig.card.counters().notifications);
        for _ in 0..10 {
            let packets: Vec<Packet> = (0..32).map(|_| rig.packet(&frame(60), 2000)).collect();
            assert_eq!(rig.send(packets).len(), 32);
        }
        let rung = doorbells(&mut rig) - before.0;
        assert!((1..=10).contains(&rung), "{rung} for ten bursts");
        assert_eq!(rig.card.counters().notifications - before.1, rung);
    }
}

#[test]
fn commands_reach_the_card() {
    for ring in [0, RING_PACKED, RING_PACKED & !INDIRECT_DESC] {
        let mut rig = Rig::new(&small(), &VirtioConfig { features: DEFAULT_FEATURES | ring, ..Default::default() });
        let to = |mac: [u8; 6]| [&mac[..], &frame(60)[6..]].concat();
        let other = [2, 9, 9, 9, 9, 9];
        assert_eq!(rig.receive(0, [to(other)]).len(), 1, "promiscuous");
        rig.ask(|port| port.set_promiscuous(false)).unwrap();
        let own = rig.port.mac().0;
        let multicast = [0x33, 0x33, 0, 0, 0, 1];
        let received = rig.receive(0, [to(other), to(own), to(multicast), frame(60)]);
        assert_eq!(received.iter().map(bytes_of).collect::<Vec<_>>(), [to(own), to(multicast), frame(60)]);
        rig.ask(|port| port.set_mac(MacAddress(other))).unwrap();
        assert_eq!(rig.port.mac(), MacAddress(other));
        assert_eq!(rig.receive(0, [to(own), to(other)]).len(), 1);
        assert!(matches!(rig.port.state(), State::Running), "the change was the driver's own");
        assert_eq!(rig.card.counters().commands_failed, 0);
        rig.judge();
    }
}

#[test]
fn a_card_without_commands_says_so() {
    let features = DEFAULT_FEATURES & !(CTRL_VQ | CTRL_RX | CTRL_MAC_ADDR);
    let mut rig = Rig::new(&small(), &VirtioConfig { features, ..Default::default() });
    assert!(rig.port.notes().iter().any(|note| note.contains("card decides")));
    let error = rig.port.set_promiscuous(false).unwrap_err().to_string();
    assert!(error.contains("card decides"), "{error}");
    assert!(rig.port.set_mac(MacAddress([2; 6])).is_err());
    forward(&mut rig, 1518);
}

#[test]
fn a_card_without_an_address_gets_one() {
    let mut rig = Rig::new(&small(), &VirtioConfig { features: DEFAULT_FEATURES & !MAC, ..Default::default() });
    let mac = rig.port.mac();
    assert_eq!(mac.0[0], 2, "{mac}");
    rig.ask(|port| port.set_promiscuous(false)).unwrap();
    let own = [&mac.0[..], &frame(60)[6..]].concat();
    assert_eq!(rig.receive(0, [own]).len(), 1);
}

#[test]
fn several_queues_are_asked_for_and_used() {
    for ring in [0, RING_PACKED] {
        let features = DEFAULT_FEATURES | MQ | ring;
        let card = VirtioConfig { features, queue_pairs: 4, ..Default::default() };
        let mut rig = Rig::new(&PortConfig { queues: 3, ..small() }, &card);
        // Each queue sends.
        for queue in 0..3 {
            let mut burst = ringpass_memory::Burst::new(1);
            burst.push(rig.packet(&frame(60 + queue), 2000));
            assert_eq!(rig.queues[queue].tx.tx_burst(&mut burst), 1);
        }
        rig.step();
        let mut sent = rig.sent();
        sent.sort();
        let mut wanted: Vec<Vec<u8>> = (0..3).map(|queue| frame(60 + queue)).collect();
        wanted.sort();
        assert_eq!(sent, wanted);
        // Each frame arrives at one of the queues.
        rig.wire.frames().to_card.extend((0..20).map(|n| frame(100 + n)));
        rig.step();
        let arrived: usize = (0..3).map(|queue| rig.arrived(queue).len()).sum();
        assert_eq!(arrived, 20);
        rig.judge();
    }
}

#[test]
fn what_the_card_cannot_do_is_refused_with_a_remedy() {
    let refused = |config: PortConfig, card: VirtioConfig| Rig::open(&config, &card).err().unwrap().to_string();
    let pairs = VirtioConfig { features: DEFAULT_FEATURES | MQ, queue_pairs: 2, ..Default::default() };
    for (text, cause, remedy) in [
        (refused(PortConfig { queues: 3, ..small() }, pairs), "3 queues", "queues=3"),
        (refused(PortConfig { queues: 2, ..small() }, VirtioConfig::default()), "2 queues", "mq=on"),
        (
            refused(
                PortConfig { mtu: 9000, ..small() },
                VirtioConfig { features: DEFAULT_FEATURES | MTU, mtu: 2000, ..Default::default() },
            ),
            "MTU of 9000; the card has at most 2000",
            "host_mtu=9000",
        ),
        (refused(PortConfig { mtu: 9711, ..small() }, VirtioConfig::default()), "9711", "68 to 9710"),
        (refused(PortConfig { rx_ring: 100, ..small() }, VirtioConfig::default()), "100", "power of two"),
    ] {
        let right = text.starts_with("model: ") && text.contains(cause) && text.contains(remedy);
        assert!(right && !text.contains('\n'), "{text}");
    }
}

/// The first frame wakes a sleeping queue; a polling queue is not interrupted.
#[test]
fn an_armed_queue_is_woken() {
    for features in [
        DEFAULT_FEATURES,
        DEFAULT_FEATURES & !EVENT_IDX,
        DEFAULT_FEATURES | RING_PACKED,
        (DEFAULT_FEATURES | RING_PACKED) & !EVENT_IDX,
    ] {
        let mut rig = Rig::new(&small(), &VirtioConfig { features, ..Default::default() });
        let readable = |rig: &Rig| {
            let [WakeSource::Readable(fd)] = WakeSource::all(&*rig.queues[0].rx)[..] else { panic!("no interrupts") };
            let limit = Timespec::try_from(Duration::ZERO).unwrap();
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() > 0
        };
        for round in 0..100 {
            assert_eq!(rig.receive(0, [frame(60), frame(61)]).len(), 2);
            assert!(!readable(&rig), "round {round}: a poller is left alone");
            rig.queues[0].rx.arm();
            assert!(rig.arrived(0).is_empty());
            rig.wire.frames().to_card.push_back(frame(62));
            rig.step();
            assert!(readable(&rig), "round {round}: a sleeper is woken");
            rig.queues[0].rx.disarm();
            assert!(!readable(&rig));
            assert_eq!(rig.arrived(0).len(), 1);
        }
        rig.judge();
    }
}

#[test]
fn a_queue_that_is_dropped_gives_its_buffers_back() {
    for features in [DEFAULT_FEATURES, DEFAULT_FEATURES & !RING_RESET, DEFAULT_FEATURES | RING_PACKED] {
        let mut rig = Rig::new(&small(), &VirtioConfig { features, ..Default::default() });
        let free = |rig: &Rig| {
            let packets: Vec<Packet> = std::iter::from_fn(|| rig.pool.alloc()).collect();
            packets.len()
        };
        let posted = rig.packet(&frame(60), 2000);
        rig.send([posted]);
        let left = free(&rig);
        assert!(left < BUFFERS - 64, "{left}");
        let Rig { card, port, queues, pool, wire, mut ends } = rig;
        crate::common::stepping(&card, &mut ends, || drop(queues));
        crate::common::stepping(&card, &mut ends, || drop(port));
        let packets: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(packets.len(), BUFFERS, "{features:#x}");
        drop(wire);
        assert_eq!(card.fault(), None);
    }
}

#[test]
fn the_link_is_seen() {
    let mut rig = Rig::new(&small(), &VirtioConfig::default());
    assert!(rig.port.link().up);
    rig.card.set_link(false);
    assert!(!rig.port.link().up);
    assert!(matches!(rig.port.state(), State::Running), "a link that is down is no end");
    rig.card.set_link(true);
    assert!(rig.port.link().up);
    forward(&mut rig, 1518);
}

#[test]
fn verdicts_are_not_told_to_the_card() {
    let mut rig = Rig::new(&PortConfig { offloads: ALL, ..small() }, &VirtioConfig::default());
    let mut packet = rig.packet(&frame(100), 60);
    packet.add_flags(Flags::L4_GOOD);
    assert_eq!(rig.send([packet]), [frame(100)]);
    rig.judge();
}
