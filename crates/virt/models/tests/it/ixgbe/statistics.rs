//! Statistics registers (8.2.3.23): each counts what its description says, and clears on read.

use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};

const BROADCAST: [u8; 6] = [0xff; 6];
const MULTICAST: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

#[test]
fn received_frames_are_counted_once() {
    let mut driver = Driver::started();
    driver.arrive(&[frame(own_mac(), 60), frame(BROADCAST, 60), frame(MULTICAST, 100), frame(own_mac(), 42)]);
    let read = || {
        let window = &driver.window;
        let octets = u64::from(window.read(GORCL)) | u64::from(window.read(GORCH)) << 32;
        let rest = [GPRC, TPR, BPRC, MPRC, PRC64].map(|register| window.read(register));
        (octets, rest, window.read(QPRC.at(0)), window.read(QBRC_L.at(0)))
    };
    assert_eq!(read(), (4 * 4 + 60 + 60 + 100 + 60, [4, 4, 1, 1, 3], 4, 280), "octets with CRC, but for the queue's");
    assert_eq!(read(), (0, [0; 5], 0, 0), "cleared by reading");
    let counters = driver.card.counters();
    assert_eq!((counters.rx_packets, counters.rx_bytes), (4, 280), "the model's own stay");
}

#[test]
fn rejected_frames_count_nowhere_but_broadcast_in_the_total() {
    let mut driver = Driver::started();
    driver.window.write(FCTRL, 0);
    driver.arrive(&[frame([2, 9, 9, 9, 9, 9], 60), frame(BROADCAST, 60), frame(MULTICAST, 60)]);
    let read = [TPR, GPRC, BPRC, MPRC, GORCL].map(|register| driver.window.read(register));
    assert_eq!(read, [1, 0, 0, 0, 0]);
}

#[test]
fn sent_frames_are_counted_once() {
    let mut driver = Driver::started();
    for bytes in [frame(own_mac(), 60), frame(BROADCAST, 60), frame(MULTICAST, 100)] {
        driver.send_frame(0, &bytes);
    }
    let read = || [GPTC, TPT, BPTC, MPTC, GOTCL, GOTCH].map(|register| driver.window.read(register));
    assert_eq!(read(), [3, 3, 1, 1, 3 * 4 + 220, 0]);
    assert_eq!(read(), [0; 6]);
    assert_eq!((driver.window.read(QPTC.at(0)), driver.window.read(QPTC.at(0))), (3, 0));
    let counters = driver.card.counters();
    assert_eq!((counters.tx_packets, counters.tx_bytes), (3, 220));
}

#[test]
fn queues_count_where_they_are_mapped() {
    let mut driver = Driver::started();
    driver.start_tx(5, 16);
    driver.window.write(RQSMR.at(0), 0x0000_0007);
    driver.window.write(TQSM.at(0), 0x0000_0003);
    driver.window.write(TQSM.at(1), 0x0000_0f00);
    driver.arrive(&[frame(own_mac(), 60), frame(own_mac(), 60)]);
    driver.send_frame(0, &frame(own_mac(), 60));
    driver.send_frame(5, &frame(own_mac(), 60));
    assert_eq!((driver.window.read(QPRC.at(7)), driver.window.read(QPRC.at(0))), (2, 0));
    let sent = [3, 15, 0, 5].map(|counter| driver.window.read(QPTC.at(counter)));
    assert_eq!(sent, [1, 1, 0, 0]);
}

#[test]
fn wrong_length_fields_are_reported() {
    let mut driver = Driver::started();
    driver.window.set(HLREG0, 1 << 27);
    let with_length = |length: u16| {
        let mut bytes = frame(own_mac(), 60);
        bytes[12..14].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    driver.arrive(&[with_length(46), with_length(20), with_length(47), with_length(0x0800)]);
    assert_eq!(driver.window.read(RLEC), 1);
    assert_eq!(driver.receive_all(0).len(), 4);
}

#[test]
fn frames_are_counted_by_their_size() {
    let mut driver = Driver::started();
    // Lengths without CRC, at both ends of each size class.
    let lens = [60, 61, 123, 124, 251, 252, 507, 508, 1019, 1020, 1514];
    driver.arrive(&lens.map(|len| frame(own_mac(), len)));
    lens.into_iter().for_each(|len| driver.send_frame(0, &frame(own_mac(), len)));
    let sizes = [1, 2, 2, 2, 2, 2];
    let read = |registers: [ringpass_pci::registers::Reg<ringpass_pci::registers::RC>; 6]| {
        registers.map(|register| driver.window.read(register))
    };
    assert_eq!(read([PRC64, PRC127, PRC255, PRC511, PRC1023, PRC1522]), sizes);
    assert_eq!(read([PTC64, PTC127, PTC255, PTC511, PTC1023, PTC1522]), sizes);
    assert_eq!(read([PRC64, PRC127, PRC255, PRC511, PRC1023, PRC1522]), [0; 6], "cleared by reading");
    let bytes = lens.iter().sum::<usize>() as u32;
    assert_eq!((driver.window.read(QBTC_L.at(0)), driver.window.read(QBTC_H.at(0))), (bytes, 0));
    assert_eq!((driver.window.read(TORL), driver.window.read(RXNFGPC)), (bytes + 4 * 11, 11));
}

#[test]
fn frames_that_are_too_long_count_in_the_total_only() {
    let mut driver = Driver::started();
    driver.arrive(&[frame(own_mac(), 1600)]);
    let read = [TPR, TORL, ROC, GPRC, PRC1522].map(|register| driver.window.read(register));
    assert_eq!(read, [1, 1604, 1, 0, 0]);
}

#[test]
fn sent_packets_are_counted_at_the_older_address_too() {
    let mut driver = Driver::started();
    driver.send_frame(0, &frame(own_mac(), 60));
    let older = ringpass_pci::registers::Reg::<ringpass_pci::registers::RC>::new("QPTC", 0x06030);
    assert_eq!((driver.window.read(older), driver.window.read(QPTC.at(0))), (1, 0));
}
