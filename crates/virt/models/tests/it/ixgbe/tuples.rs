//! Filters that choose a queue: EtherType (7.1.2.3), five-tuple (7.1.2.5), SYN (7.1.2.6), and their order.

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};
use crate::ixgbe::packets::{DESTINATION_PORT, DESTINATION4, SOURCE_PORT, SOURCE4, TCP4, TCP6, UDP4};

const ON: u32 = 1 << 31;
/// FTQF: fields that are ignored.
const ANY_SOURCE: u32 = 1 << 25;
const ANY_DESTINATION: u32 = 1 << 26;
const ANY_SOURCE_PORT: u32 = 1 << 27;
const ANY_DESTINATION_PORT: u32 = 1 << 28;
const ANY_PROTOCOL: u32 = 1 << 29;
const ANY_POOL: u32 = 1 << 30;
const ANY: u32 = ANY_SOURCE | ANY_DESTINATION | ANY_SOURCE_PORT | ANY_DESTINATION_PORT | ANY_PROTOCOL | ANY_POOL;
const TCP: u32 = 0;
const UDP: u32 = 1;

fn four_queues() -> Driver {
    let mut driver = Driver::new();
    (0..4).for_each(|queue| driver.start_rx(queue, 16, SRRCTL_DESCTYPE_ADV_ONEBUF | 2));
    driver
}

/// Receives a frame; returns its queue.
fn queue_of(driver: &mut Driver, frame: &[u8]) -> usize {
    driver.arrive(&[frame.to_vec()]);
    (0..4).find(|&queue| driver.receive(queue).is_some()).expect("a frame")
}

/// Sets a filter for all five fields of a test packet, except those in `any`.
fn tuple(driver: &Driver, i: usize, priority: u32, protocol: u32, any: u32, queue: u32) {
    driver.window.write(SAQF.at(i), u32::from_le_bytes(SOURCE4));
    driver.window.write(DAQF.at(i), u32::from_le_bytes(DESTINATION4));
    let ports = [SOURCE_PORT.to_be_bytes(), DESTINATION_PORT.to_be_bytes()].concat();
    driver.window.write(SDPQF.at(i), u32::from_le_bytes(ports.try_into().unwrap()));
    driver.window.write(L34TIMIR.at(i), queue << 21);
    driver.window.write(FTQF.at(i), ON | ANY_POOL | any | priority << 2 | protocol);
}

#[test]
fn all_five_fields_count() {
    let mut driver = four_queues();
    tuple(&driver, 77, 1, TCP, 0, 2);
    let packet = TCP4.frame(b"payload");
    assert_eq!(queue_of(&mut driver, &packet), 2);
    assert_eq!(queue_of(&mut driver, &TCP4.tagged(4).frame(b"payload")), 2, "behind a tag");
    for (what, at) in [("source", 26), ("destination", 30), ("source port", 35), ("destination port", 37)] {
        let mut other = packet.clone();
        other[at] ^= 1;
        assert_eq!(queue_of(&mut driver, &other), 0, "{what}");
    }
    assert_eq!(queue_of(&mut driver, &UDP4.frame(b"payload")), 0, "protocol");
    assert_eq!(queue_of(&mut driver, &TCP6.frame(b"payload")), 0, "IPv4 only");
    let mut fragment = packet.clone();
    fragment[20] = 0x20;
    assert_eq!(queue_of(&mut driver, &fragment), 0, "a fragment has no ports");
    driver.window.write(FTQF.at(77), 0);
    assert_eq!(queue_of(&mut driver, &packet), 0, "off");
}

#[test]
fn masked_fields_do_not_count() {
    let packet = TCP4.frame(b"payload");
    for (any, at) in [(ANY_SOURCE, 29), (ANY_DESTINATION, 33), (ANY_SOURCE_PORT, 34), (ANY_DESTINATION_PORT, 36)] {
        let mut driver = four_queues();
        tuple(&driver, 0, 1, TCP, any, 3);
        let mut other = packet.clone();
        other[at] ^= 1;
        assert_eq!(queue_of(&mut driver, &other), 3);
    }
    let mut driver = four_queues();
    tuple(&driver, 0, 1, TCP, ANY_PROTOCOL, 3);
    assert_eq!(queue_of(&mut driver, &UDP4.frame(b"payload")), 3);
}

#[test]
fn the_highest_priority_wins() {
    let mut driver = four_queues();
    tuple(&driver, 0, 2, TCP, ANY, 1);
    tuple(&driver, 1, 7, UDP, ANY & !ANY_PROTOCOL, 2);
    tuple(&driver, 2, 7, UDP, ANY & !ANY_PROTOCOL, 3);
    assert_eq!(queue_of(&mut driver, &UDP4.frame(b"")), 2);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"")), 1);
}

#[test]
fn an_ethertype_comes_to_its_queue() {
    let mut driver = four_queues();
    driver.window.write(ETQF.at(3), ON | 0x88b5);
    driver.window.write(ETQS.at(3), ON | 2 << 16);
    driver.arrive(&[frame(own_mac(), 64)]);
    let received = driver.receive(2).expect("a frame");
    assert_eq!(received.word & 0xfff0, 1 << 15 | 3 << 4, "and the filter's number is the packet type");
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"")), 0);
    // With a required priority of the tag.
    driver.window.write(ETQF.at(3), ON | 5 << 16 | 1 << 19 | 0x88b5);
    let plain = frame(own_mac(), 64);
    let tagged = |tag: u8| [&plain[..12], &[0x81, 0, tag, 1], &plain[12..]].concat();
    assert_eq!(queue_of(&mut driver, &tagged(5 << 5)), 2);
    assert_eq!(queue_of(&mut driver, &tagged(4 << 5)), 0);
    assert_eq!(queue_of(&mut driver, &plain), 0);
    // Without a queue the filter only sets the packet type.
    driver.window.write(ETQF.at(3), ON | 0x88b5);
    driver.window.write(ETQS.at(3), 0);
    assert_eq!(queue_of(&mut driver, &plain), 0);
}

fn syn() -> Vec<u8> {
    let mut packet = TCP4.frame(b"");
    packet[14 + 20 + 13] = 0x02;
    packet
}

#[test]
fn the_beginning_of_a_connection_has_a_queue() {
    let mut driver = four_queues();
    driver.window.write(SYNQF, 1 | 3 << 1);
    assert_eq!(queue_of(&mut driver, &syn()), 3);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"")), 0);
    assert_eq!(queue_of(&mut driver, &UDP4.frame(&[2; 40])), 0);
}

#[test]
fn the_filters_have_an_order() {
    let mut driver = four_queues();
    driver.window.write(SYNQF, 1 | 3 << 1);
    tuple(&driver, 0, 1, TCP, ANY, 2);
    assert_eq!(queue_of(&mut driver, &syn()), 2, "five-tuple first");
    driver.window.write(SYNQF, ON | 1 | 3 << 1);
    assert_eq!(queue_of(&mut driver, &syn()), 3, "unless SYNQFP says otherwise");
    driver.window.write(ETQF.at(0), ON | 0x0800);
    driver.window.write(ETQS.at(0), ON | 1 << 16);
    assert_eq!(queue_of(&mut driver, &syn()), 1, "the EtherType before all");
}

#[test]
fn filters_come_before_rss() {
    let mut driver = four_queues();
    driver.window.write(MRQC, MRQC_MRQE_RSS | MRQC_RSS_IPV4);
    (0..32).for_each(|i| driver.window.write(RETA.at(i), 0x0101_0101));
    assert_eq!(queue_of(&mut driver, &UDP4.frame(b"")), 1);
    tuple(&driver, 0, 1, UDP, ANY & !ANY_PROTOCOL, 2);
    assert_eq!(queue_of(&mut driver, &UDP4.frame(b"")), 2);
    assert_eq!(queue_of(&mut driver, &TCP4.frame(b"")), 1);
}
