//! Interrupts: a queue that has run dry sleeps until its vector fires (sections 7.3.1 and 8.2.3.5).
//!
//! Vector `q` belongs to Rx queue `q`. An interrupt masks its own vector (auto-mask), so that a queue that polls is
//! never interrupted; the next sleep arms it again.

use std::os::fd::{AsFd, OwnedFd};

use ringpass_bus::Bus;
use ringpass_port::{Error, Wake, Wakeable};
use ringpass_registers::Window;
use ringpass_registers::ixgbe::{bits::*, *};

use crate::rx::Rx;

/// Least time between two interrupts of a queue (8.2.3.5.12): 10 steps of 2 µs.
const THROTTLE: u32 = 10 << 3;

/// Section 4.6.6: a vector for each queue, which clears its cause and masks itself when it fires. None where the bus has
/// no interrupts.
pub(crate) fn enable(bus: &dyn Bus, queues: usize) -> Result<impl ExactSizeIterator<Item = Interrupt>, Error> {
    let (window, events) = (bus.window()?, bus.interrupts(queues)?);
    if !events.is_empty() {
        let vectors = (1 << queues) - 1;
        window.write(GPIE, GPIE_MSIX_MODE | GPIE_PBA_SUPPORT | GPIE_OCD | GPIE_EIAME);
        window.write(EIAC, vectors);
        window.write(EIAM, vectors);
    }
    let interrupts = events.into_iter().enumerate();
    Ok(interrupts.map(move |(vector, event)| Interrupt { window: window.clone(), vector, event }))
}

/// The vector of an Rx queue.
pub(crate) struct Interrupt {
    window: Window,
    vector: usize,
    event: OwnedFd,
}

impl Interrupt {
    /// Directs a queue's cause to its vector (8.2.3.5.16: four entries a register, those of Rx are even), which stays
    /// masked.
    pub(crate) fn attach(&self, queue: usize) {
        let (register, shift) = (IVAR.at(queue / 2), queue % 2 * 16);
        self.window.clear(register, 0xff << shift);
        self.window.set(register, (self.vector as u32 | IVAR_VALID) << shift);
        self.window.write(EITR.at(self.vector), THROTTLE);
    }

    /// Forgets what came so far, which the queue has polled, and lets the next frame interrupt.
    fn arm(&self) {
        self.window.write(EICR, 1 << self.vector);
        self.window.write(EIMS, 1 << self.vector);
    }

    fn disarm(&self) {
        self.window.write(EIMC, 1 << self.vector);
        // Empty if something else woke the queue's thread.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn wake(&self) -> Wake<'_> {
        Wake::Readable(self.event.as_fd())
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.interrupt.iter().for_each(Interrupt::arm);
    }

    fn disarm(&mut self) {
        self.interrupt.iter().for_each(Interrupt::disarm);
    }

    fn wake(&self) -> Wake<'_> {
        self.interrupt.as_ref().map_or(Wake::Turns, Interrupt::wake)
    }
}
