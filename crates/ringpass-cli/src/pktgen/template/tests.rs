//! Tests of the frames, parsed by another library.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use ringpass::MacAddress;
use ringpass_memory::{Mempool, MempoolConfig};

use super::super::frame::FLOWS;
use super::super::vary::Field;
use super::*;

/// Returns all kinds of frames; the first one is plain.
fn kinds() -> Vec<Endpoints> {
    let mac = |n| MacAddress([2, 0, 0, 0, 0, n]);
    let v4 = Addresses::V4 { source: [198, 18, 255, 255].into(), destination: [198, 19, 0, 1].into() };
    let source = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0xffff, 0xffff, 0xffff);
    let v6 = Addresses::V6 { source, destination: Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1) };
    let mut kinds = Vec::new();
    for vlan in [None, Some(5 << 13 | 100)] {
        for ip in [v4, v6] {
            for transport in [L4::Udp, L4::Tcp] {
                kinds.push(Endpoints { mac: (mac(1), mac(2)), vlan, ip, transport, port: 9, run: 0xbeef });
            }
        }
    }
    kinds
}

fn pool() -> Mempool {
    Mempool::new(&MempoolConfig { buffers: 1, size: MAX, ..Default::default() }).unwrap()
}

fn written(pool: &Mempool, template: &Template, mark: &Mark, checksums: Checksums) -> Vec<u8> {
    varied(pool, template, mark, &[], checksums)
}

fn varied(pool: &Mempool, template: &Template, mark: &Mark, values: &[u128], checksums: Checksums) -> Vec<u8> {
    let mut packet = pool.alloc().unwrap();
    packet.set_len(template.len());
    match checksums {
        Checksums::Generator if template.is_plain() => template.write_plain(&mut packet, mark),
        Checksums::Generator => template.write(&mut packet, mark, values),
        Checksums::Port => template.write_with_offload(&mut packet, mark, values),
    }
    packet.to_vec()
}

/// Checks a frame, parsed by another library.
fn check(frame: &[u8], ends: &Endpoints, flow: u32) {
    check_with_port(frame, ends, flow, SOURCE_PORTS.0 + (flow % SOURCE_PORTS.1) as u16);
}

fn check_with_port(frame: &[u8], ends: &Endpoints, flow: u32, source_port: u16) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    assert_eq!(packet.ether_payload().unwrap().payload.len(), frame.len() - usize::from(ends.headers().l2));
    let tag = packet.vlan().map(|tag| {
        let tag = tag.to_header();
        let etherparse::VlanHeader::Single(tag) = tag else { panic!("two tags") };
        u16::from(tag.pcp.value()) << 13 | tag.vlan_id.value()
    });
    assert_eq!(tag, ends.vlan);
    let above = flow / SOURCE_PORTS.1;
    let (v4, v6) = match (packet.net, ends.ip) {
        (Some(NetSlice::Ipv4(ip)), Addresses::V4 { source, destination }) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(usize::from(header.total_len), frame.len() - usize::from(ends.headers().l2));
            let expected = Ipv4Addr::from_bits(source.to_bits().wrapping_add(above));
            assert_eq!((Ipv4Addr::from(header.source), Ipv4Addr::from(header.destination)), (expected, destination));
            (Some(header), None)
        }
        (Some(NetSlice::Ipv6(ip)), Addresses::V6 { source, destination }) => {
            let header = ip.header().to_header();
            let expected = Ipv6Addr::from_bits(source.to_bits().wrapping_add(above.into()));
            assert_eq!((Ipv6Addr::from(header.source), Ipv6Addr::from(header.destination)), (expected, destination));
            (None, Some(header))
        }
        (net, _) => panic!("{net:?}"),
    };
    let (source, destination, checksums) = match (packet.transport, ends.transport) {
        (Some(TransportSlice::Udp(udp)), L4::Udp) => {
            let header = udp.to_header();
            let right = match (&v4, &v6) {
                (Some(v4), _) => header.calc_checksum_ipv4(v4, udp.payload()),
                (_, v6) => header.calc_checksum_ipv6(v6.as_ref().unwrap(), udp.payload()),
            };
            (header.source_port, header.destination_port, [header.checksum, right.unwrap()])
        }
        (Some(TransportSlice::Tcp(tcp)), L4::Tcp) => {
            let header = tcp.to_header();
            assert!(header.ack && !header.syn && !header.fin && !header.rst && header.header_len() == 20);
            let right = match (&v4, &v6) {
                (Some(v4), _) => header.calc_checksum_ipv4(v4, tcp.payload()),
                (_, v6) => header.calc_checksum_ipv6(v6.as_ref().unwrap(), tcp.payload()),
            };
            (header.source_port, header.destination_port, [header.checksum, right.unwrap()])
        }
        (transport, _) => panic!("{transport:?}"),
    };
    assert_eq!(checksums[0], checksums[1]);
    assert_eq!((source, destination), (source_port, ends.port));
}

#[test]
fn frames_of_all_kinds_have_right_checksums_and_give_their_marks_back() {
    let pool = pool();
    for ends in kinds() {
        for size in [ends.shortest(), ends.shortest() + 1, 590, 1514, MAX] {
            let template = Template::new(&ends, size);
            assert_eq!(template.len(), size);
            for flow in [0, 1, 16383, 16384, 65535] {
                let sequence = (1 << 48) - 1 - 7 * u64::from(flow);
                let mark = Mark { flow, sequence, time: 0x1234_5678_9abc_def0 };
                let frame = written(&pool, &template, &mark, Checksums::Generator);
                assert_eq!(ends.read(&frame, FLOWS as u32), Some(mark));
                assert_eq!(ends.read(&frame, flow), None, "a flow that is not there");
                check(&frame, &ends, flow);
            }
        }
    }
}

#[test]
fn the_fast_way_and_the_general_one_write_the_same() {
    let (pool, ends) = (pool(), kinds()[0]);
    for size in [MIN, 61, 1514] {
        let template = Template::new(&ends, size);
        for n in 0..70_000 {
            let mark = Mark { flow: n % 65536, sequence: u64::from(n) * 977, time: u64::from(n) << 20 };
            let frame = written(&pool, &template, &mark, Checksums::Generator);
            assert_eq!(frame[..MIN], template.start(&mark, &[], Checksums::Generator)[..MIN]);
        }
    }
}

#[test]
fn the_port_gets_the_sum_of_the_pseudo_header() {
    let pool = pool();
    for ends in kinds() {
        let (template, mark) = (Template::new(&ends, 590), Mark { flow: 16385, sequence: 3, time: 4 });
        let mut frame = written(&pool, &template, &mark, Checksums::Port);
        // As a card does it: the sum from the transport header on.
        let headers = ends.headers();
        let at = headers.l4_start() + if ends.transport == L4::Udp { 6 } else { 16 };
        let right = checksum(sum(&frame[headers.l4_start()..]));
        frame[at..at + 2].copy_from_slice(&right.to_be_bytes());
        check(&frame, &ends, mark.flow);
    }
}

#[test]
fn tags_come_and_go_on_the_way() {
    let (pool, kinds) = (pool(), kinds());
    let mark = Mark { flow: 1, sequence: 2, time: 3 };
    for (plain, tagged) in kinds[..4].iter().zip(&kinds[4..]) {
        for [sent, expected] in [[plain, tagged], [tagged, plain]] {
            let frame = written(&pool, &Template::new(sent, 100), &mark, Checksums::Generator);
            assert_eq!(expected.read(&frame, 2), Some(mark));
        }
    }
}

#[test]
fn other_frames_are_nobodys() {
    let (pool, mark) = (pool(), Mark { flow: 0, sequence: 0, time: 0 });
    for ends in kinds() {
        assert_eq!(ends.read(&[0; 17], 1), None);
        assert_eq!(ends.read(&[0; 59], 1), None);
        assert_eq!(ends.read(&[0xff; 96], 1), None);
        let other = Endpoints { run: 1, ..ends };
        assert_eq!(ends.read(&written(&pool, &Template::new(&other, 96), &mark, Checksums::Generator), 1), None);
        let other = if ends.transport == L4::Udp { L4::Tcp } else { L4::Udp };
        let other = Endpoints { transport: other, ..ends };
        assert_eq!(ends.read(&written(&pool, &Template::new(&other, 96), &mark, Checksums::Generator), 1), None);
        let frame = written(&pool, &Template::new(&ends, 96), &mark, Checksums::Generator);
        assert!(ends.read(&frame, 1).is_some());
        assert_eq!(ends.read(&frame[..ends.shortest() - 1], 1), None, "cut");
    }
}

#[test]
fn frames_with_varied_fields_have_right_checksums() {
    use Field::*;
    let pool = pool();
    for ends in kinds() {
        let fields = [SrcIp, DstIp, SrcPort, DstPort, SrcMac, DstMac, Vlan];
        let has = |field: &Field| *field != Vlan || ends.vlan.is_some();
        let fields: Vec<Field> = fields.into_iter().filter(has).collect();
        let mut random = 1u64;
        for varied_fields in fields.iter().map(std::slice::from_ref).chain([&fields[..]]) {
            let template = Template::varied(&ends, ends.shortest() + 1, varied_fields);
            for n in 0..100 {
                let mark = Mark { flow: 0, sequence: n, time: n << 40 };
                let mut expected = ends;
                let mut port = SOURCE_PORTS.0;
                let values: Vec<u128> = varied_fields
                    .iter()
                    .map(|field| {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let bits = u128::from(random >> 32) << 96 | u128::from(random.rotate_left(17));
                        set(&mut expected, &mut port, *field, bits)
                    })
                    .collect();
                let mut frame = varied(&pool, &template, &mark, &values, Checksums::Generator);
                check_with_port(&frame, &expected, 0, port);
                assert_eq!([&frame[6..12], &frame[..6]], [expected.mac.0.0, expected.mac.1.0]);
                assert_eq!(ends.read(&frame, 1), Some(mark));
                frame = varied(&pool, &template, &mark, &values, Checksums::Port);
                let (l4, offset) = (ends.headers().l4_start(), if ends.transport == L4::Udp { 6 } else { 16 });
                let right = checksum(sum(&frame[l4..]));
                frame[l4 + offset..][..2].copy_from_slice(&right.to_be_bytes());
                check_with_port(&frame, &expected, 0, port);
            }
        }
    }
}

/// Sets a field to some bits. Returns them as a value that varies.
fn set(ends: &mut Endpoints, port: &mut u16, field: Field, bits: u128) -> u128 {
    let mac = || MacAddress(bits.to_be_bytes()[10..].try_into().unwrap());
    match (field, &mut ends.ip) {
        (Field::SrcIp, Addresses::V4 { source: address, .. })
        | (Field::DstIp, Addresses::V4 { destination: address, .. }) => {
            *address = Ipv4Addr::from_bits(bits as u32);
            u128::from(bits as u32)
        }
        (Field::SrcIp, Addresses::V6 { source: address, .. })
        | (Field::DstIp, Addresses::V6 { destination: address, .. }) => {
            *address = Ipv6Addr::from_bits(bits);
            bits
        }
        (Field::SrcPort, _) => {
            *port = bits as u16;
            u128::from(*port)
        }
        (Field::DstPort, _) => {
            ends.port = bits as u16;
            u128::from(ends.port)
        }
        (Field::SrcMac, _) => {
            ends.mac.0 = mac();
            bits & 0xffff_ffff_ffff
        }
        (Field::DstMac, _) => {
            ends.mac.1 = mac();
            bits & 0xffff_ffff_ffff
        }
        (Field::Vlan, _) => {
            let tag = bits as u16 & 0xefff;
            ends.vlan = Some(tag);
            u128::from(tag)
        }
    }
}
