//! With vector instructions, the driver does the same as without, whatever a card writes back and whatever is to be sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use ringpass_memory::{Burst, Flags, Mempool, MempoolConfig, Packet};
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_port::{Port, PortConfig, QueuePair};

use crate::common::{FakeCard, IGB, IGB_WITHOUT_VECTORS, IXGBE, IXGBE_WITHOUT_VECTORS, Kind};

const RING: u32 = 64;

/// A card, its driver, and where the card is in its rings.
struct Rig {
    kind: &'static Kind,
    straw: Arc<FakeCard>,
    port: Box<dyn Port>,
    queues: QueuePair,
    pool: Mempool,
    rx_head: u32,
    tx_head: u32,
}

/// A part of what happens.
#[derive(Clone, Debug)]
enum Step {
    /// The card writes back the next descriptors, and the driver receives up to so many packets.
    Receive(Vec<u64>, usize),
    /// The driver sends packets of these lengths, at these offsets and with further segments or not.
    Send(Vec<(usize, i16, bool)>),
    /// The card sends up to so many frames.
    Sent(u32),
}

impl Rig {
    fn new(kind: &'static Kind) -> Self {
        let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..Default::default() }).unwrap();
        let straw = FakeCard::new(kind);
        let config = PortConfig { rx_ring: RING as usize, tx_ring: RING as usize, ..Default::default() };
        let mut port = straw.open(&config, &pool).unwrap();
        let queues = port.take_queues().remove(0);
        Self { kind, straw, port, queues, pool, rx_head: 0, tx_head: 0 }
    }

    /// Returns what the step has done that can be seen: by the packets' owner, by the card, and by the counters.
    fn step(&mut self, step: &Step) -> Vec<[u64; 3]> {
        let mut seen = Vec::new();
        match step {
            Step::Receive(statuses, limit) => {
                let mut posted = Vec::new();
                for &status in statuses {
                    if self.rx_head == self.straw.get(self.kind.rdt) {
                        break;
                    }
                    let address = self.straw.rx(self.rx_head, 0).load(Ordering::Acquire);
                    if status & RX_DD == 0 {
                        // As if it came later; the driver stops here.
                        break;
                    }
                    posted.push(address);
                    self.straw.rx(self.rx_head, 1).store(status, Ordering::Release);
                    self.rx_head = (self.rx_head + 1) % RING;
                }
                let mut burst = Burst::new(*limit);
                self.queues.rx.rx_burst(&mut burst);
                for packet in burst.iter() {
                    let place = posted.iter().position(|&address| address == packet.iova());
                    seen.push([place.map_or(u64::MAX, |at| at as u64), packet.len() as u64, packet.headroom() as u64]);
                    assert_eq!(packet.flags(), Flags::default());
                }
                // Those beyond the limit are received now, so that the next step finds an empty ring.
                burst.clear();
                while self.queues.rx.rx_burst(&mut burst) > 0 {
                    seen.extend(burst.iter().map(|packet| [packet.len() as u64, 0, 0]));
                    burst.clear();
                }
            }
            Step::Send(frames) => {
                let mut burst = Burst::new(256);
                frames.iter().for_each(|frame| burst.push(self.packet(frame)));
                let addresses: Vec<u64> = burst.iter().map(Packet::iova).collect();
                let before = self.straw.get(self.kind.tdt);
                seen.push([self.queues.tx.tx_burst(&mut burst) as u64, burst.len() as u64, 0]);
                let mut at = before;
                while at != self.straw.get(self.kind.tdt) {
                    let [address, words] = [0, 1].map(|half| self.straw.tx(at, half).load(Ordering::Acquire));
                    let place = addresses.iter().position(|&known| known == address).expect("a packet's address");
                    seen.push([place as u64, words, at.into()]);
                    at = (at + 1) % RING;
                }
            }
            Step::Sent(count) => {
                for _ in 0..*count {
                    if self.tx_head == self.straw.get(self.kind.tdt) {
                        break;
                    }
                    let words = self.straw.tx(self.tx_head, 1);
                    if words.load(Ordering::Acquire) & TX_RS != 0 {
                        words.fetch_or(TX_DD, Ordering::Release);
                    }
                    self.tx_head = (self.tx_head + 1) % RING;
                }
            }
        }
        let stats = self.port.stats();
        seen.push([stats.rx_drops, stats.tx_drops, u64::from(self.straw.get(self.kind.rdt))]);
        seen
    }

    fn packet(&self, &(len, offset, chained): &(usize, i16, bool)) -> Packet {
        let mut packet = self.pool.alloc().expect("a buffer");
        if offset < 0 {
            assert!(packet.prepend(offset.unsigned_abs().into()));
        } else {
            packet.set_len(offset as usize);
            assert!(packet.trim_front(offset as usize));
        }
        packet.set_len(len);
        if chained {
            packet.append(self.pool.alloc().expect("a buffer"));
        }
        packet
    }
}

/// Makes the status words of written-back descriptors, mostly those of good frames.
fn status() -> impl Strategy<Value = u64> {
    let good = |len: u64| RX_DD | RX_EOP | len << RX_LENGTH_SHIFT;
    prop_oneof![
        12 => (14_u64..1519).prop_map(good),
        1 => prop_oneof![Just(0_u64), Just(13), Just(14), Just(1518), Just(1519), Just(2048), Just(2049), Just(0xffff)].prop_map(good),
        1 => any::<u64>(),
        1 => any::<u64>().prop_map(|word| word | RX_DD | RX_EOP),
        1 => Just(RX_DD | 60 << RX_LENGTH_SHIFT),
        1 => Just(0),
    ]
}

/// Makes frames to be sent, mostly those that a card can send.
fn frame() -> impl Strategy<Value = (usize, i16, bool)> {
    let len = prop_oneof![
        12 => 17_usize..1519,
        1 => prop_oneof![Just(0_usize), Just(16), Just(17), Just(1518), Just(1519), Just(1900)],
    ];
    (len, prop_oneof![4 => Just(0_i16), 1 => -128_i16..140], prop::bool::weighted(0.03))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (prop::collection::vec(status(), 0..70), 1_usize..80).prop_map(|(words, limit)| Step::Receive(words, limit)),
        prop::collection::vec(frame(), 0..70).prop_map(Step::Send),
        (0_u32..70).prop_map(Step::Sent),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_packets_for_the_same_descriptors(steps in prop::collection::vec(step(), 1..24)) {
        for pair in [[&IXGBE, &IXGBE_WITHOUT_VECTORS], [&IGB, &IGB_WITHOUT_VECTORS]] {
            let [mut with, mut without] = pair.map(Rig::new);
            for step in &steps {
                prop_assert_eq!(with.step(step), without.step(step));
            }
            drop((with.queues, with.port, without.queues, without.port));
            // The driver has given everything back.
            prop_assert_eq!((with.pool.outstanding(1), without.pool.outstanding(1)), (0, 0));
        }
    }
}
