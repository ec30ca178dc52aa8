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
    /// Cuts the frame down to `len` bytes; `false`, and nothing changed, if it is shorter. Counts this buffer alone.
    #[inline]
    #[must_use]
    pub fn truncate(&mut self, len: usize) -> bool {
        let fits = len <= self.len as usize;
        if fits {
            self.len = len as u32;
        }
        fits
    }
}

impl Reclaimer {
    /// Takes a packet's buffer back, with those of its further segments.
    #[inline]
    pub fn add_packet(&mut self, packet: Packet) {
        if packet.is_chained() {
            return drop(packet);
        }
        let packet = ManuallyDrop::new(packet);
        self.add_all(&[packet.buffer.home()], |home| *home);
    }
}
