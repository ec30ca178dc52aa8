//! Fuzz body: an arbitrary driver of a virtio network device. Registers of both interfaces are accessed in any
//! order and width, rings and chains lie anywhere, memory is mapped and unmapped, and the model is stepped in
//! between. Whatever the driver does, the model must not panic, hang or access memory that it was not given.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::Access;
use ringpass_models::virtio::{Interface, VirtioCard, VirtioConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::IoRegion;
use ringpass_port::QueuePair;
use ringpass_testing::{CaseInput, GuardedMemory, Sink, Wire};
use ringpass_virtio::features::offer;

const PAGE: u64 = GuardedMemory::PAGE;
const PAGES: u64 = GuardedMemory::PAGES;
/// Device address of the pages. Read as the start of an available ring, such an address has 8 chains.
const BASE: u64 = 0x8_0000;
/// Largest number of actions in a case.
const ACTIONS: usize = 64;
/// Number of descriptors of a queue that is set up correctly.
const SIZE: u16 = 8;

/// A device and its memory, created once because that takes longer than a case.
struct Harness {
    card: Arc<VirtioCard>,
    bars: [Arc<dyn IoRegion>; 2],
    memory: GuardedMemory,
    wire: Wire,
}

thread_local! {
    static HARNESS: Harness = Harness::new();
}

impl Harness {
    fn new() -> Self {
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
        Self { card, bars, memory: GuardedMemory::new(), wire: Wire::new(64, 2048) }
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
                let [first, second] = self.memory.descriptor(bytes.number(2));
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
                self.wire.frames().to_card = [bytes.frame()].into();
                self.card.step(queues);
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
