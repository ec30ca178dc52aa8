//! Empty packets for a queue that receives.

use std::os::fd::AsFd;

use ringpass_memory::{Burst, Cache, Flags, MAGAZINE, Mempool, Packet, RawBytes};
use ringpass_port::{Error, chain, copy_flags};
use rustix::io::Errno;

use crate::sys::{MOST_PIECES, read_packets};

/// Buffers of a frame at most, for those who read and write frames piece by piece.
pub(crate) const MOST: usize = MOST_PIECES;

/// Drops the first `n` packets of a burst.
pub(crate) fn drop_front(burst: &mut Burst, n: usize) {
    if n == burst.len() {
        // All buffers go back together.
        burst.clear();
    } else {
        burst.drain().take(n).for_each(drop);
    }
}

/// Takes packets from the pool before there are frames for them, and keeps those that no frame came for.
pub(crate) struct Buffers {
    cache: Cache,
    /// The next one is the last.
    spare: Burst,
}

impl Buffers {
    pub(crate) fn new(pool: &Mempool) -> Self {
        Self { cache: pool.cache(), spare: Burst::new(MAGAZINE) }
    }

    /// How many buffers a frame of so many bytes takes at most.
    pub(crate) fn of(pool: &Mempool, len: usize) -> Result<usize, Error> {
        let (size, least) = (pool.buffer_size(), len.div_ceil(MOST));
        let error = || Error::Other(format!("buffers of {size} bytes are too short for its frames; make them {least}"));
        Some(len.div_ceil(size)).filter(|&buffers| buffers <= MOST).ok_or_else(error)
    }

    /// An empty packet; `None` when the pool has run dry.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Packet> {
        if self.spare.is_empty() {
            self.cache.alloc(&mut self.spare);
        }
        self.spare.pop()
    }

    /// Takes a packet back that was not needed.
    #[inline]
    pub(crate) fn put_back(&mut self, packet: Packet) {
        if self.spare.room() > 0 && packet.flags() == Flags::default() {
            self.spare.push(packet);
        }
    }

    /// Reads a frame in one system call, with what comes before it into `header`, into as many as `most` buffers. `None`
    /// when the pool has run dry. A frame that may have been cut off comes out empty.
    pub(crate) fn read(&mut self, fd: impl AsFd, most: usize, header: &mut [u8]) -> Result<Option<Packet>, Errno> {
        let Some(ready) = self.ready(most) else { return Ok(None) };
        let (head, mut room) = (header.len(), 0);
        for packet in ready.iter_mut() {
            packet.set_len(packet.capacity());
            room += packet.len();
        }
        let packets = ready.iter_mut().rev();
        let len = read_packets(fd.as_fd(), header, packets)?.saturating_sub(head);
        Ok(self.take_frame(if len < room { len } else { 0 }))
    }

    /// Makes sure of the next `n` (at most [`MAGAZINE`]) packets and shows them; `None` when the pool has run dry. The
    /// next one is the last.
    pub(crate) fn ready(&mut self, n: usize) -> Option<&mut [Packet]> {
        if self.spare.len() < n {
            self.cache.alloc(&mut self.spare);
        }
        let first = self.spare.len().checked_sub(n)?;
        Some(&mut self.spare[first..])
    }

    /// A frame of `len` bytes that were written to the packets which [`ready`](Self::ready) has shown, the next one
    /// first.
    fn take_frame(&mut self, len: usize) -> Option<Packet> {
        let mut next = |left: &mut usize| {
            let mut packet = self.spare.pop()?;
            packet.set_len(packet.capacity().min(*left));
            *left -= packet.len();
            Some(packet)
        };
        let mut left = len;
        let mut head = next(&mut left)?;
        let mut last = &mut head;
        while left > 0 {
            last = last.push_segment(next(&mut left)?);
        }
        Some(head)
    }

    /// A packet of these pieces; `None` when the pool has run dry.
    pub(crate) fn fill<'a>(&mut self, pieces: impl IntoIterator<Item = impl Into<RawBytes<'a>>>) -> Option<Packet> {
        chain(pieces, || self.take())
    }

    /// A copy of a packet, with what is known and asked of it.
    pub(crate) fn copy_of(&mut self, packet: &Packet) -> Option<Packet> {
        let mut copy = self.fill(packet.segments())?;
        copy_flags(packet, &mut copy);
        Some(copy)
    }
}
