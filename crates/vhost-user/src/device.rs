//! What a back-end's session drives.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_peer::Signal;
use ringpass_port::MacAddress;
use ringpass_virtio::device::{GuestMemory, Setup};

/// Where a ring stands, as GET_VRING_BASE and SET_VRING_BASE have it: split, the next available index; packed, the next
/// available slot with its wrap counter in bit 15, and in the upper half the same of the used ones.
pub type Base = u32;

/// The device behind a back-end, as its control thread drives it. Queues 0, 2, … receive (on the guest's side), 1, 3, …
/// send. An error refuses what the front-end asked for, with its text in the log; where the front-end cannot be told, the
/// session ends.
pub trait Device: Send {
    /// Features that are offered.
    fn features(&self) -> u64;

    /// Queues that there are: an even number, at most 256.
    fn queues(&self) -> usize;

    /// The guest's memory from now on. All queues that run lie in it, and go on.
    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), String>;

    /// Starts a queue, which is not running. It moves packets when it is enabled, too.
    fn start(&mut self, queue: usize, start: Start) -> Result<(), String>;

    /// Lets a queue move packets, or no longer. Of one that does not run it is remembered; when a session begins, none is.
    fn enable(&mut self, queue: usize, on: bool);

    /// Another way to interrupt the guest, of a queue that runs; `None` if it polls.
    fn set_call(&mut self, queue: usize, call: Option<Signal>);

    /// Stops a queue that runs, when all that was taken from it has been given back; says where it stands. After an error
    /// it does not run either.
    fn stop(&mut self, queue: usize) -> Result<Base, String>;

    /// The guest has moved here: frames that show the network where it is now are to be sent in its name.
    fn announce(&mut self, mac: MacAddress);

    /// The guest's MTU.
    fn set_mtu(&mut self, mtu: u16) -> Result<(), String>;

    /// What the guest did that guests may not do: the session ends. Asked for some times a second.
    fn fault(&mut self) -> Option<String>;

    /// The session has ended; `why` is for people. Stops and disables all queues and lets go of the guest's memory.
    fn disconnected(&mut self, why: &str);
}

/// How a queue is started.
pub struct Start {
    /// Where it lies and how it works. Its parts lie in `memory` and are aligned, its size fits its kind.
    pub setup: Setup,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// An eventfd that becomes readable when the guest has made buffers available and was asked to say so; `None` if it
    /// never says so. To be watched edge by edge and not read: whether a read waits, the front-end can change at any time.
    pub kick: Option<OwnedFd>,
    /// Interrupts the guest; `None` if it polls.
    pub call: Option<Signal>,
}
