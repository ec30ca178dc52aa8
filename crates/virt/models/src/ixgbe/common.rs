//! Quick classification of the most common frames: untagged IPv4 without options, not a fragment, that carries UDP or TCP.
//! The result is that of [`classify`](super::rss::classify), which handles all others.

use super::bits::RX_UDPCS;
use super::headers::{Headers, IPV4, TCP, UDP};
use super::rss::{Class, Rss};
use ringpass_pci::registers::ixgbe::descriptor::*;

/// Offsets in the frame: EtherType, IPv4 header, what follows it.
const TYPE: usize = 12;
const IP: usize = 14;
const SEGMENT: usize = 34;

/// Tuples that are remembered.
const TUPLES: usize = 256;

/// Addresses, ports and protocol of a frame, as they are in it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Tuple {
    addresses: u64,
    ports: u32,
    /// Zero in an entry that is not in use.
    protocol: u32,
}

impl Tuple {
    /// Returns the index of the only entry that can hold the tuple.
    fn index(self) -> usize {
        // Fibonacci hashing: the highest bits of the product depend on all bits of the factor.
        let mixed = (self.addresses ^ u64::from(self.ports) << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - TUPLES.ilog2())) as usize
    }
}

/// Results of RSS for recent tuples. The checksums' results, which depend on the whole frame, are not remembered.
pub(super) struct Tuples(Box<[(Tuple, Class); TUPLES]>);

impl Default for Tuples {
    fn default() -> Self {
        Self(Box::new([(Tuple::default(), Class::default()); TUPLES]))
    }
}

impl Tuples {
    /// Forgets all, as the settings of RSS have changed.
    pub(super) fn clear(&mut self) {
        self.0.fill((Tuple::default(), Class::default()));
    }

    /// Classifies an untagged frame, as `classify` does; `None` if it does not have the common shape.
    #[inline(always)]
    pub(super) fn classify(&mut self, rss: Option<&Rss>, frame: &[u8]) -> Option<Class> {
        let start: &[u8; SEGMENT + 8] = frame.first_chunk()?;
        let word = |at: usize| u64::from_le_bytes(*start[at..].first_chunk().expect("inside of the array"));
        // EtherType, version and header length.
        const SHAPE: u64 = u64::from_le_bytes([0x08, 0x00, 0x45, 0, 0, 0, 0, 0]);
        if word(TYPE) & 0xff_ffff != SHAPE {
            return None;
        }
        // More fragments, or an offset.
        if start[IP + 6] & 0x3f | start[IP + 7] != 0 {
            return None;
        }
        let len = u16::from_be_bytes([start[IP + 2], start[IP + 3]]) as usize;
        let segment = frame.get(SEGMENT..IP + len)?;
        let protocol = start[IP + 9];
        let (shortest, kind, checked) = match protocol {
            17 if start[SEGMENT + 6] | start[SEGMENT + 7] != 0 => (8, IPV4 | UDP, RX_IPCS | RX_L4CS | RX_UDPCS),
            6 => (20, IPV4 | TCP, RX_IPCS | RX_L4CS),
            _ => return None,
        };
        if segment.len() < shortest {
            return None;
        }
        let tuple = Tuple { addresses: word(IP + 12), ports: word(SEGMENT) as u32, protocol: protocol.into() };
        let (known, class) = &mut self.0[tuple.index()];
        if *known != tuple {
            (*known, *class) = (tuple, Class { status: 0, ..super::rss::classify(rss, &Headers::parse(frame, TYPE)) });
        }
        debug_assert_eq!(class.word & kind, kind);
        let ip = add(add(word(IP), word(IP + 8)), word(IP + 12) >> 32);
        let pseudo =
            add(tuple.addresses, u64::from((segment.len() as u16).to_be()) + u64::from(u16::from(protocol).to_be()));
        let ip_error = if is_right(ip) { 0 } else { RX_IPE };
        let segment_error = if is_right(sum(segment, pseudo)) { 0 } else { RX_L4E };
        Some(Class { status: checked | ip_error | segment_error, ..*class })
    }
}

/// Adds two sums of 16-bit words, with the carry added at the other end (RFC 1071).
#[inline(always)]
fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// Returns whether the words of a sum that is not 0 add up to all ones, as those of a right checksum do: whether the sum is
/// a multiple of 2^16 - 1.
#[inline(always)]
fn is_right(sum: u64) -> bool {
    sum.is_multiple_of(0xffff)
}

/// Adds the 16-bit words of `bytes` to `start`. An odd last byte is the first byte of a word.
#[inline(always)]
fn sum(bytes: &[u8], start: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = words.iter().fold(start, |sum, word| add(sum, u64::from_ne_bytes(*word)));
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        sum = add(sum, u16::from_ne_bytes(*word).into());
    }
    if let [last] = *rest {
        sum = add(sum, u16::from_ne_bytes([last, 0]).into());
    }
    sum
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use ringpass_pci::registers::RegisterFile;
    use ringpass_pci::registers::ixgbe::bits::*;
    use ringpass_pci::registers::ixgbe::*;

    use super::*;
    use crate::ixgbe::rss::classify;

    /// A valid frame from one of a few senders, and changes to it.
    #[derive(Clone, Debug)]
    struct Sample {
        sender: u8,
        is_tcp: bool,
        payload: Vec<u8>,
        changes: Vec<(usize, u8)>,
    }

    impl Sample {
        fn frame(&self) -> Vec<u8> {
            let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([198, 18, 0, self.sender], [198, 18, 1, 1], 64);
            let mut frame = Vec::new();
            if self.is_tcp {
                ip.tcp(self.sender.into(), 80, 1, 1000).write(&mut frame, &self.payload)
            } else {
                ip.udp(self.sender.into(), 9).write(&mut frame, &self.payload)
            }
            .expect("room in memory");
            frame.resize(frame.len().max(60), 0);
            for &(at, value) in &self.changes {
                let at = at % frame.len();
                frame[at] = value;
            }
            frame
        }
    }

    prop_compose! {
        fn samples()(
            sender in 0u8..4,
            is_tcp: bool,
            payload in prop::collection::vec(any::<u8>(), 0..200),
            // Mostly in the headers.
            changes in prop::collection::vec((prop_oneof![12usize..44, 0usize..300], any::<u8>()), 0..3),
        ) -> Sample {
            Sample { sender, is_tcp, payload, changes }
        }
    }

    proptest! {
        #[test]
        fn it_finds_what_the_general_code_finds(
            key in prop::array::uniform10(any::<u32>()),
            fields: u16,
            reports_hash: bool,
            queues in prop::array::uniform32(any::<u32>()),
            samples in prop::collection::vec(samples(), 1..30),
        ) {
            let mut registers = RegisterFile::new(TABLE);
            registers.set(MRQC.offset, u32::from(fields) << 16 | u32::from(fields & 1));
            registers.set(RXCSUM.offset, if reports_hash { RXCSUM_PCSD } else { 0 });
            (0..10).for_each(|i| registers.set(RSSRK.at(i).offset, key[i]));
            (0..32).for_each(|i| registers.set(RETA.at(i).offset, queues[i]));
            let rss = Rss::decode(&registers);
            let mut tuples = Tuples::default();
            for sample in &samples {
                let frame = sample.frame();
                let general = classify(rss.as_ref(), &Headers::parse(&frame, TYPE));
                let quick = tuples.classify(rss.as_ref(), &frame);
                prop_assert!(quick.is_none_or(|quick| quick == general), "{quick:x?}, {general:x?}");
                prop_assert!(quick.is_some() || !sample.changes.is_empty(), "a valid frame is handled quickly");
            }
        }
    }

    #[test]
    fn settings_that_have_changed_are_used() {
        let frame = Sample { sender: 1, is_tcp: false, payload: vec![], changes: vec![] }.frame();
        let mut registers = RegisterFile::new(TABLE);
        let mut tuples = Tuples::default();
        let without = tuples.classify(None, &frame);
        registers.set(MRQC.offset, 1 | MRQC_RSS_UDP_IPV4);
        registers.set(RSSRK.at(0).offset, 0x1234_5678);
        let rss = Rss::decode(&registers);
        tuples.clear();
        let with = tuples.classify(rss.as_ref(), &frame);
        assert_eq!(with, Some(classify(rss.as_ref(), &Headers::parse(&frame, TYPE))));
        assert_ne!(with, without);
    }
}
