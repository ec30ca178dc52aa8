//! Locating the headers of a frame.

use ringpass_memory::{Headers, L4, RawBytes};

/// Largest number of IPv6 extension headers that are skipped.
const MAX_EXTENSION_HEADERS: usize = 8;

fn u16_at(frame: RawBytes, at: usize) -> Option<u16> {
    frame.array(at).map(u16::from_be_bytes)
}

/// Returns the Ethertype behind up to two VLAN tags, and the offset of the header that follows it.
pub fn ethertype<'a>(frame: impl Into<RawBytes<'a>>) -> Option<(u16, usize)> {
    let frame = frame.into();
    let mut at = 12;
    while at < 20
        && let Some(0x8100 | 0x88a8) = u16_at(frame, at)
    {
        at += 4;
    }
    Some((u16_at(frame, at)?, at + 2))
}

/// Locates the headers of TCP or UDP over IPv4 or IPv6, behind up to two VLAN tags. Returns `None` for all other
/// frames, for fragments, and if the headers are not all in `frame`, which may be the first part of a frame.
pub fn parse_headers<'a>(frame: impl Into<RawBytes<'a>>) -> Option<Headers> {
    parse(frame.into())
}

fn parse(frame: RawBytes) -> Option<Headers> {
    let behind = |at| (at <= frame.len()).then(|| frame.range(at..frame.len()));
    let (ethertype, l2) = ethertype(frame)?;
    let (protocol, l3) = match ethertype {
        0x0800 => ipv4(behind(l2)?)?,
        0x86dd => ipv6(behind(l2)?)?,
        _ => return None,
    };
    let l4 = behind(l2 + l3)?;
    let (protocol, len) = match protocol {
        6 => (L4::Tcp, usize::from(l4.array::<1>(12)?[0] >> 4) * 4),
        17 => (L4::Udp, 8),
        _ => return None,
    };
    let shortest = if protocol == L4::Tcp { 20 } else { 8 };
    let whole = len >= shortest && l4.len() >= len;
    whole.then_some(Headers { l2: l2 as u8, l3: u16::try_from(l3).ok()?, l4: len as u8, protocol })
}

/// Returns the protocol and the length of the header.
fn ipv4(packet: RawBytes) -> Option<(u8, usize)> {
    let [first, .., high, low, _, protocol] = packet.array::<10>(0)?;
    let len = usize::from(first & 15) * 4;
    // More fragments follow, or the offset is not 0.
    let fragment = u16::from_be_bytes([high, low]) & 0x3fff != 0;
    (first >> 4 == 4 && len >= 20 && !fragment).then_some((protocol, len))
}

/// Returns the next header behind the extension headers, and its offset.
fn ipv6(packet: RawBytes) -> Option<(u8, usize)> {
    let [first, .., next] = packet.array::<7>(0)?;
    if first >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (next, 40);
    for _ in 0..MAX_EXTENSION_HEADERS {
        // Hop-by-hop options, routing and destination options (RFC 8200, 4). The length counts units of 8
        // bytes, without the first.
        if !matches!(next, 0 | 43 | 60) {
            break;
        }
        let [following, len] = packet.array(at)?;
        (next, at) = (following, at + 8 * (usize::from(len) + 1));
    }
    Some((next, at))
}

#[cfg(test)]
mod tests {
    use etherparse::{IpNumber, PacketBuilder, VlanId};

    use super::*;

    fn built(builder: etherparse::PacketBuilderStep<etherparse::TcpHeader>) -> Vec<u8> {
        let mut frame = Vec::new();
        builder.write(&mut frame, &[1, 2, 3]).unwrap();
        frame
    }

    fn tcp_options() -> [etherparse::TcpOptionElement; 1] {
        [etherparse::TcpOptionElement::Timestamp(1, 2)]
    }

    #[test]
    fn tcp_and_udp_with_tags_and_options() {
        let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]);
        let headers = |l2, l3, l4, protocol| Some(Headers { l2, l3, l4, protocol });
        let v4 = built(ethernet().ipv4([10; 4], [11; 4], 9).tcp(1, 2, 3, 4).options(&tcp_options()).unwrap());
        assert_eq!(parse_headers(&v4), headers(14, 20, 32, L4::Tcp));
        let tagged = ethernet().single_vlan(VlanId::try_new(7).unwrap()).ipv6([1; 16], [2; 16], 9).tcp(1, 2, 3, 4);
        assert_eq!(parse_headers(&built(tagged)), headers(18, 40, 20, L4::Tcp));
        let mut udp = Vec::new();
        let (outer, inner) = (VlanId::try_new(7).unwrap(), VlanId::try_new(8).unwrap());
        ethernet().double_vlan(outer, inner).ipv4([1; 4], [2; 4], 9).udp(1, 2).write(&mut udp, &[]).unwrap();
        assert_eq!(parse_headers(&udp), headers(22, 20, 8, L4::Udp));
        for len in 0..udp.len() {
            assert_eq!(parse_headers(&udp[..len]), None, "cut off at {len}");
        }
    }

    #[test]
    fn extension_headers_are_walked_over_a_limited_number_of_times() {
        let mut frame = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 28, 0, 64], &[0; 32]].concat();
        frame.extend([43, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend([17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 8]);
        assert_eq!(parse_headers(&frame), Some(Headers { l2: 14, l3: 64, l4: 8, protocol: L4::Udp }));
        frame[14 + 40] = IpNumber::IPV6_FRAGMENTATION_HEADER.0;
        assert_eq!(parse_headers(&frame), None);
        let mut endless = frame[..54].to_vec();
        endless.extend([0, 0, 0, 0, 0, 0, 0, 0].repeat(100));
        assert_eq!(parse_headers(&endless), None);
    }

    #[test]
    fn what_is_neither_is_nothing() {
        let mut fragment = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10; 4], [11; 4], 9).udp(1, 2);
        builder.write(&mut fragment, &[0; 100]).unwrap();
        fragment[20] |= 0x20;
        assert_eq!(parse_headers(&fragment), None);
        fragment[20] = 0;
        assert!(parse_headers(&fragment).is_some());
        for (at, wrong) in [(14, 0x65), (14, 0x44), (23, 1), (12, 9)] {
            let mut frame = fragment.clone();
            frame[at] = wrong;
            assert_eq!(parse_headers(&frame), None, "{at}");
        }
    }
}
