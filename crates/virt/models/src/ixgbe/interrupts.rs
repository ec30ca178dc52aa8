//! Interrupts (7.3): causes, masks, routing to vectors, and moderation.
//!
//! A queue's cause is identified by its vector number, as in the driver's IVAR registers; EICR and EIMS show
//! the first 16. Each other cause has a bit in EICR, and these causes share vectors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass_ipc::EventNotifier;
use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::set_bits;
use super::liar::Liar;
use super::lies::Lie;

/// Number of vectors.
pub(super) const VECTORS: usize = 64;
/// Causes of queues in EICR and similar registers.
const QUEUES: u32 = 0x0000_ffff;
/// All other causes.
const OTHERS: u32 = 0x7fff_0000;
/// Unit of EITR's interval at 1 and 10 Gbit/s (8.2.3.5.12).
const UNIT: Duration = Duration::from_micros(2);

/// A set of causes: those of queues by vector, others by their bit in EICR.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Causes {
    vectors: u64,
    others: u32,
}

impl Causes {
    fn from_register(value: u32) -> Self {
        Self { vectors: (value & QUEUES).into(), others: value & OTHERS }
    }

    fn to_register(self) -> u32 {
        self.vectors as u32 & QUEUES | self.others
    }

    fn set(&mut self, more: Self) {
        self.vectors |= more.vectors;
        self.others |= more.others;
    }

    fn clear(&mut self, those: Self) {
        self.vectors &= !those.vectors;
        self.others &= !those.others;
    }

    fn and(self, other: Self) -> Self {
        Self { vectors: self.vectors & other.vectors, others: self.others & other.others }
    }
}

pub(super) struct Interrupts {
    /// Queues that have something to report whose vector has not been looked up yet.
    rx: u128,
    tx: u128,
    causes: Causes,
    enabled: Causes,
    /// Causes that were signalled and have not been cleared or masked since.
    signalled: Causes,
    /// Vectors that wait for the end of their interval.
    throttled: u64,
    throttled_until: [Option<Instant>; VECTORS],
    events: [Option<EventNotifier>; VECTORS],
    /// Messages sent.
    pub(super) sent: u64,
    pub(super) liar: Option<Arc<Liar>>,
}

impl Default for Interrupts {
    fn default() -> Self {
        Self {
            rx: 0,
            tx: 0,
            causes: Causes::default(),
            enabled: Causes::default(),
            signalled: Causes::default(),
            throttled: 0,
            throttled_until: [None; VECTORS],
            events: [const { None }; VECTORS],
            sent: 0,
            liar: None,
        }
    }
}

impl Interrupts {
    /// Resets to the state after power-on; the events of vectors stay.
    pub(super) fn reset(&mut self) {
        let events = std::mem::replace(&mut self.events, [const { None }; VECTORS]);
        *self = Self { events, sent: self.sent, liar: self.liar.take(), ..Self::default() };
    }

    /// Sets or removes the event of a vector.
    pub(super) fn set_vector(&mut self, vector: usize, event: Option<EventNotifier>, registers: &RegisterFile) {
        self.events[vector] = event;
        self.deliver(registers);
    }

    /// Reports queues whose descriptors were written back.
    #[inline]
    pub(super) fn queues(&mut self, rx: u128, tx: u128, registers: &RegisterFile) {
        self.rx |= rx;
        self.tx |= tx;
        let news = rx | tx != 0 && self.enabled != Causes::default();
        if news || self.throttled != 0 {
            self.deliver(registers);
        }
    }

    /// Reports another cause, by its bit in EICR.
    pub(super) fn other(&mut self, cause: u32, registers: &RegisterFile) {
        self.causes.others |= cause & OTHERS;
        self.deliver(registers);
    }

    /// Returns whether an interrupt waits for its vector's interval to end.
    #[inline]
    pub(super) fn are_throttled(&self) -> bool {
        self.throttled != 0
    }

    /// Returns when the first throttled vector may be sent.
    pub(super) fn due(&self) -> Option<Instant> {
        set_bits(self.throttled.into()).filter_map(|vector| self.throttled_until[vector]).min()
    }

    /// Looks up the vectors of queues that reported (8.2.3.5.14).
    fn look_up(&mut self, registers: &RegisterFile) {
        let (rx, tx) = (std::mem::take(&mut self.rx), std::mem::take(&mut self.tx));
        let highest = if is_msix(registers) { 0x3f } else { 0xf };
        for (queues, side) in [(rx, 0), (tx, 8)] {
            for queue in set_bits(queues) {
                let entry = registers.get(IVAR.at(queue / 2).offset) >> (queue % 2 * 16 + side);
                if entry & IVAR_VALID != 0 {
                    self.causes.vectors |= 1 << (entry & highest);
                }
            }
        }
    }

    /// Sends the messages that are due.
    #[cold]
    pub(super) fn deliver(&mut self, registers: &RegisterFile) {
        self.look_up(registers);
        let active = self.causes.and(self.enabled);
        self.signalled = self.signalled.and(active);
        let mut new = active;
        new.clear(self.signalled);
        self.throttled = 0;
        if new == Causes::default() {
            return;
        }
        if !is_msix(registers) {
            return self.send(0, new, registers);
        }
        for vector in set_bits(new.vectors.into()) {
            self.send(vector, Causes { vectors: 1 << vector, others: 0 }, registers);
        }
        // The TCP timer has a vector of its own, and all other causes share one (8.2.3.5.15).
        let misc = registers.get(IVAR_MISC.offset);
        for (mask, entry) in [(EICR_TCP_TIMER, misc), (!EICR_TCP_TIMER, misc >> 8)] {
            let others = new.others & mask;
            if others != 0 && entry & IVAR_VALID != 0 {
                self.send((entry & 0x3f) as usize, Causes { vectors: 0, others }, registers);
            }
        }
    }

    /// Sends a vector's message for these causes. They stay pending if the vector is throttled or has no event.
    fn send(&mut self, vector: usize, why: Causes, registers: &RegisterFile) {
        let Some(event) = &self.events[vector] else { return };
        let interval = throttle(vector, registers) >> 3 & 0x1ff;
        if interval > 0 || self.throttled_until[vector].is_some() {
            let now = Instant::now();
            if self.throttled_until[vector].is_some_and(|end| now < end) {
                self.throttled |= 1 << vector;
                return;
            }
            self.throttled_until[vector] = (interval > 0).then(|| now + UNIT * interval);
        }
        if !self.liar.as_ref().is_some_and(|liar| liar.triggers(Lie::InterruptLost)) {
            event.notify();
        }
        self.sent += 1;
        self.signalled.set(why);
        if !is_msix(registers) {
            return;
        }
        // Auto-clear (8.2.3.5.7). Vectors from 16 on, which EICR does not have, always auto-clear.
        let clears = registers.get(EIAC.offset);
        let clears = Causes { vectors: u64::from(clears & QUEUES) | !u64::from(QUEUES), others: clears & OTHERS };
        self.causes.clear(why.and(clears));
        // Auto-mask (8.2.3.5.9).
        if registers.get(GPIE.offset) & GPIE_EIAME != 0 {
            self.enabled.clear(why.and(auto_mask(registers)));
        }
        self.signalled = self.signalled.and(self.causes).and(self.enabled);
    }

    /// Sends the messages of all vectors without a cause (a lie).
    pub(super) fn storm(&self) {
        self.events.iter().flatten().for_each(EventNotifier::notify);
    }

    /// Returns whether a register belongs to the interrupt block.
    pub(super) fn is_interrupt_register(id: Id) -> bool {
        use Id::*;
        matches!(
            id,
            EICR | EICS
                | EIAC
                | EITR
                | EIMS
                | EIMC
                | EIAM
                | GPIE
                | IVAR
                | IVAR_MISC
                | EICS_EX
                | EIMS_EX
                | EIMC_EX
                | EIAM_EX
                | EITR_24
        )
    }

    /// Resolves pending queue causes before a write to a register that changes their routing.
    pub(super) fn resolve_vectors(&mut self, id: Id, registers: &RegisterFile) {
        if matches!(id, Id::IVAR | Id::GPIE) {
            self.look_up(registers);
        }
    }

    /// Reads a register that does not just keep its value; `None` if it does.
    pub(super) fn read(&mut self, id: Id, index: usize, registers: &RegisterFile) -> Option<u32> {
        if !Self::is_interrupt_register(id) {
            return None;
        }
        self.look_up(registers);
        self.peek(id, index).or_else(|| match id {
            Id::EICR => {
                let value = self.causes.to_register();
                self.clear_and_mask(
                    if registers.get(GPIE.offset) & GPIE_OCD != 0 { 0x3fff_0000 } else { !0 },
                    !0,
                    registers,
                );
                Some(value)
            }
            _ => None,
        })
    }

    /// Reads a register that does not just keep its value, and whose read has no side effects.
    pub(super) fn peek(&self, id: Id, index: usize) -> Option<u32> {
        Some(match id {
            // A read of EICS returns the causes without clearing them (8.2.3.5.2).
            Id::EICS => self.causes.to_register(),
            Id::EIMS => self.enabled.to_register(),
            Id::EIMS_EX => (self.enabled.vectors >> (32 * index)) as u32,
            _ => return None,
        })
    }

    /// Clears causes; without EIAME, also masks them (8.2.3.5.9).
    fn clear_and_mask(&mut self, clear: u32, mask: u32, registers: &RegisterFile) {
        self.causes.clear(Causes::from_register(clear));
        if registers.get(GPIE.offset) & GPIE_EIAME == 0 {
            self.enabled.clear(auto_mask(registers).and(Causes::from_register(mask)));
        }
        self.signalled = self.signalled.and(self.causes).and(self.enabled);
    }

    /// Carries out a driver's write to an interrupt register, after the register file has stored the value.
    pub(super) fn write(&mut self, id: Id, index: usize, value: u32, registers: &RegisterFile) {
        // Causes from before the write must not appear after it.
        self.look_up(registers);
        let high = || Causes { vectors: u64::from(value) << (32 * index), others: 0 };
        let low = Causes::from_register(value);
        match id {
            Id::EICR => self.clear_and_mask(value, value, registers),
            Id::EICS => {
                self.causes.set(low);
                if registers.get(GPIE.offset) & GPIE_EIAME == 0 {
                    self.enabled.set(auto_mask(registers).and(low));
                }
            }
            Id::EICS_EX => self.causes.set(high()),
            Id::EIMS => self.enabled.set(low),
            Id::EIMS_EX => self.enabled.set(high()),
            Id::EIMC => self.enabled.clear(low),
            Id::EIMC_EX => self.enabled.clear(high()),
            // Unless CNT_WDIS is set, the write also sets the counter; software writes 0, which ends the
            // interval.
            Id::EITR | Id::EITR_24 if value & EITR_CNT_WDIS == 0 => {
                let vector = if id == Id::EITR { index } else { 24 + index };
                if let Some(end) = self.throttled_until.get_mut(vector) {
                    *end = None;
                }
            }
            _ => {}
        }
        self.deliver(registers);
    }
}

/// Returns the EITR of a vector.
fn throttle(vector: usize, registers: &RegisterFile) -> u32 {
    let register = if vector < 24 { EITR.at(vector) } else { EITR_24.at(vector - 24) };
    registers.get(register.offset)
}

fn is_msix(registers: &RegisterFile) -> bool {
    registers.get(GPIE.offset) & GPIE_MSIX_MODE != 0
}

/// Returns the causes that EIAM and its extensions select.
fn auto_mask(registers: &RegisterFile) -> Causes {
    let get = |offset| u64::from(registers.get(offset));
    let mut mask = Causes::from_register(registers.get(EIAM.offset));
    mask.vectors |= get(EIAM_EX.at(0).offset) | get(EIAM_EX.at(1).offset) << 32;
    mask
}
