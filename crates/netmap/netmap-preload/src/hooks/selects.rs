//! `select` and `pselect`.

use std::slice;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use super::polls::{SignalMask, duration, poll_mixed, time};
use super::{TABLE, answer, netmap, ports_of_epoll};
use crate::{next, select};

/// Returns a program's sets if one of them contains a port.
///
/// # Safety
/// Each of `sets` is null, or points to a set of at least `fds` bits, in whole and aligned words of 64 bits.
/// The sets do not overlap, and nobody else accesses them as long as the result is used.
unsafe fn sets<'a>(fds: c_int, sets: [*mut c_void; 3]) -> Option<(usize, select::Sets<'a>)> {
    let fds = usize::try_from(fds).ok().filter(|_| !TABLE.is_empty())?;
    let sets = sets.map(|set| {
        // SAFETY: `set` is not null, so it points to `words(fds)` aligned words that overlap no other set and
        // that nobody else accesses, by this function's contract.
        (!set.is_null()).then(|| unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), select::words(fds)) })
    });
    let is_port = |fd: pollfd| netmap(fd.fd).is_some() || ports_of_epoll(fd.fd).is_some();
    select::list(fds, &sets).into_iter().any(is_port).then_some((fds, sets))
}

fn select_mixed(
    (fds, mut sets): (usize, select::Sets<'_>),
    limit: Option<Duration>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    let mut polled = select::list(fds, &sets);
    poll_mixed(&mut polled, limit, mask)?;
    select::answer(&polled, &mut sets)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    fds: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    limit: *mut timeval,
) -> c_int {
    // SAFETY: the program passes sets of `fds` bits or null. An `fd_set` consists of whole, aligned words;
    // POSIX declares the sets `restrict`, so they do not overlap, and they belong to the call until it returns.
    let Some(sets) = (unsafe { sets(fds, [read, write, except]) }) else {
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `select`.
        return unsafe { next::select(fds, read, write, except, limit) };
    };
    let (before, start) = (next::errno(), Instant::now());
    // SAFETY: the program passes null, or a time that `select` may read and write until it returns.
    let limit = unsafe { limit.as_mut() };
    let time = match limit.as_ref().map(|time| duration(time.tv_sec, time.tv_usec.saturating_mul(1000))) {
        Some(None) => return answer(before, Err::<c_int, _>(Errno::INVAL)),
        Some(time) => time,
        None => None,
    };
    let result = select_mixed(sets, time, SignalMask::NONE);
    if let (Some(limit), Some(time)) = (limit, time) {
        // On Linux `select` writes the remaining time.
        let left = time.saturating_sub(start.elapsed());
        *limit = timeval { tv_sec: left.as_secs() as i64, tv_usec: left.subsec_micros().into() };
    }
    answer(before, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    fds: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program passes sets of `fds` bits or null. An `fd_set` consists of whole, aligned words;
    // POSIX declares the sets `restrict`, so they do not overlap, and they belong to the call until it returns.
    match unsafe { sets(fds, [read, write, except]) } {
        Some(sets) => {
            let before = next::errno();
            // SAFETY: the program calls `pselect` with a time and a mask that are null or readable until it
            // returns.
            let (limit, mask) = unsafe { (time(limit), SignalMask::new(mask)) };
            answer(before, limit.and_then(|limit| select_mixed(sets, limit, mask)))
        }
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `pselect`.
        None => unsafe { next::pselect(fds, read, write, except, limit, mask) },
    }
}
