//! A port that floods the MAC table with stations evicts none of another port.

use std::time::Duration;

use crate::common::*;
use ringpass_memory::{Burst, MAX_BATCH};
use ringpass_port::QueuePair;
use ringpass_switch::{Config, Counter, Forwarding, MAX_PORTS, PortPolicy, Switch};

/// Number of source addresses that the attacker cycles through, and number of cycles.
const ADDRESSES: u32 = 100_000;
const CYCLES: u32 = 10;

const PAIR: [usize; 2] = [0, 1];
const ATTACKER: usize = 2;

fn address(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [0x0a, 0xbb, a, b, c, d]
}

/// Sends frames into a port, and runs the switch.
fn send(
    datapath: &mut ringpass_switch::Datapath,
    far: &mut QueuePair,
    frames: &[Vec<u8>],
    pool: &ringpass_memory::Mempool,
) {
    let mut burst = Burst::new(MAX_BATCH);
    frames.iter().for_each(|frame| burst.push(packet(pool, frame)));
    far.tx.tx_burst(&mut burst);
    assert!(burst.is_empty(), "the cable has room");
    while datapath.round() > 0 {}
}

/// Two stations exchange frames while a third port cycles 100,000 addresses through a table of 8,192.
fn flood(config: &Config, places: usize) {
    let rules: Vec<PortPolicy> = vec![PortPolicy::default(); places];
    let (pool, mut switch) = (pool(), Switch::new(config, &rules).expect("a switch"));
    let mut datapath = switch.datapath(&pool, MAX_BATCH).expect("a datapath");
    let (mut far, mut near) = (Vec::new(), Vec::new());
    for port in 0..3 {
        let (mut own, mut end) = ringpass_host_ports::cable(&format!("c{port}"), 1024);
        switch.insert(port, vec![share(queues(&mut own), Forwarding::Lookup)]);
        far.push(queues(&mut end));
        near.extend([own, end]);
    }
    let stations = PAIR.map(|port| mac(port as u8 + 1));
    for (port, station) in PAIR.into_iter().zip(stations) {
        send(&mut datapath, &mut far[port], &[frame(BROADCAST, station, 0)], &pool);
    }
    (0..3).for_each(|port| drop(receive(&mut far[port])));

    let (mut sent, mut arrived, mut leaked) = (0, 0, 0);
    for (burst, first) in (0..ADDRESSES * CYCLES).step_by(32).enumerate() {
        let frames: Vec<_> = (first..first + 32).map(|n| frame(address(0), address(n % ADDRESSES), n)).collect();
        send(&mut datapath, &mut far[ATTACKER], &frames, &pool);
        // Frames that the attacker floods reach the pair as well.
        PAIR.into_iter().for_each(|port| drop(receive(&mut far[port])));
        // The pair is silent for five seconds, while the attacker sends 20,000 frames a second.
        switch.tick(Duration::from_secs(burst as u64 / 625));
        if burst % 3125 != 3124 {
            continue;
        }
        for (one, other) in [(0, 1), (1, 0)] {
            let exchanged = frame(stations[other], stations[one], sent);
            send(&mut datapath, &mut far[one], std::slice::from_ref(&exchanged), &pool);
            sent += 1;
            arrived += receive(&mut far[other]).iter().filter(|got| **got == exchanged).count();
        }
        leaked += receive(&mut far[ATTACKER]).len();
    }
    let counts = |port: usize, counter| switch.counts(port).of(counter);
    assert!(counts(ATTACKER, Counter::Evicted) > 100_000, "the load was {}", counts(ATTACKER, Counter::Evicted));
    assert_eq!(
        (arrived, leaked),
        (sent as usize, 0),
        "of {sent} frames of the pair, those that arrived, and that leaked"
    );
    assert_eq!(PAIR.map(|port| counts(port, Counter::Unknown)), [0, 0], "frames of the pair were flooded");
    assert_eq!(PAIR.map(|port| counts(port, Counter::Learned)), [1, 1], "stations of the pair were learned again");
    let table = switch.table();
    for (port, station) in PAIR.into_iter().zip(stations) {
        assert!(table.iter().any(|entry| entry.mac.0 == station && entry.port == port), "{table:?}");
    }
}

#[test]
fn a_flood_of_stations_evicts_none_of_other_ports() {
    flood(&Config { flood: 0, ..Config::default() }, 3);
}

/// The configuration of a VALE switch, most of whose slots are empty.
#[test]
fn a_flood_of_stations_in_a_vale_switch() {
    flood(&Config { flood: 0, any_source: true, ..Config::default() }, MAX_PORTS);
}
