//! Fuzz body: an arbitrary driver of a virtio network device. Registers of both interfaces are accessed in any
//! order and width, rings and chains lie anywhere, memory is mapped and unmapped, and the model is stepped in
//! between. Whatever the driver does, the model must not panic, hang or access memory that it was not given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{
    Access, Burst, DmaArray, DmaRegion, ForeignMemory, Memory, Mempool, MempoolConfig, RegionConfig,
};
use ringpass_models::virtio::{Interface, VirtioCard, VirtioConfig};
use ringpass_pci::PciDevice;
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};
use ringpass_registers::IoRegion;
use ringpass_virtio::features::offer;

const PAGE: u64 = 4096;
/// Number of pages of the memory file; the first and the last are never mapped for the device.
const PAGES: u64 = 16;
/// Device address of the pages. Read as the start of an available ring, such an address has 8 chains.
const BASE: u64 = 0x8_0000;
const CANARY: u64 = 0xdead_beef_0bad_cafe;
/// Largest number of actions in a case.
const ACTIONS: usize = 64;
/// Number of descriptors of a queue that is set up correctly.
const SIZE: u16 = 8;

/// A wire with one frame waiting, unless `frame` is empty.
struct Wire {
    frame: Vec<u8>,
    pool: Mempool,
}

impl Wakeable for Wire {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Wire {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.frame.is_empty() || burst.room() == 0 {
            return 0;
        }
        let bytes = std::mem::take(&mut self.frame);
        let Some(mut packet) = self.pool.alloc() else { return 0 };
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

/// A device and its memory, created once because that takes longer than a case.
struct Harness {
    card: Arc<VirtioCard>,
    bars: [Arc<dyn IoRegion>; 2],
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
        let features = offer(
            VirtioConfig::DEFAULT_FEATURES,
            "packed+in_order+mq+mtu+notification_data+notif_config_data+notify_on_empty",
        );
        let card = VirtioCard::new(&VirtioConfig {
            interface: Interface::Transitional,
            features: features.expect("features"),
            queue_pairs: 2,
            queue_size: 16,
            ..VirtioConfig::default()
        });
        // Interrupts are enabled, but nobody reads the eventfds.
        card.interrupts(card.vectors()).expect("eventfds");
        let bars = [0, 4].map(|bar| card.region(bar).expect("a BAR"));
        let pool = Mempool::new(&MempoolConfig { buffers: 64, size: 2048, ..Default::default() }).expect("buffers");
        Self { card, bars, memory: memory.into(), words, pool, _region: region }
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
        self.card.reset();
        self.card.set_link(true);
        self.card.set_bus_master(true).expect("a model takes it");
    }

    /// Reads an address: in the memory, at its ends or anywhere.
    fn address(bytes: &mut CaseInput) -> u64 {
        let number = bytes.number(2);
        match number >> 12 {
            0..=12 => BASE + PAGE + (number << 2) % ((PAGES - 2) * PAGE),
            13 => BASE + (PAGES - 1) * PAGE - (number & 0x3f),
            14 => (number & 0xff).wrapping_sub(0x80),
            _ => number << 40,
        }
    }

    fn write(&self, bar: usize, at: u64, width: u64, value: u64) {
        let (bar, width) = (&self.bars[bar], [1, 2, 4][width as usize % 3]);
        let at = at as usize % bar.len() / width * width;
        match width {
            1 => bar.write8(at, value as u8),
            2 => bar.write16(at, value as u16),
            _ => bar.write32(at, value as u32),
        }
    }

    /// Sets up a queue as drivers do, except for its addresses.
    fn start(&self, bytes: &mut CaseInput) {
        let bar = &self.bars[1];
        let (queue, place) = (bytes.number(1) as u16 % 6, Self::address(bytes) & !0xf);
        bar.write16(22, queue);
        bar.write16(24, SIZE);
        bar.write16(26, queue);
        for (area, offset) in [(32, 0), (40, 0x80), (48, 0xc0)] {
            let address = place.wrapping_add(offset);
            bar.write32(area, address as u32);
            bar.write32(area + 4, (address >> 32) as u32);
        }
        bar.write16(28, 1);
    }

    /// Negotiates some features.
    fn negotiate(&self, bytes: &mut CaseInput) {
        let (features, bar) = (bytes.number(8), &self.bars[1]);
        let features = features & 0x01ff_ffff_ffff | 1 << 32;
        bar.write8(20, 0);
        bar.write8(20, 3);
        for half in 0..2 {
            bar.write32(0, half);
            let offered = bar.read32(4);
            bar.write32(8, half);
            bar.write32(12, (features >> (32 * half)) as u32 & offered);
        }
        bar.write8(20, 11);
    }

    fn run_action(&self, bytes: &mut CaseInput, queues: &mut QueuePair) {
        match bytes.number(1) % 16 {
            0 => self.write(0, bytes.number(1), bytes.number(1), bytes.number(4)),
            1 => self.write(1, bytes.number(2), bytes.number(1), bytes.number(4)),
            2 => self.write(1, bytes.number(1) % 64, bytes.number(1), bytes.number(4)),
            3 => {
                let (bar, at) = (bytes.number(1) as usize % 2, bytes.number(2) as usize);
                let at = at % self.bars[bar].len();
                _ = (self.bars[bar].read8(at), self.bars[bar].read16(at & !1), self.bars[bar].read32(at & !3));
            }
            4 => self.negotiate(bytes),
            5..=6 => self.start(bytes),
            7 => self.bars[1].write8(20, 15),
            8..=10 => {
                // Write a descriptor: an address and the rest.
                let at = (PAGE / 16 + bytes.number(2) % ((PAGES - 2) * PAGE / 16)) as usize;
                let [first, second] = &self.words[at];
                first.store(Self::address(bytes), Ordering::Relaxed);
                second.store(bytes.number(8), Ordering::Relaxed);
            }
            11 => match bytes.number(1) {
                span @ 0..=127 => {
                    self.card.unmap(BASE + span % PAGES * PAGE, (span / 16 + 1) * PAGE / 2).expect("few maps");
                }
                other @ 128..=239 => self.map(1 + other % (PAGES - 2)),
                240..=247 => self.card.unmap_all(),
                other => self.card.set_link(other & 1 != 0),
            },
            12 => {
                // Notify a queue, with both access widths.
                let queue = bytes.number(1) as usize % 8;
                self.bars[1].write16(0x3000 + 4 * queue, queue as u16);
                self.bars[1].write32(0x3000 + 4 * queue, queue as u32);
                _ = self.card.step(queues);
            }
            13..=14 => {
                let (len, byte) = (bytes.number(2) % 2000, bytes.number(1) as u8);
                let mut frame: Vec<u8> = bytes.0.iter().copied().take(64).collect();
                frame.resize((len as usize).max(14), byte);
                queues.rx = Box::new(Wire { frame, pool: self.pool.clone() });
                self.card.step(queues);
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
