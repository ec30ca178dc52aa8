//! Which frames a port passes, by their length.

use ringpass_memory::{Flags, Packet, RawBytes};

/// Ethernet's header.
const HEADER: usize = 14;

/// Bytes of Ethernet's header with a VLAN tag.
pub const LONGEST_HEADER: usize = 18;

/// Whether a packet is one that a port with this MTU passes: at least a header (14 bytes), at most header and payload,
/// and 4 bytes more with a VLAN tag (IEEE 802.3, 3.2.7). What is to be cut into frames passes if these do.
#[inline]
pub fn passes(packet: &Packet, mtu: usize) -> bool {
    if packet.flags().any(Flags::CHAINED | Flags::TSO | Flags::VLAN) {
        return unusual_passes(packet, mtu);
    }
    frame_passes(packet, packet.len(), mtu)
}

/// Likewise for a frame of `len` bytes that begins with these.
#[inline]
pub fn frame_passes<'a>(frame: impl Into<RawBytes<'a>>, len: usize, mtu: usize) -> bool {
    let tagged = || has_tag(frame.into());
    len >= HEADER && (len <= HEADER + mtu || len <= LONGEST_HEADER + mtu && tagged())
}

fn has_tag(frame: RawBytes) -> bool {
    matches!(frame.array(12), Some([0x81, 0] | [0x88, 0xa8]))
}

#[inline(never)]
fn unusual_passes(packet: &Packet, mtu: usize) -> bool {
    // The longest that IP has; behind two tags.
    const LONGEST: usize = HEADER + 8 + 65535;
    let total = packet.total_len();
    let frame = match (packet.headers(), packet.mss()) {
        (Some(headers), Some(mss)) => total.min(headers.payload_start() + usize::from(mss)),
        _ => total,
    };
    // A tag beside the frame is not among its bytes, and one may be longer than the MTU for one tag only.
    let beside = if packet.vlan().is_some() && has_tag(packet.bytes()) { 4 } else { 0 };
    total <= LONGEST && frame_passes(packet, frame + beside, mtu)
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Headers, L4, Mempool, MempoolConfig};

    use super::*;

    #[test]
    fn frames_pass_up_to_the_mtu_and_a_tag() {
        let mut frame = [0; 1600];
        let passes = |frame: &[u8]| frame_passes(frame, frame.len(), 1500);
        assert!(!passes(&frame[..13]) && passes(&frame[..14]));
        assert!(passes(&frame[..1514]) && !passes(&frame[..1515]));
        frame[12] = 0x81;
        assert!(passes(&frame[..1518]) && !passes(&frame[..1519]));
    }

    #[test]
    fn chains_segments_and_tags_beside_the_frame_count_as_what_is_sent() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let packet = |len| {
            let mut packet = pool.alloc().unwrap();
            packet.set_len(len);
            packet.write(0, &vec![0; len]);
            packet
        };
        let mut chained = packet(1000);
        chained.append(packet(514));
        assert!(passes(&chained, 1500));
        chained.append(packet(1));
        assert!(!passes(&chained, 1500) && passes(&chained, 1501));
        let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
        chained.request_segmentation(1460, headers);
        assert!(passes(&chained, 1500));
        chained.request_segmentation(1461, headers);
        assert!(!passes(&chained, 1500));

        let mut tagged = packet(1514);
        tagged.set_vlan(1);
        assert!(passes(&tagged, 1500), "four bytes more with its tag");
        tagged.set_len(1518);
        tagged.write(12, &[0x81]);
        assert!(!passes(&tagged, 1500), "two tags");
    }
}
