//! The outer headers of a tunnelled frame: Ethernet, IPv4 or IPv6, UDP (RFC 768), VXLAN (RFC 7348, 5).

mod ipv4;
mod ipv6;

use std::net::IpAddr;
use std::ops::Range;

use ringpass_memory::{Flags, Packet, RawBytes};
use ringpass_port::{Sum, parse_headers};

use super::{Config, OVERHEAD, OVERHEAD_V6};

const ETHERNET: usize = 14;
const UDP: usize = 8;
const VXLAN: usize = 8;
const _: () =
    assert!(OVERHEAD == ETHERNET + ipv4::LEN + UDP + VXLAN && OVERHEAD_V6 == OVERHEAD - ipv4::LEN + ipv6::LEN);
/// Flag: the VNI is valid.
const FLAG_I: u8 = 0x08;

/// Why a frame was not decapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecapError {
    /// It is not addressed to this end, or not VXLAN.
    Foreign,
    /// It is invalid.
    Malformed,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// Fields of a frame's outer headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outer {
    pub(super) source: IpAddr,
    pub(super) vni: u32,
    /// Place of the inner frame.
    pub(super) inner: Range<usize>,
}

/// Fields of a frame's IP header.
struct Ip {
    source: IpAddr,
    /// Place of both addresses.
    addresses: Range<usize>,
    /// Where the UDP header begins.
    udp: usize,
    /// Where the IP packet ends.
    end: usize,
}

/// Removes the outer headers in place, and all metadata, which describes the outer headers.
pub(super) fn strip(packet: &mut Packet, inner: Range<usize>) -> Result<(), DecapError> {
    if packet.is_chained() {
        // Frames of several buffers are never padded, so the length must match exactly.
        if packet.total_len() != inner.end || packet.len() < inner.start + ETHERNET {
            return Err(DecapError::Malformed);
        }
    } else {
        packet.set_len(inner.end);
    }
    if !packet.trim_front(inner.start) {
        return Err(DecapError::Malformed);
    }
    packet.clear_flags(packet.flags());
    Ok(())
}

/// Validates the outer headers of a frame for this end.
pub(super) fn parse(packet: &Packet, config: &Config) -> Result<Outer, DecapError> {
    use DecapError::{Foreign, Malformed};
    if packet.flags().any(Flags::VLAN) {
        return Err(Foreign);
    }
    // Copies of the headers: what was checked must not change before it is used.
    let Ip { source, addresses, udp: start, end } = match config.local {
        IpAddr::V4(local) => ipv4::parse(packet, local)?,
        IpAddr::V6(local) => ipv6::parse(packet, local)?,
    };
    let udp = &packet.array::<{ UDP + VXLAN }>(start).ok_or(Malformed)?;
    if u16_at(udp, 2) != usize::from(config.port) {
        return Err(Foreign);
    }
    let len = u16_at(udp, 4);
    let whole = start + len <= end && end <= packet.total_len() && len >= UDP + VXLAN + ETHERNET;
    if !whole || config.local.is_ipv4() && !ipv4::checksum_is_right(packet, start) {
        return Err(Malformed);
    }
    // 0 means no checksum, in IPv6 too (RFC 6935, 5).
    if u16_at(udp, 6) != 0 && !l4_checksum_ok(packet, addresses, start..start + len) {
        return Err(Malformed);
    }
    let vxlan = &udp[UDP..];
    if vxlan[0] & FLAG_I == 0 {
        return Err(Malformed);
    }
    let vni = u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]]);
    Ok(Outer { source, vni, inner: start + UDP + VXLAN..start + len })
}

/// Verifies the UDP checksum over the addresses and the datagram at these ranges of the frame.
fn l4_checksum_ok(packet: &Packet, addresses: Range<usize>, datagram: Range<usize>) -> bool {
    let flags = packet.flags();
    // A checksum that is still to be filled in means that the frame comes from this machine.
    if flags.any(Flags::L4_GOOD | Flags::L4_BAD | Flags::CHECKSUM) {
        return !flags.any(Flags::L4_BAD);
    }
    sum(packet, addresses, datagram).folded() == [0xff; 2]
}

/// Sums up a UDP datagram with its pseudo header (RFC 768; RFC 8200, 8.1), both at these ranges of the frame.
fn sum(packet: &Packet, addresses: Range<usize>, datagram: Range<usize>) -> Sum {
    let mut sum = Sum::default();
    sum.add(packet.bytes().range(addresses));
    sum.add(&[0, 17]);
    sum.add(&(datagram.len() as u16).to_be_bytes());
    let mut at = 0;
    for segment in packet.segments() {
        let [from, to] = [datagram.start, datagram.end].map(|edge| edge.clamp(at, at + segment.len()) - at);
        sum.add(segment.bytes().range(from..to));
        at += segment.len();
    }
    sum
}

/// Hardware addresses and IP addresses of two ends, of one family: the one that sends, then the one that receives.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) hardware: [[u8; 6]; 2],
    pub(super) ip: [IpAddr; 2],
}

/// Puts the outer headers of a network in front of a frame. Returns `false` without changing anything if the frame has too
/// little headroom or is too long.
#[must_use]
pub(super) fn encapsulate(packet: &mut Packet, vni: u32, port: u16, path: Path) -> bool {
    let Ok(datagram) = u16::try_from(packet.total_len() + UDP + VXLAN) else { return false };
    let source = source_port(&*packet);
    let mut outer = [0; OVERHEAD_V6];
    let (ethertype, start) = match path.ip {
        [IpAddr::V4(from), IpAddr::V4(to)] => {
            if datagram.checked_add(ipv4::LEN as u16).is_none() {
                return false;
            }
            ipv4::write(&mut outer[ETHERNET..ETHERNET + ipv4::LEN], [from, to], datagram);
            (ipv4::ETHERTYPE, ETHERNET + ipv4::LEN)
        }
        [IpAddr::V6(from), IpAddr::V6(to)] => {
            ipv6::write(&mut outer[ETHERNET..ETHERNET + ipv6::LEN], [from, to], datagram, source);
            (ipv6::ETHERTYPE, ETHERNET + ipv6::LEN)
        }
        _ => return false,
    };
    write_ethernet(&mut outer, ethertype, path.hardware);
    // Checksum 0, as RFC 7348, 5 recommends.
    write_udp(&mut outer[start..], [source, port], datagram, vni);
    let outer = &outer[..start + UDP + VXLAN];
    if !packet.prepend(outer.len()) {
        return false;
    }
    packet.write(0, outer);
    if path.ip[0].is_ipv6() {
        // Linux drops IPv6 datagrams without a checksum unless it is told otherwise.
        let sum = sum(packet, ETHERNET + 8..start, start..start + usize::from(datagram));
        packet.write(start + 6, &sum.l4_checksum());
    }
    packet.clear_flags(packet.flags());
    true
}

/// Writes the Ethernet header.
fn write_ethernet(outer: &mut [u8], ethertype: [u8; 2], [from, to]: [[u8; 6]; 2]) {
    outer[..6].copy_from_slice(&to);
    outer[6..12].copy_from_slice(&from);
    outer[12..ETHERNET].copy_from_slice(&ethertype);
}

/// Writes the UDP header, without a checksum, and the VXLAN header.
fn write_udp(udp: &mut [u8], [from, to]: [u16; 2], datagram: u16, vni: u32) {
    udp[..2].copy_from_slice(&from.to_be_bytes());
    udp[2..4].copy_from_slice(&to.to_be_bytes());
    udp[4..6].copy_from_slice(&datagram.to_be_bytes());
    udp[8..16].copy_from_slice(&(u64::from(FLAG_I) << 56 | u64::from(vni) << 8).to_be_bytes());
}

/// Returns a source port that depends on the flow, so that the network can spread flows over paths (RFC 7348,
/// 5). It is a hash of the addresses, and of the ports if there are any.
fn source_port<'a>(frame: impl Into<RawBytes<'a>>) -> u16 {
    let frame = frame.into();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        bytes.iter().for_each(|&byte| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    };
    add(&frame.array::<ETHERNET>(0).unwrap_or_default());
    // The headers may have changed since they were parsed. The only consequence is another source port.
    if let Some(headers) = parse_headers(frame) {
        let l3 = usize::from(headers.l2);
        match frame.array(l3) {
            Some([first]) if first >> 4 == 4 => add(&frame.array::<8>(l3 + 12).unwrap_or_default()),
            _ => add(&frame.array::<32>(l3 + 8).unwrap_or_default()),
        }
        add(&frame.array::<4>(headers.l4_start()).unwrap_or_default());
    }
    // A port of the dynamic range, 49152 to 65535.
    0xc000 | (hash >> 48) as u16 & 0x3fff
}

#[cfg(test)]
mod tests;
