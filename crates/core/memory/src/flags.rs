//! Metadata of a frame, kept outside of its bytes: results of the receiving port and requests to the sending one.

use std::ops::{BitOr, BitOrAssign};

/// A set of flags of a packet. They mean the same on every port.
///
/// ```
/// use ringpass_memory::{Flags, Mempool, MempoolConfig};
///
/// # let pool = Mempool::new(&MempoolConfig { buffers: 1, ..Default::default() })?;
/// # let mut packet = pool.alloc().expect("a free buffer");
/// packet.add_flags(Flags::L3_GOOD | Flags::L4_BAD); // as a card does that has checked both
/// packet.set_vlan(7);
/// assert!(packet.flags().any(Flags::L3_BAD | Flags::L4_BAD), "one of them is wrong");
/// packet.clear_flags(Flags::VLAN);
/// assert_eq!((packet.vlan(), packet.flags()), (None, Flags::L3_GOOD | Flags::L4_BAD));
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// Received: the IPv4 header checksum was verified and is correct.
    pub const L3_GOOD: Self = Self(1 << 0);
    /// Received: the IPv4 header checksum is wrong.
    pub const L3_BAD: Self = Self(1 << 1);
    /// Received: the TCP, UDP or SCTP checksum was verified and is correct.
    pub const L4_GOOD: Self = Self(1 << 2);
    /// Received: the TCP, UDP or SCTP checksum is wrong.
    pub const L4_BAD: Self = Self(1 << 3);
    /// Received: the packet has an RSS hash, [`Packet::rss_hash`](crate::Packet::rss_hash).
    pub const HASH: Self = Self(1 << 4);
    /// Both directions: the outer VLAN tag is kept outside of the frame, [`Packet::vlan`](crate::Packet::vlan).
    pub const VLAN: Self = Self(1 << 5);
    /// Both directions: the TCP or UDP checksum is to be filled in. Its field holds the sum of the pseudo
    /// header, as Linux has it (`CHECKSUM_PARTIAL`). See [`Packet::headers`](crate::Packet::headers).
    pub const CHECKSUM: Self = Self(1 << 6);
    /// Sending: the IPv4 header checksum is to be filled in.
    pub const L3_CHECKSUM: Self = Self(1 << 7);
    /// Both directions: TCP over IPv4 or IPv6 that is to be segmented, [`Packet::mss`](crate::Packet::mss). Comes with
    /// [`CHECKSUM`](Self::CHECKSUM).
    pub const TSO: Self = Self(1 << 8);
    /// Received: a switch must not learn the source's location from this frame.
    pub const NO_LEARN: Self = Self(1 << 9);
    /// The buffer is of a [`LentPool`](crate::LentPool), and so belongs to somebody else: the packet goes to the
    /// owner's port, or is copied. Set by the queue that took the buffer.
    pub const LENT: Self = Self(1 << 14);
    /// The frame continues in further buffers, [`Packet::segments`](crate::Packet::segments). Set and cleared only by the methods that
    /// attach and detach segments.
    pub const CHAINED: Self = Self(1 << 15);

    /// Returns the flags as bits.
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    /// Whether any of the flags `of` is set.
    #[inline]
    pub const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Returns the flags without `these`.
    #[inline]
    pub const fn without(self, these: Self) -> Self {
        Self(self.0 & !these.0)
    }

    /// Returns the union, like `|`, for use in constants.
    #[inline]
    pub const fn or(self, these: Self) -> Self {
        Self(self.0 | these.0)
    }

    /// Returns the flags that are set in both.
    #[inline]
    pub const fn and(self, these: Self) -> Self {
        Self(self.0 & these.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Transport protocol whose checksum is to be filled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L4 {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// Positions of a frame's headers, for the port that fills in a checksum or segments the frame. Lengths are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Length of the Ethernet header, with VLAN tags that are in the frame.
    pub l2: u8,
    /// Length of the IP header, with options and extension headers.
    pub l3: u16,
    /// Length of the TCP header with options, or of the UDP header, 8.
    pub l4: u8,
    /// Protocol of the `l4` header.
    pub protocol: L4,
}

impl Headers {
    /// Returns the offset of the TCP or UDP header.
    pub fn l4_start(self) -> usize {
        usize::from(self.l2) + usize::from(self.l3)
    }

    /// Returns the offset of the payload.
    pub fn payload_start(self) -> usize {
        self.l4_start() + usize::from(self.l4)
    }
}

/// Place of the VLAN tag in a word.
pub(crate) const VLAN_SHIFT: u32 = 48;

/// Positions of headers and VLAN tag, as they are kept with a packet.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestWord(pub(crate) u64);

impl RequestWord {
    #[inline]
    pub(crate) fn headers(self) -> Headers {
        let protocol = if self.0 >> 32 & 1 == L4::Tcp as u64 { L4::Tcp } else { L4::Udp };
        Headers { l2: self.0 as u8, l4: (self.0 >> 8) as u8, l3: (self.0 >> 16) as u16, protocol }
    }

    #[inline]
    pub(crate) fn set_headers(&mut self, Headers { l2, l3, l4, protocol }: Headers) {
        let headers = u64::from(l2) | u64::from(l4) << 8 | u64::from(l3) << 16 | (protocol as u64) << 32;
        self.0 = self.0 >> VLAN_SHIFT << VLAN_SHIFT | headers;
    }

    #[inline]
    pub(crate) fn vlan(self) -> u16 {
        (self.0 >> VLAN_SHIFT) as u16
    }

    #[inline]
    pub(crate) fn set_vlan(&mut self, tag: u16) {
        self.0 = self.0 << (64 - VLAN_SHIFT) >> (64 - VLAN_SHIFT) | u64::from(tag) << VLAN_SHIFT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_tag_do_not_touch_each_other() {
        let mut word = RequestWord::default();
        let headers = [
            Headers { l2: 255, l3: u16::MAX, l4: 255, protocol: L4::Udp },
            Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Tcp },
            Headers::default(),
        ];
        for (headers, tag) in headers.into_iter().zip([0, 0xffff, 0x6007]) {
            word.set_vlan(tag);
            word.set_headers(headers);
            assert_eq!((word.headers(), word.vlan()), (headers, tag));
            word.set_vlan(!tag);
            assert_eq!((word.headers(), word.vlan()), (headers, !tag));
        }
    }
}
