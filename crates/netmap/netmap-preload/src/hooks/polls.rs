//! `poll`, and what the other waits share with it.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use std::{ptr, slice};

use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use rustix::io::Errno;

use super::{TABLE, answer, last_errno, netmap, ports_of_epoll};
use crate::next;
use crate::registered::IN;
use crate::wait::{Watched, wait};

/// Converts a time of the program; `None` if it is negative or not normalised.
pub fn duration(seconds: i64, nanos: i64) -> Option<Duration> {
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

/// Converts milliseconds; `None`, for ever, if they are negative.
pub fn milliseconds(limit: c_int) -> Option<Duration> {
    u64::try_from(limit).ok().map(Duration::from_millis)
}

/// Reads a time of the program; `None`, for ever, if it is null.
///
/// # Errors
/// `EINVAL` if the time is negative or not normalised.
///
/// # Safety
/// `limit` is null, or points to a time that is readable during this call.
pub unsafe fn time(limit: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: `limit` is null or points to a readable time, by this function's contract.
    let Some(time) = (unsafe { limit.as_ref() }) else { return Ok(None) };
    duration(time.tv_sec, time.tv_nsec).map(Some).ok_or(Errno::INVAL)
}

/// The signal mask of a program's call, or none. A pointer, as programs need not initialise more of a mask than the
/// kernel reads.
#[derive(Clone, Copy)]
pub struct SignalMask<'a>(*const sigset_t, PhantomData<&'a sigset_t>);

impl SignalMask<'_> {
    /// No mask: signals stay as they are.
    pub const NONE: Self = Self(ptr::null(), PhantomData);

    /// Wraps the mask of a program, or null for none.
    ///
    /// # Safety
    /// `mask` is null, or points to a mask that is readable as long as the result is used.
    pub unsafe fn new(mask: *const sigset_t) -> Self {
        Self(mask, PhantomData)
    }
}

/// Returns a wait that uses the C library's `ppoll` with a signal mask.
pub fn sleep(mask: SignalMask<'_>) -> impl FnMut(&mut [pollfd], Option<Duration>) -> Result<usize, Errno> {
    move |fds, limit| {
        let limit = limit.map(|limit| timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `fds` is a mutable slice of `fds.len()` descriptors; `limit` is null or points to the local
        // above; `mask` holds null or a readable mask, as `SignalMask::new` requires.
        let count = unsafe { next::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, limit, mask.0) };
        usize::try_from(count).map_err(|_| last_errno())
    }
}

/// `poll` for descriptors of which some are ports.
pub fn poll_mixed(fds: &mut [pollfd], limit: Option<Duration>, mask: SignalMask<'_>) -> Result<usize, Errno> {
    let mut watched = Vec::new();
    let mut others = Vec::new();
    // For each descriptor: whether it is a port, and the ports behind an epoll instance.
    let mut kinds = Vec::new();
    for fd in &*fds {
        let open = netmap(fd.fd);
        let behind = ports_of_epoll(fd.fd);
        kinds.push((open.is_some(), behind.clone()));
        match open {
            Some(open) => watched.push(Watched::new(Arc::clone(&open), fd.events)),
            None => others.push(*fd),
        }
    }
    // Behind those that are polled themselves.
    let own = watched.len();
    let wants_input = |fd: &pollfd| fd.events & IN != 0;
    let behind = fds.iter().zip(&kinds).filter(|(fd, _)| wants_input(fd)).filter_map(|(_, (_, set))| set.as_ref());
    watched.extend(behind.flat_map(|set| set.watched()));
    wait(&mut watched, &mut others, limit, &mut sleep(mask))?;
    let (own, behind) = watched.split_at(own);
    let (mut own, mut others) = (own.iter(), others.iter());
    for (fd, (is_port, set)) in fds.iter_mut().zip(kinds) {
        fd.revents = match is_port {
            true => own.next().expect("as many").revents,
            false => others.next().expect("as many").revents,
        };
        if wants_input(fd) && set.is_some_and(|set| set.ready(behind).is_some()) {
            fd.revents |= fd.events & IN;
        }
    }
    Ok(fds.iter().filter(|fd| fd.revents != 0).count())
}

/// Descriptors of a `poll`, some of which are ports.
struct Polled<'a> {
    fds: &'a mut [pollfd],
    /// Set for a single port, the common case, which was polled already.
    is_done: bool,
}

/// Returns the descriptors of a `poll` if some of them are ports, or have ports behind them.
///
/// # Safety
/// `fds` is null, or points to `count` descriptors that nobody else accesses as long as the result is used.
#[inline]
unsafe fn fds_with_port<'a>(fds: *mut pollfd, count: nfds_t) -> Option<Polled<'a>> {
    if TABLE.is_empty() || fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: `fds` is not null, as checked above, so it points to `count` descriptors that nobody else
    // accesses, by this function's contract.
    let fds = unsafe { slice::from_raw_parts_mut(fds, count as usize) };
    if let [one] = &mut *fds
        && let Some(open) = netmap(one.fd)
    {
        one.revents = open.port().map_or(libc::POLLERR, |port| port.poll_events(one.events));
        return Some(Polled { fds, is_done: true });
    }
    let has_ports = |fd: &pollfd| netmap(fd.fd).is_some() || ports_of_epoll(fd.fd).is_some();
    fds.iter().any(has_ports).then_some(Polled { fds, is_done: false })
}

#[inline]
fn answer_poll(
    Polled { fds, is_done }: Polled<'_>,
    limit: Result<Option<Duration>, Errno>,
    mask: SignalMask<'_>,
) -> c_int {
    let before = next::errno();
    let result = limit.and_then(|limit| match &*fds {
        [one] if is_done && one.revents != 0 => Ok(1),
        [_] if is_done && limit == Some(Duration::ZERO) => Ok(0),
        _ => poll_mixed(fds, limit, mask),
    });
    answer(before, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
    // SAFETY: the program calls `poll` with `count` descriptors, which belong to the call until it returns.
    match unsafe { fds_with_port(fds, count) } {
        Some(fds) => answer_poll(fds, Ok(milliseconds(limit)), SignalMask::NONE),
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of `poll`.
        None => unsafe { next::poll(fds, count, limit) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, limit: c_int, bytes: size_t) -> c_int {
    // As many as there are: the C library ends a program that names more.
    let inside = count.min((bytes / size_of::<pollfd>()) as nfds_t);
    // SAFETY: the program calls `__poll_chk` with an array of `bytes` bytes, which belongs to the call until it
    // returns, and `inside` descriptors lie in it.
    match unsafe { fds_with_port(fds, inside) } {
        Some(fds) if inside == count => answer_poll(fds, Ok(milliseconds(limit)), SignalMask::NONE),
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `__poll_chk`.
        _ => unsafe { next::__poll_chk(fds, count, limit, bytes) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(fds: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: the program calls `ppoll` with `count` descriptors, which belong to the call until it returns.
    match unsafe { fds_with_port(fds, count) } {
        // SAFETY: the program calls `ppoll` with a time and a mask that are null or readable until it returns.
        Some(fds) => unsafe { answer_poll(fds, time(limit), SignalMask::new(mask)) },
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `ppoll`.
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
    // As many as there are: the C library ends a program that names more.
    let inside = count.min((bytes / size_of::<pollfd>()) as nfds_t);
    // SAFETY: the program calls `__ppoll_chk` with an array of `bytes` bytes, which belongs to the call until it
    // returns, and `inside` descriptors lie in it.
    match unsafe { fds_with_port(fds, inside) } {
        // SAFETY: the program calls `__ppoll_chk` with a time and a mask that are null or readable until it
        // returns.
        Some(fds) if inside == count => unsafe { answer_poll(fds, time(limit), SignalMask::new(mask)) },
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `__ppoll_chk`.
        _ => unsafe { next::__ppoll_chk(fds, count, limit, mask, bytes) },
    }
}
