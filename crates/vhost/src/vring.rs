//! A guest's queue, as this port's queues and the session reach it.
//!
//! The packet path locks it once a burst. The session locks it to exchange what it has prepared: some microseconds, when
//! a queue starts or stops and when the guest's memory changes. So the session need not wait for a worker that sleeps.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_peer::Signal;
use ringpass_virtio::device::{GuestMemory, Packed, Split};

use crate::agreed::Agreed;
use crate::lend::Mapped;

/// The device's side of either kind of ring.
pub(crate) enum Ring {
    Split(Split),
    Packed(Packed),
}

/// Does the same with either kind of ring, each with code of its own.
macro_rules! with_ring {
    ($ring:expr, $queue:ident => $body:expr) => {
        match $ring {
            $crate::vring::Ring::Split($queue) => $body,
            $crate::vring::Ring::Packed($queue) => $body,
        }
    };
}
pub(crate) use with_ring;

/// A queue that runs.
pub(crate) struct Running {
    pub(crate) ring: Ring,
    pub(crate) agreed: Agreed,
    /// Descriptors of the ring.
    pub(crate) size: usize,
    /// The guest wants its buffers back in order: those of cards and of other guests are not.
    pub(crate) in_order: bool,
    /// The guest's memory.
    pub(crate) memory: Arc<GuestMemory>,
    /// What its guest kicks; not kept if nobody waits for it.
    pub(crate) kick: Option<OwnedFd>,
    /// What interrupts its guest.
    pub(crate) call: Option<Signal>,
    /// Its buffers are lent to a card.
    pub(crate) mapped: Option<Mapped>,
    /// The guest broke the rules: the queue moves nothing any more.
    pub(crate) broken: bool,
}

/// What the guest has made of a queue.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) running: Option<Running>,
    pub(crate) enabled: bool,
}

/// On cache lines of its own, since each belongs to another thread.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Vring {
    state: Mutex<State>,
    /// Who wants it for something else than packets. A busy worker has the lock nearly all the time, and would take it
    /// again before whoever waits has woken up.
    waiting: AtomicU32,
}

impl Vring {
    /// For packets; `None` if somebody else wants it now.
    #[inline]
    pub(crate) fn for_packets(&self) -> Option<MutexGuard<'_, State>> {
        (self.waiting.load(Ordering::Relaxed) == 0).then(|| self.locked())
    }

    /// For packets that would be dropped if they stood back: they wait for their turn, some microseconds.
    #[inline]
    pub(crate) fn in_turn(&self) -> MutexGuard<'_, State> {
        // Whoever waits may have to be woken first. Should that take long, the lock's own queue decides.
        for _ in 0..1000 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.locked()
    }

    /// For all else: packets stand back.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.locked();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    #[inline]
    fn locked(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it has left a state that is whole: it is changed by single assignments.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The queue, if packets pass.
    #[inline]
    pub(crate) fn moving(&mut self) -> Option<&mut Running> {
        let enabled = self.enabled;
        self.running.as_mut().filter(|running| enabled && !running.broken)
    }
}

impl Running {
    /// Interrupts the guest.
    #[cold]
    pub(crate) fn call(&self) {
        if let Some(call) = &self.call {
            call.raise();
        }
    }
}
