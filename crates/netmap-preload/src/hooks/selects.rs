//! `select` and `pselect`.

use std::slice;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use super::polls::{duration, poll_some, time};
use super::{TABLE, answer, netmap};
use crate::{next, select};

/// A program's sets, if a port is in one of them.
///
/// # Safety
/// Null, or sets of so many descriptors.
unsafe fn sets<'a>(fds: c_int, sets: [*mut c_void; 3]) -> Option<(usize, select::Sets<'a>)> {
    let fds = usize::try_from(fds).ok().filter(|_| !TABLE.is_empty())?;
    let sets = sets.map(|set| {
        // SAFETY: as promised: sets are of whole words, and nobody else has them while the program waits.
        (!set.is_null()).then(|| unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), select::words(fds)) })
    });
    let is_port = |fd: pollfd| netmap(fd.fd).is_some();
    select::list(fds, &sets).into_iter().any(is_port).then_some((fds, sets))
}

fn select_some(
    (fds, mut sets): (usize, select::Sets<'_>),
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let mut polled = select::list(fds, &sets);
    poll_some(&mut polled, limit, mask)?;
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
    // SAFETY: as the program promises.
    let Some(sets) = (unsafe { sets(fds, [read, write, except]) }) else {
        // SAFETY: likewise.
        return unsafe { next::select(fds, read, write, except, limit) };
    };
    let (before, start) = (next::errno(), Instant::now());
    // SAFETY: likewise: null, or a time that is the program's.
    let limit = unsafe { limit.as_mut() };
    let time = match limit.as_ref().map(|time| duration(time.tv_sec, time.tv_usec.saturating_mul(1000))) {
        Some(None) => return answer(before, Err::<c_int, _>(Errno::INVAL)),
        Some(time) => time,
        None => None,
    };
    let result = select_some(sets, time, std::ptr::null());
    if let (Some(limit), Some(time)) = (limit, time) {
        // On Linux a program is told what is left.
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
    // SAFETY: as the program promises.
    match unsafe { sets(fds, [read, write, except]) } {
        Some(sets) => {
            let before = next::errno();
            // SAFETY: likewise.
            answer(before, unsafe { time(limit) }.and_then(|limit| select_some(sets, limit, mask)))
        }
        // SAFETY: likewise.
        None => unsafe { next::pselect(fds, read, write, except, limit, mask) },
    }
}
