//! A packet: a handle to one buffer, held by value.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::HEADROOM;
use crate::cache::Owed;
use crate::pool::{Shared, put};

/// One Ethernet frame (without its checksum) in a buffer of a mempool. Derefs to the frame's bytes.
///
/// Dropping it returns the buffer, on any thread. Packets that are many are better dropped as a
/// [`Burst`](crate::Burst), which returns them together.
pub struct Packet {
    data: NonNull<u8>,
    pool: NonNull<Shared>,
    slot: u32,
    headroom: u16,
    len: u16,
}

// SAFETY: a packet owns its buffer; its pool is `Sync`.
unsafe impl Send for Packet {}
// SAFETY: shared references only read.
unsafe impl Sync for Packet {}

impl Packet {
    /// # Safety
    /// `data` is `HEADROOM` bytes into the buffer of `slot` in `pool`, which the caller owns outside the depot and
    /// gives up; `len` bytes fit behind it.
    #[inline]
    pub(crate) unsafe fn new(data: NonNull<u8>, pool: NonNull<Shared>, slot: u32, len: u16) -> Self {
        Self { data, pool, slot, headroom: HEADROOM as u16, len }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: a packet is outside the depot, so it counts as a reference to its pool.
        unsafe { self.pool.as_ref() }
    }

    /// Bytes free in front of the frame.
    pub fn headroom(&self) -> usize {
        self.headroom as usize
    }

    /// Bytes that the frame can have at most from where it starts now.
    pub fn capacity(&self) -> usize {
        HEADROOM - self.headroom as usize + self.shared().size
    }

    /// Sets the frame's length. Bytes gained keep what the buffer held before.
    ///
    /// # Panics
    /// If `len` is above [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a frame of {len} bytes in a buffer of {}", self.capacity());
        self.len = len as u16;
    }

    /// Replaces the frame by a copy of `bytes`; `false`, and nothing changed, if it does not fit.
    #[must_use]
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.capacity();
        if fits {
            self.len = bytes.len() as u16;
            self.copy_from_slice(bytes);
        }
        fits
    }

    /// Opens `n` bytes in front of the frame; `None`, and nothing changed, if the headroom is smaller or the frame
    /// would be longer than 65,535 bytes.
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let len = u16::try_from(self.len as usize + n).ok()?;
        self.headroom = self.headroom.checked_sub(n as u16)?;
        self.len = len;
        // SAFETY: the headroom had at least `n` bytes, so this stays inside the buffer.
        self.data = unsafe { self.data.sub(n) };
        Some(&mut self[..n])
    }

    /// Cuts `n` bytes off the front; `false`, and nothing changed, if the frame is shorter.
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        let fits = n <= self.len as usize;
        if fits {
            self.headroom += n as u16;
            self.len -= n as u16;
            // SAFETY: `n` is at most the frame's length, so this stays inside the buffer.
            self.data = unsafe { self.data.add(n) };
        }
        fits
    }

    /// Where a device finds the frame.
    #[inline]
    pub fn iova(&self) -> u64 {
        // SAFETY: a packet's slot is inside its pool's table.
        unsafe { self.shared().slots.get_unchecked(self.slot as usize) }.iova + self.headroom as u64
    }

    /// Gives the handle up and keeps the buffer, for as long as a device reads it.
    #[inline]
    pub fn into_owed(self) -> Owed {
        let owed = Owed { pool: self.pool, slot: self.slot };
        std::mem::forget(self);
        owed
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: the packet's own slot, given up here.
        unsafe { put(self.pool, &[self.slot]) };
    }
}

impl Deref for Packet {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `data` are inside the buffer (kept by every method), which this packet owns;
        // regions are zeroed at first, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) }
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packet({} bytes, slot {})", self.len, self.slot)
    }
}
