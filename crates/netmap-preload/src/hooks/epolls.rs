//! `epoll_ctl`, `epoll_wait` and their kin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};
use rustix::io::Errno;

use super::polls::{milliseconds, sleep, time};
use super::{Entry, TABLE, answer, failed, netmap};
use crate::epoll::{Change, Set};
use crate::next;
use crate::open::Open;
use crate::wait::wait;

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(open) = netmap(fd) else {
        // SAFETY: as the program promises.
        return unsafe { next::epoll_ctl(epoll, change, fd, event) };
    };
    let before = next::errno();
    // SAFETY: likewise: null, or an event; those of the C library are not aligned.
    let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let change = match (change, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => Change::Add(event.events, event.u64),
        (libc::EPOLL_CTL_MOD, Some(event)) => Change::Modify(event.events, event.u64),
        (libc::EPOLL_CTL_DEL, _) => Change::Delete,
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return answer(before, Err::<c_int, _>(Errno::FAULT)),
        _ => return answer(before, Err::<c_int, _>(Errno::INVAL)),
    };
    answer(before, watch(epoll, fd, &open, change).map(|()| 0))
}

fn watch(epoll: c_int, fd: c_int, open: &Arc<Open>, change: Change) -> Result<(), Errno> {
    if netmap(epoll).is_some() {
        return Err(Errno::INVAL);
    }
    if TABLE.get(epoll).is_none() {
        if change == Change::Delete {
            return Err(Errno::NOENT);
        }
        // Whether it is an epoll instance at all: one says that it does not watch a descriptor that there is not.
        // SAFETY: nothing is read or changed.
        let _ = unsafe { next::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        if failed() != Errno::NOENT {
            return Err(failed());
        }
        TABLE.set(epoll, Some(Arc::new(Entry::Epoll(Set::default())))).map_err(|_| Errno::BADF)?;
    }
    match TABLE.get(epoll).as_deref().and_then(|found| found.as_deref()) {
        Some(Entry::Epoll(set)) => set.change(fd, open, change),
        _ => Err(Errno::BADF),
    }
}

/// `epoll_wait`, where some are ports.
///
/// # Safety
/// Room for so many events.
unsafe fn epoll_some(
    epoll: c_int,
    set: &Set,
    (events, most): (*mut epoll_event, c_int),
    limit: Option<Duration>,
    mask: *const sigset_t,
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
                for (events_of, data) in set.tell(&watched, most - count) {
                    // SAFETY: there is room for `most`; those of the C library are not aligned.
                    unsafe { events.add(count).write_unaligned(epoll_event { events: events_of, u64: data }) };
                    count += 1;
                }
            } else if others[0].revents != 0 && count < most {
                // SAFETY: there is room for so many.
                let more = unsafe { next::epoll_wait(epoll, events.add(count), (most - count) as c_int, 0) };
                count += usize::try_from(more).map_err(|_| failed())?;
            }
        }
        if count > 0 || limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(count);
        }
    }
}

/// # Safety
/// Room for so many events.
unsafe fn answer_epoll(
    epoll: c_int,
    events: (*mut epoll_event, c_int),
    limit: Result<Option<Duration>, Errno>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let found = TABLE.get(epoll)?;
    let Some(Entry::Epoll(set)) = found.as_deref() else { return None };
    let before = next::errno();
    // SAFETY: as promised.
    Some(answer(before, limit.and_then(|limit| unsafe { epoll_some(epoll, set, events, limit, mask) })))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, limit: c_int) -> c_int {
    // SAFETY: as the program promises.
    unsafe { answer_epoll(epoll, (events, most), Ok(milliseconds(limit)), std::ptr::null()) }
        // SAFETY: likewise.
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
    // SAFETY: as the program promises.
    unsafe { answer_epoll(epoll, (events, most), Ok(milliseconds(limit)), mask) }
        // SAFETY: likewise.
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
    // SAFETY: as the program promises.
    unsafe { answer_epoll(epoll, (events, most), time(limit), mask) }
        // SAFETY: likewise.
        .unwrap_or_else(|| unsafe { next::epoll_pwait2(epoll, events, most, limit, mask) })
}
