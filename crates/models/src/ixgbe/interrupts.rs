//! Interrupts (7.3): causes, masks, their way to a vector, and moderation.
//!
//! A cause of a queue is a vector's number here, as the driver's IVAR registers have it; EICR and EIMS show the first 16.
//! Other causes have a bit each in EICR, and a vector in common.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass_peer::Signal;
use ringpass_registers::RegisterFile;
use ringpass_registers::ixgbe::{bits::*, *};

use super::device::bits;
use super::liar::Liar;
use super::lies::Lie;

/// Vectors that the card has.
pub(super) const VECTORS: usize = 64;
/// Causes that belong to queues, in EICR and its like.
const QUEUES: u32 = 0x0000_ffff;
/// All others.
const OTHERS: u32 = 0x7fff_0000;
/// Unit of EITR's interval, at 1 and 10 Gbit/s (8.2.3.5.12).
const UNIT: Duration = Duration::from_micros(2);

/// The causes that have occurred or are enabled: of queues, by vector, and others, by their bit in EICR.
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
    /// Those causes that have been reported and not cleared or masked since.
    told: Causes,
    /// Vectors that wait for the end of their interval.
    throttled: u64,
    quiet_until: [Option<Instant>; VECTORS],
    events: [Option<Signal>; VECTORS],
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
            told: Causes::default(),
            throttled: 0,
            quiet_until: [None; VECTORS],
            events: [const { None }; VECTORS],
            sent: 0,
            liar: None,
        }
    }
}

impl Interrupts {
    /// As after power-on; the bus keeps its vectors.
    pub(super) fn reset(&mut self) {
        let events = std::mem::replace(&mut self.events, [const { None }; VECTORS]);
        *self = Self { events, sent: self.sent, liar: self.liar.take(), ..Self::default() };
    }

    /// Where a vector is heard.
    pub(super) fn set_vector(&mut self, vector: usize, event: Option<Signal>, registers: &RegisterFile) {
        self.events[vector] = event;
        self.deliver(registers);
    }

    /// Queues whose descriptors have been written back.
    #[inline]
    pub(super) fn queues(&mut self, rx: u128, tx: u128, registers: &RegisterFile) {
        self.rx |= rx;
        self.tx |= tx;
        let news = rx | tx != 0 && self.enabled != Causes::default();
        if news || self.throttled != 0 {
            self.deliver(registers);
        }
    }

    /// Another cause, by its bit in EICR.
    pub(super) fn other(&mut self, cause: u32, registers: &RegisterFile) {
        self.causes.others |= cause & OTHERS;
        self.deliver(registers);
    }

    /// When a vector that waits may be sent.
    pub(super) fn due(&self) -> Option<Instant> {
        bits(self.throttled.into()).filter_map(|vector| self.quiet_until[vector]).min()
    }

    /// Looks up the vectors of queues that reported (8.2.3.5.14).
    fn look_up(&mut self, registers: &RegisterFile) {
        let (rx, tx) = (std::mem::take(&mut self.rx), std::mem::take(&mut self.tx));
        let highest = if is_msix(registers) { 0x3f } else { 0xf };
        for (queues, side) in [(rx, 0), (tx, 8)] {
            for queue in bits(queues) {
                let entry = registers.get(IVAR.at(queue / 2).offset) >> (queue % 2 * 16 + side);
                if entry & IVAR_VALID != 0 {
                    self.causes.vectors |= 1 << (entry & highest);
                }
            }
        }
    }

    /// Sends what is to be sent.
    #[cold]
    pub(super) fn deliver(&mut self, registers: &RegisterFile) {
        self.look_up(registers);
        let active = self.causes.and(self.enabled);
        self.told = self.told.and(active);
        let mut new = active;
        new.clear(self.told);
        self.throttled = 0;
        if new == Causes::default() {
            return;
        }
        if !is_msix(registers) {
            return self.send(0, new, registers);
        }
        for vector in bits(new.vectors.into()) {
            self.send(vector, Causes { vectors: 1 << vector, others: 0 }, registers);
        }
        // The TCP timer has a vector, and all others have one (8.2.3.5.15).
        let misc = registers.get(IVAR_MISC.offset);
        for (mask, entry) in [(EICR_TCP_TIMER, misc), (!EICR_TCP_TIMER, misc >> 8)] {
            let others = new.others & mask;
            if others != 0 && entry & IVAR_VALID != 0 {
                self.send((entry & 0x3f) as usize, Causes { vectors: 0, others }, registers);
            }
        }
    }

    /// Sends the message of a vector because of these causes, unless it is too early or nobody hears it; then they wait.
    fn send(&mut self, vector: usize, why: Causes, registers: &RegisterFile) {
        let Some(event) = &self.events[vector] else { return };
        let interval = throttle(vector, registers) >> 3 & 0x1ff;
        if interval > 0 || self.quiet_until[vector].is_some() {
            let now = Instant::now();
            if self.quiet_until[vector].is_some_and(|end| now < end) {
                self.throttled |= 1 << vector;
                return;
            }
            self.quiet_until[vector] = (interval > 0).then(|| now + UNIT * interval);
        }
        if !self.liar.as_ref().is_some_and(|liar| liar.tells(Lie::InterruptLost)) {
            event.raise();
        }
        self.sent += 1;
        self.told.set(why);
        if !is_msix(registers) {
            return;
        }
        // Auto-clear (8.2.3.5.7); vectors from 16 on, which EICR does not have, always do.
        let clears = registers.get(EIAC.offset);
        let clears = Causes { vectors: u64::from(clears & QUEUES) | !u64::from(QUEUES), others: clears & OTHERS };
        self.causes.clear(why.and(clears));
        // Auto-mask (8.2.3.5.9).
        if registers.get(GPIE.offset) & GPIE_EIAME != 0 {
            self.enabled.clear(why.and(auto_mask(registers)));
        }
        self.told = self.told.and(self.causes).and(self.enabled);
    }

    /// Sends the messages of all vectors, for no reason.
    pub(super) fn storm(&self) {
        self.events.iter().flatten().for_each(Signal::raise);
    }

    /// Whether a register has to do with interrupts.
    pub(super) fn concern(id: Id) -> bool {
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

    /// Before the registers change that say where the causes of queues go.
    pub(super) fn settle(&mut self, id: Id, registers: &RegisterFile) {
        if matches!(id, Id::IVAR | Id::GPIE) {
            self.look_up(registers);
        }
    }

    /// A driver's read of a register that is not just kept; `None` if it is.
    pub(super) fn read(&mut self, id: Id, index: usize, registers: &RegisterFile) -> Option<u32> {
        if !Self::concern(id) {
            return None;
        }
        self.look_up(registers);
        Some(match id {
            Id::EICR => {
                let value = self.causes.to_register();
                self.clear_and_mask(
                    if registers.get(GPIE.offset) & GPIE_OCD != 0 { 0x3fff_0000 } else { !0 },
                    !0,
                    registers,
                );
                value
            }
            // Reads of EICS give the causes, and leave them (8.2.3.5.2).
            Id::EICS => self.causes.to_register(),
            Id::EIMS => self.enabled.to_register(),
            Id::EIMS_EX => (self.enabled.vectors >> (32 * index)) as u32,
            _ => return None,
        })
    }

    /// Clears causes; without EIAME, that masks too (8.2.3.5.9).
    fn clear_and_mask(&mut self, clear: u32, mask: u32, registers: &RegisterFile) {
        self.causes.clear(Causes::from_register(clear));
        if registers.get(GPIE.offset) & GPIE_EIAME == 0 {
            self.enabled.clear(auto_mask(registers).and(Causes::from_register(mask)));
        }
        self.told = self.told.and(self.causes).and(self.enabled);
    }

    /// A driver's write to a register of interrupts, which the register file has already taken note of.
    pub(super) fn write(&mut self, id: Id, index: usize, value: u32, registers: &RegisterFile) {
        // What came before the write is not to come up after it.
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
            // Unless CNT_WDIS is set, the counter is written too; software writes 0, which ends the interval.
            Id::EITR | Id::EITR_24 if value & EITR_CNT_WDIS == 0 => {
                let vector = if id == Id::EITR { index } else { 24 + index };
                if let Some(end) = self.quiet_until.get_mut(vector) {
                    *end = None;
                }
            }
            _ => {}
        }
        self.deliver(registers);
    }
}

/// The EITR of a vector.
fn throttle(vector: usize, registers: &RegisterFile) -> u32 {
    let register = if vector < 24 { EITR.at(vector) } else { EITR_24.at(vector - 24) };
    registers.get(register.offset)
}

fn is_msix(registers: &RegisterFile) -> bool {
    registers.get(GPIE.offset) & GPIE_MSIX_MODE != 0
}

/// What EIAM and its extensions select.
fn auto_mask(registers: &RegisterFile) -> Causes {
    let get = |offset| u64::from(registers.get(offset));
    let mut mask = Causes::from_register(registers.get(EIAM.offset));
    mask.vectors |= get(EIAM_EX.at(0).offset) | get(EIAM_EX.at(1).offset) << 32;
    mask
}
