//! A device that lies: in its state and in its steps.

use ringpass_memory::{Burst, LookupHint};
use ringpass_port::QueuePair;

use super::device::{Device, NEEDS_RESET};
use super::lies::Lie;
use super::queue::BURST;

impl Device {
    pub(super) fn is_removed(&self) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.is_active(Lie::Removed))
    }

    /// Returns whether a lie about a lasting condition is in effect.
    pub(super) fn pretends(&self, lie: Lie) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.is_active(lie))
    }

    pub(super) fn triggers(&self, lie: Lie) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.triggers(lie))
    }

    /// Tells the lies of a step. For a removed device returns the number of frames taken from the wire and
    /// lost, which replaces the step.
    #[cold]
    pub(super) fn lie(&mut self, wire: &mut QueuePair) -> Option<usize> {
        let liar = self.liar.clone()?;
        self.counters.lies = liar.triggered();
        if self.is_removed() {
            return Some(wire.rx.rx_burst(&mut Burst::new(BURST)));
        }
        let moved = liar.has_new_frames();
        if let Some(up) = liar.flap(|| moved && self.link_up && liar.triggers(Lie::LinkFlap)) {
            self.set_link(up);
        }
        if moved && liar.triggers(Lie::ConfigChanges) {
            self.mac =
                [liar.random(), liar.random()].map(u64::to_le_bytes).concat()[..6].try_into().expect("six bytes");
            self.mtu = liar.random() as u16;
            self.config_pairs = liar.random() as u16;
            self.changed();
        }
        if moved && liar.triggers(Lie::NeedsReset) {
            self.status |= NEEDS_RESET;
            self.changed();
        }
        if liar.triggers(Lie::InterruptStorm) {
            self.interrupts.storm();
        }
        if moved
            && liar.triggers(Lie::DmaOutside)
            && !self.dma.write(liar.lies.address, &[0xa5; 16], &mut LookupHint::default())
        {
            self.counters.dma_faults += 1;
        }
        None
    }
}
