//! A guest that migrates: what is written to its memory is logged.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::common::*;
use ringpass_memory::{ForeignMemory, Packet};
use ringpass_port::PortConfig;
use ringpass_testing::{Random, memfd};
use ringpass_vhost_user::{Device, DirtyLog};

const PAGE: usize = 4096;
/// Size of a log for all addresses that a process may have, which are the guest's here.
const SIZE: u64 = 1 << (47 - 12 - 3);

/// A log, and the front-end's view of it.
struct Log {
    log: Arc<DirtyLog>,
    own: Arc<ForeignMemory>,
}

impl Log {
    fn new(guest: &Guest) -> Self {
        let file: OwnedFd = memfd(SIZE);
        let own = ForeignMemory::map_shared(file.try_clone().unwrap(), 0, SIZE as usize).unwrap();
        Self { log: Arc::new(DirtyLog::map(SIZE, 0, &file, &guest.memory).unwrap()), own }
    }

    /// Takes the marks of these pages, as a front-end does: returns those that were marked, and clears them.
    fn take(&self, pages: &BTreeSet<u64>) -> BTreeSet<u64> {
        let is_marked = |page: &&u64| {
            // SAFETY: the byte is inside the log, which has a bit for every address of a process.
            let byte = unsafe { self.own.as_ptr().add((**page / 8) as usize) };
            // SAFETY: the log stays mapped, and nobody writes to it at the moment.
            let value = unsafe { byte.read_volatile() };
            let bit = 1 << (**page % 8);
            // SAFETY: the log stays mapped, and nobody else writes to it at the moment.
            unsafe { byte.write_volatile(value & !bit) };
            value & bit != 0
        };
        pages.iter().filter(is_marked).copied().collect()
    }
}

/// Returns the guest's pages by number, with their content.
fn pages(guest: &Guest) -> Vec<(u64, Vec<u8>)> {
    let regions = guest.memory.regions().iter();
    let page = |(number, start): (u64, *const u8)| {
        // SAFETY: the page is inside of a region, which stays mapped. No device works on it at the moment.
        let bytes = unsafe { std::slice::from_raw_parts(start, PAGE) };
        (number, bytes.to_vec())
    };
    let numbered = regions.flat_map(|region| {
        let start = region.memory.as_ptr().wrapping_add(region.offset as usize).cast_const();
        (0..region.len as usize / PAGE)
            .map(move |n| (region.guest / PAGE as u64 + n as u64, start.wrapping_add(n * PAGE)))
    });
    numbered.map(page).collect()
}

/// Asserts that work of the device marks exactly the pages that it changes, but for those of rings, which it may mark without.
fn marks(guest: &Guest, log: &Log, what: &str, work: impl FnOnce()) {
    let before = pages(guest);
    let all: BTreeSet<u64> = before.iter().map(|(number, _)| *number).collect();
    log.take(&all);
    work();
    let changed: BTreeSet<u64> =
        before.iter().zip(pages(guest)).filter(|(old, new)| old.1 != new.1).map(|(old, _)| old.0).collect();
    let marked = log.take(&all);
    let missing: Vec<_> = changed.difference(&marked).collect();
    assert!(missing.is_empty(), "{:#x} {what}: not marked: {missing:x?} of {changed:x?}", guest.features);
    let rings = guest.rings().iova(0) / PAGE as u64;
    let rings = rings..rings + (guest.rings().len() / PAGE) as u64;
    // A buffer may be written with what it has already.
    let more = marked.difference(&changed).filter(|page| !rings.contains(page)).count();
    assert!(more <= 40, "{:#x} {what}: {more} pages too many", guest.features);
}

#[test]
fn all_pages_that_are_written_to_are_marked() {
    for features in FEATURES {
        let (mut rig, mut guest) = (Rig::new(&PortConfig::default()), Guest::new(features, 1, 64));
        guest.attach(&mut rig.device);
        let (log, mut random) = (Log::new(&guest), Random::new(features | 1));
        rig.device.set_log(Some(log.log.clone())).unwrap();
        let mut next = 0;
        for round in 0..60 {
            let mut some = || -> Vec<Vec<u8>> {
                let count = 1 + random.below(12) as usize;
                let frames = (0..count).map(|n| frame(next + n, 14 + random.below(1500) as usize)).collect();
                next += count;
                frames
            };
            let (from, to) = (some(), some());
            // From the guest: only the ring is written to.
            from.iter().for_each(|frame| assert!(guest.send(0, [0; 12], frame, &[])));
            marks(&guest, &log, "from the guest", || assert_eq!(rig.frames(0), from));
            assert_eq!(guest.sent(0), from.len());
            // To the guest, also in several pieces.
            let pieces: &[usize] = if round % 3 == 0 { &[12, 100, 700, 1500] } else { &[1526] };
            to.iter().for_each(|_| assert!(guest.offer(0, pieces)));
            marks(&guest, &log, "to the guest", || assert_eq!(rig.send(0, &to), 0));
            let received: Vec<_> = guest.received(0).into_iter().map(|(_, frame)| frame).collect();
            assert_eq!(received, to, "{features:#x}");
            let rx = &mut rig.queues[0].rx;
            marks(&guest, &log, "wake-ups", || {
                rx.arm();
                rx.disarm();
            });
        }
        // A queue that starts while there is a log, and one that ends.
        let bases = guest.detach(&mut rig.device);
        marks(&guest, &log, "a start", || {
            (0..2).for_each(|queue| guest.start(&mut rig.device, queue, bases[queue]));
        });
        rig.device.set_log(None).unwrap();
        (0..2).for_each(|queue| rig.device.enable(queue, true));
        guest.offer_all(0);
        let all: BTreeSet<u64> = pages(&guest).iter().map(|(number, _)| *number).collect();
        log.take(&all);
        assert_eq!(rig.send(0, &[frame(1, 100)]), 0);
        assert!(log.take(&all).is_empty(), "{features:#x}: the log has ended");
        drop(guest.received(0));
        guest.detach(&mut rig.device);
        guest.reset();
    }
}

/// Buffers are not lent while the guest migrates, as frames that a card writes cannot be logged, and are again after a migration that failed.
#[test]
fn lending_ends_while_there_is_a_log() {
    for features in mapped::features() {
        let (mut port, mut guest) = (mapped::Mapped::new(), Guest::new(features, 1, 64));
        guest.attach(&mut port.rig.device);
        guest.offer_all(0);
        let frames = |n| mapped::frames(n, 200);
        let arrived = port.arrive(&frames(8));
        assert!(mapped::lent(&arrived) > 0, "{features:#x}");
        port.send(arrived);
        guest.received_full(0);
        let log = Log::new(&guest);
        port.while_polled(|device| device.set_log(Some(log.log.clone()))).unwrap();
        guest.received_empty(0);
        guest.offer_all(0);
        port.look();
        let arrived: Vec<Packet> = port.arrive(&frames(8));
        assert_eq!(mapped::lent(&arrived), 0, "{features:#x}: copied");
        let mut sent = 0;
        marks(&guest, &log, "copies", || sent = port.send(arrived));
        assert_eq!(mapped::bare(guest.received(0), guest.header()), frames(8), "{features:#x} {sent}");
        port.while_polled(|device| device.set_log(None)).unwrap();
        guest.offer_all(0);
        port.look();
        let arrived = port.arrive(&frames(8));
        assert!(mapped::lent(&arrived) > 0, "{features:#x}: lent again");
        port.send(arrived);
        guest.received(0);
        port.while_polled(|device| (0..2).for_each(|queue| _ = device.stop(queue)));
        guest.reset();
    }
}
