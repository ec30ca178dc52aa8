//! Buffers that come and go one by one: what virtqueues need, whose devices may give them back in any order.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU16, AtomicU32};

use crate::{Atomics, Buffer, Flags, Packet, Reclaimer};

// SAFETY: an atomic integer.
unsafe impl Atomics for AtomicU16 {}
// SAFETY: an array of two atomics has no padding.
unsafe impl Atomics for [AtomicU32; 2] {}

impl Buffer {
    /// A packet of all the bytes behind the usual headroom, whatever they hold.
    #[inline]
    pub fn into_whole(self) -> Packet {
        let len = self.slot().size;
        Packet { buffer: self, offset: 0, flags: Flags::default(), len }
    }
}

impl Packet {
    /// The part of the frame from `front` to `end`, moved out by copying; `None` if it is shorter.
    ///
    /// # Safety
    /// If there is a part, this packet is forgotten: neither used nor dropped.
    #[inline]
    pub unsafe fn copy_part(&self, front: usize, end: usize) -> Option<Packet> {
        if end > self.len as usize || front > end {
            return None;
        }
        // SAFETY: this copy is the only one used, says the caller.
        let buffer = unsafe { std::ptr::read(&self.buffer) };
        // Inside the frame, whose bounds fit these types.
        let (offset, len) = (self.offset + front as i16, (end - front) as u32);
        Some(Packet { buffer, offset, flags: self.flags, len })
    }

    /// The frame with `N` bytes of zeros in front of it, moved out by copying; `None` if the headroom is smaller.
    ///
    /// # Safety
    /// If there is one, this packet is forgotten: neither used nor dropped.
    #[inline]
    pub(crate) unsafe fn copy_behind_zeros<const N: usize>(&self) -> Option<Packet> {
        if self.headroom() < N {
            return None;
        }
        // SAFETY: this copy is the only one used, says the caller.
        let buffer = unsafe { std::ptr::read(&self.buffer) };
        // Inside the headroom, which fits these types.
        let (offset, len) = (self.offset - N as i16, self.len + N as u32);
        // SAFETY: the first bytes of the packet that is made, which lie in its buffer's headroom.
        unsafe { buffer.slot().data.offset(offset as isize).cast::<[u8; N]>().write([0; N]) };
        Some(Packet { buffer, offset, flags: self.flags, len })
    }
}

impl Reclaimer {
    /// Takes a buffer back.
    #[inline]
    pub fn add_one(&mut self, buffer: Buffer) {
        let (pool, slot) = ManuallyDrop::new(buffer).home();
        match self.slots.get_mut(self.len).filter(|_| pool == self.pool) {
            Some(place) => *place = slot,
            None => {
                self.flush();
                (self.pool, self.slots[0]) = (pool, slot);
            }
        }
        self.len += 1;
    }
}
