//! A virtqueue of the guest, shared by this port's queues and the session.
//!
//! The packet path locks it once per burst. The session locks it only to exchange state that it has prepared,
//! for some microseconds: when a queue starts or stops and when the guest's memory changes. The session
//! therefore never waits for a worker that is blocked.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_ipc::EventNotifier;
use ringpass_port::YieldingMutex;
use ringpass_vhost_user::DirtyLog;
use ringpass_virtio::device::{GuestMemory, Packed, Split, VringConfig};
use ringpass_virtio::features::IN_ORDER;

use crate::lend::LentQueue;
use crate::logged::QueueLog;
use crate::negotiated::Negotiated;
use crate::turn::TurnWatch;

/// Device side of a split or packed ring.
pub(crate) enum Ring {
    Split(Split),
    Packed(Packed),
}

/// Runs the same code on either kind of ring, compiled for each.
macro_rules! with_ring {
    ($ring:expr, $queue:ident => $body:expr) => {
        match $ring {
            $crate::vring::Ring::Split($queue) => $body,
            $crate::vring::Ring::Packed($queue) => $body,
        }
    };
}
pub(crate) use with_ring;

/// Runs the same code on the ring of a queue, whose writes are logged while the guest migrates, compiled for each kind with and without a log.
macro_rules! with_logged_ring {
    ($running:expr, $queue:ident => $body:expr) => {
        match (&mut $running.ring, &mut $running.log) {
            ($crate::vring::Ring::Split($queue), None) => $body,
            ($crate::vring::Ring::Packed($queue), None) => $body,
            ($crate::vring::Ring::Split(ring), Some(log)) => {
                let $queue = &mut log.around(ring);
                $body
            }
            ($crate::vring::Ring::Packed(ring), Some(log)) => {
                let $queue = &mut log.around(ring);
                $body
            }
        }
    };
}
pub(crate) use with_logged_ring;

/// A queue that has been started.
pub(crate) struct Running {
    pub(crate) ring: Ring,
    pub(crate) negotiated: Negotiated,
    /// Layout of the ring.
    pub(crate) setup: VringConfig,
    /// Present while the guest migrates. Its buffers are not lent meanwhile.
    pub(crate) log: Option<QueueLog>,
    /// The guest's memory.
    pub(crate) memory: Arc<GuestMemory>,
    /// Eventfd that the guest kicks; not kept for queues whose kicks nobody waits for.
    pub(crate) kick: Option<OwnedFd>,
    /// Eventfd that interrupts the guest.
    pub(crate) call: Option<EventNotifier>,
    /// Lending state, if the queue's buffers are lent.
    pub(crate) mapped: Option<LentQueue>,
    pub(crate) turns: TurnWatch,
    /// Whether the guest broke the rules of virtqueues; the queue then moves no more packets.
    pub(crate) broken: bool,
}

/// State of a virtqueue as the guest has set it up.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) running: Option<Running>,
    pub(crate) enabled: bool,
}

/// A virtqueue behind its lock.
pub(crate) type Vring = YieldingMutex<State>;

impl State {
    /// Returns the queue if it can move packets: started, enabled and not broken.
    #[inline]
    pub(crate) fn active(&mut self) -> Option<&mut Running> {
        let enabled = self.enabled;
        self.running.as_mut().filter(|running| enabled && !running.broken)
    }
}

impl Running {
    /// Returns the number of descriptors of the ring.
    pub(crate) fn size(&self) -> usize {
        self.setup.size.into()
    }

    /// Returns whether the guest wants its buffers back in order (IN_ORDER). Such a queue is not lent, as lent buffers come back in any order.
    pub(crate) fn in_order(&self) -> bool {
        self.setup.features & IN_ORDER != 0
    }

    /// Logs writes from here on; `None` ends that.
    pub(crate) fn set_log(&mut self, log: Option<&Arc<DirtyLog>>) {
        self.log = log.map(|log| QueueLog::new(log, &self.memory, &self.setup));
    }

    /// Interrupts the guest.
    #[cold]
    pub(crate) fn call(&self) {
        if let Some(call) = &self.call {
            call.notify();
        }
    }
}
