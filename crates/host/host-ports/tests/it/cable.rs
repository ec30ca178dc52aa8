//! Tests of cables: order, counters, and both ends on threads of their own.

use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_host_ports::cable;
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{Port, State};

#[test]
fn packets_cross_in_order_between_threads_in_both_directions() {
    const PACKETS: u32 = 300_000;
    let (mut left, mut right) = cable("c", 256);
    let pools: Vec<Mempool> = (0..2).map(|_| pool()).collect();
    std::thread::scope(|scope| {
        for (pool, mut queues) in pools.iter().zip([queues(&mut left), queues(&mut right)]) {
            scope.spawn(move || {
                let (mut cache, mut sending, mut receiving) = (pool.cache(), Burst::new(32), Burst::new(64));
                let (mut sent, mut received) = (0u32, 0u32);
                // Continue while packets move, which is slow when the machine is busy.
                let mut moved = Instant::now();
                while !sending.is_empty() || sent < PACKETS || received < sent {
                    if sending.is_empty() && sent < PACKETS {
                        cache.alloc(&mut sending);
                        for packet in sending.iter_mut() {
                            assert!(packet.copy_from(&sent.to_be_bytes()));
                            sent += 1;
                        }
                    }
                    let taken = queues.tx.tx_burst(&mut sending);
                    queues.rx.rx_burst(&mut receiving);
                    for packet in receiving.iter() {
                        assert_eq!(packet.to_vec(), received.to_be_bytes());
                        received += 1;
                    }
                    if taken + receiving.len() > 0 {
                        moved = Instant::now();
                    } else {
                        assert!(moved.elapsed() < Duration::from_secs(60), "{received} packets, and no more");
                        std::thread::yield_now();
                    }
                    receiving.clear();
                }
            });
        }
    });
    let (left, right) = (left.stats(), right.stats());
    assert!(left.tx_packets >= PACKETS.into() && left.tx_packets == right.rx_packets);
    assert!(left.rx_packets == right.tx_packets && left.rx_bytes == 4 * left.rx_packets);
    assert!(pools.iter().all(|pool| pool.outstanding(1) == 0));
}

#[test]
fn a_full_cable_takes_no_more_and_what_is_in_it_is_returned() {
    let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).expect("memory for a test");
    let (mut left, mut right) = cable("c", 16);
    assert_eq!((left.name(), right.name()), ("c/0", "c/1"));
    let (mut at_left, mut at_right) = (queues(&mut left), queues(&mut right));
    assert!(left.take_queues().is_empty());
    let mut sending = burst(&pool, &frames(20));
    assert_eq!(at_left.tx.tx_burst(&mut sending), 16);
    assert_eq!((sending.len(), at_left.tx.tx_burst(&mut sending)), (4, 0));
    let mut three = Burst::new(3);
    assert_eq!(at_right.rx.rx_burst(&mut three), 3);
    assert_eq!(at_left.tx.tx_burst(&mut sending), 3);
    let received: Vec<Vec<u8>> = three.iter().map(|packet| packet.to_vec()).collect();
    assert_eq!(received, frames(3));
    assert_eq!((left.stats().tx_packets, right.stats().rx_packets), (19, 3));
    drop((three, sending));
    assert_eq!(pool.outstanding(1), 16);

    // The other end is dropped: later packets are dropped, and the port reports it.
    assert!(matches!(left.state(), State::Running) && left.link().up);
    drop((at_right, right));
    send(&mut at_left, &pool, &frames(5));
    assert!(matches!(left.state(), State::Gone(_)) && !left.link().up);
    assert_eq!((left.stats().tx_packets, left.stats().tx_drops), (19, 5));
    drop(at_left);
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn what_was_sent_before_the_other_end_went_is_still_received() {
    let pool = pool();
    let (mut left, mut right) = cable("c", 64);
    let (mut at_left, mut at_right) = (queues(&mut left), queues(&mut right));
    send(&mut at_left, &pool, &frames(40));
    drop((at_left, left));
    assert!(matches!(right.state(), State::Running));
    assert_eq!(receive_exactly(&mut at_right, 40), frames(40));
    assert_eq!(receive(&mut at_right).len(), 0);
    assert!(matches!(right.state(), State::Gone(_)));
}
