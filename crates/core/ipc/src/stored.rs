//! Descriptors that an earlier run of this service has left with the service manager, and that this process was started with.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, FdFlags};

static STORED: Mutex<Vec<(String, OwnedFd)>> = Mutex::new(Vec::new());

/// Keeps a descriptor that an earlier run has stored under a name.
///
/// # Errors
/// It is not open, or this process has opened it itself.
pub fn keep(name: &str, number: RawFd) -> io::Result<()> {
    if number < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the descriptor is used only to read and set its flags, which fails for a number that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if rustix::io::fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open and was not closed on exec, so it comes from whoever started this process: all that this program
    // opens is closed on exec. It is marked now, so it is taken once.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    STORED.lock().unwrap_or_else(PoisonError::into_inner).push((name.into(), owned));
    Ok(())
}

/// Takes the descriptors that an earlier run has stored, with their names.
pub fn take() -> Vec<(String, OwnedFd)> {
    std::mem::take(&mut *STORED.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};

    use rustix::event::EventfdFlags;

    use super::*;

    #[test]
    fn what_was_stored_is_taken_once_and_nothing_else() {
        let eventfd = |flags| rustix::event::eventfd(0, flags).expect("an eventfd");
        let (inherited, own) = (eventfd(EventfdFlags::empty()), eventfd(EventfdFlags::CLOEXEC));
        assert!(keep("own", own.as_raw_fd()).is_err());
        assert!(keep("none", 1 << 20).is_err() && keep("none", -1).is_err());
        let number = inherited.into_raw_fd();
        keep("x", number).expect("a descriptor");
        assert!(keep("again", number).is_err());
        let taken = take();
        assert_eq!(taken.iter().map(|(name, fd)| (&name[..], fd.as_raw_fd())).collect::<Vec<_>>(), [("x", number)]);
        assert!(take().is_empty());
    }
}
