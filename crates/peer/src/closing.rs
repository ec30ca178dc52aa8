//! Descriptors that a peer has sent.
//!
//! `close` calls the file's file system, and one of the peer's own (FUSE) need not answer: the caller then waits for ever, and
//! not even SIGKILL ends it. `fstat` and `fstatfs` may wait in the same way. So each descriptor is looked at as it arrives, by
//! means that never ask a file system. Eventfds and files in memory, which never wait, are handed on. All else is closed on a
//! thread that nobody waits for.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use rustix::net::sockopt::socket_type;

use crate::check_eventfd;

/// Descriptors that wait to be closed at most. While so many do, the closing thread is stuck, and no more are
/// [received](has_room).
const MOST: usize = 64;

/// Descriptors handed to the closing thread and not closed yet.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether another message's descriptors may be received. Without room in `recvmsg`, the kernel drops them before they are
/// this process's, and does not wait for their file system.
pub(crate) fn has_room() -> bool {
    WAITING.load(Ordering::Relaxed) < MOST
}

/// Which descriptors are taken from whoever sends them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Another process: eventfds and files in memory.
    Peer,
    /// A process of our own, which connects for this one: sockets, too.
    Helper,
}

/// Returns a descriptor that is an eventfd or a file in memory (a memfd, of tmpfs or hugetlbfs): it can be used and closed
/// without waiting for its file system. From a helper, sockets are taken as well. Any other is closed elsewhere. Never waits.
pub(crate) fn admit(fd: OwnedFd, sender: Sender) -> Option<OwnedFd> {
    // Only files in memory have seals.
    if rustix::fs::fcntl_get_seals(&fd).is_ok()
        || check_eventfd(&fd).is_ok()
        || sender == Sender::Helper && socket_type(&fd).is_ok()
    {
        return Some(fd);
    }
    close_elsewhere(fd);
    None
}

fn close_elsewhere(fd: OwnedFd) {
    static THREAD: OnceLock<Option<mpsc::Sender<OwnedFd>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, descriptors) = mpsc::channel::<OwnedFd>();
        let closing = move || {
            for fd in descriptors {
                drop(fd);
                WAITING.fetch_sub(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("closing".into()).spawn(closing).ok().map(|_| sender)
    });
    WAITING.fetch_add(1, Ordering::Relaxed);
    // Without a thread it stays open, and is counted.
    match thread {
        Some(thread) => {
            if let Err(unsent) = thread.send(fd) {
                let _ = unsent.0.into_raw_fd();
            }
        }
        None => _ = fd.into_raw_fd(),
    }
}
