//! `poll`, and what the others have of it.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use rustix::io::Errno;

use super::{TABLE, answer, failed, netmap};
use crate::next;
use crate::wait::{Watched, wait};

/// A program's time. `None` if it is none.
pub fn duration(seconds: i64, nanos: i64) -> Option<Duration> {
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

/// Of milliseconds, where a negative number is for ever.
pub fn milliseconds(limit: c_int) -> Option<Duration> {
    u64::try_from(limit).ok().map(Duration::from_millis)
}

/// # Safety
/// Null, or a time.
pub unsafe fn time(limit: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: as promised.
    let Some(time) = (unsafe { limit.as_ref() }) else { return Ok(None) };
    duration(time.tv_sec, time.tv_nsec).map(Some).ok_or(Errno::INVAL)
}

/// The C library's, with a signal mask or null. The mask must live as long.
pub fn sleep(mask: *const sigset_t) -> impl FnMut(&mut [pollfd], Option<Duration>) -> Result<usize, Errno> {
    move |fds, limit| {
        let limit = limit.map(|limit| timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: descriptors in a slice; the time lives; the mask is the program's, which waits for this.
        let count = unsafe { next::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, limit, mask) };
        usize::try_from(count).map_err(|_| failed())
    }
}

/// `poll`, where some are ports.
pub fn poll_some(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> Result<usize, Errno> {
    let (mut watched, mut others, mut is_port) = (Vec::new(), Vec::new(), Vec::new());
    for fd in &*fds {
        let open = netmap(fd.fd);
        is_port.push(open.is_some());
        match open {
            Some(open) => watched.push(Watched::new(Arc::clone(&open), fd.events)),
            None => others.push(*fd),
        }
    }
    wait(&mut watched, &mut others, limit, &mut sleep(mask))?;
    let (mut watched, mut others) = (watched.iter(), others.iter());
    for (fd, is_port) in fds.iter_mut().zip(is_port) {
        fd.revents = match is_port {
            true => watched.next().expect("as many").revents,
            false => others.next().expect("as many").revents,
        };
    }
    Ok(fds.iter().filter(|fd| fd.revents != 0).count())
}

/// What a program waits for, if some of it is netmap's. Most programs wait for one: that has been looked at.
///
/// # Safety
/// So many descriptors.
#[inline]
unsafe fn some<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if TABLE.is_empty() || fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: as promised; nobody else has them while the program waits.
    let fds = unsafe { slice::from_raw_parts_mut(fds, count as usize) };
    if let [one] = &mut *fds {
        let open = netmap(one.fd)?;
        one.revents = open.port().map_or(libc::POLLERR, |port| port.look(one.events));
        return Some(fds);
    }
    fds.iter().any(|fd| netmap(fd.fd).is_some()).then_some(fds)
}

#[inline]
fn answer_poll(fds: &mut [pollfd], limit: Result<Option<Duration>, Errno>, mask: *const sigset_t) -> c_int {
    let before = next::errno();
    let result = limit.and_then(|limit| match &*fds {
        [one] if one.revents != 0 => Ok(1),
        [_] if limit == Some(Duration::ZERO) => Ok(0),
        _ => poll_some(fds, limit, mask),
    });
    answer(before, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
    // SAFETY: as the program promises.
    match unsafe { some(fds, count) } {
        Some(fds) => answer_poll(fds, Ok(milliseconds(limit)), std::ptr::null()),
        // SAFETY: likewise.
        None => unsafe { next::poll(fds, count, limit) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, limit: c_int, bytes: size_t) -> c_int {
    // SAFETY: as the program promises.
    match unsafe { some(fds, count) } {
        Some(fds) if size_of_val(fds) <= bytes => answer_poll(fds, Ok(milliseconds(limit)), std::ptr::null()),
        // SAFETY: likewise.
        _ => unsafe { next::__poll_chk(fds, count, limit, bytes) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(fds: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: as the program promises.
    match unsafe { some(fds, count) } {
        // SAFETY: likewise.
        Some(fds) => answer_poll(fds, unsafe { time(limit) }, mask),
        // SAFETY: likewise.
        None => unsafe { next::ppoll(fds, count, limit, mask) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    // SAFETY: as the program promises.
    match unsafe { some(fds, count) } {
        // SAFETY: likewise.
        Some(fds) if size_of_val(fds) <= bytes => answer_poll(fds, unsafe { time(limit) }, mask),
        // SAFETY: likewise.
        _ => unsafe { next::__ppoll_chk(fds, count, limit, mask, bytes) },
    }
}
