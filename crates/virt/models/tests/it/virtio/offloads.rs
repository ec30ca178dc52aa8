//! Checksum and segmentation offloads (5.1.6.2, 5.1.6.4), checked by etherparse.

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use ringpass_models::virtio::VirtioConfig;
use ringpass_virtio::features::*;

use crate::virtio::driver::*;

const ALL: u64 = CSUM | GUEST_CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | GUEST_TSO4 | GUEST_TSO6 | MRG_RXBUF;

/// Builds a frame of TCP or UDP over IPv4 or IPv6 with correct checksums; returns it with the start of its
/// checksum.
fn built(version: u8, tcp: bool, payload: usize) -> (Vec<u8>, u16) {
    let payload: Vec<u8> = (0..payload).map(|i| (i * 3) as u8).collect();
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = if version == 4 { ethernet.ipv4([10; 4], [11; 4], 9) } else { ethernet.ipv6([1; 16], [2; 16], 9) };
    let mut frame = Vec::new();
    match tcp {
        true => ip.tcp(1000, 2000, 7, 4000).psh().write(&mut frame, &payload).unwrap(),
        false => ip.udp(1000, 2000).write(&mut frame, &payload).unwrap(),
    }
    (frame, if version == 4 { 34 } else { 54 })
}

/// Makes the checksum partial: its field holds the sum of the pseudo-header.
fn open(frame: &mut [u8], start: u16, tcp: bool) {
    let (start, at) = (usize::from(start), if tcp { 16 } else { 6 });
    let mut sum: u32 = frame[start - if start == 34 { 8 } else { 32 }..start]
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    sum += if tcp { 6 } else { 17 } + (frame.len() - start) as u32;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    frame[start + at..start + at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// Builds a `virtio_net_hdr`.
fn header(flags: u8, kind: u8, [len, segment, start, offset]: [u16; 4]) -> Vec<u8> {
    [&[flags, kind][..], [len, segment, start, offset, 0].map(u16::to_le_bytes).as_flattened()].concat()
}

fn is_right(frame: &[u8]) -> bool {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let (header, wanted) = match (sliced.net.unwrap(), sliced.transport.unwrap()) {
        (etherparse::NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            (tcp.checksum(), tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap())
        }
        (etherparse::NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            (tcp.checksum(), tcp.calc_checksum_ipv6(from, to).unwrap())
        }
        (etherparse::NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            let header = udp.to_header();
            (udp.checksum(), header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap())
        }
        (etherparse::NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
            let header = udp.to_header();
            (udp.checksum(), header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload()).unwrap())
        }
        other => panic!("{other:?}"),
    };
    header == wanted
}

const KINDS: [(u8, bool); 4] = [(4, true), (4, false), (6, true), (6, false)];

#[test]
fn checksums_are_filled_in() {
    let mut driver = Driver::started(ALL);
    for (version, tcp) in KINDS {
        let (frame, start) = built(version, tcp, 333);
        let mut left = frame.clone();
        open(&mut left, start, tcp);
        let offset = if tcp { 16 } else { 6 };
        driver.send(&header(1, 0, [0, 0, start, offset]), &left);
        assert_eq!(driver.sent(), [&frame[..]], "{version} {tcp}");
        assert!(is_right(&frame));
        // The checksum starts outside the frame.
        driver.send(&header(1, 0, [0, 0, 5000, offset]), &left);
        assert!(driver.sent().is_empty());
    }
    assert_eq!(driver.card.counters().tx_malformed, 4);
    let (frame, start) = built(4, true, 10);
    driver = Driver::started(0);
    driver.send(&header(1, 0, [0, 0, start, 16]), &frame);
    assert_eq!((driver.sent().len(), driver.card.counters().tx_malformed), (0, 1), "not negotiated");
}

#[test]
fn segments_are_cut() {
    for (version, kind) in [(4, 1), (6, 4)] {
        let mut driver = Driver::started(ALL);
        let (mut frame, start) = built(version, true, 3500);
        let payload = frame[usize::from(start) + 20..].to_vec();
        open(&mut frame, start, true);
        let headers = start + 20;
        driver.send(&header(1, kind, [headers, 1000, start, 16]), &frame);
        let sent = driver.sent();
        let lens: Vec<usize> = sent.iter().map(|frame| frame.len() - usize::from(headers)).collect();
        assert_eq!(lens, [1000, 1000, 1000, 500]);
        assert!(sent.iter().all(|frame| is_right(frame)));
        let whole: Vec<u8> = sent.iter().flat_map(|frame| frame[usize::from(headers)..].to_vec()).collect();
        assert_eq!(whole, payload);
        for wrong in [
            header(0, kind, [headers, 1000, start, 16]),
            header(1, kind, [headers, 0, start, 16]),
            header(1, 5 - kind, [headers, 1000, start, 16]),
            header(1, 3, [headers, 1000, start, 16]),
            header(1, kind, [headers, 1000, start + 1, 16]),
        ] {
            driver.send(&wrong, &frame);
            assert!(driver.sent().is_empty(), "{wrong:?}");
        }
        assert_eq!(driver.card.counters().tx_malformed, 5);
        let mut driver = Driver::started(CSUM);
        driver.send(&header(1, kind, [headers, 1000, start, 16]), &frame);
        assert_eq!(driver.card.counters().tx_malformed, 1, "not negotiated");
    }
}

#[test]
fn the_driver_is_told_of_right_checksums() {
    for (version, tcp) in KINDS {
        let (mut frame, start) = built(version, tcp, 100);
        for (features, flags) in [(0, 0), (GUEST_CSUM, 2)] {
            let mut driver = Driver::started(features);
            driver.arrive(&[frame.clone()]);
            assert_eq!(driver.receive().unwrap().header[..2], [flags, 0], "{version} {tcp}");
        }
        frame[usize::from(start) + 30] ^= 1;
        let mut driver = Driver::started(GUEST_CSUM);
        driver.arrive(&[frame.clone(), any_frame(60), frame[..40].to_vec()]);
        (0..3).for_each(|_| assert_eq!(driver.receive().unwrap().header[0], 0));
    }
}

/// A software wire (such as a TAP) leaves checksums partial and segments uncut; the driver gets them so or
/// completed, as negotiated.
#[test]
fn open_checksums_and_segments_are_passed_on() {
    let (whole, start) = built(4, true, 2000);
    let mut left = whole.clone();
    open(&mut left, start, true);
    for (features, segment, expected) in [
        (GUEST_CSUM, None, Some((header(1, 0, [0, 0, 34, 16]), &left))),
        (0, None, Some((header(0, 0, [0; 4]), &whole))),
        (GUEST_CSUM | GUEST_TSO4, Some(700), Some((header(1, 1, [54, 700, 34, 16]), &left))),
        (GUEST_CSUM, Some(700), None),
    ] {
        let mut driver = Driver::up(&VirtioConfig { features, ..VirtioConfig::default() }, 64);
        {
            let mut frames = driver.wire.frames();
            frames.partial_checksums = true;
            frames.segment = segment;
        }
        driver.arrive(&[left.clone()]);
        let received = driver.receive().map(|received| (received.header[..10].to_vec(), received.bytes));
        let expected = expected.map(|(header, frame)| (header[..10].to_vec(), frame.clone()));
        assert_eq!(received, expected, "{features:#x}");
    }
}

#[test]
fn headers_that_are_not_the_drivers_to_fill_in_are_counted() {
    let mut driver = Driver::started(0);
    driver.send(&header(2, 0, [0; 4]), &any_frame(60));
    driver.send(&[&[0; 10][..], &[1, 0]].concat(), &any_frame(60));
    assert_eq!((driver.sent().len(), driver.card.counters().tx_odd_headers), (2, 2));
    driver.send(&[], &any_frame(13));
    assert_eq!((driver.sent().len(), driver.card.counters().tx_malformed), (0, 1));
}
