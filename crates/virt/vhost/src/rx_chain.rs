//! Slow path for frames from the guest: in several pieces or buffers, with offload requests in the header, or
//! faulty.

use ringpass_memory::{Flags, Packet, Packets};
use ringpass_virtio::device::{Chain, Piece};
use ringpass_virtio::net_header;

use crate::bytes::{Cursor, pieces, total};
use crate::fault::Fault;
use crate::negotiated::{MAX_FRAME_LEN, MIN_FRAME_LEN, Negotiated, VLAN_TAG_LEN};

/// Result of reading a chain.
pub(crate) enum Frame {
    /// A valid frame.
    Whole(Packet),
    /// A frame that must be dropped.
    Faulty,
    /// There were not enough buffers for the frame.
    NoBuffers,
}

/// The only header flag that a sender may set, `VIRTIO_NET_HDR_F_NEEDS_CSUM` (VIRTIO 1.3, 5.1.6.2.1).
const NEEDS_CSUM: u8 = 1;

/// Copies the frame of a chain. `longest` is the longest frame that the MTU allows, without a VLAN tag.
#[cold]
#[inline(never)]
pub(crate) fn read_chain(
    chain: &Chain,
    all: &[Piece],
    negotiated: &Negotiated,
    longest: usize,
    buffers: &mut Packets,
) -> Result<Frame, Fault> {
    let available = total(chain, all);
    let Some(len) = available.checked_sub(negotiated.header) else { return Err(Fault::NoHeader(available)) };
    let most = if negotiated.host_offloads.is_some_and(|host_offloads| host_offloads.tso) {
        MAX_FRAME_LEN
    } else {
        longest + VLAN_TAG_LEN
    };
    if !(MIN_FRAME_LEN..=most).contains(&len) {
        return Ok(Frame::Faulty);
    }
    // SAFETY: the ring holds the chain, so its pieces are mapped by the contract of `Virtqueue`; the caller
    // keeps the ring borrowed until this function returns.
    let mut cursor = unsafe { Cursor::new(pieces(chain, all)) };
    let mut header = [0; net_header::LEN + 2];
    cursor.read(&mut header[..negotiated.header]);
    let Some(mut packet) = read_frame(&mut cursor, len, buffers) else { return Ok(Frame::NoBuffers) };
    if let Some(host_offloads) = negotiated.host_offloads {
        let mut header: [u8; net_header::LEN] = std::array::from_fn(|i| header[i]);
        header[0] &= NEEDS_CSUM;
        if !net_header::apply(&header, 0, &mut packet, host_offloads) {
            return Ok(Frame::Faulty);
        }
    }
    Ok(if passes(&packet, len, longest) { Frame::Whole(packet) } else { Frame::Faulty })
}

/// Copies `len` bytes, which the cursor must have, into as many buffers as they take; `None` if there are too
/// few.
fn read_frame(cursor: &mut Cursor<impl Iterator<Item = Piece>>, len: usize, buffers: &mut Packets) -> Option<Packet> {
    let mut next = |left: &mut usize| {
        let mut packet = buffers.next()?;
        packet.set_len(packet.len().min(*left));
        *left -= cursor.read_packet(&mut packet);
        Some(packet)
    };
    let mut left = len;
    let mut packet = next(&mut left)?;
    let mut last = &mut packet;
    while left > 0 {
        last = last.push_segment(next(&mut left)?);
    }
    Some(packet)
}

/// Returns whether the MTU allows a frame of `len` bytes, or the segments that it is to be cut into. A frame
/// with a VLAN tag may be 4 bytes longer (IEEE 802.3, 3.2.7).
pub(crate) fn passes(packet: &Packet, len: usize, longest: usize) -> bool {
    let frame = match (packet.headers(), packet.mss()) {
        (Some(headers), Some(mss)) => len.min(headers.payload_start() + usize::from(mss)),
        _ => len,
    };
    let tagged = matches!(packet.array(12), Some([0x81, 0] | [0x88, 0xa8]));
    let beside = packet.flags().any(Flags::VLAN);
    let longest = if tagged || beside { longest + VLAN_TAG_LEN } else { longest };
    let frame = if beside { frame + VLAN_TAG_LEN } else { frame };
    packet.len() >= MIN_FRAME_LEN && len <= MAX_FRAME_LEN && frame <= longest
}
