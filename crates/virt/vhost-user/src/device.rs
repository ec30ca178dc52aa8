//! The interface through which a back-end's session drives its device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringpass_ipc::EventNotifier;
use ringpass_port::MacAddress;
use ringpass_virtio::device::{GuestMemory, VringConfig};

use crate::{DirtyLog, Ended};

/// Position in a ring, as in GET_VRING_BASE and SET_VRING_BASE.
///
/// Split ring: the next available index. Packed ring: the next available slot with its wrap counter in bit
/// 15, and the same of the used slots in the upper half.
pub type VringBase = u32;

/// The device behind a back-end, driven by its control thread.
///
/// Queues 0, 2, … are those on which the guest receives, 1, 3, … those on which it sends. An error refuses
/// the front-end's request, with its text in the log. If the front-end did not ask for an acknowledgement,
/// the session ends.
pub trait Device: Send {
    /// Returns the offered features.
    fn features(&self) -> u64;

    /// Returns the number of queues: even, at most 256.
    fn queues(&self) -> usize;

    /// Replaces the guest's memory. All running queues lie in the new memory and continue.
    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), String>;

    /// Starts a queue that is not running. It moves packets once it is also enabled.
    fn start(&mut self, queue: usize, start: QueueStart) -> Result<(), String>;

    /// Enables or disables a queue. A queue that is not running keeps the setting for its start. All queues
    /// are disabled when a session begins.
    fn enable(&mut self, queue: usize, on: bool);

    /// Replaces the interrupt of a running queue; `None` if the guest polls.
    fn set_call(&mut self, queue: usize, call: Option<EventNotifier>);

    /// Stops a running queue after everything taken from it has been returned, and returns its position. The
    /// queue is stopped even after an error.
    fn stop(&mut self, queue: usize) -> Result<VringBase, String>;

    /// Logs all pages of the guest's memory that are written to from here on, rings too, after they were written; `None` ends that. Queues run meanwhile, and start
    /// later.
    fn set_log(&mut self, log: Option<Arc<DirtyLog>>) -> Result<(), String>;

    /// Announces the guest, which has migrated here: frames are to be sent on its behalf that show the
    /// network its new location.
    fn announce(&mut self, mac: MacAddress);

    /// Sets the guest's MTU in bytes.
    fn set_mtu(&mut self, mtu: u16) -> Result<(), String>;

    /// Returns why the session is to end, if the guest violated the protocol ([`Ended::Fault`]) or held up the device
    /// ([`Ended::SlowMemory`]). Called several times a second.
    fn fault(&mut self) -> Option<Ended>;

    /// Ends the session: stops and disables all queues and releases the guest's memory. `why` is meant for
    /// people.
    fn disconnected(&mut self, why: &str);
}

/// Parameters of a queue start.
pub struct QueueStart {
    /// Layout and features of the ring. Its parts lie in `memory` and are aligned, and its size is valid for
    /// its kind.
    pub setup: VringConfig,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Eventfd that becomes readable when the guest has made buffers available and notifications were
    /// enabled; `None` if the guest never kicks. It must be watched edge-triggered and not read: the
    /// front-end can change at any time whether a read blocks.
    pub kick: Option<OwnedFd>,
    /// Interrupts the guest; `None` if the guest polls.
    pub call: Option<EventNotifier>,
}
