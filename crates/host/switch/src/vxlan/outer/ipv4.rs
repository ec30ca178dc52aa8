//! The outer IPv4 header (RFC 791).

use std::net::Ipv4Addr;

use ringpass_memory::{Flags, Packet};
use ringpass_port::Sum;

use super::{DecapError, ETHERNET, Ip, u16_at};

pub(super) const ETHERTYPE: [u8; 2] = [8, 0];
/// Length without options, in bytes.
pub(super) const LEN: usize = 20;

/// Reads the header of a UDP packet to this address.
pub(super) fn parse(packet: &Packet, local: Ipv4Addr) -> Result<Ip, DecapError> {
    use DecapError::{Foreign, Malformed};
    let ip = packet.array::<LEN>(ETHERNET).filter(|_| packet.array(12) == Some(ETHERTYPE)).ok_or(Foreign)?;
    if ip[0] >> 4 != 4 || ip[9] != 17 || ip[16..20] != local.octets() {
        return Err(Foreign);
    }
    let header = usize::from(ip[0] & 15) * 4;
    // Fragmented (more fragments, or an offset): RFC 7348, 4.3 forbids fragmentation, and later fragments have
    // no ports.
    if header < LEN || u16_at(&ip, 6) & 0x3fff != 0 {
        return Err(Malformed);
    }
    Ok(Ip {
        source: Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]).into(),
        addresses: ETHERNET + 12..ETHERNET + LEN,
        udp: ETHERNET + header,
        end: ETHERNET + u16_at(&ip, 2),
    })
}

/// Returns whether the checksum of the header, which ends before `udp`, is right.
pub(super) fn checksum_is_right(packet: &Packet, udp: usize) -> bool {
    let flags = packet.flags();
    if flags.any(Flags::L3_GOOD | Flags::L3_BAD) {
        return !flags.any(Flags::L3_BAD);
    }
    let mut sum = Sum::default();
    sum.add(packet.bytes().range(ETHERNET..udp));
    sum.folded() == [0xff; 2]
}

/// Writes the header of a UDP datagram of this length to [`LEN`] bytes.
pub(super) fn write(ip: &mut [u8], [from, to]: [Ipv4Addr; 2], datagram: u16) {
    // No options, not fragmented, don't fragment (RFC 7348, 4.3), TTL 64.
    ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip[2..4].copy_from_slice(&(datagram + LEN as u16).to_be_bytes());
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let mut sum = Sum::default();
    sum.add(&*ip);
    ip[10..12].copy_from_slice(&sum.checksum());
}
