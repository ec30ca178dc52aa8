//! Interrupts: a queue that has run dry sleeps until its vector fires (sections 7.3.1 and 8.2.3.5).
//!
//! An interrupt masks its own vector (auto-mask), so that a queue that polls is never interrupted; the next sleep arms it
//! again.

use std::os::fd::AsFd;

use ringpass_bus::Waiter;
use ringpass_port::{Wake, Wakeable};
use ringpass_registers::{Reg, W1C, W1S, WO, Window};

use crate::rx::Rx;

/// The vector of an Rx queue, which clears its cause and masks itself when it fires.
pub struct Interrupt {
    /// The card's registers.
    pub window: Window,
    /// Which vector it is: of the first 32.
    pub vector: usize,
    /// What becomes readable when it fires.
    pub event: Waiter,
    /// EICR, where its cause is cleared.
    pub cause: Reg<W1C>,
    /// EIMS, where it is unmasked.
    pub unmask: Reg<W1S>,
    /// EIMC, where it is masked.
    pub mask: Reg<WO>,
}

impl Interrupt {
    /// What it means for idle queues to have so many vectors, for people.
    pub fn note(vectors: usize) -> &'static str {
        if vectors > 0 { "interrupts" } else { "no interrupts: idle queues are looked at in turns" }
    }

    /// Forgets what came so far, which the queue has polled, and lets the next frame interrupt.
    fn arm(&self) {
        self.window.write(self.cause, 1 << self.vector);
        self.window.write(self.unmask, 1 << self.vector);
    }

    fn disarm(&self) {
        self.window.write(self.mask, 1 << self.vector);
        self.event.clear();
    }

    fn wake(&self) -> Wake<'_> {
        Wake::Readable(self.event.as_fd())
    }
}

impl Wakeable for Rx {
    fn arm(&mut self) {
        self.arm_mapped();
        self.interrupt.iter().for_each(Interrupt::arm);
    }

    fn disarm(&mut self) {
        self.interrupt.iter().for_each(Interrupt::disarm);
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(self.interrupt.as_ref().map_or(Wake::Turns, Interrupt::wake));
    }
}
