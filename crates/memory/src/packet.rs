//! Buffers and packets: handles to the same thing, without and with a frame in it.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::HEADROOM;
use crate::pool::{Shared, Slot, SlotRef, put};

/// A buffer of a mempool, as a device's ring holds it. Dropping it returns it to its pool, on any thread.
#[derive(Debug)]
pub struct Buffer(SlotRef);

// SAFETY: a buffer is owned by its handle; its pool is `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// The slot is outside its pool's depot; the caller owns it and gives it up.
    #[inline]
    pub(crate) unsafe fn new(slot: SlotRef) -> Self {
        Self(slot)
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: a buffer is outside the depot, so it counts as a reference to its pool, which owns the slot.
        unsafe { self.0.0.as_ref() }
    }

    /// Its pool, and its slot there.
    #[inline]
    pub(crate) fn home(&self) -> (NonNull<Shared>, SlotRef) {
        (self.slot().pool, self.0)
    }

    /// Where a device is to write a frame, behind the usual headroom.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.slot().iova
    }

    /// A packet of the `len` bytes that lie behind the usual headroom.
    ///
    /// # Safety
    /// `len` is at most the pool's buffer size.
    #[inline]
    pub unsafe fn into_packet(self, len: usize) -> Packet {
        debug_assert!(len <= self.slot().size as usize);
        Packet { buffer: self, offset: 0, len: len as u32 }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (pool, slot) = self.home();
        // SAFETY: the handle's own slot, given up here.
        unsafe { put(pool, &[slot]) };
    }
}

/// One Ethernet frame (without its checksum) in a buffer. Derefs to the frame's bytes.
///
/// Dropping it returns the buffer, on any thread. Packets that are many are better dropped as a
/// [`Burst`](crate::Burst), which returns them together.
pub struct Packet {
    buffer: Buffer,
    /// Where the frame starts, from the end of the usual headroom: at least `-HEADROOM`.
    offset: i32,
    /// The sum of the two is at most the slot's size.
    len: u32,
}

impl Packet {
    #[inline]
    fn slot(&self) -> &Slot {
        self.buffer.slot()
    }

    /// The buffer, without knowledge of the frame.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// See [`Buffer::home`].
    #[inline]
    pub(crate) fn home(&self) -> (NonNull<Shared>, SlotRef) {
        self.buffer.home()
    }

    /// Bytes free in front of the frame.
    pub fn headroom(&self) -> usize {
        (HEADROOM as i32 + self.offset) as usize
    }

    /// Bytes that the frame can have at most from where it starts now.
    #[inline]
    pub fn capacity(&self) -> usize {
        (self.slot().size as i32 - self.offset) as usize
    }

    /// Sets the frame's length. Bytes gained keep what the buffer held before.
    ///
    /// # Panics
    /// If `len` is above [`capacity`](Self::capacity).
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a frame of {len} bytes in a buffer of {}", self.capacity());
        self.len = len as u32;
    }

    /// As [`set_len`](Self::set_len), but `false`, and nothing changed, if it is too long.
    #[inline]
    #[must_use]
    pub fn try_set_len(&mut self, len: usize) -> bool {
        let fits = len <= self.capacity();
        if fits {
            self.len = len as u32;
        }
        fits
    }

    /// Replaces the frame by a copy of `bytes`; `false`, and nothing changed, if it does not fit.
    #[must_use]
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.capacity();
        if fits {
            self.len = bytes.len() as u32;
            self.copy_from_slice(bytes);
        }
        fits
    }

    /// Opens `n` bytes in front of the frame; `None`, and nothing changed, if the headroom is smaller.
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        self.headroom().checked_sub(n)?;
        self.offset -= n as i32;
        self.len += n as u32;
        Some(&mut self[..n])
    }

    /// Cuts `n` bytes off the front; `false`, and nothing changed, if the frame is shorter.
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        let fits = n <= self.len as usize;
        if fits {
            self.offset += n as i32;
            self.len -= n as u32;
        }
        fits
    }

    /// Where a device finds the frame.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.slot().iova.wrapping_add_signed(i64::from(self.offset))
    }
}

impl Deref for Packet {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: offset and length together are inside the buffer (kept by every method), which this packet owns;
        // regions are zeroed at first, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(self.slot().data.offset(self.offset as isize), self.len as usize) }
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.slot().data.offset(self.offset as isize), self.len as usize) }
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packet({} bytes, slot {})", self.len, self.slot().index)
    }
}
