//! Descriptors that are closed, or that become two.

use libc::{F_DUPFD, F_DUPFD_CLOEXEC, c_int, c_long, c_uint};

use super::{TABLE, set};
use crate::next;

/// The kernel has made `new` of `old`.
fn copied(old: c_int, new: c_int) -> c_int {
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

/// Before the kernel closes it: as soon as it has, another thread may be given the number.
fn forget(fd: c_int) {
    if TABLE.get(fd).is_some() {
        let before = next::errno();
        set(fd, None);
        next::set_errno(before);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: as the program promises.
    unsafe { next::close(fd) }
}

fn forget_all(first: c_uint, last: c_uint) {
    if !TABLE.is_empty() {
        TABLE.numbers(first as usize..=last as usize).into_iter().for_each(forget);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
        forget_all(first, last);
    }
    // SAFETY: as the program promises.
    unsafe { next::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    forget_all(first.max(0) as c_uint, c_uint::MAX);
    // SAFETY: as the program promises.
    unsafe { next::closefrom(first) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: as the program promises.
    copied(fd, unsafe { next::dup(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: as the program promises.
    copied(fd, unsafe { next::dup2(fd, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: as the program promises.
    copied(fd, unsafe { next::dup3(fd, to, flags) })
}

fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command, F_DUPFD | F_DUPFD_CLOEXEC) { copied(fd, result) } else { result }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as the program promises.
    after_fcntl(fd, command, unsafe { next::fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as the program promises.
    after_fcntl(fd, command, unsafe { next::fcntl64(fd, command, argument) })
}
