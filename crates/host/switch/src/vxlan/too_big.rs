//! Tells the sender of a packet that does not fit into a tunnel which size does: path MTU discovery (RFC 1191; RFC 8201).

use ringpass_memory::RawBytes;
use ringpass_port::{Sum, ethertype};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const ICMP_LEN: usize = 8;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOPS: u8 = 64;
/// Longest answers, without link headers (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
const V4_LONGEST: usize = 576;
const V6_LONGEST: usize = 1280;
/// Every IPv6 network has at least this MTU, so its hosts believe in no smaller one (RFC 8201, 4).
const V6_SMALLEST_MTU: usize = 1280;

/// Returns the frame in which the destination of a frame that is longer than `longest` bytes seems to tell its sender the largest size of packets; of a
/// frame in several buffers, the first is enough. `None` if nobody is to be told: it is not IP, or a packet that may be cut on its way but is not cut
/// here, one to or from a group, or one that may be an error itself (RFC 1122, 3.2.2; RFC 4443, 2.4).
pub(super) fn answer<'a>(frame: impl Into<RawBytes<'a>>, longest: usize) -> Option<Vec<u8>> {
    let frame = frame.into();
    let (kind, l2) = ethertype(frame)?;
    let addresses: [u8; 12] = frame.array(0)?;
    if (addresses[0] | addresses[6]) & 1 != 0 {
        return None;
    }
    let mtu = longest.checked_sub(l2)?;
    let packet = frame.range(l2..frame.len());
    let answer = match kind {
        IPV4 => v4(packet, u16::try_from(mtu).ok()?)?,
        IPV6 if mtu >= V6_SMALLEST_MTU => v6(packet, mtu as u32)?,
        _ => return None,
    };
    let link = [&addresses[6..], &addresses[..6], &frame.range(12..l2).to_vec()].concat();
    Some([link, answer].concat())
}

/// Returns "fragmentation needed" (RFC 792; RFC 1191, 4).
fn v4(packet: RawBytes, mtu: u16) -> Option<Vec<u8>> {
    let head: [u8; V4_LEN] = packet.array(0)?;
    let [from, to]: [[u8; 4]; 2] = [12, 16].map(|at: usize| *head[at..].first_chunk().expect("inside the header"));
    let is_host = |address: [u8; 4]| (1..224).contains(&address[0]);
    // It must not be cut, and is the first or only piece.
    let must_not_be_cut = head[6] & 0x40 != 0 && head[6] & 0x1f | head[7] == 0;
    let len = usize::from(head[0] & 15) * 4;
    if head[0] >> 4 != 4 || len < V4_LEN {
        return None;
    }
    let may_be_error = head[9] == ICMP && !is_v4_query(packet.array(len)?);
    if !must_not_be_cut || !is_host(from) || !is_host(to) || may_be_error {
        return None;
    }
    let quoted = packet.range(0..packet.len().min(V4_LONGEST - V4_LEN - ICMP_LEN));
    let total = (V4_LEN + ICMP_LEN + quoted.len()) as u16;
    let mut ip = [0; V4_LEN];
    ip[..2].copy_from_slice(&[0x45, 0]);
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[8..10].copy_from_slice(&[HOPS, ICMP]);
    ip[12..16].copy_from_slice(&to);
    ip[16..].copy_from_slice(&from);
    let mut sum = Sum::default();
    sum.add(&ip);
    ip[10..12].copy_from_slice(&sum.checksum());
    let [high, low] = mtu.to_be_bytes();
    Some([&ip[..], &icmp([3, 4], [0, 0, high, low], Sum::default(), quoted)].concat())
}

/// Returns whether an ICMP type is a question or its answer (RFC 792), so no error.
fn is_v4_query([kind]: [u8; 1]) -> bool {
    matches!(kind, 0 | 8 | 13..=18)
}

/// Returns "packet too big" (RFC 4443, 3.2).
fn v6(packet: RawBytes, mtu: u32) -> Option<Vec<u8>> {
    const GROUP: u8 = 0xff;
    let head: [u8; V6_LEN] = packet.array(0)?;
    let [from, to]: [[u8; 16]; 2] = [8, 24].map(|at: usize| *head[at..].first_chunk().expect("inside the header"));
    // Errors have types below 128. They have no extension headers, mostly; those of others are not looked through, but not answered either.
    let may_be_error = match head[6] {
        ICMPV6 => packet.array(V6_LEN)? < [128],
        0 | 43 | 44 | 60 => true,
        _ => false,
    };
    if head[0] >> 4 != 6 || from[0] == GROUP || to[0] == GROUP || from == [0; 16] || may_be_error {
        return None;
    }
    let quoted = packet.range(0..packet.len().min(V6_LONGEST - V6_LEN - ICMP_LEN));
    let len = (ICMP_LEN + quoted.len()) as u16;
    let mut ip = [0; V6_LEN];
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&len.to_be_bytes());
    ip[6..8].copy_from_slice(&[ICMPV6, HOPS]);
    ip[8..24].copy_from_slice(&to);
    ip[24..].copy_from_slice(&from);
    let mut pseudo = Sum::default();
    pseudo.add(&ip[8..]);
    pseudo.add(&u32::from(len).to_be_bytes());
    pseudo.add(&[0, 0, 0, ICMPV6]);
    Some([&ip[..], &icmp([2, 0], mtu.to_be_bytes(), pseudo, quoted)].concat())
}

/// Returns a message with this type and code, four bytes and the packet that it is about. `sum` begins its checksum.
fn icmp([kind, code]: [u8; 2], rest: [u8; 4], mut sum: Sum, quoted: RawBytes) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0], &rest[..], &quoted.to_vec()].concat();
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.checksum());
    message
}

#[cfg(test)]
mod tests {
    use etherparse::icmpv4::DestUnreachableHeader;
    use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

    use super::*;

    /// Longest frames, of packets of 1400 bytes.
    const LONGEST: usize = 1414;

    fn v4_frame(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(5, 6);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[7; 1450]).unwrap();
        frame[20] |= 0x40;
        change(&mut frame);
        frame
    }

    fn v6_frame(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let [from, to] =
            [1, 2].map(|last| std::array::from_fn(|at| [0xfd, 0, last][usize::from(at > 0) + usize::from(at == 15)]));
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6(from, to, 9).udp(5, 6);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[7; 1450]).unwrap();
        change(&mut frame);
        frame
    }

    #[test]
    fn others_read_what_the_sender_is_told() {
        let frame = v4_frame(|_| ());
        let answer = answer(&frame[..], LONGEST).expect("an answer");
        let parsed = SlicedPacket::from_ethernet(&answer).unwrap();
        let Some(NetSlice::Ipv4(ip)) = parsed.net else { panic!("{parsed:?}") };
        let header = ip.header();
        assert_eq!((header.source(), header.destination(), header.ttl()), ([10, 0, 0, 2], [10, 0, 0, 1], HOPS));
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        let Some(TransportSlice::Icmpv4(icmp)) = parsed.transport else { panic!("no ICMP") };
        let told = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 };
        assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(told));
        assert!(icmp.header().icmp_type.calc_checksum(icmp.payload()) == icmp.checksum());
        assert_eq!((icmp.payload(), answer.len()), (&frame[14..14 + 548], 14 + 576));
        assert_eq!((&answer[..6], &answer[6..12]), (&[2; 6][..], &[4; 6][..]));
    }

    #[test]
    fn others_read_what_the_sender_is_told_over_ipv6() {
        let mut frame = v6_frame(|_| ());
        // The tag stays.
        frame.splice(12..12, [0x81, 0, 0, 7]);
        let answer = answer(&frame[..], LONGEST + 4).expect("an answer");
        let parsed = SlicedPacket::from_ethernet(&answer).unwrap();
        let Some(NetSlice::Ipv6(ip)) = &parsed.net else { panic!("{parsed:?}") };
        let header = ip.header();
        assert_eq!((header.source()[15], header.destination()[15], header.hop_limit()), (2, 1, HOPS));
        let Some(TransportSlice::Icmpv6(icmp)) = &parsed.transport else { panic!("no ICMP") };
        assert_eq!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1400 });
        assert!(icmp.is_checksum_valid(header.source(), header.destination()));
        assert_eq!(answer.len(), 18 + V6_LONGEST);
        assert_eq!(parsed.vlan_ids()[..], [7.try_into().unwrap()]);
    }

    #[test]
    fn nobody_is_told_where_that_is_forbidden_or_of_no_use() {
        type Change = fn(&mut [u8]);
        let v4: [Change; 11] = [
            |frame| frame[0] = 3,
            |frame| frame[6] = 5,
            |frame| frame[20] = 0,
            |frame| frame[21] = 1,
            |frame| frame[14] = 0x65,
            |frame| frame[14] = 0x44,
            |frame| frame[26] = 0,
            |frame| frame[26] = 224,
            |frame| frame[30] = 255,
            // An error; 7 is not even assigned.
            |frame| (frame[23], frame[34]) = (ICMP, 3),
            |frame| (frame[23], frame[34]) = (ICMP, 7),
        ];
        for (number, change) in v4.into_iter().enumerate() {
            assert_eq!(answer(&v4_frame(change)[..], LONGEST), None, "{number}");
        }
        assert!(answer(&v4_frame(|frame| (frame[23], frame[34]) = (ICMP, 8))[..], LONGEST).is_some());
        let v6: [Change; 6] = [
            |frame| frame[14] = 0x40,
            |frame| frame[22] = 0xff,
            |frame| frame[22..38].fill(0),
            |frame| frame[38] = 0xff,
            |frame| (frame[20], frame[54]) = (ICMPV6, 2),
            |frame| frame[20] = 44,
        ];
        for (number, change) in v6.into_iter().enumerate() {
            assert_eq!(answer(&v6_frame(change)[..], LONGEST), None, "{number}");
        }
        assert!(answer(&v6_frame(|frame| (frame[20], frame[54]) = (ICMPV6, 128))[..], LONGEST).is_some());
        assert_eq!(answer(&v6_frame(|_| ())[..], 1280), None, "less than IPv6 needs");
        let (v4, v6) = (v4_frame(|_| ()), v6_frame(|_| ()));
        (0..34).for_each(|len| assert_eq!(answer(&v4[..len], LONGEST), None, "{len}"));
        (0..54).for_each(|len| assert_eq!(answer(&v6[..len], LONGEST), None, "{len}"));
        assert_eq!(answer(&[0; 2000][..], LONGEST), None);
    }
}
