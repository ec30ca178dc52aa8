//! Device and driver on one ring, both following the rules: every packet arrives once, as it was sent, and a
//! sleeping side is woken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use ringpass_memory::{Avx2, DmaRegion, Mempool, MempoolConfig, Packet, RegionConfig};
use ringpass_virtio::device::{self, Chain, ChainBatch, DeviceAccess, GuestMemory, Piece, VringConfig};
use ringpass_virtio::driver::{self, Config};

use crate::device::guest;

#[derive(Clone, Debug)]
enum Op {
    /// The driver posts packets of these lengths: each of one buffer.
    Run(Vec<usize>),
    /// The driver posts one packet of several segments, of these lengths.
    Chain(Vec<usize>),
    Show,
    /// The driver takes up to this many used packets.
    Reap(usize),
    DriverArms,
    DriverDisarms,
    /// The device takes up to this many chains, and puts back up to this many of them.
    Take(usize, usize),
    /// The device gives back chains, chosen among those that it has.
    Give(Vec<usize>),
    Publish,
    Arms,
    Disarms,
    /// The guest's memory is replaced by one that is divided at another place.
    Remap(usize),
    /// The device's process ends and another begins. It finds the chains in the inflight region, or because
    /// they are in order.
    Crash,
}

const BUFFER: usize = 256;

/// A packet: address of its first byte, and contents.
type Note = (u64, Vec<u8>);

/// The state of a queue as the test expects it.
struct Bench<Q, D> {
    packed: bool,
    config: Config,
    access: DeviceAccess,
    driver: Q,
    device: D,
    setup: VringConfig,
    rings: Arc<DmaRegion>,
    pool: Mempool,
    /// All memory that the device ever had, as it may still hold chains in it.
    memory: Vec<Arc<GuestMemory>>,
    taken: ChainBatch,
    /// Packets posted and not taken, in order. The last `unshown` of them were not published.
    posted: VecDeque<Note>,
    unshown: usize,
    /// Packets taken by a process that has ended, in order of their numbers.
    lost: VecDeque<(u64, Note)>,
    /// Chains that the device has.
    held: VecDeque<(Chain, Vec<Piece>, (u64, Note))>,
    number: u64,
    /// Packets given back and not published, with the number of bytes written.
    given: Vec<((u64, Note), u32)>,
    /// Packets published and not reaped, by address, with the number of bytes written.
    used: HashMap<u64, (Vec<u8>, u32)>,
    /// Whether the driver must be woken by the next used packet.
    driver_sleeps: bool,
    /// Whether the device must be woken by the next published packet.
    device_sleeps: bool,
    stamp: u8,
}

impl<Q: driver::Virtqueue, D: device::CreateVirtqueue> Bench<Q, D> {
    fn new(packed: bool, config: &Config, access: DeviceAccess, noted: bool, avx2: Option<Avx2>) -> Self {
        let rings = DmaRegion::new(Q::bytes(config), &RegionConfig::default()).unwrap();
        let buffers = 2 * usize::from(config.size) + 64;
        let pool = Mempool::new(&MempoolConfig { buffers, size: BUFFER, ..Default::default() }).unwrap();
        let driver = Q::new(&rings, 0, config).unwrap();
        let memory = guest::memory(&[(&rings, None), (pool.region(), None)]);
        let inflight = noted.then(|| guest::inflight(packed, config.size));
        let setup = VringConfig { inflight, avx2, ..guest::setup(packed, config, driver.addresses()) };
        let device = D::new(&setup, &memory).unwrap();
        Self {
            packed,
            config: *config,
            access,
            driver,
            device,
            setup,
            rings,
            pool,
            memory: vec![memory],
            taken: ChainBatch::default(),
            posted: VecDeque::new(),
            unshown: 0,
            lost: VecDeque::new(),
            number: 0,
            held: VecDeque::new(),
            given: Vec::new(),
            used: HashMap::new(),
            driver_sleeps: false,
            device_sleeps: false,
            stamp: 0,
        }
    }

    fn packet(&mut self, len: usize) -> Packet {
        let mut packet = self.pool.alloc().expect("more buffers than descriptors");
        packet.set_len(len);
        self.stamp = self.stamp.wrapping_add(1);
        packet.write(0, &vec![self.stamp; packet.len()]);
        packet
    }

    fn note(packet: &Packet) -> Note {
        (packet.iova(), packet.segments().flat_map(|segment| segment.to_vec()).collect())
    }

    fn act(&mut self, op: Op) {
        let access = match self.access {
            DeviceAccess::Read => driver::DeviceAccess::Read,
            DeviceAccess::Write => driver::DeviceAccess::Write,
        };
        match op {
            Op::Run(lens) => {
                let packets: Vec<Packet> = lens.iter().map(|&len| self.packet(len)).collect();
                let notes: Vec<_> = packets.iter().map(Self::note).collect();
                let count = self.driver.post_run(access, packets.into_iter());
                self.posted.extend(notes.into_iter().take(count));
                self.unshown += count;
            }
            Op::Chain(lens) => {
                let mut packet = self.packet(lens[0]);
                for &len in &lens[1..] {
                    let more = self.packet(len);
                    packet.append(more);
                }
                let note = Self::note(&packet);
                if self.driver.post_chain(access, packet).is_ok() {
                    self.posted.push_back(note);
                    self.unshown += 1;
                }
            }
            Op::Show => {
                let notify = self.driver.publish().is_some();
                if std::mem::take(&mut self.unshown) > 0 && self.device_sleeps {
                    assert!(notify, "the device sleeps");
                    self.device_sleeps = false;
                }
            }
            Op::Reap(most) => self.reap(most),
            Op::DriverArms => {
                self.driver.arm();
                self.reap(usize::MAX);
                // Packets used before arming would have been seen here.
                self.driver.arm();
                self.driver_sleeps = true;
            }
            Op::DriverDisarms => {
                self.driver.disarm();
                self.driver_sleeps = false;
            }
            Op::Take(most, back) => self.take(most, back),
            Op::Give(which) => self.give(&which),
            Op::Publish => self.publish(),
            Op::Arms => {
                let ready = self.device.arm();
                assert_eq!(ready, self.available() > 0);
                self.device_sleeps = !ready;
            }
            Op::Disarms => {
                self.device.disarm();
                self.device_sleeps = false;
            }
            Op::Remap(cut) => {
                let memory = guest::memory(&[(&self.rings, None), (self.pool.region(), Some(cut))]);
                self.device.set_memory(&memory).unwrap();
                self.memory.push(memory);
            }
            Op::Crash => {
                if self.setup.inflight.is_some() || !self.packed && self.config.in_order {
                    let held = self.held.drain(..).map(|(.., note)| note);
                    self.lost.extend(held.chain(self.given.drain(..).map(|(note, _)| note)));
                    self.lost.make_contiguous().sort_by_key(|(number, _)| *number);
                    self.device = D::new(&self.setup, self.memory.last().unwrap()).unwrap();
                    self.device_sleeps = false;
                }
            }
        }
    }

    /// Returns the number of chains that the device can see and has not taken. Packed rings make each visible
    /// at once.
    fn available(&self) -> usize {
        self.lost.len() + self.posted.len() - if self.packed { 0 } else { self.unshown }
    }

    fn take(&mut self, most: usize, back: usize) {
        self.taken.begin(ChainBatch::BUDGET);
        let available = self.available();
        let count = self.device.take(self.access, most, &mut self.taken).expect("an honest driver");
        assert_eq!((count, self.taken.chains.len()), (most.min(available), count));
        // A device that finds a chain is awake.
        self.device_sleeps &= count == 0;
        let back = back.min(count);
        self.device.put_back(&mut self.taken, back);
        assert_eq!(self.taken.chains.len(), count - back);
        for chain in &self.taken.chains {
            let pieces = guest::pieces(chain, &self.taken);
            let mut fresh = || (self.number, self.posted.pop_front().expect("no more than were posted"));
            let note = self.lost.pop_front().unwrap_or_else(&mut fresh);
            self.number += 1;
            assert_eq!(guest::read(&pieces), note.1.1, "what the device finds");
            self.held.push_back((*chain, pieces, note));
        }
        self.unshown = self.unshown.min(self.posted.len());
    }

    fn give(&mut self, which: &[usize]) {
        let mut chains = Vec::new();
        for &which in which {
            if self.held.is_empty() {
                break;
            }
            let at = if self.config.in_order { 0 } else { which % self.held.len() };
            let (chain, pieces, (number, (key, mut content))) = self.held.remove(at).expect("one of them");
            let written = if self.access == DeviceAccess::Write { which * 7 % (content.len() + 1) } else { 0 };
            guest::fill(&pieces, written, which as u8);
            content[..written].fill(which as u8);
            chains.push((chain, written as u32));
            self.given.push(((number, (key, content)), written as u32));
        }
        self.device.push_used(chains.iter().map(|(chain, written)| chain.used(*written)));
    }

    fn publish(&mut self) {
        let interrupt = self.device.publish();
        if self.given.is_empty() {
            assert!(!interrupt, "nothing was given back");
        } else if self.driver_sleeps {
            assert!(interrupt, "the driver sleeps");
            self.driver_sleeps = false;
        }
        self.used.extend(self.given.drain(..).map(|((_, (key, content)), written)| (key, (content, written))));
    }

    fn reap(&mut self, most: usize) {
        let mut came = Vec::new();
        let count = self.driver.take(most, |used, len| came.push((used.whole(), len))).expect("an honest device");
        assert_eq!((came.len(), count), (count, most.min(self.used.len())));
        for (packet, len) in came {
            let (content, written) = self.used.remove(&packet.iova()).expect("a packet that was given back, once");
            assert_eq!(Self::note(&packet).1, content);
            // For packets that the device reads, the length means nothing in a batch.
            assert!(len == written || self.access == DeviceAccess::Read);
        }
    }

    fn run(mut self, ops: impl Iterator<Item = Op>) {
        for op in ops {
            self.act(op);
        }
        // Everything that is left is passed through.
        self.act(Op::Show);
        self.take(usize::MAX, 0);
        while !self.held.is_empty() {
            self.give(&[3; 64]);
        }
        self.publish();
        self.reap(usize::MAX);
        assert_eq!((self.driver.posted(), self.posted.len()), (0, 0));
        let setup = VringConfig { base: self.device.base(), ..self.setup.clone() };
        (self.device, self.device_sleeps) = (D::new(&setup, &self.memory[0]).expect("where it stands"), false);
        self.act(Op::Run(vec![60, 61]));
        self.act(Op::Show);
        self.take(usize::MAX, 0);
        assert_eq!(self.held.len(), self.driver.posted(), "a queue goes on where another stopped");
        // SAFETY: the device belongs to this test, which does not use it any more.
        unsafe { self.driver.reclaim() };
    }
}

/// Runs the operations; `vector` says whether the device takes chains four at a time.
fn run(packed: bool, config: &Config, access: DeviceAccess, [noted, vector]: [bool; 2], ops: impl Iterator<Item = Op>) {
    let avx2 = vector.then(Avx2::detect).flatten();
    if packed {
        Bench::<driver::Packed, device::Packed>::new(packed, config, access, noted, avx2).run(ops);
    } else {
        Bench::<driver::Split, device::Split>::new(packed, config, access, noted, avx2).run(ops);
    }
}

fn lens(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..BUFFER, count)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => lens(1..12).prop_map(Op::Run),
        2 => lens(1..6).prop_map(Op::Chain),
        4 => Just(Op::Show),
        3 => prop_oneof![1..9usize, Just(usize::MAX)].prop_map(Op::Reap),
        1 => Just(Op::DriverArms),
        1 => Just(Op::DriverDisarms),
        4 => (0..20usize, prop_oneof![3 => Just(0), 1 => 0..20usize]).prop_map(|(most, back)| Op::Take(most, back)),
        4 => prop::collection::vec(0..1000usize, 1..12).prop_map(Op::Give),
        4 => Just(Op::Publish),
        1 => Just(Op::Arms),
        1 => Just(Op::Disarms),
        1 => (0..40_000usize).prop_map(Op::Remap),
        1 => Just(Op::Crash),
    ]
}

fn config() -> impl Strategy<Value = (bool, Config)> {
    let size = prop_oneof![
        prop_oneof![Just(1), Just(2), Just(4), Just(16), Just(64)].prop_map(|size| (false, size)),
        (1..40u16).prop_map(|size| (true, size)),
    ];
    let header = prop_oneof![3 => Just(0), 1 => Just(12)];
    (size, any::<bool>(), any::<bool>(), prop_oneof![Just(0), 1..8u16], header).prop_map(
        |((packed, size), event_idx, in_order, indirect, header)| {
            // Tables are at most as long as the ring; IN_ORDER requires tables.
            let indirect = indirect.min(size);
            let in_order = in_order && indirect > 0 && (header == 0 || indirect > 1);
            (packed, Config { size, event_idx, in_order, indirect, header })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_arrives_once(
        (packed, config) in config(),
        write in any::<bool>(),
        switches in any::<[bool; 2]>(),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        run(packed, &config, if write { DeviceAccess::Write } else { DeviceAccess::Read }, switches, ops.into_iter());
    }
}

/// Heavy traffic, so that indices wrap.
#[test]
fn indices_wrap() {
    for (packed, size) in [(false, 16), (true, 16), (true, 13)] {
        for (event_idx, in_order) in [(false, false), (true, false), (false, true), (true, true)] {
            for (access, noted) in
                [(DeviceAccess::Read, false), (DeviceAccess::Write, false), (DeviceAccess::Write, true)]
            {
                let config = Config { size, event_idx, in_order, indirect: if in_order { 4 } else { 0 }, header: 0 };
                let ops = (0..12_000usize).flat_map(|round| {
                    let post = match round % 9 {
                        8 => Op::Chain(vec![round % 200 + 1, 30, 31]),
                        _ => Op::Run(vec![round % 200 + 1; round % 11 + 1]),
                    };
                    let arms = if round % 3 == 0 { Op::DriverArms } else { Op::DriverDisarms };
                    let sleeps = if round % 5 == 0 { Op::Arms } else { Op::Disarms };
                    let which = (0..12).map(|i| round * i % 37).collect();
                    [
                        post,
                        sleeps,
                        Op::Show,
                        Op::Take(12, round % 4 / 3),
                        arms,
                        Op::Give(which),
                        Op::Publish,
                        Op::Reap(20),
                    ]
                });
                run(packed, &config, access, [noted, true], ops);
            }
        }
    }
}
