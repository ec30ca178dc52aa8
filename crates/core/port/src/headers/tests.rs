use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, Icmpv4Type, IpHeaders, PacketBuilder, PacketBuilderStep, SlicedPacket,
    TransportSlice, VlanId,
};
use proptest::prelude::*;
use ringpass_memory::{Mempool, MempoolConfig, Packet};

use super::*;
use crate::MacAddress;

fn packet(frame: &[u8]) -> Packet {
    let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).unwrap();
    let mut packet = pool.alloc().unwrap();
    assert!(packet.copy_from(frame));
    packet
}

/// Addresses and ports of a packet, source first.
#[derive(Clone, Debug)]
struct Ends<A> {
    addresses: [A; 2],
    ports: [u16; 2],
}

fn ends<A: Arbitrary>() -> impl Strategy<Value = Ends<A>> {
    (any::<[A; 2]>(), any::<[u16; 2]>()).prop_map(|(addresses, ports)| Ends { addresses, ports })
}

fn frame4(Ends { addresses: [a, b], ports }: &Ends<Ipv4Addr>, is_tcp: bool, payload: &[u8]) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(a.octets(), b.octets(), 64);
    frame(ip, *ports, is_tcp, payload)
}

fn frame6(Ends { addresses: [a, b], ports }: &Ends<Ipv6Addr>, is_tcp: bool, payload: &[u8]) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6(a.octets(), b.octets(), 64);
    frame(ip, *ports, is_tcp, payload)
}

fn frame(ip: PacketBuilderStep<IpHeaders>, [from, to]: [u16; 2], is_tcp: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let written = match is_tcp {
        true => ip.tcp(from, to, 7, 1000).write(&mut frame, payload),
        false => ip.udp(from, to).write(&mut frame, payload),
    };
    written.unwrap();
    frame
}

/// Changes the ports behind `at`, after a change of the addresses.
fn translate_ports(packet: &mut Packet, at: usize, is_tcp: bool, change: ChecksumChange, [from, to]: [u16; 2]) {
    if is_tcp {
        let mut tcp = Tcp::read(packet, at).unwrap();
        tcp.apply(change);
        tcp.set_source_port(from);
        tcp.set_destination_port(to);
        tcp.write(packet, at);
    } else {
        let mut udp = Udp::read(packet, at).unwrap();
        udp.apply(change);
        udp.set_source_port(from);
        udp.set_destination_port(to);
        udp.write(packet, at);
    }
}

/// Returns the frame with all ones for checksums that are 0, which is the same number to whoever checks them, as not all
/// implementations write the same one.
fn with_one_zero(mut frame: Vec<u8>, fields: &[usize]) -> Vec<u8> {
    for &at in fields {
        if frame[at..at + 2] == [0, 0] {
            frame[at..at + 2].fill(0xff);
        }
    }
    frame
}

proptest! {
    #[test]
    fn translated_packets_are_those_that_the_new_ends_would_have_sent(
        before in ends::<Ipv4Addr>(), after in ends::<Ipv4Addr>(), is_tcp: bool,
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut packet = packet(&frame4(&before, is_tcp, &payload));
        let mut ip = Ipv4::read(&packet, 14).unwrap();
        let change = ip.set_source(after.addresses[0]).and(ip.set_destination(after.addresses[1]));
        ip.write(&mut packet, 14);
        translate_ports(&mut packet, 34, is_tcp, change, after.ports);
        let sums = [24, if is_tcp { 50 } else { 40 }];
        let expected = with_one_zero(frame4(&after, is_tcp, &payload), &sums);
        prop_assert_eq!(with_one_zero(packet.to_vec(), &sums), expected);
    }

    #[test]
    fn translated_packets_of_ipv6_too(
        before in ends::<Ipv6Addr>(), after in ends::<Ipv6Addr>(), is_tcp: bool,
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut packet = packet(&frame6(&before, is_tcp, &payload));
        let mut ip = Ipv6::read(&packet, 14).unwrap();
        let change = ip.set_source(after.addresses[0]).and(ip.set_destination(after.addresses[1]));
        ip.write(&mut packet, 14);
        translate_ports(&mut packet, 54, is_tcp, change, after.ports);
        let sums = [if is_tcp { 70 } else { 60 }];
        let expected = with_one_zero(frame6(&after, is_tcp, &payload), &sums);
        prop_assert_eq!(with_one_zero(packet.to_vec(), &sums), expected);
    }

    #[test]
    fn headers_made_anew_are_what_others_make(ends in ends::<Ipv4Addr>(), six in ends::<Ipv6Addr>(), len in 0u16..1400) {
        let payload = vec![7; len.into()];
        let ethernet = Ethernet::new(MacAddress([4; 6]), MacAddress([2; 6]), EtherType::IPV4);
        let ip = Ipv4::new(ends.addresses[0], ends.addresses[1], IpProtocol::UDP, 8 + len);
        let udp = Udp::new(ends.ports[0], ends.ports[1], len);
        let expected = frame4(&ends, false, &payload);
        prop_assert_eq!(&ethernet.bytes()[..], &expected[..14]);
        prop_assert_eq!(with_one_zero(ip.bytes().to_vec(), &[10]), with_one_zero(expected[14..34].to_vec(), &[10]));
        prop_assert_eq!(&udp.bytes()[..6], &expected[34..40]);
        prop_assert_eq!(udp.checksum(), None);
        let ip = Ipv6::new(six.addresses[0], six.addresses[1], IpProtocol::UDP, 8 + len);
        prop_assert_eq!(&ip.bytes()[..], &frame6(&six, false, &payload)[14..54]);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..100) {
        let packet = packet(&bytes);
        let inside = |len: usize| at + len <= bytes.len();
        prop_assert_eq!(Ethernet::read(&packet, at).is_some(), inside(14));
        prop_assert_eq!(Udp::read(&packet, at).is_some(), inside(8));
        prop_assert_eq!(Ipv4::read(&packet, at).is_some(), inside(20) && bytes[at] >> 4 == 4 && bytes[at] & 15 >= 5);
        prop_assert_eq!(Ipv6::read(&packet, at).is_some(), inside(40) && bytes[at] >> 4 == 6);
        prop_assert_eq!(Tcp::read(&packet, at).is_some(), inside(20) && bytes[at + 12] >> 4 >= 5);
    }
}

#[test]
fn fields_have_the_values_that_others_wrote() {
    let mut frame = Vec::new();
    let tags = PacketBuilder::ethernet2([2; 6], [4; 6]).single_vlan(VlanId::try_new(0xabc).unwrap());
    let mut ip = etherparse::Ipv4Header::new(0, 9, etherparse::IpNumber::TCP, [192, 0, 2, 1], [192, 0, 2, 2]).unwrap();
    ip.options = [1, 1, 1, 0].into();
    let tcp = tags.ip(IpHeaders::Ipv4(ip, Default::default())).tcp(1, 2, 0x0102_0304, 500).syn().ack(77);
    tcp.options_raw(&[1, 1, 1, 0]).unwrap().write(&mut frame, b"data").unwrap();
    let packet = packet(&frame);
    let ethernet = Ethernet::read(&packet, 0).unwrap();
    assert_eq!((ethernet.source(), ethernet.destination()), (MacAddress([2; 6]), MacAddress([4; 6])));
    assert_eq!(ethernet.ether_type(), EtherType::VLAN);
    let mut vlan = Vlan::read(&packet, 14).unwrap();
    assert_eq!((vlan.id(), vlan.priority(), vlan.ether_type()), (0xabc, 0, EtherType::IPV4));
    vlan.set_id(0x1005);
    assert_eq!(vlan, Vlan::new(5, 0, EtherType::IPV4));
    assert_eq!(Vlan::new(5, 7, EtherType::ARP).bytes(), [0xe0, 5, 8, 6]);
    let mut ip = Ipv4::read(&packet, 18).unwrap();
    assert_eq!((ip.header_len(), ip.total_len(), ip.ttl(), ip.protocol()), (24, 24 + 24 + 4, 9, IpProtocol::TCP));
    assert!(!ip.is_fragment());
    let before = ip;
    ip.set_ttl(8);
    ip.set_traffic_class(0xb8);
    assert_eq!((ip.ttl(), ip.protocol(), ip.traffic_class(), ip.header_len()), (8, IpProtocol::TCP, 0xb8, 24));
    assert_ne!(ip.checksum(), before.checksum());
    ip.set_ttl(9);
    ip.set_traffic_class(0);
    assert!(ip == before, "the checksum too");
    let tcp = Tcp::read(&packet, 42).unwrap();
    assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.header_len()), (1, 2, 24));
    assert_eq!((tcp.sequence(), tcp.acknowledgement(), tcp.window()), (0x0102_0304, 77, 500));
    assert!(tcp.flags().contains(TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0)) && !tcp.flags().contains(TcpFlags::FIN));
}

#[test]
fn questions_of_arp_are_answered() {
    let (asker, asked) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let request = Arp::request(MacAddress([2; 6]), asker, asked);
    let theirs = ArpEthIpv4Packet {
        operation: ArpOperation::REQUEST,
        sender_mac: [2; 6],
        sender_ipv4: asker.octets(),
        target_mac: [0; 6],
        target_ipv4: asked.octets(),
    };
    assert_eq!(request.bytes(), theirs.to_bytes());
    let reply = request.reply(MacAddress([4; 6]));
    assert_eq!((reply.operation(), reply.sender(), reply.sender_ip()), (Arp::REPLY, MacAddress([4; 6]), asked));
    assert_eq!((reply.target(), reply.target_ip()), (MacAddress([2; 6]), asker));
    let mut other = request.bytes();
    other[2] = 9;
    assert!(Arp::from_bytes(other).is_none(), "not about IPv4");
}

#[test]
fn echo_requests_become_replies() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64);
    builder.icmpv4_echo_request(5, 6).write(&mut frame, b"payload").unwrap();
    let mut packet = packet(&frame);
    let mut icmp = Icmp::read(&packet, 34).unwrap();
    assert_eq!((icmp.kind(), icmp.code(), icmp.identifier(), icmp.sequence()), (Icmp::ECHO_REQUEST, 0, 5, 6));
    icmp.set_kind(Icmp::ECHO_REPLY);
    icmp.set_identifier(7);
    icmp.write(&mut packet, 34);
    let frame = packet.to_vec();
    let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
    let Some(TransportSlice::Icmpv4(reply)) = sliced.transport else { panic!("{sliced:?}") };
    let Icmpv4Type::EchoReply(echo) = reply.icmp_type() else { panic!("{reply:?}") };
    assert_eq!((echo.id, echo.seq), (7, 6));
    assert_eq!(reply.header().checksum, reply.icmp_type().calc_checksum(reply.payload()));
}
