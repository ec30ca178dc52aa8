//! Compares a packet with a model: a plain buffer with two positions.

use crate::common::{cases, count, pool};
use proptest::prelude::*;
use ringpass_memory::HEADROOM;

#[derive(Clone, Debug)]
enum Step {
    Prepend(usize),
    TrimFront(usize),
    SetLen(usize),
    CopyFrom(usize),
    Write(usize),
}

/// Lengths that are small, close to the sizes in use, or that would overflow 16 bits or a `usize`.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..200usize, 2 => 0..70_000usize, 1 => 65_530..65_540usize, 1 => (usize::MAX - 70_000)..=usize::MAX]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        length().prop_map(Step::Prepend),
        length().prop_map(Step::TrimFront),
        length().prop_map(Step::SetLen),
        (0..count(70_000, 500)).prop_map(Step::CopyFrom),
        (0..100usize).prop_map(Step::Write),
    ]
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn is_a_window_of_its_buffer(size in prop_oneof![Just(64), Just(300), Just(count(32_000, 100))],
                                 steps in prop::collection::vec(step(), 1..count(60, 20))) {
        let pool = pool(2, size);
        let mut packet = pool.alloc().unwrap();
        let first = packet.as_ptr() as usize;
        let mut model = vec![0; HEADROOM + size];
        let (mut start, mut end) = (HEADROOM, HEADROOM);
        for (i, step) in steps.into_iter().enumerate() {
            let i = i as u8;
            match step {
                Step::Prepend(n) if n <= start => {
                    start -= n;
                    prop_assert!(packet.prepend(n));
                    packet.write(0, &vec![i; n]);
                    model[start..start + n].fill(i);
                }
                Step::Prepend(n) => prop_assert!(!packet.prepend(n)),
                Step::TrimFront(n) => {
                    let fits = n <= end - start;
                    prop_assert_eq!(packet.trim_front(n), fits);
                    start += if fits { n } else { 0 };
                }
                Step::SetLen(n) if n <= model.len() - start => {
                    packet.set_len(n);
                    end = start + n;
                }
                Step::SetLen(n) => {
                    let set = std::panic::AssertUnwindSafe(|| packet.set_len(n));
                    prop_assert!(std::panic::catch_unwind(set).is_err(), "{n} bytes in a buffer of {}", model.len());
                }
                Step::CopyFrom(n) => {
                    let fits = n <= model.len() - start;
                    prop_assert_eq!(packet.copy_from(&vec![i; n]), fits);
                    if fits {
                        end = start + n;
                        model[start..end].fill(i);
                    }
                }
                Step::Write(at) => {
                    prop_assert_eq!(packet.array::<1>(at), model[start..end].get(at).map(|&byte| [byte]));
                    if at < end - start {
                        packet.write(at, &[i]);
                        model[start + at] = i;
                    }
                }
            }
            prop_assert_eq!(packet.to_vec(), &model[start..end]);
            prop_assert_eq!(packet.headroom(), start);
            prop_assert_eq!(packet.capacity(), model.len() - start);
            prop_assert_eq!(packet.as_ptr() as usize + HEADROOM, first + start);
            prop_assert_eq!(packet.iova(), packet.as_ptr() as u64, "virtual addressing");
        }
    }
}

#[test]
fn handles_are_small() {
    assert_eq!(size_of::<ringpass_memory::Packet>(), 16);
    assert_eq!(size_of::<Option<ringpass_memory::Packet>>(), 16);
}
