//! A ring in shared memory, whichever side looks at it.

use std::ops::BitOr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::layout::{RingHeader, SlotWords};
use crate::{Cells, Memory};

/// A ring: its header and slots. What it says is the other side's word, but for the number of slots, which was checked.
pub struct Ring {
    header: Cells<RingHeader>,
    slots: Cells<SlotWords>,
}

/// Flags of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// The slot has another buffer than before, or its buffer other content.
    pub const BUFFER_CHANGED: Self = Self(1);
    /// Tell when this one is sent.
    pub const REPORT: Self = Self(2);
    /// To the host's stack, or from it to the card.
    pub const FORWARD: Self = Self(4);
    /// A VALE switch is not to learn from this frame where its source is. Of a frame in several slots, any may say so.
    pub const NO_LEARN: Self = Self(8);
    /// The slot's pointer is where the frame lies.
    pub const INDIRECT: Self = Self(0x10);
    /// The frame goes on in the next slot.
    pub const MORE_FRAGMENTS: Self = Self(0x20);

    /// Whether it has any of these.
    pub fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// How many slots a frame takes, in each of them, as a VALE switch tells who receives it.
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

/// What stands in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Index of the buffer.
    pub buffer: u32,
    /// Bytes of the frame, or of its part.
    pub len: u16,
    /// See [`Flags`].
    pub flags: Flags,
    /// An offset into the buffer, or a pointer.
    pub pointer: u64,
}

impl Ring {
    /// A ring of so many slots at an offset of the memory; `None` if it is not inside, or not aligned.
    pub fn new(memory: &Memory, offset: usize, slots: u32) -> Option<Self> {
        let behind = offset.checked_add(size_of::<RingHeader>())?;
        Some(Self { header: memory.cells(offset, 1)?, slots: memory.cells(behind, slots as usize)? })
    }

    /// Bytes of a ring with so many slots.
    pub const fn bytes(slots: u32) -> usize {
        size_of::<RingHeader>() + slots as usize * size_of::<SlotWords>()
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Its header.
    pub fn header(&self) -> &RingHeader {
        &self.header[0]
    }

    /// Reads a slot. Buffer, length and flags are read at once.
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

    /// Writes a slot.
    #[inline]
    pub fn set(&self, position: u32, slot: Slot) {
        self.set_frame(position, slot.buffer, slot.len, slot.flags);
        self.slots[position as usize][1].store(slot.pointer, Relaxed);
    }

    /// Writes all of a slot but its pointer.
    #[inline]
    pub fn set_frame(&self, position: u32, buffer: u32, len: u16, flags: Flags) {
        let word = u64::from(buffer) | u64::from(len) << 32 | u64::from(flags.0) << 48;
        self.slots[position as usize][0].store(word, Relaxed);
    }

    /// Writes a slot, if something else stands there: as long as nothing changes, its cache line may be with several cores.
    #[inline]
    pub fn set_new(&self, position: u32, slot: Slot) {
        if self.slot(position) != slot {
            self.set(position, slot);
        }
    }

    /// What the application says: `head`, before `cur`, before the slots.
    #[inline]
    pub fn said(&self) -> (u32, u32) {
        let head = self.header().head.load(Acquire);
        (head, self.header().cur.load(Acquire))
    }

    /// After an application has said what cannot be: its positions are these.
    #[cold]
    pub fn restart(&self, head: u32, tail: u32) {
        self.header().cur.store(head, Relaxed);
        self.header().head.store(head, Relaxed);
        self.tell(tail);
    }

    /// Tells the application what is its own. What was written into slots before is seen before it.
    #[inline]
    pub fn tell(&self, tail: u32) {
        self.header().tail.store(tail, Release);
    }
}
