//! VLAN tags that came beside a frame, because the kernel or a card has taken them out of it.

use ringpass_memory::Packet;
use ringpass_port::Offloads;

/// Length of both MAC addresses, behind which a tag stands.
pub(crate) const ADDRESSES: usize = 12;

/// Puts a tag where the port's users look for it: beside the frame with the offload `vlan` if it is one of EtherType 0x8100, else into the frame. Returns
/// by how many bytes what follows the addresses has moved; `None` if there is no room.
pub(crate) fn add_tag(packet: &mut Packet, tag: [u8; 4], offloads: Offloads) -> Option<usize> {
    if let ([0x81, 0, high, low], true) = (tag, offloads.vlan) {
        packet.set_vlan(u16::from_be_bytes([high, low]));
        return Some(0);
    }
    let Some(addresses) = packet.array::<ADDRESSES>(0) else { return Some(0) };
    if !packet.prepend(tag.len()) {
        return None;
    }
    packet.write(0, &addresses);
    packet.write(ADDRESSES, &tag);
    Some(tag.len())
}
