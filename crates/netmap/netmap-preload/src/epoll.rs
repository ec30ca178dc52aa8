//! The ports that an epoll instance of the program watches, besides the descriptors that the kernel watches for
//! it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libc::{EPOLLET, EPOLLONESHOT, c_short};
use rustix::io::Errno;

use crate::open::Open;
use crate::wait::Watched;

/// The ports of an epoll instance.
#[derive(Default)]
pub struct Set {
    watches: Mutex<Vec<Watch>>,
    /// Whether ports come first in the next result: it alternates, so that neither side starves.
    turn: AtomicBool,
}

#[derive(Clone)]
struct Watch {
    fd: i32,
    /// Weak: it is watched until its last descriptor is closed.
    open: Weak<Open>,
    events: u32,
    data: u64,
    /// Generation that was reported last, with `EPOLLET`.
    last_seen: Option<u64>,
    /// The event of an `EPOLLONESHOT` watch was reported.
    oneshot_fired: bool,
}

/// A change by `epoll_ctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Watch a descriptor for these events, with this data of the program.
    Add(u32, u64),
    /// Watch for other events.
    Modify(u32, u64),
    /// Stop watching.
    Delete,
}

/// Events that are reported, and the program's data.
pub type ReadyEvent = (u32, u64);

impl Set {
    fn watches(&self) -> MutexGuard<'_, Vec<Watch>> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.open.strong_count() > 0);
        watches
    }

    /// Executes a change of `epoll_ctl`.
    pub fn change(&self, fd: i32, open: &Arc<Open>, change: Change) -> Result<(), Errno> {
        let mut watches = self.watches();
        let there = watches.iter().position(|watch| watch.fd == fd && watch.open.as_ptr() == Arc::as_ptr(open));
        let new = |events, data| Watch {
            fd,
            open: Arc::downgrade(open),
            events,
            data,
            last_seen: None,
            oneshot_fired: false,
        };
        match (change, there) {
            (Change::Add(..), Some(_)) => return Err(Errno::EXIST),
            (Change::Modify(..) | Change::Delete, None) => return Err(Errno::NOENT),
            (Change::Add(events, data), None) => watches.push(new(events, data)),
            (Change::Modify(events, data), Some(at)) => watches[at] = new(events, data),
            (Change::Delete, Some(at)) => drop(watches.remove(at)),
        }
        Ok(())
    }

    /// Returns whether ports come first in this result, and alternates it.
    pub fn turn(&self) -> bool {
        self.turn.fetch_xor(true, Relaxed)
    }

    /// Returns what is to be waited for.
    pub fn watched(&self) -> Vec<Watched> {
        let watches = self.watches();
        let unspent = watches.iter().filter(|watch| !watch.oneshot_fired);
        let watched = unspent.filter_map(|watch| {
            let open = watch.open.upgrade()?;
            Some(Watched { last_seen: watch.last_seen, ..Watched::new(open, watch.events as c_short) })
        });
        watched.collect()
    }

    /// Returns the events of the ports that have some, at most `most`.
    pub fn collect_ready(&self, watched: &[Watched], most: usize) -> Vec<ReadyEvent> {
        let mut told = Vec::new();
        let mut watches = self.watches();
        for watched in watched.iter().filter(|watched| watched.revents != 0) {
            // Another thread may have reported it already, or changed it.
            let same = |watch: &&mut Watch| !watch.oneshot_fired && watch.open.as_ptr() == Arc::as_ptr(&watched.open);
            let Some(watch) = watches.iter_mut().find(same) else { continue };
            if told.len() == most {
                break;
            }
            if watch.events & EPOLLET as u32 != 0 {
                watch.last_seen = watched.open.port().map(|port| port.generation(watched.events));
            }
            watch.oneshot_fired = watch.events & EPOLLONESHOT as u32 != 0;
            told.push((watched.revents as u16 as u32, watch.data));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use libc::{EPOLLERR, EPOLLIN};

    use super::*;

    fn told(set: &Set, most: usize) -> Vec<u64> {
        let mut watched = set.watched();
        watched.iter_mut().for_each(|watched| watched.revents = libc::POLLERR);
        let told = set.collect_ready(&watched, most);
        assert!(told.iter().all(|&(events, _)| events == EPOLLERR as u32));
        told.into_iter().map(|(_, data)| data).collect()
    }

    #[test]
    fn watches_change_as_epolls_do() {
        let (set, opens) = (Set::default(), [(); 2].map(|()| Arc::new(Open::disconnected())));
        let [one, two] = &opens;
        let events = EPOLLIN as u32;
        assert_eq!(set.change(3, one, Change::Modify(events, 1)), Err(Errno::NOENT));
        assert_eq!(set.change(3, one, Change::Delete), Err(Errno::NOENT));
        assert_eq!(set.change(3, one, Change::Add(events, 1)), Ok(()));
        assert_eq!(set.change(3, one, Change::Add(events, 1)), Err(Errno::EXIST));
        assert_eq!(set.change(4, two, Change::Add(events, 2)), Ok(()));
        assert_eq!((told(&set, 9), told(&set, 1), told(&set, 0)), (vec![1, 2], vec![1], vec![]));
        // Reported once, until it is modified.
        assert_eq!(set.change(4, two, Change::Modify(events | EPOLLONESHOT as u32, 5)), Ok(()));
        assert_eq!((told(&set, 1), told(&set, 9), told(&set, 9)), (vec![1], vec![1, 5], vec![1]));
        assert_eq!(set.change(4, two, Change::Modify(events, 6)), Ok(()));
        assert_eq!((told(&set, 9), set.change(3, one, Change::Delete), told(&set, 9)), (vec![1, 6], Ok(()), vec![6]));
        assert_eq!([set.turn(), set.turn(), set.turn()], [false, true, false]);
        drop(opens);
        assert!(set.watched().is_empty(), "closed");
    }
}
