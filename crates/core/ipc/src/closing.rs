//! Filters the file descriptors that a peer sends.
//!
//! `close` calls into the file's file system. If that is one of the peer's own (FUSE), it need not answer: the
//! caller then blocks forever, and not even SIGKILL ends it. `fstat` and `fstatfs` can block in the same way.
//! So each descriptor is checked as it arrives, with system calls that never ask a file system. Eventfds and
//! files in memory, whose `close` never blocks, are passed on. Everything else is closed on a background thread
//! that nobody waits for.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use rustix::net::sockopt::socket_type;

use crate::check_eventfd;

/// Most descriptors that may wait to be closed. At this number the closing thread is taken to be stuck, and no
/// more descriptors are [received](has_room).
const MAX_PENDING_CLOSES: usize = 64;

/// Number of descriptors handed to the closing thread and not closed yet.
static PENDING_CLOSES: AtomicUsize = AtomicUsize::new(0);

/// Returns whether another message's descriptors may be received. If `recvmsg` gets no room for them, the
/// kernel drops them before they belong to this process, and does not wait for their file system.
pub(crate) fn has_room() -> bool {
    PENDING_CLOSES.load(Ordering::Relaxed) < MAX_PENDING_CLOSES
}

/// Sender of a descriptor, which decides the kinds that are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Another process: eventfds and files in memory are accepted.
    Peer,
    /// A helper process of our own that connects for this one: sockets are accepted as well.
    Helper,
}

/// Returns the descriptor if it is an eventfd or a file in memory (a memfd, or a file of tmpfs or hugetlbfs),
/// which can be used and closed without waiting for its file system. From a helper, sockets are accepted as
/// well. Any other descriptor is closed in the background. Never blocks.
pub(crate) fn admit(fd: OwnedFd, sender: Sender) -> Option<OwnedFd> {
    // Only files in memory have seals.
    if rustix::fs::fcntl_get_seals(&fd).is_ok()
        || check_eventfd(&fd).is_ok()
        || sender == Sender::Helper && socket_type(&fd).is_ok()
    {
        return Some(fd);
    }
    close_in_background(fd);
    None
}

fn close_in_background(fd: OwnedFd) {
    static THREAD: OnceLock<Option<mpsc::Sender<OwnedFd>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, descriptors) = mpsc::channel::<OwnedFd>();
        let closing = move || {
            for fd in descriptors {
                drop(fd);
                PENDING_CLOSES.fetch_sub(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("closing".into()).spawn(closing).ok().map(|_| sender)
    });
    PENDING_CLOSES.fetch_add(1, Ordering::Relaxed);
    // Without a closing thread the descriptor stays open and remains counted as pending.
    match thread {
        Some(thread) => {
            if let Err(unsent) = thread.send(fd) {
                let _ = unsent.0.into_raw_fd();
            }
        }
        None => _ = fd.into_raw_fd(),
    }
}
