//! A driver of a virtio network card that does anything: registers of both interfaces in any order and width, rings and
//! chains anywhere, memory that comes and goes, steps in between. Whatever it does, the model neither panics nor hangs nor
//! touches what it was not given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_bus::Bus;
use ringpass_memory::{Burst, DmaArray, DmaRegion, ForeignMemory, Mempool, MempoolConfig, RegionConfig};
use ringpass_models::virtio::{Access, Interface, VirtioCard, VirtioConfig};
use ringpass_port::{Queues, RxQueue, TxQueue, Wake, Wakeable};
use ringpass_registers::IoRegion;
use ringpass_virtio::features::offer;

const PAGE: u64 = 4096;
/// Pages of the file; the first and the last are never given to the card.
const PAGES: u64 = 16;
/// Where they are for the card. Read as the head of an available ring, such an address has 8 chains.
const BASE: u64 = 0x8_0000;
const CANARY: u64 = 0xdead_beef_0bad_cafe;
/// Actions in a case.
const ACTIONS: usize = 64;
/// Descriptors of a queue that is set up as it should be.
const SIZE: u16 = 8;

/// A wire with a frame waiting, if it is not empty.
struct Wire {
    frame: Vec<u8>,
    pool: Mempool,
}

impl Wakeable for Wire {
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Turns);
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

/// A card with its memory; made once, as that takes longer than a case.
struct Bench {
    card: Arc<VirtioCard>,
    bars: [Arc<dyn IoRegion>; 2],
    memory: Arc<ForeignMemory>,
    words: DmaArray<[AtomicU64; 2]>,
    pool: Mempool,
    _region: Arc<DmaRegion>,
}

thread_local! {
    static BENCH: Bench = Bench::new();
}

/// The bytes of a case, as numbers.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn number(&mut self, width: usize) -> u64 {
        let (now, later) = self.0.split_at(width.min(self.0.len()));
        self.0 = later;
        now.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

impl Bench {
    fn new() -> Self {
        let region = DmaRegion::new((PAGES * PAGE) as usize, &RegionConfig::default()).expect("64 KiB");
        let memory =
            ForeignMemory::map(region.file().expect("no physical addresses"), 0, region.len()).expect("the same again");
        let words = DmaArray::new(&region, 0, region.len() / 16).expect("all of it");
        let features =
            offer(VirtioConfig::USUAL, "packed+in_order+mq+mtu+notification_data+notif_config_data+notify_on_empty");
        let card = VirtioCard::new(&VirtioConfig {
            interface: Interface::Transitional,
            features: features.expect("features"),
            queue_pairs: 2,
            queue_size: 16,
            ..VirtioConfig::default()
        });
        // Nobody reads these.
        card.interrupts(card.vectors()).expect("eventfds");
        let bars = [0, 4].map(|bar| card.region(bar).expect("a BAR"));
        let pool = Mempool::new(&MempoolConfig { buffers: 64, size: 2048, ..Default::default() }).expect("buffers");
        Self { card, bars, memory, words, pool, _region: region }
    }

    fn map(&self, page: u64) {
        let offset = (page * PAGE) as usize;
        // It may be mapped already.
        let _ = self.card.map_foreign(BASE + page * PAGE, &self.memory, offset, PAGE as usize, Access::ReadWrite);
    }

    fn canaries(&self) -> impl Iterator<Item = &[AtomicU64; 2]> {
        let page = (PAGE / 16) as usize;
        self.words[..page].iter().chain(&self.words[self.words.len() - page..])
    }

    /// All as for the first case.
    fn clear(&self) {
        self.card.unmap_all();
        (1..PAGES - 1).for_each(|page| self.map(page));
        self.words.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        self.canaries().flatten().for_each(|word| word.store(CANARY, Ordering::Relaxed));
        self.card.reset();
        self.card.set_link(true);
        self.card.set_bus_master(true).expect("a model takes it");
    }

    /// An address: in the memory, at its ends, anywhere.
    fn address(bytes: &mut Bytes) -> u64 {
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

    /// Sets up a queue as drivers do, but for where it lies.
    fn start(&self, bytes: &mut Bytes) {
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

    /// Goes through negotiation with some features.
    fn negotiate(&self, bytes: &mut Bytes) {
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

    fn act(&self, bytes: &mut Bytes, queues: &mut Queues) {
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
                // A descriptor: an address and what goes with it.
                let at = (PAGE / 16 + bytes.number(2) % ((PAGES - 2) * PAGE / 16)) as usize;
                let [first, second] = &self.words[at];
                first.store(Self::address(bytes), Ordering::Relaxed);
                second.store(bytes.number(8), Ordering::Relaxed);
            }
            11 => match bytes.number(1) {
                span @ 0..=127 => self.card.unmap(BASE + span % PAGES * PAGE, (span / 16 + 1) * PAGE / 2),
                other @ 128..=239 => self.map(1 + other % (PAGES - 2)),
                240..=247 => self.card.unmap_all(),
                other => self.card.set_link(other & 1 != 0),
            },
            12 => {
                // A notification, right or wrong.
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
        let mut bytes = Bytes(data);
        let rx = Box::new(Wire { frame: Vec::new(), pool: self.pool.clone() });
        let mut queues = Queues { rx, tx: Box::new(Sink) };
        for _ in 0..ACTIONS {
            if bytes.0.is_empty() {
                break;
            }
            self.act(&mut bytes, &mut queues);
        }
        self.card.step(&mut queues);
        assert!(self.canaries().flatten().all(|word| word.load(Ordering::Relaxed) == CANARY), "memory of others");
    }
}

/// One case.
pub fn case(data: &[u8]) {
    BENCH.with(|bench| bench.run(data));
}
