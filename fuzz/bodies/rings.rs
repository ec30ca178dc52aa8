//! Fuzz body: the driver side of a virtqueue with an arbitrary device.
//!
//! The input drives both the driver's operations and the device's writes, anywhere in the queue's memory. Whatever
//! happens, each posted packet comes back once or stays with the queue, unchanged except for the bytes that the
//! device writes, and no buffer is lost.

pub mod fours;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringpass_memory::{Avx2, DmaArray, DmaRegion, Mempool, MempoolConfig, Packet, Reclaimer, RegionConfig};
use ringpass_testing::CaseInput;
use ringpass_virtio::driver::{Config, DeviceAccess, Packed, Split, Virtqueue};

/// Size of the memory in bytes: more than the largest queue here needs.
const MEMORY: usize = 16 << 10;
const BUFFERS: usize = 96;
const BUFFER: usize = 128;
/// Largest number of actions in a case.
const ACTIONS: usize = 96;
/// Number of descriptors of the largest queue.
const LARGEST: u16 = 16;
const MOST_INDIRECT: u16 = 4;

/// Memory and buffers, created once because that takes longer than a case.
struct Harness {
    region: Arc<DmaRegion>,
    words: DmaArray<[AtomicU64; 2]>,
    pool: Mempool,
}

thread_local! {
    static HARNESS: Harness = Harness::new();
}

/// A queue, the packets posted to it, and what its device remembers.
struct QueueSession<'a, Q: Virtqueue> {
    harness: &'a Harness,
    config: Config,
    queue: Q,
    /// Whether, and proof that, packets are posted and taken four at a time.
    vector: Option<Avx2>,
    /// Packets that the queue holds: address of the first buffer, and lengths of the first buffer and of the whole
    /// packet.
    posted: Vec<(u64, usize, usize)>,
    /// Number of used entries or slots so far.
    used: u64,
    /// Whether packets are only returned to their pool without a check of their content. Of `posted` only the
    /// length is then valid.
    back: bool,
    broken: bool,
}

impl Harness {
    fn new() -> Self {
        let region = DmaRegion::new(MEMORY, &RegionConfig::default()).expect("some KiB");
        let words = DmaArray::new(&region, 0, MEMORY / 16).expect("all of it");
        let config = MempoolConfig { buffers: BUFFERS, size: BUFFER, ..Default::default() };
        Self { region, words, pool: Mempool::new(&config).expect("some KiB") }
    }

    /// Writes 2, 4 or 8 bytes, aligned.
    fn write(&self, offset: usize, width: usize, value: u64) {
        let offset = offset % MEMORY / width * width;
        let word = &self.words[offset / 16][offset / 8 % 2];
        let (shift, mask) = (offset % 8 * 8, u64::MAX >> (64 - 8 * width));
        let kept = word.load(Ordering::Relaxed) & !(mask << shift);
        word.store(kept | (value & mask) << shift, Ordering::Relaxed);
    }

    fn packet(&self, len: usize) -> Option<Packet> {
        let mut packet = self.pool.alloc()?;
        packet.set_len(len);
        Some(packet)
    }
}

impl<Q: Virtqueue> QueueSession<'_, Q> {
    fn access(number: u64) -> DeviceAccess {
        if number & 1 == 0 { DeviceAccess::Read } else { DeviceAccess::Write }
    }

    fn note(packet: &Packet) -> (u64, usize, usize) {
        (packet.iova(), packet.len(), packet.total_len())
    }

    fn post_run(&mut self, bytes: &mut CaseInput) {
        let number = bytes.number(1);
        let packets: Vec<Packet> =
            (0..number >> 1 & 15).map_while(|i| self.harness.packet(1 + i as usize * 7)).collect();
        let notes: Vec<_> = packets.iter().map(Self::note).collect();
        let count = fours::post(&mut self.queue, self.vector, Self::access(number), packets);
        self.posted.extend(&notes[..count]);
    }

    fn post_chain(&mut self, bytes: &mut CaseInput) {
        let number = bytes.number(1);
        let Some(mut packet) = self.harness.packet(1 + (number >> 5) as usize * 9) else { return };
        for _ in 0..number >> 1 & 7 {
            let Some(more) = self.harness.packet(11) else { break };
            packet.append(more);
        }
        let note = Self::note(&packet);
        if self.queue.post_chain(Self::access(number), packet).is_ok() {
            self.posted.push(note);
        }
    }

    fn post_request(&mut self, bytes: &mut CaseInput) {
        let Some(packet) = self.harness.packet(40) else { return };
        let note = Self::note(&packet);
        if self.queue.post_request(packet, bytes.number(1) as usize % 41).is_ok() {
            self.posted.push(note);
        }
    }

    fn take(&mut self, most: usize) {
        if self.back {
            let mut reclaimer = Reclaimer::default();
            let before = self.queue.posted();
            self.broken |= self.queue.reclaim_used(self.vector, &mut reclaimer).is_err();
            assert!(self.queue.posted() <= before);
            return self.posted.truncate(self.queue.posted());
        }
        let Self { queue, vector, posted, broken, .. } = self;
        let mut count = 0;
        let result = fours::take(queue, *vector, most, |packet, _| {
            let note = Self::note(&packet);
            let at =
                posted.iter().position(|posted| *posted == note).expect("a packet that was posted and not taken back");
            posted.swap_remove(at);
            count += 1;
        });
        match result {
            Ok(taken) => assert!(taken == count && count <= most && !*broken),
            Err(_) => *broken = true,
        }
    }

    /// Writes a used entry as an honest device does, except for the id.
    fn give(&mut self, ring: Range<usize>, bytes: &mut CaseInput) {
        let (id, len) = (bytes.number(1), bytes.number(2));
        // Mostly the id that is next in order.
        let size = u64::from(self.config.size);
        let id = if id < 192 { self.used % size } else { id - 192 };
        let split = ring.start != ring.end;
        if split {
            let entry = ring.start + 4 + 8 * (self.used % size) as usize;
            self.harness.write(entry, 4, id);
            self.harness.write(entry + 4, 4, len);
            self.used += 1;
            self.harness.write(ring.start + 2, 2, self.used);
        } else {
            let marks = if (self.used / size).is_multiple_of(2) { 0x8080 } else { 0 };
            let slot = 16 * (self.used % size) as usize;
            self.harness.write(slot + 8, 8, len | id << 32 | marks << 48);
            self.used += 1;
        }
    }

    fn run_action(&mut self, ring: Range<usize>, bytes: &mut CaseInput) {
        match bytes.number(1) % 16 {
            0..=2 => self.post_run(bytes),
            3 => self.post_chain(bytes),
            4 => self.post_request(bytes),
            5 => _ = self.queue.publish(),
            6..=7 => self.take(bytes.number(1) as usize),
            8 => self.queue.arm(),
            9 => self.queue.disarm(),
            10..=13 => self.give(ring, bytes),
            14 => {
                // Write where the device has something to write.
                let (offset, value) = (bytes.number(1) as usize, bytes.number(2));
                self.harness.write(ring.start + 2 * offset, 2, value);
            }
            _ => {
                let (offset, value) = (bytes.number(2) as usize, bytes.number(8));
                self.harness.write(offset, [2, 4, 8, 8][offset >> 14], value);
            }
        }
        assert_eq!(self.queue.posted(), self.posted.len());
        assert!(self.queue.room() <= self.config.size.into());
    }
}

/// Runs one case with a split ring.
pub fn split(data: &[u8]) {
    case::<Split>(data, |number| 1 << (number % 5));
}

/// Runs one case with a packed ring.
pub fn packed(data: &[u8]) {
    case::<Packed>(data, |number| number + 1);
}

/// Runs a case. `size` turns a number into a valid queue size.
fn case<Q: Virtqueue>(data: &[u8], size: fn(u16) -> u16) {
    HARNESS.with(|harness| {
        let mut bytes = CaseInput::new(data);
        let (number, flags) = (bytes.number(1) as u16, bytes.number(1));
        let indirect = if flags & 1 != 0 { 1 + (flags >> 4) as u16 % MOST_INDIRECT } else { 0 };
        let config = Config {
            size: size(number % LARGEST),
            event_idx: flags & 2 != 0,
            in_order: flags & 4 != 0 && indirect > 0,
            indirect,
            header: if flags & 8 != 0 { 10 } else { 0 },
        };
        let used = Q::bytes(&config);
        harness.words[..used.div_ceil(16)].iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        let queue = Q::new(&harness.region, 0, &config).expect("a queue that may be");
        let addresses = queue.addresses();
        // The used ring; packed queues have none.
        let device = (addresses.device - harness.region.iova(0)) as usize;
        let ring = if addresses.device.is_multiple_of(4096) { device..device + 4 } else { 0..0 };
        let back = flags & 0x40 != 0;
        let vector = Avx2::detect().filter(|_| number & 0x80 == 0);
        let mut run = QueueSession { harness, config, queue, vector, posted: Vec::new(), used: 0, back, broken: false };
        bytes.each_action(ACTIONS, |bytes| run.run_action(ring.clone(), bytes));
        run.queue.publish();
        run.take(usize::MAX);
        // SAFETY: the only device is this function, which writes to the queue no more.
        unsafe { run.queue.reclaim() };
        drop(run);
        assert_eq!(harness.pool.outstanding(1), 0, "buffers were lost");
    });
}
