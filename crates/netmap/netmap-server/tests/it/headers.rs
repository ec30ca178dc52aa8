//! Ports whose frames have headers of virtio-net, among ports that have none.

use crate::programs::*;
use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;
use ringpass_netmap_server::ServedPort;

/// Opens a port whose frames have headers of this many bytes.
fn open(vale: &mut Vale, place: usize, header_len: usize) -> Program {
    let mut program = vale.open(place, pair(256));
    assert!(program.control.set_header_len(header_len));
    program
}

/// A TCP segment with this payload to everybody, with the checksum of its pseudo header only.
fn tcp(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(9), BROADCAST).ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64);
    builder.tcp(1000, 2000, 7, 1024).write(&mut frame, payload).expect("a frame");
    let len = (frame.len() - 34) as u16;
    let words = [0xc612, 1, 0xc612, 2, 6, u32::from(len)];
    let sum: u32 = words.iter().sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[50..52].copy_from_slice(&(folded as u16).to_be_bytes());
    frame
}

/// The header by which a TCP segment over IPv4 is sent in pieces of `mss` bytes.
fn segments(mss: u16) -> Vec<u8> {
    let [low, high] = mss.to_le_bytes();
    vec![1, 1, 54, 0, low, high, 34, 0, 16, 0]
}

/// The header by which a checksum is requested.
const CHECKSUM: [u8; 10] = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0];

/// Sends a frame in as many slots as it takes.
fn send(from: &Program, header: &[u8], frame: &[u8]) {
    let bytes = [header, frame].concat();
    assert!(from.put(0, &bytes.chunks(2048).collect::<Vec<_>>()));
    from.sync();
}

/// Returns the payload of a TCP segment, whose checksums are right.
fn payload(frame: &[u8]) -> Vec<u8> {
    let headers = PacketHeaders::from_ethernet_slice(frame).expect("headers");
    let Some(NetHeaders::Ipv4(ip, _)) = &headers.net else { panic!("{headers:?}") };
    let Some(TransportHeader::Tcp(tcp)) = &headers.transport else { panic!("{headers:?}") };
    let payload = headers.payload.slice();
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(ip, payload).expect("a checksum"));
    payload.to_vec()
}

#[test]
fn a_port_without_headers_gets_whole_checksums_and_segments() {
    let mut vale = Vale::new();
    for (place, len) in [(0, 10), (1, 12)] {
        let (from, plain) = (open(&mut vale, place, len), vale.open(5, pair(256)));
        let with = |header: &[u8]| [header, &[0; 2][..len - 10]].concat();
        let data: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
        send(&from, &with(&segments(1000)), &tcp(&data));
        send(&from, &with(&CHECKSUM), &tcp(&data[..500]));
        send(&from, &with(&[0; 10]), &frame(BROADCAST, mac(9), 60));
        vale.work();
        let frames = plain.receive();
        assert_eq!(frames.len(), 22);
        let received: Vec<u8> = frames[..20].iter().flat_map(|frame| payload(frame)).collect();
        assert!(received == data, "the same data in segments");
        assert!(frames[..20].iter().all(|frame| frame.len() == 1054), "of the requested size");
        assert_eq!(payload(&frames[20]), data[..500]);
        assert_eq!(frames[21], frame(BROADCAST, mac(9), 60));
        vale.switch.remove(place);
        vale.switch.remove(5);
    }
}

#[test]
fn a_port_with_headers_gets_what_was_sent() {
    let mut vale = Vale::new();
    let [from, short, long] = [(0, 12), (1, 10), (2, 12)].map(|(place, len)| open(&mut vale, place, len));
    let plain = vale.open(3, pair(256));
    let segment = tcp(&[7; 20_000]);
    send(&from, &[&segments(1000)[..], &[0; 2]].concat(), &segment);
    send(&plain, &[], &frame(BROADCAST, mac(8), 60));
    vale.work();
    for (to, header_len, rest) in [(&short, 10, &[][..]), (&long, 12, &[1, 0])] {
        let frames = to.receive();
        assert_eq!(frames.len(), 2);
        let [first, second] = [0, 1].map(|n: usize| frames[n].split_at(header_len));
        assert_eq!(first.0, [&segments(1000)[..], rest].concat());
        assert!(first.1 == segment, "the segment is whole");
        assert_eq!(second, (&[&[0; 10][..], rest].concat()[..], &frame(BROADCAST, mac(8), 60)[..]));
    }
    assert_eq!(from.receive().len(), 1, "the frame of the port without headers");
}

/// A header that does not match its frame costs that frame.
#[test]
fn headers_that_do_not_match_are_dropped() {
    let mut vale = Vale::new();
    let (from, plain) = (open(&mut vale, 0, 10), vale.open(1, pair(256)));
    let good = frame(BROADCAST, mac(9), 60);
    for (header, bytes) in [
        (segments(0), tcp(&[1; 3000])),
        (segments(1000), frame(BROADCAST, mac(9), 60)),
        (vec![1, 0, 0, 0, 0, 0, 255, 255, 16, 0], tcp(&[1; 30])),
        (vec![0; 10], vec![1; 13]),
        (vec![0; 5], vec![]),
    ] {
        let before = from.control.stats().rx_drops;
        if header.len() + bytes.len() >= 14 {
            send(&from, &header, &bytes);
        }
        send(&from, &[0; 10], &good);
        vale.work();
        assert_eq!(plain.receive(), [&good[..]], "{header:?}");
        assert_eq!(from.control.stats().rx_drops - before, u64::from(header.len() + bytes.len() >= 14));
    }
}

proptest! {
    /// Nothing that a program writes in front of a frame hurts the switch or others.
    #[test]
    fn any_header_is_survived(bytes in prop::collection::vec(any::<u8>(), 14..300), header: [u8; 12]) {
        let mut vale = Vale::new();
        let (from, plain) = (open(&mut vale, 0, 12), vale.open(1, pair(256)));
        send(&from, &header, &bytes);
        send(&from, &[0; 12], &frame(BROADCAST, mac(9), 60));
        vale.work();
        prop_assert_eq!(plain.receive().pop(), Some(frame(BROADCAST, mac(9), 60)));
    }
}
