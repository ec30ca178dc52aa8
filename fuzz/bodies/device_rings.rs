//! Fuzz body: the device side of a virtqueue with an arbitrary guest.
//!
//! The input drives both the device's operations and the guest's writes, anywhere in the guest's memory and in the
//! record of chains in flight. Whatever happens, pieces that the device is handed lie in the guest's memory, no
//! buffer is handed out twice at a time, and every burst ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ringpass_memory::{Avx2, DmaRegion, ForeignMemory, RegionConfig};
use ringpass_testing::CaseInput;
use ringpass_virtio::device::{
    Chain, ChainBatch, CreateVirtqueue, DeviceAccess, GuestMemory, GuestRegion, Inflight, Packed, Piece, Split,
    VringConfig,
};
use ringpass_virtio::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC};

/// Size of the guest's memory in bytes, its guest address, and the difference to the front-end's addresses.
const MEMORY: usize = 8 << 10;
const GUEST: u64 = 0x1000;
const USER: u64 = 0x10_0000;
/// Size of the inflight region in bytes.
const NOTES: usize = 1 << 10;
/// Offsets of the ring's parts and of indirect tables.
const DRIVER: usize = 0x200;
const DEVICE: usize = 0x300;
const TABLES: usize = 0x400;
/// Largest number of actions in a case.
const ACTIONS: usize = 96;
/// Number of descriptors of the largest queue.
const LARGEST: u16 = 16;

/// The memory regions, created once because that takes longer than a case.
struct Harness {
    region: Arc<DmaRegion>,
    memory: Arc<ForeignMemory>,
    noted: Arc<DmaRegion>,
    notes: Arc<ForeignMemory>,
}

thread_local! {
    static HARNESS: Harness = Harness::new();
}

impl Harness {
    fn new() -> Self {
        let region = |len| DmaRegion::new(len, &RegionConfig::default()).expect("some KiB");
        let map = |region: &DmaRegion, len| {
            ForeignMemory::map(region.file().expect("no physical addresses"), 0, len).expect("a memfd")
        };
        let (region, noted) = (region(MEMORY), region(NOTES));
        Self { memory: map(&region, MEMORY), notes: map(&noted, NOTES), region, noted }
    }

    /// Returns the guest's memory as two regions that meet at `cut` or have a gap of whole pages between them.
    fn guest(&self, cut: u64) -> Arc<GuestMemory> {
        let (len, gap) = (MEMORY as u64, cut >> 15 << 12);
        let cut = cut % len;
        let part = |offset: u64, end: u64, gap: u64| GuestRegion {
            guest: GUEST + offset + gap,
            user: USER + offset,
            len: end - offset,
            memory: self.memory.clone(),
            offset,
        };
        let parts = [part(0, cut, 0), part(cut, len, gap)];
        GuestMemory::new(parts.into_iter().filter(|part| part.len > 0).collect()).expect("parts apart")
    }
}

fn bytes(region: &DmaRegion, len: usize) -> &[AtomicU8] {
    // SAFETY: `region` has `len` bytes, which its owner keeps mapped, and `AtomicU8` allows changes under a shared
    // reference.
    unsafe { std::slice::from_raw_parts(region.at(0).cast(), len) }
}

fn write(region: &DmaRegion, len: usize, offset: usize, value: u64, width: usize) {
    let places = bytes(region, len).iter().cycle().skip(offset % len);
    places.zip(value.to_le_bytes()).take(width).for_each(|(place, byte)| place.store(byte, Ordering::Relaxed));
}

/// A queue and what the case knows of it.
struct QueueSession<'a, Q> {
    harness: &'a Harness,
    packed: bool,
    setup: VringConfig,
    memory: Arc<GuestMemory>,
    queue: Q,
    access: DeviceAccess,
    taken: ChainBatch,
    held: VecDeque<(Chain, Vec<Piece>)>,
    broken: bool,
    /// Number of chains of a split ring, or of slots of a packed one, that were made available.
    offered: u16,
}

impl<Q: CreateVirtqueue> QueueSession<'_, Q> {
    fn poke(&self, offset: usize, value: u64, width: usize) {
        write(&self.harness.region, MEMORY, offset, value, width);
    }

    /// Writes a descriptor, mostly a valid one: the next one to be made available in a packed ring, or any.
    fn descriptor(&mut self, bytes: &mut CaseInput) {
        let (kind, index) = (bytes.number(1), bytes.number(1));
        let address = if kind & 1 == 0 { GUEST + bytes.number(2) % (MEMORY as u64 + 64) } else { bytes.number(8) };
        let len = if kind & 2 == 0 { bytes.number(1) } else { bytes.number(4) };
        let (mut flags, number) = (bytes.number(1) & 7, bytes.number(1) % 20);
        if kind & 4 == 0 {
            // The direction that the queue expects.
            flags = flags & 5 | u64::from(self.access == DeviceAccess::Write) << 1;
        }
        let address = if flags & 4 != 0 && kind & 8 == 0 { GUEST + TABLES as u64 + address % 256 } else { address };
        let len = if flags & 4 != 0 && kind & 16 == 0 { len / 16 * 16 } else { len };
        let (mut offset, size) = (16 * (index % 24) as usize, self.setup.size);
        if kind & 32 != 0 {
            offset += TABLES;
        } else if self.packed && kind & 64 == 0 {
            offset = 16 * usize::from(self.offered % size);
            flags |= if (self.offered / size).is_multiple_of(2) { 0x80 } else { 0x8000 };
            self.offered = (self.offered + 1) % (2 * size);
        }
        let word = if self.packed { len | number << 32 | flags << 48 } else { len | flags << 32 | number << 48 };
        self.poke(offset, address, 8);
        self.poke(offset + 8, word, 8);
    }

    fn offer(&mut self, head: u64) {
        self.poke(DRIVER + 4 + 2 * usize::from(self.offered % self.setup.size), head, 2);
        self.offered = self.offered.wrapping_add(1);
        self.poke(DRIVER + 2, self.offered.into(), 2);
    }

    fn take(&mut self, most: usize, back: usize) {
        self.taken.begin(ChainBatch::BUDGET);
        let Ok(count) = self.queue.take(self.access, most, &mut self.taken) else {
            self.broken = true;
            return;
        };
        assert!(count <= most && count == self.taken.chains.len() && !self.broken);
        self.queue.put_back(&mut self.taken, back.min(count));
        for chain in &self.taken.chains {
            assert!(self.held.iter().all(|(other, _)| other.id != chain.id), "a buffer that is out already");
            let more = &self.taken.pieces[chain.more.0 as usize..][..chain.more.1 as usize];
            let pieces: Vec<Piece> = std::iter::once(chain.first).chain(more.iter().copied()).collect();
            for piece in pieces.iter().filter(|piece| piece.len > 0) {
                let offset = (piece.start.as_ptr() as usize).wrapping_sub(self.harness.memory.as_ptr() as usize);
                assert!(offset < MEMORY && piece.len as usize <= MEMORY - offset, "a piece outside the memory");
            }
            assert!(self.held.len() < self.setup.size.into(), "more chains than the ring has");
            self.held.push_back((*chain, pieces));
        }
    }

    fn give(&mut self, which: usize, byte: u8) {
        if self.held.is_empty() {
            return;
        }
        let at = if self.setup.features & IN_ORDER != 0 { 0 } else { which % self.held.len() };
        let (chain, pieces) = self.held.remove(at).expect("one of them");
        let mut written = 0;
        for piece in pieces.iter().filter(|piece| self.access == DeviceAccess::Write && piece.len > 0) {
            // SAFETY: `take` found the piece in the guest's memory, which the harness keeps mapped, and the piece
            // is not empty. `AtomicU8` allows concurrent changes.
            let last = unsafe { piece.start.add(piece.len as usize - 1).cast::<AtomicU8>().as_ref() };
            last.store(byte, Ordering::Relaxed);
            written += piece.len;
        }
        self.queue.push_used(std::iter::once(chain.used(written)));
    }

    /// Simulates a back-end that ends and is replaced by another one.
    fn restart(&mut self, base: u64) {
        self.held.clear();
        self.setup.base = if base & 1 == 0 { self.queue.base() } else { base as u32 };
        if let Ok(queue) = Q::new(&self.setup, &self.memory) {
            (self.queue, self.broken) = (queue, false);
        }
    }

    fn run_action(&mut self, bytes: &mut CaseInput) {
        match bytes.number(1) % 16 {
            0..=3 => self.descriptor(bytes),
            4..=5 => self.offer(bytes.number(1) % 20),
            6..=7 => self.take(bytes.number(1) as usize, 0),
            8 => self.take(bytes.number(1) as usize, bytes.number(1) as usize),
            9 => {
                let (which, byte) = (bytes.number(1), bytes.number(1));
                self.give(which as usize, byte as u8);
            }
            10 => {
                while !self.held.is_empty() {
                    self.give(1, 0x81);
                }
            }
            11 => _ = self.queue.publish(),
            12 => {
                if bytes.number(1) & 1 == 0 {
                    self.queue.arm();
                } else {
                    self.queue.disarm();
                }
            }
            13 => {
                let (offset, value) = (bytes.number(2) as usize, bytes.number(8));
                self.poke(offset & 0x3fff, value, [2, 4, 8, 1][offset >> 14]);
            }
            14 => {
                let (offset, value) = (bytes.number(2) as usize, bytes.number(8));
                write(&self.harness.noted, NOTES, offset & 0x3ff, value, [2, 4, 8, 1][offset >> 14]);
                self.restart(value);
            }
            _ => {
                let memory = self.harness.guest(bytes.number(2));
                if self.queue.set_memory(&memory).is_ok() {
                    self.memory = memory;
                }
            }
        }
    }
}

/// Runs one case with a split ring.
pub fn split(data: &[u8]) {
    case::<Split>(data, false, |number| 1 << (number % 5));
}

/// Runs one case with a packed ring.
pub fn packed(data: &[u8]) {
    case::<Packed>(data, true, |number| number + 1);
}

/// Runs a case. `size` turns a number into a valid queue size.
fn case<Q: CreateVirtqueue>(data: &[u8], packed: bool, size: fn(u16) -> u16) {
    HARNESS.with(|harness| {
        let mut bytes = CaseInput::new(data);
        let (number, flags) = (bytes.number(1) as u16, bytes.number(1));
        let feature = |bit: u64, feature: u64| if flags & bit != 0 { feature } else { 0 };
        let inflight = Inflight { memory: harness.notes.clone(), offset: 0, len: NOTES };
        let setup = VringConfig {
            size: size(number % LARGEST),
            features: feature(1, INDIRECT_DESC) | feature(2, EVENT_IDX) | feature(4, IN_ORDER),
            descriptors: USER,
            driver: USER + DRIVER as u64,
            device: USER + DEVICE as u64,
            base: if packed { 0x8000_8000 } else { 0 },
            inflight: (flags & 8 != 0).then_some(inflight),
            avx2: Avx2::detect().filter(|_| flags & 32 == 0),
        };
        self::bytes(&harness.region, MEMORY).iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        self::bytes(&harness.noted, NOTES).iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        let memory = harness.guest(0);
        let mut run = QueueSession {
            harness,
            packed,
            queue: Q::new(&setup, &memory).expect("a queue that may be"),
            setup,
            memory,
            access: if flags & 16 != 0 { DeviceAccess::Write } else { DeviceAccess::Read },
            taken: ChainBatch::default(),
            held: VecDeque::new(),
            broken: false,
            offered: 0,
        };
        bytes.each_action(ACTIONS, |bytes| run.run_action(bytes));
        run.take(usize::MAX, 0);
        while !run.held.is_empty() {
            run.give(0, 1);
        }
        run.queue.publish();
    });
}
