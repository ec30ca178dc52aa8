//! Regions: an allocated object belongs to one owner, and becomes free again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringpass_memory::RegionConfig;
use ringpass_netmap::{Direction, Error, Pools, Region, Ring, Slot};

fn region(pools: Pools) -> Region {
    Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads a number of `bytes` bytes as another process would.
fn number(region: &Region, offset: usize, bytes: usize) -> u64 {
    let file = std::fs::File::from(region.file().unwrap().try_clone_to_owned().unwrap());
    let mut word = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut word[..bytes], offset as u64).unwrap();
    u64::from_le_bytes(word)
}

/// Uses the offsets of netmap's documented interface on the file, without any type of this crate.
#[test]
fn descriptors_rings_and_slots_lie_where_programs_look() {
    let mut region = region(Pools::default());
    let interface = region.interface("vale0:a-long-name", [1, 1, 1, 1], true).unwrap();
    let (tx, at) = region.ring(Direction::Tx, 0, 1024, true).unwrap();
    let (_rx, rx_at) = region.ring(Direction::Rx, 3, 512, false).unwrap();
    region.set_ring(interface, 0, Some(at));
    region.set_ring(interface, 2, Some(rx_at));
    tx.set(7, Slot { buffer: 9, len: 60, flags: ringpass_netmap::Flags(0x0521), pointer: 11 });

    assert_eq!(number(&region, interface, 8).to_le_bytes(), *b"vale0:a-");
    assert_eq!(number(&region, interface + 8, 8).to_le_bytes(), *b"long-na\0");
    let words = |at: usize, offsets: &[usize]| offsets.iter().map(|o| number(&region, at + o, 4)).collect::<Vec<_>>();
    assert_eq!(words(interface, &[16, 20, 24, 28, 32, 36, 40]), [14, 1, 1, 1, 0, 1, 1]);
    assert_eq!(number(&region, interface + 56, 8), (at - interface) as u64);
    assert_eq!(number(&region, interface + 64, 8), 0, "no host ring");
    assert_eq!(number(&region, interface + 72, 8), (rx_at - interface) as u64);

    let buffers = number(&region, at, 8) as usize + at;
    assert_eq!((buffers % 4096, buffers), (0, region.pools().buffers_at()));
    assert_eq!(words(at, &[8, 12, 20, 24, 28, 32]), [1024, 2048, 0, 0, 1023, 0]);
    assert_eq!((number(&region, at + 16, 2), number(&region, at + 18, 2)), (0, 0));
    assert_eq!((number(&region, rx_at + 16, 2), number(&region, rx_at + 18, 2)), (3, 1));
    assert_eq!(words(rx_at, &[8, 20, 24, 28]), [512, 0, 0, 0]);
    let slot = at + 256 + 7 * 16;
    assert_eq!((number(&region, slot, 4), number(&region, slot + 4, 2), number(&region, slot + 6, 2)), (9, 60, 0x0521));
    assert_eq!(number(&region, slot + 8, 8), 11);
    assert_eq!(tx.slot(7).flags.fragments(), 5);
    assert!((0..1024).all(|position| position == 7 || tx.slot(position).buffer >= 2));
}

#[test]
fn slots_are_checked() {
    let region = region(Pools { buffers: 10, ..Pools::default() });
    let check = |buffer, len| region.check(Slot { buffer, len, ..Slot::default() });
    let start = region.pools().buffers_at();
    assert_eq!(check(2, 2048), Some((start + 2 * 2048, 2048)));
    assert_eq!(check(9, 0), Some((start + 9 * 2048, 0)));
    for (buffer, len) in [(0, 60), (1, 60), (10, 60), (u32::MAX, 60), (2, 2049), (2, u16::MAX)] {
        assert_eq!(check(buffer, len), None, "{buffer} {len}");
    }
    assert!(region.memory().bytes(start + 9 * 2048, 2048).is_some());
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |pools| Region::new(pools, &RegionConfig::default()).is_err();
    assert!(refused(Pools { buffers: 2, ..Pools::default() }));
    assert!(refused(Pools { buffer_size: 100, ..Pools::default() }));
    assert!(refused(Pools { buffer_size: 128 << 10, ..Pools::default() }));
    assert!(refused(Pools { ring_bytes: 0, ..Pools::default() }));
    let mut region = region(Pools { interfaces: 1, buffers: 100, ..Pools::default() });
    assert_eq!(region.interface("a", [100, 20, 1, 1], false), Err(Error::Interfaces));
    region.interface("a", [1; 4], false).unwrap();
    assert_eq!(region.interface("b", [1; 4], false), Err(Error::Interfaces));
    let refused = region.ring(Direction::Tx, 0, 128, true).map(drop);
    assert_eq!(refused, Err(Error::Buffers { left: 98, wanted: 128 }));
    assert!(matches!(region.ring(Direction::Tx, 0, 1 << 16, false).map(drop), Err(Error::Rings(_))));
    assert_eq!(region.extra_buffers(99), Err(Error::Buffers { left: 98, wanted: 99 }));
    assert_eq!(region.extra_buffers(98).map(|buffers| buffers.len()), Ok(98));
}

proptest! {
    /// Programs that share a region exchange buffers, lose some and write anything; rings come and go. A buffer
    /// in a ring is never free, and in the end all are.
    #[test]
    fn what_programs_do_to_buffers_is_put_right(steps in prop::collection::vec((0..6_u8, any::<u32>(), any::<u32>()), 1..80)) {
        let pools = Pools { interfaces: 1, ring_bytes: 40 << 10, buffers: 300, buffer_size: 64 };
        let mut region = region(pools);
        let (mut rings, mut written): (Vec<(Ring, usize)>, HashSet<u32>) = Default::default();
        for (what, a, b) in steps {
            let place = |n: u32| {
                let (ring, _) = &rings[n as usize % rings.len()];
                (ring, n / 7 % ring.slots())
            };
            match what {
                0 | 1 => rings.extend(region.ring(Direction::Tx, 0, 2 + a % 60, true)),
                _ if rings.is_empty() => {}
                2 => {
                    let (_, offset) = rings.swap_remove(a as usize % rings.len());
                    region.release_rings(&[offset]);
                }
                3 => {
                    let ((one, here), (other, there)) = (place(a), place(b));
                    let (first, second) = (one.slot(here), other.slot(there));
                    one.set(here, second);
                    other.set(there, first);
                }
                4 => {
                    let (ring, position) = place(a);
                    ring.set(position, Slot { buffer: b % 400, ..ring.slot(position) });
                    written.insert(b % 400);
                }
                _ => _ = region.extra_buffers(a as usize % 20),
            }
            // A buffer that was allocated twice would be in two slots. One that a program has written itself
            // may be.
            let mut seen = HashSet::new();
            for (ring, _) in &rings {
                for buffer in (0..ring.slots()).map(|position| ring.slot(position).buffer) {
                    prop_assert!(written.contains(&buffer) || seen.insert(buffer), "buffer {} twice", buffer);
                }
            }
            prop_assert!(seen.len() + region.free_buffers() <= 298);
        }
        for (_, offset) in rings.drain(..) {
            region.release_rings(&[offset]);
        }
        prop_assert_eq!(region.free_buffers(), 298);
    }

    /// Rings and buffers come and go in any order: none overlaps another, and in the end all are free.
    #[test]
    fn rings_share_nothing(steps in prop::collection::vec((0..3_u8, 2..300_u32), 1..60)) {
        let pools = Pools { interfaces: 1, ring_bytes: 40 << 10, buffers: 1000, buffer_size: 64 };
        let mut region = region(pools);
        let whole = pools.ring_bytes / 64;
        let mut rings: Vec<(Ring, usize)> = Vec::new();
        for (what, n) in steps {
            if what == 0 && !rings.is_empty() {
                let (_, offset) = rings.swap_remove(n as usize % rings.len());
                region.release_rings(&[offset]);
            } else if let Ok(ring) = region.ring(Direction::Tx, 0, n, what == 1) {
                rings.push(ring);
            }
            let mut lines = HashSet::new();
            for (ring, offset) in &rings {
                let end = offset + Ring::bytes(ring.slots());
                prop_assert!((offset / 64..end.div_ceil(64)).all(|line| lines.insert(line)), "overlap");
            }
            prop_assert!(lines.len() <= whole);
            let mut buffers = HashSet::new();
            let held = rings.iter().flat_map(|(ring, _)| (0..ring.slots()).map(|position| ring.slot(position).buffer));
            prop_assert!(held.filter(|&buffer| buffer > 0).all(|buffer| buffer > 1 && buffers.insert(buffer)));
            prop_assert_eq!(buffers.len() + region.free_buffers(), 998);
        }
        for (_, offset) in rings.drain(..) {
            region.release_rings(&[offset]);
        }
        // The free room is one range again.
        let slots = ((40 << 10) - 256) / 16;
        prop_assert!(region.ring(Direction::Rx, 0, slots, false).is_ok());
    }
}

/// Rings that are freed together cost one pass over all slots, and not one each.
#[test]
fn many_rings_are_freed_in_one_pass() {
    let pools = Pools { interfaces: 1, ring_bytes: 64 << 20, buffers: 600_000, buffer_size: 64 };
    let mut region = region(pools);
    // The best of some rounds, as this thread may be preempted.
    let mut best = [Duration::MAX; 2];
    for _ in 0..3 {
        for (one_by_one, best) in [true, false].into_iter().zip(&mut best) {
            let rings: Vec<usize> = (0..257).map(|_| region.ring(Direction::Tx, 0, 2000, true).unwrap().1).collect();
            // The last one stays until the end: with it, all buffers are freed anyway.
            let (last, rings) = rings.split_last().unwrap();
            let start = Instant::now();
            if one_by_one {
                rings.iter().for_each(|&offset| region.release_rings(&[offset]));
            } else {
                region.release_rings(rings);
            }
            *best = start.elapsed().min(*best);
            assert_eq!(region.free_buffers(), 600_000 - 2 - 2000);
            region.release_rings(&[*last]);
        }
    }
    println!("256 rings: {:?} one by one, {:?} at once", best[0], best[1]);
    assert!(best[1] < best[0] / 8, "{best:?}");
}
