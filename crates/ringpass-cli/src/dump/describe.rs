//! One-line descriptions of frames.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::{Icmpv4Type, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use ringpass::MacAddress;

/// Describes a frame's addresses and protocols, and the most useful fields of the innermost header.
pub fn describe(frame: &[u8]) -> String {
    let Some((&[a, b, c, d, e, f, g, h, i, j, k, l, high, low], _)) = frame.split_first_chunk() else {
        return "too short for Ethernet".into();
    };
    let (to, from) = (MacAddress([a, b, c, d, e, f]), MacAddress([g, h, i, j, k, l]));
    let mut text = format!("{from} > {to}  ");
    match SlicedPacket::from_ethernet(frame) {
        Ok(packet) => describe_inner(&mut text, &packet, u16::from_be_bytes([high, low])),
        Err(error) => text += &format!("damaged: {error}"),
    }
    text
}

fn describe_inner(text: &mut String, packet: &SlicedPacket<'_>, ethertype: u16) {
    for extension in &packet.link_exts {
        if let LinkExtSlice::Vlan(vlan) = extension {
            *text += &format!("VLAN {} ", vlan.vlan_identifier().value());
        }
    }
    let addresses = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()), ip.payload_ip_number())
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            (IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()), ip.payload().ip_number)
        }
        Some(NetSlice::Arp(arp)) => {
            let address = |bytes: &[u8]| {
                <[u8; 4]>::try_from(bytes).map_or_else(|_| format!("{bytes:02x?}"), |ip| Ipv4Addr::from(ip).to_string())
            };
            let (sender, target) = (address(arp.sender_protocol_addr()), address(arp.target_protocol_addr()));
            *text += &match arp.operation().0 {
                1 => format!("ARP who has {target}? asks {sender}"),
                2 => format!("ARP {sender} is here"),
                n => format!("ARP operation {n}"),
            };
            return;
        }
        None => {
            *text += &format!("EtherType {ethertype:04x}");
            return;
        }
    };
    let (from, to, protocol) = addresses;
    let socket = |ip: IpAddr, port: u16| std::net::SocketAddr::new(ip, port);
    *text += &match &packet.transport {
        Some(TransportSlice::Udp(udp)) => {
            let (from, to) = (socket(from, udp.source_port()), socket(to, udp.destination_port()));
            format!("{from} > {to}  UDP, {} bytes", udp.payload().len())
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let (from, to) = (socket(from, tcp.source_port()), socket(to, tcp.destination_port()));
            let flags = [(tcp.syn(), "S"), (tcp.fin(), "F"), (tcp.rst(), "R"), (tcp.psh(), "P"), (tcp.ack(), ".")];
            let flags: String = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
            let (sequence, payload) = (tcp.sequence_number(), tcp.payload().len());
            format!("{from} > {to}  TCP [{flags}] seq {sequence}, {payload} bytes")
        }
        Some(TransportSlice::Icmpv4(icmp)) => match icmp.icmp_type() {
            Icmpv4Type::EchoRequest(echo) => {
                format!("{from} > {to}  ICMP echo request, id {} seq {}", echo.id, echo.seq)
            }
            Icmpv4Type::EchoReply(echo) => format!("{from} > {to}  ICMP echo reply, id {} seq {}", echo.id, echo.seq),
            _ => format!("{from} > {to}  ICMP type {} code {}", icmp.type_u8(), icmp.code_u8()),
        },
        Some(TransportSlice::Icmpv6(icmp)) => {
            format!("{from} > {to}  ICMPv6 type {} code {}", icmp.type_u8(), icmp.code_u8())
        }
        _ => format!("{from} > {to}  IP protocol {}", protocol.0),
    };
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    #[test]
    fn frames_are_described_in_a_line() {
        let builder = || PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        builder().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 2).write(&mut frame, &[0; 3]).unwrap();
        let macs = "02:02:02:02:02:02 > 04:04:04:04:04:04  ";
        assert_eq!(describe(&frame), format!("{macs}10.0.0.1:1 > 10.0.0.2:2  UDP, 3 bytes"));
        frame.clear();
        builder().ipv6([0; 16], [1; 16], 64).tcp(1, 2, 7, 9).syn().write(&mut frame, &[]).unwrap();
        let to = "[101:101:101:101:101:101:101:101]:2";
        assert_eq!(describe(&frame), format!("{macs}[::]:1 > {to}  TCP [S] seq 7, 0 bytes"));
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert_eq!(describe(&frame), format!("{macs}EtherType 88b5"));
        assert_eq!(describe(&frame[..13]), "too short for Ethernet");
    }

    #[test]
    fn any_bytes_are_described() {
        let mut random = 1u64;
        for len in 0..200 {
            let next = || {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 56) as u8
            };
            let mut bytes: Vec<u8> = std::iter::repeat_with(next).take(len).collect();
            if len > 14 {
                bytes[12..14].copy_from_slice(&[0x08, if len % 2 == 0 { 0 } else { 6 }]);
            }
            assert!(!describe(&bytes).contains('\n'));
        }
    }
}
