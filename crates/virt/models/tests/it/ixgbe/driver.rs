//! A NIC and a minimal driver for it, which shares no code with the real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ringpass_memory::{Atomics, DmaArray, DmaRegion, RegionConfig};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::Window;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_port::QueuePair;
use ringpass_testing::Wire;

pub use crate::wire::{frame, scripted};

pub struct Word(AtomicU64);
// SAFETY: a single 64-bit atomic integer, without padding.
unsafe impl Atomics for Word {}

impl Word {
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

pub struct Byte(AtomicU8);
// SAFETY: a single 8-bit atomic integer, without padding.
unsafe impl Atomics for Byte {}

/// Layout of the region: rings of up to 256 descriptors, then buffers: of 2 KiB for Rx, 8 KiB for Tx.
const RX_RING: usize = 0;
const TX_RING: usize = 0x1_0000;
pub const HEAD_WRITE_BACK: usize = 0x1_F000;
const RX_BUFFERS: usize = 0x2_0000;
const RX_BUFFER: usize = 0x800;
const TX_BUFFERS: usize = RX_BUFFERS + 256 * RX_BUFFER;
const TX_BUFFER: usize = 0x2000;
pub const REGION: usize = TX_BUFFERS + 64 * TX_BUFFER;

/// A received frame: its bytes from all buffers, and the write-back of its last descriptor.
pub struct Received {
    pub bytes: Vec<u8>,
    pub word: u64,
    pub status: u64,
    pub descriptors: usize,
}

pub struct Driver {
    pub card: Arc<Card>,
    pub window: Window,
    pub region: Arc<DmaRegion>,
    words: DmaArray<Word>,
    bytes: DmaArray<Byte>,
    pub queues: QueuePair,
    pub wire: Wire,
    /// For each queue (queues whose numbers differ by 16 share an entry): descriptors in the ring, next one to
    /// read, bytes of a buffer.
    rx: [(usize, usize, usize); 16],
    tx_tail: [usize; 16],
}

/// Returns the MAC address in the EEPROM of every NIC of these tests.
pub fn own_mac() -> [u8; 6] {
    CardConfig::default().mac.0
}

impl Driver {
    /// Creates a driver for a NIC with memory and bus mastering. Registers are as after reset, except that all
    /// filters are promiscuous.
    pub fn new() -> Self {
        Self::on(&CardConfig::default())
    }

    /// Creates a driver, as [`new`](Self::new) does, for a NIC with this configuration.
    pub fn on(config: &CardConfig) -> Self {
        let card = Card::new(config);
        let region = DmaRegion::new(REGION, &RegionConfig::default()).unwrap();
        card.map(&region).unwrap();
        card.set_bus_master(true).unwrap();
        let (queues, wire) = scripted();
        let window = card.window().unwrap();
        window.write(FCTRL, FCTRL_UPE | FCTRL_MPE | FCTRL_BAM);
        let words = DmaArray::new(&region, 0, REGION / 8).unwrap();
        let bytes = DmaArray::new(&region, 0, REGION).unwrap();
        Self { card, window, words, bytes, region, queues, wire, rx: [(0, 0, 0); 16], tx_tail: [0; 16] }
    }

    /// Creates a driver with Rx queue 0 and Tx queue 0 running, with 64 descriptors each.
    pub fn started() -> Self {
        Self::new().start()
    }

    pub fn start(self) -> Self {
        let mut driver = self;
        driver.start_rx(0, 64, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
        driver.start_tx(0, 64);
        driver
    }

    pub fn start_rx(&mut self, queue: usize, descriptors: usize, srrctl: u32) {
        let ring = self.region.iova(Self::rx_descriptor(queue, 0));
        let size = (srrctl as usize & 0x1f) << 10;
        assert!(size <= RX_BUFFER);
        self.rx[queue % 16] = (descriptors, 0, size);
        for i in 0..descriptors {
            self.arm(queue, i);
        }
        // SAFETY: the ring is in the region, which is mapped for the NIC; the NIC keeps a mapped region alive.
        unsafe { self.window.write_dma([RDBAL.at(queue), RDBAH.at(queue)], ring) };
        self.window.write(RDLEN.at(queue), descriptors as u32 * 16);
        self.window.write(SRRCTL.at(queue), srrctl);
        self.window.write(RXDCTL.at(queue), RXDCTL_ENABLE);
        self.window.write(RDT.at(queue), descriptors as u32 - 1);
        self.window.set(RXCTRL, RXCTRL_RXEN);
    }

    pub fn start_tx(&mut self, queue: usize, descriptors: usize) {
        let ring = self.region.iova(Self::tx_descriptor(queue, 0));
        // SAFETY: the ring is in the region, which is mapped for the NIC; the NIC keeps a mapped region alive.
        unsafe { self.window.write_dma([TDBAL.at(queue), TDBAH.at(queue)], ring) };
        self.window.write(TDLEN.at(queue), descriptors as u32 * 16);
        self.window.set(DMATXCTL, DMATXCTL_TE);
        self.window.write(TXDCTL.at(queue), TXDCTL_ENABLE);
        self.tx_tail[queue % 16] = 0;
    }

    /// Returns the offset of an Rx descriptor's buffer. Four queues of 64 descriptors have buffers of their
    /// own.
    pub fn buffer(queue: usize, index: usize) -> usize {
        RX_BUFFERS + (queue * 64 + index) % 256 * RX_BUFFER
    }

    pub fn word(&self, offset: usize) -> u64 {
        self.words[offset / 8].load()
    }

    pub fn set_word(&self, offset: usize, value: u64) {
        self.words[offset / 8].store(value);
    }

    pub fn read_bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes[offset..offset + len].iter().map(|byte| byte.0.load(Ordering::Relaxed)).collect()
    }

    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..].iter().zip(bytes).for_each(|(byte, &value)| byte.0.store(value, Ordering::Relaxed));
    }

    pub fn rx_descriptor(queue: usize, index: usize) -> usize {
        RX_RING + queue % 16 * 0x1000 + index * 16
    }

    pub fn tx_descriptor(queue: usize, index: usize) -> usize {
        TX_RING + queue % 16 * 0x1000 + index * 16
    }

    /// Posts the buffer of an Rx descriptor, in the read format.
    pub fn arm(&self, queue: usize, index: usize) {
        let at = Self::rx_descriptor(queue, index);
        self.set_word(at, self.region.iova(Self::buffer(queue, index)));
        self.set_word(at + 8, 0);
    }

    /// Puts frames on the wire and steps until the wire is empty.
    pub fn arrive(&mut self, frames: &[Vec<u8>]) {
        self.wire.frames().to_card.extend(frames.iter().cloned());
        self.step();
        while !self.wire.frames().to_card.is_empty() {
            assert!(self.step() > 0, "the card does not take from the wire");
        }
    }

    pub fn step(&mut self) -> usize {
        self.card.step(&mut self.queues)
    }

    /// Takes the next frame that the NIC has written to a queue, and posts its descriptors again.
    pub fn receive(&mut self, queue: usize) -> Option<Received> {
        let (len, next, size) = self.rx[queue % 16];
        let mut received = Received { bytes: Vec::new(), word: 0, status: 0, descriptors: 0 };
        for i in 0..len {
            let index = (next + i) % len;
            let at = Self::rx_descriptor(queue, index);
            (received.word, received.status) = (self.word(at), self.word(at + 8));
            if received.status & descriptor::RX_DD == 0 {
                return None;
            }
            let part = (received.status >> descriptor::RX_LENGTH_SHIFT) as usize & 0xffff;
            assert!(part <= size);
            received.bytes.extend(self.read_bytes(Self::buffer(queue, index), part));
            received.descriptors += 1;
            if received.status & descriptor::RX_EOP != 0 {
                (0..=i).for_each(|i| self.arm(queue, (next + i) % len));
                self.rx[queue % 16].1 = (index + 1) % len;
                self.window.write(RDT.at(queue), index as u32);
                return Some(received);
            }
        }
        None
    }

    /// Takes all frames of a queue.
    pub fn receive_all(&mut self, queue: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.receive(queue)).map(|received| received.bytes).collect()
    }

    /// Writes one Tx descriptor whose buffer holds `part`, and advances the tail.
    pub fn put(&mut self, queue: usize, part: &[u8], flags: u64, frame_len: usize) {
        let index = self.tx_tail[queue % 16];
        let buffer = TX_BUFFERS + index % 64 * TX_BUFFER;
        self.write_bytes(buffer, part);
        let word = part.len() as u64
            | descriptor::TX_DTYP_DATA
            | descriptor::TX_DEXT
            | flags
            | (frame_len as u64) << descriptor::TX_PAYLEN_SHIFT;
        self.put_raw(queue, self.region.iova(buffer), word);
    }

    pub fn put_raw(&mut self, queue: usize, address: u64, word: u64) {
        let index = self.tx_tail[queue % 16];
        self.set_word(Self::tx_descriptor(queue, index), address);
        self.set_word(Self::tx_descriptor(queue, index) + 8, word);
        self.tx_tail[queue % 16] = (index + 1) % (self.window.read(TDLEN.at(queue)) as usize / 16);
    }

    /// Rings the doorbell and steps.
    pub fn send(&mut self, queue: usize) {
        self.window.doorbell(TDT.at(queue)).ring(self.tx_tail[queue % 16] as u32);
        self.step();
    }

    /// Sends a frame in one buffer.
    pub fn send_frame(&mut self, queue: usize, frame: &[u8]) {
        self.put(queue, frame, descriptor::TX_EOP | descriptor::TX_IFCS | descriptor::TX_RS, frame.len());
        self.send(queue);
    }

    /// Returns the frames sent to the wire since the last call.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wire.frames().from_card)
    }
}
