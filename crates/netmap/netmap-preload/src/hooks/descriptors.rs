//! Functions that close or duplicate descriptors, or read and write them.

use libc::{F_DUPFD, F_DUPFD_CLOEXEC, c_int, c_long, c_uint, c_void, size_t, ssize_t};

use super::{TABLE, netmap, owns_table, remove};
use crate::next;

/// Duplicates `old` by `kernel`, to the number `to` if that is given. A port behind `old` is then behind the new
/// descriptor too, and one that was behind `to` no longer is.
fn duplicate(old: c_int, to: Option<c_int>, kernel: impl FnOnce() -> c_int) -> c_int {
    if TABLE.is_empty() || !owns_table() {
        return kernel();
    }
    let mut errno = 0;
    let kernel = || {
        let new = kernel();
        errno = next::errno();
        new
    };
    let new = match to {
        // A number that another thread may use too, now or at the same time.
        Some(_) => TABLE.duplicate(old, to, kernel),
        None if TABLE.get(old).is_some() => TABLE.duplicate(old, None, kernel),
        // The entry is of a descriptor that was closed behind this library's back.
        None => {
            let new = kernel();
            if new != old && TABLE.get(new).is_some() {
                remove(new);
            }
            new
        }
    };
    next::set_errno(errno);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if TABLE.get(fd).is_none() || !owns_table() {
        // SAFETY: the argument is passed on unchanged from the program, which upholds the contract of `close`.
        return unsafe { next::close(fd) };
    }
    let mut errno = 0;
    let result = TABLE.close(fd, || {
        // Not the C library's `close`: a thread that is cancelled in it would keep the lock.
        // SAFETY: the program upholds the contract of `close`, and the system call has no other.
        let result = unsafe { libc::syscall(libc::SYS_close, fd) } as c_int;
        errno = next::errno();
        result
    });
    next::set_errno(errno);
    result
}

fn untrack_range(first: c_uint, last: c_uint) {
    if !TABLE.is_empty() && owns_table() {
        let before = next::errno();
        TABLE.fds_in_range(first as usize..=last as usize).into_iter().for_each(remove);
        next::set_errno(before);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
        untrack_range(first, last);
    }
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
    // `close_range`.
    unsafe { next::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    untrack_range(first.max(0) as c_uint, c_uint::MAX);
    // SAFETY: the argument is passed on unchanged from the program, which upholds the contract of `closefrom`.
    unsafe { next::closefrom(first) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the argument is passed on unchanged from the program, which upholds the contract of `dup`.
    duplicate(fd, None, || unsafe { next::dup(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `dup2`.
    duplicate(fd, Some(to), || unsafe { next::dup2(fd, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `dup3`.
    duplicate(fd, Some(to), || unsafe { next::dup3(fd, to, flags) })
}

fn duplicates(command: c_int) -> bool {
    matches!(command, F_DUPFD | F_DUPFD_CLOEXEC)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `fcntl`.
    let kernel = || unsafe { next::fcntl(fd, command, argument) };
    if duplicates(command) { duplicate(fd, None, kernel) } else { kernel() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `fcntl64`.
    let kernel = || unsafe { next::fcntl64(fd, command, argument) };
    if duplicates(command) { duplicate(fd, None, kernel) } else { kernel() }
}

/// Returns whether a descriptor is one of `/dev/netmap`, which netmap neither reads nor writes; then `errno` is set.
#[inline]
fn is_neither_read_nor_written(fd: c_int) -> bool {
    let refused = netmap(fd).is_some();
    if refused {
        next::set_errno(libc::EINVAL);
    }
    refused
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    if is_neither_read_nor_written(fd) {
        return -1;
    }
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `read`.
    unsafe { next::read(fd, to, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if is_neither_read_nor_written(fd) {
        return -1;
    }
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `__read_chk`.
    unsafe { next::__read_chk(fd, to, len, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    if is_neither_read_nor_written(fd) {
        return -1;
    }
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `write`.
    unsafe { next::write(fd, from, len) }
}
