//! A simulated guest: this project's driver side of virtqueues over memory of this process, which is mapped a
//! second time for the port. There is no socket: the test drives the device as a session would.

#![allow(dead_code)] // Each test file uses only a part.

pub mod mapped;
mod rig;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use rig::*;
use ringpass_ipc::EventNotifier;
use ringpass_memory::{Avx2, DmaRegion, ForeignMemory, Mempool, MempoolConfig, Packet, RegionConfig};
use ringpass_vhost_user::{Device, QueueStart, VringBase};
use ringpass_virtio::device::{GuestMemory, GuestRegion, Inflight, VringConfig};
use ringpass_virtio::driver::{Addresses, Config, DeviceAccess, Packed, Split, Virtqueue};
use ringpass_virtio::features::*;
use rustix::event::{EventfdFlags, eventfd};

/// Difference between the front-end's addresses and the guest's.
const USER: u64 = 1 << 40;
/// Number of buffers in the port's pool.
pub const BUFFERS: usize = 2048;

/// Combinations of ring kind and features that every test runs with.
pub const FEATURES: [u64; 8] = [
    0,
    VERSION_1,
    VERSION_1 | MRG_RXBUF,
    VERSION_1 | MRG_RXBUF | EVENT_IDX | INDIRECT_DESC,
    VERSION_1 | INDIRECT_DESC | IN_ORDER,
    VERSION_1 | RING_PACKED,
    VERSION_1 | RING_PACKED | MRG_RXBUF | EVENT_IDX,
    VERSION_1 | RING_PACKED | MRG_RXBUF | INDIRECT_DESC | IN_ORDER,
];

enum Driver {
    Split(Split),
    Packed(Packed),
}

macro_rules! each {
    ($driver:expr, $queue:ident => $body:expr) => {
        match $driver {
            Driver::Split($queue) => $body,
            Driver::Packed($queue) => $body,
        }
    };
}

struct Queue {
    driver: Driver,
    at: Addresses,
    kick: OwnedFd,
    call: OwnedFd,
    inflight: Option<Inflight>,
}

pub struct Guest {
    pub features: u64,
    size: u16,
    rings: Arc<DmaRegion>,
    pub pool: Mempool,
    pub memory: Arc<GuestMemory>,
    queues: Vec<Queue>,
}

impl Guest {
    /// Creates a guest with `pairs` queue pairs and rings of `size` descriptors.
    pub fn new(features: u64, pairs: usize, size: u16) -> Self {
        Self::with_buffers(features, pairs, size, 4 * pairs * usize::from(size) + 256)
    }

    /// Creates a guest with `buffers` buffers.
    pub fn with_buffers(features: u64, pairs: usize, size: u16, buffers: usize) -> Self {
        let config = Self::config(features, size);
        let packed = features & RING_PACKED != 0;
        let bytes = if packed { Packed::bytes(&config) } else { Split::bytes(&config) }.next_multiple_of(4096);
        let rings = DmaRegion::new(2 * pairs * bytes, &RegionConfig::default()).unwrap();
        let pool = Mempool::new(&MempoolConfig { buffers, ..Default::default() }).unwrap();
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let queues = (0..2 * pairs).map(|queue| {
            let (driver, at) = Self::driver(&rings, queue * bytes, features, &config);
            Queue { driver, at, kick: event(), call: event(), inflight: None }
        });
        let queues = queues.collect();
        let memory = Self::map(&rings, &pool, 0);
        Self { features, size, rings, pool, memory, queues }
    }

    fn config(features: u64, size: u16) -> Config {
        let has = |feature| features & feature != 0;
        let indirect = if has(INDIRECT_DESC) { 16 } else { 0 };
        Config { size, event_idx: has(EVENT_IDX), in_order: has(IN_ORDER), indirect, header: 0 }
    }

    fn driver(rings: &Arc<DmaRegion>, offset: usize, features: u64, config: &Config) -> (Driver, Addresses) {
        let mut driver = if features & RING_PACKED != 0 {
            Driver::Packed(Packed::new(rings, offset, config).unwrap())
        } else {
            Driver::Split(Split::new(rings, offset, config).unwrap())
        };
        let at = each!(&mut driver, queue => queue.addresses());
        (driver, at)
    }

    /// Starts over with the same kind of ring and no indirect tables that it did not have before. The port
    /// must have stopped the queues.
    pub fn renew(&mut self, features: u64) {
        self.forget();
        self.features = features;
        let (config, bytes) = (Self::config(features, self.size), self.rings.len() / self.queues.len());
        // SAFETY: the range is the whole region. The port has stopped the queues (required above) and `forget`
        // has emptied the drivers, so nothing else accesses the rings.
        unsafe { self.rings.at(0).write_bytes(0, self.rings.len()) };
        for (number, queue) in self.queues.iter_mut().enumerate() {
            (queue.driver, queue.at) = Self::driver(&self.rings, number * bytes, features, &config);
        }
    }

    fn map(rings: &Arc<DmaRegion>, pool: &Mempool, cut: usize) -> Arc<GuestMemory> {
        let mut parts = Vec::new();
        for (region, cut) in [(rings, 0), (pool.region(), cut)] {
            let memory = ForeignMemory::map(region.file().unwrap(), 0, region.len()).unwrap();
            for (offset, end) in [(0, cut), (cut, region.len())].into_iter().filter(|(start, end)| start < end) {
                let guest = region.iova(0) + offset as u64;
                let (offset, len) = (offset as u64, (end - offset) as u64);
                parts.push(GuestRegion { guest, user: guest + USER, len, memory: memory.clone(), offset });
            }
        }
        GuestMemory::new(parts).unwrap()
    }

    /// Maps the same memory again, with two regions that meet in the middle of buffers.
    pub fn remap(&mut self, cut: usize) -> Arc<GuestMemory> {
        self.memory = Self::map(&self.rings, &self.pool, cut);
        self.memory.clone()
    }

    /// Records chains in flight, in a region that outlives the port.
    pub fn track(&mut self) {
        let packed = self.features & RING_PACKED != 0;
        let len = if packed { 32 + 32 * usize::from(self.size) } else { 16 + 16 * usize::from(self.size) };
        for queue in &mut self.queues {
            let region = DmaRegion::new(len, &RegionConfig::default()).unwrap();
            let memory = ForeignMemory::map(region.file().unwrap(), 0, region.len()).unwrap();
            queue.inflight = Some(Inflight { memory, offset: 0, len });
        }
    }

    pub fn setup(&self, queue: usize, base: VringBase) -> VringConfig {
        let Addresses { descriptors, driver, device } = self.queues[queue].at;
        VringConfig {
            size: self.size,
            features: self.features,
            descriptors: descriptors + USER,
            driver: driver + USER,
            device: device + USER,
            base,
            inflight: self.queues[queue].inflight.clone(),
            avx2: Avx2::detect(),
        }
    }

    /// Returns the initial position of rings.
    pub fn first_base(&self) -> VringBase {
        if self.features & RING_PACKED != 0 { 0x8000_8000 } else { 0 }
    }

    pub fn start(&self, device: &mut dyn Device, queue: usize, base: VringBase) {
        let ends = &self.queues[queue];
        let start = QueueStart {
            setup: self.setup(queue, base),
            memory: self.memory.clone(),
            kick: Some(ends.kick.try_clone().unwrap()),
            call: Some(EventNotifier::new(ends.call.try_clone().unwrap()).unwrap()),
        };
        device.start(queue, start).unwrap();
    }

    /// Starts and enables all queues.
    pub fn attach(&self, device: &mut dyn Device) {
        for queue in 0..self.queues.len() {
            self.start(device, queue, self.first_base());
            device.enable(queue, true);
        }
        for queue in &self.queues {
            take_count(&queue.call);
        }
    }

    /// Stops all queues and returns their positions.
    pub fn detach(&self, device: &mut dyn Device) -> Vec<VringBase> {
        (0..self.queues.len()).map(|queue| device.stop(queue).unwrap()).collect()
    }

    pub fn header(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Sends a frame behind a header, cut into pieces of lengths `cuts` and a rest. Returns `false` if the
    /// ring is full.
    pub fn send(&mut self, pair: usize, header: [u8; 12], frame: &[u8], cuts: &[usize]) -> bool {
        let bytes = [&header[..self.header()], frame].concat();
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for &cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        pieces.extend(rest.chunks(2048));
        let packet = pieces.into_iter().filter(|piece| !piece.is_empty()).map(|piece| {
            let mut packet = self.pool.alloc().expect("a buffer of the guest's");
            assert!(packet.copy_from(piece));
            packet
        });
        let packet = packet.reduce(|mut head, next| {
            head.append(next);
            head
        });
        self.post(2 * pair + 1, DeviceAccess::Read, packet.expect("bytes"))
    }

    /// Sends a frame without a kick.
    pub fn send_quietly(&mut self, pair: usize, frame: &[u8]) -> bool {
        let mut packet = self.pool.alloc().expect("a buffer of the guest's");
        assert!(packet.copy_from(&[&[0; 12][..self.header()], frame].concat()));
        each!(&mut self.queues[2 * pair + 1].driver, queue => {
            let posted = queue.post_chain(DeviceAccess::Read, packet).is_ok();
            let _ = queue.publish();
            posted
        })
    }

    /// Sends bytes without a header.
    pub fn send_raw(&mut self, pair: usize, bytes: &[u8]) -> bool {
        let mut packet = self.pool.alloc().expect("a buffer of the guest's");
        assert!(packet.copy_from(bytes));
        self.post(2 * pair + 1, DeviceAccess::Read, packet)
    }

    /// Makes a writable chain of pieces with lengths `lens` available. Returns `false` if the ring is full.
    pub fn offer(&mut self, pair: usize, lens: &[usize]) -> bool {
        let packet = lens.iter().map(|&len| {
            let mut packet = self.pool.alloc().expect("a buffer of the guest's");
            packet.set_len(len);
            packet
        });
        let packet = packet.reduce(|mut head, next| {
            head.append(next);
            head
        });
        self.post(2 * pair, DeviceAccess::Write, packet.expect("lengths"))
    }

    /// Makes buffers available until the ring is full.
    pub fn offer_all(&mut self, pair: usize) {
        while self.offer(pair, &[2048]) {}
    }

    /// Posts a packet, publishes it, and kicks if the port asked for it.
    fn post(&mut self, queue: usize, access: DeviceAccess, packet: Packet) -> bool {
        let Queue { driver, kick, .. } = &mut self.queues[queue];
        each!(driver, queue => {
            let posted = queue.post_chain(access, packet).is_ok();
            if posted && queue.publish().is_some() {
                rustix::io::write(kick, &1u64.to_ne_bytes()).unwrap();
            }
            posted
        })
    }

    /// Returns what came back from a queue: the bytes of each chain and the length that the port reports as
    /// written.
    fn used(&mut self, queue: usize) -> Vec<(Vec<u8>, usize)> {
        let mut used = Vec::new();
        each!(&mut self.queues[queue].driver, driver => {
            let each = |packet: ringpass_virtio::driver::Used<'_>, written: u32| {
                let packet = packet.whole();
                used.push((packet.segments().flat_map(|segment| segment.to_vec()).collect(), written as usize));
            };
            driver.take(usize::MAX, each).expect("a port that keeps the rules");
        });
        used
    }

    /// Returns how many frames the port has taken since the last call.
    pub fn sent(&mut self, pair: usize) -> usize {
        self.used(2 * pair + 1).len()
    }

    /// Returns header and frame of each packet that the port has sent.
    pub fn received(&mut self, pair: usize) -> Vec<([u8; 12], Vec<u8>)> {
        let used = self.used(2 * pair);
        self.merged(used.into_iter())
    }

    fn merged(&self, used: impl Iterator<Item = (Vec<u8>, usize)>) -> Vec<([u8; 12], Vec<u8>)> {
        let header = self.header();
        let mut chains = used.map(|(bytes, written)| {
            assert!(written <= bytes.len(), "{written} bytes written to {}", bytes.len());
            bytes[..written].to_vec()
        });
        let mut frames = Vec::new();
        while let Some(mut bytes) = chains.next() {
            let mut head = [0; 12];
            head[..header].copy_from_slice(&bytes[..header]);
            let count = if header == 12 { u16::from_le_bytes([head[10], head[11]]) } else { 1 };
            for _ in 1..count {
                bytes.extend(chains.next().expect("all chains of a frame at once"));
            }
            frames.push((head, bytes[header..].to_vec()));
        }
        frames
    }

    /// Returns how many buffers came back without a frame.
    pub fn received_empty(&mut self, pair: usize) -> usize {
        self.used(2 * pair).into_iter().filter(|(_, written)| *written == 0).count()
    }

    /// Returns the frames received, without buffers that came back empty.
    pub fn received_full(&mut self, pair: usize) -> Vec<Vec<u8>> {
        let used = self.used(2 * pair);
        let frames = self.merged(used.into_iter().filter(|(_, written)| *written > 0));
        frames.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Enables interrupts of a queue.
    pub fn arm(&mut self, queue: usize) {
        each!(&mut self.queues[queue].driver, driver => driver.arm());
    }

    /// Returns the number of interrupts since the last call.
    pub fn calls(&self, queue: usize) -> u64 {
        take_count(&self.queues[queue].call)
    }

    /// Returns the number of kicks since the last call.
    pub fn kicks(&self, queue: usize) -> u64 {
        take_count(&self.queues[queue].kick)
    }

    /// Drops what the port held; the port is gone.
    pub fn reset(mut self) {
        self.forget();
    }

    fn forget(&mut self) {
        // SAFETY: tests call this only after the port has stopped the queues, so the device uses none of the
        // buffers.
        self.queues.iter_mut().for_each(|queue| each!(&mut queue.driver, driver => unsafe { driver.reclaim() }));
    }

    /// Returns the number of chains that the port holds or may take.
    pub fn posted(&self, queue: usize) -> usize {
        each!(&self.queues[queue].driver, driver => driver.posted())
    }

    /// Returns the offset in [`rings`](Self::rings) at which a queue's own parts end. Its indirect tables and
    /// the next queue follow.
    pub fn queue_end(&self, queue: usize) -> usize {
        let len = if self.features & RING_PACKED != 0 { 4 } else { 6 + 8 * usize::from(self.size) };
        (self.queues[queue].at.device - self.rings.iova(0)) as usize + len
    }

    /// Returns the region of the rings.
    pub fn rings(&self) -> &Arc<DmaRegion> {
        &self.rings
    }

    /// Writes a 16-bit field of a ring as a hostile guest does, at an offset in one of the queue's areas.
    pub fn poke(&self, queue: usize, area: Area, offset: usize, value: u16) {
        self.word(queue, area, offset).store(value, std::sync::atomic::Ordering::SeqCst);
    }

    /// Reads a 16-bit field of a ring.
    pub fn peek(&self, queue: usize, area: Area, offset: usize) -> u16 {
        self.word(queue, area, offset).load(std::sync::atomic::Ordering::SeqCst)
    }

    fn word(&self, queue: usize, area: Area, offset: usize) -> &std::sync::atomic::AtomicU16 {
        let at = self.queues[queue].at;
        let base = match area {
            Area::Descriptors => at.descriptors,
            Area::Driver => at.driver,
        };
        let place = self.rings.at((base - self.rings.iova(0)) as usize + offset).cast::<u16>();
        // SAFETY: `at` checks that the pointer is inside the region, which `self` keeps; it is aligned, as areas
        // are aligned and tests use even offsets. Both sides access this memory only as atomics.
        unsafe { std::sync::atomic::AtomicU16::from_ptr(place) }
    }
}

pub enum Area {
    Descriptors,
    Driver,
}

fn take_count(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}
