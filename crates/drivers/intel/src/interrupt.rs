//! Interrupts: an idle queue sleeps until its vector fires (82599: 7.3.1, 8.2.3.5; 82576: 7.3, 8.8).
//!
//! An interrupt masks its own vector (auto-mask), so a polling queue is never interrupted. The next sleep
//! unmasks the vector again.

use std::os::fd::AsFd;

use ringpass_pci::EventWaiter;
use ringpass_pci::registers::{RW, Reg, W1S, WO, Window};
use ringpass_port::{Error, WakeSource};

use crate::device::Device;
use crate::family::Registers;

/// The lowest entry of a routing register (IVAR) is valid.
const ROUTE_VALID: u32 = 0x80;
const _: () = {
    use ringpass_pci::registers::{igb, ixgbe};
    assert!(ixgbe::bits::IVAR_VALID == ROUTE_VALID && igb::bits::IVAR_VALID == ROUTE_VALID);
};

/// The MSI-X vector of an Rx queue. It clears its cause and masks itself when it fires.
pub(crate) struct Interrupt {
    window: Window,
    /// Number of the vector, 0 to 15.
    vector: usize,
    /// The eventfd that becomes readable when the vector fires.
    event: EventWaiter,
    unmask: Reg<W1S>,
    mask: Reg<WO>,
}

impl Interrupt {
    /// Enables a vector for each queue (82599: 4.6.6; 82576: 7.3.2.11). There are none if the bus has no interrupts.
    /// The mode is written first, as it determines the meaning of the bits in the other registers.
    pub(crate) fn enable(device: &Device, registers: &Registers, queues: usize) -> Result<Vec<Self>, Error> {
        let (window, events) = (&device.window, device.bus.interrupts(queues)?);
        if !events.is_empty() {
            let vectors = (1 << queues) - 1;
            let (gpie, mode) = registers.interrupt_mode;
            window.write(gpie, mode);
            window.write(registers.auto_clear, vectors);
            window.write(registers.auto_mask, vectors);
        }
        let &Registers { unmask, mask, .. } = registers;
        let interrupt = |(vector, event)| Self { window: window.clone(), vector, event, unmask, mask };
        Ok(events.into_iter().enumerate().map(interrupt).collect())
    }

    /// Describes how idle queues wait, given the number of vectors; for the notes printed at start.
    pub(crate) fn note(vectors: usize) -> &'static str {
        if vectors > 0 { "interrupts" } else { "no interrupts: idle queues are polled every 50 µs" }
    }

    /// Routes the cause at this entry of a register (IVAR) to the vector, which stays masked.
    pub(crate) fn attach(&self, registers: &Registers, (route, shift): (Reg<RW>, u32)) {
        self.window.clear(route, 0xff << shift);
        self.window.set(route, (self.vector as u32 | ROUTE_VALID) << shift);
        let (eitr, interval) = registers.throttle;
        self.window.write(eitr.at(self.vector), interval);
    }

    /// Unmasks the vector, which fires at once if frames have come while it was masked, although the queue may have
    /// polled them already.
    ///
    /// Their cause is not cleared before: the write would be under way while the queue polls once more and falls asleep
    /// (PCI Express 3.0, 2.4.1), and would also clear the cause of a frame that came meanwhile. A read would wait for the
    /// write, but for seconds if the card is another process's that stands still.
    pub(crate) fn arm(&self) {
        self.window.write(self.unmask, 1 << self.vector);
    }

    pub(crate) fn disarm(&self) {
        self.window.write(self.mask, 1 << self.vector);
        self.event.clear();
    }

    pub(crate) fn wake(&self) -> WakeSource<'_> {
        WakeSource::Readable(self.event.as_fd())
    }
}
