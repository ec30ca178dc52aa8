//! What a pair of queues sleeps on: one descriptor, there before the guest is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringpass_port::Error;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Readable when the guest has kicked, or its session has changed something.
///
/// Kicks are never read: they belong to the guest, and a read could wait. Each is an event of its own, as they are watched
/// for edges.
pub(crate) struct Pair {
    epoll: OwnedFd,
    changed: OwnedFd,
}

const EDGE: EventFlags = EventFlags::IN.union(EventFlags::ET);

impl Pair {
    pub(crate) fn new() -> Result<Self, Error> {
        let make = || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let changed = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            epoll::add(&epoll, &changed, EventData::new_u64(0), EDGE)?;
            Ok(Self { epoll, changed })
        };
        make().map_err(|errno: rustix::io::Errno| Error::Os {
            what: "a descriptor to wait on".into(),
            source: errno.into(),
        })
    }

    /// Wakes when the guest kicks from now on.
    pub(crate) fn watch(&self, kick: &OwnedFd) -> Result<(), String> {
        epoll::add(&self.epoll, kick, EventData::new_u64(1), EDGE)
            .map_err(|errno| format!("the kick descriptor cannot be waited on: {errno}"))
    }

    /// Before the descriptor is closed: the guest has it too, so that closing it here would not end the watch.
    pub(crate) fn unwatch(&self, kick: &OwnedFd) {
        // It was watched.
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// Wakes whoever sleeps.
    pub(crate) fn wake(&self) {
        // It fails only if the counter is full, and then it has woken often enough.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// Takes away what woke.
    pub(crate) fn clear(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        // What is watched for edges is reported once. An error is a signal, and then the next sleep is short.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
    }
}

impl AsFd for Pair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn awake(pair: &Pair) -> bool {
        poll(&mut [PollFd::new(pair, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn each_kick_wakes_once_though_nobody_reads_it() {
        let pair = Pair::new().unwrap();
        let kick = eventfd(0, EventfdFlags::empty()).unwrap();
        pair.watch(&kick).unwrap();
        for _ in 0..3 {
            assert!(!awake(&pair));
            rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
            assert!(awake(&pair) && awake(&pair));
            pair.wake();
            pair.clear();
        }
        assert!(!awake(&pair));
        // As the guest does, which keeps a descriptor of the same.
        let guests = kick.try_clone().unwrap();
        pair.unwatch(&kick);
        drop(kick);
        rustix::io::write(&guests, &1u64.to_ne_bytes()).unwrap();
        assert!(!awake(&pair));
    }
}
