//! `open`, `ioctl` and `mmap`.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libc::{O_ACCMODE, O_CLOEXEC, O_RDONLY, c_char, c_int, c_ulong, c_void, mode_t, off_t, size_t};
use rustix::io::Errno;

use super::{Entry, TABLE, adopt, answer, netmap, register_atfork};
use crate::control;
use crate::external_memory::{self, MemoryFile};
use crate::indirect::read_own;
use crate::open::Open;
use crate::refusal::Refusal;
use crate::user_memory::UserMemory;
use crate::{next, parameter};

/// Opens `/dev/netmap` or the file of the [`parameter`]; `None` for any other path.
///
/// # Safety
/// `path` is null, or points to a NUL-terminated string that lives as long as this call.
unsafe fn open_netmap(path: *const c_char, flags: c_int) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: `path` is not null, as checked above, so it points to a NUL-terminated string, by this function's
    // contract.
    let path = unsafe { CStr::from_ptr(path) };
    let before = next::errno();
    if path == c"/dev/netmap" {
        Some(answer(before, opened(flags)))
    } else if path == parameter::BUFFER_SIZE && flags & O_ACCMODE == O_RDONLY {
        Some(answer(before, parameter::buffer_size(flags & O_CLOEXEC != 0).map(IntoRawFd::into_raw_fd)))
    } else {
        None
    }
}

fn opened(flags: c_int) -> Result<c_int, Errno> {
    register_atfork();
    let (open, fd) = Open::new(flags & O_CLOEXEC != 0)?;
    TABLE.set(fd.as_raw_fd(), Some(Arc::new(Entry::Netmap(Arc::new(open))))).map_err(|_| Errno::MFILE)?;
    Ok(fd.into_raw_fd())
}

macro_rules! opens {
    ($($name:ident($($folder:ident)? ; $($mode:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($folder: c_int,)? path: *const c_char, flags: c_int $(, $mode: mode_t)?) -> c_int {
            // SAFETY: `path` is null or a NUL-terminated string: the program upholds the contract of `$name`,
            // and null is checked for.
            match unsafe { open_netmap(path, flags) } {
                Some(fd) => fd,
                // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
                // `$name`.
                None => unsafe { next::$name($($folder,)? path, flags $(, $mode)?) },
            }
        }
    )*};
}

opens! {
    open(; mode);
    open64(; mode);
    openat(folder; mode);
    openat64(folder; mode);
    __open_2(;);
    __open64_2(;);
    __openat_2(folder;);
    __openat64_2(folder;);
}

/// The program's own memory, accessed at addresses that the program has passed to `ioctl`.
struct Memory(());

impl Memory {
    /// Gives access to the memory of a program.
    ///
    /// # Safety
    /// It is used during a call of `ioctl`, at addresses that the program has passed to it or stored in a structure
    /// that it passed, for as many bytes as netmap's interface has there.
    unsafe fn of_ioctl() -> Self {
        Self(())
    }
}

impl UserMemory for Memory {
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno> {
        if at == 0 {
            return Err(Errno::FAULT);
        }
        let mut bytes = [0; N];
        // SAFETY: `at` is not 0, and `N` readable bytes lie there, as `of_ioctl` requires. `bytes` is a local array
        // of `N` bytes, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), N) };
        Ok(bytes)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        if at == 0 {
            return Err(Errno::FAULT);
        }
        // SAFETY: `at` is not 0, and netmap's interface lets the reply overwrite `bytes.len()` bytes there, as
        // `of_ioctl` requires. `bytes` is this library's, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    }

    fn map(&self, at: u64, len: usize) -> Result<ringpass_memory::Memory, Errno> {
        let start = NonNull::new(at as *mut u8).ok_or(Errno::FAULT)?;
        let mut copy = vec![0_u8; len];
        if !read_own(at, NonNull::from(copy.as_mut_slice()).cast(), len) {
            return Err(Errno::FAULT);
        }
        // SAFETY: all bytes were read just now, so they are mapped. netmap's interface has the program keep them and share them,
        // as `of_ioctl` requires.
        Ok(unsafe { ringpass_memory::Memory::borrowed(start, len) })
    }

    fn file_of(&mut self, at: u64, len: u64) -> Result<MemoryFile, Errno> {
        // SAFETY: the program gives this memory to netmap, as `of_ioctl` requires.
        unsafe { external_memory::file_of(at, len) }
    }

    fn duplicate(&self, fd: c_int) -> Result<OwnedFd, Errno> {
        // SAFETY: borrowed for the call only. A number that is not open is an error of `fcntl`; -1 is excluded by the check.
        let fd = if fd < 0 { Err(Errno::BADF) } else { Ok(unsafe { BorrowedFd::borrow_raw(fd) }) };
        rustix::io::fcntl_dupfd_cloexec(fd?, 0)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(open) = netmap(fd).or_else(|| control::is_netmaps(request).then(|| adopt(fd)).flatten()) {
        let before = next::errno();
        // SAFETY: `control::ioctl` accesses memory at `argument` and at addresses in structures there, as netmap's
        // interface defines them.
        let mut memory = unsafe { Memory::of_ioctl() };
        if let Some(result) = control::ioctl(&open, request, argument as u64, &mut memory) {
            let refused = |refusal: Refusal| {
                refusal.log();
                refusal.errno
            };
            return answer(before, result.map(|()| 0).map_err(refused));
        }
    }
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `ioctl`.
    unsafe { next::ioctl(fd, request, argument) }
}

macro_rules! mmaps {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            at: *mut c_void,
            len: size_t,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            // SAFETY: the arguments are passed on from the program, which upholds the contract of `$name`; only
            // `fd` and `offset` may be replaced, by a file that has as many bytes from there on, as `fits` has checked.
            let map = |fd, offset| unsafe { next::$name(at, len, protection, flags, fd, offset) };
            let mut open = if flags & libc::MAP_ANONYMOUS == 0 { netmap(fd) } else { None };
            if open.is_none() {
                let mapped = map(fd, offset);
                if mapped != libc::MAP_FAILED || next::errno() != libc::ENODEV {
                    return mapped;
                }
                // Connections cannot be mapped; this one may be a port that came from another process.
                open = adopt(fd);
            }
            let (fd, offset) = match open.as_ref().map(|open| open.port()) {
                None => (fd, offset),
                Some(Some(registered)) if fits(len, offset, registered.port().granted().memory_size) => {
                    let port = registered.port();
                    (port.memory().as_raw_fd(), offset + port.memory_offset() as off_t)
                }
                Some(_) => {
                    next::set_errno(libc::EINVAL);
                    return libc::MAP_FAILED;
                }
            };
            map(fd, offset)
        }
    )*};
}

mmaps! { mmap mmap64 }

/// Whether the range lies in a memory of `size` bytes.
fn fits(len: size_t, offset: off_t, size: u64) -> bool {
    u64::try_from(offset).ok().and_then(|offset| offset.checked_add(len as u64)).is_some_and(|end| end <= size)
}
