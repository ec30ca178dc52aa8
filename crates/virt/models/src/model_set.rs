//! The models of a thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringpass_port::{QueuePair, WakeSource, Wakeable};
use rustix::event::epoll;
use rustix::io::Errno;

use crate::model::{Interest, Model};

/// Models, each with its wire.
pub(crate) type Cards = Vec<(Arc<dyn Model>, QueuePair)>;

/// The models of the thread with their wires, as one thing to sleep on.
pub(crate) struct ModelSet {
    pub(crate) cards: Cards,
    /// Epoll descriptor: readable when a waker fires or, while the set is armed, when a wire has frames.
    poll_set: OwnedFd,
}

impl ModelSet {
    pub(crate) fn new() -> Self {
        let poll_set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("the process has a descriptor left");
        Self { cards: Vec::new(), poll_set }
    }

    /// Adds models. Those that are armed already stay so; the new ones are armed before the next sleep.
    pub(crate) fn extend(&mut self, cards: Cards) {
        for (card, _) in &cards {
            self.add(card.waker()).expect("the kernel has memory left");
        }
        self.cards.extend(cards);
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.poll_set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    pub(crate) fn step(&mut self) -> usize {
        self.cards.iter_mut().map(|(card, wire)| card.step(wire)).sum()
    }
}

impl Wakeable for ModelSet {
    fn arm(&mut self) {
        for (card, wire) in &mut self.cards {
            card.prepare_to_wait();
            wire.rx.arm();
        }
    }

    fn disarm(&mut self) {
        for (card, wire) in &mut self.cards {
            card.finish_wait();
            wire.rx.disarm();
            wire.rx.wake_sources(&mut |wake| {
                if let WakeSource::Readable(fd) = wake {
                    // The descriptor was not added if the device did not want frames.
                    let _ = epoll::delete(&self.poll_set, fd);
                }
            });
        }
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        let mut turns = false;
        for (card, wire) in &self.cards {
            let Interest { frames, room, turn } = card.interest();
            turns |= room || turn.is_some();
            if frames {
                wire.rx.wake_sources(&mut |wake| {
                    turns |= match wake {
                        WakeSource::Readable(fd) => self.add(fd).is_err_and(|errno| errno != Errno::EXIST),
                        WakeSource::Polled | WakeSource::At(_) => true,
                        WakeSource::Never => false,
                    }
                });
            }
        }
        each(if turns { WakeSource::Polled } else { WakeSource::Readable(self.poll_set.as_fd()) });
    }
}
