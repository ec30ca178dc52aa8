//! Interrupts: a queue that has run dry sleeps until its vector fires (sections 7.3.1 and 8.2.3.5).
//!
//! Vector `q` belongs to Rx queue `q`. An interrupt masks its own vector (auto-mask), so that a queue that polls is
//! never interrupted; the next sleep arms it again.

use std::os::fd::{AsFd, OwnedFd};

use ringpass_port::Wake;
use ringpass_registers::Window;
use ringpass_registers::ixgbe::{bits::*, *};

/// Least time between two interrupts of a queue (8.2.3.5.12): 10 steps of 2 µs.
const THROTTLE: u32 = 10 << 3;

/// Section 4.6.6: one MSI-X vector a queue, which clears its cause and masks itself when it fires.
pub(crate) fn enable(window: &Window, queues: usize) {
    let vectors = (1 << queues) - 1;
    window.write(GPIE, GPIE_MSIX_MODE | GPIE_PBA_SUPPORT | GPIE_OCD | GPIE_EIAME);
    window.write(EIAC, vectors);
    window.write(EIAM, vectors);
}

/// The vector of an Rx queue.
pub(crate) struct Interrupt {
    window: Window,
    vector: u32,
    event: OwnedFd,
}

impl Interrupt {
    /// Directs a queue's cause to its vector (8.2.3.5.16: four entries a register, those of Rx are even), which stays
    /// masked.
    pub(crate) fn start(window: &Window, vector: usize, hardware_queue: usize, event: OwnedFd) -> Self {
        let (register, shift) = (IVAR.at(hardware_queue / 2), hardware_queue % 2 * 16);
        window.clear(register, 0xff << shift);
        window.set(register, (vector as u32 | IVAR_VALID) << shift);
        window.write(EITR.at(vector), THROTTLE);
        Self { window: window.clone(), vector: 1 << vector, event }
    }

    /// Forgets what came so far, which the queue has polled, and lets the next frame interrupt.
    pub(crate) fn arm(&self) {
        self.window.write(EICR, self.vector);
        self.window.write(EIMS, self.vector);
    }

    pub(crate) fn disarm(&self) {
        self.window.write(EIMC, self.vector);
        // Empty if something else woke the queue's thread.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    pub(crate) fn wake(&self) -> Wake<'_> {
        Wake::Readable(self.event.as_fd())
    }
}
