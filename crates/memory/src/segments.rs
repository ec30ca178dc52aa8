//! Frames that lie in several buffers: jumbo frames and segments of TCP.

use crate::{Flags, Packet};

impl Packet {
    /// Whether the frame goes on in further buffers.
    #[inline]
    pub fn is_chained(&self) -> bool {
        self.flags().any(Flags::CHAINED)
    }

    /// The pieces of the frame in order, this packet first. Flags are those of the first.
    pub fn segments(&self) -> impl Iterator<Item = &Packet> {
        std::iter::successors(Some(self), |packet| packet.next())
    }

    /// Length of the whole frame.
    pub fn total_len(&self) -> usize {
        self.segments().map(|segment| segment.len()).sum()
    }

    fn next(&self) -> Option<&Packet> {
        self.is_chained().then(|| self.beside().next.as_ref()).flatten()
    }

    /// Lets the frame go on in `rest`, behind what it has already. Walks all segments: to append many, use
    /// [`push_segment`](Self::push_segment).
    pub fn append(&mut self, rest: Packet) {
        self.push_segment(rest);
    }

    /// Appends `rest`, and returns the segment that it begins with: further ones that are pushed to that one need no walk
    /// over those before.
    pub fn push_segment(&mut self, rest: Packet) -> &mut Packet {
        let mut last = self;
        while last.is_chained() {
            last = last.beside_mut().next.as_mut().expect("chained packets have a next one");
        }
        last.flags |= Flags::CHAINED;
        last.beside_mut().next.insert(rest)
    }

    /// Cuts the whole frame down to its first `len` bytes, and drops segments that have none of these. Does nothing if it
    /// is not longer.
    pub fn truncate(&mut self, len: usize) {
        let (mut left, mut last) = (len, self);
        while left > last.len() && last.is_chained() {
            left -= last.len();
            last = last.beside_mut().next.as_mut().expect("chained packets have a next one");
        }
        last.set_len(left.min(last.len()));
        drop(last.take_rest());
    }

    /// Cuts off what follows the first buffer.
    pub fn take_rest(&mut self) -> Option<Packet> {
        let rest = self.is_chained().then(|| self.beside_mut().next.take()).flatten();
        self.flags = self.flags.without(Flags::CHAINED);
        rest
    }

    /// Copies the whole frame to the front of `out`; `None`, and nothing copied, if it does not fit. Returns its length.
    pub fn copy_to(&self, out: &mut [u8]) -> Option<usize> {
        let mut out = out.get_mut(..self.total_len())?;
        let len = out.len();
        for segment in self.segments() {
            let (here, rest) = out.split_at_mut(segment.len());
            segment.bytes().read(0, here);
            out = rest;
        }
        Some(len)
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        if self.is_chained() {
            self.drop_rest();
        }
    }
}

impl Packet {
    /// One after the other, not one within the other: a chain may be long.
    #[cold]
    pub(crate) fn drop_rest(&mut self) {
        let mut rest = self.take_rest();
        while let Some(mut packet) = rest {
            rest = packet.take_rest();
        }
    }
}
