//! Tests of the driver on a card that lies. The result is an error, or the end of the port with a reason, but
//! never a hang or an access to memory that is not the driver's.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::common::{BUFFERS, Rig, frame, stepping};
use ringpass_memory::{Burst, Packet};
use ringpass_models::virtio::{Lie, Lies, VirtioConfig, When};
use ringpass_port::{Offloads, Port, PortConfig, State};
use ringpass_virtio::features::*;

const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
const DEFAULT_FEATURES: u64 = VirtioConfig::DEFAULT_FEATURES | MQ | NOTIFICATION_DATA;
const RINGS: [u64; 4] = [
    DEFAULT_FEATURES,
    DEFAULT_FEATURES | IN_ORDER,
    DEFAULT_FEATURES | RING_PACKED,
    DEFAULT_FEATURES | RING_PACKED | IN_ORDER,
];

fn config(offloads: Offloads) -> PortConfig {
    PortConfig { rx_ring: 64, tx_ring: 64, offloads, ..Default::default() }
}

fn card(features: u64, lie: Lie, when: When) -> VirtioConfig {
    let mut lies = Lies::default().with(lie, when);
    lies.address = 0x1000;
    VirtioConfig { features, lies, ..Default::default() }
}

fn from(first: u64) -> When {
    When { first, ..Default::default() }
}

/// Runs traffic both ways, checking the port's state in between; results of sending and receiving do not
/// matter, but no two packets share memory. Returns why the port ended, if it did.
fn traffic(rig: &mut Rig, rounds: usize) -> Option<String> {
    for round in 0..rounds {
        rig.wire.frames().to_card.extend((0..8).map(|n| frame(60 + 200 * n)));
        for _ in 0..100 {
            if rig.card.step(&mut rig.ends) == 0 {
                break;
            }
        }
        let mut burst = Burst::new(64);
        rig.queues[0].rx.rx_burst(&mut burst);
        let mut seen = HashSet::new();
        for segment in burst.iter().flat_map(Packet::segments) {
            assert!(segment.len() <= 2048 && seen.insert(segment.as_ptr() as usize / 2048));
        }
        (burst.len()..8).for_each(|_| burst.push(rig.packet(&frame(100), 2000)));
        rig.queues[0].tx.tx_burst(&mut burst);
        if round % 8 == 0
            && let State::Gone(why) = rig.port.state()
        {
            return Some(why);
        }
    }
    None
}

/// Drops a port within a time limit. If the card could be reset, all buffers are returned.
fn end(rig: Rig, all_comes_back: bool) {
    let start = Instant::now();
    let Rig { card, mut ends, queues, port, pool, .. } = rig;
    stepping(&card, &mut ends, || drop((queues, port)));
    assert!(start.elapsed() < Duration::from_secs(10), "waits have limits");
    if all_comes_back {
        let packets: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(packets.len(), BUFFERS, "buffers are neither lost nor doubled");
    }
}

/// Runs traffic with each lie on each kind of ring; the lie is told `when`. Most of the time is spent waiting
/// for answers that never come.
fn survives(offloads: Offloads, when: When) {
    std::thread::scope(|scope| {
        for features in RINGS {
            scope.spawn(move || {
                for &lie in Lie::ALL {
                    let Ok(mut rig) = Rig::open(&config(offloads), &card(features, lie, when)) else { continue };
                    traffic(&mut rig, 40);
                    end(rig, false);
                }
            });
        }
    });
}

#[test]
fn no_lie_does_harm_to_plain_queues() {
    survives(Offloads::default(), from(50));
}

#[test]
fn no_lie_does_harm_to_queues_with_offloads() {
    survives(ALL, from(50));
}

#[test]
fn no_lie_told_by_chance_does_harm() {
    survives(ALL, When { first: 20, chance: 0.1, ..Default::default() });
}

/// A card that breaks the rules of a ring is reset, and the port ends with the reason.
#[test]
fn broken_rings_end_the_port() {
    let split = [Lie::IdFree, Lie::IdTwice, Lie::IdWild, Lie::IndexJumps, Lie::IndexBack];
    let packed = [Lie::IdFree, Lie::IdTwice, Lie::IdWild];
    let cases = split
        .iter()
        .map(|&lie| (DEFAULT_FEATURES, lie))
        .chain(packed.iter().map(|&lie| (DEFAULT_FEATURES | RING_PACKED, lie)));
    for (features, lie) in cases {
        let mut rig = Rig::new(&config(Offloads::default()), &card(features, lie, from(50)));
        let why = traffic(&mut rig, 100).unwrap_or_else(|| panic!("{lie:?} went unnoticed"));
        let right = why.starts_with("model: the card broke the rules: queue ") && why.ends_with("it was reset");
        assert!(right && !why.contains('\n'), "{lie:?}: {why}");
        let errors: u64 = rig.port.extended().iter().filter(|(name, _)| name.ends_with("errors")).map(|(_, n)| n).sum();
        assert!(errors > 0);
        // The port stays gone, and its queues do nothing.
        assert!(matches!(rig.port.state(), State::Gone(again) if again == why));
        assert!(!rig.port.link().up);
        assert!(rig.arrived(0).is_empty());
        end(rig, true);
    }
}

#[test]
fn lengths_that_lie_cost_the_frame_alone() {
    for features in RINGS {
        for (offloads, lie) in [
            (Offloads::default(), Lie::LengthLong),
            (Offloads::default(), Lie::LengthZero),
            (ALL, Lie::LengthLong),
            (ALL, Lie::LengthZero),
            (ALL, Lie::BuffersZero),
            (ALL, Lie::BuffersMany),
            (ALL, Lie::HeaderWild),
        ] {
            let when = When { first: 10, last: 12, chance: 1.0 };
            let mut rig = Rig::new(&config(offloads), &card(features, lie, when));
            let gone = traffic(&mut rig, 40);
            assert_eq!(gone, None, "{lie:?}");
            let drops = rig.port.stats().rx_drops;
            // A frame that claims 65,535 buffers consumes the frames that follow.
            assert!(drops >= 1 || lie == Lie::BuffersMany, "{lie:?}: {drops} drops");
            end(rig, true);
        }
    }
}

/// The same where frames may be longer than a buffer, although none of these is.
#[test]
fn lengths_beyond_a_buffer_are_never_believed() {
    for (ring, merged) in RINGS.into_iter().flat_map(|ring| [(ring, 0), (ring, MRG_RXBUF)]) {
        let config = PortConfig { mtu: 9000, ..config(Offloads::default()) };
        let card = card(ring & !MRG_RXBUF | merged, Lie::LengthLong, When { first: 1, chance: 0.3, ..from(0) });
        let mut rig = Rig::new(&config, &card);
        assert_eq!(traffic(&mut rig, 40), None);
        let stats = rig.port.stats();
        assert!(stats.rx_drops > 10 && stats.rx_packets > 10, "{stats:?}");
        end(rig, true);
    }
}

#[test]
fn a_card_that_fails_or_goes_ends_the_port() {
    for (lie, cause) in [
        (Lie::NeedsReset, "asks for a reset"),
        (Lie::Removed, "registers read as ones"),
        (Lie::ConfigChanges, "has changed its"),
        (Lie::ConfigNever, "changes all the time"),
    ] {
        let mut rig = Rig::new(&config(Offloads::default()), &card(DEFAULT_FEATURES | MTU, lie, from(50)));
        let why = traffic(&mut rig, 100).unwrap_or_else(|| panic!("{lie:?} went unnoticed"));
        assert!(why.starts_with("model: ") && why.contains(cause) && !why.contains('\n'), "{lie:?}: {why}");
        // A removed card may still write, so its memory is never freed.
        end(rig, lie != Lie::Removed);
    }
}

#[test]
fn a_card_that_never_gets_ready_is_an_error() {
    for (lie, cause) in [
        (Lie::FeaturesNever, "refuses them"),
        (Lie::ControlNever, "does not answer within 1000 ms"),
        (Lie::ControlFails, "answers 1"),
        (Lie::ConfigNever, "changes all the time"),
        (Lie::Removed, ""),
    ] {
        let start = Instant::now();
        let error = Rig::open(&config(Offloads::default()), &card(DEFAULT_FEATURES, lie, from(0))).err();
        let text = error.unwrap_or_else(|| panic!("{lie:?}")).to_string();
        assert!(text.starts_with("model: ") && text.contains(cause) && !text.contains('\n'), "{lie:?}: {text}");
        assert!(start.elapsed() < Duration::from_secs(20), "{lie:?}");
    }
}

#[test]
fn a_queue_whose_reset_never_ends_goes_with_the_device() {
    let mut rig = Rig::new(&config(Offloads::default()), &card(DEFAULT_FEATURES, Lie::QueueResetNever, from(0)));
    assert_eq!(traffic(&mut rig, 10), None);
    end(rig, true);
}

/// A device that does not confirm a reset may still use its buffers, so they are not given to anybody else.
#[test]
fn a_card_that_is_never_reset_keeps_its_memory() {
    let mut rig =
        Rig::new(&config(Offloads::default()), &card(DEFAULT_FEATURES & !RING_RESET, Lie::ResetNever, from(0)));
    assert_eq!(traffic(&mut rig, 10), None);
    let (pool, start) = (rig.pool.clone(), Instant::now());
    end(rig, false);
    assert!(start.elapsed() < Duration::from_secs(20));
    let packets: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
    assert!(packets.len() <= BUFFERS - 64, "{}", packets.len());
}

#[test]
fn a_link_that_flaps_is_no_end() {
    let when = When { first: 20, last: 100, chance: 1.0 };
    let mut rig = Rig::new(&config(Offloads::default()), &card(DEFAULT_FEATURES, Lie::LinkFlap, when));
    assert_eq!(traffic(&mut rig, 100), None);
    assert!(rig.port.stats().rx_packets > 100);
    end(rig, true);
}

/// A full queue that makes no progress for two seconds is reported, but not while there is no link.
#[test]
fn a_card_that_stops_sending_is_reported() {
    let mut rig = Rig::new(&config(Offloads::default()), &card(DEFAULT_FEATURES, Lie::TxStuck, from(0)));
    assert_eq!(traffic(&mut rig, 20), None, "it has just begun");
    std::thread::sleep(Duration::from_millis(2100));
    rig.card.set_link(false);
    assert_eq!(traffic(&mut rig, 20), None, "there is no link");
    rig.card.set_link(true);
    assert_eq!(traffic(&mut rig, 1), None, "it may be about to go on");
    let why = traffic(&mut rig, 20).expect("stuck");
    assert!(why.contains("sent nothing for 2 s"), "{why}");
    end(rig, true);
}

#[test]
fn a_lost_interrupt_costs_no_frame_and_a_storm_no_time() {
    for lie in [Lie::InterruptLost, Lie::InterruptStorm] {
        let mut rig = Rig::new(&config(Offloads::default()), &card(DEFAULT_FEATURES, lie, from(0)));
        rig.queues[0].rx.arm();
        assert_eq!(traffic(&mut rig, 50), None);
        rig.queues[0].rx.disarm();
        assert_eq!(rig.port.stats().rx_packets, 400);
        end(rig, true);
    }
}
