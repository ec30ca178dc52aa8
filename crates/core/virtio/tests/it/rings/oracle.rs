//! Checks the results of operations in any order, with a device that follows the rules.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ringpass_memory::{Avx2, DmaRegion, Mempool, MempoolConfig, Packet, Reclaimer, RegionConfig};
use ringpass_virtio::driver::{Config, DeviceAccess, Packed, Split, Virtqueue};

use crate::fuzz::rings::fours;
use crate::rings::device::{Asked, Chain, Device, Held, Kind, Piece};

/// Size of a buffer in bytes.
const BUFFER: usize = 256;

#[derive(Clone, Debug)]
pub enum Op {
    /// The driver posts packets of one buffer each.
    Run {
        access: bool,
        lens: Vec<usize>,
    },
    /// The driver posts one packet of several buffers.
    Chain {
        access: bool,
        lens: Vec<usize>,
    },
    Request {
        len: usize,
        written: usize,
    },
    Publish,
    /// The device takes up to this many chains.
    Look(usize),
    /// The device gives back chains, chosen among those that it has, with an entry for each or, in order, only
    /// for the last.
    Use {
        which: Vec<usize>,
        named: bool,
    },
    Ask(Asked),
    Take(usize),
    TakeBack,
    Arm,
    Disarm,
}

/// A packet that was posted.
struct Posted {
    pieces: Vec<Piece>,
    /// Contents that the device must find, updated by what it writes.
    content: Vec<u8>,
    /// Number of bytes that the device may write.
    writable: usize,
    /// `None` while the device has the packet. Then the length that the driver must report; `None` if it has no
    /// meaning.
    used: Option<Option<u32>>,
}

pub struct Bench<Q: Virtqueue> {
    config: Config,
    kind: Kind,
    queue: Q,
    /// Present if packets are posted and taken four at a time.
    vector: Option<Avx2>,
    device: Device,
    pool: Mempool,
    _region: Arc<DmaRegion>,
    /// Packets by the address of their first buffer.
    posted: HashMap<u64, Posted>,
    /// Addresses in the order in which they were posted.
    order: VecDeque<u64>,
    held: Held,
    /// Position up to which the driver has posted.
    tail: u64,
    /// Position up to which it has published.
    shown: u64,
    /// Number of free descriptors, according to the rules.
    free: usize,
    costs: HashMap<u64, usize>,
    armed: Option<u64>,
    stamp: u8,
}

/// Runs operations on a queue of the given kind, with and without vector instructions.
pub fn run(kind: Kind, config: &Config, ops: &[Op]) {
    for vector in [None, Avx2::detect()] {
        match kind {
            Kind::Split => Bench::<Split>::new(kind, config, vector).run(ops.iter().cloned()),
            Kind::Packed => Bench::<Packed>::new(kind, config, vector).run(ops.iter().cloned()),
        }
    }
}

impl<Q: Virtqueue> Bench<Q> {
    fn new(kind: Kind, config: &Config, vector: Option<Avx2>) -> Self {
        let region = DmaRegion::new(Q::bytes(config), &RegionConfig::default()).unwrap();
        let memory = region.iova(0)..region.iova(0) + region.len() as u64;
        let pool = Mempool::new(&MempoolConfig { buffers: 512, size: BUFFER, ..Default::default() }).unwrap();
        let queue = Q::new(&region, 0, config).unwrap();
        let device = Device::new(kind, config, queue.addresses(), memory);
        Self {
            config: *config,
            kind,
            queue,
            vector,
            device,
            pool,
            _region: region,
            posted: HashMap::new(),
            order: VecDeque::new(),
            held: Held::new(),
            tail: 0,
            shown: 0,
            free: config.size.into(),
            costs: HashMap::new(),
            armed: None,
            stamp: 0,
        }
    }

    fn run(mut self, ops: impl Iterator<Item = Op>) {
        for op in ops {
            self.act(op);
            assert_eq!(self.queue.posted(), self.order.len());
            assert_eq!(self.queue.room(), self.free);
        }
        // Everything that was posted comes back.
        self.act(Op::Publish);
        self.act(Op::Look(usize::MAX));
        while !self.held.is_empty() {
            self.act(Op::Use { which: vec![0], named: false });
        }
        self.act(Op::Take(usize::MAX));
        assert_eq!((self.queue.posted(), self.queue.room()), (0, self.config.size.into()));
        assert!(self.posted.is_empty());
        // SAFETY: the device belongs to this test, which does not use it any more.
        unsafe { self.queue.reclaim() };
        drop(self.queue);
        assert_eq!(self.pool.outstanding(1), 0, "buffers were lost");
    }

    /// Returns a packet with recognisable contents, of one buffer for each length.
    fn packet(&mut self, lens: &[usize]) -> Packet {
        let mut packets = lens.iter().map(|&len| {
            self.stamp = self.stamp.wrapping_add(31);
            let mut packet = self.pool.alloc().expect("a buffer");
            packet.set_len(len);
            let stamp = self.stamp;
            let bytes: Vec<u8> = (0..packet.len()).map(|i| stamp ^ i as u8).collect();
            packet.write(0, &bytes);
            packet
        });
        let first = packets.next().expect("a length");
        packets.fold(first, |mut packet, next| {
            packet.append(next);
            packet
        })
    }

    /// Returns the pieces of a packet that the device must see, according to the documented interface.
    fn expected(&self, packet: &Packet, write: bool, written: usize) -> Vec<Piece> {
        let apart =
            if written > 0 { packet.len() - written } else { usize::from(self.config.header).min(packet.len()) };
        let first = Piece { address: packet.iova(), len: apart as u32, write: write && written == 0 };
        let rest = Piece {
            address: packet.iova() + apart as u64,
            len: (packet.len() - apart) as u32,
            write: write || written > 0,
        };
        let others =
            packet.segments().skip(1).map(|part| Piece { address: part.iova(), len: part.len() as u32, write });
        [first, rest].into_iter().chain(others).filter(|piece| piece.len > 0).collect()
    }

    /// Returns the number of descriptors that a packet of `pieces` pieces takes; `None` if not enough are free.
    fn cost(&self, pieces: usize) -> Option<usize> {
        let cost = match pieces {
            1 => 1,
            _ if pieces <= self.config.indirect.into() => 1,
            _ if self.config.in_order => return None,
            _ => pieces,
        };
        Some(cost).filter(|&cost| cost <= self.free)
    }

    /// Records a packet before it is posted.
    fn note(&mut self, packet: &Packet, pieces: Vec<Piece>, cost: usize) -> u64 {
        let content = packet.segments().flat_map(|segment| segment.to_vec()).collect();
        let writable = pieces.iter().filter(|piece| piece.write).map(|piece| piece.len as usize).sum();
        let key = packet.iova();
        self.posted.insert(key, Posted { pieces, content, writable, used: None });
        self.costs.insert(key, cost);
        key
    }

    fn count(&mut self, key: u64) {
        let cost = self.costs[&key];
        self.order.push_back(key);
        self.free -= cost;
        self.tail += if self.kind == Kind::Split { 1 } else { cost as u64 };
    }

    fn forget(&mut self, key: u64) {
        self.posted.remove(&key);
        self.costs.remove(&key);
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Run { access, lens } => self.post_run(access, &lens),
            Op::Chain { access, lens } => {
                let packet = self.packet(&lens);
                let pieces = self.expected(&packet, access, 0);
                self.post_one(packet, pieces, |queue, packet| queue.post_chain(kind(access), packet));
            }
            Op::Request { len, written } => {
                let packet = self.packet(&[len + written]);
                let pieces = self.expected(&packet, false, written);
                self.post_one(packet, pieces, |queue, packet| queue.post_request(packet, written));
            }
            Op::Publish => self.publish(),
            Op::Look(most) => {
                for _ in 0..most {
                    let Some(chain) = self.device.next() else { break };
                    let key = self.order[self.order.len() - self.unseen()];
                    assert_eq!(chain.pieces, self.posted[&key].pieces);
                    assert_eq!(usize::from(chain.slots), self.costs[&key]);
                    self.check(&chain, key);
                    self.held.push_back(chain);
                }
            }
            Op::Use { which, named } => self.give(&which, named),
            Op::Ask(asked) => {
                let asked = match asked {
                    Asked::At(ahead) => Asked::At(self.device.taken + ahead % u64::from(self.config.size)),
                    other => other,
                };
                self.device.ask(asked);
            }
            Op::Take(most) => self.take(most),
            Op::TakeBack => self.reclaim_used(),
            Op::Arm => {
                self.device.interrupts();
                self.queue.arm();
                // A packet that was used before and not taken does not interrupt, so the caller polls once
                // more.
                self.take(usize::MAX);
                self.queue.arm();
                self.armed = Some(self.device.used);
            }
            Op::Disarm => {
                self.device.interrupts();
                self.queue.disarm();
                self.armed = None;
                self.take(usize::MAX);
                self.queue.disarm();
            }
        }
    }

    /// Returns the number of packets that were posted and that the device has not seen.
    fn unseen(&self) -> usize {
        self.order.len() - self.order.iter().filter(|key| self.seen(**key)).count()
    }

    fn seen(&self, key: u64) -> bool {
        let first = self.posted[&key].pieces[0].address;
        self.posted[&key].used.is_some() || self.held.iter().any(|chain| chain.pieces[0].address == first)
    }

    fn post_run(&mut self, access: bool, lens: &[usize]) {
        let packets: Vec<Packet> = lens.iter().map(|&len| self.packet(&[len])).collect();
        let keys: Vec<u64> = packets
            .iter()
            .map(|packet| {
                let pieces = self.expected(packet, access, 0);
                let cost = if pieces.len() > self.config.indirect.into() { pieces.len() } else { 1 };
                self.note(packet, pieces, cost)
            })
            .collect();
        let mut fit = 0;
        let mut free = self.free;
        for key in &keys {
            let cost = self.costs[key];
            // A queue that may need two descriptors for a packet may stop before the last one.
            if cost > free {
                break;
            }
            free -= cost;
            fit += 1;
        }
        let header_apart = self.config.header > 0 && self.config.indirect < 2;
        let posted = fours::post(&mut self.queue, self.vector, kind(access), packets);
        assert!(posted == fit || header_apart && posted < fit && posted + 1 >= fit, "{posted} of {fit} that fit");
        keys[..posted].iter().for_each(|&key| self.count(key));
        keys[posted..].iter().for_each(|&key| self.forget(key));
    }

    fn post_one(
        &mut self,
        packet: Packet,
        pieces: Vec<Piece>,
        post: impl FnOnce(&mut Q, Packet) -> Result<(), Packet>,
    ) {
        let cost = self.cost(pieces.len());
        let key = self.note(&packet, pieces, cost.unwrap_or(0));
        match (post(&mut self.queue, packet), cost) {
            (Ok(()), Some(_)) => self.count(key),
            (Err(packet), None) => {
                assert_eq!(packet.iova(), key);
                self.forget(key);
            }
            (result, cost) => panic!("{} although it costs {cost:?} of {}", result.is_ok(), self.free),
        }
    }

    fn publish(&mut self) {
        let wanted = self.device.wants(self.tail, self.shown);
        let position = self.device.position(self.tail);
        let told = self.queue.publish();
        // A device that asks for a notification and takes chains without waiting may have been given more than
        // the ring by now.
        if self.tail - self.shown <= self.config.size.into() {
            assert_eq!(told, wanted.then_some(position), "the device asked {:?}", self.device.asked);
        }
        // A device that has seen everything and asked for the next packet must be notified of it.
        let sleeps = self.device.taken == self.shown && self.device.asked == Asked::At(self.shown);
        assert!(!sleeps || self.tail == self.shown || told.is_some(), "a lost wake-up");
        self.shown = self.tail;
    }

    /// Checks that the device finds in a chain what was posted.
    fn check(&self, chain: &Chain, key: u64) {
        let mut content = &self.posted[&key].content[..];
        for piece in &chain.pieces {
            let (here, rest) = content.split_at(piece.len as usize);
            assert_eq!(read(piece), here);
            content = rest;
        }
        assert!(content.is_empty());
    }

    fn give(&mut self, which: &[usize], named: bool) {
        let mut chains = Vec::new();
        for &which in which {
            if self.held.is_empty() {
                break;
            }
            let at = if self.config.in_order { 0 } else { which % self.held.len() };
            let chain = self.held.remove(at).expect("one of them");
            let key =
                *self.order.iter().find(|key| self.posted[key].pieces[0].address == chain.pieces[0].address).unwrap();
            let posted = self.posted.get_mut(&key).expect("posted");
            // In a batch, only the last packet may be written in part.
            let whole = named && self.config.in_order;
            let written = if whole { posted.writable } else { which * 7 % (posted.writable + 1) };
            let read_len = posted.content.len() - posted.writable;
            let mut left = written;
            for piece in chain.pieces.iter().filter(|piece| piece.write) {
                let here = left.min(piece.len as usize);
                write(piece, here, which as u8);
                left -= here;
            }
            posted.content[read_len..read_len + written].fill(which as u8);
            // The length has no meaning for packets that the device reads, nor for requests in a batch.
            let told = (posted.writable > 0 && (read_len == 0 || !whole)).then_some(written as u32);
            posted.used = Some(told);
            chains.push((chain, written as u32));
        }
        if chains.is_empty() {
            return;
        }
        let before = self.device.used;
        self.device.give(&chains, named && self.config.in_order);
        let interrupts = self.device.interrupts();
        let armed = self.armed.is_some_and(|position| {
            let turn = if self.kind == Kind::Split { 1 << 16 } else { 2 * u64::from(self.config.size) };
            !self.config.event_idx || (before..self.device.used).any(|other| other % turn == position % turn)
        });
        assert_eq!(interrupts, armed, "armed at {:?}, used {before} to {}", self.armed, self.device.used);
    }

    fn take(&mut self, most: usize) {
        let mut came = Vec::new();
        let ready = self.order.iter().filter(|key| self.posted[key].used.is_some()).count();
        let count = fours::take(&mut self.queue, self.vector, most, |packet, len| came.push((packet, len)))
            .expect("an honest device");
        assert_eq!(count, came.len());
        assert_eq!(count, ready.min(most));
        for (packet, len) in came {
            let key = packet.iova();
            let at = self.order.iter().position(|&other| other == key).expect("a packet that was posted");
            self.order.remove(at);
            let posted = self.posted.remove(&key).expect("posted");
            if let Some(told) = posted.used.expect("a packet that was used") {
                assert_eq!(len, told, "the length of {:?}", posted.pieces);
            }
            let content: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
            assert_eq!(content, posted.content);
            self.free += self.costs.remove(&key).expect("posted");
        }
    }

    fn reclaim_used(&mut self) {
        let used: Vec<u64> = self.order.iter().filter(|key| self.posted[key].used.is_some()).copied().collect();
        let mut reclaimer = Reclaimer::default();
        assert_eq!(self.queue.reclaim_used(self.vector, &mut reclaimer), Ok(used.len()));
        for key in used {
            self.order.retain(|other| *other != key);
            self.posted.remove(&key);
            self.free += self.costs.remove(&key).expect("posted");
        }
    }
}

fn kind(write: bool) -> DeviceAccess {
    if write { DeviceAccess::Write } else { DeviceAccess::Read }
}

fn read(piece: &Piece) -> Vec<u8> {
    // SAFETY: the piece equals one that the oracle expects, as `Op::Look` has checked, so it is inside a buffer
    // of a packet that the queue has. The buffers belong to the test, which runs on one thread.
    unsafe { std::slice::from_raw_parts(piece.address as usize as *const u8, piece.len as usize) }.to_vec()
}

fn write(piece: &Piece, len: usize, value: u8) {
    // SAFETY: the piece equals one that the oracle expects, as `Op::Look` has checked, so it is inside a buffer
    // of a packet that the queue has; `len` is at most its length. The buffers belong to the test, which runs
    // on one thread.
    unsafe { std::ptr::write_bytes(piece.address as usize as *mut u8, value, len) };
}
