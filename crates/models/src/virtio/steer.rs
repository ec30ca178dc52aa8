//! Which pair of queues a received frame goes to (5.1.6.5.6.1): the one that its flow was last sent from, else one by
//! its flow.

use ringpass_port::parse_headers;

const FLOWS: usize = 1024;

/// The pair that each flow was last sent from.
pub(super) struct Flows(Box<[Option<u16>]>);

impl Default for Flows {
    fn default() -> Self {
        Self(vec![None; FLOWS].into())
    }
}

/// A number for a flow that is the same in both directions: of its addresses and ports, or those of Ethernet.
fn hash(frame: &[u8]) -> usize {
    let sum = |bytes: &[u8]| {
        bytes.iter().enumerate().fold(0usize, |sum, (i, &byte)| sum.wrapping_add(usize::from(byte) << (8 * (i % 4))))
    };
    let fields = match parse_headers(frame) {
        Some(headers) => {
            let (l3, l4) = (usize::from(headers.l2), headers.l4_start());
            let addresses = if frame[l3] >> 4 == 4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
            sum(&frame[addresses]) ^ (sum(&frame[l4..l4 + 2]).wrapping_add(sum(&frame[l4 + 2..l4 + 4])) << 5)
        }
        None => sum(frame.get(..6).unwrap_or_default()).wrapping_add(sum(frame.get(6..12).unwrap_or_default())),
    };
    (fields.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % FLOWS
}

impl Flows {
    /// A frame was sent from a pair.
    pub(super) fn sent(&mut self, frame: &[u8], pair: u16) {
        self.0[hash(frame)] = Some(pair);
    }

    /// The pair for a received frame.
    pub(super) fn pair(&self, frame: &[u8], pairs: u16) -> u16 {
        let flow = hash(frame);
        self.0[flow].filter(|&pair| pair < pairs).unwrap_or((flow % usize::from(pairs)) as u16)
    }
}
