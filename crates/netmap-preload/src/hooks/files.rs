//! `open`, `ioctl` and `mmap`.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr;
use std::sync::Arc;

use libc::{O_ACCMODE, O_CLOEXEC, O_RDONLY, c_char, c_int, c_ulong, c_void, mode_t, off_t, size_t};
use rustix::event::epoll;
use rustix::io::Errno;

use super::{Entry, TABLE, answer, netmap, watch_forks};
use crate::control::{self, Program};
use crate::open::Open;
use crate::{next, parameter};

/// A descriptor of `/dev/netmap`, or of the [`parameter`], if one of them is what is opened.
///
/// # Safety
/// A path is a text that ends, or null.
unsafe fn open_netmap(path: *const c_char, flags: c_int) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a text that ends, as promised.
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
    watch_forks();
    let open = Open::new()?;
    let close_on_exec = if flags & O_CLOEXEC != 0 { epoll::CreateFlags::CLOEXEC } else { epoll::CreateFlags::empty() };
    // Nothing can be read of it, written to it, or comes of it.
    let fd = epoll::create(close_on_exec)?;
    TABLE.set(fd.as_raw_fd(), Some(Arc::new(Entry::Netmap(Arc::new(open))))).map_err(|_| Errno::MFILE)?;
    Ok(fd.into_raw_fd())
}

macro_rules! opens {
    ($($name:ident($($folder:ident)? ; $($mode:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($folder: c_int,)? path: *const c_char, flags: c_int $(, $mode: mode_t)?) -> c_int {
            // SAFETY: as the program promises.
            match unsafe { open_netmap(path, flags) } {
                Some(fd) => fd,
                // SAFETY: likewise.
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

/// The program's own memory. Programs promise that what they name is there.
struct Memory;

impl Program for Memory {
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno> {
        if at == 0 {
            return Err(Errno::FAULT);
        }
        let mut bytes = [0; N];
        // SAFETY: the program has called `ioctl` with this address, or named it in what lies there, for so many bytes.
        unsafe { ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), N) };
        Ok(bytes)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        if at == 0 {
            return Err(Errno::FAULT);
        }
        // SAFETY: as above; netmap answers in place.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(open) = netmap(fd) {
        let before = next::errno();
        if let Some(result) = control::ioctl(&open, request, argument as u64, &mut Memory) {
            return answer(before, result.map(|()| 0));
        }
    }
    // SAFETY: as the program promises.
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
            let open = if flags & libc::MAP_ANONYMOUS == 0 { netmap(fd) } else { None };
            let fd = match open.as_ref().map(|open| open.port()) {
                None => fd,
                Some(Some(registered)) if fits(len, offset, registered.port().granted().memory_size) => {
                    registered.port().memory().as_raw_fd()
                }
                Some(_) => {
                    next::set_errno(libc::EINVAL);
                    return libc::MAP_FAILED;
                }
            };
            // SAFETY: as the program promises.
            unsafe { next::$name(at, len, protection, flags, fd, offset) }
        }
    )*};
}

mmaps! { mmap mmap64 }

/// Whether it lies in the memory.
fn fits(len: size_t, offset: off_t, size: u64) -> bool {
    u64::try_from(offset).ok().and_then(|offset| offset.checked_add(len as u64)).is_some_and(|end| end <= size)
}
