//! Tests of partial checksums and TCP segmentation in both directions.

use crate::common::*;
use ringpass_memory::{Flags, Headers, L4, MempoolConfig, Packet};
use ringpass_port::{Offloads, Port, PortConfig};
use ringpass_vhost_user::Device;
use ringpass_virtio::features::*;

const HEADERS: Headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
const OPEN: [u8; 12] = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
const SEGMENTS: [u8; 12] = [1, 1, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0];

const CHECKSUMS: u64 = VERSION_1 | CSUM | GUEST_CSUM;
const ALL: u64 = CHECKSUMS | HOST_TSO4 | HOST_TSO6 | GUEST_TSO4 | GUEST_TSO6;

fn rig(tso: bool) -> Rig {
    let offloads = Offloads { checksum: true, tso, ..Default::default() };
    Rig::with_pool(&PortConfig { offloads, ..Default::default() }, &MempoolConfig::default())
}

/// Returns whether the TCP checksum is correct.
fn is_whole(frame: &[u8]) -> bool {
    let mut pseudo = [&frame[26..34], &[0, 6], &((frame.len() - 34) as u16).to_be_bytes()].concat();
    pseudo.extend(&frame[34..]);
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    fold(fold(sum)) == 0xffff
}

/// Builds a TCP segment with `payload` bytes of payload whose checksum field holds only the sum of the pseudo
/// header.
fn open(payload: usize) -> Vec<u8> {
    let mut frame = tcp(payload);
    let sum = 6 + (20 + payload) as u16;
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn packet(rig: &Rig, frame: &[u8], ask: impl FnOnce(&mut Packet)) -> Packet {
    let mut packet = rig.packet(frame);
    ask(&mut packet);
    packet
}

fn send(rig: &mut Rig, packet: Packet) -> usize {
    let mut burst = ringpass_memory::Burst::new(1);
    burst.push(packet);
    rig.queues[0].tx.tx_burst(&mut burst)
}

/// Also line 16 of the list of hostile inputs (`docs/security.md`): headers that do not fit their frames.
#[test]
fn what_a_guest_leaves_open_stays_open() {
    for rings in [0, MRG_RXBUF, RING_PACKED | MRG_RXBUF, INDIRECT_DESC] {
        let (mut rig, mut guest) = (rig(true), Guest::new(ALL | rings, 1, 64));
        assert_eq!(rig.device.features() & ALL, ALL);
        guest.attach(&mut rig.device);
        assert!(guest.send(0, OPEN, &open(100), &[]));
        assert!(guest.send(0, SEGMENTS, &open(5000), &[12, 54]));
        assert!(guest.send(0, [0; 12], &open(100), &[]));
        // A flag that a sender may not set (DATA_VALID), and a header without requests.
        assert!(guest.send(0, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &open(100), &[]));
        let packets = rig.receive(0);
        assert_eq!(packets[0].headers(), Some(HEADERS));
        assert_eq!((packets[1].mss(), packets[1].total_len()), (Some(100), 5054));
        assert_eq!(bytes_of(&packets[1]), open(5000));
        assert_eq!((packets[2].flags(), packets[3].flags()), Default::default());
        // Headers that do not fit their frames: each frame is dropped, none is believed.
        let wrong: [[u8; 12]; 6] = [
            [1, 1, 54, 0, 0, 0, 34, 0, 16, 0, 0, 0],
            [1, 4, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0],
            [1, 0, 0, 0, 0, 0, 0xff, 0xff, 16, 0, 0, 0],
            [1, 0, 0, 0, 0, 0, 34, 0, 0xff, 0xff, 0, 0],
            [0, 1, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0],
            [1, 0x7f, 0xff, 0xff, 100, 0, 34, 0, 16, 0, 0, 0],
        ];
        for header in wrong {
            assert!(guest.send(0, header, &open(500), &[]));
            assert!(rig.receive(0).is_empty(), "{header:?}");
        }
        assert_eq!((rig.port.stats().rx_drops, rig.fault()), (6, None));
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

/// Line 16 of the list of hostile inputs (`docs/security.md`).
#[test]
fn segments_are_taken_up_to_the_longest_that_ip_has() {
    let (mut rig, mut guest) = (rig(true), Guest::new(ALL, 1, 64));
    guest.attach(&mut rig.device);
    let mut longest = open(65_535 - 40);
    longest[50..52].fill(0);
    assert!(guest.send(0, SEGMENTS, &longest, &[]));
    let packets = rig.receive(0);
    assert_eq!((packets.len(), packets[0].total_len()), (1, 65_549));
    assert_eq!(guest.sent(0), 1);
    assert!(guest.send(0, SEGMENTS, &vec![0; 65_600], &[]));
    assert!(rig.receive(0).is_empty());
    assert_eq!(rig.port.stats().rx_drops, 1);
    guest.detach(&mut rig.device);
    guest.reset();
}

#[test]
fn a_guest_gets_open_what_it_takes_so() {
    for rings in [0, MRG_RXBUF, RING_PACKED | MRG_RXBUF] {
        let (mut rig, mut guest) = (rig(true), Guest::new(ALL | rings, 1, 64));
        guest.attach(&mut rig.device);
        (0..8).for_each(|_| assert!(guest.offer(0, &[2048, 2048, 2048])));
        let checksum = packet(&rig, &open(100), |packet| packet.request_checksum(HEADERS));
        let segments = packet(&rig, &open(5000), |packet| packet.request_segmentation(100, HEADERS));
        let good = packet(&rig, &open(100), |packet| packet.add_flags(Flags::L4_GOOD));
        for packet in [checksum, segments, good] {
            assert_eq!(send(&mut rig, packet), 1);
        }
        let received = guest.received(0);
        assert_eq!(received[0].0[..10], OPEN[..10]);
        assert_eq!((&received[1].0[..10], &received[1].1), (&SEGMENTS[..10], &open(5000)));
        assert_eq!(received[2].0[..10], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

#[test]
fn what_a_guest_does_not_take_is_done_before() {
    // One guest after the other; the first accepts all offloads.
    let mut rig = rig(true);
    for features in [ALL, CHECKSUMS | MRG_RXBUF, VERSION_1, ALL] {
        let mut guest = Guest::new(features, 1, 256);
        guest.attach(&mut rig.device);
        (0..80).for_each(|_| assert!(guest.offer(0, &[2048, 2048, 2048])));
        let checksum = packet(&rig, &open(100), |packet| packet.request_checksum(HEADERS));
        let segments = packet(&rig, &open(1000), |packet| packet.request_segmentation(300, HEADERS));
        let tag = packet(&rig, &frame(0, 60), |packet| packet.set_vlan(7));
        for packet in [checksum, segments, tag] {
            assert_eq!(send(&mut rig, packet), 1);
        }
        let received = guest.received(0);
        assert_eq!(received[0].0[0] == 0, is_whole(&received[0].1), "{features:#x}");
        assert_eq!(received[0].0[0], u8::from(features & GUEST_CSUM != 0));
        let count = if features & GUEST_TSO4 != 0 { 1 } else { 4 };
        assert_eq!(received.len(), 2 + count, "{features:#x}");
        for (header, frame) in &received[1..1 + count] {
            assert_eq!(header[0] == 0, is_whole(frame), "{features:#x}");
        }
        let (_, tagged) = received.last().unwrap();
        assert_eq!((tagged.len(), &tagged[12..16]), (64, &[0x81, 0, 0, 7][..]));
        assert_eq!(rig.port.stats().tx_drops, 0);
        rig.device.disconnected("");
        guest.reset();
    }
}

#[test]
fn a_port_without_offloads_offers_none_and_believes_nothing() {
    let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(VERSION_1, 1, 64));
    assert_eq!(rig.device.features() & ALL, VERSION_1);
    guest.attach(&mut rig.device);
    assert!(guest.send(0, [0xff; 12], &frame(0, 60), &[]));
    let packets = rig.receive(0);
    assert_eq!((packets[0].flags(), packets[0].to_vec()), (Flags::default(), frame(0, 60).to_vec()));
    guest.detach(&mut rig.device);
    guest.reset();
}
