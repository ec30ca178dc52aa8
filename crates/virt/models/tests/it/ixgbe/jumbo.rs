//! Frames over several descriptors, and other descriptor formats: header split (7.1.10), legacy (7.1.5).

use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};
use crate::ixgbe::packets::{TCP4, UDP4, UDP6};

const SPLIT: u32 = 0b010 << 25;
const SPLIT_ALWAYS: u32 = 0b101 << 25;
const LEGACY: u32 = 0;
const SPH: u64 = 1 << 31;
const HBO: u64 = 1 << 23;
/// PSRTYPE: headers to be split off.
const TCP: u32 = 1 << 4;
const UDP: u32 = 1 << 5;
const IPV4: u32 = 1 << 8;
const IPV6: u32 = 1 << 9;
const L2: u32 = 1 << 12;

fn jumbo(driver: &mut Driver) {
    driver.window.set(HLREG0, HLREG0_JUMBOEN);
    driver.window.write(MAXFRS, 9018 << 16);
}

#[test]
fn only_the_last_descriptor_has_the_end_and_the_verdict() {
    let mut driver = Driver::started();
    jumbo(&mut driver);
    driver.window.set(RXDCTL.at(0), RXDCTL_VME);
    let whole = TCP4.tagged(7).frame(&vec![0x5a; 8000]);
    driver.arrive(std::slice::from_ref(&whole));
    let statuses: Vec<u64> = (0..4).map(|i| driver.word(Driver::rx_descriptor(0, i) + 8)).collect();
    for status in &statuses[..3] {
        assert_eq!(*status, RX_DD | 2048 << 32);
    }
    let rest = whole.len() as u64 - 4 - 3 * 2048;
    assert_eq!(statuses[3], RX_DD | RX_EOP | RX_VP | RX_IPCS | RX_L4CS | rest << 32 | 7 << 48);
    let received = driver.receive(0).expect("a frame");
    assert_eq!(received.bytes, [&whole[..12], &whole[16..]].concat());
    assert_eq!(received.word & 0xfff0, 0x110, "the packet type too");
}

#[test]
fn a_frame_waits_until_it_has_all_its_descriptors() {
    let mut driver = Driver::new();
    jumbo(&mut driver);
    driver.start_rx(0, 8, SRRCTL_DESCTYPE_ADV_ONEBUF | 1);
    let long = frame(own_mac(), 5000);
    driver.arrive(&[long.clone(), long.clone()]);
    assert_eq!(driver.window.read(RDH.at(0)), 5, "not a part of the second");
    assert_eq!(driver.receive(0).expect("a frame").bytes, long);
    driver.step();
    assert_eq!(driver.receive(0).expect("a frame").bytes, long);
}

#[test]
fn a_long_frame_goes_out_from_many_buffers() {
    let mut driver = Driver::started();
    let bytes = frame(own_mac(), 9000);
    for (count, sent) in [(40, 1), (41, 0)] {
        let size = bytes.len().div_ceil(count);
        for (i, part) in bytes.chunks(size).enumerate() {
            let end = if i + 1 == count { TX_EOP | TX_RS } else { 0 };
            driver.put(0, part, end | TX_IFCS, bytes.len());
        }
        driver.send(0);
        assert_eq!(driver.sent(), vec![bytes.clone(); sent], "{count} descriptors");
    }
    assert_eq!(driver.card.counters().tx_malformed, 1);
}

/// Returns the offset of a header buffer.
fn header_buffer(index: usize) -> usize {
    Driver::buffer(1, index)
}

/// Starts queue 0 with two buffers for each descriptor: 128 bytes for headers and 2 KiB.
fn split(kind: u32, types: u32) -> Driver {
    let mut driver = Driver::new();
    jumbo(&mut driver);
    driver.window.write(PSRTYPE.at(0), types);
    driver.start_rx(0, 8, kind | 2 | 2 << 8);
    for i in 0..8 {
        driver.set_word(Driver::rx_descriptor(0, i) + 8, driver.region.iova(header_buffer(i)));
    }
    driver
}

/// Receives a frame; returns header buffer, packet buffer, header length, whether the header was found, and
/// whether it was too long.
fn split_frame(kind: u32, types: u32, frame: &[u8]) -> (Vec<u8>, Vec<u8>, usize, bool, bool) {
    let mut driver = split(kind, types);
    driver.arrive(&[frame.to_vec()]);
    let at = Driver::rx_descriptor(0, 0);
    let (word, status) = (driver.word(at), driver.word(at + 8));
    assert_eq!(status & (RX_DD | RX_EOP | RX_RXE), RX_DD | RX_EOP);
    let len = (word >> 21 & 0x3ff) as usize;
    let (found, overflow) = (word & SPH != 0, status & HBO != 0);
    let stored = match (found, overflow) {
        (true, true) if kind == SPLIT => 0,
        (true, true) => 128,
        _ => len,
    };
    let header = driver.read_bytes(header_buffer(0), stored);
    let rest = driver.read_bytes(Driver::buffer(0, 0), (status >> 32) as usize & 0xffff);
    (header, rest, len, found, overflow)
}

#[test]
fn headers_go_to_their_own_buffer() {
    let tcp = TCP4.frame(&[1; 300]);
    for (types, len) in [(TCP | IPV4 | L2, 66), (UDP | IPV4, 34), (IPV6 | L2, 14)] {
        for kind in [SPLIT, SPLIT_ALWAYS] {
            let expected = (tcp[..len].to_vec(), tcp[len..].to_vec(), len, true, false);
            assert_eq!(split_frame(kind, types, &tcp), expected);
        }
    }
    let udp = UDP6.tagged(3).frame(&[1; 300]);
    let len = 14 + 4 + 40 + 8;
    assert_eq!(split_frame(SPLIT, UDP, &udp), (udp[..len].to_vec(), udp[len..].to_vec(), len, true, false));
}

#[test]
fn without_a_header_the_kinds_differ() {
    let other = frame(own_mac(), 300);
    assert_eq!(split_frame(SPLIT, TCP, &other), (vec![], other.clone(), 0, false, false));
    let expected = (other[..128].to_vec(), other[128..].to_vec(), 128, false, false);
    assert_eq!(split_frame(SPLIT_ALWAYS, TCP, &other), expected);
    let short = frame(own_mac(), 90);
    assert_eq!(split_frame(SPLIT_ALWAYS, TCP, &short), (short.clone(), vec![], 90, false, false));
}

#[test]
fn a_header_that_is_too_long_is_reported() {
    // Options make an IPv4 header of 60 bytes and a TCP header of 60 bytes: 134 bytes with the Ethernet header.
    let plain = TCP4.frame(&[1; 300]);
    let mut long = [&plain[..34], &[1; 40], &plain[34..66], &[1; 28], &plain[66..]].concat();
    long[14] = 0x4f;
    long[14 + 60 + 12] = 0xf0;
    let total = (long.len() - 14) as u16;
    long[16..18].copy_from_slice(&total.to_be_bytes());
    assert_eq!(split_frame(SPLIT, TCP, &long), (vec![], long.clone(), 134, true, true));
    let expected = (long[..128].to_vec(), long[128..].to_vec(), 134, true, true);
    assert_eq!(split_frame(SPLIT_ALWAYS, TCP, &long), expected);
}

#[test]
fn a_split_frame_may_need_more_descriptors() {
    let long = UDP4.frame(&vec![9; 5000]);
    let mut driver = split(SPLIT, UDP);
    driver.arrive(std::slice::from_ref(&long));
    let descriptors: Vec<(u64, u64)> = (0..3)
        .map(|i| Driver::rx_descriptor(0, i))
        .map(|at| (driver.word(at) & (SPH | 0x3ff << 21), driver.word(at + 8)))
        .collect();
    assert_eq!(descriptors.iter().map(|d| d.0).collect::<Vec<_>>(), [SPH | 42 << 21, 0, 0]);
    let lengths: Vec<u64> = descriptors.iter().map(|d| d.1 >> 32 & 0xffff).collect();
    assert_eq!(lengths, [2048, 2048, 904]);
    assert_eq!(descriptors.iter().map(|d| d.1 & RX_EOP).collect::<Vec<_>>(), [0, 0, RX_EOP]);
    assert_eq!(driver.read_bytes(header_buffer(0), 42), long[..42]);
}

#[test]
fn a_bad_buffer_for_headers_costs_its_frame_only() {
    let mut driver = split(SPLIT, UDP);
    driver.set_word(Driver::rx_descriptor(0, 0) + 8, 0x1234_5678_9000);
    let sent = UDP4.frame(&[1; 100]);
    driver.arrive(&[sent.clone(), sent.clone()]);
    assert_eq!(driver.word(Driver::rx_descriptor(0, 0) + 8) & 0xffff_ffff, RX_DD | RX_EOP | RX_RXE);
    assert_eq!(driver.read_bytes(header_buffer(1), 42), sent[..42]);
    assert_eq!(driver.card.counters().dma_faults, 1);
}

#[test]
fn legacy_descriptors_are_written_as_they_were() {
    let mut driver = Driver::new();
    driver.start_rx(0, 8, LEGACY | 1);
    driver.window.set(RXDCTL.at(0), RXDCTL_VME);
    let mut whole = UDP4.tagged(0x123).frame(&[1; 1200]);
    whole[100] ^= 1;
    driver.arrive(std::slice::from_ref(&whole));
    let first = driver.word(Driver::rx_descriptor(0, 0) + 8);
    let last = driver.word(Driver::rx_descriptor(0, 1) + 8);
    let (dd, eop, vp, udpcs, l4cs, ipcs, l4e) = (1 << 32, 1 << 33, 1 << 35, 1 << 36, 1 << 37, 1 << 38, 1u64 << 46);
    assert_eq!(first, 1024 | dd);
    let rest = whole.len() as u64 - 4 - 1024;
    assert_eq!(last, rest | dd | eop | vp | udpcs | l4cs | ipcs | l4e | 0x123 << 48);
    let address = driver.region.iova(Driver::buffer(0, 0));
    assert_eq!(driver.word(Driver::rx_descriptor(0, 0)), address, "the first half stays");
    let bytes = [driver.read_bytes(Driver::buffer(0, 0), 1024), driver.read_bytes(Driver::buffer(0, 1), rest as usize)];
    assert_eq!(bytes.concat(), [&whole[..12], &whole[16..]].concat());
}

#[test]
fn an_x540_limits_frames_by_queue() {
    let mut driver = Driver::started();
    driver.window.write(RXDCTL.at(0), RXDCTL_ENABLE | 1 << 15 | 1000);
    driver.arrive(&[frame(own_mac(), 1000), frame(own_mac(), 1001)]);
    assert_eq!(driver.receive_all(0), [frame(own_mac(), 1000)]);
}

#[test]
fn all_queues_of_the_card_receive() {
    let mut driver = Driver::new();
    for queue in [0, 15, 63, 64, 127] {
        driver.window.clear(RXCTRL, RXCTRL_RXEN);
        driver.start_rx(queue, 16, SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
        driver.window.write(ETQF.at(0), 1 << 31 | 0x88b5);
        driver.window.write(ETQS.at(0), 1 << 31 | (queue as u32) << 16);
        driver.arrive(&[frame(own_mac(), 64)]);
        assert_eq!(driver.receive_all(queue), [frame(own_mac(), 64)], "queue {queue}");
        assert_eq!(driver.window.read(RDH.at(queue)), 1);
        driver.window.clear(RXDCTL.at(queue), RXDCTL_ENABLE);
    }
}
