//! The buffers of a region, as anybody who has mapped it reaches them: copies in and out, by raw pointers only. Others may write
//! them at any time; then a copy has some of either.

use std::ptr::NonNull;

use ringpass_memory::{RawBytes, copy};

use crate::layout::RESERVED_BUFFERS;
use crate::{Memory, Pools, Slot};

/// Buffers of one size, all of which lie in a memory. Whoever has a slot is to leave its buffer to whoever has it next; what
/// others do with theirs all the same changes bytes and nothing else, as no reference into a buffer is ever made.
#[derive(Clone)]
pub struct Buffers {
    memory: Memory,
    /// Where buffer 0 lies, which is nobody's.
    start: NonNull<u8>,
    count: u32,
    stride: usize,
}

// SAFETY: the pointer is into the memory, which is kept, and may be used from any thread.
unsafe impl Send for Buffers {}
// SAFETY: as above; nothing but copies and raw pointers is handed out.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// `count` buffers of `size` bytes each (64 to 65,536), from an offset of the memory on; `None` if they are not all inside.
    pub fn new(memory: &Memory, start: usize, count: u32, size: u32) -> Option<Self> {
        let stride = size as usize;
        let start = memory.bytes(start, stride.checked_mul(count as usize)?)?;
        let (memory, right) = (memory.clone(), (64..=1 << 16).contains(&stride) && count > RESERVED_BUFFERS);
        right.then_some(Self { memory, start, count, stride })
    }

    /// Those of a region of ours.
    pub fn of(memory: &Memory, pools: &Pools) -> Option<Self> {
        Self::new(memory, pools.buffers_at(), pools.buffers, pools.buffer_size)
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Bytes of a buffer that a slot can speak of.
    #[inline]
    pub fn size(&self) -> usize {
        self.stride.min(u16::MAX.into())
    }

    /// Whether somebody may have such a buffer, and so many bytes fit into it.
    #[inline(always)]
    pub fn holds(&self, buffer: u32, len: usize) -> bool {
        buffer.wrapping_sub(RESERVED_BUFFERS) < self.count - RESERVED_BUFFERS && len <= self.stride
    }

    /// So many bytes of a buffer from an offset on; `None` if there are none such.
    #[inline(always)]
    pub fn at(&self, buffer: u32, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let right = self.holds(buffer, len) && offset <= self.stride - len;
        // SAFETY: all buffers lie in the memory, one behind the other; this is one of them, and so much of it is there.
        right.then(|| unsafe { self.start.add(buffer as usize * self.stride + offset) })
    }

    /// Copies bytes of a buffer to `out`; `false` if there is no such buffer, or not so much in it.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, buffer: u32, offset: usize, out: &mut [u8]) -> bool {
        let from = self.raw(buffer, offset, out.len());
        if let Some(from) = from {
            from.read(0, out);
        }
        from.is_some()
    }

    /// So many bytes of a buffer from an offset on, to be copied; `None` if there are none such.
    #[inline(always)]
    pub fn raw(&self, buffer: u32, offset: usize, len: usize) -> Option<RawBytes<'_>> {
        // SAFETY: `at` checked that the bytes lie in the memory, which stays mapped as long as `self` is borrowed and is
        // initialised as all mappings are. Nobody makes a reference into it.
        self.at(buffer, offset, len).map(|start| unsafe { RawBytes::new(start.as_ptr(), len) })
    }

    /// Copies bytes to a buffer; `false` if there is no such buffer, or not so much room.
    #[inline(always)]
    #[must_use]
    pub fn put<'a>(&self, buffer: u32, offset: usize, bytes: impl Into<RawBytes<'a>>) -> bool {
        let bytes = bytes.into();
        let to = self.at(buffer, offset, bytes.len());
        if let Some(to) = to {
            // SAFETY: `at` checked that as many bytes lie in the memory, which stays mapped as long as `self` is borrowed and to
            // which only raw pointers lead; `bytes` can be read, by its type's promise.
            unsafe { copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        }
        to.is_some()
    }

    /// The frame, or part of one, of a slot: as many bytes as it says. `None` if there is no such buffer, or not so much
    /// room in it.
    #[inline]
    pub fn bytes(&self, slot: Slot) -> Option<NonNull<[u8]>> {
        let start = self.at(slot.buffer, 0, slot.len.into())?;
        Some(NonNull::slice_from_raw_parts(start, slot.len.into()))
    }

    /// Reads the frame of a slot into the first bytes of `out`. Returns how many; `None` if there is no such buffer or
    /// not so much room.
    #[inline]
    pub fn read(&self, slot: Slot, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..slot.len.into())?;
        self.get(slot.buffer, 0, out).then_some(out.len())
    }

    /// Writes a frame into the buffer of a slot, which has to say its length. Whether there is such a buffer.
    #[inline]
    #[must_use]
    pub fn write(&self, slot: Slot, frame: &[u8]) -> bool {
        frame.len() == usize::from(slot.len) && self.put(slot.buffer, 0, frame)
    }

    /// Copies the frame of a slot into the buffer of another one, of the same or of another memory. Whether there are such
    /// buffers, with room.
    #[inline]
    #[must_use]
    pub fn copy(&self, from: Slot, others: &Self, to: Slot) -> bool {
        let (from, to) = (self.bytes(from), others.bytes(Slot { len: from.len, ..to }));
        let (Some(from), Some(to)) = (from, to) else { return false };
        // SAFETY: as in `get`; both may be the same buffer, if somebody says so.
        unsafe { from.cast::<u8>().copy_to(to.cast(), from.len()) };
        true
    }
}
