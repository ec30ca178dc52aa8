//! Pipes whose ends are driven as programs do, by `head`, `cur` and `tail`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use ringpass_memory::{DmaRegion, Memory, RegionConfig};
use ringpass_netmap::csb::Csb;
use ringpass_netmap::{Direction, Flags, Notifier, Pools, PortRing, Region, Ring, Slot, SyncError};

/// Both ends of one direction.
struct Pipe {
    tx: PortRing,
    rx: PortRing,
    csb: Arc<Csb>,
    /// How often each end was woken.
    notifiers: [Arc<AtomicUsize>; 2],
}

fn pipe(slots: u32) -> Pipe {
    let mut region = Region::new(Pools::default(), &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let (_, sender) = region.ring(Direction::Tx, 0, slots, true).unwrap();
    let (_, receiver) = region.ring(Direction::Rx, 0, slots, false).unwrap();
    let memory: Memory = DmaRegion::new(8192, &RegionConfig::default()).unwrap().into();
    let csb = Arc::new(Csb::new(&memory, 0, 4096, 4).unwrap());
    let notifiers = [Arc::new(AtomicUsize::new(0)), Arc::default()];
    let notify = |rung: &Arc<AtomicUsize>| {
        let rung = rung.clone();
        Arc::new(move || _ = rung.fetch_add(1, Ordering::Relaxed)) as Notifier
    };
    let rings = || [sender, receiver].map(|offset| Ring::new(region.memory(), offset, slots).unwrap());
    Pipe {
        tx: PortRing::sender(rings(), &csb, 1, &notify(&notifiers[1])),
        rx: PortRing::receiver(rings(), &csb, 1, &notify(&notifiers[0])),
        csb,
        notifiers,
    }
}

fn next(ring: &Ring, position: u32) -> u32 {
    (position + 1) % ring.slots()
}

/// A program's `head`, and how many slots it owns.
fn own(ring: &Ring) -> (u32, u32) {
    let head = ring.header().head.load(Ordering::Relaxed);
    let tail = ring.header().tail.load(Ordering::Acquire);
    (head, (tail + ring.slots() - head) % ring.slots())
}

fn release_slots(ring: &Ring, position: u32) {
    ring.header().cur.store(position, Ordering::Relaxed);
    ring.header().head.store(position, Ordering::Release);
}

#[derive(Clone, Debug)]
enum Step {
    /// Fills this many slots, in frames of this many slots; the last slot of a frame lacks the flag.
    Fill(u32, u32),
    SyncSender,
    /// Releases this many slots; with `true`, each with another buffer.
    Drain(u32, bool),
    SyncReceiver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..20_u32, 1..4_u32).prop_map(|(n, of)| Step::Fill(n, of)),
        Just(Step::SyncSender),
        (0..20_u32, any::<bool>()).prop_map(|(n, swap)| Step::Drain(n, swap)),
        Just(Step::SyncReceiver),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Slots arrive once, in order and by whole frames; no buffer is lost or duplicated.
    #[test]
    fn slots_arrive_in_order_and_buffers_stay(slots in 2..40_u32, steps in steps()) {
        let Pipe { tx: sender, rx: receiver, .. } = pipe(slots);
        let (tx, rx) = (sender.ring(), receiver.ring());
        let mut spare: VecDeque<u32> = (3000..3100).collect();
        let mut all: Vec<u32> = (0..slots).map(|position| tx.slot(position).buffer).chain(spare.iter().copied()).collect();
        all.sort_unstable();
        let (mut sent, mut received, mut in_frame) = (VecDeque::new(), 0_u64, false);
        let mut number = 0_u64;
        for step in steps {
            match step {
                Step::Fill(n, of) => {
                    let (mut head, left) = own(tx);
                    for _ in 0..n.min(left) {
                        let more = number % u64::from(of) + 1 < u64::from(of);
                        let flags = if more { Flags::MORE_FRAGMENTS } else { Flags::default() };
                        let slot = Slot { len: 60, flags, pointer: number, ..tx.slot(head) };
                        tx.set(head, slot);
                        sent.push_back(slot);
                        head = next(tx, head);
                        number += 1;
                    }
                    release_slots(tx, head);
                }
                Step::SyncSender => prop_assert_eq!(sender.sync(), Ok(())),
                Step::Drain(n, swap) => {
                    let (mut head, left) = own(rx);
                    for _ in 0..n.min(left) {
                        let slot = rx.slot(head);
                        prop_assert_eq!(Some(slot), sent.pop_front(), "slot {} after {}", slot.pointer, received);
                        in_frame = slot.flags.any(Flags::MORE_FRAGMENTS);
                        received += 1;
                        if swap {
                            spare.push_back(slot.buffer);
                            let buffer = spare.pop_front().unwrap();
                            rx.set(head, Slot { buffer, flags: Flags::BUFFER_CHANGED, ..slot });
                        }
                        head = next(rx, head);
                    }
                    // With the first slot of a frame all of it has arrived.
                    prop_assert!(!in_frame || own(rx).1 > n.min(left));
                    release_slots(rx, head);
                }
                Step::SyncReceiver => prop_assert_eq!(receiver.sync(), Ok(())),
            }
        }
        // Complete frames arrive; then the sender owns all slots again, each with a buffer of its own.
        for _ in 0..4 {
            sender.sync().unwrap();
            receiver.sync().unwrap();
            let (head, left) = own(rx);
            release_slots(rx, (head + left) % slots);
            receiver.sync().unwrap();
        }
        let mut now: Vec<u32> = (0..slots).map(|position| tx.slot(position).buffer).chain(spare).collect();
        now.sort_unstable();
        prop_assert_eq!(now, all);
    }
}

#[test]
fn ends_that_say_what_cannot_be() {
    let Pipe { tx, rx, csb, .. } = pipe(8);
    tx.ring().header().head.store(8, Ordering::Relaxed);
    assert!(matches!(tx.sync(), Err(SyncError::Program { .. })));
    assert_eq!((tx.ring().head_and_cur(), own(tx.ring())), ((0, 0), (0, 7)), "it begins again where it stood");
    release_slots(rx.ring(), 1);
    assert!(matches!(rx.sync(), Err(SyncError::Program { .. })));
    assert_eq!(rx.ring().head_and_cur(), (0, 0));
    csb.write_ktoa(1, u32::MAX, 0);
    assert_eq!(tx.sync(), Err(SyncError::Peer(0, u32::MAX)));
    assert_eq!(rx.sync(), Err(SyncError::Peer(0, u32::MAX)));
    csb.write_ktoa(1, 0, 0);
    csb.write_atok(1, 8, 8, 0);
    assert_eq!(rx.sync(), Err(SyncError::Peer(8, 0)));
}

#[test]
fn notifications_only_where_enabled() {
    let Pipe { tx: sender, rx: receiver, notifiers, .. } = pipe(8);
    let rung = || notifiers.each_ref().map(|notify| notify.swap(0, Ordering::Relaxed));
    release_slots(sender.ring(), 7);
    sender.sync().unwrap();
    assert_eq!(rung(), [0, 0], "nobody sleeps");
    assert!(sender.arm().unwrap(), "full");
    assert!(!receiver.arm().unwrap(), "something has come");
    receiver.disarm();
    release_slots(receiver.ring(), 3);
    receiver.sync().unwrap();
    assert_eq!(rung(), [1, 0], "the sender is woken");
    sender.disarm();
    sender.sync().unwrap();
    assert_eq!(own(sender.ring()), (7, 3));
    release_slots(receiver.ring(), 7);
    receiver.sync().unwrap();
    assert_eq!(rung(), [0, 0]);
    assert!(receiver.arm().unwrap(), "empty");
    release_slots(sender.ring(), 0);
    sender.sync().unwrap();
    assert_eq!(rung(), [0, 1], "the receiver is woken");
}

#[test]
fn flags_of_slots_that_are_not_passed_on_yet() {
    let Pipe { tx, rx, .. } = pipe(8);
    for start in 0..20 {
        let first = start % 8;
        assert_eq!(tx.unpassed(), (first, 0));
        for n in 0..3 {
            let position = tx.position(n);
            let flags = [Flags::REPORT, Flags::NO_LEARN, Flags::INDIRECT][n as usize];
            tx.ring().set(position, Slot { flags, len: 60, ..tx.ring().slot(position) });
        }
        tx.release_slots(3);
        assert_eq!(tx.unpassed(), (first, 3));
        assert_eq!(tx.ring().flags(first, 2), Flags::REPORT | Flags::NO_LEARN);
        assert_eq!(tx.ring().flags(first, 3), Flags::REPORT | Flags::NO_LEARN | Flags::INDIRECT);
        assert_eq!(tx.ring().flags(first, 0), Flags::default());
        // One of them again, so that the next round begins one slot further on.
        release_slots(tx.ring(), next(tx.ring(), first));
        assert_eq!((tx.unpassed(), tx.sync()), ((first, 1), Ok(())));
        assert_eq!(tx.unpassed(), (next(tx.ring(), first), 0));
        assert_eq!(rx.sync(), Ok(()));
        rx.release_slots(1);
        assert_eq!((rx.sync(), tx.sync()), (Ok(()), Ok(())));
        for position in [8, u32::MAX] {
            let head = tx.position(0);
            release_slots(tx.ring(), position);
            assert_eq!(tx.unpassed(), (0, 0), "invalid positions");
            release_slots(tx.ring(), head);
        }
        (0..8)
            .for_each(|position| tx.ring().set(position, Slot { flags: Flags::default(), ..tx.ring().slot(position) }));
    }
}
