//! What an epoll instance of the program's watches of `/dev/netmap`: beside what the kernel knows of it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libc::{EPOLLET, EPOLLONESHOT, c_short};
use rustix::io::Errno;

use crate::open::Open;
use crate::wait::Watched;

/// See the module.
#[derive(Default)]
pub struct Set {
    watches: Mutex<Vec<Watch>>,
    /// Ports have the first places of an answer, or the last: in turns, so that nobody starves.
    turn: AtomicBool,
}

#[derive(Clone)]
struct Watch {
    fd: i32,
    /// It is watched until the last descriptor is closed.
    open: Weak<Open>,
    events: u32,
    data: u64,
    /// What was told, to those who want news only.
    known: Option<u64>,
    /// Told once, and that was all.
    spent: bool,
}

/// What is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Watch a descriptor for these events, with the program's word for it.
    Add(u32, u64),
    /// For other events.
    Modify(u32, u64),
    /// No longer.
    Delete,
}

/// What is told of a descriptor.
pub type Told = (u32, u64);

impl Set {
    fn watches(&self) -> MutexGuard<'_, Vec<Watch>> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.open.strong_count() > 0);
        watches
    }

    /// Does what `epoll_ctl` does.
    pub fn change(&self, fd: i32, open: &Arc<Open>, change: Change) -> Result<(), Errno> {
        let mut watches = self.watches();
        let there = watches.iter().position(|watch| watch.fd == fd && watch.open.as_ptr() == Arc::as_ptr(open));
        let new = |events, data| Watch { fd, open: Arc::downgrade(open), events, data, known: None, spent: false };
        match (change, there) {
            (Change::Add(..), Some(_)) => return Err(Errno::EXIST),
            (Change::Modify(..) | Change::Delete, None) => return Err(Errno::NOENT),
            (Change::Add(events, data), None) => watches.push(new(events, data)),
            (Change::Modify(events, data), Some(at)) => watches[at] = new(events, data),
            (Change::Delete, Some(at)) => drop(watches.remove(at)),
        }
        Ok(())
    }

    /// Whether ports come first in the next answer.
    pub fn turn(&self) -> bool {
        self.turn.fetch_xor(true, Relaxed)
    }

    /// What is to be waited for.
    pub fn watched(&self) -> Vec<Watched> {
        let watches = self.watches();
        let unspent = watches.iter().filter(|watch| !watch.spent);
        let watched = unspent.filter_map(|watch| {
            let open = watch.open.upgrade()?;
            Some(Watched { known: watch.known, ..Watched::new(open, watch.events as c_short) })
        });
        watched.collect()
    }

    /// What is told of those that have something to say, of so many at most.
    pub fn tell(&self, watched: &[Watched], most: usize) -> Vec<Told> {
        let mut told = Vec::new();
        let mut watches = self.watches();
        for watched in watched.iter().filter(|watched| watched.revents != 0) {
            // Another thread may have been told, or may have changed it.
            let same = |watch: &&mut Watch| !watch.spent && watch.open.as_ptr() == Arc::as_ptr(&watched.open);
            let Some(watch) = watches.iter_mut().find(same) else { continue };
            if told.len() == most {
                break;
            }
            if watch.events & EPOLLET as u32 != 0 {
                watch.known = watched.open.port().map(|port| port.news(watched.events));
            }
            watch.spent = watch.events & EPOLLONESHOT as u32 != 0;
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
        let told = set.tell(&watched, most);
        assert!(told.iter().all(|&(events, _)| events == EPOLLERR as u32));
        told.into_iter().map(|(_, data)| data).collect()
    }

    #[test]
    fn watches_change_as_epolls_do() {
        let (set, opens) = (Set::default(), [(); 2].map(|()| Arc::new(Open::nowhere())));
        let [one, two] = &opens;
        let events = EPOLLIN as u32;
        assert_eq!(set.change(3, one, Change::Modify(events, 1)), Err(Errno::NOENT));
        assert_eq!(set.change(3, one, Change::Delete), Err(Errno::NOENT));
        assert_eq!(set.change(3, one, Change::Add(events, 1)), Ok(()));
        assert_eq!(set.change(3, one, Change::Add(events, 1)), Err(Errno::EXIST));
        assert_eq!(set.change(4, two, Change::Add(events, 2)), Ok(()));
        assert_eq!((told(&set, 9), told(&set, 1), told(&set, 0)), (vec![1, 2], vec![1], vec![]));
        // Once, until it is asked for again.
        assert_eq!(set.change(4, two, Change::Modify(events | EPOLLONESHOT as u32, 5)), Ok(()));
        assert_eq!((told(&set, 1), told(&set, 9), told(&set, 9)), (vec![1], vec![1, 5], vec![1]));
        assert_eq!(set.change(4, two, Change::Modify(events, 6)), Ok(()));
        assert_eq!((told(&set, 9), set.change(3, one, Change::Delete), told(&set, 9)), (vec![1, 6], Ok(()), vec![6]));
        assert_eq!([set.turn(), set.turn(), set.turn()], [false, true, false]);
        drop(opens);
        assert!(set.watched().is_empty(), "closed");
    }
}
