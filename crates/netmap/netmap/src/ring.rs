//! A ring in shared memory, for either side.

use std::ops::BitOr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ringpass_memory::{Cells, Memory};

use crate::layout::{RingHeader, SLOT_BYTES, SlotWords};

/// A ring: its header and slots.
///
/// The other side may write all of it at any time. Only the number of slots is fixed: [`new`](Self::new) has
/// checked that they lie in the memory.
pub struct Ring {
    header: Cells<RingHeader>,
    slots: Cells<SlotWords>,
}

/// Flags of a slot (`NS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// The slot's buffer was replaced, or its content changed (`NS_BUF_CHANGED`).
    pub const BUFFER_CHANGED: Self = Self(1);
    /// Report when this slot has been sent (`NS_REPORT`).
    pub const REPORT: Self = Self(2);
    /// Forward the frame to the host's stack, or from there to the card (`NS_FORWARD`).
    pub const FORWARD: Self = Self(4);
    /// A VALE switch does not learn the frame's source address (`NS_NO_LEARN`). For a frame in several slots,
    /// one slot with the flag is enough.
    pub const NO_LEARN: Self = Self(8);
    /// The slot's pointer is the address of the frame (`NS_INDIRECT`).
    pub const INDIRECT: Self = Self(0x10);
    /// The frame continues in the next slot (`NS_MOREFRAG`).
    pub const MORE_FRAGMENTS: Self = Self(0x20);
    /// On a monitor, a frame that the monitored port has sent (`NS_TXMON`).
    pub const TX_MONITOR: Self = Self(0x40);

    /// Whether any of these flags is set.
    #[inline]
    pub fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Number of slots of the frame, which a VALE switch writes into each of them for the receiver
    /// (`NS_RFRAGS`).
    pub fn fragments(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Contents of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Index of the buffer.
    pub buffer: u32,
    /// Bytes of the frame, or of this fragment of it.
    pub len: u16,
    /// Flags of the slot.
    pub flags: Flags,
    /// Offset of the frame in the buffer, or its address.
    pub pointer: u64,
}

impl Ring {
    /// Returns the ring with `slots` slots at `offset` of the memory; `None` if it is not inside the memory, or
    /// not aligned.
    pub fn new(memory: &Memory, offset: usize, slots: u32) -> Option<Self> {
        let behind = offset.checked_add(size_of::<RingHeader>())?;
        Some(Self { header: memory.cells(offset, 1)?, slots: memory.cells(behind, slots as usize)? })
    }

    /// Bytes of a ring with `slots` slots, including its header.
    pub const fn bytes(slots: u32) -> usize {
        size_of::<RingHeader>() + slots as usize * SLOT_BYTES
    }

    /// Number of slots.
    #[inline]
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The ring's header.
    #[inline]
    pub fn header(&self) -> &RingHeader {
        &self.header[0]
    }

    /// Reads a slot. Buffer, length and flags are read in one access.
    #[inline]
    pub fn slot(&self, position: u32) -> Slot {
        let [word, pointer] = &self.slots[position as usize];
        let word = word.load(Relaxed);
        Slot {
            buffer: word as u32,
            len: (word >> 32) as u16,
            flags: Flags((word >> 48) as u16),
            pointer: pointer.load(Relaxed),
        }
    }

    /// Returns all flags that occur in `count` slots from position `first` on; after the last slot comes the first.
    ///
    /// # Panics
    /// If there is no such position.
    #[inline]
    pub fn flags(&self, first: u32, count: u32) -> Flags {
        let (start, rest) = self.slots.split_at(first as usize);
        let straight = (count as usize).min(rest.len());
        let wrapped = (count as usize - straight).min(start.len());
        let any = |slots: &[SlotWords]| slots.iter().fold(0, |all, [word, _]| all | word.load(Relaxed));
        Flags(((any(&rest[..straight]) | any(&start[..wrapped])) >> 48) as u16)
    }

    /// Writes a slot.
    #[inline]
    pub fn set(&self, position: u32, slot: Slot) {
        self.set_frame(position, slot.buffer, slot.len, slot.flags);
        self.slots[position as usize][1].store(slot.pointer, Relaxed);
    }

    /// Writes all of a slot but its pointer, in one access.
    #[inline]
    pub fn set_frame(&self, position: u32, buffer: u32, len: u16, flags: Flags) {
        let word = u64::from(buffer) | u64::from(len) << 32 | u64::from(flags.0) << 48;
        self.slots[position as usize][0].store(word, Relaxed);
    }

    /// Writes a slot unless it already holds this value: without the write, its cache line can stay shared
    /// between cores.
    #[inline]
    pub fn set_new(&self, position: u32, slot: Slot) {
        if self.slot(position) != slot {
            self.set(position, slot);
        }
    }

    /// Loads `head`, then `cur` (Acquire); slots may be read afterwards.
    #[inline]
    pub fn head_and_cur(&self) -> (u32, u32) {
        let head = self.header().head.load(Acquire);
        (head, self.header().cur.load(Acquire))
    }

    /// Resets the application's `head` and `cur` to `head`, and `tail`, after it has set invalid positions.
    #[cold]
    pub fn restart(&self, head: u32, tail: u32) {
        self.header().cur.store(head, Relaxed);
        self.header().head.store(head, Relaxed);
        self.set_tail(tail);
    }

    /// Publishes `tail`, the end of the application's slots (Release): slots written before are visible with
    /// it.
    #[inline]
    pub fn set_tail(&self, tail: u32) {
        self.header().tail.store(tail, Release);
    }
}
