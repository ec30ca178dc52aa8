use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;
use proptest::prelude::*;
use ringpass_memory::{Mempool, MempoolConfig};
use ringpass_port::chain;

use super::*;
use crate::vxlan::{Ends, Networks};

const VNI: u32 = 0x00ab_cdef;

fn config() -> Config {
    of([10, 0, 0, 1].into(), REMOTE)
}

const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Returns the configuration of an end with one remote.
fn of(local: IpAddr, remote: IpAddr) -> Config {
    let (networks, ends) = (Networks::One(VNI), Ends::Fixed(vec![remote]));
    Config { networks, port: 4789, local, prefix: None, gateway: None, ends, stations: 64, mac: None }
}

/// Removes the outer headers as the end of a tunnel does.
fn decapsulate(packet: &mut Packet, config: &Config) -> Result<(), DecapError> {
    let Outer { source, vni, inner } = parse(packet, config)?;
    if config.ends != Ends::Fixed(vec![source]) || vni != VNI {
        return Err(DecapError::Foreign);
    }
    strip(packet, inner)
}

fn pool() -> Mempool {
    Mempool::new(&MempoolConfig::default()).unwrap()
}

fn packet(pool: &Mempool, frame: &[u8]) -> Packet {
    chain([frame], || pool.alloc()).unwrap()
}

fn inner_frame(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let bytes: Vec<u8> = (0..payload).map(|i| i as u8).collect();
    PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([1; 4], [2; 4], 9).udp(5, 6).write(&mut frame, &bytes).unwrap();
    frame
}

/// Returns an inner frame as the other end sends it, with a UDP checksum.
fn arriving(inner: &[u8]) -> Vec<u8> {
    let vxlan = [&[8, 0, 0, 0, 0xab, 0xcd, 0xef, 0], inner].concat();
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([6; 6], [8; 6]).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64).udp(50_000, 4789);
    builder.write(&mut frame, &vxlan).unwrap();
    frame
}

fn stripped(frame: &[u8]) -> Result<Vec<u8>, DecapError> {
    let pool = pool();
    let mut packet = packet(&pool, frame);
    decapsulate(&mut packet, &config()).map(|()| packet.to_vec())
}

#[test]
fn frames_come_out_in_place() {
    let inner = inner_frame(100);
    let frame = arriving(&inner);
    assert_eq!(stripped(&frame).unwrap(), inner);
    // Ethernet padding is removed too, and a missing checksum is valid.
    assert_eq!(stripped(&[&frame[..], &[9; 11]].concat()).unwrap(), inner);
    let mut without = frame.clone();
    without[40..42].copy_from_slice(&[0, 0]);
    assert_eq!(stripped(&without).unwrap(), inner);
    let pool = pool();
    let mut packet = packet(&pool, &frame);
    let at = packet.as_ptr().wrapping_add(OVERHEAD);
    packet.set_rss_hash(1);
    packet.add_flags(Flags::L4_GOOD);
    decapsulate(&mut packet, &config()).unwrap();
    assert!(packet.as_ptr() == at && packet.flags() == Flags::default() && packet.headroom() > OVERHEAD);
}

#[test]
fn frames_of_several_buffers_come_out_too() {
    let pool = Mempool::new(&MempoolConfig { size: 120, ..Default::default() }).unwrap();
    let inner = inner_frame(600);
    let mut packet = packet(&pool, &arriving(&inner));
    assert!(packet.is_chained());
    decapsulate(&mut packet, &config()).unwrap();
    assert_eq!(packet.segments().flat_map(|segment| segment.to_vec()).collect::<Vec<_>>(), inner);
    let mut wrong = arriving(&inner);
    *wrong.last_mut().unwrap() ^= 1;
    let mut packet = chain([&wrong[..]], || pool.alloc()).unwrap();
    assert_eq!(decapsulate(&mut packet, &config()), Err(DecapError::Malformed));
}

#[test]
fn checksums_are_looked_at_unless_the_card_has() {
    let mut frame = arriving(&inner_frame(50));
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(stripped(&frame), Err(DecapError::Malformed));
    let pool = pool();
    for (flags, right) in [(Flags::L4_GOOD, true), (Flags::L4_BAD, false), (Flags::L4_GOOD | Flags::L3_BAD, false)] {
        let mut packet = packet(&pool, &frame);
        packet.add_flags(flags);
        assert_eq!(decapsulate(&mut packet, &config()).is_ok(), right, "{flags:?}");
    }
    let mut frame = arriving(&inner_frame(50));
    frame[22] ^= 1; // the TTL, which the IPv4 checksum covers
    assert_eq!(stripped(&frame), Err(DecapError::Malformed));
}

#[test]
fn what_is_for_others_or_wrong_stays_out() {
    use DecapError::{Foreign, Malformed};
    // No UDP checksum, so that each change is detected by its own check.
    let mut frame = arriving(&inner_frame(50));
    frame[40..42].copy_from_slice(&[0, 0]);
    let pool = pool();
    let total = frame.len();
    for (at, value, why) in [
        (12, 0x86, Foreign),
        (14, 0x65, Foreign),
        (14, 0x44, Malformed),
        (14, 0x4f, Foreign),
        (16, 0xff, Malformed),
        (17, 30, Malformed),
        (20, 0x20, Malformed),
        (21, 1, Malformed),
        (23, 6, Foreign),
        (29, 9, Foreign),
        (33, 9, Foreign),
        (37, 1, Foreign),
        (38, 0xff, Malformed),
        (39, 29, Malformed),
        (42, 0, Malformed),
        (46, 1, Foreign),
    ] {
        let mut packet = packet(&pool, &frame);
        packet.add_flags(Flags::L3_GOOD);
        packet.write(at, &[value]);
        assert_eq!(decapsulate(&mut packet, &config()), Err(why), "byte {at}");
        assert_eq!(packet.len(), total, "nothing changed");
    }
    for len in 0..total {
        assert!(stripped(&frame[..len]).is_err(), "{len}");
    }
    let mut tagged = packet(&pool, &frame);
    tagged.set_vlan(1);
    assert_eq!(decapsulate(&mut tagged, &config()), Err(Foreign));
}

#[test]
fn frames_go_in_as_others_read_them() {
    let pool = pool();
    let inner = inner_frame(100);
    let mut packet = packet(&pool, &inner);
    packet.add_flags(Flags::L4_GOOD);
    let path = Path { hardware: [[2; 6], [4; 6]], ip: [config().local, REMOTE] };
    assert!(Template::new(path, 4789, 60_000).encapsulate(&mut packet, VNI));
    assert_eq!((packet.len(), packet.flags()), (inner.len() + OVERHEAD, Flags::default()));
    let outer = packet.to_vec();
    let parsed = etherparse::PacketHeaders::from_ethernet_slice(&outer).unwrap();
    let Some(etherparse::NetHeaders::Ipv4(ip, _)) = parsed.net else { panic!() };
    assert_eq!((ip.source, ip.destination, ip.dont_fragment), ([10, 0, 0, 1], [10, 0, 0, 2], true));
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    let Some(etherparse::TransportHeader::Udp(udp)) = parsed.transport else { panic!() };
    assert_eq!((udp.destination_port, udp.checksum, usize::from(udp.length)), (4789, 0, inner.len() + 16));
    assert!(udp.source_port >= 49152);
    let payload = parsed.payload.slice();
    assert_eq!((&payload[..8], &payload[8..]), (&[8, 0, 0, 0, 0xab, 0xcd, 0xef, 0][..], &inner[..]));
    // The other end can decapsulate it.
    decapsulate(&mut packet, &of(REMOTE, config().local)).unwrap();
    assert_eq!(packet.to_vec(), inner);
}

#[test]
fn ipv6_headers_go_on_and_come_off() {
    let [local, remote]: [IpAddr; 2] = [1, 2].map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into());
    let pool = Mempool::new(&MempoolConfig { size: 200, ..Default::default() }).unwrap();
    for payload in [1, 100, 1001] {
        let inner = inner_frame(payload);
        let mut packet = packet(&pool, &inner);
        let path = Path { hardware: [[2; 6], [4; 6]], ip: [local, remote] };
        assert!(Template::new(path, 4789, 60_000).encapsulate(&mut packet, VNI));
        let outer: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&outer).unwrap();
        let Some(etherparse::NetHeaders::Ipv6(ip, _)) = parsed.net else { panic!() };
        assert_eq!([ip.source, ip.destination].map(IpAddr::from), [local, remote]);
        let Some(etherparse::TransportHeader::Udp(udp)) = parsed.transport else { panic!() };
        let payload = parsed.payload.slice();
        assert_eq!(udp.checksum, udp.calc_checksum_ipv6(&ip, payload).unwrap());
        assert_eq!((udp.destination_port, usize::from(udp.length)), (4789, inner.len() + 16));
        assert_eq!(payload[8..], inner);
        let other = of(remote, local);
        for (at, value, why) in [
            (13, 0, DecapError::Foreign),
            (14, 0x40, DecapError::Foreign),
            (18, 0xff, DecapError::Malformed),
            (20, 6, DecapError::Foreign),
            (37, 9, DecapError::Malformed),
            (53, 9, DecapError::Foreign),
            (60, 9, DecapError::Malformed),
            (62, 0, DecapError::Malformed),
        ] {
            let mut wrong = outer.clone();
            wrong[at] = value;
            let mut packet = super::tests::packet(&pool, &wrong);
            assert_eq!(decapsulate(&mut packet, &other), Err(why), "byte {at}");
        }
        // A missing checksum is valid.
        let mut without = outer.clone();
        without[60..62].fill(0);
        for frame in [outer, without] {
            let mut packet = super::tests::packet(&pool, &frame);
            decapsulate(&mut packet, &other).unwrap();
            assert_eq!(packet.segments().flat_map(|segment| segment.to_vec()).collect::<Vec<_>>(), inner);
        }
    }
}

#[test]
fn a_flow_keeps_its_port_and_others_get_theirs() {
    let frame = |source: u16| {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([1; 4], [2; 4], 9).udp(source, 6).write(&mut frame, &[]).unwrap();
        frame
    };
    assert_eq!(source_port(&frame(7)), source_port(&frame(7)));
    let ports: std::collections::HashSet<u16> = (0..1000).map(|source| source_port(&frame(source))).collect();
    assert!(ports.len() > 900, "{}", ports.len());
    // Fragments have no L4 header: two fragments of one datagram get the same port.
    let mut fragment = frame(7);
    fragment[20] = 0x20;
    let first = source_port(&fragment);
    fragment[34] = 99;
    assert_eq!(source_port(&fragment), first);
    assert_eq!((source_port(&[]), source_port(&[0; 20])), (source_port(&[]), source_port(&[0; 20])));
}

proptest! {
    /// Whatever differs between frames and ends, all fields are in their places and the sum is right.
    #[test]
    fn templates_are_filled_in(
        [from, to] in any::<[u32; 2]>(),
        hardware in any::<[[u8; 6]; 2]>(),
        [port, ports @ ..] in any::<[u16; 2]>(),
        vni in 0..1_u32 << 24,
        payload in 0..1400_usize,
    ) {
        let ip = [from, to].map(|ip| IpAddr::from(Ipv4Addr::from_bits(ip)));
        let template = Template::new(Path { hardware, ip }, port, 60_000);
        let pool = pool();
        let mut inner = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([1; 4], [2; 4], 9).udp(ports[0], 6);
        builder.write(&mut inner, &vec![7; payload]).unwrap();
        let mut packet = packet(&pool, &inner);
        prop_assert!(template.encapsulate(&mut packet, vni));
        let outer = packet.to_vec();
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&outer).unwrap();
        let Some(etherparse::LinkHeader::Ethernet2(ethernet)) = parsed.link else { panic!() };
        prop_assert_eq!([ethernet.source, ethernet.destination], hardware);
        let Some(etherparse::NetHeaders::Ipv4(read, _)) = parsed.net else { panic!() };
        prop_assert_eq!([read.source, read.destination].map(IpAddr::from), ip);
        prop_assert_eq!(read.header_checksum, read.calc_header_checksum());
        prop_assert_eq!(usize::from(read.total_len), inner.len() + OVERHEAD - 14);
        let Some(etherparse::TransportHeader::Udp(udp)) = parsed.transport else { panic!() };
        prop_assert_eq!((udp.destination_port, usize::from(udp.length)), (port, inner.len() + 16));
        prop_assert_eq!(udp.source_port, source_port(&inner[..]));
        let payload = parsed.payload.slice();
        let [_, a, b, c] = vni.to_be_bytes();
        prop_assert_eq!((&payload[..8], &payload[8..]), (&[8, 0, 0, 0, a, b, c, 0][..], &inner[..]));
    }

    /// Whatever arrives, decapsulation does not panic, and the inner frame is a part of what arrived.
    #[test]
    fn nothing_that_arrives_does_harm(
        at in prop::collection::vec((0..110usize, any::<u8>()), 0..6),
        len in 0..180usize,
        known in any::<bool>(),
        ipv6 in any::<bool>(),
    ) {
        let pool = pool();
        let (mut frame, config) = (arriving(&inner_frame(60)), config());
        let [local, remote]: [IpAddr; 2] = [1, 2].map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into());
        let config = if ipv6 { of(local, remote) } else { config };
        if ipv6 {
            let mut packet = packet(&pool, &inner_frame(60));
            let path = Path { hardware: [[2; 6], [4; 6]], ip: [remote, local] };
            prop_assert!(Template::new(path, 4789, 60_000).encapsulate(&mut packet, VNI));
            frame = packet.to_vec();
        }
        for (at, value) in at {
            frame[at] = value;
        }
        frame.resize(len, 0xee);
        let mut packet = packet(&pool, &frame);
        if known {
            packet.add_flags(Flags::L3_GOOD | Flags::L4_GOOD);
        }
        match decapsulate(&mut packet, &config) {
            Ok(()) => prop_assert!(packet.len() >= 14 && frame.windows(packet.len()).any(|part| *part == packet.to_vec())),
            Err(_) => prop_assert_eq!(packet.to_vec(), frame),
        }
    }
}
