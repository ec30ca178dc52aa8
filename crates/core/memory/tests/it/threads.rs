//! Tests in which one thread takes buffers and another gives them back.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::common::{count, mark, number, pool, take};
use ringpass_memory::{Burst, Packet};

const BATCH: usize = 32;

#[test]
fn one_thread_allocates_and_another_frees() {
    let packets = count(1_000_000, 400) as u64;
    let pool = pool(count(1024, 128), 64);
    let (to_consumer, from_producer) = sync_channel::<Burst>(4);
    let mut cache = pool.cache();
    let producer = thread::spawn(move || {
        let mut sent = 0;
        while sent < packets {
            let mut burst = Burst::new(BATCH.min((packets - sent) as usize));
            cache.alloc(&mut burst);
            for packet in burst.iter_mut() {
                mark(packet, sent);
                sent += 1;
            }
            to_consumer.send(burst).unwrap();
        }
    });
    let mut expected = 0;
    for mut burst in from_producer {
        for packet in burst.iter() {
            assert_eq!(number(packet), expected);
            expected += 1;
        }
        // Some packets are dropped alone, most with their burst.
        drop(burst.pop());
    }
    producer.join().unwrap();
    assert_eq!(expected, packets);
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn two_threads_allocate_from_one_pool_and_free_each_others() {
    let rounds = count(10_000, 10) as u64;
    let pool = pool(count(512, 150), 64);
    // The bound is below the number of buffers, so that both threads always find free ones again.
    let (to_a, from_b) = sync_channel::<Burst>(2);
    let (to_b, from_a) = sync_channel::<Burst>(2);
    let worker = |id: u64, to, from: std::sync::mpsc::Receiver<Burst>| {
        let (to, mut cache): (std::sync::mpsc::SyncSender<Burst>, _) = (to, pool.cache());
        move || {
            let mut received = 0;
            for round in 0..rounds {
                let mut burst = Burst::new(BATCH);
                cache.alloc(&mut burst);
                burst.iter_mut().for_each(|packet| mark(packet, id << 32 | round));
                to.send(burst).unwrap();
                let burst = from.recv().unwrap();
                assert!(burst.iter().all(|packet| number(packet) == (1 - id) << 32 | round));
                received += burst.len();
            }
            received
        }
    };
    let a = thread::spawn(worker(0, to_b, from_b));
    let b = thread::spawn(worker(1, to_a, from_a));
    assert!(a.join().unwrap() + b.join().unwrap() > 0);
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn the_last_packet_frees_the_pool() {
    let pool = pool(256, 64);
    let region = Arc::downgrade(pool.region());
    let mut cache = pool.cache();
    let mut packets = take(&mut cache, 40);
    drop((cache, pool));
    assert!(packets.iter_mut().all(|packet| packet.prepend(8) && packet.array(0) == Some([0; 8])));
    let last = packets.pop().unwrap();
    thread::spawn(move || drop(packets)).join().unwrap();
    assert!(region.upgrade().is_some(), "freed below a packet");
    drop(last);
    assert!(region.upgrade().is_none(), "kept by nobody");
}

#[test]
fn the_last_user_frees_the_pool_once() {
    for _ in 0..count(2000, 20) {
        let pool = pool(8, 64);
        let region = Arc::downgrade(pool.region());
        let start = Arc::new(Barrier::new(3));
        let drop_at_start = |what: Box<dyn Send>| {
            let start = start.clone();
            thread::spawn(move || {
                start.wait();
                drop(what);
            })
        };
        let packets: Vec<Packet> = (0..3).map(|_| pool.alloc().unwrap()).collect();
        let mut burst = Burst::new(2);
        pool.cache().alloc(&mut burst);
        let threads = [drop_at_start(Box::new(packets)), drop_at_start(Box::new(burst))];
        start.wait();
        drop(pool);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(region.upgrade().is_none());
    }
}
