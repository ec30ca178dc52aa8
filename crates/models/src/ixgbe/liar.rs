//! Tells the lies of a card's configuration, on their occasions.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::Burst;
use ringpass_port::Queues;
use ringpass_registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::device::Device;
use super::doorbells::Doorbells;
use super::lies::{Lie, Lies};
use super::registers::canonical;
use super::tx::BURST;
use crate::lies::Teller;

/// Lies of received frames; of several on one occasion the first is told.
const RX: [Lie; 7] =
    [Lie::RxStuck, Lie::LengthLong, Lie::LengthZero, Lie::NoData, Lie::NoEop, Lie::OutOfOrder, Lie::DdCleared];
/// Rounds that the link stays down.
const DOWN: u64 = 1000;

/// A card's lies; shared by its parts.
pub(super) struct Liar {
    teller: Teller<Lie>,
    /// The frames that there were in the last round.
    seen: AtomicU64,
    /// Rounds until the link comes up again.
    down: AtomicU64,
}

impl Deref for Liar {
    type Target = Teller<Lie>;

    fn deref(&self) -> &Teller<Lie> {
        &self.teller
    }
}

impl Liar {
    /// `None` for an honest card.
    pub(super) fn new(lies: &Lies) -> Option<Arc<Self>> {
        let liar = Self { teller: Teller::new(lies), seen: AtomicU64::new(0), down: AtomicU64::new(0) };
        lies.any().then(|| Arc::new(liar))
    }

    /// What is told of a received frame.
    pub(super) fn of_received(&self) -> Option<Lie> {
        self.count(1);
        // All of them have had their occasion, whichever is told.
        RX.into_iter().filter(|&lie| self.tells(lie)).fold(None, |first, lie| first.or(Some(lie)))
    }

    /// Where memory that is not the card's is to be written to, if it is.
    pub(super) fn outside(&self) -> Option<u64> {
        self.tells(Lie::DmaOutside).then_some(self.lies.address)
    }

    /// The head that is written back for a ring of so many descriptors.
    pub(super) fn head(&self, head: usize, len: usize) -> usize {
        if !self.tells(Lie::WrongHead) {
            return head;
        }
        let random = self.random();
        match random % 3 {
            0 => (head + 1 + (random >> 8) as usize % (len - 1)) % len,
            1 => len,
            _ => (random >> 32) as usize,
        }
    }

    /// What a register reads.
    fn register(&self, id: Id, value: u32) -> u32 {
        let clears = |lie, bits: u32| if self.holds(lie) { value & !bits } else { value };
        let sets = |lie, bits: u32| if self.holds(lie) { value | bits } else { value };
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

impl Device {
    /// What a driver's read gives: of an honest card, the register.
    pub(super) fn observe(&mut self, offset: u32, doorbells: &Doorbells) -> u32 {
        let value = if self.is_removed() { u32::MAX } else { self.read(offset, doorbells) };
        let Some(liar) = self.liar.as_ref().filter(|_| !self.is_removed()) else { return value };
        self.registers.find(canonical(offset)).map_or(value, |access| liar.register(Id::ALL[access.row], value))
    }

    /// What a driver's write does: of an honest card, what it should.
    pub(super) fn obey(&mut self, offset: u32, value: u32, doorbells: &Doorbells) {
        let stays_enabled = |liar: &Arc<Liar>| {
            let id = self.registers.find(canonical(offset)).map(|access| Id::ALL[access.row]);
            matches!(id, Some(Id::RXDCTL | Id::TXDCTL)) && value & RXDCTL_ENABLE == 0 && liar.holds(Lie::DisableNever)
        };
        if !self.is_removed() && !self.liar.as_ref().is_some_and(stays_enabled) {
            self.write(offset, value, doorbells);
        }
    }

    fn is_removed(&self) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.holds(Lie::Removed))
    }

    /// Gives a card's parts its lies, after each reset.
    pub(super) fn attach_liar(&mut self) {
        self.rx.iter_mut().for_each(|ring| ring.liar = self.liar.clone());
        self.tx.iter_mut().for_each(|ring| ring.liar = self.liar.clone());
    }

    /// Whether a round is due although nothing has happened.
    pub(super) fn lies_on(&self) -> bool {
        self.liar
            .as_ref()
            .is_some_and(|liar| liar.down.load(Ordering::Relaxed) > 0 || liar.lies.when(Lie::InterruptStorm).is_some())
    }

    /// The lies of a round; the frames that a card that has gone takes from the wire, in place of the round.
    #[cold]
    pub(super) fn lie(&mut self, wire: &mut Queues) -> Option<usize> {
        let liar = self.liar.clone()?;
        self.counters.lies = liar.told();
        if self.is_removed() {
            return Some(wire.rx.rx_burst(&mut Burst::new(BURST)));
        }
        match liar.down.load(Ordering::Relaxed) {
            0 if self.link.up && liar.lies.when(Lie::LinkFlap).is_some() => {
                let frames = liar.frames();
                if frames > liar.seen.swap(frames, Ordering::Relaxed) && liar.tells(Lie::LinkFlap) {
                    liar.down.store(DOWN, Ordering::Relaxed);
                    self.set_link(false);
                }
            }
            0 => {}
            rounds => {
                liar.down.store(rounds - 1, Ordering::Relaxed);
                if rounds == 1 {
                    self.set_link(true);
                }
            }
        }
        if liar.tells(Lie::InterruptStorm) {
            self.interrupts.storm();
        }
        None
    }
}
