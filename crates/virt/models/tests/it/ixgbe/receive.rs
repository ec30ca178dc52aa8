//! Rx rings: descriptors, buffers, the packet buffer (7.1).

use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};

const ONE_BUFFER: u32 = SRRCTL_DESCTYPE_ADV_ONEBUF;

fn frames(count: usize, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| [&frame(own_mac(), len - 1)[..], &[i as u8]].concat()).collect()
}

#[test]
fn a_frame_is_written_with_its_length_and_end() {
    let mut driver = Driver::started();
    let sent = frame(own_mac(), 1514);
    driver.arrive(std::slice::from_ref(&sent));
    assert_eq!(driver.window.read(RDH.at(0)), 1);
    let received = driver.receive(0).expect("a frame");
    assert_eq!(received.bytes, sent);
    assert_eq!(received.status, RX_DD | RX_EOP | 1514 << RX_LENGTH_SHIFT);
    assert!(driver.receive(0).is_none());
}

#[test]
fn frames_keep_their_order_around_the_ring() {
    let mut driver = Driver::started();
    for round in 0..10 {
        let sent = frames(40, 60 + round);
        driver.arrive(&sent);
        assert_eq!(driver.receive_all(0), sent);
    }
    assert_eq!(driver.window.read(RDH.at(0)), 400 % 64);
}

#[test]
fn a_long_frame_spans_descriptors() {
    let mut driver = Driver::new();
    driver.start_rx(0, 64, ONE_BUFFER | 1);
    let (long, exact, short) = (frame(own_mac(), 1514), frame(own_mac(), 1024), frame(own_mac(), 60));
    driver.arrive(&[long.clone(), exact.clone(), short.clone()]);
    let first = Driver::rx_descriptor(0, 0);
    assert_eq!(driver.word(first + 8), RX_DD | 1024 << RX_LENGTH_SHIFT, "no end in the first");
    for (sent, descriptors) in [(long, 2), (exact, 1), (short, 1)] {
        let received = driver.receive(0).expect("a frame");
        assert_eq!((received.bytes, received.descriptors), (sent, descriptors));
    }
}

#[test]
fn runts_are_padded() {
    let mut driver = Driver::started();
    driver.window.write(FCTRL, 0);
    driver.arrive(&[frame(own_mac(), 42), vec![]]);
    let received = driver.receive_all(0);
    assert_eq!(received, [[&frame(own_mac(), 42)[..], &[0; 18]].concat()], "and one without an address is not taken");
    assert_eq!(driver.window.read(RUC), 0);
}

#[test]
fn long_frames_are_dropped_and_counted() {
    let mut driver = Driver::started();
    let mut tagged = frame(own_mac(), 1518);
    tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    let mut too_long_tagged = frame(own_mac(), 1519);
    too_long_tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    driver.arrive(&[frame(own_mac(), 1514), frame(own_mac(), 1515), tagged, too_long_tagged]);
    let lengths: Vec<usize> = driver.receive_all(0).iter().map(Vec::len).collect();
    assert_eq!(lengths, [1514, 1518]);
    assert_eq!((driver.window.read(ROC), driver.window.read(ROC)), (2, 0));
    assert_eq!(driver.card.counters().rx_oversize, 2);
}

#[test]
fn jumbo_frames_go_up_to_maxfrs() {
    let mut driver = Driver::started();
    driver.window.set(HLREG0, HLREG0_JUMBOEN);
    driver.window.write(MAXFRS, 9018 << 16);
    driver.arrive(&[frame(own_mac(), 9014), frame(own_mac(), 9015)]);
    let received = driver.receive(0).expect("a frame");
    assert_eq!((received.bytes, received.descriptors), (frame(own_mac(), 9014), 5));
    assert!(driver.receive(0).is_none());
}

#[test]
fn the_crc_is_there_if_it_is_not_stripped() {
    let mut driver = Driver::started();
    driver.window.clear(HLREG0, HLREG0_RXCRCSTRP);
    // The NIC writes the CRC-32 after the frame, as a Linux interface with rx-fcs on shows it.
    let sent = frame(own_mac(), 60);
    driver.arrive(std::slice::from_ref(&sent));
    let received = driver.receive(0).expect("a frame").bytes;
    assert_eq!(received.len(), 64);
    assert_eq!(received[..60], sent);
    // Any frame followed by its CRC has this residue (IEEE 802.3).
    let residue = received.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 })
    });
    assert_eq!(!residue, 0x2144_df1c);
    assert_eq!(driver.card.counters().rx_bytes, 60);
}

#[test]
fn nothing_is_taken_from_the_wire_until_the_driver_listens() {
    let mut driver = Driver::new();
    let sent = frame(own_mac(), 60);
    driver.wire.frames().to_card.push_back(sent.clone());
    assert_eq!(driver.step(), 0);
    driver.start_rx(0, 64, ONE_BUFFER | 2);
    driver.window.clear(RXCTRL, RXCTRL_RXEN);
    assert_eq!(driver.step(), 0, "RXEN is off");
    driver.window.set(RXCTRL, RXCTRL_RXEN);
    assert_eq!(driver.step(), 1);
    assert_eq!(driver.receive_all(0), [sent]);
}

#[test]
fn without_a_descriptor_frames_are_dropped_if_the_queue_says_so() {
    let mut driver = Driver::new();
    driver.start_rx(0, 8, ONE_BUFFER | 2 | SRRCTL_DROP_EN);
    let sent = frames(10, 60);
    driver.arrive(&sent);
    assert_eq!(driver.receive_all(0), sent[..7], "head equal to tail means no descriptor");
    assert_eq!((driver.window.read(QPRDC.at(0)), driver.window.read(QPRDC.at(0))), (3, 0));
    assert_eq!(driver.window.read(MPC.at(0)), 0);
    assert_eq!(driver.card.counters().rx_no_descriptor, 3);
    driver.arrive(&sent[..2]);
    assert_eq!(driver.receive_all(0), sent[..2], "the queue goes on");
}

#[test]
fn without_a_descriptor_frames_wait_in_the_packet_buffer() {
    let mut driver = Driver::new();
    driver.start_rx(0, 8, ONE_BUFFER | 2);
    let sent = frames(100, 1000);
    driver.arrive(&sent);
    assert_eq!(driver.window.read(QPRDC.at(0)), 0);
    assert_eq!(driver.window.read(GPRC), 100, "in the packet buffer they count as received");
    assert_eq!(driver.window.read(QPRC.at(0)), 7, "in the queue only when they are there");
    let mut received = Vec::new();
    while received.len() < 100 {
        let before = received.len();
        received.extend(driver.receive_all(0));
        assert!(received.len() > before);
        driver.step();
    }
    assert_eq!(received, sent);
    assert_eq!(driver.window.read(QPRC.at(0)), 93);
}

#[test]
fn a_full_packet_buffer_misses_packets() {
    let mut driver = Driver::new();
    driver.window.write(RXPBSIZE.at(0), 16 << 10);
    driver.start_rx(0, 8, ONE_BUFFER | 2);
    let sent = frames(30, 1000);
    driver.arrive(&sent);
    // 7 in the ring, 16 of 1000 bytes in 16 KiB.
    assert_eq!((driver.window.read(MPC.at(0)), driver.window.read(MPC.at(0))), (7, 0));
    assert_eq!(driver.window.read(GPRC), 23, "missed packets are not good ones");
    assert_eq!(driver.card.counters().rx_buffer_full, 7);
    let mut received = Vec::new();
    for _ in 0..4 {
        received.extend(driver.receive_all(0));
        driver.step();
    }
    assert_eq!(received, sent[..23]);
}

#[test]
fn the_packet_buffer_holds_its_order_around_its_end() {
    let mut driver = Driver::new();
    driver.start_rx(0, 8, ONE_BUFFER | 2);
    let (mut sent, mut received) = (0, 0);
    let one = |i: usize| [&frame(own_mac(), 700 + i % 700)[..], &(i as u32).to_le_bytes()].concat();
    for round in 0..400 {
        let more: Vec<_> = (sent..sent + if round < 200 { 8 } else { 5 }).map(one).collect();
        sent += more.len();
        driver.arrive(&more);
        for bytes in driver.receive_all(0) {
            assert_eq!(bytes, one(received));
            received += 1;
        }
    }
    assert!(driver.card.counters().rx_buffer_full == 0 && received > 2000, "{received}");
}

#[test]
fn a_queue_that_is_off_loses_its_frames() {
    let mut driver = Driver::new();
    driver.start_rx(1, 8, ONE_BUFFER | 2);
    driver.arrive(&frames(3, 60));
    assert_eq!(driver.window.read(QPRDC.at(0)), 3);
    assert_eq!(driver.card.counters().rx_queue_disabled, 3);
}

#[test]
fn a_queue_starts_anew_when_it_is_enabled_again() {
    let mut driver = Driver::started();
    driver.arrive(&frames(5, 60));
    assert_eq!(driver.window.read(RDH.at(0)), 5);
    driver.window.clear(RXDCTL.at(0), RXDCTL_ENABLE);
    assert_eq!(driver.window.read(RXDCTL.at(0)) & RXDCTL_ENABLE, 0);
    driver.start_rx(0, 32, ONE_BUFFER | 2);
    assert_ne!(driver.window.read(RXDCTL.at(0)) & RXDCTL_ENABLE, 0);
    assert_eq!(driver.window.read(RDH.at(0)), 0);
    let sent = frames(3, 60);
    driver.arrive(&sent);
    assert_eq!(driver.receive_all(0), sent);
}

#[test]
fn without_bus_mastering_nothing_is_written() {
    let mut driver = Driver::started();
    driver.card.set_bus_master(false).unwrap();
    let sent = frames(2, 60);
    driver.arrive(&sent);
    assert!(driver.receive(0).is_none());
    driver.card.set_bus_master(true).unwrap();
    driver.step();
    assert_eq!(driver.receive_all(0), sent, "they waited in the packet buffer");
}

#[test]
fn a_bad_buffer_costs_its_frame_only() {
    let mut driver = Driver::started();
    driver.set_word(Driver::rx_descriptor(0, 1), 0x1234_5678_9000);
    let sent = frames(3, 60);
    driver.arrive(&sent);
    assert_eq!(driver.receive(0).expect("a frame").bytes, sent[0]);
    let bad = driver.receive(0).expect("a descriptor written back");
    assert_eq!((bad.bytes.len(), bad.status), (0, RX_DD | RX_EOP | RX_RXE));
    assert_eq!(driver.receive(0).expect("a frame").bytes, sent[2]);
    assert_eq!(driver.card.counters().dma_faults, 1);
}

#[test]
fn a_bad_ring_is_not_used() {
    for (base, len) in [(0x1234_5000, 1024), (u64::MAX << 7, 1024), (0, 100), (0, 0), (0, 1 << 20)] {
        let mut driver = Driver::started();
        driver.window.clear(RXDCTL.at(0), RXDCTL_ENABLE);
        let base = if base == 0 { driver.region.iova(0) } else { base };
        // SAFETY: the model looks up every DMA address and refuses those that are not mapped, as this test
        // checks.
        unsafe { driver.window.write_dma([RDBAL.at(0), RDBAH.at(0)], base) };
        driver.window.write(RDLEN.at(0), len);
        driver.window.set(RXDCTL.at(0), RXDCTL_ENABLE);
        assert_eq!(driver.card.counters().dma_faults, 1, "{base:#x} {len}");
        driver.arrive(&frames(2, 60));
        assert_eq!(driver.card.counters().dma_faults, 3);
    }
}

#[test]
fn a_pulled_cable_loses_frames() {
    let mut driver = Driver::started();
    driver.card.set_link(false);
    driver.arrive(&frames(2, 60));
    driver.card.set_link(true);
    let sent = frames(1, 61);
    driver.arrive(&sent);
    assert_eq!(driver.receive_all(0), sent);
    assert_eq!(driver.card.counters().rx_no_link, 2);
}
