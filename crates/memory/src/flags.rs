//! What is known of a frame, or asked of the port that sends it, beside its bytes.

use std::ops::{BitOr, BitOrAssign};

use crate::Packet;

/// A set of flags. They mean the same on every port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// Received: the checksum of the IPv4 header was checked and is right.
    pub const L3_GOOD: Self = Self(1 << 0);
    /// Received: the checksum of the IPv4 header is wrong.
    pub const L3_BAD: Self = Self(1 << 1);
    /// Received: the checksum of TCP, UDP or SCTP was checked and is right.
    pub const L4_GOOD: Self = Self(1 << 2);
    /// Received: that checksum is wrong.
    pub const L4_BAD: Self = Self(1 << 3);
    /// Received: there is an RSS hash, [`Packet::rss_hash`].
    pub const HASH: Self = Self(1 << 4);
    /// Both ways: the outer VLAN tag lies beside the frame, [`Packet::vlan`].
    pub const VLAN: Self = Self(1 << 5);
    /// Both ways: the checksum of TCP or UDP is to be filled in; its field holds the sum of the pseudo header, as virtio
    /// and Linux have it (`VIRTIO_NET_HDR_F_NEEDS_CSUM`). See [`Packet::headers`].
    pub const CHECKSUM: Self = Self(1 << 6);
    /// To be sent: the checksum of the IPv4 header is to be filled in.
    pub const L3_CHECKSUM: Self = Self(1 << 7);
    /// Both ways: TCP over IPv4 or IPv6, to be cut into frames, [`Packet::mss`]. Comes with [`CHECKSUM`](Self::CHECKSUM).
    pub const TSO: Self = Self(1 << 8);
    /// Received: a switch is not to learn from this frame where its source is.
    pub const NO_LEARN: Self = Self(1 << 9);
    /// The buffer is lent by a guest ([`Lending`](crate::Lending)): the packet goes to that guest's port, or is copied. Set by
    /// the queue that borrowed it.
    pub const LENT: Self = Self(1 << 14);
    /// The frame goes on in further buffers, [`Packet::segments`]. Set and cleared by these methods only.
    pub const CHAINED: Self = Self(1 << 15);

    /// Whether it has any of these.
    #[inline]
    pub const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Without these.
    #[inline]
    pub const fn without(self, these: Self) -> Self {
        Self(self.0 & !these.0)
    }

    /// Both together; as `|`, in constants.
    #[inline]
    pub const fn or(self, these: Self) -> Self {
        Self(self.0 | these.0)
    }

    /// Those that both have.
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

/// Which protocol has the checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L4 {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// Where the headers of a frame lie, for the port that is to fill in a checksum or cut segments. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Length of the Ethernet header, with the VLAN tags in the frame.
    pub l2: u8,
    /// Length of the IP header, with options and extension headers.
    pub l3: u16,
    /// Length of the TCP header, with options; of UDP's, 8.
    pub l4: u8,
    /// What `l4` is.
    pub protocol: L4,
}

impl Headers {
    /// Where the TCP or UDP header starts.
    pub fn l4_start(self) -> usize {
        usize::from(self.l2) + usize::from(self.l3)
    }

    /// Where the payload starts.
    pub fn payload_start(self) -> usize {
        self.l4_start() + usize::from(self.l4)
    }
}

/// What a pool keeps of a packet outside of its buffer, where no guest can write. Valid as far as the flags say.
#[derive(Default)]
pub(crate) struct Beside {
    pub(crate) next: Option<Packet>,
    hash: u32,
    vlan: u16,
    mss: u16,
    headers: Headers,
}

impl Packet {
    pub(crate) fn beside(&self) -> &Beside {
        let slot = self.buffer.slot();
        // SAFETY: the buffer keeps its pool alive. Only the packet's owner reaches its entry, and it is borrowed.
        unsafe { &*slot.pool.as_ref().beside[slot.index as usize].get() }
    }

    pub(crate) fn beside_mut(&mut self) -> &mut Beside {
        let slot = self.buffer.slot();
        // SAFETY: as in `beside`, and `self` is borrowed mutably.
        unsafe { &mut *slot.pool.as_ref().beside[slot.index as usize].get() }
    }

    /// What is known or asked.
    #[inline]
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Adds flags that need nothing beside: verdicts, [`L3_CHECKSUM`](Flags::L3_CHECKSUM), [`NO_LEARN`](Flags::NO_LEARN)
    /// and [`LENT`](Flags::LENT).
    #[inline]
    pub fn add_flags(&mut self, flags: Flags) {
        let beside = Flags::HASH | Flags::VLAN | Flags::CHECKSUM | Flags::TSO | Flags::CHAINED;
        debug_assert!(!flags.any(beside), "{flags:?} have methods of their own");
        self.flags |= flags.without(beside);
    }

    /// Takes flags away; what they spoke of is forgotten. A packet with further segments keeps those.
    #[inline]
    pub fn clear_flags(&mut self, flags: Flags) {
        self.flags = self.flags.without(flags.without(Flags::CHAINED.or(Flags::LENT)));
    }

    /// The RSS hash that the card made over addresses and ports.
    pub fn rss_hash(&self) -> Option<u32> {
        self.flags.any(Flags::HASH).then(|| self.beside().hash)
    }

    /// Gives it a hash.
    pub fn set_rss_hash(&mut self, hash: u32) {
        self.beside_mut().hash = hash;
        self.flags |= Flags::HASH;
    }

    /// The outer VLAN tag (priority, DEI and id) that is not in the frame but belongs to it.
    pub fn vlan(&self) -> Option<u16> {
        self.flags.any(Flags::VLAN).then(|| self.beside().vlan)
    }

    /// Gives it a VLAN tag beside the frame.
    pub fn set_vlan(&mut self, tag: u16) {
        self.beside_mut().vlan = tag;
        self.flags |= Flags::VLAN;
    }

    /// Where the headers lie, of a packet that asks for a checksum or for segments.
    pub fn headers(&self) -> Option<Headers> {
        self.flags.any(Flags::CHECKSUM | Flags::TSO).then(|| self.beside().headers)
    }

    /// Asks for the checksum of TCP or UDP; see [`Flags::CHECKSUM`].
    pub fn request_checksum(&mut self, headers: Headers) {
        self.beside_mut().headers = headers;
        self.flags |= Flags::CHECKSUM;
    }

    /// Bytes of payload in each frame, of a packet that is to be cut into frames.
    pub fn mss(&self) -> Option<u16> {
        self.flags.any(Flags::TSO).then(|| self.beside().mss)
    }

    /// Asks for frames with `mss` bytes of TCP payload each; see [`Flags::TSO`].
    pub fn request_segmentation(&mut self, mss: u16, headers: Headers) {
        self.request_checksum(headers);
        self.beside_mut().mss = mss;
        self.flags |= Flags::TSO;
    }
}
