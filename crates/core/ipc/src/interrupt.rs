//! Waits for peers, which a signal can end.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Ends all waits for peers with an error while it is set. For signal handlers of programs that wait for peers at
/// their start.
pub static WAITS_END: AtomicBool = AtomicBool::new(false);

/// Longest wait without a look at [`WAITS_END`]: a signal may arrive just before a wait begins.
const SLICE: Duration = Duration::from_millis(100);

/// Checks that waits may go on.
///
/// # Errors
/// [`Interrupted`](io::ErrorKind::Interrupted) while [`WAITS_END`] is set.
pub fn check_interrupt() -> io::Result<()> {
    if WAITS_END.load(Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted by a signal"));
    }
    Ok(())
}

/// Waits until a descriptor is ready for these events, for at most `limit`. May return earlier, so callers check again.
///
/// # Errors
/// That of [`check_interrupt`], or the kernel's.
pub fn wait_ready(fd: BorrowedFd<'_>, flags: PollFlags, limit: Duration) -> io::Result<()> {
    check_interrupt()?;
    let limit = Timespec::try_from(limit.min(SLICE)).expect("a short time");
    match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
