//! Notifications (kicks) by the driver (4.1.5.2): flags that the stepping thread collects, and the waker that
//! wakes it. None of this takes the device's lock.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ringpass_pci::registers::DeviceSleeper;

/// Set if a queue was notified; the lower 16 bits hold the position that came with the notification.
const KICKED: u32 = 1 << 31;

/// Returns what notifications carry instead of the queue's number with [`NOTIF_CONFIG_DATA`]. It never equals
/// that number, so that a driver that ignores the feature is noticed.
///
/// [`NOTIF_CONFIG_DATA`]: ringpass_virtio::features::NOTIF_CONFIG_DATA
pub(super) const fn config_data(queue: u16) -> u16 {
    queue ^ 0x4a00
}

pub(super) struct Kicks {
    sleeper: DeviceSleeper,
    /// The word that `sleeper` points to. Unlike a box, an `Arc` may be moved while there is a pointer into it.
    _asleep: Arc<AtomicU32>,
    queues: Box<[AtomicU32]>,
    /// Negotiated forms of a notification: with the ring's position (`data`), with other data than the queue's
    /// number (`config_data`).
    pub(super) data: AtomicBool,
    pub(super) config_data: AtomicBool,
    /// Index of the control queue; `usize::MAX` if there is none.
    pub(super) control: AtomicUsize,
    total: AtomicU64,
    wrong: AtomicU64,
}

impl Kicks {
    pub(super) fn new(queues: usize) -> Self {
        let asleep = Arc::new(AtomicU32::new(0));
        // SAFETY: the word is in an `Arc` that `self` keeps in `_asleep`, declared after `sleeper` and so dropped
        // after it. No clone of the waker leaves `self`.
        #[allow(unsafe_code)]
        let sleeper = unsafe { DeviceSleeper::new(NonNull::from(&*asleep)) };
        Self {
            sleeper: sleeper.expect("the process has descriptors and asynchronous I/O left for a doorbell"),
            _asleep: asleep,
            queues: (0..queues).map(|_| AtomicU32::new(0)).collect(),
            data: AtomicBool::new(false),
            config_data: AtomicBool::new(false),
            control: AtomicUsize::new(usize::MAX),
            total: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        }
    }

    /// Handles a write at queue `at`'s place in the notification structure (4.1.4.4). Returns whether the
    /// control queue was notified.
    pub(super) fn modern(&self, at: usize, value: u32, bytes: usize) -> bool {
        let expected = match self.config_data.load(Ordering::Relaxed) {
            true => config_data(at as u16),
            false => at as u16,
        };
        let width = if self.data.load(Ordering::Relaxed) { 4 } else { 2 };
        let right = bytes == width && value as u16 == expected;
        self.kick(at, (value >> 16) as u16, right)
    }

    /// Handles a write to the legacy interface's notification register. Returns whether the control queue was
    /// notified.
    pub(super) fn legacy(&self, queue: u16) -> bool {
        self.kick(queue.into(), 0, true)
    }

    fn kick(&self, queue: usize, position: u16, right: bool) -> bool {
        self.total.fetch_add(1, Ordering::Relaxed);
        match self.queues.get(queue).filter(|_| right) {
            Some(cell) => {
                cell.store(KICKED | u32::from(position), Ordering::Release);
                self.sleeper.waker().ring();
            }
            None => _ = self.wrong.fetch_add(1, Ordering::Relaxed),
        }
        right && queue == self.control.load(Ordering::Relaxed)
    }

    /// Takes a queue's notification, if there was one since the last call; returns its position.
    pub(super) fn take(&self, queue: usize) -> Option<u16> {
        let cell = &self.queues[queue];
        if cell.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(cell.swap(0, Ordering::Acquire) as u16)
    }

    pub(super) fn clear(&self) {
        self.queues.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
    }

    /// Returns the number of all notifications, and of the wrong ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.total.load(Ordering::Relaxed), self.wrong.load(Ordering::Relaxed))
    }

    pub(super) fn ring(&self) {
        self.sleeper.waker().ring();
    }

    pub(super) fn prepare_to_wait(&self) {
        self.sleeper.prepare_to_wait();
    }

    pub(super) fn finish_wait(&self) {
        self.sleeper.finish_wait();
    }

    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.sleeper.as_fd()
    }
}
