//! Buffers and packets: handles to the same thing, without and with a frame in it.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::Flags;
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
    pub(crate) unsafe fn new(slot: SlotRef) -> Self {
        Self(slot)
    }

    pub(crate) fn slot(&self) -> &Slot {
        // SAFETY: a buffer is outside the depot, so it counts as a reference to its pool, which owns the slot.
        unsafe { self.0.as_ref() }
    }

    /// Its pool, and its slot there.
    pub(crate) fn home(&self) -> (NonNull<Shared>, SlotRef) {
        (self.slot().pool, self.0)
    }

    /// Where a device is to write a frame, behind the usual headroom.
    pub fn iova(&self) -> u64 {
        self.slot().iova
    }

    /// A packet of the `len` bytes that lie behind the usual headroom.
    ///
    /// # Safety
    /// `len` is at most the pool's buffer size.
    pub unsafe fn into_packet(self, len: usize) -> Packet {
        debug_assert!(len <= self.slot().size as usize);
        Packet { buffer: self, offset: 0, flags: Flags::default(), len: len as u32 }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (pool, slot) = self.home();
        // SAFETY: the handle's own slot, given up here.
        unsafe { put(pool, &[slot]) };
    }
}

/// One Ethernet frame (without its checksum) in a buffer. Others may write its bytes at the same time, so these are copied
/// in and out ([`bytes`](Self::bytes), [`write`](Self::write)), never referred to:
///
/// ```compile_fail
/// fn frame(packet: &ringpass_memory::Packet) -> &[u8] {
///     packet
/// }
/// ```
///
/// Dropping it returns the buffer, on any thread. Packets that are many are better dropped as a
/// [`Burst`](crate::Burst), which returns them together.
#[derive(Debug)]
pub struct Packet {
    pub(crate) buffer: Buffer,
    /// Where the frame starts, from the end of the usual headroom: at least `-HEADROOM`.
    pub(crate) offset: i16,
    pub(crate) flags: Flags,
    /// The sum of `offset` and `len` is at most the slot's size.
    pub(crate) len: u32,
}

impl Packet {
    /// The buffer, without knowledge of the frame. Further segments are dropped.
    pub fn into_buffer(mut self) -> Buffer {
        if self.is_chained() {
            self.drop_rest();
        }
        let packet = ManuallyDrop::new(self);
        // SAFETY: the packet is not used again, nor dropped.
        unsafe { std::ptr::read(&packet.buffer) }
    }

    /// As [`into_buffer`](Self::into_buffer), for a packet that is moved out by copying.
    ///
    /// # Safety
    /// The packet has no further segments, and is forgotten: neither used nor dropped.
    #[inline]
    pub unsafe fn copy_buffer(&self) -> Buffer {
        debug_assert!(!self.is_chained());
        // SAFETY: this copy is the only one used, says the caller.
        unsafe { std::ptr::read(&self.buffer) }
    }

    /// Bytes of the frame, or of its part in the first buffer if [segments](Self::segments) follow.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Where a device finds the frame.
    pub fn iova(&self) -> u64 {
        self.buffer.slot().iova.wrapping_add_signed(i64::from(self.offset))
    }
}
