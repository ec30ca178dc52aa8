//! `struct virtio_net_hdr` (VIRTIO 1.3, 5.1.6), by which virtio devices, TAP devices and packet sockets
//! describe a frame's checksum and segmentation.

use ringpass_memory::{Flags, Headers, L4, Packet};
use ringpass_port::{Offloads, complete_checksum, parse_headers};

/// Size in bytes, without the number of merged buffers.
pub const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

/// Returns whether a header declares the frame's checksum valid (DATA_VALID).
///
/// A device may set this whether GUEST_CSUM was negotiated or not; only NEEDS_CSUM depends on that (VIRTIO 1.3,
/// 5.1.6.4.1, as corrected by oasis-tcs/virtio-spec#185).
#[inline(always)]
pub fn is_checksum_valid(flags: u8) -> bool {
    flags & DATA_VALID != 0
}
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// The sender has seen congestion. This makes no difference here.
const GSO_ECN: u8 = 0x80;

/// Returns the offset of the checksum in the header of TCP or UDP.
fn checksum_offset(protocol: L4) -> u16 {
    match protocol {
        L4::Tcp => 16,
        L4::Udp => 6,
    }
}

/// Encodes the header of a packet to be transmitted.
#[inline]
pub fn encode(packet: &Packet) -> [u8; LEN] {
    // Put together in registers: bytes written one by one could not be forwarded to the reads of whole words that copy the header
    // (store forwarding), which costs more than all else here.
    let (mut first, mut offset) = (0_u64, 0);
    if let Some(headers) = packet.headers() {
        first = u64::from(NEEDS_CSUM) | (headers.l4_start() as u64) << 48;
        offset = checksum_offset(headers.protocol);
        if let Some(mss) = packet.mss() {
            let version = packet.array(headers.l2.into()).map_or(0, |[byte]| byte >> 4);
            let kind = if version == 6 { GSO_TCPV6 } else { GSO_TCPV4 };
            let len = headers.payload_start() as u16;
            first |= u64::from(kind) << 8 | u64::from(len) << 16 | u64::from(mss) << 32;
        }
    } else if packet.flags().any(Flags::L4_GOOD) {
        first = DATA_VALID.into();
    }
    let mut header = [0; LEN];
    header[..8].copy_from_slice(&first.to_le_bytes());
    header[8..].copy_from_slice(&offset.to_le_bytes());
    header
}

/// Applies the header of a received packet to it, as far as `offloads` allow; a partial checksum that they do
/// not allow is completed. `shift` is the number of bytes that were inserted before the network header since.
/// Returns `false` if the header does not match the packet, which must then be dropped.
pub fn apply(header: &[u8; LEN], shift: usize, packet: &mut Packet, offloads: Offloads) -> bool {
    let [flags, kind, _, _, size_low, size_high, start_low, start_high, offset_low, offset_high] = *header;
    let start = usize::from(u16::from_le_bytes([start_low, start_high])) + shift;
    let offset = u16::from_le_bytes([offset_low, offset_high]);
    if flags & NEEDS_CSUM == 0 {
        if flags & DATA_VALID != 0 && offloads.checksum {
            packet.add_flags(Flags::L4_GOOD);
        }
        return kind & !GSO_ECN == 0 || !offloads.tso;
    }
    // A header is used only as far as it agrees with the frame. The inner checksum of a tunnel cannot be
    // expressed in a packet, so it is completed.
    let headers = parse_headers(&*packet)
        .filter(|headers| headers.l4_start() == start && checksum_offset(headers.protocol) == offset);
    let segments = offloads.tso && kind & !GSO_ECN != 0;
    match headers {
        Some(headers) if segments => {
            let mss = u16::from_le_bytes([size_low, size_high]);
            segmentation(packet, kind & !GSO_ECN, mss, headers)
        }
        _ if segments => false,
        Some(headers) if offloads.checksum => {
            packet.request_checksum(headers);
            true
        }
        _ => complete_checksum(packet, start, offset.into()),
    }
}

fn segmentation(packet: &mut Packet, kind: u8, mss: u16, headers: Headers) -> bool {
    let version = match kind {
        GSO_TCPV4 => 4,
        GSO_TCPV6 => 6,
        _ => return false,
    };
    if mss == 0
        || headers.protocol != L4::Tcp
        || packet.array(headers.l2.into()).is_none_or(|[byte]| byte >> 4 != version)
    {
        return false;
    }
    if packet.total_len() <= headers.payload_start() + usize::from(mss) {
        packet.request_checksum(headers);
    } else {
        packet.request_segmentation(mss, headers);
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::*;

    const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };

    fn packet(pool: &Mempool, frame: &[u8]) -> Packet {
        let mut packet = pool.alloc().unwrap();
        assert!(packet.copy_from(frame));
        packet
    }

    /// Returns an Ethernet frame with IPv4, TCP and `payload` bytes of payload.
    fn tcp(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 54 + payload];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        (frame[23], frame[46]) = (6, 0x50);
        frame
    }

    #[test]
    fn what_goes_in_comes_out() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        for (payload, header) in [
            (1000, [1, 1, 54, 0, 100, 0, 34, 0, 16, 0]),
            (1000, [1, 0, 0, 0, 0, 0, 34, 0, 16, 0]),
            (10, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (10, [0; LEN]),
        ] {
            let mut packet = packet(&pool, &tcp(payload));
            assert!(apply(&header, 0, &mut packet, ALL));
            assert_eq!(encode(&packet), header);
        }
    }

    #[test]
    fn headers_that_do_not_fit_the_frame_are_refused() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        for header in [
            [1, 1, 54, 0, 0, 0, 34, 0, 16, 0],
            [1, 4, 54, 0, 100, 0, 34, 0, 16, 0],
            [1, 3, 54, 0, 100, 0, 34, 0, 16, 0],
            [1, 1, 54, 0, 100, 0, 33, 0, 16, 0],
            [1, 1, 54, 0, 100, 0, 34, 0, 6, 0],
            [0, 1, 54, 0, 100, 0, 34, 0, 16, 0],
            [1, 0, 0, 0, 0, 0, 255, 255, 16, 0],
            [1, 0, 0, 0, 0, 0, 34, 0, 255, 255],
        ] {
            assert!(!apply(&header, 0, &mut packet(&pool, &tcp(500)), ALL), "{header:?}");
        }
    }

    #[test]
    fn without_offloads_checksums_are_filled_in() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        for (header, offloads) in [
            ([1, 0, 0, 0, 0, 0, 34, 0, 16, 0], Offloads::default()),
            // A checksum that packets cannot express, for instance of a tunnel.
            ([1, 0, 0, 0, 0, 0, 34, 0, 20, 0], ALL),
        ] {
            let mut packet = packet(&pool, &tcp(7));
            assert!(apply(&header, 0, &mut packet, offloads));
            assert_eq!(packet.flags(), Flags::default());
            let at = 34 + usize::from(header[8]);
            assert_ne!(packet.array(at), Some([0, 0]));
        }
    }

    proptest! {
        /// No header and no frame makes it panic, or requests anything outside the frame.
        #[test]
        fn any_bytes_are_survived(
            header: [u8; LEN],
            mut frame in prop::collection::vec(any::<u8>(), 0..200),
            (ip, shift) in (any::<bool>(), 0..8usize),
        ) {
            let pool = Mempool::new(&MempoolConfig { buffers: 4, ..Default::default() }).unwrap();
            if ip && frame.len() > 60 {
                frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
                (frame[20], frame[21], frame[23]) = (0, 0, 6);
            }
            let mut packet = packet(&pool, &frame);
            if apply(&header, shift, &mut packet, ALL)
                && let Some(headers) = packet.headers()
            {
                prop_assert!(headers.payload_start() <= packet.len());
            }
        }
    }
}
