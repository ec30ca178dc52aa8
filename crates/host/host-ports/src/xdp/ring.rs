//! The rings that an AF_XDP socket shares with the kernel (Linux, networking/af_xdp, "Rings"): each side moves one of two indices, which
//! count on and wrap at 2^32.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// Flag of a ring: the kernel wants a system call to go on (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// A ring of entries `T`, mapped. The mapping keeps the socket open.
struct Ring<T> {
    start: NonNull<u8>,
    len: usize,
    offsets: XdpRingOffset,
    mask: u32,
    entries: NonNull<T>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and only this value uses it.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring with `entries` entries, a power of two, as the socket was told before.
    fn map(socket: &OwnedFd, place: u64, offsets: XdpRingOffset, entries: u32) -> io::Result<Self> {
        assert!(entries.is_power_of_two());
        let len = usize::try_from(offsets.desc).ok();
        let len = len
            .and_then(|desc| desc.checked_add(entries as usize * size_of::<T>()))
            .ok_or(io::ErrorKind::InvalidData)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no existing one.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, socket, place)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        // SAFETY: the mapping has `offsets.desc` bytes in front of the entries, as its length was computed from that.
        let first = unsafe { start.add(offsets.desc as usize) }.cast();
        let ring = Self { start, len, offsets, mask: entries - 1, entries: first };
        let words = [Some(offsets.producer), Some(offsets.consumer), offsets.flags].into_iter().flatten();
        let inside = words.into_iter().all(|offset| offset.is_multiple_of(4) && offset.saturating_add(4) <= len as u64);
        if !inside || !offsets.desc.is_multiple_of(align_of::<T>() as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(ring)
    }

    /// Number of entries.
    fn size(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `map` has checked that the word at each of the three offsets with which this is called is aligned and inside the
        // mapping, which lasts as long as `self`. Both sides access it as an atomic only.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset as usize).cast()) }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the mapping has `mask + 1` entries from the first one on, and the index is at most `mask`.
        unsafe { self.entries.as_ptr().add((index & self.mask) as usize) }
    }

    /// Returns whether the kernel wants to be woken. What was submitted before is visible to the kernel before it is asked.
    #[inline]
    fn needs_wakeup(&self) -> bool {
        fence(SeqCst);
        self.offsets.flags.is_some_and(|offset| self.word(offset).load(Relaxed) & NEED_WAKEUP != 0)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly the mapping that `map` made; no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A ring that this process fills: fill ring or Tx ring.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Index of the next entry to fill.
    next: u32,
    /// The kernel's index, as read last.
    taken: u32,
}

impl<T: Copy> Producer<T> {
    /// Maps a ring at a place of the socket's file (`XDP_PGOFF_*`).
    pub(super) fn map(socket: &OwnedFd, place: u64, offsets: XdpRingOffset, entries: u32) -> io::Result<Self> {
        let ring = Ring::map(socket, place, offsets, entries)?;
        let (next, taken) = (ring.producer().load(Relaxed), ring.consumer().load(Acquire));
        Ok(Self { ring, next, taken })
    }

    /// Number of free entries, up to date if there are fewer than `wanted`.
    #[inline]
    pub(super) fn free(&mut self, wanted: u32) -> u32 {
        let free = |ring: &Ring<T>, next: u32, taken: u32| ring.size().saturating_sub(next.wrapping_sub(taken));
        if free(&self.ring, self.next, self.taken) < wanted {
            // Acquire: the kernel has read the entries before this process overwrites them.
            self.taken = self.ring.consumer().load(Acquire);
        }
        free(&self.ring, self.next, self.taken)
    }

    /// Fills the next entry. There must be a free one.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: `entry` is inside the mapping. The kernel does not read it before `submit` has moved the producer's index over it.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Passes the entries to the kernel.
    #[inline]
    pub(super) fn submit(&self) {
        // Release: the entries, and the frames that they name, are visible before the index.
        self.ring.producer().store(self.next, Release);
    }

    /// Number of submitted entries that the kernel has not taken.
    pub(super) fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Relaxed))
    }

    /// Returns whether the kernel wants a system call to go on.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that the kernel fills: Rx ring or completion ring.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Index of the next entry to read.
    next: u32,
    /// The kernel's index, as read last.
    filled: u32,
}

impl<T: Copy> Consumer<T> {
    /// Maps a ring at a place of the socket's file (`XDP_PGOFF_*`).
    pub(super) fn map(socket: &OwnedFd, place: u64, offsets: XdpRingOffset, entries: u32) -> io::Result<Self> {
        let ring = Ring::map(socket, place, offsets, entries)?;
        let (next, filled) = (ring.consumer().load(Relaxed), ring.producer().load(Acquire));
        Ok(Self { ring, next, filled })
    }

    /// Number of filled entries, at most `wanted`.
    #[inline]
    pub(super) fn filled(&mut self, wanted: u32) -> u32 {
        if self.filled.wrapping_sub(self.next) < wanted {
            // Acquire: the entries, and the frames that they name, are read after the index.
            self.filled = self.ring.producer().load(Acquire);
        }
        self.filled.wrapping_sub(self.next).min(wanted).min(self.ring.size())
    }

    /// Takes the next entry. There must be a filled one.
    #[inline]
    pub(super) fn take(&mut self) -> T {
        // SAFETY: the entry is inside the mapping, of a type without invalid values, and the kernel does not write it before
        // `release` has moved the consumer's index over it.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Returns the entries taken to the kernel.
    #[inline]
    pub(super) fn release(&self) {
        // Release: the entries were read before the kernel writes them again.
        self.ring.consumer().store(self.next, Release);
    }
}
