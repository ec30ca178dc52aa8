//! Orders to the thread that steps models: new models, and to stop and handle one descriptor at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ringpass_port::Direction;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::model_set::{Cards, ModelSet};
use crate::step::Step;

/// Time between two looks of stopped models at their interrupts.
const SETTLE: Duration = Duration::from_millis(10);
/// Time that the thread has to answer.
const ANSWER: Duration = Duration::from_millis(500);

/// State shared by a runner and its thread.
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// There is something new in `orders`.
    pub(crate) has_orders: AtomicBool,
    orders: Mutex<Orders>,
    answered: Condvar,
    is_stopped: AtomicBool,
    /// Eventfd that wakes the thread when `stop` or `has_orders` is set.
    event: OwnedFd,
}

#[derive(Default)]
pub(crate) struct Orders {
    pub(crate) added: Cards,
    /// Number of the last step that was asked for.
    asked: u64,
    /// Whether the thread has yet to do it.
    is_open: bool,
    /// The thread's answer to a step, by its number.
    answer: Option<(u64, Result<Option<Step>, String>)>,
}

impl Shared {
    pub(crate) fn new(added: Cards) -> Self {
        let event =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("the process has a descriptor left");
        let orders = Mutex::new(Orders { added, ..Orders::default() });
        let (stop, has_orders) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { stop, has_orders, orders, answered: Condvar::new(), is_stopped: AtomicBool::new(false), event }
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full; then the eventfd is readable and the thread awake.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order.
    pub(crate) fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.lock());
        // In this order, so that the eventfd is not readable any more once the thread has followed.
        self.wake();
        self.has_orders.store(true, Ordering::Release);
    }

    /// Follows the orders, on the runner's thread. Returns when the models are to run.
    #[cold]
    pub(crate) fn follow(&self, models: &mut ModelSet) {
        let mut is_traced = false;
        let mut turn = 0;
        loop {
            self.has_orders.store(false, Ordering::Relaxed);
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            let mut orders = self.lock();
            let added = std::mem::take(&mut orders.added);
            added.iter().for_each(|(card, _)| card.trace(is_traced));
            models.extend(added);
            let step = std::mem::take(&mut orders.is_open).then_some(orders.asked);
            drop(orders);
            let is_stopped = self.is_stopped.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed);
            if is_stopped != is_traced {
                models.cards.iter().for_each(|(card, _)| card.trace(is_stopped));
                is_traced = is_stopped;
            }
            // Without the lock, as a wire may hang.
            if let Some(number) = step {
                let answer = step_one(&mut models.cards, &mut turn);
                self.lock().answer = Some((number, answer));
                self.answered.notify_all();
            }
            if !is_stopped {
                return;
            }
            models.cards.iter().for_each(|(card, _)| card.settle());
            let time = Timespec::try_from(SETTLE).unwrap_or_default();
            // A signal ends the wait, which is all that an error could say.
            let _ = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(&time));
        }
    }
}

/// Handles one descriptor: a frame that is to be sent before one that is to be received, so that a frame's way is seen from wire to wire.
fn step_one(cards: &mut Cards, turn: &mut usize) -> Result<Option<Step>, String> {
    if !cards.iter().any(|(card, _)| card.can_step_one()) {
        return Err("only software cards of Intel's kind can be stepped".into());
    }
    for direction in [Direction::Tx, Direction::Rx] {
        for number in 0..cards.len() {
            let number = (*turn + number) % cards.len();
            let (card, wire) = &mut cards[number];
            if let Some(mut step) = card.step_one(wire, direction) {
                step.card = number + 1;
                // The next frame comes from another wire.
                if direction == Direction::Rx {
                    *turn = number + 1;
                }
                return Ok(Some(step));
            }
        }
    }
    Ok(None)
}

/// Stops the models of a [`Runner`](crate::Runner), and lets them handle one descriptor at a time. May be used by any thread.
#[derive(Clone)]
pub struct Stepper(pub(crate) Weak<Shared>);

impl Stepper {
    /// Returns whether the models are stopped; `None` if the runner has ended.
    pub fn is_stopped(&self) -> Option<bool> {
        Some(self.0.upgrade()?.is_stopped.load(Ordering::Relaxed))
    }

    /// Stops the models, or lets them run.
    pub fn stop(&self, is_stopped: bool) {
        if let Some(shared) = self.0.upgrade() {
            shared.is_stopped.store(is_stopped, Ordering::Relaxed);
            shared.order(|_| {});
        }
    }

    /// Lets one of the models, which stop if they run, handle one descriptor. `None` if there is nothing to do: nothing is to be sent, and no wire has a
    /// frame. Waits for half a second at most. To be called by one thread at a time: of two, one gets no answer.
    ///
    /// # Errors
    /// In a line: no model can do so, or the thread does not answer.
    pub fn step(&self) -> Result<Option<Step>, String> {
        let silent = || "the thread of the software cards does not answer; its wire may hang".to_owned();
        let shared = self.0.upgrade().ok_or_else(silent)?;
        let mut number = 0;
        shared.is_stopped.store(true, Ordering::Relaxed);
        shared.order(|orders| {
            (orders.asked, orders.is_open) = (orders.asked + 1, true);
            number = orders.asked;
        });
        let until = Instant::now() + ANSWER;
        let mut orders = shared.lock();
        loop {
            if let Some((_, answer)) = orders.answer.take_if(|(answered, _)| *answered == number) {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                orders.is_open = false;
                return Err(silent());
            }
            orders = shared.answered.wait_timeout(orders, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
