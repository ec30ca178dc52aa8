//! The request of a packet to the port that sends it, as one word, so that packets with equal requests are found fast.

use crate::flags::VLAN_SHIFT;
use crate::{Flags, Packet};

/// Flags by which a packet requests something.
const REQUESTS: Flags = Flags::CHECKSUM.or(Flags::L3_CHECKSUM).or(Flags::TSO).or(Flags::VLAN);
/// Flags for which the positions of the headers are given.
const WITH_HEADERS: Flags = Flags::CHECKSUM.or(Flags::TSO);

/// A packet's request, without the [size of segments](Packet::mss): flags, positions of headers, VLAN tag, and whether the
/// packet is in several buffers.
///
/// ```
/// use ringpass_memory::{Headers, L4, Mempool, MempoolConfig, Request};
///
/// # let pool = Mempool::new(&MempoolConfig { buffers: 2, ..Default::default() })?;
/// # let [mut first, mut second] = [pool.alloc().expect("a buffer"), pool.alloc().expect("a buffer")];
/// first.request_checksum(Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp });
/// let request = Request::of(&first);
/// assert!(!request.is_of(&second));
/// second.request_checksum(Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp });
/// assert!(request.is_of(&second));
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Request {
    flags: Flags,
    /// Bits of the word that the flags make valid.
    mask: u64,
    word: u64,
}

impl Request {
    /// Returns the request of a packet.
    pub fn of(packet: &Packet) -> Self {
        let flags = packet.flags().and(REQUESTS.or(Flags::CHAINED));
        let headers = if flags.any(WITH_HEADERS) { u64::MAX >> (64 - VLAN_SHIFT) } else { 0 };
        let vlan = if flags.any(Flags::VLAN) { u64::MAX << VLAN_SHIFT } else { 0 };
        let mask = headers | vlan;
        Self { flags, mask, word: packet.metadata().request.0 & mask }
    }

    /// Returns whether a packet requests the same.
    #[inline(always)]
    pub fn is_of(&self, packet: &Packet) -> bool {
        packet.flags().and(REQUESTS.or(Flags::CHAINED)) == self.flags
            && (self.mask == 0 || packet.metadata().request.0 & self.mask == self.word)
    }

    /// Returns whether a packet requests nothing and is in one buffer.
    #[inline(always)]
    pub fn is_none(packet: &Packet) -> bool {
        !packet.flags().any(REQUESTS.or(Flags::CHAINED))
    }
}
