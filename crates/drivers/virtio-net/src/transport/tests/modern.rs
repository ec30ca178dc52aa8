//! Tests of the modern interface.

use ringpass_virtio::driver::Addresses;

use super::*;
use crate::transport::QueueSetup;

const COMMON: usize = 0x100;
const NOTIFY: usize = 0x200;
const DEVICE: usize = 0x180;

/// Returns a modern card's capabilities, with a power management capability before them and MSI-X behind.
fn modern_config() -> Vec<u8> {
    config(&[
        (0x40, &[0x01, 0x48]),
        (0x48, &structure(0x58, 1, 4, COMMON as u32, 60, &[])),
        (0x58, &structure(0x68, 3, 4, 0x1f0, 1, &[])),
        (0x68, &structure(0x78, 4, 4, DEVICE as u32, 12, &[])),
        (0x78, &structure(0x90, 2, 4, NOTIFY as u32, 0x40, &8u32.to_le_bytes())),
        (0x90, &[0x11, 0, 3, 0]),
    ])
}

fn modern() -> (Arc<Memory>, Box<dyn Transport>) {
    let memory = Memory::new(0x240);
    let transport = open(&card(modern_config(), &[(4, &memory)])).expect("a modern card");
    (memory, transport)
}

const ADDRESSES: Addresses = Addresses { descriptors: 0x12_3456_7000, driver: 0x12_3456_8000, device: 0x12_3456_9000 };

fn setup(size: u16, vector: Option<u16>) -> QueueSetup {
    QueueSetup { size, addresses: ADDRESSES, vector, notification_data: false }
}

#[test]
fn a_modern_card_is_driven_field_by_field() {
    let (memory, mut card) = modern();
    assert_eq!((card.description(), card.is_legacy()), ("modern, memory of a test".into(), false));
    let common = |accesses: Vec<Access>| -> Vec<Access> {
        let inside = |access| match access {
            Read(offset, width, value) => Read(offset - COMMON, width, value),
            Write(offset, width, value) => Write(offset - COMMON, width, value),
        };
        accesses.into_iter().map(inside).collect()
    };
    memory.answer(COMMON + 20, [15, 15, 0]);
    card.reset().expect("a reset");
    assert_eq!(
        common(memory.accesses()),
        [Write(20, 1, 0), Read(20, 1, 15), Read(20, 1, 15), Read(20, 1, 0), Write(16, 2, 0xffff)]
    );
    card.set_status(3);
    assert_eq!(common(memory.accesses()), [Write(20, 1, 3)]);

    memory.answer(COMMON + 4, [0x1111_2222, 0x3333_4444]);
    assert_eq!(card.features(), 0x3333_4444_1111_2222);
    assert_eq!(
        common(memory.accesses()),
        [Write(0, 4, 0), Read(4, 4, 0x1111_2222), Write(0, 4, 1), Read(4, 4, 0x3333_4444)]
    );
    card.accept(0x5555_6666_7777_8888);
    assert_eq!(
        common(memory.accesses()),
        [Write(8, 4, 0), Write(12, 4, 0x7777_8888), Write(8, 4, 1), Write(12, 4, 0x5555_6666)]
    );

    memory.set(COMMON + 18, &[3, 0]);
    memory.set(COMMON + 24, &[0, 1]);
    assert_eq!((card.queue_size(2), card.queue_size(3)), (256, 0));
    assert_eq!(common(memory.accesses()), [Read(18, 2, 3), Write(22, 2, 2), Read(24, 2, 256), Read(18, 2, 3)]);

    memory.set(COMMON + 30, &[7, 0]);
    // SAFETY: the test's card is plain memory; it does no DMA.
    let doorbell = unsafe { card.start_queue(2, &setup(128, Some(1))) }.expect("a queue");
    assert_eq!(
        common(memory.accesses()),
        [
            Write(22, 2, 2),
            Write(24, 2, 128),
            Read(24, 2, 128),
            Write(26, 2, 1),
            Read(26, 2, 1),
            Read(30, 2, 7),
            Write(32, 4, 0x3456_7000),
            Write(36, 4, 0x12),
            Write(40, 4, 0x3456_8000),
            Write(44, 4, 0x12),
            Write(48, 4, 0x3456_9000),
            Write(52, 4, 0x12),
            Write(28, 2, 1),
        ]
    );
    doorbell.notify(0xaaaa);
    assert_eq!(memory.accesses(), [Write(NOTIFY + 7 * 8, 2, 2)]);
    // SAFETY: the test's card is plain memory; it does no DMA.
    let doorbell = unsafe { card.start_queue(1, &QueueSetup { notification_data: true, ..setup(128, None) }) };
    assert!(memory.accesses().contains(&Write(COMMON + 26, 2, 0xffff)));
    doorbell.expect("a queue").notify(0x8123);
    assert_eq!(memory.accesses(), [Write(NOTIFY + 7 * 8, 4, 0x8123_0001)]);

    memory.answer(COMMON + 58, [1, 1, 0]);
    memory.answer(COMMON + 28, [1, 0]);
    card.reset_queue(1).expect("a reset");
    assert_eq!(
        common(memory.accesses()),
        [
            Write(22, 2, 1),
            Write(58, 2, 1),
            Read(58, 2, 1),
            Read(58, 2, 1),
            Read(58, 2, 0),
            Read(28, 2, 1),
            Read(28, 2, 0)
        ]
    );
}

#[test]
fn configuration_is_read_by_fields_until_it_holds_still() {
    let (memory, mut card) = modern();
    memory.set(DEVICE, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let mut mac = [0; 6];
    card.read_config(0, &mut mac).expect("the MAC address");
    assert_eq!(mac, [1, 2, 3, 4, 5, 6]);
    let bytes = (0..6).map(|i| Read(DEVICE + i, 1, i as u32 + 1));
    let generation = Read(COMMON + 21, 1, 0);
    assert_eq!(memory.accesses(), std::iter::once(generation).chain(bytes).chain([generation]).collect::<Vec<_>>());

    // The configuration changes once while it is read.
    memory.answer(COMMON + 21, [4, 5, 5]);
    let mut status = [0; 2];
    card.read_config(6, &mut status).expect("the status");
    assert_eq!(status, [7, 8]);
    assert_eq!(
        memory.accesses().iter().filter(|access| matches!(access, Read(offset, 2, _) if *offset == DEVICE + 6)).count(),
        2
    );
    // It changes all the time.
    memory.answer(COMMON + 21, (0..).take(1000));
    let error = card.read_config(6, &mut status).expect_err("no end").to_string();
    assert!(error.contains("changes all the time"), "{error}");

    memory.answer(COMMON + 21, [0]);
    memory.accesses();
    let mut eight = [0; 8];
    card.read_config(4, &mut eight).expect("eight bytes");
    assert_eq!(memory.accesses()[1..3], [Read(DEVICE + 4, 4, 0x0807_0605), Read(DEVICE + 8, 4, 0x0c0b_0a09)]);
    card.write_config(0, &[1, 0, 0, 0, 0, 0]).expect("a MAC address");
    assert_eq!(memory.accesses().len(), 6);
    for offset in [11, 12, usize::MAX] {
        let error = card.read_config(offset, &mut status).expect_err("beyond the end").to_string();
        assert!(error.contains("has 12 bytes"), "{error}");
        assert!(card.write_config(offset, &status).is_err());
    }
}

#[test]
fn a_modern_card_that_does_otherwise_is_refused() {
    let (memory, mut card) = modern();
    // SAFETY: the test's card is plain memory; it does no DMA.
    let mut refused =
        |setup: &QueueSetup| unsafe { card.start_queue(0, setup) }.map(drop).expect_err("a reason").to_string();
    memory.answer(COMMON + 24, [64]);
    let error = refused(&setup(128, None));
    assert!(error.contains("takes 64 descriptors"), "{error}");
    memory.answer(COMMON + 26, [0xffff]);
    let error = refused(&setup(64, Some(3)));
    assert!(error.contains("refuses interrupt vector 3"), "{error}");
    memory.answer(COMMON + 26, [2]);
    let error = refused(&setup(64, Some(3)));
    assert!(error.contains("took vector 2"), "{error}");
    // The notification area has 0x40 bytes and a multiplier of 8.
    memory.answer(COMMON + 26, [0xffff]);
    for (offset, notification_data) in [(8, false), (0xffff, false), (8, true)] {
        memory.answer(COMMON + 30, [offset]);
        let error = refused(&QueueSetup { notification_data, ..setup(64, None) });
        assert!(error.contains("doorbell of queue 0 lies outside"), "{error}");
    }
    assert!(!memory.accesses().contains(&Write(COMMON + 28, 2, 1)), "no queue was started");
}

#[test]
fn doorbells_end_where_their_area_ends() {
    // A notification area of 6 bytes with a doorbell every two bytes: the third has room for a queue number,
    // but not for a position as well.
    let mut config = modern_config();
    config[0x78..0x78 + 20].copy_from_slice(&structure(0, 2, 4, 0x23a, 6, &2u32.to_le_bytes()));
    let memory = Memory::new(0x240);
    let mut card = open(&card(config, &[(4, &memory)])).expect("a card");
    for (offset, notification_data, fits) in
        [(0, false, true), (2, false, true), (3, false, false), (1, true, true), (0, true, false), (2, true, false)]
    {
        memory.answer(COMMON + 30, [offset]);
        // SAFETY: the test's card is plain memory; it does no DMA.
        let started = unsafe { card.start_queue(0, &QueueSetup { notification_data, ..setup(64, None) }) };
        assert_eq!(started.is_ok(), fits, "{offset} {notification_data}");
        started.into_iter().for_each(|doorbell| doorbell.notify(0));
    }
}

#[test]
fn resets_that_never_end_and_cards_that_are_gone_are_errors() {
    let (memory, mut card) = modern();
    memory.answer(COMMON + 20, [1]);
    let error = card.reset().expect_err("no end").to_string();
    assert!(error.contains("did not end within 1000 ms; it reads 0x1"), "{error}");
    memory.answer(COMMON + 20, [0xff]);
    let error = card.reset().expect_err("gone").to_string();
    assert!(error.contains("gone"), "{error}");
    memory.answer(COMMON + 58, [0xffff]);
    let error = card.reset_queue(0).expect_err("gone").to_string();
    assert!(error.contains("gone"), "{error}");
    memory.answer(COMMON + 58, [1]);
    let error = card.reset_queue(0).expect_err("no end").to_string();
    assert!(error.contains("reset of queue 0 did not end"), "{error}");
    memory.answer(COMMON + 58, [0]);
    memory.answer(COMMON + 28, [1]);
    let error = card.reset_queue(0).expect_err("no end").to_string();
    assert!(error.contains("reset of queue 0 did not end"), "{error}");
}
