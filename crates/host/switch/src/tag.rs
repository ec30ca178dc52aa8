//! VLAN tags (IEEE 802.1Q, 9.6): in the frame behind the addresses, or in the packet's metadata if the port's
//! hardware strips them.

use ringpass_memory::{Flags, Packet};

const ADDRESSES: usize = 12;
const LEN: usize = 4;
/// EtherType of customer tags. Provider tags (0x88a8) are treated as payload.
pub(crate) const ETHERTYPE: u16 = 0x8100;
const ID: u16 = 0xfff;

/// Whether a frame has a tag, in the frame or in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tagged {
    No,
    Yes,
}

/// A frame's VLAN inside the switch, and whether the frame has a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vlan {
    pub(crate) id: u16,
    pub(crate) tagged: Tagged,
}

/// Returns the VLAN of a packet that has a tag; `None` if the frame ends within the tag.
pub(crate) fn id(packet: &Packet) -> Option<u16> {
    let tag = packet.vlan().or_else(|| packet.array(ADDRESSES + 2).map(u16::from_be_bytes));
    tag.filter(|_| packet.vlan().is_some() || packet.len() >= ADDRESSES + LEN + 2).map(|tag| tag & ID)
}

/// Returns whether a frame has a tag.
#[inline]
pub(crate) fn is_tagged(packet: &Packet) -> bool {
    packet.vlan().is_some() || packet.array(ADDRESSES) == Some(ETHERTYPE.to_be_bytes())
}

/// Removes the tag.
pub(crate) fn pop(packet: &mut Packet) {
    if packet.vlan().is_some() {
        packet.clear_flags(Flags::VLAN);
    } else if let Some(addresses) = packet.array::<ADDRESSES>(0)
        && packet.trim_front(LEN)
    {
        // Does not fail: the tag was found in the first buffer, so the buffer has room for the addresses behind
        // it.
        packet.write(0, &addresses);
        shift_headers(packet, |l2| l2.saturating_sub(LEN as u8));
    }
}

/// Inserts a tag into a frame that has none. Returns `false` without changing anything if there is no headroom.
#[must_use]
pub(crate) fn push(packet: &mut Packet, vlan: u16) -> bool {
    let Some(addresses) = packet.array::<ADDRESSES>(0) else { return false };
    if !packet.prepend(LEN) {
        return false;
    }
    packet.write(0, &addresses);
    packet.write(ADDRESSES, &ETHERTYPE.to_be_bytes());
    packet.write(ADDRESSES + 2, &vlan.to_be_bytes());
    shift_headers(packet, |l2| l2.saturating_add(LEN as u8));
    true
}

/// Adjusts the offsets in requests for the sending port after the headers have moved.
fn shift_headers(packet: &mut Packet, shift: impl FnOnce(u8) -> u8) {
    if let Some(mut headers) = packet.headers() {
        headers.l2 = shift(headers.l2);
        match packet.mss() {
            Some(mss) => packet.request_segmentation(mss, headers),
            None => packet.request_checksum(headers),
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, VlanId};
    use ringpass_memory::{Headers, L4, Mempool, MempoolConfig};
    use ringpass_port::parse_headers;

    use super::*;

    fn frame(vlan: Option<u16>) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        match vlan {
            Some(id) => ethernet
                .single_vlan(VlanId::try_new(id).unwrap())
                .ipv4([1; 4], [2; 4], 9)
                .tcp(1, 2, 3, 4)
                .write(&mut frame, b"abc"),
            None => ethernet.ipv4([1; 4], [2; 4], 9).tcp(1, 2, 3, 4).write(&mut frame, b"abc"),
        }
        .unwrap();
        frame
    }

    #[test]
    fn tags_come_and_go_and_what_is_asked_moves_along() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let mut packet = pool.alloc().unwrap();
        assert!(packet.copy_from(&frame(None)));
        packet.request_segmentation(1000, parse_headers(&packet).unwrap());
        assert!(push(&mut packet, 77));
        assert_eq!((packet.to_vec(), id(&packet)), (frame(Some(77)), Some(77)));
        assert_eq!((packet.headers(), packet.mss()), (parse_headers(&packet), Some(1000)));
        pop(&mut packet);
        assert_eq!((packet.to_vec(), packet.headers()), (frame(None), parse_headers(&packet)));
        packet.set_vlan(0x3000 | 9);
        assert_eq!(id(&packet), Some(9));
        pop(&mut packet);
        assert_eq!((packet.to_vec(), packet.vlan()), (frame(None), None));
        let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
        assert_eq!(packet.headers(), Some(headers));
        while packet.headroom() >= LEN {
            assert!(packet.prepend(LEN));
        }
        let len = packet.len();
        assert!(!push(&mut packet, 1) && packet.len() == len);
    }

    #[test]
    fn a_frame_that_ends_in_its_tag_has_none() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        for len in 14..=18 {
            let mut packet = pool.alloc().unwrap();
            assert!(packet.copy_from(&frame(Some(5))[..len]));
            assert_eq!(id(&packet), (len == 18).then_some(5), "{len}");
        }
    }
}
