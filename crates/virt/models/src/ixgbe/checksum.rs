//! Internet checksums (RFC 1071), computed in native byte order: the sum of byte-swapped words is the
//! byte-swapped sum.

use ringpass_pci::registers::ixgbe::descriptor::*;

use super::bits::*;
use super::crc::crc32c;
use super::headers::{Headers, IPV4, SCTP, TCP, UDP};

/// Returns the sum of all 16-bit words, not yet folded. An odd last byte is the first byte of a word.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    // Case by case, because reading back bytes that were just copied to a word stalls the processor.
    let last = match *rest {
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        _ => [0; 4],
    };
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Returns the contribution of a 16-bit number in network byte order.
#[inline]
pub(super) fn word(value: u16) -> u64 {
    u64::from(value.to_be())
}

/// Folds a sum to 16 bits.
#[inline]
pub(super) fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns the checksum status of a frame as bits of the write-back (7.1.11): which checksums were checked, and
/// which are wrong.
#[inline]
pub(super) fn verdicts(headers: &Headers) -> u64 {
    let mut status = 0;
    if !headers.ipv4.is_empty() {
        status |= RX_IPCS;
        // Without options the length is constant, and the loop is unrolled.
        let plain = <&[u8; 20]>::try_from(headers.ipv4).map(|header| sum(header));
        if fold(plain.unwrap_or_else(|_| sum(headers.ipv4))) != 0xffff {
            status |= RX_IPE;
        }
    }
    if !headers.segment().is_empty() { status | transport_verdict(headers) } else { status }
}

#[inline]
fn transport_verdict(headers: &Headers) -> u64 {
    let segment = headers.segment();
    let (protocol, checked, shortest) = match headers.packet_type & (TCP | UDP | SCTP) {
        TCP => (6, RX_L4CS, 20),
        UDP => (17, RX_L4CS | RX_UDPCS, 8),
        _ => return sctp_verdict(segment),
    };
    // UDP over IPv4 may omit its checksum.
    let left_out = headers.is(UDP | IPV4) && segment.get(6..8) == Some(&[0, 0]);
    if segment.len() < shortest || left_out {
        return 0;
    }
    let pseudo = sum(headers.addresses) + word(protocol) + word(segment.len() as u16);
    if fold(sum(segment) + pseudo) == 0xffff { checked } else { checked | RX_L4E }
}

#[cold]
fn sctp_verdict(segment: &[u8]) -> u64 {
    let Some(&[a, b, c, d]) = segment.get(8..12) else { return 0 };
    let right = crc32c(&[&segment[..8], &[0; 4], &segment[12..]]);
    if right == u32::from_le_bytes([a, b, c, d]) { RX_L4CS } else { RX_L4CS | RX_L4E }
}

/// Returns for a fragment of UDP over IPv4 the fragment checksum and IP identification, as they are in the
/// upper half of the write-back's first word, and the status bits that go with them (7.1.11.3).
#[cold]
pub(super) fn fragment(headers: &Headers) -> Option<(u64, u64)> {
    let (header, payload) = headers.fragment().filter(|(header, payload)| header[9] == 17 && !payload.is_empty())?;
    let first = header[6] & 0x1f == 0 && header[7] == 0;
    let has_checksum = first && payload.get(6..8).is_some_and(|checksum| checksum != [0, 0]);
    let checksum = u64::from(u16::from_be(fold(sum(payload))));
    let identification = u64::from(u16::from_be_bytes([header[4], header[5]]));
    let status = if has_checksum { RX_UDPCS | RX_UDPV } else { RX_UDPCS };
    Some((checksum << 48 | identification << 32, status))
}
