//! A native port, by copying and by exchange: frames that the port has no room for, frames without a program,
//! several queues, and blocking.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use crate::programs::{BROADCAST, frame, mac};
use crate::wires::{Port, link};
use ringpass_memory::{Mempool, MempoolConfig};
use ringpass_netmap::csb::Csb;
use ringpass_netmap::{Flags, Offsets, Slot};
use ringpass_netmap_server::{PollingMode, RingForwarder, SwitchLinks};
use ringpass_port::{Idle, WakeSource, Wakeable};

macro_rules! either_way {
    ($($test:ident, $queues:literal;)*) => {$(
        mod $test {
            #[test]
            fn copying() {
                super::$test(super::Port::copying($queues));
            }

            #[test]
            fn exchanging() {
                super::$test(super::Port::exchanging($queues));
            }
        }
    )*};
}

either_way! {
    what_the_port_has_no_room_for_waits_in_the_ring, 1;
    what_nobody_takes_is_dropped_and_counted, 1;
    rings_are_those_of_queues, 3;
    attached_to_a_switch, 2;
    queues_polled_by_threads, 3;
    frames_have_offsets, 1;
    sleep, 2;
    programs_that_write_anything, 2;
}

/// While the port accepts nothing, frames stay in the ring, in order, and none is lost.
fn what_the_port_has_no_room_for_waits_in_the_ring(mut port: Port) {
    let program = port.open(128);
    let numbered = |n: usize| frame(BROADCAST, mac(n as u8), 60 + n);
    let mut put = 0;
    while program.put(0, &numbered(put)) {
        port.work();
        put += 1;
    }
    assert_eq!(put, 127 + 1, "a ring, and what the joint took first");
    let mut sent = Vec::new();
    while sent.len() < put {
        port.wires[0].take(7);
        port.work();
        let came = port.wires[0].sent();
        assert!(!came.is_empty());
        sent.extend(came);
    }
    assert_eq!(sent, (0..put).map(numbered).collect::<Vec<_>>());
    let counters = program.joined.counters();
    assert_eq!((&counters["rx_packets"], &counters["rx_drops"]), (&put.into(), &0.into()));
    port.close(program);
    port.assert_all_is_back();
}

fn what_nobody_takes_is_dropped_and_counted(mut port: Port) {
    let bring = |port: &mut Port, count: usize| {
        (0..count).for_each(|n| port.wires[0].bring(frame(mac(1), mac(2), 60 + n)));
        port.work();
    };
    bring(&mut port, 10);
    assert_eq!(port.control.dropped(), 10);
    for round in 0..3 {
        let program = port.open(16);
        bring(&mut port, 20);
        let frames = program.receive(0);
        assert_eq!(frames, (0..15).map(|n| frame(mac(1), mac(2), 60 + n)).collect::<Vec<_>>());
        assert_eq!(port.control.dropped(), 10 + 8 * round + 5, "no more slots");
        port.close(program);
        bring(&mut port, 3);
        assert_eq!(port.control.dropped(), 10 + 8 * (round + 1));
    }
    port.assert_all_is_back();
}

fn rings_are_those_of_queues(mut port: Port) {
    let program = port.open(64);
    for (number, wire) in port.wires.iter().enumerate() {
        wire.take(100);
        wire.bring(frame(mac(1), mac(number as u8), 100 + number));
        assert!(program.put(number, &frame(mac(2), mac(number as u8), 200 + number)));
    }
    port.work();
    for (number, wire) in port.wires.iter().enumerate() {
        assert_eq!(wire.sent(), [frame(mac(2), mac(number as u8), 200 + number)]);
        assert_eq!(program.receive(number), [frame(mac(1), mac(number as u8), 100 + number)]);
    }
    // Invalid positions in the second ring: it is reset, and the others are not affected.
    let csb = Csb::new(&program.csb, 0, 4096, 64).unwrap();
    csb.write_atok(1, 1000, 1000, 0);
    assert!(program.put(0, &frame(mac(2), mac(9), 60)) && program.put(2, &frame(mac(2), mac(9), 60)));
    port.work();
    assert_eq!([0, 1, 2].map(|number: usize| port.wires[number].sent().len()), [1, 0, 1]);
    let counters = program.joined.counters();
    assert_eq!([0, 1, 2].map(|number: usize| counters[number]["resets"].as_u64()), [Some(0), Some(1), Some(0)]);
    assert!(program.put(1, &frame(mac(2), mac(9), 60)));
    port.work();
    assert_eq!(port.wires[1].sent().len(), 1, "it goes on");
    port.close(program);
    port.assert_all_is_back();
}

/// Frames begin behind the offset in their slot's pointer, of which larger ones are cropped; those that do not fit there are not
/// passed on.
fn frames_have_offsets(mut port: Port) {
    let mut program = port.open(64);
    let offsets = Offsets::new(100, 16).unwrap();
    assert_eq!(program.memory.set_offsets(&port.region, 0b11, offsets, Some((0b11, 64))), Some(offsets));
    let memory = &program.memory;
    program.joined.set_offsets(&|entry| memory.offsets(entry));
    let [tx, rx] = [&program.tx[0], &program.rx[0]];
    assert!((0..64).all(|n| tx.ring().slot(n).pointer == 64 && rx.ring().slot(n).pointer == 64));
    // Sends the frame of a slot, and returns what comes.
    let send = |port: &mut Port, slot| {
        tx.ring().set(tx.position(0), slot);
        tx.release_slots(1);
        tx.sync().unwrap();
        port.wires[0].take(1);
        port.work();
        tx.sync().unwrap();
        port.wires[0].sent()
    };
    let sent = frame(mac(1), mac(2), 90);
    // Pointers, and where the frame lies then.
    for (pointer, offset) in [(0, 0), (64, 64), (100, 100), (5 << 16 | 10, 10), (0xffff, 100)] {
        let slot = Slot { len: 90, pointer, flags: Flags::default(), ..tx.ring().slot(tx.position(0)) };
        assert!(program.buffers.put(slot.buffer, offset, &sent[..]));
        assert_eq!(send(&mut port, slot), [&sent[..]], "at {pointer:#x}");
    }
    // The longest that a buffer has room for, and one byte more.
    for len in [2048 - 64, 2048 - 64 + 1] {
        let slot = Slot { len, pointer: 64, flags: Flags::default(), ..tx.ring().slot(tx.position(0)) };
        assert!(program.buffers.put(slot.buffer, 64, &frame(mac(1), mac(2), 2048 - 64)[..]));
        assert_eq!(send(&mut port, slot).len(), usize::from(len == 2048 - 64));
    }
    for len in [60, 1500, 2048 - 64] {
        let frame = frame(mac(3), mac(4), len);
        port.wires[0].bring(frame.clone());
        port.work();
        rx.sync().unwrap();
        let slot = rx.ring().slot(rx.position(0));
        let mut bytes = vec![0; slot.len.into()];
        assert!(program.buffers.get(slot.buffer, 64, &mut bytes));
        assert_eq!((rx.own(), slot.pointer, bytes), (1, 64, frame));
        rx.release_slots(1);
        rx.sync().unwrap();
    }
    // Another program wants no more than there is.
    let [less, more] = [(64, 8), (128, 16)].map(|(max, bits)| Offsets::new(max, bits).unwrap());
    assert_eq!(program.memory.set_offsets(&port.region, 0b01, less, None), Some(offsets));
    assert_eq!(program.memory.set_offsets(&port.region, 0b01, more, None), None);
    port.close(program);
    port.assert_all_is_back();
}

/// All queues receive for the switch, and the first one sends for it. Packets are copied, as the switch has a pool of its own.
fn attached_to_a_switch(mut port: Port) {
    let pool = Mempool::new(&MempoolConfig { buffers: 256, ..Default::default() }).unwrap();
    let numbered = |n: usize| frame(mac(1), mac(n as u8), 60 + n);
    let (switch, own) = link(&pool);
    port.control.attach(SwitchLinks { own, host: None, pool: pool.clone() });
    switch.take(100);
    port.wires[0].bring(numbered(0));
    port.wires[1].bring(numbered(1));
    port.work();
    assert_eq!(switch.sent(), [numbered(0), numbered(1)]);
    // What the port has no room for waits.
    (0..100).for_each(|n| switch.bring(numbered(n)));
    let mut sent = Vec::new();
    while sent.len() < 100 {
        port.wires[0].take(7);
        port.work();
        let came = port.wires[0].sent();
        assert!((1..=7).contains(&came.len()));
        sent.extend(came);
    }
    assert_eq!(sent, (0..100).map(numbered).collect::<Vec<_>>());
    assert_eq!(port.control.dropped(), 0);
    // What the switch has no room for is dropped.
    switch.take(2);
    (0..5).for_each(|n| port.wires[1].bring(numbered(n)));
    port.work();
    assert_eq!((switch.sent().len(), port.control.dropped()), (2, 3));
    // Another switch, then none, and a program.
    let (other, own) = link(&pool);
    port.control.attach(SwitchLinks { own, host: None, pool: pool.clone() });
    switch.take(9);
    other.take(9);
    port.wires[0].bring(numbered(0));
    port.work();
    assert_eq!((switch.sent().len(), other.sent().len()), (0, 1));
    port.control.detach();
    let program = port.open(64);
    port.wires[0].bring(numbered(5));
    port.work();
    assert_eq!((program.receive(0), other.sent().len()), (vec![numbered(5)], 0));
    port.close(program);
    port.assert_all_is_back();
    assert_eq!(pool.outstanding(1), 0);
}

/// Threads of their own receive from some queues for the switch; the forwarder receives from the others, and from all again when
/// those threads have ended.
fn queues_polled_by_threads(mut port: Port) {
    let pool = Mempool::new(&MempoolConfig { buffers: 256, ..Default::default() }).unwrap();
    let numbered = |n: usize| frame(mac(1), mac(n as u8), 60 + n);
    let (switch, own) = link(&pool);
    port.control.attach(SwitchLinks { own, host: None, pool: pool.clone() });
    switch.take(100);
    for round in 0..3 {
        port.control.poll(Some(PollingMode::CpuPerQueue(1..3))).unwrap();
        port.work();
        port.wires[1].bring(numbered(10));
        port.wires[2].bring(numbered(20));
        // Without the forwarder.
        let mut sent = Vec::new();
        let start = Instant::now();
        while sent.len() < 2 && start.elapsed() < Duration::from_secs(60) {
            sent.extend(switch.sent());
        }
        sent.sort_by_key(Vec::len);
        assert_eq!(sent, [numbered(10), numbered(20)], "round {round}");
        port.wires[0].bring(numbered(0));
        port.work();
        assert_eq!(switch.sent(), [numbered(0)], "a queue that is not polled");
        // What the switch has no room for is dropped.
        let dropped = port.control.dropped();
        switch.take(0);
        (0..5).for_each(|n| port.wires[2].bring(numbered(n)));
        while port.control.dropped() < dropped + 5 && start.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert_eq!((switch.sent().len(), port.control.dropped()), (0, dropped + 5));
        switch.take(100);
        // Threads that end before they have seen their queue lose nothing either.
        port.control.poll(Some(PollingMode::CpuPerQueue(0..1))).unwrap();
        port.control.poll(None).unwrap();
        port.work();
        port.wires.iter().enumerate().for_each(|(n, wire)| wire.bring(numbered(n)));
        port.work();
        assert_eq!(switch.sent(), [numbered(0), numbered(1), numbered(2)]);
    }
    // The port ends while a queue is lent.
    port.control.poll(Some(PollingMode::CpuPerQueue(0..1))).unwrap();
    port.work();
}

/// A forwarder on its thread, and what is known of its sleep.
#[derive(Default)]
struct Sleep {
    /// It has polled after arming, found nothing, and blocks.
    asleep: AtomicBool,
    arms: AtomicU64,
    stop: AtomicBool,
}

struct StopAtEnd<'a>(&'a Sleep);

/// Stops the thread however the test ends.
impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

struct Sleeper<'a>(RingForwarder, &'a Sleep);

impl Wakeable for Sleeper<'_> {
    fn arm(&mut self) {
        self.0.arm();
        self.1.arms.fetch_add(1, Relaxed);
    }

    fn disarm(&mut self) {
        self.1.asleep.store(false, Relaxed);
        self.0.disarm();
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        self.0.wake_sources(each);
        self.1.asleep.store(true, Relaxed);
    }
}

impl Sleeper<'_> {
    fn run(mut self) {
        let mut idle = Idle::new(false);
        while !self.1.stop.load(Relaxed) {
            self.1.asleep.store(false, Relaxed);
            let moved = self.0.round();
            idle.after(moved, &mut [&mut self]);
        }
    }
}

/// A blocked forwarder is woken by a frame from either side, and by a program that opens the port.
fn sleep(mut port: Port) {
    let (ring_forwarder, sleep) = (port.ring_forwarder.take().unwrap(), Sleep::default());
    port.wires.iter().for_each(|wire| wire.take(1000));
    let until = |what: &str, mut so: Box<dyn FnMut() -> bool + '_>| {
        let start = Instant::now();
        while !so() {
            // On a loaded machine it takes a while until it blocks.
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    let sleep = &sleep;
    let asleep_again = |arms: u64| {
        until("sleep", Box::new(move || sleep.arms.load(Relaxed) > arms && sleep.asleep.load(Relaxed)));
    };
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(sleep);
        scope.spawn(|| Sleeper(ring_forwarder, sleep).run());
        let (port, mut kicks) = (&mut port, 0);
        for number in 0..20 {
            asleep_again(0);
            let arms = sleep.arms.load(Relaxed);
            let program = port.open(64);
            if number % 2 == 0 {
                asleep_again(arms);
            }
            let queue = number / 2 % 2;
            assert!(program.put(queue, &frame(mac(2), mac(1), 60)));
            until("a frame from the program", Box::new(|| port.wires[queue].sent().len() == 1));
            asleep_again(0);
            port.wires[queue].bring(frame(mac(1), mac(2), 60));
            until("a frame for the program", Box::new(|| program.receive(queue).len() == 1));
            kicks += program.kicks.load(Relaxed);
            port.close(program);
        }
        assert!((10..=20).contains(&kicks), "{kicks} kicks: once for each sleep that a program ended, at most");
    });
    assert_eq!(port.control.dropped(), 0);
    port.assert_all_is_back();
}

/// A program writes anything anywhere in its memory and CSB, again and again. The forwarder continues; when the
/// program ends, all buffers are free and the next program is served.
fn programs_that_write_anything(mut port: Port) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        // xorshift64 (Marsaglia).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..30 {
        let program = port.open(32);
        let csb = program.csb.cells::<AtomicU32>(0, program.csb.len() / 4).unwrap();
        let words = program.buffers.memory().cells::<AtomicU32>(0, port.region.pools().buffers_at() / 4).unwrap();
        for _ in 0..2000 {
            let (what, value) = (random(), random() as u32);
            let (at, value) = ((what >> 8) as usize, if what & 3 == 0 { value } else { value % 40 });
            let words = if what & 4 == 0 { &csb[..64] } else { &words[..] };
            words[at % words.len()].store(value, Relaxed);
            if what & 0xf0 == 0 {
                port.wires.iter().for_each(|wire| wire.take(what % 50));
                port.wires[at % 2].bring(frame(mac(1), mac(2), 60 + at % 1000));
                // Bounded, as a program may claim that its ring is always full.
                (0..4).for_each(|_| _ = port.ring_forwarder.as_mut().expect("here").round());
            }
        }
        port.close(program);
        assert_eq!(port.region.free_buffers(), 4096);
    }
    port.work();
    port.wires.iter().for_each(|wire| wire.take(1000));
    port.work();
    port.wires.iter().for_each(|wire| _ = wire.sent());
    let program = port.open(32);
    assert!(program.put(0, &frame(mac(2), mac(9), 60)));
    port.wires[1].bring(frame(mac(1), mac(2), 99));
    port.work();
    assert_eq!((port.wires[0].sent().len(), program.receive(1).len()), (1, 1));
    port.close(program);
    port.assert_all_is_back();
}
