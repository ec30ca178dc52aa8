//! Which ring of several a received frame goes to: all frames of a flow to the same one, so that they stay in order, as
//! cards do it. Which ring the sender used would be cheaper, but a burst of the switch no longer knows.

use ringpass_memory::Packet;
use ringpass_port::parse_headers;

/// One of `rings`, by addresses and ports of TCP and UDP over IP, and by MAC addresses of all else.
pub(crate) fn spread(packet: &Packet, rings: usize) -> usize {
    let flow = flow(packet);
    // The high bits of a product are those that all of the flow's have gone into.
    ((u128::from(flow.wrapping_mul(MULTIPLIER)) * rings as u128) >> 64) as usize
}

/// Odd, and without a pattern: the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

fn flow(frame: &[u8]) -> u64 {
    let mut hash = 0;
    let mut mix = |bytes: &[u8]| {
        for word in bytes.chunks(4) {
            let word = word.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            hash = (u64::rotate_left(hash, 23) ^ word).wrapping_mul(MULTIPLIER);
        }
    };
    match parse_headers(frame) {
        Some(headers) => {
            let (l3, l4) = (usize::from(headers.l2), headers.l4_start());
            let addresses = if frame[l3] >> 4 == 4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
            mix(&frame[addresses]);
            mix(&frame[l4..l4 + 4]);
        }
        None => mix(&frame[..frame.len().min(12)]),
    }
    hash
}
