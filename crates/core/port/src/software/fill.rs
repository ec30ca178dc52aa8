//! Filling in checksums that a frame's sender has left out.

use ringpass_memory::{L4, Packet};

use super::checksum::Sum;
use super::parse::parse_headers;
use crate::chain::range;

/// Computes and writes the TCP or UDP checksum over IPv4 or IPv6, if its field is empty: zeros, or the ones
/// that stand for zero. Fragments and all other frames are left unchanged.
///
/// For frames whose sender vouches for their content (`VIRTIO_NET_HDR_F_DATA_VALID`) and may have left the
/// checksum out, as passt does.
pub fn fill_checksum(packet: &mut Packet) {
    let Some(headers) = parse_headers(&*packet) else { return };
    let (ip, start) = (usize::from(headers.l2), headers.l4_start());
    let (offset, protocol) = match headers.protocol {
        L4::Tcp => (16, 6),
        L4::Udp => (6, 17),
    };
    let at = start + offset;
    if !matches!(packet.array(at), Some([0, 0] | [0xff, 0xff])) {
        return;
    }
    let word = |at: usize| packet.array(at).map_or(0, |bytes| usize::from(u16::from_be_bytes(bytes)));
    let version = packet.array::<1>(ip).map_or(0, |[byte]| byte >> 4);
    // The end of the IP packet, which padding may follow in a short frame, and the addresses.
    let (end, addresses) = match version {
        4 => (ip + word(ip + 2), ip + 12..ip + 20),
        _ => (ip + 40 + word(ip + 4), ip + 8..ip + 40),
    };
    if end < at + 2 || end > packet.total_len() {
        return;
    }
    // The pseudo header (RFC 9293, 3.1; RFC 8200, 8.1): addresses, protocol, length.
    let (len, mut sum) = (end - start, Sum::default());
    sum.add(packet.bytes().range(addresses));
    sum.add(&[0, protocol]);
    sum.add(&(len as u32).to_be_bytes());
    packet.write(at, &[0, 0]);
    range(packet, start, len).for_each(|piece| sum.add(piece));
    packet.write(at, &sum.l4_checksum());
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::*;
    use crate::chain;

    /// Returns frames of TCP and UDP over both versions of IP, with correct checksums.
    fn frames() -> Vec<Vec<u8>> {
        let payload: Vec<u8> = (0..333).map(|i| (i * 7) as u8).collect();
        let mut frames = Vec::new();
        for len in [0, 1, 2, 100, 333] {
            let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]);
            let (v4, v6) =
                (|| ethernet().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9), || ethernet().ipv6([1; 16], [3; 16], 9));
            for tcp in [v4().tcp(1, 2, 3, 4), v6().tcp(1, 2, 3, 4)] {
                let mut frame = Vec::new();
                tcp.write(&mut frame, &payload[..len]).unwrap();
                frames.push(frame);
            }
            for udp in [v4().udp(1, 2), v6().udp(1, 2)] {
                let mut frame = Vec::new();
                udp.write(&mut frame, &payload[..len]).unwrap();
                frames.push(frame);
            }
        }
        frames
    }

    #[test]
    fn empty_fields_are_filled_in_and_others_stay() {
        let pool = Mempool::new(&MempoolConfig { size: 128, ..Default::default() }).unwrap();
        for frame in frames() {
            let headers = parse_headers(&frame).unwrap();
            let at = headers.l4_start() + if headers.protocol == L4::Tcp { 16 } else { 6 };
            for (field, padding) in [([0, 0], 0), ([0xff, 0xff], 0), ([0, 0], 7)] {
                let mut bytes = [&frame[..], &[0xa5; 7][..padding]].concat();
                bytes[at..at + 2].copy_from_slice(&field);
                let mut packet = chain([&bytes[..]], || pool.alloc()).unwrap();
                fill_checksum(&mut packet);
                let filled: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
                assert_eq!(filled[..frame.len()], frame, "{headers:?}");
                assert!(filled[frame.len()..].iter().all(|&byte| byte == 0xa5));
            }
            // A checksum that is present is not changed, whether correct or not.
            let mut wrong = frame.clone();
            wrong[at..at + 2].copy_from_slice(&[0x12, 0x34]);
            let mut packet = chain([&wrong[..]], || pool.alloc()).unwrap();
            fill_checksum(&mut packet);
            assert_eq!(packet.segments().flat_map(|segment| segment.to_vec()).collect::<Vec<_>>(), wrong);
        }
    }

    #[test]
    fn frames_that_contradict_themselves_are_left_alone() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        for frame in frames() {
            for at in [14, 15, 16, 17, 18, 19, 20, 23, 46] {
                for value in [0, 1, 0x3f, 0xff] {
                    let mut bytes = frame.clone();
                    let Some(byte) = bytes.get_mut(at) else { continue };
                    *byte = value;
                    for len in [frame.len(), 60.min(frame.len()), 14, 33] {
                        let mut packet = chain([&bytes[..len]], || pool.alloc()).unwrap();
                        fill_checksum(&mut packet);
                        assert_eq!(packet.total_len(), len);
                    }
                }
            }
        }
    }
}
