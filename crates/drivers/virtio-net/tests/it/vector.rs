//! With vector instructions, the driver does the same as without, whatever the card does and whatever is to be sent.

use proptest::prelude::*;
use ringpass_memory::{Burst, Headers, L4, Packet};
use ringpass_models::virtio::{Lie, Lies, VirtioConfig, When};
use ringpass_port::{Port, PortConfig, State};
use ringpass_testing::bytes_of;
use ringpass_virtio::features::*;

use crate::common::{Rig, frame};

/// A part of what happens.
#[derive(Clone, Debug)]
enum Step {
    /// The card receives frames of these lengths, and the driver up to so many packets.
    Receive(Vec<usize>, usize),
    /// The driver sends packets like these.
    Send(Vec<Sent>),
    /// The card does what it can.
    Work,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    len: usize,
    headroom: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Chained,
    WithRequest,
}

/// What a port has done that can be seen: frames and the room in front of them, and counters.
#[derive(Debug, PartialEq)]
struct Seen {
    received: Vec<(Vec<u8>, usize)>,
    sent: Vec<Vec<u8>>,
    counters: [u64; 7],
    gone: Option<String>,
}

fn packet(rig: &Rig, sent: Sent) -> Packet {
    let bytes = frame(sent.len);
    let mut packet = rig.pool.alloc().expect("a buffer");
    packet.set_len(0);
    let before = packet.headroom() - sent.headroom;
    assert!(packet.prepend(before), "there is headroom");
    packet.set_len(bytes.len());
    packet.write(0, &bytes);
    match sent.kind {
        Kind::Plain => {}
        Kind::Chained => packet.append(rig.packet(&frame(60), 2000)),
        Kind::WithRequest => packet.request_checksum(Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp }),
    }
    packet
}

fn act(rig: &mut Rig, step: &Step) -> Seen {
    let mut burst = Burst::new(256);
    let mut received = Vec::new();
    match step {
        Step::Receive(lengths, limit) => {
            rig.wire.frames().to_card.extend(lengths.iter().map(|&len| frame(len)));
            work(rig);
            let mut burst = Burst::new(*limit);
            rig.queues[0].rx.rx_burst(&mut burst);
            received.extend(burst.iter().map(|packet| (bytes_of(packet), packet.headroom())));
        }
        Step::Send(packets) => {
            packets.iter().for_each(|&sent| burst.push(packet(rig, sent)));
            rig.queues[0].tx.tx_burst(&mut burst);
        }
        Step::Work => work(rig),
    }
    let stats = rig.port.stats();
    let counters = [
        burst.len() as u64,
        stats.rx_packets,
        stats.rx_bytes,
        stats.rx_drops,
        stats.tx_packets,
        stats.tx_bytes,
        stats.tx_drops,
    ];
    let gone = match rig.port.state() {
        State::Gone(why) => Some(why),
        _ => None,
    };
    Seen { received, sent: rig.sent(), counters, gone }
}

impl Seen {
    /// Forgets what the frames contain, and keeps their lengths. A card that lies about buffers passes on what others hold,
    /// and which these are depends on the order in which the driver takes them out of its pool.
    fn without_content(mut self) -> Self {
        self.received.iter_mut().map(|(bytes, _)| bytes).chain(&mut self.sent).for_each(|bytes| bytes.fill(0));
        self
    }
}

/// Steps the card a limited number of times, as one that lies may never rest.
fn work(rig: &mut Rig) {
    for _ in 0..50 {
        if rig.card.step(&mut rig.ends) == 0 {
            break;
        }
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let len = prop_oneof![12 => 14_usize..1519, 1 => prop_oneof![Just(0_usize), Just(13), Just(1519)]];
    let headroom = prop_oneof![4 => Just(128_usize), 1 => 0_usize..129, 1 => 9_usize..14];
    let kind = prop_oneof![30 => Just(Kind::Plain), 1 => Just(Kind::Chained), 1 => Just(Kind::WithRequest)];
    (len, headroom, kind).prop_map(|(len, headroom, kind)| Sent { len, headroom, kind })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (prop::collection::vec(14_usize..1519, 0..50), 1_usize..80).prop_map(|(lens, most)| Step::Receive(lens, most)),
        prop::collection::vec(sent(), 0..50).prop_map(Step::Send),
        Just(Step::Work),
    ]
}

/// Makes cards, with whether they lie.
fn card() -> impl Strategy<Value = (bool, VirtioConfig)> {
    let choices = [RING_PACKED, IN_ORDER, INDIRECT_DESC, EVENT_IDX, MRG_RXBUF];
    let lie = prop_oneof![1 => Just(None), 2 => (0..Lie::ALL.len(), 0..200_u64).prop_map(Some)];
    (0_usize..32, lie).prop_map(move |(set, lie)| {
        let chosen = choices.iter().enumerate().filter(|(bit, _)| set & 1 << bit != 0);
        let without = choices.iter().fold(VirtioConfig::DEFAULT_FEATURES, |features, choice| features & !choice);
        let features = chosen.fold(without, |features, (_, choice)| features | choice);
        let mut lies = Lies::default();
        if let Some((lie, first)) = lie {
            lies = lies.with(Lie::ALL[lie], When { first: 30 + first, ..When::default() });
            lies.address = 0x1000;
        }
        (lie.is_some(), VirtioConfig { features, lies, queue_size: 64, ..Default::default() })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_packets_from_the_same_card((lies, card) in card(), steps in prop::collection::vec(step(), 1..24)) {
        let config = PortConfig { rx_ring: 64, tx_ring: 64, ..Default::default() };
        let open = |vector| Rig::open(&PortConfig { vector, ..config }, &card);
        let (Ok(mut with), Ok(mut without)) = (open(true), open(false)) else { return Ok(()) };
        for step in &steps {
            let [with, without] = [&mut with, &mut without].map(|rig| {
                let seen = act(rig, step);
                if lies { seen.without_content() } else { seen }
            });
            let gone = with.gone.is_some();
            prop_assert_eq!(with, without);
            if gone {
                break;
            }
        }
    }
}
