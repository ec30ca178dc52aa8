//! Tests of the driver on a card that misbehaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{FakeCard, each_kind};
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_pci::registers::ixgbe::descriptor::{RX_DD, RX_EOP, RX_LENGTH_SHIFT, TX_DD, TX_EOP, TX_PAYLEN_SHIFT};
use ringpass_port::{Port, PortConfig, QueuePair, State};

fn open(straw: &Arc<FakeCard>, config: &PortConfig) -> (Box<dyn Port>, QueuePair) {
    let mut port = straw.open(config, &pool()).unwrap();
    let queues = port.take_queues().remove(0);
    (port, queues)
}

fn pool() -> Mempool {
    Mempool::new(&MempoolConfig::default()).unwrap()
}

fn small() -> PortConfig {
    PortConfig { rx_ring: 64, tx_ring: 64, ..Default::default() }
}

fn good(len: u64) -> u64 {
    RX_DD | RX_EOP | len << RX_LENGTH_SHIFT
}

#[test]
fn an_honest_card_is_read_right() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, mut queues) = open(&straw, &small());
        assert_eq!(port.mac().to_string(), "02:00:00:01:02:03");
        assert_eq!((port.link().up, port.link().mbps), (true, kind.mbps));
        assert_eq!(straw.bus_master.load(Ordering::Acquire), 1);
        assert_eq!(straw.get(kind.rdlen), 64 * 16);
        assert_eq!(straw.get(kind.rdt), 63, "one descriptor stays free");
        (0..3).for_each(|i| straw.rx(i, 1).store(good(60 + u64::from(i)), Ordering::Release));
        let mut burst = Burst::new(32);
        assert_eq!(queues.rx.rx_burst(&mut burst), 3);
        assert_eq!(burst.iter().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 61, 62]);
        assert_eq!(queues.tx.tx_burst(&mut burst), 3);
        assert_eq!(straw.get(kind.tdt), 3);
        let command = straw.tx(1, 1).load(Ordering::Acquire);
        assert_eq!((command & 0xffff, command >> TX_PAYLEN_SHIFT, command & TX_EOP), (61, 61, TX_EOP));
    });
}

#[test]
fn faulty_frames_are_dropped_and_counted() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, mut queues) = open(&straw, &small());
        let lies = [
            good(2049), // longer than the buffer
            good(0xffff),
            good(0),
            good(13),                     // no Ethernet header
            good(60) & !RX_EOP,           // never ends
            good(60) | kind.rx_errors[0], // reported as faulty
            good(60),
        ];
        lies.iter().enumerate().for_each(|(i, &lie)| straw.rx(i as u32, 1).store(lie, Ordering::Release));
        let mut burst = Burst::new(32);
        assert_eq!(queues.rx.rx_burst(&mut burst), 1);
        assert_eq!(burst[0].len(), 60);
        assert_eq!(port.stats().rx_drops, 6);
    });
}

/// A frame that never ends, with one byte per buffer, holds a few buffers but not the whole pool.
#[test]
fn a_frame_that_never_ends_takes_few_buffers() {
    each_kind(|kind| {
        const BUFFERS: usize = 1024;
        let (straw, config) = (FakeCard::new(kind), PortConfig { mtu: 9000, ..small() });
        let pool = Mempool::new(&MempoolConfig { buffers: BUFFERS, ..Default::default() }).unwrap();
        let mut port = straw.open(&config, &pool).unwrap();
        let mut queues = port.take_queues().remove(0);
        let mut burst = Burst::new(256);
        for _ in 0..100 {
            (0..64).for_each(|i| straw.rx(i, 1).store(good(1) & !RX_EOP, Ordering::Release));
            assert_eq!(queues.rx.rx_burst(&mut burst), 0);
        }
        let left: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        // The ring holds 64, and the queue's cache up to 256.
        assert!(left.len() >= BUFFERS - 64 - 256 - 11, "{} of {BUFFERS} are left", left.len());
        drop(left);
        // Frames after its end are received.
        (0..64).for_each(|i| straw.rx(i, 1).store(good(60), Ordering::Release));
        assert!(queues.rx.rx_burst(&mut burst) > 0);
        assert!(burst.iter().all(|packet| packet.len() == 60));
        assert_eq!(port.stats().rx_drops, 1);
    });
}

#[test]
fn descriptors_that_were_not_posted_are_not_believed() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (_port, mut queues) = open(&straw, &small());
        // The card claims the whole ring, of which 63 descriptors were posted, again and again.
        let mut burst = Burst::new(256);
        let mut received = 0;
        for _ in 0..1000 {
            (0..64).for_each(|i| straw.rx(i, 1).store(good(60), Ordering::Release));
            received += queues.rx.rx_burst(&mut burst);
            assert!(burst.len() <= 63);
            burst.clear();
        }
        assert!(received >= 1000);
        // No buffer is handed out twice: all packets held at once are distinct.
        let mut seen = std::collections::HashSet::new();
        for _ in 0..8 {
            (0..64).for_each(|i| straw.rx(i, 1).store(good(60), Ordering::Release));
            queues.rx.rx_burst(&mut burst);
        }
        assert!(burst.iter().all(|packet| seen.insert(packet.as_ptr())));
    });
}

#[test]
fn sent_before_posted_is_not_believed() {
    each_kind(|kind| {
        for head_write_back in [false, true] {
            let straw = FakeCard::new(kind);
            let (_port, mut queues) = open(&straw, &PortConfig { head_write_back, ..small() });
            let pool = Mempool::new(&MempoolConfig { buffers: 256, ..Default::default() }).unwrap();
            let mut cache = pool.cache();
            let mut burst = Burst::new(256);
            let mut send = |queues: &mut QueuePair, n: usize| {
                let mut some = Burst::new(n);
                cache.alloc(&mut some);
                some.iter_mut().for_each(|packet| packet.set_len(60));
                some.drain().for_each(|packet| burst.push(packet));
                let sent = queues.tx.tx_burst(&mut burst);
                burst.clear();
                sent
            };
            assert_eq!(send(&mut queues, 20), 20);
            // The card marks all descriptors as done, but only 20 were posted.
            (0..64).for_each(|i| straw.tx(i, 1).store(TX_DD, Ordering::Release));
            if head_write_back {
                let at = u64::from(straw.get(kind.tdwbal)) | u64::from(straw.get(kind.tdwbah)) << 32;
                assert_eq!(at & 1, 1);
                // SAFETY: the driver gave the card this address for the head. It lies in the ring's region, which
                // stays mapped while the queue lives.
                let head = unsafe { &*((at & !3) as *const std::sync::atomic::AtomicU32) };
                for lie in [40, 64, 0xffff_ffff] {
                    head.store(lie, Ordering::Release);
                    send(&mut queues, 1);
                }
                head.store(0, Ordering::Release);
            } else {
                send(&mut queues, 3);
            }
            // The ring is full at 63, as nothing was reclaimed: 23 are posted already.
            assert_eq!(send(&mut queues, 100), 40, "head write-back: {head_write_back}");
        }
    });
}

#[test]
fn frames_that_cannot_be_sent_are_refused_and_counted() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, mut queues) = open(&straw, &small());
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let mut burst = Burst::new(4);
        pool.cache().alloc(&mut burst);
        [0, 16, 1519, 1518].iter().zip(burst.iter_mut()).for_each(|(&len, packet)| packet.set_len(len));
        assert_eq!(queues.tx.tx_burst(&mut burst), 4);
        assert_eq!(port.stats().tx_drops, 3);
        assert_eq!(straw.get(kind.tdt), 1);
    });
}

#[test]
fn a_card_that_never_gets_ready_is_an_error() {
    each_kind(|kind| {
        for &(register, value, name) in kind.never_ready {
            let straw = FakeCard::new(kind);
            straw.stick(register, value);
            let error = straw.open(&small(), &pool()).err().unwrap();
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("does not answer") && !text.contains('\n'), "{text}");
            assert_eq!(straw.bus_master.load(Ordering::Acquire), 0, "{name}: the card may no longer start DMA");
        }
    });
}

#[test]
fn a_card_that_is_gone_is_noticed_and_dropped_in_time() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, queues) = open(&straw, &small());
        assert!(matches!(port.state(), State::Running));
        for offset in [kind.status, kind.rxdctl, kind.txdctl] {
            straw.stick(offset, u32::MAX);
        }
        assert!(matches!(port.state(), State::Gone(_)));
        let start = std::time::Instant::now();
        drop(queues);
        drop(port);
        assert!(start.elapsed().as_millis() < 1500, "each wait for an answer would take a second");
    });
}

#[test]
fn a_card_that_is_gone_keeps_its_last_statistics() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, _queues) = open(&straw, &small());
        straw.stick(kind.counters[0], 7);
        assert_eq!(port.stats().rx_packets, 7);
        kind.counters.iter().for_each(|&counter| straw.stick(counter, u32::MAX));
        straw.stick(kind.status, u32::MAX);
        assert_eq!((port.stats().rx_packets, port.stats().rx_bytes, port.stats().tx_bytes), (7, 0, 0));
    });
}

#[test]
fn octets_of_a_frame_may_be_counted_before_the_frame() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, _queues) = open(&straw, &small());
        let [.., sent, octets, _] = kind.counters;
        straw.stick(octets, if kind.octets_clear { 64 } else { 128 });
        assert_eq!(
            (port.stats().tx_packets, port.stats().tx_bytes),
            (0, 128),
            "the second read gives as much, or nothing"
        );
        if kind.octets_clear {
            straw.stick(octets, 0);
        }
        straw.stick(sent, 2);
        let stats = port.stats();
        assert_eq!((stats.tx_packets, stats.tx_bytes), (2, 120));
    });
}

#[test]
fn a_configuration_out_of_range_is_refused() {
    each_kind(|kind| {
        for config in [
            PortConfig { rx_ring: 100, ..Default::default() },
            PortConfig { tx_ring: 32, ..Default::default() },
            PortConfig { rx_ring: 8192, ..Default::default() },
            PortConfig { queues: 0, ..Default::default() },
            PortConfig { queues: 17, ..Default::default() },
            PortConfig { mtu: kind.max_mtu + 1, ..Default::default() },
        ] {
            assert!(FakeCard::new(kind).open(&config, &pool()).is_err(), "{config:?}");
        }
    });
}

#[test]
fn a_card_that_stops_sending_is_reported_but_not_one_without_a_link() {
    each_kind(|kind| {
        let straw = FakeCard::new(kind);
        let (mut port, mut queues) = open(&straw, &small());
        let pool = pool();
        let fill = |queues: &mut QueuePair| {
            let mut burst = Burst::new(64);
            pool.cache().alloc(&mut burst);
            burst.iter_mut().for_each(|packet| packet.set_len(60));
            queues.tx.tx_burst(&mut burst);
        };
        let report = |port: &mut dyn Port, queues: &mut QueuePair| {
            fill(queues);
            match port.state() {
                State::Gone(why) => Some(why),
                _ => None,
            }
        };
        assert_eq!(report(&mut *port, &mut queues), None, "it has just begun");
        std::thread::sleep(std::time::Duration::from_millis(2100));
        straw.stick(kind.link.0, 0);
        assert_eq!(report(&mut *port, &mut queues), None);
        assert_eq!(report(&mut *port, &mut queues), None, "there is no link");
        straw.stick(kind.link.0, kind.link.1);
        assert_eq!(report(&mut *port, &mut queues), None, "it may be about to go on");
        let why = report(&mut *port, &mut queues).expect("stuck");
        assert!(why.contains("sent nothing"), "{why}");
    });
}
