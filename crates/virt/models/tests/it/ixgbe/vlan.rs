//! VLAN tags: stripped from received frames and inserted into sent ones (7.4).

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};
use crate::ixgbe::packets::TCP4;

const VME: u32 = 1 << 30;
/// The frame has a VLAN tag.
const VP: u64 = 1 << 3;

fn with_tag(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

#[test]
fn a_tag_goes_to_the_descriptor() {
    let mut driver = Driver::started();
    driver.window.set(RXDCTL.at(0), VME);
    let plain = frame(own_mac(), 200);
    driver.arrive(&[with_tag(&plain, [0x81, 0, 0xe0, 0x64]), plain.clone()]);
    let received = driver.receive(0).expect("a frame");
    assert_eq!(received.bytes, plain);
    assert_eq!(received.status, 0xe064 << 48 | 200 << 32 | VP | RX_EOP | RX_DD);
    let received = driver.receive(0).expect("a frame");
    assert_eq!((received.bytes, received.status), (plain, 200 << 32 | RX_EOP | RX_DD));
}

#[test]
fn a_tag_stays_without_stripping() {
    let mut driver = Driver::started();
    let tagged = with_tag(&frame(own_mac(), 200), [0x81, 0, 0, 5]);
    driver.arrive(std::slice::from_ref(&tagged));
    let received = driver.receive(0).expect("a frame");
    assert_eq!((received.bytes, received.status), (tagged, 204 << 32 | VP | RX_EOP | RX_DD));
}

#[test]
fn only_the_type_of_tags_makes_a_tag() {
    let mut driver = Driver::started();
    driver.window.set(RXDCTL.at(0), VME);
    let other = with_tag(&frame(own_mac(), 200), [0x88, 0xa8, 0, 5]);
    driver.arrive(std::slice::from_ref(&other));
    assert_eq!(driver.receive_all(0), std::slice::from_ref(&other));
    driver.window.write(VLNCTRL, 0x88a8);
    driver.arrive(std::slice::from_ref(&other));
    assert_eq!(driver.receive_all(0), [frame(own_mac(), 200)]);
}

#[test]
fn the_crc_that_stays_is_that_of_the_wire() {
    let mut driver = Driver::started();
    driver.window.set(RXDCTL.at(0), VME);
    driver.window.clear(HLREG0, HLREG0_RXCRCSTRP);
    let tagged = with_tag(&frame(own_mac(), 60), [0x81, 0, 0, 5]);
    driver.arrive(std::slice::from_ref(&tagged));
    let bytes = driver.receive(0).expect("a frame").bytes;
    assert_eq!(bytes.len(), 64);
    let whole = [&tagged[..], &bytes[60..]].concat();
    let residue = whole.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 })
    });
    assert_eq!(residue, 0xdebb_20e3);
}

#[test]
fn a_tag_is_stripped_from_frames_that_waited() {
    let mut driver = Driver::new();
    driver.start_rx(0, 16, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
    driver.window.set(RXDCTL.at(0), VME);
    let plain = frame(own_mac(), 100);
    driver.arrive(&vec![with_tag(&plain, [0x81, 0, 0, 9]); 20]);
    let mut received = driver.receive_all(0);
    driver.step();
    received.extend(driver.receive_all(0));
    assert_eq!(received, vec![plain; 20]);
}

#[test]
fn a_tag_is_inserted_from_the_context() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 100);
    let (first, second) = TCP4.context(0, 0xa00b);
    driver.put_raw(0, first, second);
    // The tag of the other context.
    driver.put_raw(0, TCP4.context(0, 0x0ccc).0, second | 1 << 36);
    driver.put(0, &bytes, TX_EOP | TX_IFCS | TX_VLE, 100);
    driver.put(0, &bytes, TX_EOP | TX_IFCS | TX_VLE | 1 << 36, 100);
    driver.put(0, &bytes, TX_EOP | TX_IFCS, 100);
    driver.send(0);
    let tagged = |tag| with_tag(&bytes, tag);
    assert_eq!(driver.sent(), [tagged([0x81, 0, 0xa0, 0x0b]), tagged([0x81, 0, 0x0c, 0xcc]), bytes.clone()]);
    assert_eq!(driver.card.counters().tx_bytes, 104 + 104 + 100);
}

#[test]
fn a_legacy_descriptor_has_the_tag_itself() {
    let mut driver = Driver::started();
    driver.window.write(DMATXCTL, DMATXCTL_TE | 0x88a8 << 16);
    let bytes = frame(own_mac(), 100);
    let buffer = driver.region.iova(Driver::buffer(0, 0));
    driver.write_bytes(Driver::buffer(0, 0), &bytes);
    driver.put_raw(0, buffer, 100 | TX_EOP | TX_IFCS | TX_RS | TX_VLE | 0x1234 << 48);
    driver.send(0);
    assert_eq!(driver.sent(), [with_tag(&bytes, [0x88, 0xa8, 0x12, 0x34])]);
    assert_ne!(driver.word(Driver::tx_descriptor(0, 0) + 8) & TX_DD, 0);
}
