//! The MTU check: which frames a port sends, by their length.

use ringpass_memory::{Flags, Packet, RawBytes};

/// Length of the Ethernet header in bytes.
const HEADER: usize = 14;

/// Length in bytes of the Ethernet header with a VLAN tag.
pub const MAX_L2_HEADER_LEN: usize = 18;

/// Whether a packet is within this MTU: at least a header (14 bytes), at most header and payload, and 4 bytes more
/// with a VLAN tag (IEEE 802.3, 3.2.7). A packet that requests segmentation is within the MTU if its segments are.
#[inline]
pub fn fits_mtu(packet: &Packet, mtu: usize) -> bool {
    if packet.flags().any(Flags::CHAINED | Flags::TSO | Flags::VLAN) {
        return special_fits_mtu(packet, mtu);
    }
    frame_fits_mtu(packet, packet.len(), mtu)
}

/// Whether a frame of `len` bytes that starts with the bytes `frame` is within this MTU; see [`fits_mtu`].
#[inline]
pub fn frame_fits_mtu<'a>(frame: impl Into<RawBytes<'a>>, len: usize, mtu: usize) -> bool {
    let tagged = || has_tag(frame.into());
    len >= HEADER && (len <= HEADER + mtu || len <= MAX_L2_HEADER_LEN + mtu && tagged())
}

fn has_tag(frame: RawBytes) -> bool {
    matches!(frame.array(12), Some([0x81, 0] | [0x88, 0xa8]))
}

#[inline(never)]
fn special_fits_mtu(packet: &Packet, mtu: usize) -> bool {
    // The longest IP packet behind two VLAN tags.
    const MAX_FRAME_LEN: usize = HEADER + 8 + 65535;
    let total = packet.total_len();
    let frame = match (packet.headers(), packet.mss()) {
        (Some(headers), Some(mss)) => total.min(headers.payload_start() + usize::from(mss)),
        _ => total,
    };
    // A tag kept outside of the frame is not counted in its length. If the frame has another tag, the MTU
    // allows only one of the two, so the outer one counts here.
    let beside = if packet.vlan().is_some() && has_tag(packet.bytes()) { 4 } else { 0 };
    total <= MAX_FRAME_LEN && frame_fits_mtu(packet, frame + beside, mtu)
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Headers, L4, Mempool, MempoolConfig};

    use super::*;

    #[test]
    fn frames_pass_up_to_the_mtu_and_a_tag() {
        let mut frame = [0; 1600];
        let fits_mtu = |frame: &[u8]| frame_fits_mtu(frame, frame.len(), 1500);
        assert!(!fits_mtu(&frame[..13]) && fits_mtu(&frame[..14]));
        assert!(fits_mtu(&frame[..1514]) && !fits_mtu(&frame[..1515]));
        frame[12] = 0x81;
        assert!(fits_mtu(&frame[..1518]) && !fits_mtu(&frame[..1519]));
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
        assert!(fits_mtu(&chained, 1500));
        chained.append(packet(1));
        assert!(!fits_mtu(&chained, 1500) && fits_mtu(&chained, 1501));
        let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
        chained.request_segmentation(1460, headers);
        assert!(fits_mtu(&chained, 1500));
        chained.request_segmentation(1461, headers);
        assert!(!fits_mtu(&chained, 1500));

        let mut tagged = packet(1514);
        tagged.set_vlan(1);
        assert!(fits_mtu(&tagged, 1500), "four bytes more with its tag");
        tagged.set_len(1518);
        tagged.write(12, &[0x81]);
        assert!(!fits_mtu(&tagged, 1500), "two tags");
    }
}
