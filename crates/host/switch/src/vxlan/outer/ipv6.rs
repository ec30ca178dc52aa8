//! The outer IPv6 header (RFC 8200, 3), without extensions.

use std::net::Ipv6Addr;

use ringpass_memory::Packet;

use super::{DecapError, ETHERNET, Ip, u16_at};

pub(super) const ETHERTYPE: [u8; 2] = [0x86, 0xdd];
/// Length in bytes.
pub(super) const LEN: usize = 40;

/// Reads the header of a UDP packet to this address.
pub(super) fn parse(packet: &Packet, local: Ipv6Addr) -> Result<Ip, DecapError> {
    let foreign = DecapError::Foreign;
    let ip = packet.array::<LEN>(ETHERNET).filter(|_| packet.array(12) == Some(ETHERTYPE)).ok_or(foreign)?;
    if ip[0] >> 4 != 6 || ip[6] != 17 || ip[24..40] != local.octets() {
        return Err(foreign);
    }
    let source: [u8; 16] = *ip[8..].first_chunk().ok_or(foreign)?;
    let (start, end) = (ETHERNET + LEN, ETHERNET + LEN + u16_at(&ip, 4));
    Ok(Ip { source: Ipv6Addr::from(source).into(), addresses: ETHERNET + 8..start, udp: start, end })
}

/// Writes the header of a UDP datagram of this length to [`LEN`] bytes. `flow` is a number of its flow, from which routers
/// choose a path (RFC 6438).
pub(super) fn write(ip: &mut [u8], [from, to]: [Ipv6Addr; 2], datagram: u16, flow: u16) {
    // Version 6, no traffic class.
    ip[..4].copy_from_slice(&(6 << 28 | u32::from(flow)).to_be_bytes());
    ip[4..6].copy_from_slice(&datagram.to_be_bytes());
    // UDP, hop limit 64.
    ip[6..8].copy_from_slice(&[17, 64]);
    ip[8..24].copy_from_slice(&from.octets());
    ip[24..].copy_from_slice(&to.octets());
}
