//! A thread that steps models, and the trait of models that it steps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringpass_port::{Idle, QueuePair, WakeSource, Wakeable};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

/// A device model that advances in steps.
pub trait Model: Send + Sync {
    /// Runs one step and returns how many packets it moved.
    fn step(&self, wire: &mut QueuePair) -> usize;

    /// Announces that the stepping thread is about to sleep: from now on, doorbells and register writes of the
    /// driver make [`waker`](Self::waker) readable. The thread steps once more before it sleeps, so that
    /// nothing written earlier is missed.
    fn prepare_to_wait(&self);

    /// Ends what [`prepare_to_wait`](Self::prepare_to_wait) announced.
    fn finish_wait(&self);

    /// Returns the descriptor that becomes readable to wake the stepping thread.
    fn waker(&self) -> BorrowedFd<'_>;

    /// Returns the other events that the stepping thread has to wait for while it sleeps.
    fn interest(&self) -> Interest;
}

/// Events that a device waits for besides its [`waker`](Model::waker).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// The device takes frames from the wire. Otherwise they stay there, and the wire must not wake the thread.
    pub frames: bool,
    /// The device has frames that the wire had no room for yet.
    pub room: bool,
    /// Time of the next step that is due, because of a throttled interrupt or a lie.
    pub turn: Option<Instant>,
}

/// Models, each with its wire.
type Cards = Vec<(Arc<dyn Model>, QueuePair)>;

/// Steps models on a thread of its own until it is dropped.
pub struct Runner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by a runner and its thread.
struct Shared {
    stop: AtomicBool,
    /// There are models in `added`.
    has_added: AtomicBool,
    added: Mutex<Cards>,
    /// Eventfd that wakes the thread when `stop` or `has_added` is set.
    event: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        // The write fails only if the counter is full; then the eventfd is readable and the thread awake.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Runner {
    /// Longest time that drop waits for the thread, 2 s. A wire that hangs in a system call must not hang the
    /// program.
    const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

    /// Starts a thread, on the given CPU, that steps each device with its wire in turn. Without `poll` the
    /// thread sleeps while there is nothing to do, until a doorbell, a register write or a wire wakes it.
    pub fn spawn<M: Model + 'static>(cards: Vec<(Arc<M>, QueuePair)>, cpu: Option<usize>, poll: bool) -> Self {
        let cards = cards.into_iter().map(|(card, wire)| (card as Arc<dyn Model>, wire)).collect();
        let event =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("the process has a descriptor left");
        let (stop, has_added) = (AtomicBool::new(false), AtomicBool::new(true));
        let shared = Arc::new(Shared { stop, has_added, added: Mutex::new(cards), event });
        let its = shared.clone();
        let thread = thread::Builder::new()
            .name("models".into())
            .spawn(move || run(&its, cpu, Idle::new(poll)))
            .expect("the system has no thread left");
        Self { shared, thread: Some(thread) }
    }

    /// Adds a device with its wire.
    pub fn add(&self, card: Arc<dyn Model>, wire: QueuePair) {
        self.shared.added.lock().unwrap_or_else(PoisonError::into_inner).push((card, wire));
        self.shared.has_added.store(true, Ordering::Release);
        self.shared.wake();
    }
}

/// The models of the thread with their wires, as one thing to sleep on.
struct ModelSet {
    cards: Cards,
    /// Epoll descriptor: readable when a waker fires or, while the set is armed, when a wire has frames.
    poll_set: OwnedFd,
}

impl ModelSet {
    fn new() -> Self {
        let poll_set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("the process has a descriptor left");
        Self { cards: Vec::new(), poll_set }
    }

    fn extend(&mut self, cards: Cards) {
        for (card, _) in &cards {
            self.add(card.waker()).expect("the kernel has memory left");
        }
        self.cards.extend(cards);
    }

    fn add(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.poll_set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    fn step(&mut self) -> usize {
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

fn run(shared: &Shared, cpu: Option<usize>, mut idle: Idle) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let mut models = ModelSet::new();
    models.add(shared.event.as_fd()).expect("the kernel has memory left");
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.has_added.load(Ordering::Relaxed) && shared.has_added.swap(false, Ordering::Acquire) {
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            let _ = rustix::io::read(&shared.event, &mut [0; 8]);
            // Models that are armed already stay so; the new ones are armed before the next sleep.
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
        while !thread.is_finished() && start.elapsed() < Self::JOIN_TIMEOUT {
            thread::sleep(Duration::from_micros(100));
        }
        if thread.is_finished() {
            // The panic of the thread has been printed already; drop must not panic again.
            let _ = thread.join();
        }
    }
}
