//! Tx rings (7.2.3).

use proptest::prelude::*;
use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, HEAD_WRITE_BACK, REGION, frame, own_mac};

const WHOLE: u64 = TX_EOP | TX_IFCS;

#[test]
fn a_frame_goes_onto_the_wire_and_is_reported() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 1514);
    driver.send_frame(0, &bytes);
    assert_eq!(driver.sent(), [bytes]);
    assert_eq!(driver.word(Driver::tx_descriptor(0, 0) + 8) & TX_DD, TX_DD);
    assert_eq!(driver.window.read(TDH.at(0)), 1);
}

#[test]
fn only_what_asks_for_it_is_reported() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 60);
    for report in [0, 0, TX_RS, 0] {
        driver.put(0, &bytes, WHOLE | report, 60);
    }
    driver.send(0);
    assert_eq!(driver.sent().len(), 4);
    let done: Vec<bool> = (0..4).map(|i| driver.word(Driver::tx_descriptor(0, i) + 8) & TX_DD != 0).collect();
    assert_eq!(done, [false, false, true, false]);
    assert_eq!(driver.window.read(TDH.at(0)), 4);
}

#[test]
fn the_head_is_written_instead_if_so_wanted() {
    let mut driver = Driver::started();
    driver.window.clear(TXDCTL.at(0), TXDCTL_ENABLE);
    let address = driver.region.iova(HEAD_WRITE_BACK);
    // SAFETY: the address is in the region, which is mapped for the NIC; the NIC keeps a mapped region alive.
    unsafe { driver.window.write_dma([TDWBAL.at(0), TDWBAH.at(0)], address | u64::from(TDWBAL_HEAD_WB_EN)) };
    driver.start_tx(0, 64);
    let bytes = frame(own_mac(), 60);
    driver.put(0, &bytes, WHOLE, 60);
    driver.send(0);
    assert_eq!(driver.word(HEAD_WRITE_BACK), 0, "nothing asked for it");
    driver.put(0, &bytes, WHOLE | TX_RS, 60);
    driver.put(0, &bytes, WHOLE, 60);
    driver.send(0);
    assert_eq!(driver.word(HEAD_WRITE_BACK), 2, "up to the last that asked");
    assert_eq!(driver.word(Driver::tx_descriptor(0, 1) + 8) & TX_DD, 0, "and the descriptor stays");
}

#[test]
fn a_frame_is_gathered_from_its_buffers() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 1000);
    driver.put(0, &bytes[..14], TX_IFCS, 1000);
    driver.put(0, &bytes[14..600], 0, 1000);
    driver.send(0);
    assert!(driver.sent().is_empty(), "the end is missing");
    driver.put(0, &bytes[600..], WHOLE | TX_RS, 1000);
    driver.send(0);
    assert_eq!(driver.sent(), [bytes]);
}

#[test]
fn frames_go_around_the_ring_in_order() {
    let mut driver = Driver::started();
    for round in 0..20u8 {
        let frames: Vec<_> = (0..50).map(|i| [&frame(own_mac(), 60)[..], &[round, i]].concat()).collect();
        frames.iter().for_each(|bytes| driver.put(0, bytes, WHOLE, 62));
        driver.send(0);
        assert_eq!(driver.sent(), frames);
    }
    assert_eq!(driver.window.read(TDH.at(0)), 1000 % 64);
}

#[test]
fn short_frames_are_padded_if_so_wanted() {
    let mut driver = Driver::started();
    driver.send_frame(0, &frame(own_mac(), 42));
    driver.window.clear(HLREG0, HLREG0_TXPADEN);
    driver.send_frame(0, &frame(own_mac(), 42));
    assert_eq!(driver.sent(), [[&frame(own_mac(), 42)[..], &[0; 18]].concat(), frame(own_mac(), 42)]);
}

#[test]
fn a_driver_may_write_the_crc_itself() {
    let mut driver = Driver::started();
    let bytes = b"123456789";
    let with_crc = [&bytes[..], &0xcbf4_3926u32.to_le_bytes()].concat();
    driver.put(0, &with_crc, TX_EOP, 13);
    driver.put(0, &[&bytes[..], &[0; 4]].concat(), TX_EOP, 13);
    driver.send(0);
    assert_eq!(driver.sent(), [bytes], "a wrong one is of no use on the wire");
    assert_eq!(driver.card.counters().tx_malformed, 1);
}

#[test]
fn nothing_is_sent_while_the_transmitter_is_off() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 60);
    driver.put(0, &bytes, WHOLE, 60);
    type Change = fn(&Driver);
    let off: [(&str, Change, Change); 4] = [
        ("TE", |d| d.window.clear(DMATXCTL, DMATXCTL_TE), |d| d.window.set(DMATXCTL, DMATXCTL_TE)),
        ("ARBDIS", |d| d.window.set(RTTDCS, RTTDCS_ARBDIS), |d| d.window.clear(RTTDCS, RTTDCS_ARBDIS)),
        ("bus mastering", |d| d.card.set_bus_master(false).unwrap(), |d| d.card.set_bus_master(true).unwrap()),
        ("link", |d| d.card.set_link(false), |d| d.card.set_link(true)),
    ];
    for (what, off, on) in off {
        off(&driver);
        driver.send(0);
        assert!(driver.sent().is_empty(), "{what}");
        on(&driver);
    }
    driver.step();
    assert_eq!(driver.sent(), [bytes]);
}

#[test]
fn a_full_wire_loses_nothing() {
    let mut driver = Driver::started();
    driver.wire.frames().room = 3;
    let frames: Vec<_> = (0..10u8).map(|i| [&frame(own_mac(), 60)[..], &[i]].concat()).collect();
    frames.iter().for_each(|bytes| driver.put(0, bytes, WHOLE | TX_RS, 61));
    driver.send(0);
    assert_eq!(driver.sent(), frames[..3]);
    driver.wire.frames().room = usize::MAX;
    driver.step();
    assert_eq!(driver.sent(), frames[3..]);
}

#[test]
fn contexts_are_consumed() {
    let mut driver = Driver::started();
    driver.put_raw(0, 0, 2 << 20 | TX_DEXT | TX_RS);
    driver.send_frame(0, &frame(own_mac(), 60));
    assert_eq!(driver.sent().len(), 1);
    assert_eq!(driver.word(Driver::tx_descriptor(0, 0) + 8) & TX_DD, TX_DD);
}

#[test]
fn a_malformed_descriptor_costs_its_frame_only() {
    let data = TX_DTYP_DATA | TX_DEXT | WHOLE;
    let payload = |len: u64| len << TX_PAYLEN_SHIFT;
    for (what, address, word, faults) in [
        ("no memory there", Some(0x7777_0000_0000), data | payload(60) | 60, 1),
        ("the end of the memory", None, data | payload(60) | 60, 1),
        ("no length", Some(0), data | payload(60), 0),
        ("no length of the whole", Some(0), data | 60, 0),
        ("shorter than it says", Some(0), data | payload(61) | 60, 0),
        ("longer than it says", Some(0), data | payload(59) | 60, 0),
        ("longer than frames are", Some(0), data | payload(16_000) | 16_000, 0),
        ("a legacy descriptor", Some(0), 60 | 1 << 24, 0),
        ("an unknown type", Some(0), 0b0111 << 20 | TX_DEXT | WHOLE | payload(60) | 60, 0),
        ("TCP segmentation", Some(0), data | 1 << 31 | payload(60) | 60, 0),
    ] {
        let mut driver = Driver::started();
        let memory = driver.region.iova(0);
        let address = address.map_or(memory + REGION as u64 - 59, |at| if at == 0 { memory } else { at });
        driver.put_raw(0, address, word | TX_RS);
        driver.send_frame(0, &frame(own_mac(), 60));
        assert_eq!(driver.sent(), [frame(own_mac(), 60)], "{what}: the next one goes out");
        assert_eq!(driver.word(Driver::tx_descriptor(0, 0) + 8) & TX_DD, TX_DD, "{what}");
        let counters = driver.card.counters();
        assert_eq!((counters.dma_faults, counters.tx_malformed), (faults, 1 - faults), "{what}");
    }
}

#[test]
fn the_longest_frames_go_out_too() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 15_000);
    driver.put(0, &bytes[..8000], TX_IFCS, 15_000);
    driver.put(0, &bytes[8000..], WHOLE, 15_000);
    driver.send(0);
    assert_eq!(driver.sent(), [bytes]);
}

#[test]
fn loopback_brings_frames_back() {
    let mut driver = Driver::started();
    driver.window.set(HLREG0, HLREG0_LPBK);
    let bytes = frame(own_mac(), 60);
    driver.send_frame(0, &bytes);
    assert!(driver.sent().is_empty());
    assert_eq!(driver.receive_all(0), [bytes]);
}

#[test]
fn queues_have_turns_on_a_slow_wire() {
    let mut driver = Driver::started();
    driver.start_tx(1, 64);
    driver.wire.frames().room = 0;
    for (queue, len) in [(0, 60), (1, 61), (0, 62)] {
        (0..60).for_each(|_| driver.put(queue, &frame(own_mac(), len), WHOLE, len));
        driver.send(queue);
    }
    let mut lengths = Vec::new();
    for _ in 0..180 {
        driver.wire.frames().room = 1;
        driver.step();
        lengths.extend(driver.sent().iter().map(Vec::len));
    }
    assert_eq!(lengths, [[60; 60], [61; 60], [62; 60]].concat());
}

/// A frame that a driver sends.
#[derive(Clone, Debug)]
enum Sent {
    /// In one buffer.
    Whole(usize),
    /// In two buffers.
    Parts(usize),
    /// Shorter than the card's minimum, which pads it.
    Short(usize),
    /// With a length that its descriptor contradicts.
    Malformed,
    /// From an address that is not mapped.
    Fault,
}

fn any_sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        8 => (60..1514usize).prop_map(Sent::Whole),
        1 => (60..1514usize).prop_map(Sent::Parts),
        1 => (20..60usize).prop_map(Sent::Short),
        1 => Just(Sent::Malformed),
        1 => Just(Sent::Fault),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Checks that a wire that takes frames without packets gets what one with packets gets.
    #[test]
    fn frames_and_packets_are_the_same(
        sent in prop::collection::vec((any_sent(), any::<bool>()), 1..200),
        writes_head: bool,
    ) {
        let mut drivers = [Driver::started(), Driver::started()];
        drivers[0].wire.frames().takes_frames = true;
        for driver in &mut drivers {
            if writes_head {
                driver.window.clear(TXDCTL.at(0), TXDCTL_ENABLE);
                let address = driver.region.iova(HEAD_WRITE_BACK) | u64::from(TDWBAL_HEAD_WB_EN);
                // SAFETY: the address is in the region, which is mapped for the NIC; the NIC keeps a mapped region alive.
                unsafe { driver.window.write_dma([TDWBAL.at(0), TDWBAH.at(0)], address) };
                driver.start_tx(0, 64);
            }
        }
        for some in sent.chunks(20) {
            let [frames, packets] = drivers.each_mut().map(|driver| {
                for (i, (sent, report)) in some.iter().enumerate() {
                    let report = if *report { TX_RS } else { 0 };
                    let bytes = |len| [&frame(own_mac(), len - 1)[..], &[i as u8]].concat();
                    match *sent {
                        Sent::Whole(len) | Sent::Short(len) => driver.put(0, &bytes(len), WHOLE | report, len),
                        Sent::Parts(len) => {
                            let bytes = bytes(len);
                            driver.put(0, &bytes[..30], TX_IFCS, len);
                            driver.put(0, &bytes[30..], WHOLE | report, len);
                        }
                        Sent::Malformed => driver.put(0, &bytes(100), WHOLE | report, 99),
                        Sent::Fault => {
                            let word = 60 | TX_DTYP_DATA | TX_DEXT | WHOLE | report | 60 << TX_PAYLEN_SHIFT;
                            driver.put_raw(0, 1 << 50, word);
                        }
                    }
                }
                driver.send(0);
                // More steps than descriptors, each of which may end a run.
                (0..100).for_each(|_| _ = driver.step());
                assert_eq!(driver.window.read(TDH.at(0)), driver.window.read(TDT.at(0)));
                let descriptors: Vec<u64> = (0..64).map(|i| driver.word(Driver::tx_descriptor(0, i) + 8)).collect();
                (driver.sent(), driver.card.counters(), descriptors, driver.word(HEAD_WRITE_BACK))
            });
            prop_assert_eq!(&frames.0, &packets.0);
            prop_assert_eq!(&frames.1, &packets.1);
            prop_assert_eq!(&frames.2, &packets.2);
            prop_assert_eq!(&frames.3, &packets.3);
        }
        let registers = drivers.each_ref().map(|driver| [GPTC, PTC64, GOTCL].map(|register| driver.window.read(register)));
        prop_assert_eq!(registers[0], registers[1]);
    }
}
