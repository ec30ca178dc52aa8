//! Inflight regions: of a process that is killed, and of front-ends that write arbitrary contents (line 8).

use std::sync::Arc;
use std::time::Duration;

use ringpass_memory::{DmaRegion, Error, ForeignMemory, Mempool, MempoolConfig, RegionConfig};
use ringpass_testing::Random;
use ringpass_virtio::device::{
    self, ChainBatch, CreateVirtqueue, DeviceAccess, Inflight, Packed, Split, Virtqueue, VringConfig,
};
use ringpass_virtio::driver::{self, Config};

use crate::device::book::Guest;
use crate::device::guest;

const SIZE: u16 = 8;

/// Creates a queue with an inflight region that contains these words.
fn open<Q: CreateVirtqueue>(packed: bool, words: &[(usize, u64)]) -> Result<Q, Error> {
    let inflight = guest::inflight(packed, SIZE);
    for &(at, word) in words {
        assert!(8 * at < inflight.len);
        // SAFETY: `8 * at < len`, and the region has `len` bytes, a multiple of 8, at a page-aligned address.
        // Nothing else uses it yet.
        unsafe { inflight.memory.as_ptr().cast::<u64>().add(at).write_volatile(word) };
    }
    let guest = Guest::new(SIZE, 0);
    let setup = VringConfig { inflight: Some(inflight), ..guest.setup(if packed { 0x8000_8000 } else { 0 }) };
    Q::new(&setup, &guest.memory)
}

#[test]
fn line_8_split_regions() {
    let header = |version: u64, count: u64, last: u64, used: u64| (1, version | count << 16 | last << 32 | used << 48);
    let state = |id: usize, inflight: u64, next: u64| (2 + 2 * id, inflight | next << 48);
    assert!(open::<Split>(false, &[]).is_ok());
    assert!(open::<Split>(false, &[header(1, 8, 0, 0)]).is_ok());
    for (version, count) in [(2, 8), (0xffff, 8), (1, 0), (1, 7), (1, 9), (1, 0xffff)] {
        assert!(open::<Split>(false, &[header(version, count, 0, 0)]).is_err(), "{version} {count}");
    }
    // A last batch of any length, whose list continues anywhere or loops.
    for last in [0, 7, 8, 0xffff] {
        for used in [1, 7, 8, 9, 0x8000, 0xffff] {
            for next in [0, 3, 8, 0xffff] {
                let all = (0..8).map(|id| state(id, 1, next));
                assert!(open::<Split>(false, &all.chain([header(1, 8, last, used)]).collect::<Vec<_>>()).is_ok());
            }
        }
    }
}

#[test]
fn line_8_packed_regions() {
    let header = |version: u64, count: u64, free: u64, old: u64| (1, version | count << 16 | free << 32 | old << 48);
    let used = |now: u64, old: u64| (2, now | old << 16 | 1 << 32 | 1 << 40);
    let state = |at: usize, inflight: u64, next: u64, count: u64| (4 + 4 * at, inflight | next << 16 | count << 48);
    let list = || (0..8).map(move |at| state(at, 0, at as u64 + 1, 0));
    let with = |more: &[(usize, u64)]| list().chain(more.iter().copied()).collect::<Vec<_>>();
    let right = [header(1, 8, 0, 0), used(0, 0)];
    assert!(open::<Packed>(true, &[]).is_ok());
    assert!(open::<Packed>(true, &with(&right)).is_ok());
    for (version, count) in [(2, 8), (0xffff, 8), (1, 0), (1, 7), (1, 9), (1, 0xffff)] {
        assert!(open::<Packed>(true, &with(&[header(version, count, 0, 0), used(0, 0)])).is_err(), "{version} {count}");
    }
    for (free, old) in [(0, 9), (9, 0), (0xffff, 0xffff), (1, 1), (8, 8)] {
        assert!(open::<Packed>(true, &with(&[header(1, 8, free, old), used(0, 0)])).is_err(), "free {free} {old}");
    }
    for (now, old) in [(8, 0), (0, 8), (0x7fff, 0x7fff), (0xffff, 0)] {
        assert!(open::<Packed>(true, &with(&[right[0], used(now, old)])).is_err(), "used {now} {old}");
    }
    // A list that loops, or continues past its end.
    for next in [0, 3, 5] {
        assert!(open::<Packed>(true, &with(&[right[0], right[1], state(5, 0, next, 0)])).is_err(), "next {next}");
    }
    // Chains that are empty, too long, contain free entries, or loop.
    for (first, next, count) in [(0, 1, 0), (0, 1, 9), (0, 1, 0xffff), (0, 1, 2), (0, 0, 2), (0, 9, 2)] {
        let words = [header(1, 8, 1, 1), used(0, 0), state(first, 1, next, count)];
        assert!(open::<Packed>(true, &with(&words)).is_err(), "{first} {next} {count}");
    }
    assert!(open::<Packed>(true, &with(&[header(1, 8, 1, 1), used(0, 0), state(0, 1, 1, 1)])).is_ok());
}

/// Regions in which some words are arbitrary, flags and counters too. They are refused, or their chains in
/// flight are chains of the ring, each of them once.
#[test]
fn line_8_regions_with_noise() {
    fn chains<Q: CreateVirtqueue>(packed: bool, words: &[(usize, u64)]) -> Option<usize> {
        let mut queue = open::<Q>(packed, words).ok()?;
        let (mut taken, mut seen) = (ChainBatch::default(), [false; SIZE as usize]);
        // The descriptors in the ring are all zero, so the device may refuse them.
        let _ = queue.take(DeviceAccess::Read, 64, &mut taken);
        for chain in &taken.chains {
            assert!(!std::mem::replace(&mut seen[usize::from(chain.id)], true), "{} comes twice: {words:x?}", chain.id);
        }
        Some(taken.chains.len())
    }
    let mut random = Random::new(8);
    let (mut refused, mut empty, mut some) = ([0; 2], [0; 2], [0; 2]);
    for _ in 0..400 {
        for packed in [false, true] {
            let (head, entry, all) = if packed { (4, 4, 36) } else { (2, 2, 18) };
            let mut words = vec![0_u64; all];
            // From the last entry to the first; `free` is the first free entry after it.
            let mut free = u64::from(SIZE);
            for id in (0..usize::from(SIZE)).rev() {
                let inflight = random.below(2);
                words[head + entry * id] = inflight | if packed { free << 16 | inflight << 48 } else { 0 };
                words[head + entry * id + 1] = random.below(3);
                free = if inflight == 0 { id as u64 } else { free };
            }
            words[1] = 1 | u64::from(SIZE) << 16;
            if packed {
                words[1] |= free << 32 | free << 48;
                words[2] = 1 << 32 | 1 << 40;
            }
            for _ in 0..random.index(4) {
                let mask = [0xff, 0xffff << 16, 0xffff << 48, u64::MAX][random.index(4)];
                words[random.index(all)] ^= random.below(1 << 31).wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
            }
            let words: Vec<_> = words.into_iter().enumerate().collect();
            let outcome = if packed { chains::<Packed>(true, &words) } else { chains::<Split>(false, &words) };
            let count = match outcome {
                None => &mut refused,
                Some(0) => &mut empty,
                Some(_) => &mut some,
            };
            count[usize::from(packed)] += 1;
        }
    }
    assert!(refused.iter().chain(&some).all(|&count| count > 10), "{refused:?} {empty:?} {some:?}");
}

#[test]
fn line_8_regions_elsewhere() {
    for (packed, part) in [(false, 16), (true, 32)] {
        let guest = Guest::new(SIZE, 0);
        let right = guest::inflight(packed, SIZE);
        let most = right.memory.len();
        for (offset, len) in [
            (0, part * usize::from(SIZE)),
            (0, 0),
            (most, right.len),
            (most - 64, right.len),
            (usize::MAX - 8, right.len),
            (4, right.len),
            (0, usize::MAX),
        ] {
            let inflight = Some(Inflight { offset, len, ..right.clone() });
            let setup = VringConfig { inflight, ..guest.setup(0x8000_8000) };
            let refused = if packed {
                Packed::new(&setup, &guest.memory).is_err()
            } else {
                Split::new(&setup, &guest.memory).is_err()
            };
            assert!(refused, "{offset} {len}");
        }
    }
}

/// A process that takes chains and gives them back in any order, until it is killed.
fn child<D: device::CreateVirtqueue>(setup: &VringConfig, memory: &Arc<device::GuestMemory>, seed: u64) -> ! {
    // SAFETY: `prctl` with `PR_SET_PDEATHSIG` accesses no memory; it only makes the kernel kill this process
    // with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let (mut random, mut taken, mut held) = (Random::new(1 + seed), ChainBatch::default(), Vec::new());
    let Ok(mut device) = D::new(setup, memory) else { std::process::abort() };
    loop {
        taken.begin(ChainBatch::BUDGET);
        if device.take(DeviceAccess::Read, 1 + random.index(5), &mut taken).is_err() {
            std::process::abort();
        }
        let back = random.index(3).min(taken.chains.len());
        device.put_back(&mut taken, back);
        held.append(&mut taken.chains);
        for _ in 0..random.index(6) {
            if !held.is_empty() {
                let chain = held.swap_remove(random.index(held.len()));
                device.push_used(std::iter::once(chain.used(0)));
            }
        }
        if random.index(2) == 0 {
            device.publish();
        }
    }
}

/// Each packet comes back exactly once, however often and wherever the device's process is killed.
fn killed<Q: driver::Virtqueue, D: device::CreateVirtqueue>(packed: bool) {
    let config = Config { size: 16, event_idx: false, in_order: false, indirect: 0, header: 0 };
    let rings = DmaRegion::new(Q::bytes(&config), &RegionConfig::default()).unwrap();
    let pool = Mempool::new(&MempoolConfig { buffers: 64, size: 64, ..Default::default() }).unwrap();
    let memory = guest::memory(&[(&rings, None), (pool.region(), None)]);
    let mut driver = Q::new(&rings, 0, &config).unwrap();
    let inflight = Some(guest::inflight(packed, config.size));
    let setup = VringConfig { inflight, ..guest::setup(packed, &config, driver.addresses()) };
    let mut random = Random::new(7);
    let serve = |driver: &mut Q, random: &mut Random| {
        let mut count = 0;
        while driver.room() >= 3 && random.index(4) > 0 {
            let mut packet = pool.alloc().expect("more buffers than descriptors");
            packet.set_len(60);
            (0..random.index(3)).for_each(|_| {
                packet.append(
                    pool.alloc()
                        .map(|mut more| {
                            more.set_len(9);
                            more
                        })
                        .expect("likewise"),
                )
            });
            driver.post_chain(driver::DeviceAccess::Read, packet).expect("room for three");
        }
        driver.publish();
        // The driver would fail for a packet that it did not post.
        driver
            .take(usize::MAX, |used, _| {
                drop(used.whole());
                count += 1
            })
            .expect("none twice");
        count
    };
    for round in 0..200 {
        // SAFETY: the child runs only `child`, which uses the memory that it inherits and memory that it
        // allocates, and ends by a signal. It does not return into the test.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            child::<D>(&setup, &memory, round);
        }
        assert!(pid > 0, "fork");
        let (want, mut came) = (random.index(60), 0);
        for _ in 0..1_000_000 {
            if came >= want {
                break;
            }
            match serve(&mut driver, &mut random) {
                0 => std::thread::sleep(Duration::from_micros(20)),
                some => came += some,
            }
        }
        let mut status = 0;
        // SAFETY: `pid` is this process's own child, which has not been waited for yet; the kernel only writes
        // to `status`, a local that outlives the call.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &raw mut status, 0);
        }
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL,
            "round {round}: status {status:#x}"
        );
        assert!(came >= want, "round {round}: {came} of {want} packets came back");
    }
    // The remaining packets come back too.
    let (mut device, mut taken) = (D::new(&setup, &memory).unwrap(), ChainBatch::default());
    device.take(DeviceAccess::Read, usize::MAX, &mut taken).unwrap();
    device.push_used(taken.chains.iter().map(|chain| chain.used(0)));
    device.publish();
    driver.take(usize::MAX, |used, _| drop(used.whole())).unwrap();
    assert_eq!(driver.posted(), 0);
    // SAFETY: the device belongs to this test, which does not use it any more, and all of its earlier processes
    // were killed.
    unsafe { driver.reclaim() };
}

#[test]
fn killed_with_a_split_ring() {
    killed::<driver::Split, Split>(false);
}

#[test]
fn killed_with_a_packed_ring() {
    killed::<driver::Packed, Packed>(true);
}

/// A queue keeps its inflight region mapped when all others have dropped it.
#[test]
fn regions_are_kept() {
    let region = DmaRegion::new(1 << 12, &RegionConfig::default()).unwrap();
    let memory = ForeignMemory::map(region.file().unwrap(), 0, region.len()).unwrap();
    let guest = Guest::new(SIZE, 0);
    let setup = VringConfig { inflight: Some(Inflight { memory, offset: 0, len: 16 * 9 }), ..guest.setup(0) };
    let queue = Split::new(&setup, &guest.memory).unwrap();
    drop((setup, region));
    assert_eq!(queue.base(), 0);
}
