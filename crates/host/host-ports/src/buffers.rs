//! Empty packets for receive queues.

use std::os::fd::AsFd;

use ringpass_memory::{Burst, Cache, Flags, MAGAZINE, Mempool, Packet, RawBytes};
use ringpass_port::{Error, chain, copy_flags};
use rustix::io::Errno;

use crate::sys::{MAX_IOVECS, read_packets};

/// Largest number of buffers per frame, for ports that read and write frames as several buffers.
pub(crate) const MAX_FRAME_SEGMENTS: usize = MAX_IOVECS;

/// Drops the first `n` packets of a burst.
pub(crate) fn drop_front(burst: &mut Burst, n: usize) {
    if n == burst.len() {
        // Faster: all buffers are returned together.
        burst.clear();
    } else {
        burst.drain().take(n).for_each(drop);
    }
}

/// Packets taken from the pool before there are frames for them; unused ones are kept.
pub(crate) struct SparePackets {
    cache: Cache,
    /// Packets in reverse order: the last one is used next.
    spare: Burst,
}

impl SparePackets {
    pub(crate) fn new(pool: &Mempool) -> Self {
        Self { cache: pool.cache(), spare: Burst::new(MAGAZINE) }
    }

    /// Returns the number of buffers that a frame of `len` bytes takes at most; an error if it is above
    /// [`MAX_FRAME_SEGMENTS`].
    pub(crate) fn of(pool: &Mempool, len: usize) -> Result<usize, Error> {
        let (size, least) = (pool.buffer_size(), len.div_ceil(MAX_FRAME_SEGMENTS));
        let error =
            || Error::Config(format!("buffers of {size} bytes are too short for its frames; make them {least}"));
        Some(len.div_ceil(size)).filter(|&buffers| buffers <= MAX_FRAME_SEGMENTS).ok_or_else(error)
    }

    /// Takes an empty packet; `None` if the pool is empty.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Packet> {
        if self.spare.is_empty() {
            self.cache.alloc(&mut self.spare);
        }
        self.spare.pop()
    }

    /// Takes back a packet that was not needed.
    #[inline]
    pub(crate) fn put_back(&mut self, packet: Packet) {
        if self.spare.room() > 0 && packet.flags() == Flags::default() {
            self.spare.push(packet);
        }
    }

    /// Reads a frame in one system call: first the bytes that precede it into `header`, then the frame into up
    /// to `most` buffers. Returns `None` if the pool is empty. A frame that may have been truncated is returned
    /// with length 0.
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

    /// Returns the next `n` (at most [`MAGAZINE`]) packets in reverse order, after taking them from the pool;
    /// `None` if the pool is empty.
    pub(crate) fn ready(&mut self, n: usize) -> Option<&mut [Packet]> {
        if self.spare.len() < n {
            self.cache.alloc(&mut self.spare);
        }
        let first = self.spare.len().checked_sub(n)?;
        Some(&mut self.spare[first..])
    }

    /// Makes a frame of `len` bytes, which were written to the packets that [`ready`](Self::ready) returned,
    /// the last of them first.
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

    /// Copies these pieces into a packet; `None` if the pool is empty.
    pub(crate) fn fill<'a>(&mut self, pieces: impl IntoIterator<Item = impl Into<RawBytes<'a>>>) -> Option<Packet> {
        chain(pieces, || self.take())
    }

    /// Copies a packet with its metadata and requests; `None` if the pool is empty.
    pub(crate) fn copy_of(&mut self, packet: &Packet) -> Option<Packet> {
        let mut copy = self.fill(packet.segments())?;
        copy_flags(packet, &mut copy);
        Some(copy)
    }
}
