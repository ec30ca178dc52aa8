//! A NIC that lies: in its registers and in its steps.

use std::sync::Arc;

use ringpass_memory::Burst;
use ringpass_pci::registers::ixgbe::{bits::*, *};
use ringpass_port::QueuePair;

use super::device::Device;
use super::doorbells::Doorbells;
use super::liar::Liar;
use super::lies::Lie;
use super::limits::BURST;
use super::registers::canonical;

impl Device {
    /// Carries out a driver's read of a register, with lies applied.
    pub(super) fn mmio_read(&mut self, offset: u32, doorbells: &Doorbells) -> u32 {
        let value = if self.is_removed() { u32::MAX } else { self.read(offset, doorbells) };
        let Some(liar) = self.liar.as_ref().filter(|_| !self.is_removed()) else { return value };
        self.registers.find(canonical(offset)).map_or(value, |access| liar.register(Id::ALL[access.row], value))
    }

    /// Carries out a driver's write to a register, unless a lie suppresses it.
    pub(super) fn mmio_write(&mut self, offset: u32, value: u32, doorbells: &Doorbells) {
        let stays_enabled = |liar: &Arc<Liar>| {
            let id = self.registers.find(canonical(offset)).map(|access| Id::ALL[access.row]);
            matches!(id, Some(Id::RXDCTL | Id::TXDCTL))
                && value & RXDCTL_ENABLE == 0
                && liar.is_active(Lie::DisableNever)
        };
        if !self.is_removed() && !self.liar.as_ref().is_some_and(stays_enabled) {
            self.write(offset, value, doorbells);
        }
    }

    fn is_removed(&self) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.is_active(Lie::Removed))
    }

    /// Passes the lies to the NIC's parts, after each reset.
    pub(super) fn attach_liar(&mut self) {
        self.rx.iter_mut().for_each(|ring| ring.liar = self.liar.clone());
        self.tx.iter_mut().for_each(|ring| ring.liar = self.liar.clone());
    }

    /// Tells the lies of a step. For a removed NIC returns the number of frames taken from the wire and lost,
    /// which replaces the step.
    #[cold]
    pub(super) fn lie(&mut self, wire: &mut QueuePair) -> Option<usize> {
        let liar = self.liar.clone()?;
        self.counters.lies = liar.triggered();
        if self.is_removed() {
            return Some(wire.rx.rx_burst(&mut Burst::new(BURST)));
        }
        let may_flap = self.link.up && liar.lies.when(Lie::LinkFlap).is_some();
        if let Some(up) = liar.flap(|| may_flap && liar.has_new_frames() && liar.triggers(Lie::LinkFlap)) {
            self.set_link(up);
        }
        if liar.triggers(Lie::InterruptStorm) {
            self.interrupts.storm();
        }
        None
    }
}
