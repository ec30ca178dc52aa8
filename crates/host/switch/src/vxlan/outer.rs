//! The outer headers of a tunnelled frame: Ethernet, IPv4 or IPv6, UDP (RFC 768), VXLAN (RFC 7348, 5).

mod ipv4;
mod ipv6;

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use ringpass_memory::{Flags, Packet, RawBytes};
use ringpass_port::{Sum, parse_headers};

use super::{Config, OVERHEAD, OVERHEAD_V6};

pub(super) const ETHERNET: usize = 14;
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

/// The outer headers of frames to one other end, but for what is different in each frame.
pub(super) struct Template {
    kind: Kind,
    port: u16,
    /// Length of the longest frame that fits.
    longest: usize,
}

enum Kind {
    /// All of an IPv4 tunnel's headers, with lengths, source port and VNI of 0, in memory order; and the sum of the IPv4 header then.
    V4 {
        words: [u64; V4_WORDS],
        sum: u32,
    },
    V6 {
        hardware: [[u8; 6]; 2],
        ip: [Ipv6Addr; 2],
    },
    /// Ends of different families, which no tunnel has.
    None,
}

/// Returns the length of the longest frame for a tunnel between addresses of this family, over a network with this MTU, both in bytes.
pub(super) fn longest(local: IpAddr, mtu: usize) -> usize {
    let overhead = if local.is_ipv4() { OVERHEAD } else { OVERHEAD_V6 } - ETHERNET;
    // IP's lengths have 16 bits.
    mtu.min(usize::from(u16::MAX)).saturating_sub(overhead)
}

/// Words of the headers over IPv4, apart from the last two bytes.
const V4_WORDS: usize = OVERHEAD / 8;

/// Returns the bytes of a big-endian number at the end of a word of which `behind` bytes follow, as they lie in memory.
#[inline(always)]
fn placed(number: u64, behind: u32) -> u64 {
    (number << (8 * behind)).to_be()
}

impl Template {
    /// Creates the headers of frames of at most [`longest`] bytes.
    pub(super) fn new(path: Path, port: u16, longest: usize) -> Self {
        let kind = match path.ip {
            [IpAddr::V4(from), IpAddr::V4(to)] => {
                let mut outer = [0; OVERHEAD];
                let ip = ETHERNET..ETHERNET + ipv4::LEN;
                ipv4::write(&mut outer[ip.clone()], [from, to], 0);
                // The lengths of each frame are added to the sum.
                outer[ip.start + 2..ip.start + 4].fill(0);
                outer[ip.start + 10..ip.start + 12].fill(0);
                let mut sum = Sum::default();
                sum.add(&outer[ip.clone()]);
                let sum = u16::from_be_bytes(sum.folded()).into();
                write_ethernet(&mut outer, ipv4::ETHERTYPE, path.hardware);
                write_udp(&mut outer[ip.end..], [0, port], 0, 0);
                let word = |at: usize| u64::from_ne_bytes(*outer[8 * at..].first_chunk().expect("inside"));
                Kind::V4 { words: std::array::from_fn(word), sum }
            }
            [IpAddr::V6(from), IpAddr::V6(to)] => Kind::V6 { hardware: path.hardware, ip: [from, to] },
            _ => Kind::None,
        };
        Self { kind, port, longest }
    }

    /// Puts the headers in front of a frame of a network. Returns `false` without changing anything if the frame has too little headroom or is too
    /// long.
    #[inline]
    #[must_use]
    pub(super) fn encapsulate(&self, packet: &mut Packet, vni: u32) -> bool {
        let len = if packet.is_chained() { packet.total_len() } else { packet.len() };
        if len > self.longest {
            return false;
        }
        let datagram = (len + UDP + VXLAN) as u16;
        match &self.kind {
            Kind::V4 { words, sum } => {
                let total = datagram + ipv4::LEN as u16;
                let source = source_port(&*packet);
                // One's complement addition (RFC 1071): carries come back in at the other end.
                let sum = sum + u32::from(total);
                let sum = (sum & 0xffff) + (sum >> 16);
                let checksum = !(sum + (sum >> 16)) as u16;
                let mut words = *words;
                words[2] |= placed(total.into(), 6);
                words[3] |= placed(checksum.into(), 6);
                words[4] |= placed(u64::from(source) << 32 | u64::from(datagram), 0);
                // The VNI has the last two bytes of a word and one of the next.
                words[5] |= placed((vni >> 8).into(), 0);
                let mut outer = [0; OVERHEAD];
                for (place, word) in outer.chunks_exact_mut(8).zip(words) {
                    place.copy_from_slice(&word.to_ne_bytes());
                }
                outer[OVERHEAD - 2] = vni as u8;
                if !packet.prepend_array(outer) {
                    return false;
                }
            }
            &Kind::V6 { hardware, ip } => {
                if !encapsulate_v6(packet, vni, [datagram, self.port], hardware, ip) {
                    return false;
                }
            }
            Kind::None => return false,
        }
        packet.clear_flags(packet.flags());
        true
    }
}

/// Puts the headers over IPv6 in front of a frame: length of the datagram and port of the other end.
#[inline(never)]
fn encapsulate_v6(
    packet: &mut Packet,
    vni: u32,
    [datagram, port]: [u16; 2],
    hardware: [[u8; 6]; 2],
    ip: [Ipv6Addr; 2],
) -> bool {
    let source = source_port(&*packet);
    let mut outer = [0; OVERHEAD_V6];
    let start = ETHERNET + ipv6::LEN;
    ipv6::write(&mut outer[ETHERNET..start], ip, datagram, source);
    write_ethernet(&mut outer, ipv6::ETHERTYPE, hardware);
    write_udp(&mut outer[start..], [source, port], datagram, vni);
    if !packet.prepend(outer.len()) {
        return false;
    }
    packet.write(0, &outer);
    // Linux drops IPv6 datagrams without a checksum unless it is told otherwise.
    let sum = sum(packet, ETHERNET + 8..start, start..start + usize::from(datagram));
    packet.write(start + 6, &sum.l4_checksum());
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
#[inline]
fn source_port<'a>(frame: impl Into<RawBytes<'a>>) -> u16 {
    let frame = frame.into();
    // The header may change after this. The only consequence is another source port.
    let hash = match frame.array::<40>(0) {
        // IPv4 without options, not a fragment, with TCP or UDP in it.
        Some(start) if start[12..15] == [8, 0, 0x45] && start[20] & 0x3f | start[21] == 0 && is_l4(start[23]) => {
            let word = |at: usize| u64::from_be_bytes(*start[at..].first_chunk().expect("inside"));
            // MAC addresses; then IP addresses and ports, between a checksum and a length.
            let mut hash = Hash::new(word(0), word(8) >> 32);
            hash.add(word(24) << 16, word(32) >> 16);
            hash
        }
        _ => Hash::of_any(frame),
    };
    // A port of the dynamic range, 49152 to 65535.
    0xc000 | (hash.0 >> 48) as u16 & 0x3fff
}

/// Returns whether a protocol is TCP or UDP.
#[inline(always)]
fn is_l4(protocol: u8) -> bool {
    matches!(protocol, 6 | 17)
}

/// A hash of pairs of words: products whose halves are folded.
struct Hash(u64);

impl Hash {
    #[inline(always)]
    fn new(one: u64, other: u64) -> Self {
        let mut hash = Self(0x9e37_79b9_7f4a_7c15);
        hash.add(one, other);
        hash
    }

    #[inline(always)]
    fn add(&mut self, one: u64, other: u64) {
        let product = u128::from(one ^ self.0) * u128::from(other ^ 0xd6e8_feb8_6659_fd93);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    /// Hashes the addresses and ports of any frame, as far as it has some.
    #[inline(never)]
    fn of_any(frame: RawBytes) -> Self {
        let word = |at: usize| frame.array(at).map_or(0, u64::from_ne_bytes);
        let mut hash = Self::new(word(0), word(4));
        let Some(headers) = parse_headers(frame) else { return hash };
        let l3 = usize::from(headers.l2);
        match frame.array(l3) {
            Some([first]) if first >> 4 == 4 => hash.add(word(l3 + 12), 0),
            _ => {
                hash.add(word(l3 + 8), word(l3 + 16));
                hash.add(word(l3 + 24), word(l3 + 32));
            }
        }
        hash.add(frame.array(headers.l4_start()).map_or(0, u32::from_ne_bytes).into(), 0);
        hash
    }
}

#[cfg(test)]
mod tests;
