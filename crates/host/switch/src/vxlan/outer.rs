//! The outer headers of a tunnelled frame: Ethernet, IPv4 (RFC 791), UDP (RFC 768), VXLAN (RFC 7348, 5).

use std::net::Ipv4Addr;
use std::ops::Range;

use ringpass_memory::{Flags, Packet, RawBytes};
use ringpass_port::{Sum, parse_headers};

use super::{Config, OVERHEAD};

const ETHERNET: usize = 14;
const UDP: usize = 8;
const VXLAN: usize = 8;
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

/// What the outer headers of a frame say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outer {
    pub(super) source: Ipv4Addr,
    pub(super) vni: u32,
    /// Place of the inner frame.
    pub(super) inner: Range<usize>,
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
    let flags = packet.flags();
    // Copies of the headers: what was checked must not change before it is used.
    let ip = packet.array::<20>(ETHERNET).filter(|_| packet.array(12) == Some([8, 0])).ok_or(Foreign)?;
    if flags.any(Flags::VLAN) || ip[0] >> 4 != 4 || ip[9] != 17 {
        return Err(Foreign);
    }
    if ip[16..20] != config.local.octets() {
        return Err(Foreign);
    }
    let (header, total) = (usize::from(ip[0] & 15) * 4, u16_at(&ip, 2));
    // Fragmented (more fragments, or an offset): RFC 7348, 4.3 forbids fragmentation, and later fragments have
    // no ports.
    if header < 20 || u16_at(&ip, 6) & 0x3fff != 0 {
        return Err(Malformed);
    }
    let udp = &packet.array::<{ UDP + VXLAN }>(ETHERNET + header).ok_or(Malformed)?;
    if u16_at(udp, 2) != usize::from(config.port) {
        return Err(Foreign);
    }
    let (start, len) = (ETHERNET + header, u16_at(udp, 4));
    let whole = header + len <= total && ETHERNET + total <= packet.total_len();
    if !whole
        || len < UDP + VXLAN + ETHERNET
        || !l3_checksum_ok(&ip, packet.bytes().range(ETHERNET + ip.len()..ETHERNET + header), flags)
    {
        return Err(Malformed);
    }
    // 0 means no checksum.
    if u16_at(udp, 6) != 0 && !l4_checksum_ok(packet, start..start + len, flags) {
        return Err(Malformed);
    }
    let vxlan = &udp[UDP..];
    if vxlan[0] & FLAG_I == 0 {
        return Err(Malformed);
    }
    let vni = u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]]);
    let source = [ip[12], ip[13], ip[14], ip[15]].into();
    Ok(Outer { source, vni, inner: start + UDP + VXLAN..start + len })
}

fn l3_checksum_ok(header: &[u8; 20], options: RawBytes, flags: Flags) -> bool {
    if flags.any(Flags::L3_GOOD | Flags::L3_BAD) {
        return !flags.any(Flags::L3_BAD);
    }
    let mut sum = Sum::default();
    sum.add(header);
    sum.add(options);
    sum.folded() == [0xff; 2]
}

/// Verifies the UDP checksum over the addresses and the datagram at this range of the frame.
fn l4_checksum_ok(packet: &Packet, datagram: Range<usize>, flags: Flags) -> bool {
    // A checksum that is still to be filled in means that the frame comes from this machine.
    if flags.any(Flags::L4_GOOD | Flags::L4_BAD | Flags::CHECKSUM) {
        return !flags.any(Flags::L4_BAD);
    }
    let mut sum = Sum::default();
    sum.add(packet.bytes().range(ETHERNET + 12..ETHERNET + 20));
    sum.add(&[0, 17]);
    sum.add(&(datagram.len() as u16).to_be_bytes());
    let mut at = 0;
    for segment in packet.segments() {
        let [from, to] = [datagram.start, datagram.end].map(|edge| edge.clamp(at, at + segment.len()) - at);
        sum.add(segment.bytes().range(from..to));
        at += segment.len();
    }
    sum.folded() == [0xff; 2]
}

/// Hardware and IPv4 address of an end.
pub(super) type Address = ([u8; 6], Ipv4Addr);

/// Puts the outer headers of a network in front of a frame. Returns `false` without changing anything if the frame has too
/// little headroom or is too long.
#[must_use]
pub(super) fn encapsulate(packet: &mut Packet, vni: u32, port: u16, from: Address, to: Address) -> bool {
    let inner = packet.total_len();
    let Ok(total) = u16::try_from(inner + OVERHEAD - ETHERNET) else { return false };
    let source = source_port(&*packet);
    if !packet.prepend(OVERHEAD) {
        return false;
    }
    let mut outer = [0; OVERHEAD];
    outer[..6].copy_from_slice(&to.0);
    outer[6..12].copy_from_slice(&from.0);
    outer[12..ETHERNET].copy_from_slice(&[8, 0]);
    let (ip, udp) = outer[ETHERNET..].split_at_mut(20);
    // No options, not fragmented, don't fragment (RFC 7348, 4.3), TTL 64.
    ip.copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let address = |place: &mut [u8], address: Ipv4Addr| place.copy_from_slice(&address.octets());
    address(&mut ip[12..16], from.1);
    address(&mut ip[16..20], to.1);
    let mut sum = Sum::default();
    sum.add(&*ip);
    ip[10..12].copy_from_slice(&sum.folded().map(|byte| !byte));
    udp[..2].copy_from_slice(&source.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    udp[4..6].copy_from_slice(&(total - 20).to_be_bytes());
    // Checksum 0, as RFC 7348, 5 recommends.
    udp[6..8].copy_from_slice(&[0, 0]);
    udp[8..16].copy_from_slice(&(u64::from(FLAG_I) << 56 | u64::from(vni) << 8).to_be_bytes());
    packet.write(0, &outer);
    packet.clear_flags(packet.flags());
    true
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
