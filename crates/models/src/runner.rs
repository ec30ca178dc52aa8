//! A thread that steps models.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringpass_port::{Idle, Queues, Wake, Wakeable};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

/// A card that is stepped.
pub trait Model: Send + Sync {
    /// One round; returns how many packets moved.
    fn step(&self, wire: &mut Queues) -> usize;

    /// The stepping thread is about to sleep: from now on what the driver does makes [`bell`](Self::bell) readable. It
    /// steps once more before it sleeps.
    fn doze(&self);

    /// Takes that back.
    fn rise(&self);

    /// What wakes the stepping thread.
    fn bell(&self) -> BorrowedFd<'_>;

    /// What else the stepping thread has to look for while it sleeps.
    fn wants(&self) -> Wants;
}

/// What a card waits for besides its [`bell`](Model::bell).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// It takes frames from the wire. Otherwise they stay there, and the wire must not wake.
    pub frames: bool,
    /// It has frames that the wire did not take yet.
    pub room: bool,
    /// It is to be stepped then, because of an interrupt that is throttled.
    pub turn: Option<Instant>,
}

/// Models with their wires.
type Cards = Vec<(Arc<dyn Model>, Queues)>;

/// Steps cards on a thread of its own until it is dropped.
pub struct Runner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a runner and its thread share.
struct Shared {
    stop: AtomicBool,
    /// There are cards in `added`.
    news: AtomicBool,
    added: Mutex<Cards>,
    /// Wakes the thread for either.
    event: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        // It fails only if the counter is full, and then the thread is awake.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Runner {
    /// How long a drop waits for the thread. A wire that hangs in a system call must not hang the program.
    const LIMIT: Duration = Duration::from_secs(2);

    /// Steps each card with its wire, round robin, on the given CPU. Without `poll` the thread sleeps while there is
    /// nothing to do, until a doorbell, a register or a wire wakes it.
    pub fn spawn<M: Model + 'static>(cards: Vec<(Arc<M>, Queues)>, cpu: Option<usize>, poll: bool) -> Self {
        let cards = cards.into_iter().map(|(card, wire)| (card as Arc<dyn Model>, wire)).collect();
        let event =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("the process has a descriptor left");
        let (stop, news) = (AtomicBool::new(false), AtomicBool::new(true));
        let shared = Arc::new(Shared { stop, news, added: Mutex::new(cards), event });
        let its = shared.clone();
        let thread = thread::Builder::new()
            .name("models".into())
            .spawn(move || run(&its, cpu, Idle::new(poll)))
            .expect("the system has no thread left");
        Self { shared, thread: Some(thread) }
    }

    /// Steps another card too, with its wire.
    pub fn add(&self, card: Arc<dyn Model>, wire: Queues) {
        self.shared.added.lock().unwrap_or_else(PoisonError::into_inner).push((card, wire));
        self.shared.news.store(true, Ordering::Release);
        self.shared.wake();
    }
}

/// The cards of a thread with their wires, as one thing to sleep on.
struct Models {
    cards: Cards,
    /// Readable when a bell rings or, while it is armed, a wire brings something.
    any: OwnedFd,
}

impl Models {
    fn new() -> Self {
        let any = epoll::create(epoll::CreateFlags::CLOEXEC).expect("the process has a descriptor left");
        Self { cards: Vec::new(), any }
    }

    fn extend(&mut self, cards: Cards) {
        for (card, _) in &cards {
            self.add(card.bell()).expect("the kernel has memory left");
        }
        self.cards.extend(cards);
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
            wire.rx.wakes(&mut |wake| {
                if let Wake::Readable(fd) = wake {
                    // It is not there if the card did not want its frames.
                    let _ = epoll::delete(&self.any, fd);
                }
            });
        }
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        let mut turns = false;
        for (card, wire) in &self.cards {
            let Wants { frames, room, turn } = card.wants();
            turns |= room || turn.is_some();
            if frames {
                wire.rx.wakes(&mut |wake| {
                    turns |= match wake {
                        Wake::Readable(fd) => self.add(fd).is_err_and(|errno| errno != Errno::EXIST),
                        Wake::Turns | Wake::At(_) => true,
                        Wake::Never => false,
                    }
                });
            }
        }
        each(if turns { Wake::Turns } else { Wake::Readable(self.any.as_fd()) });
    }
}

fn run(shared: &Shared, cpu: Option<usize>, mut idle: Idle) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let mut models = Models::new();
    models.add(shared.event.as_fd()).expect("the kernel has memory left");
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.news.load(Ordering::Relaxed) && shared.news.swap(false, Ordering::Acquire) {
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            let _ = rustix::io::read(&shared.event, &mut [0; 8]);
            // Those that a sleeper has armed are armed; the new ones are from its next sleep on.
            models.extend(std::mem::take(&mut *shared.added.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        let moved = models.step();
        idle.after(moved, &mut [&mut models]);
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
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
