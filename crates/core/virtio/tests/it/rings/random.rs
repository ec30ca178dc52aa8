//! Sequences of operations: random ones, and long ones in which the indices wrap.

use proptest::prelude::*;
use ringpass_testing::Random;
use ringpass_virtio::driver::Config;

use crate::rings::device::{Asked, Kind};
use crate::rings::oracle::{Op, run};

fn lens(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..120usize, count)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<bool>(), lens(1..12)).prop_map(|(access, lens)| Op::Run { access, lens }),
        2 => (any::<bool>(), lens(1..6)).prop_map(|(access, lens)| Op::Chain { access, lens }),
        1 => (1..60usize, 1..60usize).prop_map(|(len, written)| Op::Request { len, written }),
        4 => Just(Op::Publish),
        4 => (0..20usize).prop_map(Op::Look),
        5 => (prop::collection::vec(0..1000usize, 1..12), any::<bool>()).prop_map(|(which, named)| Op::Use { which, named }),
        2 => prop_oneof![Just(Asked::Always), Just(Asked::Never), (0..100u64).prop_map(Asked::At)].prop_map(Op::Ask),
        4 => prop_oneof![1..9usize, Just(usize::MAX)].prop_map(Op::Take),
        1 => Just(Op::TakeBack),
        1 => Just(Op::Arm),
        1 => Just(Op::Disarm),
    ]
}

fn config(kind: Kind) -> impl Strategy<Value = Config> {
    let size = match kind {
        Kind::Split => prop_oneof![Just(1), Just(2), Just(4), Just(8), Just(16), Just(64)].boxed(),
        Kind::Packed => (1..40u16).boxed(),
    };
    let header = prop_oneof![3 => Just(0), 1 => Just(10), 1 => Just(12)];
    (size, any::<bool>(), any::<bool>(), prop_oneof![Just(0), 1..8u16], header).prop_map(
        |(size, event_idx, in_order, indirect, header)| {
            // IN_ORDER requires tables.
            let in_order = in_order && indirect > 0 && (header == 0 || indirect > 1);
            Config { size, event_idx, in_order, indirect, header }
        },
    )
}

fn both() -> impl Strategy<Value = (Kind, Config)> {
    prop_oneof![Just(Kind::Split), Just(Kind::Packed)].prop_flat_map(|kind| (Just(kind), config(kind)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Every packet comes back once, with what the device wrote, in any order. Exactly those notifications and
    /// interrupts that were asked for are sent.
    #[test]
    fn every_packet_comes_back_once((kind, config) in both(), ops in prop::collection::vec(op(), 1..150)) {
        run(kind, &config, &ops);
    }
}

/// Heavy traffic of `rounds` rounds, with a notification requested before each sleep.
fn traffic(rounds: u64, plain: bool) -> Vec<Op> {
    let mut random = Random::new(rounds);
    let round = move |round| {
        let access = round % 3 != 0;
        let count = 1 + random.index(8);
        let lens = vec![1 + random.index(100); count];
        let post = match random.below(8) {
            0 if !plain => Op::Chain { access, lens: lens.into_iter().take(4).collect() },
            _ => Op::Run { access, lens },
        };
        let which = if plain { vec![0; 8] } else { (0..8).map(|_| random.index(100)).collect() };
        let ask = [Asked::Always, Asked::Never, Asked::At(0), Asked::At(0), Asked::At(0)][random.index(5)];
        let arm = if random.below(4) == 0 { Op::Disarm } else { Op::Arm };
        [
            post,
            Op::Publish,
            Op::Look(8),
            Op::Ask(ask),
            arm,
            Op::Use { which, named: round % 2 == 0 },
            if random.below(3) == 0 { Op::TakeBack } else { Op::Take(8) },
        ]
    };
    (0..rounds).flat_map(round).collect()
}

#[test]
fn indices_wrap() {
    for (kind, size) in [(Kind::Split, 16), (Kind::Packed, 16), (Kind::Packed, 13)] {
        for (event_idx, in_order) in [(false, false), (true, false), (false, true), (true, true)] {
            for plain in [false, true] {
                let indirect = if in_order { 4 } else { 0 };
                let config = Config { size, event_idx, in_order, indirect, header: 0 };
                run(kind, &config, &traffic(20_000, plain));
            }
        }
    }
}

#[test]
fn the_largest_rings_work() {
    for kind in [Kind::Split, Kind::Packed] {
        let config = Config { size: 1 << 15, event_idx: true, in_order: false, indirect: 0, header: 0 };
        run(kind, &config, &traffic(300, true));
    }
}
