//! Two NICs on one cable, and the thread that steps them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Packet};
use ringpass_models::Runner;
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};

use crate::ixgbe::driver::{Driver, frame, own_mac, scripted};

type Way = Arc<Mutex<VecDeque<Packet>>>;

struct End(Way);

impl Wakeable for End {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for End {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut way = self.0.lock().unwrap();
        let count = way.len().min(burst.room());
        way.drain(..count).for_each(|packet| burst.push(packet));
        count
    }
}

impl TxQueue for End {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        self.0.lock().unwrap().extend(burst.drain());
        count
    }
}

fn cable() -> (QueuePair, QueuePair) {
    let (there, back) = (Way::default(), Way::default());
    let end = |rx: &Way, tx: &Way| QueuePair { rx: Box::new(End(rx.clone())), tx: Box::new(End(tx.clone())) };
    (end(&back, &there), end(&there, &back))
}

fn numbered(i: u32) -> Vec<u8> {
    [&frame(own_mac(), 60 + i as usize % 1400)[..], &i.to_le_bytes()].concat()
}

#[test]
fn two_cards_talk_over_a_cable() {
    let (mut a, mut b) = (Driver::started(), Driver::started());
    (a.queues, b.queues) = cable();
    for i in 0..500 {
        a.send_frame(0, &numbered(i));
        b.send_frame(0, &numbered(i + 1));
        a.step();
        assert_eq!(b.receive_all(0), [numbered(i)]);
        assert_eq!(a.receive_all(0), [numbered(i + 1)]);
    }
    let (a, b) = (a.card.counters(), b.card.counters());
    assert_eq!((a.tx_packets, a.tx_bytes), (b.rx_packets, b.rx_bytes));
    assert_eq!((b.tx_packets, b.tx_bytes), (a.rx_packets, a.rx_bytes));
    assert_eq!(a.rx_packets, 500);
}

#[test]
fn a_wire_that_holds_all_buffers_costs_frames_but_not_the_queue() {
    let mut driver = Driver::started();
    let (near, mut far) = cable();
    driver.queues = near;
    let send = |driver: &mut Driver| driver.send_frame(0, &numbered(0));
    (0..5000).for_each(|_| send(&mut driver));
    let counters = driver.card.counters();
    assert!(counters.tx_no_buffer > 0, "{counters:?}");
    assert_eq!(counters.tx_packets + counters.tx_no_buffer, 5000);
    let mut burst = Burst::new(256);
    while far.rx.rx_burst(&mut burst) > 0 {
        burst.clear();
    }
    send(&mut driver);
    assert_eq!(far.rx.rx_burst(&mut burst), 1);
}

#[test]
fn a_runner_steps_cards_until_it_is_dropped() {
    for poll in [false, true] {
        let (mut a, mut b) = (Driver::started(), Driver::started());
        let (to_a, to_b) = cable();
        let runner = Runner::spawn(
            vec![(a.card.clone(), to_a), (b.card.clone(), to_b)],
            Some(0),
            ringpass_port::Idle::new(poll),
        );
        let start = Instant::now();
        let mut received = 0;
        for i in 0..200 {
            // The driver's own queues are not the cable, so the driver must only ring and not step.
            a.queues = scripted().0;
            a.put(0, &numbered(i), 1 << 24 | 1 << 25, numbered(i).len());
            a.window.write(ringpass_pci::registers::ixgbe::TDT.at(0), (i + 1) % 64);
            loop {
                let frames = b.receive_all(0);
                frames.iter().for_each(|bytes| {
                    assert_eq!(*bytes, numbered(received));
                    received += 1;
                });
                if received == i + 1 {
                    break;
                }
                assert!(start.elapsed() < Duration::from_secs(20), "{received} of {i} after 20 s");
                std::thread::yield_now();
            }
        }
        drop(runner);
        let before = a.card.counters();
        a.put(0, &numbered(0), 1 << 24 | 1 << 25, 64);
        a.window.write(ringpass_pci::registers::ixgbe::TDT.at(0), 201 % 64);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(a.card.counters(), before, "stopped");
    }
}
