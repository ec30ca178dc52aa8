//! The functions that programs call. Each handles calls that concern `/dev/netmap` and passes all others on
//! unchanged.
//!
//! `open`, `fcntl` and `ioctl` name their last argument here: on Linux the first variadic arguments are passed
//! like named ones, and a function that is called without one finds arbitrary bits there and passes them on.

mod descriptors;
mod epolls;
mod files;
mod polls;
mod selects;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use arc_swap::Guard;
use libc::c_int;
use rustix::io::Errno;

use crate::epoll::Set;
use crate::next;
use crate::open::Open;
use crate::start;
use crate::table::Table;
use crate::wait_queue::FORKS;

/// The object behind a descriptor of the program.
enum Entry {
    Netmap(Arc<Open>),
    /// An epoll instance that watches some of the former, or other such instances.
    Epoll(Arc<Set>),
}

static TABLE: Table<Entry> = Table::new();

type Found = Guard<Option<Arc<Entry>>>;

/// An open file of `/dev/netmap`, kept alive while it is used.
struct FoundOpen(Found);

impl std::ops::Deref for FoundOpen {
    type Target = Arc<Open>;

    #[inline]
    fn deref(&self) -> &Arc<Open> {
        match self.0.as_deref() {
            Some(Entry::Netmap(open)) => open,
            _ => unreachable!("looked before"),
        }
    }
}

#[inline]
fn netmap(fd: c_int) -> Option<FoundOpen> {
    let found = TABLE.get(fd)?;
    matches!(found.as_deref(), Some(Entry::Netmap(_))).then_some(FoundOpen(found))
}

/// Finds out whether a descriptor that this library does not know is one of `/dev/netmap`, which came from another process or was kept
/// over `exec`, and enters it then.
#[cold]
fn adopt(fd: c_int) -> Option<FoundOpen> {
    if fd < 0 || !owns_table() && OWNER.load(Relaxed) != 0 {
        return None;
    }
    let before = next::errno();
    register_atfork();
    // SAFETY: borrowed for this call, in which the program passes the descriptor to `ioctl` or `mmap`. -1 is excluded by the check; a number that
    // is not open is an error of the system calls.
    let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
    let open = start::cookie_of_connection(descriptor)
        .and_then(|cookie| open_with(cookie).or_else(|| Open::adopt(descriptor, cookie).map(Arc::new)));
    next::set_errno(before);
    TABLE.set(fd, Some(Arc::new(Entry::Netmap(open?)))).ok()?;
    netmap(fd)
}

/// Returns the open file whose connection has this cookie, if this process has it by another descriptor.
fn open_with(cookie: u64) -> Option<Arc<Open>> {
    TABLE.fds_in_range(0..=MAX_FD).into_iter().find_map(|fd| {
        let open = netmap(fd)?;
        (open.cookie() == cookie).then(|| Arc::clone(&open))
    })
}

/// Largest number in the table.
const MAX_FD: usize = (1 << 20) - 1;

/// Returns the ports behind an epoll instance, if it has some.
fn ports_of_epoll(fd: c_int) -> Option<Arc<Set>> {
    match TABLE.get(fd)?.as_deref() {
        Some(Entry::Epoll(set)) if !set.is_empty() => Some(set.clone()),
        _ => None,
    }
}

/// Converts a result to the return value and `errno` of a C function. Success restores the `errno` from before.
fn answer<T: TryInto<c_int>>(errno_before: c_int, result: Result<T, Errno>) -> c_int {
    match result {
        Ok(value) => {
            next::set_errno(errno_before);
            value.try_into().unwrap_or(c_int::MAX)
        }
        Err(errno) => {
            next::set_errno(errno.raw_os_error());
            -1
        }
    }
}

/// Returns the error that a function of the C library has left in `errno`.
fn last_errno() -> Errno {
    Errno::from_raw_os_error(next::errno())
}

/// Process that owns the table: a child created by `vfork` runs in its parent's memory and must not change it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether this process owns the table; a child by `vfork` does not.
fn owns_table() -> bool {
    OWNER.load(Relaxed) == std::process::id() as i32
}

/// Registers the handlers of `fork`. To be called before the table has an entry.
fn register_atfork() {
    extern "C" fn before() {
        TABLE.lock.acquire();
    }
    extern "C" fn in_parent() {
        // SAFETY: `before` has acquired the lock on this thread.
        unsafe { TABLE.lock.release() };
    }
    extern "C" fn in_child() {
        OWNER.store(std::process::id() as i32, Relaxed);
        FORKS.fetch_add(1, Relaxed);
        ::netmap::forked();
        // SAFETY: this thread is the copy of the one on which `before` has acquired the lock.
        unsafe { TABLE.lock.release() };
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        OWNER.store(std::process::id() as i32, Relaxed);
        // SAFETY: `in_child` may run in the child of a process with several threads: it stores atomics, calls
        // `getpid` and `sigprocmask`, which are async-signal-safe, and unlocks a mutex that its thread has locked.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Removes the object behind a descriptor. It is dropped if nothing else uses it.
fn remove(fd: c_int) {
    TABLE.close(fd, || 0);
}
