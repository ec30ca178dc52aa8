//! Devices that die and are replaced: the next device finds exactly what the dead one has not given back.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use ringpass_memory::{DmaRegion, Mempool, MempoolConfig, Packet, RegionConfig};
use ringpass_virtio::driver::{Broken, Config, DeviceAccess, HandedOver, InflightPolicy, Packed, Split, Virtqueue};

use crate::rings::device::{Chain, Device, Kind};

#[derive(Clone, Debug)]
enum Op {
    /// The driver posts packets of these numbers of buffers.
    Post(Vec<usize>),
    /// The device takes chains.
    Look(usize),
    /// The device gives back some of the chains that it has.
    Use(Vec<usize>),
    /// The driver takes up to this many used packets.
    Take(usize),
    /// The device dies.
    Die,
    /// The device dies while it marks two chains as used: the second is marked, the first is not.
    DieAtWork,
}

struct Bench<Q: Virtqueue> {
    kind: Kind,
    config: Config,
    queue: Q,
    device: Device,
    held: Vec<Chain>,
    /// Addresses of packets that the device was not given yet or has not given back.
    out: BTreeSet<u64>,
    /// Addresses of packets that the device has given back and the driver has not taken.
    back: BTreeSet<u64>,
    pool: Mempool,
    region: Arc<DmaRegion>,
}

impl<Q: Virtqueue> Bench<Q> {
    fn new(kind: Kind, config: &Config) -> Self {
        let region = DmaRegion::new(Q::bytes(config), &RegionConfig::default()).unwrap();
        let queue = Q::new(&region, 0, config).unwrap();
        let pool = Mempool::new(&MempoolConfig { buffers: 512, size: 64, ..Default::default() }).unwrap();
        let device = Self::device(kind, config, &queue, &region, 0);
        let (held, out, back) = Default::default();
        Self { kind, config: *config, queue, device, held, out, back, pool, region }
    }

    fn device(kind: Kind, config: &Config, queue: &Q, region: &DmaRegion, position: u64) -> Device {
        let memory = region.iova(0)..region.iova(0) + region.len() as u64;
        let mut device = Device::new(kind, config, queue.addresses(), memory);
        (device.taken, device.used) = (position, position);
        device
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Post(lens) => lens.into_iter().for_each(|buffers| self.post(buffers)),
            Op::Look(most) => self.look(most),
            Op::Use(which) => {
                for which in which {
                    if !self.held.is_empty() {
                        let at = if self.config.in_order { 0 } else { which % self.held.len() };
                        let chain = self.held.remove(at);
                        self.give(chain);
                    }
                }
            }
            Op::Take(most) => self.take(most),
            Op::Die => self.die(),
            Op::DieAtWork => {
                if self.kind == Kind::Packed && !self.config.in_order && self.held.len() > 1 {
                    let (first, second) = (self.held.remove(0), self.held.remove(0));
                    self.device.used += u64::from(first.slots);
                    self.device.give(&[(second, 1)], false);
                }
                self.die();
            }
        }
    }

    fn post(&mut self, buffers: usize) {
        let packets: Option<Vec<Packet>> = (0..buffers).map(|_| self.pool.alloc()).collect();
        let Some(packets) = packets else { return };
        let mut packets = packets.into_iter().map(|mut packet| {
            packet.set_len(50);
            packet
        });
        let mut packet = packets.next().expect("one at least");
        packets.for_each(|next| packet.append(next));
        let address = packet.iova();
        let posted = match buffers {
            1 => self.queue.post_run(DeviceAccess::Write, std::iter::once(packet)) == 1,
            _ => self.queue.post_chain(DeviceAccess::Write, packet).is_ok(),
        };
        self.queue.publish();
        if posted {
            self.out.insert(address);
        }
    }

    fn look(&mut self, most: usize) {
        for _ in 0..most {
            let Some(chain) = self.device.next() else { break };
            let address = chain.pieces[0].address;
            assert!(self.out.contains(&address), "one that was not posted, or was given back");
            let twice = self.held.iter().any(|held| held.pieces[0].address == address);
            assert!(!twice && chain.pieces.iter().all(|piece| piece.write));
            self.held.push(chain);
        }
    }

    fn give(&mut self, chain: Chain) {
        let address = chain.pieces[0].address;
        self.device.give(&[(chain, 1)], false);
        assert!(self.out.remove(&address) && self.back.insert(address));
    }

    fn take(&mut self, most: usize) {
        let back = &mut self.back;
        let taken = self.queue.take(most, |used, _| {
            let packet = used.whole();
            assert!(back.remove(&packet.iova()), "a packet that was not given back");
        });
        taken.expect("an honest device");
    }

    fn die(&mut self) {
        self.held.clear();
        let HandedOver { base, untaken } =
            self.queue.hand_over(DeviceAccess::Write, InflightPolicy::Resubmit).expect("an honest device");
        assert_eq!(untaken, self.back.len());
        let size = u64::from(self.config.size);
        let position = match self.kind {
            Kind::Split => u64::from(base),
            Kind::Packed => {
                assert_eq!(base >> 16, base & 0xffff, "both sides stand at the same slot");
                u64::from(base & 0x7fff) + if base & 0x8000 == 0 { size } else { 0 }
            }
        };
        self.device = Self::device(self.kind, &self.config, &self.queue, &self.region, position);
        // The next device finds everything that was not given back.
        self.look(usize::MAX);
        assert_eq!(self.held.len(), self.out.len());
        assert_eq!(self.queue.posted(), self.out.len() + self.back.len());
    }

    fn run(mut self, ops: impl Iterator<Item = Op>) {
        ops.for_each(|op| self.act(op));
        self.look(usize::MAX);
        while !self.held.is_empty() {
            let chain = self.held.remove(0);
            self.give(chain);
        }
        self.take(usize::MAX);
        assert!(self.out.is_empty() && self.back.is_empty());
        assert_eq!((self.queue.posted(), self.queue.room()), (0, self.config.size.into()));
        // SAFETY: the device belongs to this test, which does not use it any more.
        unsafe { self.queue.reclaim() };
        drop(self.queue);
        assert_eq!(self.pool.outstanding(1), 0, "buffers were lost");
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop::collection::vec(prop_oneof![4 => Just(1), 1 => 2..4usize], 1..8).prop_map(Op::Post),
        4 => (0..12usize).prop_map(Op::Look),
        4 => prop::collection::vec(0..100usize, 1..8).prop_map(Op::Use),
        3 => prop_oneof![1..5usize, Just(usize::MAX)].prop_map(Op::Take),
        2 => Just(Op::Die),
        1 => Just(Op::DieAtWork),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_next_device_finds_what_is_out(
        packed: bool,
        size in 2..5u32,
        (event_idx, in_order) in (any::<bool>(), any::<bool>()),
        indirect in prop_oneof![Just(0), Just(4u16)],
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let in_order = in_order && indirect > 0;
        let config = Config { size: 1 << size, event_idx, in_order, indirect, header: 0 };
        match packed {
            true => Bench::<Packed>::new(Kind::Packed, &config).run(ops.into_iter()),
            false => Bench::<Split>::new(Kind::Split, &config).run(ops.into_iter()),
        }
    }
}

/// The writes of a dead device are checked like those of a living one.
#[test]
fn a_device_that_lied_before_it_died_breaks_the_queue() {
    fn left<Q: Virtqueue>(kind: Kind, ids: &[u16]) -> Result<HandedOver, Broken> {
        let config = Config { size: 8, event_idx: false, in_order: false, indirect: 0, header: 0 };
        let mut bench = Bench::<Q>::new(kind, &config);
        bench.act(Op::Post(vec![1; 4]));
        bench.look(4);
        let lie = |&id| (Chain { id, ..bench.held[0].clone() }, 1);
        let lies: Vec<_> = ids.iter().map(lie).collect();
        bench.device.give(&lies, false);
        let base = bench.queue.hand_over(DeviceAccess::Write, InflightPolicy::Resubmit);
        // SAFETY: the device belongs to this test, which does not use it any more.
        unsafe { bench.queue.reclaim() };
        base
    }
    for (ids, wrong) in [(&[4][..], 4), (&[8], 8), (&[2, 2], 2), (&[0, 0], 0), (&[0xffff], 0xffff)] {
        assert_eq!(left::<Split>(Kind::Split, ids), Err(Broken::NotPosted(wrong)), "{ids:?}");
        assert_eq!(left::<Packed>(Kind::Packed, ids), Err(Broken::NotPosted(wrong)), "{ids:?}");
    }
}
