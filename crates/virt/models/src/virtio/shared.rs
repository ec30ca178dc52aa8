//! The device behind its lock, as its BARs and the stepping thread share it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringpass_vfio_user::ConfigSpace;

use super::device::Device;
use super::kicks::Kicks;

/// State shared by the device and its BARs.
pub(super) struct Shared {
    pub(super) device: Mutex<Device>,
    pub(super) space: Mutex<ConfigSpace>,
    pub(super) kicks: Kicks,
    /// Number of register accesses under way. The stepping thread, which holds the lock nearly all the time,
    /// yields to them.
    pub(super) waiting: AtomicU32,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Device> {
        // If a test panicked with the lock held, that has been reported; the registers are valid at any time.
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn space(&self) -> MutexGuard<'_, ConfigSpace> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` between two steps.
    pub(super) fn access<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = f(&mut self.lock());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Runs `f` between two steps and wakes the stepping thread, as `f` may give the device something to do.
    pub(super) fn change<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        let result = self.access(f);
        self.kicks.ring();
        result
    }

    /// Yields to register accesses that wait for the lock: a mutex that is unlocked and locked again at once
    /// starves other threads.
    pub(super) fn yield_to_registers(&self) {
        for _ in 0..100 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}
