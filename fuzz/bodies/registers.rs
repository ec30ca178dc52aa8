//! Fuzz body: an arbitrary driver of the 82599. Registers are accessed in any order, also as a file that is polled, descriptors and rings lie
//! anywhere, memory is mapped and unmapped, and the model is stepped in between. Whatever the driver does, the
//! model must not panic, hang or access memory that it was not given.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::{Access, Cells, DmaRegion, ForeignMemory, Memory, RegionConfig};
use ringpass_models::ixgbe::{Card, CardConfig, PolledFunction};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_port::QueuePair;
use ringpass_testing::{CaseInput, GuardedMemory, Sink, Wire};

const PAGE: u64 = GuardedMemory::PAGE;
const PAGES: u64 = GuardedMemory::PAGES;
/// Device address of the pages.
const BASE: u64 = 0x10_0000;
/// Largest number of actions in a case.
const ACTIONS: usize = 64;

/// A card and its memory, created once because that takes longer than a case.
struct Harness {
    card: Arc<Card>,
    /// The same card for a driver whose accesses nobody sees, and the registers that it writes.
    polled: RefCell<PolledFunction>,
    /// It was polled in the present case.
    was_polled: Cell<bool>,
    file: Cells<AtomicU32>,
    memory: GuardedMemory,
    wire: Wire,
}

thread_local! {
    static HARNESS: Harness = Harness::new();
}

impl Harness {
    fn new() -> Self {
        let card = Card::new(&CardConfig::default());
        // Interrupts are enabled, but nobody reads the eventfds.
        card.interrupts(Card::VECTORS).expect("eventfds");
        let file = |len| {
            let file = DmaRegion::new(len, &RegionConfig::default()).expect("some KiB");
            ForeignMemory::map(file.file().expect("no physical addresses"), 0, len).expect("the same again")
        };
        let registers = file(PolledFunction::BAR_SIZE);
        let polled = PolledFunction::new(card.clone(), registers.clone(), file(PolledFunction::CONFIG_SIZE));
        let file = Memory::from(registers).cells(0, PolledFunction::BAR_SIZE / 4).expect("all of it");
        Self {
            card,
            polled: polled.into(),
            was_polled: Cell::new(false),
            file,
            memory: GuardedMemory::new(),
            wire: Wire::new(64, 2048),
        }
    }

    fn map(&self, page: u64) {
        // The page may already be mapped.
        let _ = self.card.map_at(BASE + page * PAGE, self.memory.page(page), Access::ReadWrite);
    }

    /// Restores the state before the first case.
    fn clear(&self) {
        self.card.unmap_all();
        (1..PAGES - 1).for_each(|page| self.map(page));
        self.memory.clear();
        if self.was_polled.take() {
            self.polled.borrow_mut().restart();
        }
        self.card.reset();
        self.card.set_link(true);
        self.card.set_bus_master(true).expect("a model takes it");
    }

    /// Reads an address: in the memory, at its ends or anywhere.
    fn address(bytes: &mut CaseInput) -> u64 {
        let number = bytes.number(3);
        match number >> 20 {
            0..=11 => BASE + PAGE + (number & 0xffff) % ((PAGES - 2) * PAGE),
            12 | 13 => BASE.wrapping_add(number & 0x1_ffff).wrapping_sub(PAGE),
            14 => number.wrapping_sub(0xe0_0010),
            _ => number << 40,
        }
    }

    fn register(bytes: &mut CaseInput) -> u32 {
        let number = bytes.number(2) as usize;
        let row = &TABLE[number % TABLE.len()];
        // Mostly registers of the first queues.
        row.at((number / TABLE.len()) as u32 % row.count.min(4))
    }

    fn start(&self, bytes: &mut CaseInput) {
        let queue = bytes.number(1) as usize % 128;
        let (base, len) = (Self::address(bytes) & !0x7f, ((bytes.number(1) as u32 & 0x1f) + 1) * 128);
        for (register, value) in [
            (RDBAL.at(queue).offset, base as u32),
            (RDBAH.at(queue).offset, (base >> 32) as u32),
            (RDLEN.at(queue).offset, len),
            (RXDCTL.at(queue).offset, RXDCTL_ENABLE),
            (RXCTRL.offset, RXCTRL_RXEN),
            (TDBAL.at(queue).offset, base as u32),
            (TDBAH.at(queue).offset, (base >> 32) as u32),
            (TDLEN.at(queue).offset, len),
            (DMATXCTL.offset, DMATXCTL_TE),
            (TXDCTL.at(queue).offset, TXDCTL_ENABLE),
            (RTTDCS.offset, 0),
            (FCTRL.offset, FCTRL_UPE | FCTRL_MPE | FCTRL_BAM),
            (RDT.at(queue).offset, len / 16 - 1),
            (TDT.at(queue).offset, len / 16 - 1),
        ] {
            self.card.write(register, value);
        }
    }

    fn run_action(&self, bytes: &mut CaseInput, queues: &mut QueuePair) {
        match bytes.number(1) % 12 {
            0 => self.card.write(bytes.number(3) as u32 & 0x3_ffff, bytes.number(4) as u32),
            1..=3 => self.card.write(Self::register(bytes), bytes.number(4) as u32),
            4 => _ = self.card.read(Self::register(bytes)),
            5 => self.start(bytes),
            6 => {
                let (queue, tail) = (bytes.number(1) as usize, bytes.number(1) as u32);
                let register = if queue < 128 { RDT.at(queue) } else { TDT.at(queue - 128) };
                self.card.write(register.offset, tail);
            }
            7 => {
                // Write a descriptor: an address and a command.
                let [first, second] = self.memory.descriptor(bytes.number(2));
                first.store(Self::address(bytes), Ordering::Relaxed);
                second.store(bytes.number(8), Ordering::Relaxed);
            }
            8 => match bytes.number(1) {
                span @ 0..=127 => {
                    self.card.unmap(BASE + span % PAGES * PAGE, (span / 16 + 1) * PAGE / 2).expect("few maps");
                }
                other @ 128..=239 => self.map(1 + other % (PAGES - 2)),
                240..=247 => self.card.unmap_all(),
                other => self.card.set_link(other & 1 != 0),
            },
            9 => {
                self.wire.frames().to_card = [bytes.frame()].into();
                self.card.step(queues);
            }
            // Seldom, as it takes long.
            10 if bytes.rest().first().is_some_and(|&first| first < 32) => {
                self.was_polled.set(true);
                for _ in 0..bytes.number(1) % 8 {
                    let word = &self.file[bytes.number(2) as usize % self.file.len()];
                    word.store(bytes.number(4) as u32, Ordering::Release);
                }
                self.polled.borrow_mut().poll_now(&mut |_| {});
            }
            _ => _ = self.card.step(queues),
        }
    }

    fn run(&self, data: &[u8]) {
        self.clear();
        self.wire.frames().to_card.clear();
        let mut queues = QueuePair { rx: Box::new(self.wire.clone()), tx: Box::new(Sink) };
        CaseInput::new(data).each_action(ACTIONS, |bytes| self.run_action(bytes, &mut queues));
        self.card.step(&mut queues);
        self.memory.check();
    }
}

/// Runs one case.
pub fn case(data: &[u8]) {
    HARNESS.with(|harness| harness.run(data));
}
