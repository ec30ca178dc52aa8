//! The trait of models, which advance in steps.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use ringpass_port::{Direction, QueuePair};

use crate::step::Step;

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

    /// Returns whether [`step_one`](Self::step_one) is implemented.
    fn can_step_one(&self) -> bool {
        false
    }

    /// Begins or ends to keep what the driver writes, for [`step_one`](Self::step_one).
    fn trace(&self, _on: bool) {}

    /// Handles one descriptor that is for sending, or one frame from the wire, and tells what driver and device wrote. `None` if there is nothing
    /// to do in this direction.
    fn step_one(&self, _wire: &mut QueuePair, _direction: Direction) -> Option<Step> {
        None
    }

    /// Delivers interrupts that are due, and does nothing else. Called a hundred times a second while the device is stopped.
    fn settle(&self) {}
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
