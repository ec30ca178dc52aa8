//! Checksums: the verdicts on received frames (7.1.11), and insertion into sent frames (7.2.5). etherparse is
//! the reference.

use proptest::prelude::*;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::Driver;
use crate::ixgbe::packets::{Kind, TCP4, TCP6, UDP4, UDP6, judged};

const UDPCS: u64 = 1 << 4;
const L4CS: u64 = 1 << 5;
const IPCS: u64 = 1 << 6;
const UDPV: u64 = 1 << 10;
const L4E: u64 = 1 << 30;
const IPE: u64 = 1 << 31;
const VERDICTS: u64 = UDPCS | L4CS | IPCS | UDPV | L4E | IPE;

fn verdict(frame: &[u8]) -> u64 {
    let mut driver = Driver::started();
    driver.arrive(&[frame.to_vec()]);
    driver.receive(0).expect("a frame").status & VERDICTS
}

#[test]
fn right_checksums_are_found_right() {
    for (kind, verdicts) in [(TCP4, IPCS | L4CS), (UDP4, IPCS | L4CS | UDPCS), (TCP6, L4CS), (UDP6, L4CS | UDPCS)] {
        for len in [0, 1, 2, 17, 1400] {
            assert_eq!(verdict(&kind.frame(&vec![0xa5; len])), verdicts, "{kind:?} {len}");
            assert_eq!(verdict(&kind.tagged(5).frame(&vec![0xa5; len])), verdicts, "{kind:?} {len}, tagged");
        }
    }
}

#[test]
fn each_wrong_checksum_is_found_wrong() {
    let mut frame = TCP4.frame(b"payload");
    frame[14 + 8] ^= 1;
    assert_eq!(verdict(&frame), IPCS | L4CS | IPE, "the time to live");
    let mut frame = UDP6.frame(b"payload");
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(verdict(&frame), L4CS | UDPCS | L4E, "the payload");
}

#[test]
fn udp_over_ipv4_may_have_none() {
    let mut frame = UDP4.frame(b"payload");
    frame[UDP4.checksum_at()..][..2].fill(0);
    assert_eq!(verdict(&frame), IPCS);
    let mut frame = UDP6.frame(b"payload");
    frame[UDP6.checksum_at()..][..2].fill(0);
    assert_eq!(verdict(&frame), L4CS | UDPCS | L4E, "but not over IPv6");
}

#[test]
fn padding_does_not_count() {
    let frame = UDP4.frame(b"x");
    assert_eq!(verdict(&[&frame[..], &[0xff; 30]].concat()), IPCS | L4CS | UDPCS);
}

#[test]
fn extension_headers_are_looked_behind() {
    let plain = UDP6.frame(b"payload");
    let extended = |extension: &[u8]| {
        let mut frame = [&plain[..54], extension, &plain[54..]].concat();
        frame[14 + 6] = 0;
        frame[14 + 5] += extension.len() as u8;
        frame
    };
    // Hop-by-hop options, then destination options of 16 bytes.
    let both = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(verdict(&extended(&both)), L4CS | UDPCS);
    assert_eq!(verdict(&extended(&[43, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 0])), 0, "it has a way to go yet");
    assert_eq!(verdict(&extended(&[44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 0])), 0, "a fragment");
}

#[test]
fn a_length_beyond_the_frame_is_no_packet() {
    let mut frame = TCP4.frame(b"payload");
    frame[14 + 3] += 1;
    assert_eq!(verdict(&frame) & (L4CS | L4E), 0);
}

#[test]
fn sctp_has_a_crc() {
    let mut frame = UDP4.frame(&[7; 40]);
    frame[14 + 9] = 132;
    let packet = &mut frame[34..];
    packet[8..12].fill(0);
    let crc = packet.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 })
    });
    packet[8..12].copy_from_slice(&(!crc).to_le_bytes());
    assert_eq!(verdict(&frame) & (L4CS | L4E), L4CS);
    frame[50] ^= 1;
    assert_eq!(verdict(&frame) & (L4CS | L4E), L4CS | L4E);
}

/// Expects the checksum of a UDP fragment's payload as the datasheet defines it, computed here.
#[test]
fn fragments_have_their_own_checksum() {
    let mut frame = UDP4.frame(&[0x11; 48]);
    frame[14 + 6] = 0x20;
    let sum: u32 = frame[34..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = u64::from((sum & 0xffff) + (sum >> 16));
    frame[14 + 4..14 + 6].copy_from_slice(&[0xab, 0xcd]);
    let mut driver = Driver::started();
    driver.window.write(RXCSUM, 1 << 12);
    driver.arrive(&[frame.clone()]);
    let received = driver.receive(0).expect("a frame");
    assert_eq!(received.word >> 32, sum << 16 | 0xabcd);
    assert_eq!(received.status & (UDPCS | L4CS | UDPV), UDPCS | UDPV);
    frame[14 + 7] = 5;
    driver.arrive(&[frame.clone()]);
    assert_eq!(driver.receive(0).expect("a frame").status & (UDPCS | L4CS | UDPV), UDPCS, "not the first");
    driver.window.write(RXCSUM, 1 << 12 | 1 << 13);
    driver.arrive(&[frame]);
    assert_eq!(driver.receive(0).expect("a frame").word >> 32, 0, "the RSS hash has the place");
}

/// Returns the frames that the NIC sends for a prepared frame in `parts` buffers.
fn completed(kind: Kind, prepared: &[u8], flags: u64, parts: usize) -> Vec<Vec<u8>> {
    let mut driver = Driver::started();
    let (first, second) = kind.context(0, 0);
    driver.put_raw(0, first, second);
    let size = prepared.len().div_ceil(parts);
    let count = prepared.len().div_ceil(size);
    for (i, part) in prepared.chunks(size).enumerate() {
        let end = if i + 1 == count { TX_EOP | TX_RS } else { 0 };
        driver.put(0, part, flags | end | TX_IFCS, prepared.len());
    }
    driver.send(0);
    driver.sent()
}

#[test]
fn only_the_checksums_asked_for_are_filled_in() {
    let whole = TCP4.frame(&[1; 100]);
    let mut prepared = whole.clone();
    TCP4.prepare(&mut prepared, true);
    assert_eq!(completed(TCP4, &prepared, 0, 1), [prepared.clone()]);
    let with_ip = completed(TCP4, &prepared, TX_IXSM, 1).remove(0);
    assert_eq!(with_ip[..34], whole[..34]);
    assert_eq!(with_ip[34..], prepared[34..]);
    let with_l4 = completed(TCP4, &prepared, TX_TXSM, 1).remove(0);
    assert_eq!(with_l4[..34], prepared[..34]);
    assert_eq!(with_l4[34..], whole[34..]);
}

#[test]
fn sctp_is_filled_in() {
    let mut frame = UDP4.frame(&[7; 41]);
    frame[34 + 8..34 + 12].fill(0);
    let crc = frame[34..].iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 })
    });
    let mut driver = Driver::started();
    let (first, second) = UDP4.context(0, 0);
    driver.put_raw(0, first, second | 2 << 11);
    driver.put(0, &frame, TX_TXSM | TX_EOP | TX_IFCS, frame.len());
    driver.send(0);
    frame[34 + 8..34 + 12].copy_from_slice(&(!crc).to_le_bytes());
    assert_eq!(driver.sent(), [frame]);
}

#[test]
fn udp_never_goes_without_a_checksum() {
    // A payload that makes the checksum 0, which must be sent as 0xffff.
    let mut frame = UDP4.frame(&[0, 0]);
    let checksum: [u8; 2] = frame[UDP4.checksum_at()..][..2].try_into().unwrap();
    frame[42..44].copy_from_slice(&checksum);
    UDP4.prepare(&mut frame, true);
    let sent = completed(UDP4, &frame, TX_TXSM | TX_IXSM, 1).remove(0);
    assert_eq!(sent[UDP4.checksum_at()..][..2], [0xff, 0xff]);
}

#[test]
fn a_legacy_checksum_goes_where_the_descriptor_says() {
    let whole = TCP4.frame(&[3; 33]);
    let mut frame = whole.clone();
    TCP4.prepare(&mut frame, true);
    frame[24..26].copy_from_slice(&whole[24..26]);
    let mut driver = Driver::started();
    driver.write_bytes(Driver::buffer(0, 0), &frame);
    let buffer = driver.region.iova(Driver::buffer(0, 0));
    let insert = 1 << 26 | (14 + 20 + 16) << 16 | (14 + 20) << 40;
    driver.put_raw(0, buffer, frame.len() as u64 | insert | TX_EOP | TX_IFCS);
    driver.put_raw(0, buffer, frame.len() as u64 | 1 << 26 | 255 << 16 | TX_EOP | TX_IFCS);
    driver.send(0);
    assert_eq!(driver.sent(), [whole]);
    assert_eq!(driver.card.counters().tx_malformed, 1, "outside the frame");
}

#[test]
fn headers_outside_the_frame_lose_it() {
    let frame = TCP4.frame(&[1; 100]);
    for (mac, ip, flags) in [(127, 511, TX_TXSM), (14, 508, TX_IXSM), (0, 0, TX_IXSM), (14, 160, TX_TXSM)] {
        let mut driver = Driver::started();
        let (_, second) = TCP4.context(0, 0);
        driver.put_raw(0, ip | mac << 9, second);
        driver.put(0, &frame, flags | TX_EOP | TX_IFCS, frame.len());
        driver.send_frame(0, &frame);
        assert_eq!(driver.sent(), std::slice::from_ref(&frame), "only the one after it");
        assert_eq!(driver.card.counters().tx_malformed, 1, "{mac} {ip}");
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    let vlan = prop_oneof![Just(None), (0u16..4096).prop_map(Some)];
    (prop_oneof![Just(4), Just(6)], any::<bool>(), vlan).prop_map(|(version, tcp, vlan)| Kind { version, tcp, vlan })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_etherparse(
        kind in kinds(),
        payload in prop::collection::vec(any::<u8>(), 0..1400),
        broken in prop::option::of((0usize..2000, 0u32..8)),
    ) {
        let mut frame = kind.frame(&payload);
        if let Some((at, bit)) = broken {
            // Change only bytes after the fields that determine the layout: addresses, ports, sequence,
            // checksums, payload.
            let from = kind.mac_len() + if kind.version == 4 { 12 } else { 8 };
            let length_of_tcp = kind.mac_len() + kind.ip_len() + 12;
            let length_of_udp = kind.mac_len() + kind.ip_len() + 4;
            let at = from + at % (frame.len() - from);
            let spared = if kind.tcp { length_of_tcp..length_of_tcp + 1 } else { length_of_udp..length_of_udp + 2 };
            if !spared.contains(&at) {
                frame[at] ^= 1 << bit;
            }
        }
        let (ip, l4) = judged(&frame);
        let verdict = verdict(&frame);
        prop_assert_eq!(ip, (verdict & IPCS != 0).then_some(verdict & IPE == 0));
        if verdict & L4CS != 0 {
            prop_assert_eq!(l4, verdict & L4E == 0);
        } else {
            prop_assert!(frame[kind.checksum_at()..][..2] == [0, 0] && !kind.tcp);
        }
    }

    #[test]
    fn completed_frames_are_those_of_etherparse(
        kind in kinds(),
        payload in prop::collection::vec(any::<u8>(), 0..1400),
        parts in 1usize..20,
    ) {
        let whole = kind.frame(&payload);
        let mut prepared = whole.clone();
        kind.prepare(&mut prepared, true);
        let flags = if kind.version == 4 { TX_IXSM | TX_TXSM } else { TX_TXSM };
        let sent = completed(kind, &prepared, flags, parts).remove(0);
        prop_assert_eq!(&sent[..whole.len()], &whole[..]);
        let (ip, l4) = judged(&sent);
        prop_assert!(ip.unwrap_or(true) && l4);
    }
}

#[test]
fn the_whole_way_there_and_back_is_right() {
    let mut driver = Driver::started();
    driver.window.set(HLREG0, HLREG0_LPBK);
    let whole = TCP6.frame(&[9; 700]);
    let mut prepared = whole.clone();
    TCP6.prepare(&mut prepared, true);
    let (first, second) = TCP6.context(0, 0);
    driver.put_raw(0, first, second);
    driver.put(0, &prepared, TX_TXSM | TX_EOP | TX_IFCS, prepared.len());
    driver.send(0);
    let received = driver.receive(0).expect("a frame");
    assert_eq!((received.bytes, received.status & VERDICTS), (whole, L4CS));
}
