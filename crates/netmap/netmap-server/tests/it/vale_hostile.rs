//! Programs that write anything anywhere in the memory that they share with the switch.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::*;
use proptest::prelude::*;
use ringpass_memory::{Cells, MempoolConfig};
use ringpass_netmap::csb::{Csb, Released};
use ringpass_netmap::{Pools, Shape, Slot};
use ringpass_switch::{Counter, PortPolicy, Vlans};

/// Two slots for honest programs, and two for hostile ones, which reach only each other.
fn vale() -> Vale {
    let rules = [5, 5, 7, 7].map(|vlan| PortPolicy { vlans: Vlans::Access(vlan), ..Default::default() });
    Vale::with_rules(&MempoolConfig { buffers: 2048, ..Default::default() }, &rules)
}

fn positions(program: &Program) -> Csb {
    Csb::new(&program.csb, 0, 4096, 64).unwrap()
}

#[test]
fn positions_that_cannot_be_put_the_ring_back() {
    let mut vale = vale();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(16)));
    let csb = positions(&from);
    let good = frame(BROADCAST, mac(0), 60);
    from.send(&good);
    vale.work();
    assert_eq!(to.receive().len(), 1);
    for (resets, (head, cur)) in (1..).zip([(16, 16), (5, 2), (5, 4), (u32::MAX, 1), (1, 700)]) {
        // Frames that were not taken belong to the program again.
        assert!(from.put(0, &[&good]));
        csb.write_atok(0, head, cur, 0);
        vale.work();
        assert_eq!(csb.read_atok(0), Released { head: resets, cur: resets, sync_flags: 0 });
        assert_eq!(csb.read_ktoa(0), (resets, (resets + 15) % 16));
        assert_eq!((from.control.resets(), to.receive().len()), (u64::from(resets), 0));
        from.sync();
        vale.work();
        assert_eq!(to.receive(), [&good[..]], "it goes on");
    }
    assert!(
        from.control.fault().unwrap().starts_with("ring 0: the program set head 16 and cur 16, where slots 1 to 0")
    );
    // The Rx ring: frames continue to arrive, after those that the program has read without the switch having
    // seen their release.
    for (position, frames) in [(99, 1), (u32::MAX, 2)] {
        csb.write_atok(1, position, position, 0);
        to.send(&frame(BROADCAST, mac(1), 60));
        vale.work();
        from.rx[0].reinit().unwrap();
        assert_eq!(from.receive().len(), frames);
    }
    // The number of resets is limited.
    for _ in 0..200 {
        csb.write_atok(0, 99, 99, 0);
        vale.work();
    }
    assert_eq!(from.control.resets(), 5 + 2 + 95);
    from.tx[0].reinit().ok();
    csb.write_atok(0, csb.read_ktoa(0).0, csb.read_ktoa(0).0, 0);
    to.send(&frame(BROADCAST, mac(1), 60));
    vale.work();
    assert_eq!(from.receive().len(), 1, "the other ring goes on");
}

#[test]
fn slots_without_a_frame_fill_a_burst() {
    const SLOTS: u32 = 2048;
    let mut vale = vale();
    let pools = Pools { buffers: 4 * SLOTS, ring_bytes: 1 << 20, ..Default::default() };
    let from = vale.open_with(0, Shape { rings: [3, 1], slots: [SLOTS, 64], host_rings: [0; 2] }, pools);
    let bad = || from.control.stats().rx_drops as u32;
    for ring in &from.tx {
        let own = ring.own();
        ring.first(own).for_each(|position| ring.ring().set(position, Slot { len: 1, ..ring.ring().slot(position) }));
        ring.release_slots(own);
        ring.sync().unwrap();
    }
    let datapath = vale.datapath.as_mut().unwrap();
    let (mut before, mut calls) = (0, 0);
    while bad() < 3 * (SLOTS - 1) {
        assert_eq!(datapath.round(), 0, "no frames");
        assert!((1..=1024).contains(&(bad() - before)), "{} slots in one call", bad() - before);
        (before, calls) = (bad(), calls + 1);
    }
    assert!(calls >= 6, "{calls}");
}

/// A write to a field that a program shares.
#[derive(Clone, Debug)]
struct Write {
    csb: bool,
    word: usize,
    value: u32,
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let value = prop_oneof![4 => 0..70_u32, 2 => any::<u32>(), 2 => (0..3000_u32, 0..64_u32).prop_map(|(len, flags)| len | flags << 16)];
    // Mostly positions; otherwise descriptors and rings.
    let place = prop_oneof![(Just(true), 0..32_usize), (Just(true), 1024..1056_usize), (Just(false), 0..11_000_usize)];
    prop::collection::vec((place, value).prop_map(|((csb, word), value)| Write { csb, word, value }), 0..60)
}

/// All fields that a program may write: its CSB, and the descriptors and rings of its region.
struct Shared {
    csb: Cells<AtomicU32>,
    region: Cells<AtomicU32>,
}

impl Shared {
    fn of(program: &Program) -> Self {
        let pools = program.region.pools();
        let csb = program.csb.cells(0, program.csb.len() / 4).unwrap();
        Self { csb, region: program.buffers.memory().cells(0, pools.buffers_at() / 4).unwrap() }
    }

    fn write(&self, write: &Write) {
        let words = if write.csb { &self.csb } else { &self.region };
        words[write.word % words.len()].store(write.value, Relaxed);
    }
}

fn small() -> Pools {
    Pools { ring_bytes: 4 * 2048, buffers: 200, ..Pools::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..Default::default() })]
    /// Nothing fails, the honest programs get all of their frames, and buffers are freed, those of the hostile
    /// regions too.
    #[test]
    fn anything_anywhere(rounds in prop::collection::vec((writes(), 0..4_usize), 1..30)) {
        let mut vale = vale();
        let good = [0, 1].map(|place| vale.open_with(place, pair(64), small()));
        let liars = [2, 3].map(|place| vale.open_with(place, pair(64), small()));
        let shared = liars.each_ref().map(Shared::of);
        for liar in &liars {
            (0..63).for_each(|_| assert!(liar.put(0, &[&frame(BROADCAST, mac(9), 60)])));
        }
        for (number, (writes, frames)) in rounds.iter().enumerate() {
            for (n, write) in writes.iter().enumerate() {
                shared[n % 2].write(write);
            }
            let sent: Vec<_> = (0..*frames).map(|n| frame(mac(1), mac(0), 60 + number + n)).collect();
            sent.iter().for_each(|frame| good[0].send(frame));
            vale.work();
            good[0].sync();
            prop_assert!(good[1].receive() == sent, "round {number}");
            prop_assert!(good[0].receive().is_empty());
        }
        let left: Vec<_> = good.into_iter().chain(liars).map(Program::close).collect();
        prop_assert_eq!(left, [198; 4]);
        vale.datapath = None;
        prop_assert_eq!(vale.pool.outstanding(1), 0, "buffers came back");
    }
}

/// The same from separate threads while the switch works; their ports end and begin at any moment.
#[test]
fn liars_at_work() {
    const FRAMES: u32 = 200_000;
    let mut vale = vale();
    let [from, to] = [0, 1].map(|place| vale.open(place, pair(256)));
    let worker = Worker::new(vale.datapath.take().unwrap());
    let (done, written, resets) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let stream = scope.spawn(|| stream(&from, &to, FRAMES, &done));
        while !done.load(Relaxed) && !stream.is_finished() {
            let liars = [2, 3].map(|place| vale.open_with(place, pair(64), small()));
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for (n, liar) in liars.iter().enumerate() {
                    (0..63).for_each(|_| assert!(liar.put(0, &[&frame(BROADCAST, mac(9), 60)])));
                    liar.sync();
                    let (shared, kick) = (Shared::of(liar), liar.notifier.clone());
                    let (stop, written) = (&stop, &written);
                    scope.spawn(move || written.fetch_add(lie(&shared, n as u64 + 1, stop, || kick()), Relaxed));
                }
                thread::sleep(Duration::from_millis(20));
                // Ends each of them while it writes.
                resets.fetch_add(liars.iter().map(|liar| liar.control.resets()).sum(), Relaxed);
                let [first, second] = liars;
                for (place, Program { control, .. }) in [(2, first), (3, second)] {
                    drop(control);
                    vale.switch.remove(place);
                }
                stop.store(true, Relaxed);
            });
        }
        stream.join().unwrap();
    });
    drop(worker);
    assert!(resets.load(Relaxed) > 0 && written.load(Relaxed) > 10_000, "they have lied");
    assert_eq!([0, 1].map(|place| vale.switch.counts(place).of(Counter::TxDrops)), [0, 0]);
    assert_eq!(vale.switch.counts(0).of(Counter::Forwarded), u64::from(FRAMES));
    assert_eq!([from.close(), to.close()], [4096; 2]);
    // Queues of ports that have left the switch return theirs on another thread.
    ringpass_ipc::wait_for_drops(Duration::from_secs(1));
    assert_eq!(vale.pool.outstanding(1), 0, "buffers came back");
}

/// Writes random values until told to stop. Returns how many.
fn lie(shared: &Shared, seed: u64, stop: &AtomicBool, kick: impl Fn()) -> u64 {
    let (mut state, mut count) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0);
    let mut random = move || {
        // xorshift64 (Marsaglia).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    while !stop.load(Relaxed) {
        let (what, value) = (random(), random() as u32);
        let value = if what & 3 == 0 { value } else { value % 70 };
        let word = (what >> 8) as usize;
        match what >> 60 {
            0..6 => shared.write(&Write { csb: true, word: word % 32, value }),
            6..8 => shared.write(&Write { csb: true, word, value }),
            _ => shared.write(&Write { csb: false, word, value }),
        }
        count += 1;
        if count % 100 == 0 {
            kick();
        }
    }
    count
}

/// Sends numbers from one program to the other, and checks that all arrive in order.
fn stream(from: &Program, to: &Program, frames: u32, done: &AtomicBool) {
    to.send(&frame(BROADCAST, mac(1), 60));
    let start = Instant::now();
    while from.receive().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "introduced");
    }
    let (mut sent, mut came, mut template) = (0, 0, frame(mac(1), mac(0), 60));
    let mut since = Instant::now();
    while came < frames {
        while sent < frames && sent < came + 200 {
            template[14..18].copy_from_slice(&u32::to_be_bytes(sent));
            if !from.put(0, &[&template]) {
                break;
            }
            sent += 1;
        }
        from.sync();
        for frame in to.receive() {
            assert_eq!(frame[..14], template[..14]);
            assert_eq!(u32::from_be_bytes(frame[14..18].try_into().unwrap()), came);
            (came, since) = (came + 1, Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(20), "a frame is missing");
        thread::yield_now();
    }
    done.store(true, Relaxed);
}
