//! Checks the output of software offloads with an independent decoder (etherparse).

use std::sync::{Arc, Mutex};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use ringpass_memory::{Burst, Flags, Headers, Mempool, MempoolConfig, Packet};

use super::{SoftwareOffload, parse_headers};
use crate::{TxQueue, chain};

/// A queue that takes at most this many packets a call, and keeps their frames.
struct Sink {
    most: usize,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len().min(self.most);
        for packet in burst.drain().take(taken) {
            assert_eq!(packet.flags().without(Flags::CHAINED), Flags::default(), "nothing is left to be done");
            self.sent.lock().unwrap().push(packet.segments().flat_map(|segment| segment.to_vec()).collect());
        }
        taken
    }
}

struct Rig {
    pool: Mempool,
    software: SoftwareOffload<Sink>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Rig {
    fn new(most: usize, size: usize) -> Self {
        let pool = Mempool::new(&MempoolConfig { buffers: 1024, size, ..Default::default() }).unwrap();
        let sent = Arc::<Mutex<_>>::default();
        let software = SoftwareOffload::new(Sink { most, sent: sent.clone() }, Flags::default(), &pool);
        Self { pool, software, sent }
    }

    fn packet(&self, frame: &[u8]) -> Packet {
        chain([frame], || self.pool.alloc()).unwrap()
    }

    /// Sends a packet, with as many calls as needed, and returns the frames.
    fn send(&mut self, packet: Packet) -> Vec<Vec<u8>> {
        let mut burst = Burst::new(1);
        burst.push(packet);
        assert_eq!(self.software.tx_burst(&mut burst), 1);
        (0..2000).for_each(|_| assert_eq!(self.software.tx_burst(&mut burst), 0));
        std::mem::take(&mut self.sent.lock().unwrap())
    }
}

/// Builds a TCP frame with timestamps and a numbered payload, and locates its headers.
fn tcp(version: u8, payload: usize, tag: bool) -> (Vec<u8>, Headers) {
    let payload: Vec<u8> = (0..payload).map(|i| (i * 7 + i / 256) as u8).collect();
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let options = [etherparse::TcpOptionElement::Timestamp(1, 2)];
    let mut frame = Vec::new();
    let mut ip = |ip: etherparse::PacketBuilderStep<etherparse::IpHeaders>| {
        let tcp = ip.tcp(1, 2, u32::MAX - 1000, 65535).options(&options).unwrap();
        tcp.ack(5).psh().fin().cwr().write(&mut frame, &payload).unwrap();
    };
    match (version, tag) {
        (4, false) => ip(ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9)),
        (4, true) => ip(ethernet.single_vlan(etherparse::VlanId::try_new(9).unwrap()).ipv4([10; 4], [11; 4], 9)),
        _ => ip(ethernet.ipv6([1; 16], [2; 16], 9)),
    }
    let headers = parse_headers(&frame).unwrap();
    // Segmentation must ignore the old value of the checksum field, so it gets an arbitrary one.
    frame[headers.l4_start() + 16] = 9;
    (frame, headers)
}

/// Checks all checksums and lengths of a TCP frame. Returns its sequence number, flags and payload.
fn checked(frame: &[u8]) -> (u32, u8, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { panic!("{packet:?}") };
    let right = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap()
        }
        NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(tcp.checksum(), right);
    let flags = tcp.slice()[13];
    (tcp.sequence_number(), flags, tcp.payload().to_vec())
}

#[test]
fn segments_become_frames_that_make_up_the_whole() {
    for (version, len, mss, tag, size) in [
        (4, 64_000, 1448, false, 2048),
        (6, 60_000, 1428, false, 2048),
        (4, 5000, 1000, true, 128),
        (4, 20_000, 8000, false, 2048),
        (4, 1000, 1, false, 2048),
        (4, 1448, 1448, false, 2048),
        (6, 0, 100, false, 256),
    ] {
        for most in [1, 256] {
            let mut rig = Rig::new(most, size);
            let (frame, headers) = tcp(version, len, tag);
            let mut packet = rig.packet(&frame);
            packet.request_segmentation(mss, headers);
            let frames = rig.send(packet);
            assert_eq!(frames.len(), len.div_ceil(usize::from(mss)).max(1));
            let start = u32::MAX - 1000;
            let mut payload = Vec::new();
            for (n, sent) in frames.iter().enumerate() {
                let (sequence, flags, part) = checked(sent);
                assert_eq!(sequence, start.wrapping_add(payload.len() as u32));
                let (first, last) = (n == 0, n + 1 == frames.len());
                assert_eq!(flags, 0x10 | if first { 0x80 } else { 0 } | if last { 9 } else { 0 });
                assert!(last || part.len() == usize::from(mss));
                if version == 4 {
                    let ip = usize::from(headers.l2);
                    let id = |frame: &[u8]| u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
                    assert_eq!(id(sent), id(&frame).wrapping_add(n as u16));
                }
                payload.extend(part);
            }
            assert!(payload == frame[headers.payload_start()..]);
            let Rig { pool, software, .. } = rig;
            drop(software);
            assert_eq!(pool.outstanding(1), 0, "{version} {len} {mss} {most}");
        }
    }
}

#[test]
fn a_tag_beside_the_frame_gets_into_every_one() {
    let mut rig = Rig::new(256, 2048);
    let (frame, headers) = tcp(4, 3000, false);
    let mut packet = rig.packet(&frame);
    packet.request_segmentation(1000, headers);
    packet.set_vlan(0x6123);
    let frames = rig.send(packet);
    assert_eq!(frames.len(), 3);
    for frame in frames {
        assert_eq!(frame[12..18], [0x81, 0, 0x61, 0x23, 8, 0]);
        checked(&frame);
    }
}

#[test]
fn checksums_are_filled_in() {
    let mut rig = Rig::new(256, 128);
    for version in [4, 6] {
        for len in [0, 1, 2, 999, 1400] {
            let (mut frame, headers) = tcp(version, len, false);
            // The sum of the pseudo header, which is what the checksum field holds in a request.
            let at = headers.l4_start();
            let l4_len = (frame.len() - at) as u32;
            let mut sum = super::checksum::Sum::default();
            sum.add(if version == 4 { &frame[26..34] } else { &frame[22..54] });
            sum.add(&[0, 6]);
            sum.add(&l4_len.to_be_bytes());
            let pseudo = sum.checksum().map(|byte| !byte);
            frame[at + 16..at + 18].copy_from_slice(&pseudo);
            let mut packet = rig.packet(&frame);
            packet.request_checksum(headers);
            if version == 4 {
                packet.write(24, &[0x55; 2]);
                packet.add_flags(Flags::L3_CHECKSUM);
            }
            packet.set_vlan(5);
            let sent = rig.send(packet);
            assert_eq!((sent.len(), &sent[0][12..16]), (1, &[0x81, 0, 0, 5][..]));
            checked(&sent[0]);
        }
    }
}

#[test]
fn plain_packets_pass_in_order_around_others() {
    let mut rig = Rig::new(3, 2048);
    let mut burst = Burst::new(8);
    let (frame, headers) = tcp(4, 2500, false);
    for n in 0..5u8 {
        let plain = [n; 60];
        let mut packet = rig.packet(if n == 2 { &frame } else { &plain });
        if n == 2 {
            packet.request_segmentation(1000, headers);
        }
        burst.push(packet);
    }
    let mut taken = 0;
    while taken < 5 {
        taken += rig.software.tx_burst(&mut burst);
    }
    while rig.sent.lock().unwrap().len() < 7 {
        rig.software.tx_burst(&mut burst);
    }
    let sent = rig.sent.lock().unwrap();
    assert_eq!([0, 1, 5, 6].map(|n| sent[n][0]), [0, 1, 3, 4]);
    assert!(sent[2..5].iter().all(|frame| frame.len() > 500));
}

#[test]
fn requests_that_make_no_sense_become_empty_frames() {
    let mut rig = Rig::new(256, 2048);
    let (frame, good) = tcp(4, 100, false);
    for headers in [
        Headers::default(),
        Headers { l2: 13, ..good },
        Headers { l3: 19, ..good },
        Headers { l3: 65535, ..good },
        Headers { l4: 19, ..good },
        Headers { l4: 255, ..good },
        Headers { l2: 15, ..good },
    ] {
        let mut packet = rig.packet(&frame);
        packet.request_segmentation(100, headers);
        assert_eq!(rig.send(packet), [Vec::<u8>::new()], "{headers:?}");
    }
    for mss in [0, 65535] {
        let mut packet = rig.packet(&frame);
        packet.request_segmentation(mss, good);
        assert_eq!(rig.send(packet), [Vec::<u8>::new()], "{mss}");
    }
    let mut packet = rig.packet(&frame);
    packet.request_checksum(Headers { l3: 5000, ..good });
    assert_eq!(rig.send(packet), [Vec::<u8>::new()]);
    let mut packet = rig.packet(&[0x86; 60]);
    packet.add_flags(Flags::L3_CHECKSUM);
    assert_eq!(rig.send(packet), [Vec::<u8>::new()]);
    let mut packet = rig.packet(&[1; 11]);
    packet.set_vlan(1);
    assert_eq!(rig.send(packet), [Vec::<u8>::new()]);
    let Rig { pool, software, .. } = rig;
    drop(software);
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn a_dry_pool_stops_the_cutting_and_no_more() {
    let pool = Mempool::new(&MempoolConfig { buffers: 8, ..Default::default() }).unwrap();
    let sent = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let sink = Sink { most: 256, sent: sent.clone() };
    let mut software = SoftwareOffload::new(sink, Flags::default(), &pool);
    let (frame, headers) = tcp(4, 6000, false);
    let mut packet = chain([&frame[..]], || pool.alloc()).unwrap();
    packet.request_segmentation(500, headers);
    let held: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let mut burst = Burst::new(1);
    burst.push(packet);
    assert_eq!(software.tx_burst(&mut burst), 1);
    assert_eq!(sent.lock().unwrap().len(), 0);
    drop(held);
    (0..12).for_each(|_| assert_eq!(software.tx_burst(&mut burst), 0));
    assert_eq!(sent.lock().unwrap().len(), 12);
    drop(software);
    assert_eq!(pool.outstanding(1), 0);
}
