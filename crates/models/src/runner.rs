//! A thread that steps models.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringpass_port::{Idle, Queues, Wake, Wakeable};
use rustix::event::epoll;
use rustix::io::Errno;

use crate::ixgbe::{Card, Wants};

/// Steps cards on a thread of its own until it is dropped.
pub struct Runner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// How long a drop waits for the thread. A wire that hangs in a system call must not hang the program.
    const LIMIT: Duration = Duration::from_secs(2);

    /// Steps each card with its wire, round robin, on the given CPU. Without `poll` the thread sleeps while there is
    /// nothing to do, until a doorbell, a register or a wire wakes it.
    pub fn spawn(cards: Vec<(Arc<Card>, Queues)>, cpu: Option<usize>, poll: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("models".into())
            .spawn(move || run(cards, cpu, Idle::new(poll), &stopped))
            .expect("the system has no thread left");
        Self { stop, thread: Some(thread) }
    }
}

/// The cards of a thread with their wires, as one thing to sleep on.
struct Models {
    cards: Vec<(Arc<Card>, Queues)>,
    /// Readable when a bell rings or, while it is armed, a wire brings something.
    any: OwnedFd,
}

impl Models {
    fn new(cards: Vec<(Arc<Card>, Queues)>) -> Self {
        let any = epoll::create(epoll::CreateFlags::CLOEXEC).expect("the process has no descriptor left");
        let models = Self { cards, any };
        for (card, _) in &models.cards {
            models.add(card.bell()).expect("the kernel has no memory left");
        }
        models
    }

    fn add(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.any, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    fn step(&mut self) -> usize {
        self.cards.iter_mut().map(|(card, wire)| card.step(wire)).sum()
    }
}

impl Wakeable for Models {
    fn arm(&mut self) {
        for (card, wire) in &mut self.cards {
            card.doze();
            wire.rx.arm();
        }
    }

    fn disarm(&mut self) {
        for (card, wire) in &mut self.cards {
            card.rise();
            wire.rx.disarm();
            if let Wake::Readable(fd) = wire.rx.wake() {
                // It is not there if the card did not want its frames.
                let _ = epoll::delete(&self.any, fd);
            }
        }
    }

    fn wake(&self) -> Wake<'_> {
        for (card, wire) in &self.cards {
            let Wants { frames, room, turn } = card.wants();
            let awake = match wire.rx.wake() {
                _ if room || turn.is_some() => true,
                Wake::Readable(fd) if frames => self.add(fd).is_err_and(|errno| errno != Errno::EXIST),
                Wake::Turns | Wake::At(_) => frames,
                Wake::Readable(_) | Wake::Never => false,
            };
            if awake {
                return Wake::Turns;
            }
        }
        Wake::Readable(self.any.as_fd())
    }
}

fn run(cards: Vec<(Arc<Card>, Queues)>, cpu: Option<usize>, mut idle: Idle, stop: &AtomicBool) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let mut models = Models::new(cards);
    while !stop.load(Ordering::Relaxed) {
        let moved = models.step();
        idle.after(moved, &mut [&mut models]);
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        while !thread.is_finished() && start.elapsed() < Self::LIMIT {
            thread::sleep(Duration::from_micros(100));
        }
        if thread.is_finished() {
            // A panic of the thread has already been printed; dropping must not add a second one.
            let _ = thread.join();
        }
    }
}
