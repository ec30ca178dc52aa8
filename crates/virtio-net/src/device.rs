//! What a port and its queues share: the device, and what becomes of queues that are given up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringpass_bus::Bus;
use ringpass_virtio::driver::Virtqueue;

use crate::hang::Hang;
use crate::transport::Transport;

/// Device status bits (VIRTIO 1.3, 2.1).
pub(crate) mod status {
    pub(crate) const ACKNOWLEDGE: u8 = 1;
    pub(crate) const DRIVER: u8 = 2;
    pub(crate) const DRIVER_OK: u8 = 4;
    pub(crate) const FEATURES_OK: u8 = 8;
    pub(crate) const NEEDS_RESET: u8 = 64;
}

/// Stops when the port and all its queues are dropped.
pub(crate) struct Device {
    transport: Mutex<Box<dyn Transport>>,
    pub(crate) bus: Arc<dyn Bus>,
    /// What a queue's device did that devices may not do.
    pub(crate) broken: OnceLock<String>,
    pub(crate) hang: Hang,
    /// Queues can be reset one by one.
    resets_queues: AtomicBool,
    given_up: Mutex<Vec<Box<dyn GivenUp>>>,
}

/// A queue that the device may still use.
trait GivenUp: Send {
    /// # Safety
    /// As [`Virtqueue::reclaim`].
    unsafe fn reclaim(&mut self);
}

impl<Q: Virtqueue> GivenUp for Q {
    unsafe fn reclaim(&mut self) {
        // SAFETY: as the caller promises.
        unsafe { Virtqueue::reclaim(self) }
    }
}

impl Device {
    pub(crate) fn new(transport: Box<dyn Transport>, bus: Arc<dyn Bus>) -> Self {
        let (broken, hang, resets_queues, given_up) = Default::default();
        Self { transport: Mutex::new(transport), bus, broken, hang, resets_queues, given_up }
    }

    /// Lets queues be reset one by one.
    pub(crate) fn reset_queues(&self) {
        self.resets_queues.store(true, Ordering::Relaxed);
    }

    pub(crate) fn transport(&self) -> MutexGuard<'_, Box<dyn Transport>> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a queue that is no longer used but by the device. It goes when the device has said that it, or the whole of
    /// the device, is reset.
    pub(crate) fn retire(&self, number: u16, mut queue: impl Virtqueue + 'static) {
        if self.resets_queues.load(Ordering::Relaxed) {
            if self.transport().reset_queue(number).is_ok() {
                // SAFETY: the device has said that the queue is reset, after which it does not use it (2.6.1.1).
                return unsafe { queue.reclaim() };
            }
            // It is not asked again: each time would cost a second.
            self.resets_queues.store(false, Ordering::Relaxed);
        }
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(queue));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let reset = self.transport().reset();
        let _ = self.bus.set_bus_master(false);
        let queues = std::mem::take(&mut *self.given_up.lock().unwrap_or_else(PoisonError::into_inner));
        // A device that does not answer may still use the memory: then that is never given back.
        if reset.is_ok() {
            // SAFETY: the device has said that it is reset, after which it uses no queue (2.4.1).
            queues.into_iter().for_each(|mut queue| unsafe { queue.reclaim() });
        }
    }
}
