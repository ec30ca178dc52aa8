//! State that a port and its queues share: the device, and the queues that are no longer used.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringpass_memory::Avx2;
use ringpass_pci::PciDevice;
use ringpass_port::HangFlags;
use ringpass_virtio::driver::Virtqueue;

use crate::transport::Transport;

/// Device status bits (VIRTIO 1.3, 2.1).
pub(crate) mod status {
    pub(crate) const ACKNOWLEDGE: u8 = 1;
    pub(crate) const DRIVER: u8 = 2;
    pub(crate) const DRIVER_OK: u8 = 4;
    pub(crate) const FEATURES_OK: u8 = 8;
    pub(crate) const NEEDS_RESET: u8 = 64;
}

/// The device. It is reset when the port and all its queues have been dropped.
pub(crate) struct Device {
    transport: Mutex<Box<dyn Transport>>,
    pub(crate) bus: Arc<dyn PciDevice>,
    /// The protocol violation that broke a queue, if there was one.
    pub(crate) broken: OnceLock<String>,
    pub(crate) hang: HangFlags,
    /// Present if packets may be handled four at a time.
    pub(crate) vector: Option<Avx2>,
    /// Whether queues can be reset one by one.
    resets_queues: AtomicBool,
    retired: Mutex<Vec<Box<dyn RetiredQueue>>>,
}

/// A queue that its owner has dropped but the device may still use.
trait RetiredQueue: Send {
    /// Drops the packets in the queue.
    ///
    /// # Safety
    /// The contract of [`Virtqueue::reclaim`]: the device no longer uses the queue, because it or the queue was
    /// reset.
    unsafe fn reclaim(&mut self);
}

impl<Q: Virtqueue> RetiredQueue for Q {
    unsafe fn reclaim(&mut self) {
        // SAFETY: the device no longer uses the queue, by this function's contract, which is that of
        // `Virtqueue::reclaim`.
        unsafe { Virtqueue::reclaim(self) }
    }
}

impl Device {
    pub(crate) fn new(transport: Box<dyn Transport>, bus: Arc<dyn PciDevice>, vector: Option<Avx2>) -> Self {
        Self {
            transport: Mutex::new(transport),
            bus,
            broken: Default::default(),
            hang: Default::default(),
            vector,
            resets_queues: Default::default(),
            retired: Default::default(),
        }
    }

    /// Allows resetting queues one by one (RING_RESET was negotiated).
    pub(crate) fn reset_queues(&self) {
        self.resets_queues.store(true, Ordering::Relaxed);
    }

    pub(crate) fn transport(&self) -> MutexGuard<'_, Box<dyn Transport>> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a queue that only the device still uses. It is freed once the device has confirmed that the
    /// queue, or the whole device, is reset.
    pub(crate) fn retire(&self, number: u16, mut queue: impl Virtqueue + 'static) {
        if self.resets_queues.load(Ordering::Relaxed) {
            if self.transport().reset_queue(number).is_ok() {
                // SAFETY: `reset_queue` returned `Ok`: the device has confirmed that the queue is reset, after
                // which it does not use it (2.6.1.1).
                return unsafe { queue.reclaim() };
            }
            // Do not try again with other queues: each attempt would cost a second.
            self.resets_queues.store(false, Ordering::Relaxed);
        }
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(queue));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let reset = self.transport().reset();
        let _ = self.bus.set_bus_master(false);
        let queues = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
        // A device that does not confirm the reset may still access the queues, so their memory is never freed.
        if reset.is_ok() {
            // SAFETY: `reset` returned `Ok`: the device has confirmed that it is reset, after which it uses no
            // queue (2.4.1).
            queues.into_iter().for_each(|mut queue| unsafe { queue.reclaim() });
        }
    }
}
