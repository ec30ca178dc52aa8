//! Notifications by the driver (4.1.5.2): marks that the stepping thread collects, and the bell that wakes it. None of
//! this takes the card's lock.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ringpass_registers::Sleeper;

/// A queue was notified; the lower bits hold the position that came along.
const KICKED: u32 = 1 << 31;

/// What notifications carry instead of the queue's number, if [`NOTIF_CONFIG_DATA`] was negotiated: made so that it is
/// never that number.
///
/// [`NOTIF_CONFIG_DATA`]: ringpass_virtio::features::NOTIF_CONFIG_DATA
pub(super) const fn config_data(queue: u16) -> u16 {
    queue ^ 0x4a00
}

pub(super) struct Kicks {
    sleeper: Sleeper,
    _asleep: Box<AtomicU32>,
    queues: Box<[AtomicU32]>,
    /// What was negotiated: notifications with the ring's position, with other data than the queue's number.
    pub(super) data: AtomicBool,
    pub(super) config_data: AtomicBool,
    /// The queue of commands, if there is one.
    pub(super) control: AtomicUsize,
    total: AtomicU64,
    wrong: AtomicU64,
}

impl Kicks {
    pub(super) fn new(queues: usize) -> Self {
        let asleep = Box::new(AtomicU32::new(0));
        // SAFETY: the word is in a box, which `self` keeps; no clone of the bell leaves `self`.
        #[allow(unsafe_code)]
        let sleeper = unsafe { Sleeper::new(NonNull::from(&*asleep)) };
        Self {
            sleeper: sleeper.expect("the process has descriptors and asynchronous I/O left for a bell"),
            _asleep: asleep,
            queues: (0..queues).map(|_| AtomicU32::new(0)).collect(),
            data: AtomicBool::new(false),
            config_data: AtomicBool::new(false),
            control: AtomicUsize::new(usize::MAX),
            total: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        }
    }

    /// A write to the notification structure (4.1.4.4) at queue `at`'s place. Whether there is a command.
    pub(super) fn modern(&self, at: usize, value: u32, bytes: usize) -> bool {
        let expected = match self.config_data.load(Ordering::Relaxed) {
            true => config_data(at as u16),
            false => at as u16,
        };
        let width = if self.data.load(Ordering::Relaxed) { 4 } else { 2 };
        let right = bytes == width && value as u16 == expected;
        self.kick(at, (value >> 16) as u16, right)
    }

    /// A write to the legacy interface's register, likewise.
    pub(super) fn legacy(&self, queue: u16) -> bool {
        self.kick(queue.into(), 0, true)
    }

    fn kick(&self, queue: usize, position: u16, right: bool) -> bool {
        self.total.fetch_add(1, Ordering::Relaxed);
        match self.queues.get(queue).filter(|_| right) {
            Some(cell) => {
                cell.store(KICKED | u32::from(position), Ordering::Release);
                self.sleeper.bell().ring();
            }
            None => _ = self.wrong.fetch_add(1, Ordering::Relaxed),
        }
        right && queue == self.control.load(Ordering::Relaxed)
    }

    /// Whether a queue was notified since the last look, and with which position.
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

    /// All notifications, and the wrong ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.total.load(Ordering::Relaxed), self.wrong.load(Ordering::Relaxed))
    }

    pub(super) fn ring(&self) {
        self.sleeper.bell().ring();
    }

    pub(super) fn doze(&self) {
        self.sleeper.doze();
    }

    pub(super) fn rise(&self) {
        self.sleeper.rise();
    }

    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.sleeper.as_fd()
    }
}
