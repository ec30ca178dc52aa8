//! Fuzz body: an arbitrary driver of the 82599. Registers are accessed in any order, also as a file that is polled, descriptors and rings lie
//! anywhere, memory is mapped and unmapped, and the model is stepped in between. Whatever the driver does, the
//! model must not panic, hang or access memory that it was not given.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ringpass_memory::{
    Access, Burst, Cells, DmaArray, DmaRegion, ForeignMemory, Memory, Mempool, MempoolConfig, RegionConfig,
};
use ringpass_models::ixgbe::{Card, CardConfig, PolledFunction};
use ringpass_pci::PciDevice;
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};
use ringpass_registers::ixgbe::bits::*;
use ringpass_registers::ixgbe::*;

const PAGE: u64 = 4096;
/// Number of pages of the memory file; the first and the last are never mapped for the card.
const PAGES: u64 = 16;
/// Device address of the pages.
const BASE: u64 = 0x10_0000;
const CANARY: u64 = 0xdead_beef_0bad_cafe;
/// Largest number of actions in a case.
const ACTIONS: usize = 64;

/// A wire with one frame waiting, unless `frame` is empty.
struct Wire {
    frame: Vec<u8>,
    pool: Mempool,
}

impl Wakeable for Wire {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Never);
    }
}

impl RxQueue for Wire {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.frame.is_empty() || burst.room() == 0 {
            return 0;
        }
        let bytes = std::mem::take(&mut self.frame);
        let mut packet = self.pool.alloc().expect("a buffer; bursts are dropped at the end of a step");
        assert!(packet.copy_from(&bytes));
        burst.push(packet);
        1
    }
}

struct Sink;

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        burst.clear();
        count
    }
}

/// A card and its memory, created once because that takes longer than a case.
struct Harness {
    card: Arc<Card>,
    /// The same card for a driver whose accesses nobody sees, and the registers that it writes.
    polled: RefCell<PolledFunction>,
    /// It was polled in the present case.
    was_polled: Cell<bool>,
    file: Cells<AtomicU32>,
    memory: Memory,
    words: DmaArray<[AtomicU64; 2]>,
    pool: Mempool,
    _region: Arc<DmaRegion>,
}

thread_local! {
    static HARNESS: Harness = Harness::new();
}

/// The bytes of a case, read as numbers.
struct CaseInput<'a>(&'a [u8]);

impl CaseInput<'_> {
    fn number(&mut self, width: usize) -> u64 {
        let (now, later) = self.0.split_at(width.min(self.0.len()));
        self.0 = later;
        now.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

impl Harness {
    fn new() -> Self {
        let region = DmaRegion::new((PAGES * PAGE) as usize, &RegionConfig::default()).expect("64 KiB");
        let memory =
            ForeignMemory::map(region.file().expect("no physical addresses"), 0, region.len()).expect("the same again");
        let words = DmaArray::new(&region, 0, region.len() / 16).expect("all of it");
        let card = Card::new(&CardConfig::default());
        // Interrupts are enabled, but nobody reads the eventfds.
        card.interrupts(Card::VECTORS).expect("eventfds");
        let pool = Mempool::new(&MempoolConfig { buffers: 64, size: 2048, ..Default::default() }).expect("buffers");
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
            memory: memory.into(),
            words,
            pool,
            _region: region,
        }
    }

    fn map(&self, page: u64) {
        let page_memory = self.memory.part((page * PAGE) as usize, PAGE as usize).expect("a page of the memory");
        // The page may already be mapped.
        let _ = self.card.map_at(BASE + page * PAGE, page_memory, Access::ReadWrite);
    }

    fn canaries(&self) -> impl Iterator<Item = &[AtomicU64; 2]> {
        let page = (PAGE / 16) as usize;
        self.words[..page].iter().chain(&self.words[self.words.len() - page..])
    }

    /// Restores the state before the first case.
    fn clear(&self) {
        self.card.unmap_all();
        (1..PAGES - 1).for_each(|page| self.map(page));
        self.words.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        self.canaries().flatten().for_each(|word| word.store(CANARY, Ordering::Relaxed));
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
                let at = (PAGE / 16 + bytes.number(2) % ((PAGES - 2) * PAGE / 16)) as usize;
                let [first, second] = &self.words[at];
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
                let (len, byte) = (bytes.number(2) % 2000, bytes.number(1) as u8);
                let mut frame: Vec<u8> = bytes.0.iter().copied().take(64).collect();
                frame.resize((len as usize).max(14), byte);
                let pool = self.pool.clone();
                queues.rx = Box::new(Wire { frame, pool });
                self.card.step(queues);
            }
            // Seldom, as it takes long.
            10 if bytes.0.first().is_some_and(|&first| first < 32) => {
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
        let mut bytes = CaseInput(data);
        let rx = Box::new(Wire { frame: Vec::new(), pool: self.pool.clone() });
        let mut queues = QueuePair { rx, tx: Box::new(Sink) };
        for _ in 0..ACTIONS {
            if bytes.0.is_empty() {
                break;
            }
            self.run_action(&mut bytes, &mut queues);
        }
        self.card.step(&mut queues);
        assert!(self.canaries().flatten().all(|word| word.load(Ordering::Relaxed) == CANARY), "memory of others");
    }
}

/// Runs one case.
pub fn case(data: &[u8]) {
    HARNESS.with(|harness| harness.run(data));
}
