//! Selection of the queue pair for a received frame (5.1.6.5.6.1): the pair that its flow was last sent from,
//! or else one by the flow's hash.

use ringpass_memory::{Packet, RawBytes};
use ringpass_port::parse_headers;

const FLOWS: usize = 1024;

/// The pair that each flow was last sent from, by the flow's hash.
pub(super) struct Flows(Box<[Option<u16>]>);

impl Default for Flows {
    fn default() -> Self {
        Self(vec![None; FLOWS].into())
    }
}

/// Returns a hash that is the same in both directions of a flow, of IP addresses and ports, or else of MAC
/// addresses.
fn hash(frame: RawBytes) -> usize {
    let sum = |bytes: &[u8]| {
        bytes.iter().enumerate().fold(0usize, |sum, (i, &byte)| sum.wrapping_add(usize::from(byte) << (8 * (i % 4))))
    };
    // The frame may have changed since it was parsed; the worst result is another queue pair.
    let fields = match parse_headers(frame) {
        Some(headers) => {
            let l3 = usize::from(headers.l2);
            let addresses = match frame.array(l3) {
                Some([first]) if first >> 4 == 4 => sum(&frame.array::<8>(l3 + 12).unwrap_or_default()),
                _ => sum(&frame.array::<32>(l3 + 8).unwrap_or_default()),
            };
            let [a, b, c, d] = frame.array(headers.l4_start()).unwrap_or_default();
            addresses ^ (sum(&[a, b]).wrapping_add(sum(&[c, d])) << 5)
        }
        None => {
            let [to, from] = [0, 6].map(|at| frame.array::<6>(at).unwrap_or_default());
            sum(&to).wrapping_add(sum(&from))
        }
    };
    (fields.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % FLOWS
}

impl Flows {
    /// Records the pair that a frame was sent from.
    pub(super) fn sent(&mut self, frame: &[u8], pair: u16) {
        self.0[hash(frame.into())] = Some(pair);
    }

    /// Returns the pair for a received frame.
    pub(super) fn pair(&self, packet: &Packet, pairs: u16) -> u16 {
        let flow = hash(packet.bytes());
        self.0[flow].filter(|&pair| pair < pairs).unwrap_or((flow % usize::from(pairs)) as u16)
    }
}
