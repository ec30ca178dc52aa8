//! Configuration space, negotiation, and the registers of a queue (4.1.4).

use ringpass_models::virtio::{Interface, VirtioCard, VirtioConfig};
use ringpass_pci::PciDevice;
use ringpass_virtio::features::*;

use crate::virtio::driver::*;
use crate::virtio::receive::RINGS;

/// Returns the fields of each vendor-specific capability: kind, BAR, offset, length.
fn capabilities(card: &VirtioCard) -> Vec<(u8, u8, u32, u32)> {
    let read = |at: usize| {
        let mut bytes = [0; 4];
        card.read_config(at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    let (mut at, mut found) = (read(0x34) as u8 as usize, Vec::new());
    while at != 0 {
        let [id, next, len, kind] = read(at).to_le_bytes();
        if id == 9 {
            assert_eq!(len, if matches!(kind, 2 | 5) { 20 } else { 16 });
            found.push((kind, read(at + 4) as u8, read(at + 8), read(at + 12)));
        }
        at = next.into();
    }
    found
}

#[test]
fn interfaces_show_in_configuration_space() {
    for (interface, id, revision, has) in [
        (Interface::Modern, 0x1041_1af4u32, 1, [false, true]),
        (Interface::Transitional, 0x1000_1af4, 0, [true, true]),
        (Interface::Legacy, 0x1000_1af4, 0, [true, false]),
    ] {
        let card = VirtioCard::new(&VirtioConfig { interface, ..VirtioConfig::default() });
        let mut header = [0; 0x30];
        card.read_config(0, &mut header).unwrap();
        assert_eq!((u32::from_le_bytes(header[..4].try_into().unwrap()), header[8]), (id, revision));
        assert_eq!(header[0x10] & 1 != 0, has[0], "BAR 0 is one of I/O ports");
        assert_eq!([0, 4].map(|bar| card.region(bar).is_ok()), has);
        assert_eq!(u16::from_le_bytes([header[0x2e], header[0x2f]]) == 1, has[0], "the subsystem of network cards");
        let kinds: Vec<u8> = capabilities(&card).into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, if has[1] { vec![1, 3, 4, 2, 5] } else { vec![] });
    }
    let card = VirtioCard::new(&VirtioConfig::default());
    assert_eq!(capabilities(&card)[3], (2, 4, 0x3000, 12), "three queues, four bytes each");
    assert!(card.read_config(4093, &mut [0; 4]).is_err());
    assert!(card.region(2).is_err() && card.window().is_err());
}

#[test]
fn features_must_be_offered_and_make_sense() {
    let config = VirtioConfig::default();
    let mut driver = Driver::on(&config, false);
    assert_eq!(driver.offered(), VirtioConfig::DEFAULT_FEATURES | VERSION_1);
    for (features, agrees) in [
        (VERSION_1, true),
        (VirtioConfig::DEFAULT_FEATURES | VERSION_1, true),
        (0, false),
        (VERSION_1 | RING_PACKED, false),
        (VERSION_1 | HOST_TSO4, false),
        (VERSION_1 | HOST_TSO4 | CSUM, true),
        (VERSION_1 | GUEST_TSO6, false),
        (VERSION_1 | CTRL_RX, false),
        (VERSION_1 | CTRL_RX | CTRL_VQ, true),
    ] {
        assert_eq!(driver.negotiate(features).is_ok(), agrees, "{features:#x}");
        assert_eq!(driver.card.accepted(), features);
    }
    // Features cannot be changed after FEATURES_OK.
    driver.bar.write32(8, 0);
    driver.bar.write32(12, 0xff);
    assert_eq!(driver.card.accepted(), VERSION_1 | CTRL_RX | CTRL_VQ);
}

#[test]
fn registers_of_queues_take_what_makes_sense() {
    let mut driver = Driver::on(&VirtioConfig { queue_pairs: 4, ..VirtioConfig::default() }, false);
    driver.negotiate(VERSION_1 | CTRL_VQ).unwrap();
    assert_eq!(driver.bar.read16(18), 9);
    let size = |queue| {
        driver.bar.write16(22, queue);
        driver.bar.read16(24)
    };
    // Without MQ the third queue is the control queue.
    assert_eq!([0, 1, 2, 3, 8, 9, 0xffff].map(size), [256, 256, 256, 0, 0, 0, 0]);
    driver.bar.write16(22, 0);
    for (written, reads) in [(64, 64), (257, 64), (0, 64), (256, 256)] {
        driver.bar.write16(24, written);
        assert_eq!(driver.bar.read16(24), reads);
    }
    for (written, reads) in [(9, 9), (10, 0xffff), (0, 0), (0xffff, 0xffff)] {
        driver.bar.write16(26, written);
        assert_eq!(driver.bar.read16(26), reads, "vector {written}");
    }
    driver.bar.write32(32, 0x1234_5670);
    driver.bar.write32(36, 9);
    assert_eq!([driver.bar.read32(32), driver.bar.read32(36), driver.bar.read32(40)], [0x1234_5670, 9, 0]);
    assert_eq!(driver.card.counters().wrong_accesses, 0);
    assert_eq!(driver.bar.read32(24), u32::MAX);
    driver.bar.write8(16, 1);
    driver.bar.write32(20, 0);
    assert_eq!(driver.card.counters().wrong_accesses, 3);
    assert_ne!(driver.status(), 0);
}

#[test]
fn a_reset_makes_all_as_it_was() {
    let mut driver = Driver::started(CTRL_VQ | CTRL_RX | MAC);
    assert_eq!(driver.command(0, 0, &[0]), Some(0));
    driver.write_status(0);
    assert_eq!((driver.status(), driver.card.accepted()), (0, 0));
    driver.arrive(&[any_frame(60)]);
    assert_eq!(driver.wire.frames().to_card.len(), 1, "it stays on the wire");
    driver.bar.write16(22, 0);
    assert_eq!([24, 26, 28].map(|at| driver.bar.read16(at)), [256, 0xffff, 0]);
}

#[test]
fn a_queue_is_reset_alone() {
    for ring in RINGS {
        let mut driver = Driver::started(RING_RESET | ring);
        driver.arrive(&[any_frame(60)]);
        driver.bar.write16(22, 0);
        driver.bar.write16(58, 1);
        assert_eq!([28, 58].map(|at| driver.bar.read16(at)), [0, 0]);
        driver.arrive(&[any_frame(61)]);
        assert_eq!(driver.card.counters().rx_disabled, 1);
        driver.start_queue(0, 32);
        driver.fill(0, 8);
        driver.arrive(&[any_frame(62)]);
        assert_eq!(driver.receive().unwrap().bytes, any_frame(62));
        driver.send(&[], &any_frame(63));
        assert_eq!(driver.sent(), [any_frame(63)]);
    }
}

#[test]
fn the_configuration_says_what_the_card_is_and_that_it_changed() {
    let config = VirtioConfig { features: MAC | STATUS | MTU, queue_pairs: 3, mtu: 9000, ..VirtioConfig::default() };
    let driver = Driver::up(&config, 64);
    let read = || (0..12).map(|i| driver.bar.read8(CONFIG + i)).collect::<Vec<u8>>();
    assert_eq!(read(), [&config.mac.0[..], &[1, 0, 3, 0], &9000u16.to_le_bytes()].concat());
    assert_eq!((driver.bar.read16(CONFIG + 10), driver.bar.read32(CONFIG + 12)), (9000, 0));
    let generation = driver.bar.read8(21);
    driver.card.set_link(false);
    assert_eq!(driver.bar.read16(CONFIG + 6), 0);
    assert_ne!(driver.bar.read8(21), generation);
    assert_eq!(driver.heard(driver.vectors.len() - 1), 1);
    driver.bar.write8(CONFIG, 0xaa);
    assert_eq!(driver.bar.read8(CONFIG), 0x02, "modern drivers do not write there");
}

#[test]
fn notifications_carry_what_was_negotiated() {
    for (features, width) in [(0, 2), (NOTIFICATION_DATA, 4), (NOTIFICATION_DATA | NOTIF_CONFIG_DATA, 4)] {
        for ring in [0, RING_PACKED] {
            let mut driver = Driver::started(features | ring);
            driver.send(&[], &any_frame(60));
            assert_eq!(driver.sent().len(), 1);
            let before = driver.card.counters();
            assert_eq!(before.wrong_notifications, 0);
            // A notification in the other width, or of another queue.
            driver.put(1, &[], &any_frame(60));
            if width == 2 {
                driver.bar.write32(NOTIFY + 4, 1)
            } else {
                driver.bar.write16(NOTIFY + 4, 1)
            }
            driver.bar.write16(NOTIFY + 4, 0);
            driver.step();
            assert_eq!((driver.sent().len(), driver.card.counters().wrong_notifications), (0, 2));
            if width == 4 && features & NOTIF_CONFIG_DATA == 0 {
                // The right form, with a position that no driver can be at.
                driver.bar.write32(NOTIFY + 4, 1 | 0x4000 << 16);
                driver.step();
                assert_eq!((driver.sent().len(), driver.card.counters().wrong_notifications), (1, 3));
            }
        }
    }
}
