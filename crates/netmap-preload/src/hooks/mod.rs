//! The functions that programs call. Each looks whether it is about `/dev/netmap`, and else passes on what it was given.
//!
//! `open`, `fcntl` and `ioctl` have their last argument by name here: on Linux the first arguments behind `...` lie where named
//! ones would, and a function that is called without one finds any bits there and passes them on.

mod descriptors;
mod epolls;
mod files;
mod polls;
mod selects;

use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use arc_swap::Guard;
use libc::c_int;
use rustix::io::Errno;

use crate::epoll::Set;
use crate::next;
use crate::open::Open;
use crate::sleepers::FORKS;
use crate::table::Table;

/// What a descriptor of the program stands for.
enum Entry {
    Netmap(Arc<Open>),
    /// An epoll instance that watches some of those.
    Epoll(Set),
}

static TABLE: Table<Entry> = Table::new();

type Found = Guard<Option<Arc<Entry>>>;

/// An open of `/dev/netmap`, while it is looked at.
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

/// As functions of the C library answer; one that succeeds leaves `errno` as it was.
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

/// The error that a function of the C library has left.
fn failed() -> Errno {
    Errno::from_raw_os_error(next::errno())
}

/// The process whose table this is: a child by `vfork` works on its parent's memory, and must not change it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// To be called before there is anything in the table.
fn watch_forks() {
    extern "C" fn in_child() {
        OWNER.store(std::process::id() as i32, Relaxed);
        FORKS.fetch_add(1, Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        OWNER.store(std::process::id() as i32, Relaxed);
        // SAFETY: the function does nothing but write two atomics and ask for a number.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A descriptor stands for something from now on, or for nothing. What it stood for ends here if nothing else does.
fn set(fd: c_int, to: Option<Arc<Entry>>) {
    if OWNER.load(Relaxed) == std::process::id() as i32 {
        drop(TABLE.set(fd, to));
    }
}
