//! A minimal virtio driver for both interfaces and both kinds of rings, which can also violate the
//! specification. It shares no code with the real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ringpass_memory::{Access, Atomics, DmaArray, DmaRegion, ForeignMemory, RegionConfig};
use ringpass_models::virtio::{VirtioCard, VirtioConfig};
use ringpass_pci::registers::IoRegion;
use ringpass_pci::{EventWaiter, PciDevice};
use ringpass_port::QueuePair;
use ringpass_testing::Wire;
use ringpass_virtio::features::*;

use crate::wire::{frame, scripted};

pub struct Byte(AtomicU8);
// SAFETY: a single 8-bit atomic integer, without padding.
unsafe impl Atomics for Byte {}

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
pub const ACKNOWLEDGE: u8 = 1;
pub const DRIVER: u8 = 2;
pub const DRIVER_OK: u8 = 4;
pub const FEATURES_OK: u8 = 8;
pub const NEEDS_RESET: u8 = 0x40;

/// Offsets of the structures in BAR 4.
pub const ISR: usize = 0x1000;
pub const CONFIG: usize = 0x2000;
pub const NOTIFY: usize = 0x3000;

/// Address of the memory for the device: low, so that legacy queues have a page number.
pub const BASE: u64 = 0x10_0000;
const REGION: usize = 8 << 20;
/// Each queue has a part of the region: its ring, then space for buffers.
const PART: usize = 0x8_0000;
const BUFFERS: usize = 0x1_0000;
pub const PLACE: usize = 0x1000;

/// The driver's state of a queue.
#[derive(Clone, Copy, Default)]
pub struct Queue {
    pub size: u16,
    /// Offsets in the region.
    pub areas: [usize; 3],
    pub packed: bool,
    /// Split: the available index. Packed: the slot.
    pub next: u16,
    pub wrap: bool,
    pub used: u16,
    pub used_wrap: bool,
    /// Index of the next buffer.
    pub place: usize,
    /// Split: the next free descriptor.
    pub free: u16,
}

/// A buffer to be posted: address, length, and whether the device writes it.
#[derive(Clone, Copy)]
pub struct Piece {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
}

pub struct Driver {
    pub card: Arc<VirtioCard>,
    pub region: Arc<DmaRegion>,
    bytes: DmaArray<Byte>,
    pub bar: Arc<dyn IoRegion>,
    pub legacy: bool,
    pub features: u64,
    pub queues: Vec<Queue>,
    pub wires: QueuePair,
    pub wire: Wire,
    pub vectors: Vec<EventWaiter>,
}

/// A received frame: header and bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    pub header: Vec<u8>,
    pub bytes: Vec<u8>,
}

impl Driver {
    /// Creates a driver for a device with memory and bus mastering, as after power-on.
    pub fn on(config: &VirtioConfig, legacy: bool) -> Self {
        let card = VirtioCard::new(config);
        let region = DmaRegion::new(REGION, &RegionConfig::default()).unwrap();
        let memory = ForeignMemory::map(region.file().unwrap(), 0, REGION).unwrap();
        card.map_at(BASE, memory.into(), Access::ReadWrite).unwrap();
        card.set_bus_master(true).unwrap();
        let bar = card.region(if legacy { 0 } else { 4 }).unwrap();
        let bytes = DmaArray::new(&region, 0, REGION).unwrap();
        let (wires, wire) = scripted();
        let (queues, vectors) = (Vec::new(), Vec::new());
        Self { card, region, bytes, bar, legacy, features: 0, queues, wires, wire, vectors }
    }

    /// Starts a modern device with these features, one queue pair of 64 descriptors, and 32 buffers posted.
    /// Each queue interrupts by the vector of its number; configuration changes use the last vector.
    pub fn started(features: u64) -> Self {
        Self::up(&VirtioConfig { features, ..VirtioConfig::default() }, 64)
    }

    pub fn up(config: &VirtioConfig, size: u16) -> Self {
        let mut driver = Self::on(config, false);
        driver.negotiate(config.features | VERSION_1).unwrap();
        driver.vectors = driver.card.interrupts(driver.card.vectors()).unwrap();
        driver.bar.write16(16, driver.card.vectors() as u16 - 1);
        let pairs = if config.features & MQ != 0 { config.queue_pairs } else { 1 };
        let control = u16::from(config.features & CTRL_VQ != 0);
        for queue in 0..2 * pairs + control {
            driver.start_queue(queue, size);
        }
        driver.set_status(DRIVER_OK);
        for pair in 0..pairs {
            driver.fill(usize::from(pair) * 2, 32);
        }
        driver
    }

    /// Resets, acknowledges, and chooses features; `Err` with the status if the device rejects them.
    pub fn negotiate(&mut self, features: u64) -> Result<(), u8> {
        self.write_status(0);
        assert_eq!(self.status(), 0);
        self.set_status(ACKNOWLEDGE);
        self.set_status(DRIVER);
        self.features = features;
        if self.legacy {
            self.bar.write32(4, features as u32);
            return Ok(());
        }
        for half in 0..2 {
            self.bar.write32(8, half);
            self.bar.write32(12, (features >> (32 * half)) as u32);
        }
        self.set_status(FEATURES_OK);
        if self.status() & FEATURES_OK != 0 { Ok(()) } else { Err(self.status()) }
    }

    pub fn offered(&self) -> u64 {
        if self.legacy {
            return self.bar.read32(0).into();
        }
        (0..2).fold(0, |features, half| {
            self.bar.write32(0, half);
            features | u64::from(self.bar.read32(4)) << (32 * half)
        })
    }

    pub fn status(&self) -> u8 {
        self.bar.read8(if self.legacy { 18 } else { 20 })
    }

    pub fn write_status(&self, status: u8) {
        self.bar.write8(if self.legacy { 18 } else { 20 }, status);
    }

    /// Sets one more bit of the status.
    pub fn set_status(&self, bit: u8) {
        self.write_status(self.status() | bit);
    }

    pub fn start_queue(&mut self, number: u16, size: u16) {
        let part = usize::from(number) * PART;
        let packed = self.features & RING_PACKED != 0;
        let entries = usize::from(size);
        let areas = if self.legacy {
            let available = part + 16 * entries;
            [part, available, (available + 6 + 2 * entries).next_multiple_of(4096)]
        } else {
            [part, part + 0x8000, part + 0xa000]
        };
        (part..part + BUFFERS).for_each(|at| self.bytes[at].0.store(0, Ordering::Relaxed));
        let queue = Queue { size, areas, packed, wrap: true, used_wrap: true, ..Queue::default() };
        self.queues.resize(self.queues.len().max(usize::from(number) + 1), Queue::default());
        self.queues[usize::from(number)] = queue;
        if self.legacy {
            self.bar.write16(14, number);
            assert_eq!(self.bar.read16(12), size);
            self.bar.write32(8, ((BASE + part as u64) >> 12) as u32);
            return;
        }
        self.bar.write16(22, number);
        self.bar.write16(24, size);
        self.bar.write16(26, number);
        for (i, area) in areas.into_iter().enumerate() {
            let address = BASE + area as u64;
            self.bar.write32(32 + 8 * i, address as u32);
            self.bar.write32(36 + 8 * i, (address >> 32) as u32);
        }
        self.bar.write16(28, 1);
    }

    pub fn header_len(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.bytes[at..at + len].iter().map(|byte| byte.0.load(Ordering::Relaxed)).collect()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.bytes[at..].iter().zip(bytes).for_each(|(byte, &value)| byte.0.store(value, Ordering::Relaxed));
    }

    pub fn read16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.read(at, 2).try_into().unwrap())
    }

    /// Returns the offset of descriptor `index` of a queue.
    pub fn descriptor(&self, queue: usize, index: u16) -> usize {
        self.queues[queue].areas[0] + 16 * usize::from(index)
    }

    /// Returns the offset of space for a buffer of up to a page.
    pub fn place(&mut self, queue: usize) -> usize {
        let state = &mut self.queues[queue];
        state.place = (state.place + 1) % ((PART - BUFFERS) / PLACE);
        queue * PART + BUFFERS + state.place * PLACE
    }

    /// Returns a descriptor's bytes: of a split ring with flags and next, of a packed one with id and flags.
    pub fn entry(piece: Piece, third: u16, fourth: u16) -> Vec<u8> {
        let mut bytes = piece.address.to_le_bytes().to_vec();
        bytes.extend(piece.len.to_le_bytes());
        bytes.extend([third, fourth].map(u16::to_le_bytes).as_flattened());
        bytes
    }

    /// Makes a chain available, with descriptors in ring order. Returns its id.
    pub fn post(&mut self, queue: usize, pieces: &[Piece]) -> u16 {
        if self.queues[queue].packed { self.post_packed(queue, pieces) } else { self.post_split(queue, pieces) }
    }

    fn post_split(&mut self, queue: usize, pieces: &[Piece]) -> u16 {
        let Queue { size, areas, next, free, .. } = self.queues[queue];
        for (i, &piece) in pieces.iter().enumerate() {
            let index = (free + i as u16) % size;
            let goes_on = if i + 1 < pieces.len() { NEXT } else { 0 };
            let bytes = Self::entry(piece, piece.flags | goes_on, (index + 1) % size);
            self.write(self.descriptor(queue, index), &bytes);
        }
        self.write(areas[1] + 4 + 2 * usize::from(next % size), &free.to_le_bytes());
        self.queues[queue].free = (free + pieces.len() as u16) % size;
        self.queues[queue].next = next.wrapping_add(1);
        self.write(areas[1] + 2, &next.wrapping_add(1).to_le_bytes());
        free
    }

    fn post_packed(&mut self, queue: usize, pieces: &[Piece]) -> u16 {
        let id = self.queues[queue].next;
        let mut all = Vec::new();
        for (i, &piece) in pieces.iter().enumerate() {
            let state = &mut self.queues[queue];
            let marks = if state.wrap { 1 << 7 } else { 1 << 15 };
            let goes_on = if i + 1 < pieces.len() { NEXT } else { 0 };
            all.push((state.next, Self::entry(piece, id, piece.flags | goes_on | marks)));
            state.next += 1;
            if state.next == state.size {
                (state.next, state.wrap) = (0, !state.wrap);
            }
        }
        for (index, bytes) in all.into_iter().rev() {
            self.write(self.descriptor(queue, index), &bytes);
        }
        id
    }

    /// Writes an indirect table of buffers; returns the descriptor for it. Split tables are chained.
    pub fn table(&mut self, queue: usize, pieces: &[Piece]) -> Piece {
        let (place, packed) = (self.place(queue), self.queues[queue].packed);
        for (i, &piece) in pieces.iter().enumerate() {
            let goes_on = if !packed && i + 1 < pieces.len() { NEXT } else { 0 };
            let flags = piece.flags | goes_on;
            let (third, fourth) = if packed { (0, flags) } else { (flags, i as u16 + 1) };
            self.write(place + 16 * i, &Self::entry(piece, third, fourth));
        }
        Piece { address: BASE + place as u64, len: 16 * pieces.len() as u32, flags: INDIRECT }
    }

    /// Posts empty buffers of a page and notifies the device.
    pub fn fill(&mut self, queue: usize, count: usize) {
        (0..count).for_each(|_| self.post_buffer(queue, PLACE));
        self.notify(queue);
    }

    pub fn post_buffer(&mut self, queue: usize, len: usize) {
        let piece = self.empty(queue, len);
        self.post(queue, &[piece]);
    }

    pub fn empty(&mut self, queue: usize, len: usize) -> Piece {
        Piece { address: BASE + self.place(queue) as u64, len: len as u32, flags: WRITE }
    }

    pub fn filled(&mut self, queue: usize, bytes: &[u8]) -> Piece {
        let place = self.place(queue);
        self.write(place, bytes);
        Piece { address: BASE + place as u64, len: bytes.len() as u32, flags: 0 }
    }

    /// Notifies the device of a queue, in the negotiated form.
    pub fn notify(&self, queue: usize) {
        let number = queue as u16;
        if self.legacy {
            return self.bar.write16(16, number);
        }
        let value = if self.features & NOTIF_CONFIG_DATA != 0 {
            self.bar.write16(22, number);
            self.bar.read16(56)
        } else {
            number
        };
        let at = NOTIFY + 4 * queue;
        if self.features & NOTIFICATION_DATA != 0 {
            let Queue { next, packed, wrap, .. } = self.queues[queue];
            let position = if packed { next | u16::from(wrap) << 15 } else { next };
            self.bar.write32(at, u32::from(value) | u32::from(position) << 16);
        } else {
            self.bar.write16(at, value);
        }
    }

    /// Returns the next used chain: its id, and the bytes written.
    pub fn used(&mut self, queue: usize) -> Option<(u32, u32)> {
        let Queue { size, areas, packed, used, used_wrap, .. } = self.queues[queue];
        if packed {
            let at = self.descriptor(queue, used);
            let marks = self.read16(at + 14);
            let (available, is_used) = (marks & 1 << 7 != 0, marks & 1 << 15 != 0);
            if available != used_wrap || is_used != used_wrap {
                return None;
            }
            let len = u32::from_le_bytes(self.read(at + 8, 4).try_into().unwrap());
            return Some((self.read16(at + 12).into(), len));
        }
        if self.read16(areas[2] + 2) == used {
            return None;
        }
        let at = areas[2] + 4 + 8 * usize::from(used % size);
        let [id, len] = [0, 4].map(|more| u32::from_le_bytes(self.read(at + more, 4).try_into().unwrap()));
        Some((id, len))
    }

    /// Advances past `chains` used chains of `descriptors` descriptors in all.
    pub fn pass(&mut self, queue: usize, chains: u16, descriptors: u16) {
        let state = &mut self.queues[queue];
        if !state.packed {
            state.used = state.used.wrapping_add(chains);
            return;
        }
        state.used += descriptors;
        if state.used >= state.size {
            (state.used, state.used_wrap) = (state.used - state.size, !state.used_wrap);
        }
    }

    /// Takes all used chains, which must have one descriptor each.
    pub fn all_used(&mut self, queue: usize) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        while let Some(used) = self.used(queue) {
            self.pass(queue, 1, 1);
            all.push(used);
        }
        all
    }

    /// Returns the offset of the buffer that a used entry names, if the chain has one descriptor.
    pub fn buffer(&self, queue: usize, id: u32) -> usize {
        // A packed ring's used descriptors keep their address.
        let at = self.descriptor(queue, id as u16);
        (u64::from_le_bytes(self.read(at, 8).try_into().unwrap()) - BASE) as usize
    }

    pub fn step(&mut self) -> usize {
        self.card.step(&mut self.wires)
    }

    /// Puts frames on the wire and steps until nothing moves.
    pub fn arrive(&mut self, frames: &[Vec<u8>]) {
        self.wire.frames().to_card.extend(frames.iter().cloned());
        while self.step() > 0 {}
    }

    /// Receives the next frame on the first pair; it must be in one buffer.
    pub fn receive(&mut self) -> Option<Received> {
        self.receive_on(0)
    }

    pub fn receive_on(&mut self, queue: usize) -> Option<Received> {
        let (id, len) = self.used(queue)?;
        let at = self.buffer(queue, id);
        self.pass(queue, 1, 1);
        let bytes = self.read(at, len as usize);
        let (header, bytes) = bytes.split_at(self.header_len());
        Some(Received { header: header.to_vec(), bytes: bytes.to_vec() })
    }

    /// Sends a frame with a header in one buffer, and steps.
    pub fn send(&mut self, header: &[u8], frame: &[u8]) {
        self.put(1, header, frame);
        self.notify(1);
        while self.step() > 0 {}
    }

    pub fn put(&mut self, queue: usize, header: &[u8], frame: &[u8]) {
        let mut header = header.to_vec();
        header.resize(self.header_len(), 0);
        let piece = self.filled(queue, &[&header, frame].concat());
        self.post(queue, &[piece]);
    }

    /// Returns the frames sent to the wire since the last call.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wire.frames().from_card)
    }

    /// Sends a command on the control queue; returns its status, if the device replied.
    pub fn command(&mut self, class: u8, command: u8, data: &[u8]) -> Option<u8> {
        let queue = self.queues.len() - 1;
        let request = self.filled(queue, &[&[class, command], data].concat());
        let answer = self.empty(queue, 1);
        let at = (answer.address - BASE) as usize;
        self.write(at, &[0xee]);
        self.post(queue, &[request, answer]);
        self.notify(queue);
        while self.step() > 0 {}
        self.used(queue)?;
        self.pass(queue, 1, 2);
        Some(self.read(at, 1)[0])
    }

    /// Returns how often a vector was signalled since the last call.
    pub fn heard(&self, vector: usize) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(self.vectors[vector].event(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }
}

/// Makes a broadcast frame of `len` bytes.
pub fn any_frame(len: usize) -> Vec<u8> {
    frame([0xff; 6], len)
}
