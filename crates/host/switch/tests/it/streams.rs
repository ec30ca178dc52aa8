//! Tests of streams between two ports while other ports are added and removed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::common::*;
use ringpass_memory::{Burst, MAX_BATCH, Mempool};
use ringpass_port::QueuePair;
use ringpass_switch::{Counter, Switch};
use ringpass_testing::{Stop, poll_until};

/// Two datapaths run on their threads, each with a stream between two ports, while other ports are added, flood
/// frames and are removed: no frame of the streams and no buffer is lost.
#[test]
fn streams_go_on_while_peers_come_and_go() {
    const FRAMES: u32 = 100_000;
    let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(6)).unwrap());
    let datapaths = [(); 2].map(|()| switch.datapath(&pool, 64).unwrap());
    let (mut ends, stop, progress) = (Vec::new(), AtomicBool::new(false), Progress::default());
    for place in 0..2 {
        let (mut shares, mut far) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (share, end, _) = port();
            shares.push(share);
            far.push(end);
        }
        switch.insert(place, shares);
        ends.push(far);
    }
    let [left, right]: [Vec<QueuePair>; 2] = ends.try_into().ok().unwrap();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for datapath in datapaths {
            scope.spawn(|| work(datapath, &stop));
        }
        let _end = Stop(&progress.over);
        let streams: Vec<_> = left
            .into_iter()
            .zip(right)
            .zip(&progress.looks)
            .map(|(pair, looks)| {
                let (pool, progress) = (pool.clone(), &progress);
                scope.spawn(move || stream(pair, &pool, FRAMES, looks, progress))
            })
            .collect();
        let mut rounds = 0;
        while progress.arrived.load(Relaxed) < 2 || rounds < 50 {
            let before = [0, 1].map(|stream: usize| progress.looks[stream].load(Relaxed));
            let place = 2 + rounds % 4;
            let ((one, mut far, first), (other, _far, second)) = (port(), port());
            switch.insert(place, vec![one, other]);
            // Nothing is sent to the new port. It is learned from its frames, whose destination is not present.
            for number in 0..(rounds % 50) as u32 {
                send(&mut far, &pool, &frame(mac(99), mac(place as u8), number));
            }
            if rounds % 3 == 0 {
                poll_until("learned", || rounds % 50 == 0 || switch.counts(place).of(Counter::Learned) > 0);
            }
            switch.remove(place);
            if rounds % 2 == 0 {
                // A port that is removed at once, before the datapaths have dropped the previous one.
                let ((one, _, _), (other, _, _)) = (port(), port());
                switch.insert(place, vec![one, other]);
                switch.remove(place);
            }
            poll_until("dropped", || first.upgrade().is_none() && second.upgrade().is_none());
            assert!(switch.table().iter().all(|entry| entry.port < 2), "forgotten");
            // Wait until flooded frames have been received, so that the cables have room even if a stream's
            // thread is descheduled for long.
            let looked = |stream: usize| progress.looks[stream].load(Relaxed) > before[stream] + 1;
            poll_until("looks", || (0..2).all(|stream| looked(stream) || streams[stream].is_finished()));
            rounds += 1;
        }
        progress.over.store(true, Relaxed);
        streams.into_iter().for_each(|stream| stream.join().unwrap());
    });
    let counts = [0, 1].map(|port| switch.counts(port));
    assert_eq!(counts[0].of(Counter::Forwarded), u64::from(2 * FRAMES));
    // Nobody receives what is flooded to the other port.
    assert_eq!(counts[1].of(Counter::TxDrops), 0);
    drop(switch);
    assert_eq!(pool.outstanding(1), 0, "buffers came back");
}

/// Progress of the two streams.
#[derive(Default)]
struct Progress {
    /// How often each stream has polled for frames.
    looks: [AtomicU64; 2],
    /// Number of streams that have received all their frames.
    arrived: AtomicU64,
    /// Set when nothing more is flooded.
    over: AtomicBool,
}

/// Sends numbered frames from one end to the other, and asserts that all arrive in order, among frames that
/// others flood.
fn stream(
    (mut from, mut to): (QueuePair, QueuePair),
    pool: &Mempool,
    frames: u32,
    looks: &AtomicU64,
    progress: &Progress,
) {
    send(&mut to, pool, &frame(mac(98), mac(1), 0));
    poll_until("introduced", || receive(&mut from).iter().any(|frame| frame[11] == 1));
    let (mut sent, mut came, mut burst) = (0, 0, Burst::new(MAX_BATCH));
    while came < frames {
        while sent < frames && sent < came + 200 {
            burst.push(packet(pool, &frame(mac(1), mac(0), sent)));
            sent += 1;
            if burst.room() == 0 || sent == came + 200 {
                break;
            }
        }
        from.tx.tx_burst(&mut burst);
        assert!(burst.is_empty(), "the cable has room");
        poll_until("a frame", || {
            let own = receive(&mut to).into_iter().filter(|frame| frame[..12] == [mac(1), mac(0)].concat());
            let before = came;
            for frame in own {
                assert_eq!(u32::from_be_bytes(frame[14..18].try_into().unwrap()), came);
                came += 1;
            }
            receive(&mut from);
            looks.fetch_add(1, Relaxed);
            came > before
        });
    }
    progress.arrived.fetch_add(1, Relaxed);
    while !progress.over.load(Relaxed) {
        receive(&mut to);
        receive(&mut from);
        looks.fetch_add(1, Relaxed);
        thread::yield_now();
    }
}
