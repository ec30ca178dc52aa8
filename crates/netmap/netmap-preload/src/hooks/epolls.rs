//! `epoll_ctl`, `epoll_wait`, `epoll_pwait` and `epoll_pwait2`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};
use rustix::io::Errno;

use super::polls::{SignalMask, milliseconds, sleep, time};
use super::{Entry, TABLE, answer, last_errno, netmap, register_atfork};
use crate::epoll::{Change, Set, Watchable};
use crate::next;
use crate::wait::wait;

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let before = next::errno();
    let port = netmap(fd).map(|open| Watchable::Port(Arc::clone(&open)));
    if port.is_none() {
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `epoll_ctl`.
        let result = unsafe { next::epoll_ctl(epoll, change, fd, event) };
        if result < 0 {
            return result;
        }
    }
    // SAFETY: `event` is not null, so the program passes a readable event. `epoll_event` is packed, so it may
    // be unaligned.
    let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let change = match (change, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => Change::Add(event.events, event.u64),
        (libc::EPOLL_CTL_MOD, Some(event)) => Change::Modify(event.events, event.u64),
        (libc::EPOLL_CTL_DEL, _) => Change::Delete,
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return answer(before, Err::<c_int, _>(Errno::FAULT)),
        _ => return answer(before, Err::<c_int, _>(Errno::INVAL)),
    };
    match port {
        Some(port) => answer(before, watch(epoll, fd, &port, change).map(|()| 0)),
        None => {
            watch_nested(epoll, fd, change);
            answer(before, Ok::<c_int, _>(0))
        }
    }
}

/// Makes a change that the kernel has made, if the descriptor is another epoll instance: ports that are, or come, inside of that have
/// to be watched.
fn watch_nested(epoll: c_int, fd: c_int, change: Change) {
    let inner = match TABLE.get(fd).as_deref().and_then(|found| found.as_deref()) {
        Some(Entry::Epoll(set)) => set.clone(),
        Some(Entry::Netmap(_)) => return,
        // Only what is added may be one that is not known yet.
        None if !matches!(change, Change::Add(..)) || !is_epoll(fd, epoll) => return,
        None => match set_of(fd) {
            Ok(set) => set,
            Err(_) => return,
        },
    };
    // The kernel has accepted it, so what is known here is right, or out of date.
    if let Ok(outer) = set_of(epoll) {
        let inner = Watchable::Epoll(inner);
        if let Change::Add(..) = change {
            let _ = outer.change(fd, &inner, Change::Delete);
        }
        let _ = outer.change(fd, &inner, change);
    }
}

/// Returns whether a descriptor is an epoll instance: that answers `ENOENT` for a descriptor that it does not watch.
fn is_epoll(fd: c_int, unwatched: c_int) -> bool {
    // SAFETY: `EPOLL_CTL_DEL` ignores the event, so null is allowed, and the kernel accesses no memory of this process.
    let result = unsafe { next::epoll_ctl(fd, libc::EPOLL_CTL_DEL, unwatched, std::ptr::null_mut()) };
    result < 0 && last_errno() == Errno::NOENT
}

/// Returns the set of an epoll instance, which is made if there is none.
fn set_of(epoll: c_int) -> Result<Arc<Set>, Errno> {
    register_atfork();
    let _held = TABLE.lock.hold();
    let found = TABLE.get(epoll);
    match found.as_deref().and_then(|found| found.as_deref()) {
        Some(Entry::Epoll(set)) => return Ok(set.clone()),
        Some(Entry::Netmap(_)) => return Err(Errno::INVAL),
        None => {}
    }
    let set = Arc::new(Set::default());
    TABLE.set(epoll, Some(Arc::new(Entry::Epoll(set.clone())))).map_err(|_| Errno::BADF)?;
    Ok(set)
}

fn watch(epoll: c_int, fd: c_int, port: &Watchable, change: Change) -> Result<(), Errno> {
    if netmap(epoll).is_some() {
        return Err(Errno::INVAL);
    }
    if TABLE.get(epoll).is_none() {
        if change == Change::Delete {
            return Err(Errno::NOENT);
        }
        if !is_epoll(epoll, fd) {
            return Err(last_errno());
        }
    }
    set_of(epoll)?.change(fd, port, change)
}

/// `epoll_wait` for an instance that watches ports.
///
/// # Safety
/// `events` has room for `most` events, if `most` is positive.
unsafe fn epoll_mixed(
    epoll: c_int,
    set: &Set,
    (events, most): (*mut epoll_event, c_int),
    limit: Option<Duration>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(Errno::INVAL)?;
    let start = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let mut watched = set.watched();
        let mut others = [pollfd { fd: epoll, events: libc::POLLIN, revents: 0 }];
        wait(&mut watched, &mut others, left, &mut sleep(mask))?;
        let mut count = 0;
        let ports_first = set.turn();
        for ports in [ports_first, !ports_first] {
            if ports {
                for (events_of, data) in set.collect_ready(&watched, most - count) {
                    // SAFETY: `events` has room for `most` events, by this function's contract, and
                    // `count < most`, because `collect_ready` returns at most `most - count`. `epoll_event` is
                    // packed, so it may be unaligned.
                    unsafe { events.add(count).write_unaligned(epoll_event { events: events_of, u64: data }) };
                    count += 1;
                }
            } else if others[0].revents != 0 && count < most {
                // SAFETY: `events` has room for `most` events, by this function's contract, of which `count`
                // are used.
                let more = unsafe { next::epoll_wait(epoll, events.add(count), (most - count) as c_int, 0) };
                count += usize::try_from(more).map_err(|_| last_errno())?;
            }
        }
        if count > 0 || limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(count);
        }
    }
}

/// Answers a wait for an epoll instance that watches ports; `None` for any other.
///
/// # Safety
/// The pointer in `events` has room for as many events as the number says, if that is positive.
unsafe fn answer_epoll(
    epoll: c_int,
    events: (*mut epoll_event, c_int),
    limit: Result<Option<Duration>, Errno>,
    mask: SignalMask<'_>,
) -> Option<c_int> {
    let found = TABLE.get(epoll)?;
    let Some(Entry::Epoll(set)) = found.as_deref() else { return None };
    if set.is_empty() {
        return None;
    }
    let before = next::errno();
    // SAFETY: `events` has room for its number of events, by this function's contract.
    Some(answer(before, limit.and_then(|limit| unsafe { epoll_mixed(epoll, set, events, limit, mask) })))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, limit: c_int) -> c_int {
    // SAFETY: the program calls `epoll_wait` with room for `most` events.
    unsafe { answer_epoll(epoll, (events, most), Ok(milliseconds(limit)), SignalMask::NONE) }
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `epoll_wait`.
        .unwrap_or_else(|| unsafe { next::epoll_wait(epoll, events, most, limit) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program calls `epoll_pwait` with room for `most` events, and with null or a mask that is
    // readable until it returns.
    unsafe { answer_epoll(epoll, (events, most), Ok(milliseconds(limit)), SignalMask::new(mask)) }
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `epoll_pwait`.
        .unwrap_or_else(|| unsafe { next::epoll_pwait(epoll, events, most, limit, mask) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program calls `epoll_pwait2` with room for `most` events, and with a time and a mask that are
    // null or readable until it returns.
    unsafe { answer_epoll(epoll, (events, most), time(limit), SignalMask::new(mask)) }
        // SAFETY: all arguments are passed on unchanged from the program, which upholds the contract of
        // `epoll_pwait2`.
        .unwrap_or_else(|| unsafe { next::epoll_pwait2(epoll, events, most, limit, mask) })
}
