//! TCP and UDP segmentation (7.2.4), checked by etherparse: the segments are valid, and together they are the
//! original packet.

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use proptest::prelude::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::Driver;
use crate::ixgbe::packets::{Kind, SEQUENCE, TCP4, TCP6, UDP4, judged};

/// Puts a packet to be segmented into buffers of these lengths, the last of which takes the rest.
fn put(driver: &mut Driver, kind: Kind, payload: &[u8], mss: usize, flags: u64, lengths: &[usize]) -> Vec<u8> {
    let mut packet = kind.frame(payload);
    kind.prepare(&mut packet, false);
    // The NIC writes the lengths in the headers.
    let length_at = kind.mac_len() + if kind.version == 4 { 2 } else { 4 };
    packet[length_at..length_at + 2].fill(0);
    let (first, second) = kind.context(mss, 0);
    driver.put_raw(0, first, second);
    let checksums = if kind.version == 4 { TX_IXSM | TX_TXSM } else { TX_TXSM };
    let mut rest = &packet[..];
    for i in 0.. {
        let len = lengths.get(i).copied().unwrap_or(usize::MAX).min(rest.len()).min(8192);
        let part;
        (part, rest) = rest.split_at(len);
        let end = if rest.is_empty() { TX_EOP | TX_RS } else { 0 };
        driver.put(0, part, flags | checksums | TX_TSE | TX_IFCS | end, payload.len());
        if rest.is_empty() {
            return packet;
        }
    }
    unreachable!()
}

/// Sends, and returns all frames that result.
fn sent(driver: &mut Driver) -> Vec<Vec<u8>> {
    driver.send(0);
    while driver.step() > 0 {}
    driver.sent()
}

/// Checks the segments of a packet against each other and returns their joined payloads.
fn joined(kind: Kind, frames: &[Vec<u8>], mss: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        let (ip, l4) = judged(frame);
        assert!(ip.unwrap_or(true) && l4, "checksums of segment {i}");
        let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
        let is_last = i + 1 == frames.len();
        let part = packet.payload.slice();
        assert!(part.len() == mss || is_last && part.len() <= mss, "length of segment {i}");
        match packet.net.unwrap() {
            NetHeaders::Ipv4(ip, _) => assert_eq!(ip.identification, i as u16, "identification"),
            NetHeaders::Ipv6(ip, _) => assert_eq!(ip.payload_length as usize, kind.l4_len() + part.len()),
            _ => unreachable!(),
        }
        match packet.transport.unwrap() {
            TransportHeader::Tcp(tcp) => {
                assert_eq!(tcp.sequence_number, SEQUENCE.wrapping_add(payload.len() as u32));
                assert_eq!((tcp.fin, tcp.psh), (is_last, is_last), "FIN and PSH only in the last");
                // As measured on real hardware: the masks after reset are 0xff6, 0xff6 and 0xf7f.
                assert_eq!(tcp.cwr, !is_last || frames.len() == 1, "CWR not in the last");
                assert!(tcp.ack && !tcp.syn);
                assert_eq!((tcp.acknowledgment_number, tcp.window_size, tcp.options.len()), (77, 512, 12));
            }
            TransportHeader::Udp(udp) => assert_eq!(udp.length as usize, 8 + part.len()),
            _ => unreachable!(),
        }
        payload.extend_from_slice(part);
    }
    payload
}

#[test]
fn a_stream_is_cut_into_segments() {
    let payload: Vec<u8> = (0..10_000u32).map(|i| (i / 3 * 7) as u8).collect();
    for kind in [TCP4, TCP6, UDP4, TCP4.tagged(9)] {
        let mut driver = Driver::started();
        put(&mut driver, kind, &payload, 1448, 0, &[kind.header_len()]);
        let frames = sent(&mut driver);
        assert_eq!(frames.len(), 7);
        assert_eq!(joined(kind, &frames, 1448), payload, "{kind:?}");
        assert_ne!(driver.word(Driver::tx_descriptor(0, 3) + 8) & TX_DD, 0);
        assert_eq!(driver.card.counters().tx_packets, 7);
        let bytes = payload.len() + 7 * kind.header_len();
        assert_eq!(driver.card.counters().tx_bytes as usize, bytes);
        assert_eq!(driver.window.read(GPTC), 7);
        assert_eq!(driver.window.read(GOTCL) as usize, bytes + 7 * 4);
    }
}

#[test]
fn one_segment_keeps_its_flags() {
    let mut driver = Driver::started();
    put(&mut driver, TCP4, &[5; 1000], 1448, 0, &[]);
    assert_eq!(sent(&mut driver), [TCP4.frame(&[5; 1000])]);
}

#[test]
fn each_segment_gets_the_tag() {
    let mut driver = Driver::started();
    let payload = [5; 3000];
    let (first, second) = TCP4.context(1448, 0x2007);
    put(&mut driver, TCP4, &payload, 1448, TX_VLE, &[]);
    // The context that `put` wrote has no tag.
    driver.set_word(Driver::tx_descriptor(0, 0), first);
    driver.set_word(Driver::tx_descriptor(0, 0) + 8, second);
    let frames = sent(&mut driver);
    assert_eq!(frames.len(), 3);
    let untagged: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| {
            assert_eq!(frame[12..16], [0x81, 0, 0x20, 0x07]);
            [&frame[..12], &frame[16..]].concat()
        })
        .collect();
    assert_eq!(joined(TCP4, &untagged, 1448), payload);
}

#[test]
fn which_flags_stay_is_the_drivers_choice() {
    let mut driver = Driver::started();
    driver.window.write(DTXTCPFLGL, 0x0ff0_0fff);
    driver.window.write(DTXTCPFLGH, 0x0000_0000);
    put(&mut driver, TCP4, &[5; 3000], 1000, 0, &[]);
    let flags: Vec<u8> = sent(&mut driver).iter().map(|frame| frame[14 + 20 + 13]).collect();
    let (fin, psh, ack, cwr) = (0x01, 0x08, 0x10, 0x80);
    assert_eq!(flags, [fin | psh | ack | cwr, ack | cwr, 0]);
}

#[test]
fn a_full_wire_only_delays_segments() {
    let mut driver = Driver::started();
    driver.wire.frames().room = 10;
    let payload = vec![3; 40_000];
    put(&mut driver, TCP4, &payload, 200, 0, &[]);
    driver.send_frame(0, &TCP4.frame(b"behind"));
    while driver.step() > 0 {}
    assert_eq!(driver.wire.frames().from_card.len(), 10);
    driver.wire.frames().room = usize::MAX;
    while driver.step() > 0 {}
    let mut frames = driver.sent();
    assert_eq!(frames.pop(), Some(TCP4.frame(b"behind")), "in their order");
    assert_eq!(joined(TCP4, &frames, 200), payload);
}

#[test]
fn a_disabled_queue_forgets_its_segments() {
    let mut driver = Driver::started();
    driver.wire.frames().room = 0;
    put(&mut driver, TCP4, &[3; 40_000], 200, 0, &[]);
    driver.send(0);
    driver.window.write(TXDCTL.at(0), 0);
    driver.window.doorbell(TDT.at(0)).ring(0);
    driver.wire.frames().room = usize::MAX;
    driver.start_tx(0, 64);
    driver.step();
    driver.sent();
    driver.send_frame(0, &TCP4.frame(b"new"));
    assert_eq!(driver.sent(), [TCP4.frame(b"new")]);
}

#[test]
fn what_contradicts_itself_is_lost() {
    let good = TCP4.context(1448, 0);
    let cases = [
        ("no segment size", (good.0, good.1 & !(0xffff << 48))),
        ("a TCP header of 16 bytes", (good.0, good.1 & !(0xff << 40) | 16 << 40)),
        ("headers longer than the packet", (511 | 127 << 9, good.1)),
        ("no IP header", (14 << 9, good.1)),
        ("another protocol", (good.0, good.1 | 2 << 11)),
        ("segments longer than frames may be", (good.0, good.1 | 0xffff << 48)),
    ];
    for (what, (first, second)) in cases {
        let mut driver = Driver::started();
        put(&mut driver, TCP4, &[1; 16_000], 1448, 0, &[]);
        driver.set_word(Driver::tx_descriptor(0, 0), first);
        driver.set_word(Driver::tx_descriptor(0, 0) + 8, second);
        driver.send_frame(0, &TCP4.frame(b"behind"));
        assert_eq!(driver.sent(), [TCP4.frame(b"behind")], "{what}");
        assert_eq!(driver.card.counters().tx_malformed, 1, "{what}");
    }
    let mut driver = Driver::started();
    let (first, second) = TCP4.context(1448, 0);
    driver.put_raw(0, first, second);
    let packet = TCP4.frame(&[1; 3000]);
    driver.put(0, &packet, TX_TSE | TX_TXSM | TX_IFCS | TX_EOP, packet.len());
    assert_eq!((sent(&mut driver).len(), driver.card.counters().tx_malformed), (0, 1), "PAYLEN with the headers");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_reassembles(
        version in prop_oneof![Just(4u8), Just(6)],
        tcp in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 1..40_000),
        mss in 64usize..9000,
        lengths in prop::collection::vec(1usize..8192, 0..30),
    ) {
        let kind = Kind { version, tcp, vlan: None };
        let mut driver = Driver::started();
        put(&mut driver, kind, &payload, mss, 0, &lengths);
        let frames = sent(&mut driver);
        prop_assert_eq!(frames.len(), payload.len().div_ceil(mss));
        prop_assert!(joined(kind, &frames, mss) == payload);
    }
}
