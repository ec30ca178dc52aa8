//! Rings and buffers that violate the specification: the device needs a reset, and reports why.

use ringpass_models::virtio::{Interface, VirtioConfig};
use ringpass_virtio::features::*;

use crate::virtio::driver::*;

/// Violates the specification on queue 1 of a working device, and checks that the device notices, reports it,
/// and works again after a reset.
fn wrong(features: u64, why: &str, act: impl FnOnce(&mut Driver)) {
    let mut driver = Driver::started(features);
    driver.send(&[], &any_frame(60));
    driver.all_used(1);
    act(&mut driver);
    driver.notify(1);
    driver.step();
    driver.sent();
    let fault = driver.card.fault();
    assert!(fault.is_some_and(|fault| fault.contains(why)), "{fault:?} is not {why}, {features:#x}");
    assert_ne!(driver.status() & NEEDS_RESET, 0);
    assert!(driver.heard(driver.vectors.len() - 1) > 0, "the configuration has changed");
    driver.arrive(&[any_frame(60)]);
    assert_eq!(driver.receive(), None);
    driver.wire.frames().to_card.clear();
    driver.write_status(0);
    assert_eq!((driver.card.fault(), driver.status()), (None, 0));
}

fn piece(driver: &mut Driver, len: usize) -> Piece {
    driver.filled(1, &vec![0; len])
}

const KINDS: [u64; 2] = [0, RING_PACKED];

#[test]
fn chains() {
    for kind in KINDS {
        wrong(kind | INDIRECT_DESC, "length 0", |driver| {
            let empty = Piece { len: 0, ..piece(driver, 100) };
            driver.post(1, &[empty]);
        });
        wrong(kind, "behind one to be written", |driver| {
            let (first, second) = (driver.empty(1, 100), piece(driver, 100));
            driver.post(1, &[first, second]);
        });
        wrong(kind, "not mapped", |driver| {
            let away = Piece { address: 0xdead_0000_0000, ..piece(driver, 100) };
            driver.post(1, &[away]);
        });
        wrong(kind, "to be written", |driver| {
            let (first, second) = (piece(driver, 100), driver.empty(1, 100));
            driver.post(1, &[first, second]);
        });
        wrong(kind, "shorter than its header", |driver| {
            let short = piece(driver, 11);
            driver.post(1, &[short]);
        });
    }
}

#[test]
fn tables() {
    for kind in KINDS {
        let table = |driver: &mut Driver| {
            let pieces = [piece(driver, 50), piece(driver, 50)];
            driver.table(1, &pieces)
        };
        wrong(kind, "was not negotiated", |driver| {
            let table = table(driver);
            driver.post(1, &[table]);
        });
        let kind = kind | INDIRECT_DESC;
        wrong(kind, "multiple of 16", |driver| {
            let odd = Piece { len: 24, ..table(driver) };
            driver.post(1, &[odd]);
        });
        wrong(kind, "of length 0", |driver| {
            let none = Piece { len: 0, ..table(driver) };
            driver.post(1, &[none]);
        });
        wrong(kind, "table in", |driver| {
            let pieces = [table(driver)];
            let nested = driver.table(1, &pieces);
            driver.post(1, &[nested]);
        });
        wrong(kind, "in", |driver| {
            let (table, other) = (table(driver), piece(driver, 60));
            driver.post(1, &[table, other]);
        });
        wrong(kind, "longer than the queue", |driver| {
            let pieces = vec![piece(driver, 1); 65];
            let long = driver.table(1, &pieces);
            driver.post(1, &[long]);
        });
        wrong(kind, "not mapped", |driver| {
            let away = Piece { address: 0xdead_0000_0000, len: 16, flags: INDIRECT };
            driver.post(1, &[away]);
        });
    }
}

#[test]
fn split_rings() {
    wrong(0, "runs ahead", |driver| {
        let at = driver.queues[1].areas[1] + 2;
        driver.write(at, &100u16.to_le_bytes());
    });
    wrong(0, "names no descriptor", |driver| {
        let at = driver.queues[1].areas[1] + 4;
        driver.write(at + 2, &64u16.to_le_bytes());
        driver.write(at - 2, &2u16.to_le_bytes());
    });
    wrong(0, "outside the table", |driver| {
        let bytes = Driver::entry(piece(driver, 100), NEXT, 64);
        let head = piece(driver, 20);
        let index = driver.post(1, &[head]);
        driver.write(driver.descriptor(1, index), &bytes);
    });
    wrong(0, "or a loop", |driver| {
        let head = piece(driver, 20);
        let index = driver.post(1, &[head]);
        let bytes = Driver::entry(head, NEXT, index);
        driver.write(driver.descriptor(1, index), &bytes);
    });
    wrong(IN_ORDER, "not in ring order", |driver| {
        driver.queues[1].free += 1;
        let head = piece(driver, 100);
        driver.post(1, &[head]);
    });
}

#[test]
fn packed_rings() {
    wrong(RING_PACKED, "further descriptors are not available", |driver| {
        let head = piece(driver, 100);
        let next = driver.queues[1].next;
        driver.post(1, &[head]);
        let at = driver.descriptor(1, next) + 14;
        driver.write(at, &(driver.read16(at) | NEXT).to_le_bytes());
    });
    for (features, flags, why) in [(0, 2u16, "not negotiated"), (EVENT_IDX, 3, "reserved")] {
        wrong(RING_PACKED | features, why, |driver| {
            let at = driver.queues[1].areas[1] + 2;
            driver.write(at, &flags.to_le_bytes());
            driver.put(1, &[], &any_frame(60));
        });
    }
    wrong(RING_PACKED | EVENT_IDX, "outside the ring", |driver| {
        let at = driver.queues[1].areas[1];
        driver.write(at, &[64, 0, 2, 0]);
        driver.put(1, &[], &any_frame(60));
    });
}

#[test]
fn receive_buffers() {
    for kind in KINDS {
        for (write, len, why) in [(false, 2000, "is to be read"), (true, 11, "shorter than the header")] {
            let mut driver = Driver::up(&VirtioConfig { features: kind, ..VirtioConfig::default() }, 64);
            let mut driver = {
                driver.arrive(&(0..32).map(|_| any_frame(60)).collect::<Vec<_>>());
                driver
            };
            let buffer = Piece { flags: if write { WRITE } else { 0 }, ..driver.empty(0, len) };
            driver.post(0, &[buffer]);
            driver.notify(0);
            driver.arrive(&[any_frame(60)]);
            assert!(driver.card.fault().is_some_and(|fault| fault.contains(why)), "{:?}", driver.card.fault());
        }
    }
}

#[test]
fn queues_in_memory_that_is_not_the_cards() {
    let mut driver = Driver::started(0);
    driver.card.unmap_all();
    driver.arrive(&[any_frame(60)]);
    assert_eq!((driver.card.fault().is_some(), driver.card.counters().dma_faults), (true, 1));
}

#[test]
fn legacy_buffers_have_their_header_apart() {
    let config =
        VirtioConfig { interface: Interface::Legacy, features: MAC, queue_size: 64, ..VirtioConfig::default() };
    let mut driver = Driver::on(&config, true);
    driver.negotiate(MAC).unwrap();
    (0..2).for_each(|queue| driver.start_queue(queue, 64));
    driver.set_status(DRIVER_OK);
    let pieces = [driver.empty(0, 10), driver.empty(0, 1514)];
    driver.post(0, &pieces);
    driver.notify(0);
    driver.arrive(&[any_frame(60)]);
    assert_eq!(driver.used(0), Some((0, 70)));
    assert_eq!(driver.read((pieces[1].address - BASE) as usize, 60), any_frame(60));
    let pieces = [driver.filled(1, &[0; 10]), driver.filled(1, &any_frame(99))];
    driver.post(1, &pieces);
    driver.notify(1);
    driver.step();
    assert_eq!((driver.sent(), driver.card.fault()), (vec![any_frame(99)], None));
    driver.put(1, &[], &any_frame(60));
    driver.notify(1);
    driver.step();
    assert!(driver.card.fault().is_some_and(|fault| fault.contains("header is not in a descriptor of its own")));
    assert_eq!(driver.status() & NEEDS_RESET, 0, "legacy cards have no such bit");
}
