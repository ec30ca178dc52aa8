//! Tests of transmit and receive offloads, on every kind of ring, with and without support by the card. Frames
//! are made and checked with etherparse.

use crate::common::Rig;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use ringpass_memory::{Flags, Headers, L4, Packet};
use ringpass_models::virtio::VirtioConfig;
use ringpass_port::{Offloads, Port, PortConfig, complete_checksum};
use ringpass_testing::bytes_of;
use ringpass_virtio::features::*;

const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
const DEFAULT_FEATURES: u64 = VirtioConfig::DEFAULT_FEATURES;
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Features of the cards: each kind of ring, and some that leave work to software.
const CARDS: [u64; 7] = [
    DEFAULT_FEATURES,
    DEFAULT_FEATURES & !INDIRECT_DESC,
    DEFAULT_FEATURES | RING_PACKED,
    (DEFAULT_FEATURES | RING_PACKED) & !INDIRECT_DESC,
    DEFAULT_FEATURES | RING_PACKED | IN_ORDER,
    DEFAULT_FEATURES & !(HOST_TSO6 | HOST_ECN),
    DEFAULT_FEATURES & !(CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN),
];

fn offloaded(features: u64) -> Rig {
    Rig::new(&PortConfig { offloads: ALL, ..Default::default() }, &VirtioConfig { features, ..Default::default() })
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(PEER, OWN).ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64).udp(1, 2);
    builder.write(&mut frame, payload).unwrap();
    frame
}

fn tcp(ipv6: bool, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(OWN, PEER);
    let mut frame = Vec::new();
    let ip = if ipv6 { ethernet.ipv6([1; 16], [2; 16], 64) } else { ethernet.ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64) };
    ip.tcp(80, 443, 1_000_000, 512).ack(77).psh().write(&mut frame, payload).unwrap();
    frame
}

fn headers(ipv6: bool) -> Headers {
    Headers { l2: 14, l3: if ipv6 { 40 } else { 20 }, l4: 20, protocol: L4::Tcp }
}

/// Replaces the TCP or UDP checksum by that of the pseudo header, as a network stack does with checksum
/// offload.
fn leave_checksum(frame: &mut [u8], headers: Headers) {
    let (ip, l4) = (usize::from(headers.l2), headers.l4_start());
    let addresses = if frame[ip] >> 4 == 4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
    let (protocol, field) = if headers.protocol == L4::Tcp { (6, 16) } else { (17, 6) };
    let words = frame[addresses].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>() + protocol + (frame.len() - l4) as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[l4 + field..l4 + field + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// Checks the checksums of a TCP frame. Returns its payload, sequence number and PSH flag.
fn judge(frame: &[u8]) -> (Vec<u8>, u32, bool) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("{sliced:?}") };
    let right = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 checksum");
            tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap()
        }
        Some(NetSlice::Ipv6(ip)) => {
            tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(tcp.checksum(), right, "TCP checksum");
    (tcp.payload().to_vec(), tcp.sequence_number(), tcp.psh())
}

#[test]
fn checksums_are_filled_in() {
    for features in CARDS {
        let mut rig = offloaded(features);
        for ipv6 in [false, true] {
            let right = tcp(ipv6, &bytes(500));
            let mut frame = right.clone();
            leave_checksum(&mut frame, headers(ipv6));
            for piece in [2000, 100] {
                let mut packet = rig.packet(&frame, piece);
                packet.request_checksum(headers(ipv6));
                assert_eq!(rig.send([packet]), std::slice::from_ref(&right), "IPv6 {ipv6}, pieces of {piece}");
            }
        }
        let right = udp(&bytes(333));
        let mut frame = right.clone();
        let headers = Headers { l4: 8, protocol: L4::Udp, ..headers(false) };
        leave_checksum(&mut frame, headers);
        frame[24..26].fill(0xaa);
        let mut packet = rig.packet(&frame, 2000);
        packet.request_checksum(headers);
        packet.add_flags(Flags::L3_CHECKSUM);
        assert_eq!(rig.send([packet]), [right]);
        rig.judge();
    }
}

#[test]
fn segments_are_cut_into_frames() {
    for features in CARDS {
        let mut rig = offloaded(features);
        for ipv6 in [false, true] {
            let data = bytes(30_000);
            let mut frame = tcp(ipv6, &data);
            leave_checksum(&mut frame, headers(ipv6));
            let mss = 1400;
            let mut packet = rig.packet(&frame, 1500);
            packet.request_segmentation(mss, headers(ipv6));
            let sent = rig.send([packet]);
            assert_eq!(sent.len(), data.len().div_ceil(mss.into()), "{features:#x}, IPv6 {ipv6}");
            let mut found = Vec::new();
            for (at, frame) in sent.iter().enumerate() {
                let (payload, sequence, push) = judge(frame);
                assert_eq!(sequence as usize, 1_000_000 + found.len());
                assert_eq!(push, at + 1 == sent.len());
                found.extend(payload);
            }
            assert_eq!(found, data);
        }
        rig.judge();
    }
}

#[test]
fn requests_that_make_no_sense_are_dropped_and_counted() {
    let mut rig = offloaded(DEFAULT_FEATURES);
    let frame = tcp(false, &bytes(4000));
    let spoiled = |rig: &Rig, spoil: &dyn Fn(&mut Packet)| {
        let mut packet = rig.packet(&frame, 2000);
        spoil(&mut packet);
        packet
    };
    let packets = [
        spoiled(&rig, &|packet| packet.request_segmentation(0, headers(false))),
        spoiled(&rig, &|packet| packet.request_segmentation(9000, headers(false))),
        spoiled(&rig, &|packet| packet.request_segmentation(1000, Headers { l3: 3000, ..headers(false) })),
        spoiled(&rig, &|packet| packet.append(rig.pool.alloc().unwrap())),
        spoiled(&rig, &|packet| packet.request_checksum(headers(false))),
    ];
    assert_eq!(rig.send(packets), Vec::<Vec<u8>>::new());
    assert_eq!(rig.port.stats().tx_drops, 5);
    rig.judge();
}

#[test]
fn more_pieces_than_a_packet_may_have_are_dropped() {
    for features in CARDS {
        let mut rig = offloaded(features);
        let frame = crate::common::frame(800);
        for (piece, sent) in [(20, 1), (10, 0)] {
            let packet = rig.packet(&frame, piece);
            assert_eq!(rig.send([packet]).len(), sent, "{features:#x}, pieces of {piece}");
        }
        rig.judge();
    }
}

#[test]
fn received_frames_come_with_what_the_card_knows() {
    for features in CARDS {
        for merged in [MRG_RXBUF, 0] {
            let mut rig = offloaded(features & !MRG_RXBUF | merged);
            // The card leaves the checksum incomplete, as a peer on the same machine does.
            let right = tcp(false, &bytes(900));
            let mut frame = right.clone();
            leave_checksum(&mut frame, headers(false));
            rig.wire.frames().partial_checksums = true;
            let mut packets = rig.receive(0, [frame.clone()]);
            assert_eq!(packets.len(), 1);
            assert_eq!(packets[0].headers(), Some(headers(false)));
            assert!(complete_checksum(&mut packets[0], headers(false).l4_start(), 16));
            assert_eq!(bytes_of(&packets[0]), right);
            rig.judge();
        }
    }
}

#[test]
fn without_offloads_received_checksums_are_complete() {
    let mut rig = Rig::new(&PortConfig::default(), &VirtioConfig::default());
    let right = tcp(true, &bytes(900));
    let mut frame = right.clone();
    leave_checksum(&mut frame, headers(true));
    rig.wire.frames().partial_checksums = true;
    let packets = rig.receive(0, [frame]);
    assert_eq!(bytes_of(&packets[0]), right);
    assert_eq!(packets[0].flags(), Flags::default());
}

#[test]
fn received_segments_pass_as_they_are() {
    for features in CARDS {
        let mut rig = offloaded(features);
        let data = bytes(20_000);
        let mut frame = tcp(false, &data);
        leave_checksum(&mut frame, headers(false));
        {
            let mut frames = rig.wire.frames();
            frames.partial_checksums = true;
            frames.segment = Some(1300);
        }
        let packets = rig.receive(0, [frame.clone(), frame]);
        assert_eq!(packets.len(), 2, "{features:#x}");
        assert!(packets.iter().all(|packet| packet.mss() == Some(1300) && packet.total_len() == 20_054));
        assert!(packets.iter().all(|packet| packet.is_chained()));
        // The packets are sent again as received, as a forwarder does.
        let sent = rig.send(packets);
        let found: Vec<u8> = sent.iter().flat_map(|frame| judge(frame).0).collect();
        assert_eq!(found, [data.clone(), data].concat());
        let stats = rig.port.stats();
        assert_eq!((stats.rx_packets, stats.rx_bytes, stats.tx_packets), (2, 2 * 20_054, stats.tx_packets));
        rig.judge();
    }
}

#[test]
fn tags_beside_frames_are_put_into_them() {
    for features in CARDS {
        let mut rig = offloaded(features);
        let right = tcp(false, &bytes(500));
        let tagged = [&right[..12], &[0x81, 0, 0x60, 7], &right[12..]].concat();
        let mut frame = right.clone();
        leave_checksum(&mut frame, headers(false));
        let mut packet = rig.packet(&frame, 2000);
        packet.request_checksum(headers(false));
        packet.set_vlan(0x6007);
        assert_eq!(rig.send([packet]), [tagged]);
        rig.judge();
    }
}

#[test]
fn what_is_done_in_software_is_said() {
    let notes = |features| offloaded(features).port.notes().join("\n");
    let text = notes(DEFAULT_FEATURES & !(CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN));
    assert!(text.contains("in software: checksums, segmentation, VLAN tags"), "{text}");
    let text = notes(DEFAULT_FEATURES);
    assert!(text.contains("in software: VLAN tags") && text.contains("no hash"), "{text}");
    let text = notes(DEFAULT_FEATURES & !MRG_RXBUF);
    assert!(text.contains("no segments are received"), "{text}");
}
