//! The ports that an epoll instance of the program watches, besides the descriptors that the kernel watches for
//! it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, c_short};
use rustix::io::Errno;

use crate::open::Open;
use crate::wait::Watched;

/// Ports, and epoll instances with ports, that an epoll instance watches; the kernel watches its other descriptors.
#[derive(Default)]
pub struct Set {
    watches: Mutex<Vec<Watch>>,
    /// Whether ports come first in the next result: it alternates, so that neither side starves.
    turn: AtomicBool,
}

/// Something that a set can watch.
#[derive(Clone)]
pub enum Watchable {
    /// A port.
    Port(Arc<Open>),
    /// Another epoll instance. The kernel watches that as well, for its other descriptors.
    Epoll(Arc<Set>),
}

/// Weak: it is watched until its last descriptor is closed.
#[derive(Clone)]
enum Target {
    Port(Weak<Open>),
    Epoll(Weak<Set>),
}

#[derive(Clone)]
struct Watch {
    fd: i32,
    target: Target,
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

/// Deepest nesting of epoll instances; the kernel permits 5.
const MAX_DEPTH: u32 = 8;

impl Target {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Port(a), Self::Port(b)) => a.ptr_eq(b),
            (Self::Epoll(a), Self::Epoll(b)) => a.ptr_eq(b),
            _ => false,
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Self::Port(open) => open.strong_count() > 0,
            Self::Epoll(set) => set.strong_count() > 0,
        }
    }
}

impl Set {
    fn watches(&self) -> MutexGuard<'_, Vec<Watch>> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.target.is_there());
        watches
    }

    /// Returns whether it watches nothing.
    pub fn is_empty(&self) -> bool {
        self.watches().is_empty()
    }

    /// Executes a change of `epoll_ctl`.
    pub fn change(&self, fd: i32, what: &Watchable, change: Change) -> Result<(), Errno> {
        let target = match what {
            Watchable::Port(open) => Target::Port(Arc::downgrade(open)),
            Watchable::Epoll(set) => Target::Epoll(Arc::downgrade(set)),
        };
        let mut watches = self.watches();
        let there = watches.iter().position(|watch| watch.fd == fd && watch.target.is(&target));
        let new =
            |events, data| Watch { fd, target: target.clone(), events, data, last_seen: None, oneshot_fired: false };
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

    /// Returns what is to be waited for: the ports of this instance, and of those inside of it.
    pub fn watched(&self) -> Vec<Watched> {
        let mut watched = Vec::new();
        self.add_watched(&mut watched, MAX_DEPTH);
        watched
    }

    fn add_watched(&self, all: &mut Vec<Watched>, depth: u32) {
        // A copy, so that no lock is held while another is taken.
        let watches = self.watches().clone();
        for watch in watches.into_iter().filter(|watch| !watch.oneshot_fired) {
            match watch.target {
                Target::Port(open) => {
                    all.extend(open.upgrade().map(|open| Watched {
                        last_seen: watch.last_seen,
                        ..Watched::new(open, watch.events as c_short)
                    }))
                }
                Target::Epoll(set) if depth > 0 => {
                    set.upgrade().into_iter().for_each(|set| set.add_watched(all, depth - 1));
                }
                Target::Epoll(_) => {}
            }
        }
    }

    /// Returns a number that changes when ports with events, of this instance and of those inside of it, have others; `None` if there
    /// are no ports with events.
    pub fn ready(&self, watched: &[Watched]) -> Option<u64> {
        self.ready_within(watched, MAX_DEPTH)
    }

    fn ready_within(&self, watched: &[Watched], depth: u32) -> Option<u64> {
        let watches = self.watches().clone();
        let ready = watches.into_iter().filter(|watch| !watch.oneshot_fired).filter_map(|watch| match watch.target {
            Target::Port(open) => {
                let of =
                    |one: &&Watched| one.revents != 0 && one.open_is(&open) && one.events == watch.events as c_short;
                let one = watched.iter().find(of)?;
                Some(one.open.port().map_or(0, |port| port.generation(one.events)))
            }
            Target::Epoll(set) if depth > 0 => set.upgrade()?.ready_within(watched, depth - 1),
            Target::Epoll(_) => None,
        });
        ready.reduce(|sum, generation| u64::wrapping_mul(sum, 65_537).wrapping_add(generation))
    }

    /// Returns the events of the ports and instances that have some, at most `most`.
    pub fn collect_ready(&self, watched: &[Watched], most: usize) -> Vec<ReadyEvent> {
        let mut told = Vec::new();
        let watches = self.watches().clone();
        for candidate in watches {
            if told.len() == most {
                break;
            }
            let (events, generation) = match &candidate.target {
                Target::Port(open) => {
                    let of = |one: &&Watched| {
                        one.revents != 0 && one.open_is(open) && one.events == candidate.events as c_short
                    };
                    let Some(one) = watched.iter().find(of) else { continue };
                    (one.revents as u16 as u32, one.open.port().map(|port| port.generation(one.events)))
                }
                Target::Epoll(set) => {
                    let generation = set.upgrade().and_then(|set| set.ready(watched));
                    // Seen already, if it is edge-triggered.
                    let is_new = generation.is_some() && candidate.last_seen != generation;
                    if candidate.events & EPOLLIN as u32 == 0 || !is_new {
                        continue;
                    }
                    (EPOLLIN as u32, generation)
                }
            };
            // Another thread may have reported it already, or changed it.
            let mut watches = self.watches();
            let same = |watch: &&mut Watch| {
                !watch.oneshot_fired && watch.fd == candidate.fd && watch.target.is(&candidate.target)
            };
            let Some(watch) = watches.iter_mut().find(same) else { continue };
            if watch.events & EPOLLET as u32 != 0 {
                watch.last_seen = generation;
            }
            watch.oneshot_fired = watch.events & EPOLLONESHOT as u32 != 0;
            told.push((events, watch.data));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use libc::EPOLLERR;

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
        let set = Set::default();
        let ports = [(); 2].map(|()| Watchable::Port(Arc::new(Open::disconnected())));
        let [one, two] = &ports;
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
        drop(ports);
        assert!(set.watched().is_empty(), "closed");
    }

    #[test]
    fn instances_are_ready_if_something_inside_of_them_is() {
        let [outer, middle, inner] = [(); 3].map(|()| Arc::new(Set::default()));
        let port = Watchable::Port(Arc::new(Open::disconnected()));
        let (events, edge) = (EPOLLIN as u32, EPOLLIN as u32 | EPOLLET as u32);
        middle.change(4, &Watchable::Epoll(inner.clone()), Change::Add(events, 4)).unwrap();
        outer.change(5, &Watchable::Epoll(middle.clone()), Change::Add(edge, 5)).unwrap();
        assert!(outer.watched().is_empty() && !outer.is_empty() && inner.is_empty());
        inner.change(3, &port, Change::Add(events, 3)).unwrap();
        let mut watched = outer.watched();
        assert_eq!((watched.len(), outer.ready(&watched)), (1, None));
        watched[0].revents = libc::POLLERR;
        assert_eq!(outer.collect_ready(&watched, 9), [(events, 5)]);
        assert_eq!(outer.collect_ready(&watched, 9), [], "an edge is reported once");
        assert_eq!((middle.collect_ready(&watched, 9), inner.collect_ready(&watched, 9).len()), (vec![(events, 4)], 1));
        // In a circle, which the kernel does not permit.
        inner.change(6, &Watchable::Epoll(outer.clone()), Change::Add(events, 6)).unwrap();
        assert!(outer.watched().len() < 99);
        outer.change(5, &Watchable::Epoll(middle.clone()), Change::Delete).unwrap();
        assert!(outer.is_empty());
        drop((middle, port, watched));
        assert_eq!(inner.watched().len(), 0);
    }
}
