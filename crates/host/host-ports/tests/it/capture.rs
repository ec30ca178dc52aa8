//! Tests of the decorator that writes a capture file.

use std::path::Path;

use crate::common::*;
use ringpass_host_ports::capture_file::{Reader, now};
use ringpass_host_ports::{Capture, Null, cable};
use ringpass_memory::Burst;
use ringpass_port::{Port, PortConfig};

fn read(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::open(path).expect("the file opens");
    let mut records = Vec::new();
    while let Some(record) = reader.next().expect("a sound file") {
        records.push((record.nanos, record.bytes.to_vec()));
    }
    records
}

#[test]
fn all_that_passes_is_in_the_file_in_order() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    for name in ["x.pcap", "x.pcapng", "x.pcapng.zst"] {
        let path = directory.path().join(name);
        let (near, mut far) = cable("c", 512);
        let mut capture = Capture::wrap(Box::new(near), &path).expect("the port opens");
        let (mut at_capture, mut at_far, pool) = (queues(&mut capture), queues(&mut far), pool());
        let (begin, mut expected) = (now(), Vec::new());
        for round in 0..10 {
            let sent: Vec<_> = (0..100).map(|i| frame(round * 200 + i, 60 + i)).collect();
            send(&mut at_capture, &pool, &sent);
            assert!(receive_exactly(&mut at_far, 100) == sent);
            let received: Vec<_> = (100..200).map(|i| frame(round * 200 + i, 60 + i)).collect();
            send(&mut at_far, &pool, &received);
            assert!(receive_exactly(&mut at_capture, 100) == received);
            expected.extend([sent, received].concat());
        }
        assert_eq!((capture.lost(), capture.stats().tx_packets, capture.stats().rx_packets), (0, 1000, 1000));
        drop((at_capture, capture));
        let records = read(&path);
        assert!(records.iter().map(|(_, frame)| frame).eq(&expected), "{name}");
        assert!(records.is_sorted_by_key(|(nanos, _)| *nanos));
        assert!(records.iter().all(|(nanos, _)| (begin..=now()).contains(nanos)));
        assert_eq!(pool.outstanding(1), 0);
    }
}

#[test]
fn frames_of_several_buffers_and_tags_beside_them_are_in_the_file() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let path = directory.path().join("x.pcapng");
    let (near, mut far) = cable("c", 16);
    let mut capture = Capture::wrap(Box::new(near), &path).expect("the port opens");
    let (mut at_capture, mut at_far, pool) = (queues(&mut capture), queues(&mut far), pool());
    let frame = frame(1, 60_000);
    let mut packet = ringpass_port::chain([&frame[..]], || pool.alloc()).expect("buffers");
    packet.set_vlan(0x2005);
    packet.request_segmentation(1000, Default::default());
    let mut burst = Burst::new(1);
    burst.push(packet);
    assert_eq!(at_capture.tx.tx_burst(&mut burst), 1);
    // The packet on the cable is unchanged.
    assert_eq!(at_far.rx.rx_burst(&mut burst), 1);
    assert_eq!((burst[0].total_len(), burst[0].vlan(), burst[0].mss()), (60_000, Some(0x2005), Some(1000)));
    assert_eq!((capture.stats().tx_bytes, far.stats().rx_bytes, capture.lost()), (60_000, 60_000, 0));
    drop((at_capture, capture));
    let whole = [&frame[..12], &[0x81, 0, 0x20, 5], &frame[12..]].concat();
    assert!(read(&path).into_iter().map(|(_, frame)| frame).eq([whole]));
}

#[test]
fn packets_that_a_full_port_does_not_take_are_captured_once() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let path = directory.path().join("x.pcap");
    let (near, mut far) = cable("c", 16);
    let mut capture = Capture::wrap(Box::new(near), &path).expect("the port opens");
    let (mut at_capture, mut at_far, pool) = (queues(&mut capture), queues(&mut far), pool());
    let mut sending = burst(&pool, &frames(100));
    let mut received = Vec::new();
    while !sending.is_empty() {
        at_capture.tx.tx_burst(&mut sending);
        at_capture.tx.tx_burst(&mut sending);
        received.extend(receive(&mut at_far));
    }
    assert!(received == frames(100));
    drop((at_capture, capture));
    assert!(read(&path).into_iter().map(|(_, frame)| frame).eq(frames(100)));
}

#[test]
fn traffic_does_not_wait_for_the_file_and_what_is_lost_is_counted() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let path = directory.path().join("x.pcap.gz");
    let config = PortConfig { queues: 2, ..Default::default() };
    let mut capture = Capture::wrap(Box::new(Null::open(&config)), &path).expect("the port opens");
    let (mut all, pool) = (capture.take_queues(), pool());
    let mut cache = pool.cache();
    let mut sending = Burst::new(256);
    for i in 0..2000 {
        cache.alloc(&mut sending);
        sending.iter_mut().for_each(|packet| packet.set_len(1500));
        assert_eq!(all[i % 2].tx.tx_burst(&mut sending), 256);
    }
    let sent = capture.stats().tx_packets;
    assert_eq!(sent, 2000 * 256);
    let lost = capture.lost();
    assert!(capture.notes().iter().any(|note| note.contains("x.pcap.gz")));
    drop(capture);
    assert_eq!(read(&path).len() as u64 + lost, sent);
    assert!(lost > 0, "compressing half a million frames is slower than dropping them");
    // The port is gone, but its queues continue.
    cache.alloc(&mut sending);
    sending.iter_mut().for_each(|packet| packet.set_len(60));
    assert_eq!(all[0].tx.tx_burst(&mut sending), 256);
    drop((all, cache));
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let path = directory.path().join("x.pcap");
    std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
    let mut capture = Capture::wrap(Box::new(Null::open(&PortConfig::default())), &path).expect("the port opens");
    let (mut at_capture, pool) = (queues(&mut capture), pool());
    poll_until("packets to be lost", || {
        send(&mut at_capture, &pool, &frames(100));
        capture.lost() > 0
    });
    assert!(capture.notes().iter().any(|note| note.contains("are not in it")));
    assert_eq!(capture.stats().tx_drops, 0);
    let missing = Capture::wrap(Box::new(Null::open(&PortConfig::default())), Path::new("/nowhere/x.pcap"));
    assert!(missing.map(drop).expect_err("no such folder").to_string().contains("/nowhere/x.pcap"));
}
