//! Functions that close or duplicate descriptors.

use libc::{F_DUPFD, F_DUPFD_CLOEXEC, c_int, c_long, c_uint};

use super::{TABLE, set};
use crate::next;

/// Copies the entry of `old` to `new`, after the kernel has duplicated the descriptor.
fn track_dup(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old && !TABLE.is_empty() {
        let before = next::errno();
        let there = TABLE.get(old);
        if there.is_some() || TABLE.get(new).is_some() {
            set(new, there.and_then(|there| (*there).clone()));
        }
        next::set_errno(before);
    }
    new
}

/// Removes the entry of a descriptor, before the kernel closes it: afterwards another thread may get the same
/// number.
fn untrack(fd: c_int) {
    if TABLE.get(fd).is_some() {
        let before = next::errno();
        set(fd, None);
        next::set_errno(before);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    untrack(fd);
    // SAFETY: the argument is passed on unchanged from the program, which upholds the contract of `close`.
    unsafe { next::close(fd) }
}

fn untrack_range(first: c_uint, last: c_uint) {
    if !TABLE.is_empty() {
        TABLE.fds_in_range(first as usize..=last as usize).into_iter().for_each(untrack);
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
    track_dup(fd, unsafe { next::dup(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `dup2`.
    track_dup(fd, unsafe { next::dup2(fd, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `dup3`.
    track_dup(fd, unsafe { next::dup3(fd, to, flags) })
}

fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command, F_DUPFD | F_DUPFD_CLOEXEC) { track_dup(fd, result) } else { result }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `fcntl`.
    after_fcntl(fd, command, unsafe { next::fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `fcntl64`.
    after_fcntl(fd, command, unsafe { next::fcntl64(fd, command, argument) })
}
