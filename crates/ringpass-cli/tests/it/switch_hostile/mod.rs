//! Three guests on one `ringpass switch`, one of which breaks its rings in every way, again and again: it loses
//! its session each time, with the reason in the log, and the other two lose no frame, under load.

mod attacker;
mod attacks;
mod honest;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
pub use attacker::Attacker;
use attacks::ATTACKS;
use honest::{Honest, exchange, meet};
use ringpass_lab::Ended;
use serde_json::Value;

/// Time between attacks. A port logs at most ten lines a second; each session takes two, and those of the
/// previous one may be late.
const PACE: Duration = Duration::from_millis(300);
/// Seed of the attacks in the storm.
const SEED: u64 = 7;
/// How long attacks are made as fast as possible.
const STORM: Duration = Duration::from_secs(3);

fn count(port: &Value, name: &str) -> u64 {
    port.get(name).unwrap_or(&port["extended"][name]).as_u64().unwrap_or_else(|| panic!("no {name}: {port}"))
}

#[test]
fn a_guest_that_breaks_its_rings_costs_nobody_else_a_frame() {
    attack(&[]);
}

#[test]
fn guests_with_workers_of_their_own_lose_no_frame_either() {
    attack(&["--worker-per-guest"]);
}

fn attack(options: &[&str]) {
    let folder = folder();
    let sockets = ["a", "b", "hostile"].map(|name| folder.path().join(name));
    let ports = sockets.each_ref().map(|socket| format!("vhost:{}", text(socket)));
    let [a, b, hostile] = ports.each_ref();
    let command = [RINGPASS, "switch", a, b, hostile, "--flood", "0", "--json", "--hugepages", "off"];
    let switch = Program::spawn(&[&command, options].concat());
    wait_until("the switch's first line", || switch.line().contains("stats"));

    let mut pair = [Honest::new(&sockets[0], 1), Honest::new(&sockets[1], 2)];
    meet(&mut pair);
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut sessions, mut broken) = (0, 0);
    std::thread::scope(|scope| {
        let stop_at_the_end = Stop(&stop);
        scope.spawn(|| exchange(&mut pair, &stop, &arrived));
        let traffic = |what: &str| {
            let before = arrived.load(Ordering::Relaxed);
            wait_until(what, || arrived.load(Ordering::Relaxed) > before + 1000);
        };
        traffic("traffic");
        for attack in &ATTACKS {
            let mut attacker = Attacker::come(&sockets[2], attack.features);
            (attack.mount)(&mut attacker);
            if attack.ring {
                attacker.hung_up();
            }
            traffic(attack.reason);
            (sessions, broken) = (sessions + 1, broken + u64::from(attack.ring));
            std::thread::sleep(PACE);
        }
        // Its memory is truncated while the switch uses it.
        let attacker = Attacker::come(&sockets[2], 0);
        attacker.cut_short();
        attacker.kick(attacker::TX);
        attacker.hung_up();
        sessions += 1;
        std::thread::sleep(4 * PACE);

        let (start, mut random) = (Instant::now(), SEED);
        while start.elapsed() < STORM {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let attack = &ATTACKS[(random >> 33) as usize % ATTACKS.len()];
            let mut attacker = Attacker::come(&sockets[2], attack.features);
            (attack.mount)(&mut attacker);
            sessions += 1;
            if attack.ring && random >> 63 == 0 {
                attacker.hung_up();
                broken += 1;
            }
        }
        traffic("traffic after the storm");
        drop(stop_at_the_end);
    });
    let frames = pair.each_ref().map(|one| one.received);
    eprintln!("{sessions} sessions, {broken} broken queues; {frames:?} frames arrived, none was lost");
    drop(pair);

    switch.signal("INT");
    let Ended { status, lines, errors } = switch.wait(Duration::from_secs(10));
    assert_eq!(status, Some(0), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
    let [a, b, hostile] = [0, 1, 2].map(|port| &summary["ports"][port]);
    for honest in [a, b] {
        assert_eq!((count(honest, "guest_faults"), count(honest, "sessions")), (0, 1), "{honest}");
        assert_eq!((count(honest, "rx_drops"), count(honest, "switch_tx_drops")), (0, 0), "{honest}");
    }
    assert!(count(hostile, "guest_faults") >= broken && count(hostile, "sessions") >= sessions, "{hostile}");
    // Each reason, in order.
    let name = format!("{}: the session has ended: ", text(&sockets[2]));
    let mut ends = errors.iter().filter_map(|line| line.split_once(&name)).map(|(_, why)| why);
    let reasons = ATTACKS.iter().map(|attack| attack.reason).chain(["the front-end has cut short a file of memory"]);
    for reason in reasons {
        let why = ends.next().unwrap_or_else(|| panic!("nothing about '{reason}': {errors:#?}"));
        assert!(why.contains(reason), "'{why}', not '{reason}'");
    }
}
