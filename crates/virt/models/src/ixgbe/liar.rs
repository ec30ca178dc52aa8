//! The configured lies of a NIC and their state.

use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::lies::Lie;
use crate::lies::LieSchedule;

/// Lies about received frames; of several on one occasion, the first is told.
const RX: [Lie; 7] =
    [Lie::RxStuck, Lie::LengthLong, Lie::LengthZero, Lie::NoData, Lie::NoEop, Lie::OutOfOrder, Lie::DdCleared];

/// A NIC's lies and their state; the parts of the NIC share it.
pub(super) type Liar = LieSchedule<Lie>;

impl Liar {
    /// Returns the lie to tell about a received frame.
    pub(super) fn of_received(&self) -> Option<Lie> {
        self.count(1);
        // This is an occasion for all of them, whichever is told.
        RX.into_iter().filter(|&lie| self.triggers(lie)).fold(None, |first, lie| first.or(Some(lie)))
    }

    /// Returns the address to write to outside of the driver's buffers, if that lie is told now.
    pub(super) fn outside(&self) -> Option<u64> {
        self.triggers(Lie::DmaOutside).then_some(self.lies.address)
    }

    /// Returns the head to write back for a ring of `len` descriptors.
    pub(super) fn head(&self, head: usize, len: usize) -> usize {
        if !self.triggers(Lie::WrongHead) {
            return head;
        }
        let random = self.random();
        match random % 3 {
            0 => (head + 1 + (random >> 8) as usize % (len - 1)) % len,
            1 => len,
            _ => (random >> 32) as usize,
        }
    }

    /// Returns what a register reads, given its true value.
    pub(super) fn register(&self, id: Id, value: u32) -> u32 {
        let clears = |lie, bits: u32| if self.is_active(lie) { value & !bits } else { value };
        let sets = |lie, bits: u32| if self.is_active(lie) { value | bits } else { value };
        match id {
            Id::CTRL => sets(Lie::ResetNever, CTRL_RST),
            Id::EEC => clears(Lie::EepromNever, EEC_AUTO_RD),
            Id::EERD => clears(Lie::EepromNever, EERD_DONE),
            Id::RDRXCTL => clears(Lie::InitNever, RDRXCTL_DMAIDONE),
            Id::RXDCTL => clears(Lie::EnableNever, RXDCTL_ENABLE),
            Id::TXDCTL => clears(Lie::EnableNever, TXDCTL_ENABLE),
            Id::STATUS => sets(Lie::MasterNever, STATUS_MASTER_ENABLE),
            _ => value,
        }
    }
}
