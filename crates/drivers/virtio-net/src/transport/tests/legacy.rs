//! Tests of the legacy interface.

use ringpass_virtio::driver::Addresses;

use super::*;
use crate::transport::QueueSetup;

fn legacy(config: Vec<u8>) -> (Arc<Memory>, Arc<Card>, Box<dyn Transport>) {
    let memory = Memory::new(64);
    let card = card(config, &[(0, &memory)]);
    let transport = open(&card).expect("a legacy card");
    (memory, card, transport)
}

/// Returns the addresses of a queue of 256 that starts at `descriptors`, a page boundary: 4096 bytes of
/// descriptors, 518 bytes of available ring, then the used ring on the next page.
fn addresses(descriptors: u64) -> Addresses {
    Addresses { descriptors, driver: descriptors + 4096, device: descriptors + 8192 }
}

#[test]
fn a_legacy_card_is_driven_field_by_field() {
    let (memory, _, mut card) = legacy(config(&[]));
    assert_eq!((card.description(), card.is_legacy()), ("legacy, memory of a test".into(), true));
    memory.answer(18, [7, 0]);
    card.reset().expect("a reset");
    assert_eq!(memory.accesses(), [Write(18, 1, 0), Read(18, 1, 7), Read(18, 1, 0)]);
    card.set_status(3);
    memory.set(0, &[0x11, 0x22, 0x33, 0x44]);
    assert_eq!(card.features(), 0x4433_2211);
    card.accept(0x1234_5678);
    assert_eq!(memory.accesses(), [Write(18, 1, 3), Read(0, 4, 0x4433_2211), Write(4, 4, 0x1234_5678)]);

    memory.answer(12, [256]);
    let setup = QueueSetup { size: 256, addresses: addresses(0xfff_ffff_f000), vector: None, notification_data: false };
    // SAFETY: the test's card is plain memory; it does no DMA.
    let doorbell = unsafe { card.start_queue(1, &setup) }.expect("a queue");
    assert_eq!(memory.accesses(), [Write(14, 2, 1), Read(12, 2, 256), Write(8, 4, 0xffff_ffff)]);
    doorbell.notify(9);
    assert_eq!(memory.accesses(), [Write(16, 2, 1)]);
    assert!(card.reset_queue(1).is_err());
}

#[test]
fn msix_moves_a_legacy_cards_configuration() {
    let (memory, pci, mut card) = legacy(config(&[(0x40, &[0x05, 0x50]), (0x50, &[0x11, 0, 2, 0])]));
    memory.set(20, &[20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
    let mut mac = [0; 6];
    card.read_config(0, &mut mac).expect("the MAC address");
    assert_eq!(mac, [20, 21, 22, 23, 24, 25]);
    let vector = QueueSetup { size: 256, addresses: addresses(4096), vector: Some(1), notification_data: false };
    memory.answer(12, [256]);
    // SAFETY: the test's card is plain memory; it does no DMA.
    let error = unsafe { card.start_queue(0, &vector) }.map(drop).expect_err("no vectors").to_string();
    assert!(error.contains("MSI-X is not on"), "{error}");

    pci.config.lock().unwrap()[0x53] = 0x80;
    card.read_config(0, &mut mac).expect("the MAC address");
    assert_eq!(mac, [24, 25, 26, 27, 28, 29]);
    memory.accesses();
    card.write_config(0, &[1, 2, 3, 4, 5, 6]).expect("a MAC address");
    assert_eq!(memory.accesses()[..2], [Write(24, 1, 1), Write(25, 1, 2)]);
    // SAFETY: the test's card is plain memory; it does no DMA.
    unsafe { card.start_queue(0, &vector) }.expect("a queue");
    let accesses = memory.accesses();
    assert_eq!(accesses[2..], [Write(22, 2, 1), Read(22, 2, 1), Write(8, 4, 1)], "{accesses:?}");
    memory.answer(22, [0xffff]);
    // SAFETY: the test's card is plain memory; it does no DMA.
    let error = unsafe { card.start_queue(0, &vector) }.map(drop).expect_err("refused").to_string();
    assert!(error.contains("refuses interrupt vector 1"), "{error}");
    card.reset().expect("a reset");
    assert!(memory.accesses().contains(&Write(20, 2, 0xffff)));
    assert!(card.read_config(39, &mut [0; 2]).is_err());
    card.read_config(38, &mut [0; 2]).expect("the last bytes");
}

#[test]
fn a_legacy_cards_configuration_is_read_until_it_comes_twice() {
    let (memory, _, mut card) = legacy(config(&[]));
    memory.answer(26, [1, 2, 3, 3]);
    let mut status = [0; 2];
    card.read_config(6, &mut status).expect("the status");
    assert_eq!((status, memory.accesses().len()), ([3, 0], 4));
    memory.answer(26, (0..).take(1000));
    let error = card.read_config(6, &mut status).expect_err("no end").to_string();
    assert!(error.contains("changes all the time"), "{error}");
}

#[test]
fn queues_that_a_legacy_card_cannot_have_are_refused() {
    let (memory, _, mut card) = legacy(config(&[]));
    for (size, seen) in [(0, 0), (256, 256), (255, 0), (0xffff, 0), (32768, 32768)] {
        memory.answer(12, [size]);
        assert_eq!(card.queue_size(0), seen);
    }
    memory.answer(12, [256]);
    let Addresses { descriptors, driver, device } = addresses(0x10000);
    for (size, addresses, reason) in [
        (128, addresses(0x10000), "has 256 descriptors, not 128"),
        (256, addresses(1 << 44), "below 16 TiB"),
        (256, addresses(0x10800), "does not lie so"),
        (256, Addresses { descriptors, driver: driver + 2, device }, "does not lie so"),
        (256, Addresses { descriptors, driver, device: device + 4096 }, "does not lie so"),
        (256, addresses(u64::MAX - 0x2fff), "below 16 TiB"),
        (256, Addresses { descriptors: u64::MAX - 4095, driver, device }, "does not lie so"),
    ] {
        memory.accesses();
        let setup = QueueSetup { size, addresses, vector: None, notification_data: false };
        // SAFETY: the test's card is plain memory; it does no DMA.
        let error = unsafe { card.start_queue(0, &setup) }.map(drop).expect_err(reason).to_string();
        assert!(error.contains(reason) && error.lines().count() == 1, "{reason}: {error}");
        assert!(!memory.accesses().iter().any(|access| matches!(access, Write(8, ..))));
    }
}
