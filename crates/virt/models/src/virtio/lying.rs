//! A device that lies: in its state and in its steps.

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, LookupHint};
use ringpass_port::QueuePair;

use super::device::{Device, NEEDS_RESET};
use super::lies::Lie;
use super::queue::BURST;

/// Steps that the link stays down in a flap.
const DOWN: u64 = 1000;

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

    /// Returns whether a step is due although nothing has happened.
    pub(super) fn lies_pending(&self) -> bool {
        self.liar
            .as_ref()
            .is_some_and(|liar| liar.down.load(Ordering::Relaxed) > 0 || liar.lies.when(Lie::InterruptStorm).is_some())
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
        let frames = liar.frames();
        let moved = frames > liar.seen.swap(frames, Ordering::Relaxed);
        match liar.down.load(Ordering::Relaxed) {
            0 if moved && self.link_up && liar.triggers(Lie::LinkFlap) => {
                liar.down.store(DOWN, Ordering::Relaxed);
                self.set_link(false);
            }
            0 => {}
            rounds => {
                liar.down.store(rounds - 1, Ordering::Relaxed);
                if rounds == 1 {
                    self.set_link(true);
                }
            }
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
