//! Selection of one of several rings for a received frame. All frames of a flow go to the same ring and so stay
//! in order, as with RSS. Selecting by the sender's ring would be cheaper, but a burst of the switch does not
//! carry it.

use ringpass_memory::Packet;
use ringpass_port::parse_headers;

/// Returns the ring for a packet, below `rings`: by addresses and ports for TCP and UDP over IP, by MAC
/// addresses otherwise.
pub(crate) fn select_ring(packet: &Packet, rings: usize) -> usize {
    let flow = flow(packet);
    // Multiplied once more, because only the high bits of the product depend on all bits of the hash.
    ((u128::from(flow.wrapping_mul(MULTIPLIER)) * rings as u128) >> 64) as usize
}

/// Odd and without a pattern: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

fn flow(packet: &Packet) -> u64 {
    let mut hash = 0;
    let mut mix = |bytes: &[u8]| {
        for word in bytes.chunks(4) {
            let word = word.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            hash = (u64::rotate_left(hash, 23) ^ word).wrapping_mul(MULTIPLIER);
        }
    };
    // Others may have changed the bytes since they were parsed; the worst result is another ring.
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
