//! A guest's queue, as this port's queues and the session reach it.
//!
//! The packet path locks it once a burst. The session locks it to exchange what it has prepared: some microseconds, when
//! a queue starts or stops and when the guest's memory changes. So the session need not wait for a worker that sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_peer::Signal;
use ringpass_port::Turns;
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

/// A queue, under its lock.
pub(crate) type Vring = Turns<State>;

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
