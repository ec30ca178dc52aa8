//! Frames in the program's own memory: slots with `NS_INDIRECT`, on the Tx rings of VALE ports.
//!
//! The switch is another process and cannot read there, so a sync copies such a frame into the slot's buffer first.

use std::ptr::NonNull;

use netmap::{Buffers, Flags, PortRing, Ring, Slot};

use crate::next;

/// Copies the frames, or fragments, of the slots that the next sync passes on and that have the flag, into the slots'
/// buffers, and clears the flag. It stays where the address is invalid or the frame longer than the buffer, and the
/// switch drops such a frame.
#[inline]
pub fn copy_frames(ring: &PortRing, buffers: &Buffers) {
    copy_range(ring, ring.unpassed(), buffers);
}

/// Like [`copy_frames`], for a program in CSB mode, which has released the slots before `head`.
pub fn copy_frames_until(ring: &PortRing, head: u32, buffers: &Buffers) {
    copy_range(ring, ring.unpassed_until(head, head), buffers);
}

#[inline]
fn copy_range(ring: &PortRing, (first, count): (u32, u32), buffers: &Buffers) {
    if ring.ring().flags(first, count).any(Flags::INDIRECT) {
        copy_each(ring.ring(), (first, count), buffers);
    }
}

#[cold]
#[inline(never)]
fn copy_each(ring: &Ring, (first, count): (u32, u32), buffers: &Buffers) {
    let errno = next::errno();
    for position in (first..first + count).map(|at| at % ring.slots()) {
        let slot = ring.slot(position);
        if slot.flags.any(Flags::INDIRECT)
            && let Some(to) = buffers.at(slot.buffer, 0, slot.len.into())
            && read_own(slot.pointer, to, slot.len.into())
        {
            ring.set(position, Slot { flags: Flags(slot.flags.0 & !Flags::INDIRECT.0), ..slot });
        }
    }
    next::set_errno(errno);
}

/// Copies `len` bytes at an address of this program, which may be invalid, to `to`. Returns whether all were copied.
/// The kernel makes the copy, because it finds out whether the address is valid; it permits this for one's own memory.
pub fn read_own(from: u64, to: NonNull<u8>, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let to = libc::iovec { iov_base: to.as_ptr().cast(), iov_len: len };
    let from = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    // SAFETY: `to` are `len` bytes of a buffer by the caller's check, in memory that is mapped to be written and to which
    // only raw pointers lead. `from` is only read, and by the kernel, which checks it. Both arrays have one element.
    unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) == len as isize }
}
