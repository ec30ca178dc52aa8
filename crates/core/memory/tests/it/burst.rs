//! Compares a burst with a `Vec`.

use std::collections::VecDeque;

use crate::common::{cases, count, mark, number, pool, take};
use proptest::prelude::*;
use ringpass_memory::{Burst, MAX_BATCH, Packet};

#[derive(Clone, Debug)]
enum Step {
    Push,
    Pop,
    /// Takes this many packets from the front.
    Drain(usize),
    /// Moves packets from the front to another burst, as many as that has room for.
    Move(usize),
    /// Writes this many packets into the free places, as a queue does.
    Commit(usize),
    /// Moves this many packets out of the front, as a queue does.
    Forget(usize),
    Swap(usize, usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Push),
        2 => Just(Step::Pop),
        2 => (0..6usize).prop_map(Step::Drain),
        2 => (1..6usize).prop_map(Step::Move),
        2 => (0..6usize).prop_map(Step::Commit),
        1 => (0..6usize).prop_map(Step::Forget),
        1 => (0..8usize, 0..8usize).prop_map(|(a, b)| Step::Swap(a, b)),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn is_a_queue_with_a_limit(limit in 0..12usize, steps in prop::collection::vec(step(), 1..count(100, 30))) {
        let pool = pool(24, 64);
        let mut cache = pool.cache();
        let mut burst = Burst::new(limit);
        let limit = limit.max(1);
        let mut model = VecDeque::new();
        let mut room = limit;
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push if room == 0 => {
                    let packet = take(&mut cache, 1).pop().unwrap();
                    let push = std::panic::AssertUnwindSafe(|| burst.push(packet));
                    prop_assert!(std::panic::catch_unwind(push).is_err(), "a full burst took a packet");
                }
                Step::Push => {
                    let mut packet = take(&mut cache, 1).pop().unwrap();
                    mark(&mut packet, i as u64);
                    burst.push(packet);
                    model.push_back(i as u64);
                    room -= 1;
                }
                Step::Pop => {
                    prop_assert_eq!(burst.pop().as_ref().map(number), model.pop_back());
                    room = (room + 1).min(limit);
                }
                Step::Drain(n) => {
                    let seen: Vec<u64> = burst.drain().take(n).map(|packet| number(&packet)).collect();
                    prop_assert_eq!(seen, model.drain(..n.min(model.len())).collect::<Vec<_>>());
                }
                Step::Move(limit) => {
                    let mut other = Burst::new(limit);
                    let mut packets = burst.drain();
                    while packets.move_to(&mut other) {}
                    drop(packets);
                    let moved: Vec<u64> = other.iter().map(number).collect();
                    prop_assert_eq!(moved, model.drain(..limit.min(model.len())).collect::<Vec<_>>());
                }
                Step::Commit(n) => {
                    let mut packets = take(&mut cache, n.min(room));
                    packets.iter_mut().for_each(|packet| mark(packet, i as u64));
                    let n = packets.len();
                    prop_assert_eq!(burst.spare().len(), room);
                    burst.spare().iter_mut().zip(packets).for_each(|(place, packet)| _ = place.write(packet));
                    // SAFETY: the first `n` free places were filled by the loop above.
                    unsafe { burst.commit(n) };
                    model.extend(std::iter::repeat_n(i as u64, n));
                    room -= n;
                }
                Step::Forget(n) => {
                    let n = n.min(model.len());
                    // SAFETY: `forget` in the next statement removes the originals from the burst, so only the
                    // copies are used.
                    let packets: Vec<Packet> = burst[..n].iter().map(|packet| unsafe { std::ptr::read(packet) }).collect();
                    // SAFETY: the burst has at least `n` packets, and the first `n` were moved out by copying.
                    unsafe { burst.forget(n) };
                    let seen: Vec<u64> = packets.iter().map(number).collect();
                    prop_assert_eq!(seen, model.drain(..n).collect::<Vec<_>>());
                }
                Step::Swap(a, b) if a < model.len() && b < model.len() => {
                    burst.swap(a, b);
                    model.swap(a, b);
                }
                Step::Swap(..) => {}
                Step::Clear => {
                    burst.clear();
                    model.clear();
                }
            }
            if model.is_empty() {
                room = limit;
            }
            prop_assert_eq!(burst.room(), room);
            prop_assert_eq!(burst.iter().map(number).collect::<Vec<_>>(), Vec::from(model.clone()));
        }
        let left = burst.len();
        drop(cache);
        prop_assert_eq!(pool.outstanding(1), left, "a packet was lost, or came back twice");
        drop(burst);
        prop_assert_eq!(pool.outstanding(1), 0);
    }
}

#[test]
fn limits_are_brought_into_range() {
    assert_eq!(Burst::new(0).room(), 1);
    assert_eq!(Burst::new(usize::MAX).room(), MAX_BATCH);
}

#[test]
#[cfg_attr(miri, ignore = "miri reports the leak, which is meant")]
fn a_forgotten_iterator_hands_nothing_out_twice() {
    let pool = pool(8, 64);
    let mut burst = Burst::new(4);
    pool.cache().alloc(&mut burst);
    let mut drain = burst.drain();
    let first = drain.next();
    std::mem::forget(drain);
    assert!(burst.is_empty());
    drop((first, burst));
    assert_eq!(pool.outstanding(1), 3, "leaked with the iterator");
}
