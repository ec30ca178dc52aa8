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

fn flow(packet: &Packet) -> u64 {
    let mut hash = 0;
    let mut mix = |bytes: &[u8]| {
        for word in bytes.chunks(4) {
            let word = word.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            hash = (u64::rotate_left(hash, 23) ^ word).wrapping_mul(MULTIPLIER);
        }
    };
    // What was parsed may be something else by now, and nothing worse than another ring comes of that.
    match parse_headers(packet) {
        Some(headers) => {
            let l3 = usize::from(headers.l2);
            match packet.array(l3) {
                Some([first]) if first >> 4 == 4 => mix(&packet.array::<8>(l3 + 12).unwrap_or_default()),
                _ => mix(&packet.array::<32>(l3 + 8).unwrap_or_default()),
            }
            mix(&packet.array::<4>(headers.l4_start()).unwrap_or_default());
        }
        None => mix(&packet.array::<12>(0).unwrap_or_default()),
    }
    hash
}
