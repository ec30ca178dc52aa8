//! What the driver does when the card misbehaves.

mod common;

use std::sync::atomic::Ordering;

use common::{Straw, StrawBus};
use ringpass_ixgbe::Ixgbe;
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{Port, PortConfig, Queues, State};
use ringpass_registers::ixgbe::{bits::*, descriptor::*, *};

fn open(straw: &std::sync::Arc<Straw>, config: &PortConfig) -> (Ixgbe, Queues) {
    let mut port = Ixgbe::open(std::sync::Arc::new(StrawBus(straw.clone())), "straw", config, &pool()).unwrap();
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
    let straw = Straw::new();
    let (mut port, mut queues) = open(&straw, &small());
    assert_eq!(port.mac().to_string(), "02:00:00:01:02:03");
    assert_eq!((port.link().up, port.link().mbps), (true, 10_000));
    assert_eq!(straw.bus_master.load(Ordering::Acquire), 1);
    assert_eq!(straw.get(RDLEN.at(0).offset), 64 * 16);
    assert_eq!(straw.get(RDT.at(0).offset), 63, "one descriptor stays free");
    (0..3).for_each(|i| straw.rx(i, 1).store(good(60 + u64::from(i)), Ordering::Release));
    let mut burst = Burst::new(32);
    assert_eq!(queues.rx.rx_burst(&mut burst), 3);
    assert_eq!(burst.iter().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 61, 62]);
    assert_eq!(queues.tx.tx_burst(&mut burst), 3);
    assert_eq!(straw.get(TDT.at(0).offset), 3);
    let command = straw.tx(1, 1).load(Ordering::Acquire);
    assert_eq!((command & 0xffff, command >> TX_PAYLEN_SHIFT, command & TX_EOP), (61, 61, TX_EOP));
}

#[test]
fn faulty_frames_are_dropped_and_counted() {
    let straw = Straw::new();
    let (mut port, mut queues) = open(&straw, &small());
    let lies = [
        good(2049), // beyond the buffer
        good(0xffff),
        good(0),
        good(13),           // no Ethernet header
        good(60) & !RX_EOP, // never ends
        good(60) | RX_RXE,  // says itself that it is bad
        good(60),
    ];
    lies.iter().enumerate().for_each(|(i, &lie)| straw.rx(i as u32, 1).store(lie, Ordering::Release));
    let mut burst = Burst::new(32);
    assert_eq!(queues.rx.rx_burst(&mut burst), 1);
    assert_eq!(burst[0].len(), 60);
    assert_eq!(port.stats().rx_drops, 6);
}

/// A frame that never ends, a byte in each buffer: the card keeps a few buffers for it, not the whole pool.
#[test]
fn a_frame_that_never_ends_takes_few_buffers() {
    const BUFFERS: usize = 1024;
    let (straw, config) = (Straw::new(), PortConfig { mtu: 9000, ..small() });
    let pool = Mempool::new(&MempoolConfig { buffers: BUFFERS, ..Default::default() }).unwrap();
    let mut port = Ixgbe::open(std::sync::Arc::new(StrawBus(straw.clone())), "straw", &config, &pool).unwrap();
    let mut queues = port.take_queues().remove(0);
    let mut burst = Burst::new(256);
    for _ in 0..100 {
        (0..64).for_each(|i| straw.rx(i, 1).store(good(1) & !RX_EOP, Ordering::Release));
        assert_eq!(queues.rx.rx_burst(&mut burst), 0);
    }
    let left: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    // The ring has 64, and the queue's cache up to 256.
    assert!(left.len() >= BUFFERS - 64 - 256 - 11, "{} of {BUFFERS} are left", left.len());
    drop(left);
    // What follows its end is received.
    (0..64).for_each(|i| straw.rx(i, 1).store(good(60), Ordering::Release));
    assert!(queues.rx.rx_burst(&mut burst) > 0);
    assert!(burst.iter().all(|packet| packet.len() == 60));
    assert_eq!(port.stats().rx_drops, 1);
}

#[test]
fn descriptors_that_were_not_posted_are_not_believed() {
    let straw = Straw::new();
    let (_port, mut queues) = open(&straw, &small());
    // The card claims the whole ring, of which 63 descriptors were posted; then all of it, again and again.
    let mut burst = Burst::new(256);
    let mut received = 0;
    for _ in 0..1000 {
        (0..64).for_each(|i| straw.rx(i, 1).store(good(60), Ordering::Release));
        received += queues.rx.rx_burst(&mut burst);
        assert!(burst.len() <= 63);
        burst.clear();
    }
    assert!(received >= 1000);
    // No buffer is handed out twice: all at once are distinct.
    let mut seen = std::collections::HashSet::new();
    for _ in 0..8 {
        (0..64).for_each(|i| straw.rx(i, 1).store(good(60), Ordering::Release));
        queues.rx.rx_burst(&mut burst);
    }
    assert!(burst.iter().all(|packet| seen.insert(packet.as_ptr())));
}

#[test]
fn sent_before_posted_is_not_believed() {
    for head_write_back in [false, true] {
        let straw = Straw::new();
        let (_port, mut queues) = open(&straw, &PortConfig { head_write_back, ..small() });
        let pool = Mempool::new(&MempoolConfig { buffers: 256, ..Default::default() }).unwrap();
        let mut cache = pool.cache();
        let mut burst = Burst::new(256);
        let mut send = |queues: &mut Queues, n: usize| {
            let mut some = Burst::new(n);
            cache.alloc(&mut some);
            some.iter_mut().for_each(|packet| packet.set_len(60));
            some.drain().for_each(|packet| burst.push(packet));
            let sent = queues.tx.tx_burst(&mut burst);
            burst.clear();
            sent
        };
        assert_eq!(send(&mut queues, 20), 20);
        // Done, says the card, of descriptors of which only 20 were posted.
        (0..64).for_each(|i| straw.tx(i, 1).store(TX_DD, Ordering::Release));
        if head_write_back {
            let at = u64::from(straw.get(TDWBAL.at(0).offset)) | u64::from(straw.get(TDWBAH.at(0).offset)) << 32;
            assert_eq!(at & 1, 1);
            // SAFETY: the driver said to write the head there; the ring's region is mapped as long as the queue lives.
            let head = unsafe { &*((at & !3) as *const std::sync::atomic::AtomicU32) };
            for lie in [40, 64, 0xffff_ffff] {
                head.store(lie, Ordering::Release);
                send(&mut queues, 1);
            }
            head.store(0, Ordering::Release);
        } else {
            send(&mut queues, 3);
        }
        // The ring fills up at 63, as nothing was reclaimed: 23 are in it.
        assert_eq!(send(&mut queues, 100), 40, "head write-back: {head_write_back}");
    }
}

#[test]
fn frames_that_cannot_be_sent_are_refused_and_counted() {
    let straw = Straw::new();
    let (mut port, mut queues) = open(&straw, &small());
    let pool = Mempool::new(&MempoolConfig::default()).unwrap();
    let mut burst = Burst::new(4);
    pool.cache().alloc(&mut burst);
    [0, 16, 1519, 1518].iter().zip(burst.iter_mut()).for_each(|(&len, packet)| packet.set_len(len));
    assert_eq!(queues.tx.tx_burst(&mut burst), 4);
    assert_eq!(port.stats().tx_drops, 3);
    assert_eq!(straw.get(TDT.at(0).offset), 1);
}

#[test]
fn a_card_that_never_gets_ready_is_an_error() {
    for (register, value, name) in [
        (CTRL.offset, CTRL_RST, "CTRL"),
        (EEC.offset, 0, "EEC"),
        (RDRXCTL.offset, 0, "RDRXCTL"),
        (RXDCTL.at(0).offset, 0, "RXDCTL"),
        (TXDCTL.at(0).offset, 0, "TXDCTL"),
    ] {
        let straw = Straw::new();
        straw.stick(register, value);
        let error =
            Ixgbe::open(std::sync::Arc::new(StrawBus(straw.clone())), "straw", &small(), &pool()).err().unwrap();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("does not answer") && !text.contains('\n'), "{text}");
        assert_eq!(straw.bus_master.load(Ordering::Acquire), 0, "{name}: the card may no longer start DMA");
    }
}

#[test]
fn a_card_that_is_gone_is_noticed_and_dropped_in_time() {
    let straw = Straw::new();
    let (mut port, queues) = open(&straw, &small());
    assert!(matches!(port.state(), State::Running));
    for offset in [STATUS.offset, RXDCTL.at(0).offset, TXDCTL.at(0).offset] {
        straw.stick(offset, u32::MAX);
    }
    assert!(matches!(port.state(), State::Gone(_)));
    let start = std::time::Instant::now();
    drop(queues);
    drop(port);
    assert!(start.elapsed().as_secs() < 10, "waits have limits");
}

#[test]
fn a_card_that_is_gone_keeps_its_last_statistics() {
    let straw = Straw::new();
    let (mut port, _queues) = open(&straw, &small());
    straw.stick(QPRC.at(0).offset, 7);
    assert_eq!(port.stats().rx_packets, 7);
    let counters = [QPRC.at(0), QBRC_L.at(0), QBRC_H.at(0), GPTC, GOTCL, GOTCH];
    counters.iter().for_each(|counter| straw.stick(counter.offset, u32::MAX));
    straw.stick(STATUS.offset, u32::MAX);
    assert_eq!((port.stats().rx_packets, port.stats().rx_bytes, port.stats().tx_bytes), (7, 0, 0));
}

#[test]
fn octets_of_a_frame_may_be_counted_before_the_frame() {
    let straw = Straw::new();
    let (mut port, _queues) = open(&straw, &small());
    straw.stick(GOTCL.offset, 64);
    assert_eq!((port.stats().tx_packets, port.stats().tx_bytes), (0, 128), "each read gives 64");
    straw.stick(GOTCL.offset, 0);
    straw.stick(GPTC.offset, 2);
    let stats = port.stats();
    assert_eq!((stats.tx_packets, stats.tx_bytes), (2, 120));
}

#[test]
fn a_configuration_out_of_range_is_refused() {
    for config in [
        PortConfig { rx_ring: 100, ..Default::default() },
        PortConfig { tx_ring: 32, ..Default::default() },
        PortConfig { rx_ring: 8192, ..Default::default() },
        PortConfig { queues: 0, ..Default::default() },
        PortConfig { queues: 17, ..Default::default() },
        PortConfig { mtu: 9711, ..Default::default() },
    ] {
        assert!(
            Ixgbe::open(std::sync::Arc::new(StrawBus(Straw::new())), "straw", &config, &pool()).is_err(),
            "{config:?}"
        );
    }
}

#[test]
fn a_card_that_stops_sending_is_reported_but_not_one_without_a_link() {
    let straw = Straw::new();
    let (mut port, mut queues) = open(&straw, &small());
    let pool = pool();
    let fill = |queues: &mut Queues| {
        let mut burst = Burst::new(64);
        pool.cache().alloc(&mut burst);
        burst.iter_mut().for_each(|packet| packet.set_len(60));
        queues.tx.tx_burst(&mut burst);
    };
    let report = |port: &mut Ixgbe, queues: &mut Queues| {
        fill(queues);
        match port.state() {
            State::Gone(why) => Some(why),
            _ => None,
        }
    };
    assert_eq!(report(&mut port, &mut queues), None, "it has just begun");
    std::thread::sleep(std::time::Duration::from_millis(2100));
    straw.stick(LINKS.offset, 0);
    assert_eq!(report(&mut port, &mut queues), None);
    assert_eq!(report(&mut port, &mut queues), None, "there is no link");
    straw.stick(LINKS.offset, LINKS_UP | LINKS_SPEED_10G);
    assert_eq!(report(&mut port, &mut queues), None, "it may be about to go on");
    let why = report(&mut port, &mut queues).expect("stuck");
    assert!(why.contains("sent nothing"), "{why}");
}
