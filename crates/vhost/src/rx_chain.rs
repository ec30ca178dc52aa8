//! Frames from the guest that are not plain: in several pieces or buffers, with a header that says something, or faulty.

use ringpass_memory::{Flags, Packet, Packets};
use ringpass_virtio::device::{Chain, Piece};
use ringpass_virtio::net_header;

use crate::agreed::{Agreed, LONGEST, SHORTEST, TAG};
use crate::bytes::{Cursor, pieces, total};
use crate::fault::Fault;

/// What a chain held.
pub(crate) enum Frame {
    /// A frame.
    Whole(Packet),
    /// None that may pass.
    Faulty,
    /// The buffers at hand do not suffice.
    NoBuffers,
}

/// Of a header's flags, those that whoever sends may set (VIRTIO 1.3, 5.1.6.2.1).
const NEEDS_CSUM: u8 = 1;

/// Copies the frame of a chain. `longest` is that of the MTU, without a tag.
#[cold]
#[inline(never)]
pub(crate) fn read_chain(
    chain: &Chain,
    all: &[Piece],
    agreed: &Agreed,
    longest: usize,
    buffers: &mut Packets,
) -> Result<Frame, Fault> {
    let available = total(chain, all);
    let Some(len) = available.checked_sub(agreed.header) else { return Err(Fault::NoHeader(available)) };
    let most = if agreed.tells.is_some_and(|tells| tells.tso) { LONGEST } else { longest + TAG };
    if !(SHORTEST..=most).contains(&len) {
        return Ok(Frame::Faulty);
    }
    // SAFETY: pieces of a chain that the ring holds are mapped (`Virtqueue`), and it is borrowed meanwhile.
    let mut cursor = unsafe { Cursor::new(pieces(chain, all)) };
    let mut header = [0; net_header::LEN + 2];
    cursor.read(&mut header[..agreed.header]);
    let Some(mut packet) = read_frame(&mut cursor, len, buffers) else { return Ok(Frame::NoBuffers) };
    if let Some(tells) = agreed.tells {
        let mut header: [u8; net_header::LEN] = std::array::from_fn(|i| header[i]);
        header[0] &= NEEDS_CSUM;
        if !net_header::apply(&header, 0, &mut packet, tells) {
            return Ok(Frame::Faulty);
        }
    }
    Ok(if passes(&packet, len, longest) { Frame::Whole(packet) } else { Frame::Faulty })
}

/// Copies `len` bytes, which are there, to as many buffers as they take.
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

/// Whether a frame of `len` bytes, or what it is to be cut into, is one that the MTU allows: with a VLAN tag it may be 4
/// bytes longer (IEEE 802.3, 3.2.7).
pub(crate) fn passes(packet: &Packet, len: usize, longest: usize) -> bool {
    let frame = match (packet.headers(), packet.mss()) {
        (Some(headers), Some(mss)) => len.min(headers.payload_start() + usize::from(mss)),
        _ => len,
    };
    let tagged = matches!(packet.array(12), Some([0x81, 0] | [0x88, 0xa8]));
    let beside = packet.flags().any(Flags::VLAN);
    let longest = if tagged || beside { longest + TAG } else { longest };
    let frame = if beside { frame + TAG } else { frame };
    packet.len() >= SHORTEST && len <= LONGEST && frame <= longest
}
