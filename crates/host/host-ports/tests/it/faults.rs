//! Tests of the decorator that injects faults.

use std::collections::HashMap;

use crate::common::*;
use ringpass_host_ports::{CableEnd, Faults, Null, cable};
use ringpass_memory::{Burst, Mempool};
use ringpass_port::{FaultsConfig, Port, PortConfig, QueuePair};

const ALL: FaultsConfig = FaultsConfig { drop: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, seed: 42 };

/// Returns a port with faults, its queues, and the far end of the cable behind it.
fn faulty(config: FaultsConfig) -> (Faults, QueuePair, CableEnd, QueuePair) {
    let (near, mut far) = cable("c", 512);
    let mut faults = Faults::wrap(Box::new(near), config, &pool());
    let (at_faults, at_far) = (queues(&mut faults), queues(&mut far));
    (faults, at_faults, far, at_far)
}

/// Sends numbered frames through the faults until nothing follows, and returns what arrives.
fn through_tx(config: FaultsConfig, count: usize) -> Vec<Vec<u8>> {
    let (mut faults, mut at_faults, _far, mut at_far) = faulty(config);
    let (pool, mut received) = (pool(), Vec::new());
    for number in 0..count {
        send(&mut at_faults, &pool, &[frame(number, 60 + number % 50)]);
        received.extend(receive(&mut at_far));
    }
    assert_eq!(faults.stats().tx_packets, received.len() as u64);
    drop(at_faults);
    received.extend(receive(&mut at_far));
    assert_eq!(pool.outstanding(1), 0);
    assert_eq!(faults.stats().tx_packets, received.len() as u64);
    received
}

/// Does the same in the other direction.
fn through_rx(config: FaultsConfig, count: usize) -> Vec<Vec<u8>> {
    let (mut faults, mut at_faults, _far, mut at_far) = faulty(config);
    let (pool, mut received) = (pool(), Vec::new());
    let frames: Vec<_> = (0..count).map(|number| frame(number, 60 + number % 50)).collect();
    for some in frames.chunks(100) {
        send(&mut at_far, &pool, some);
        received.extend(receive(&mut at_faults));
    }
    poll_until("the last packet", || {
        let rest = receive(&mut at_faults);
        received.extend(rest.iter().cloned());
        rest.is_empty()
    });
    assert_eq!(faults.stats().rx_packets, received.len() as u64);
    received
}

fn numbers(frames: &[Vec<u8>]) -> Vec<usize> {
    frames.iter().map(|frame| u32::from_be_bytes(frame[14..18].try_into().expect("four bytes")) as usize).collect()
}

#[test]
fn a_million_packets_with_all_faults_and_no_buffer_is_lost() {
    let (mut faults, mut at_faults, mut far, mut at_far) = faulty(ALL);
    let pool = pool();
    let mut cache = pool.cache();
    let (mut there, mut back, mut received) = (Burst::new(64), Burst::new(256), Burst::new(32));
    let (mut sent, mut arrived) = (0u64, 0u64);
    while sent < 1_000_000 {
        if there.is_empty() {
            cache.alloc(&mut there);
            there.iter_mut().for_each(|packet| assert!(packet.copy_from(&sent.to_be_bytes())));
        }
        sent += at_faults.tx.tx_burst(&mut there) as u64;
        // The far end sends everything back.
        at_far.rx.rx_burst(&mut back);
        at_far.tx.tx_burst(&mut back);
        arrived += at_faults.rx.rx_burst(&mut received) as u64;
        received.clear();
    }
    let (near, far) = (faults.stats(), far.stats());
    // 10 % are dropped, and about 10 % of the others duplicated, each way.
    let share = |part: u64, of: u64| (part * 100).div_ceil(of);
    assert!((9..=11).contains(&share(near.tx_drops, sent)), "{near:?}");
    assert!((9..=11).contains(&share(near.rx_drops, far.tx_packets)), "{near:?}");
    assert!(near.rx_packets == arrived && near.tx_packets >= far.rx_packets);
    assert!((97..=101).contains(&share(far.rx_packets, sent)), "{far:?}");
    drop((there, back, received, cache, at_faults, at_far, faults));
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn the_seed_decides() {
    let (tx, rx) = (through_tx(ALL, 3000), through_rx(ALL, 3000));
    assert!(tx == through_tx(ALL, 3000) && rx == through_rx(ALL, 3000));
    assert!(tx != rx, "the directions differ");
    let other = FaultsConfig { seed: 43, ..ALL };
    assert!(tx != through_tx(other, 3000));
}

#[test]
fn each_fault_does_what_it_says() {
    let none = FaultsConfig::default();
    let frames: Vec<_> = (0..1000).map(|number| frame(number, 60 + number % 50)).collect();
    let all: Vec<usize> = (0..1000).collect();
    for through in [through_tx, through_rx] {
        assert!(through(none, 1000) == frames);
        assert_eq!(through(FaultsConfig { drop: 1.0, ..none }, 1000).len(), 0);

        let dropped = numbers(&through(FaultsConfig { drop: 0.3, ..none }, 1000));
        assert!(dropped.is_sorted() && (600..800).contains(&dropped.len()), "{}", dropped.len());

        let doubled = through(FaultsConfig { duplicate: 1.0, ..none }, 1000);
        assert!(doubled.chunks(2).zip(&frames).all(|(pair, frame)| pair == [frame.clone(), frame.clone()]));
        assert_eq!(doubled.len(), 2000);

        let reordered = numbers(&through(FaultsConfig { reorder: 0.3, ..none }, 1000));
        let moved = reordered.iter().enumerate().filter(|&(place, &number)| place != number).count();
        assert!((300..700).contains(&moved), "{moved}");
        assert!(reordered.iter().enumerate().all(|(place, &number)| place.abs_diff(number) <= 1));
        let mut sorted = reordered;
        sorted.sort_unstable();
        assert_eq!(sorted, all);

        let corrupted = through(FaultsConfig { corrupt: 1.0, ..none }, 1000);
        let mut places = HashMap::new();
        for (corrupted, frame) in corrupted.iter().zip(&frames) {
            let bits = corrupted.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones());
            assert_eq!((corrupted.len(), bits.sum::<u32>()), (frame.len(), 1));
            let place = corrupted.iter().zip(frame).position(|(a, b)| a != b);
            *places.entry(place).or_insert(0) += 1;
        }
        assert!(places.len() > 80, "bits all over the frame");
    }
}

#[test]
fn what_is_held_back_is_released_when_nothing_follows() {
    let always = FaultsConfig { reorder: 1.0, ..Default::default() };
    let (_faults, mut at_faults, _far, mut at_far) = faulty(always);
    let pool = pool();
    send(&mut at_far, &pool, &[frame(1, 60)]);
    assert_eq!(receive_exactly(&mut at_faults, 1), [frame(1, 60)]);
    send(&mut at_faults, &pool, &[frame(2, 60)]);
    assert_eq!(receive(&mut at_far).len(), 0);
    assert_eq!(at_faults.tx.tx_burst(&mut Burst::new(1)), 0);
    assert_eq!(receive(&mut at_far), [frame(2, 60)]);
}

#[test]
fn a_port_that_is_full_is_waited_for() {
    let (mut faults, mut at_faults, _far, mut at_far) = faulty(FaultsConfig { duplicate: 1.0, ..Default::default() });
    let pool: Mempool = pool();
    let frames: Vec<_> = (0..1000).map(|number| frame(number, 60)).collect();
    let (mut taken, mut received) = (0, Vec::new());
    while taken < frames.len() {
        let mut some = burst(&pool, &frames[taken..(taken + 200).min(frames.len())]);
        let count = at_faults.tx.tx_burst(&mut some);
        assert_eq!(
            numbers(&some.iter().map(|packet| packet.to_vec()).collect::<Vec<_>>())
                .first()
                .copied()
                .unwrap_or(taken + count),
            taken + count
        );
        taken += count;
        if count == 0 {
            received.extend(receive(&mut at_far));
        }
    }
    poll_until("the rest", || {
        received.extend(receive(&mut at_far));
        at_faults.tx.tx_burst(&mut Burst::new(1));
        received.len() == 2000
    });
    assert_eq!(numbers(&received), (0..2000).map(|i| i / 2).collect::<Vec<_>>());
    assert_eq!((faults.stats().tx_packets, faults.stats().tx_drops), (2000, 0));
}

#[test]
fn the_null_port_drops_and_counts_through_any_number_of_queues() {
    let null = Null::open(&PortConfig { queues: 3, ..Default::default() });
    let mut faults = Faults::wrap(Box::new(null), FaultsConfig::default(), &pool());
    assert_eq!(faults.name(), "faults:null");
    let (pool, mut all) = (pool(), faults.take_queues());
    assert_eq!((all.len(), faults.take_queues().len()), (3, 0));
    for queues in &mut all {
        send(queues, &pool, &[frame(1, 60), frame(2, 1515), vec![1; 13]]);
        assert_eq!(receive(queues).len(), 0);
    }
    let stats = faults.stats();
    assert_eq!((stats.tx_packets, stats.tx_bytes, stats.tx_drops, stats.rx_packets), (3, 180, 6, 0));
    assert_eq!(pool.outstanding(1), 0);
}
