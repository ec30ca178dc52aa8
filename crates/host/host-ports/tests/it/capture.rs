//! Tests of the decorator that writes a capture file.

use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::*;
use ringpass_host_ports::capture_file::{Reader, now};
use ringpass_host_ports::{Capture, LiveCapture, Null, cable};
use ringpass_memory::Burst;
use ringpass_port::{Port, PortConfig, QueuePair};

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

/// Returns the frames of a capture.
fn frames_in(stream: &[u8]) -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let path = directory.path().join("x.pcapng");
    std::fs::write(&path, stream).expect("room");
    read(&path).into_iter().map(|(_, frame)| frame).collect()
}

/// Reads a stream to its end, on a thread.
fn reader(mut stream: UnixStream) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("the capture's end");
        all
    })
}

#[test]
fn queues_in_use_are_wrapped_and_unwrapped_again() {
    let (mut near, mut far) = cable("c", 512);
    let (mut at_near, mut at_far, pool) = (queues(&mut near), queues(&mut far), pool());
    let (own, other) = UnixStream::pair().expect("sockets");
    let place =
        |pair: &QueuePair| (std::ptr::from_ref(&*pair.rx).cast::<()>(), std::ptr::from_ref(&*pair.tx).cast::<()>());
    let before = place(&at_near);
    send(&mut at_near, &pool, &[frame(1, 60)]);
    assert!(receive_exactly(&mut at_far, 1) == [frame(1, 60)]);

    let capture = LiveCapture::start(other.into(), "near", Vec::new()).expect("a capture");
    at_near = QueuePair { rx: capture.wrap_rx()(at_near.rx), tx: capture.wrap_tx()(at_near.tx) };
    let read = reader(own.try_clone().expect("a socket"));
    let mut expected = Vec::new();
    for round in 0..10 {
        let sent: Vec<_> = (0..100).map(|i| frame(round * 200 + i, 60 + i)).collect();
        send(&mut at_near, &pool, &sent);
        assert!(receive_exactly(&mut at_far, 100) == sent);
        let received: Vec<_> = (100..200).map(|i| frame(round * 200 + i, 60 + i)).collect();
        send(&mut at_far, &pool, &received);
        assert!(receive_exactly(&mut at_near, 100) == received);
        expected.extend([sent, received].concat());
    }
    // The reader says that it wants no more, and gets the rest.
    own.shutdown(Shutdown::Write).expect("it is connected");
    poll_until("the capture's end", || capture.has_ended());
    at_near = QueuePair { rx: capture.unwrap_rx()(at_near.rx), tx: capture.unwrap_tx()(at_near.tx) };
    // They are the same as before, and others are left alone.
    assert_eq!(place(&at_near), before);
    at_far = QueuePair { rx: capture.unwrap_rx()(at_far.rx), tx: capture.unwrap_tx()(at_far.tx) };
    drop(capture);
    let stream = read.join().expect("the capture");
    assert!(frames_in(&stream) == expected);
    assert!(stream.windows(4).any(|bytes| bytes == b"near"), "the interface has a name");
    send(&mut at_near, &pool, &[frame(2, 60)]);
    assert!(receive_exactly(&mut at_far, 1) == [frame(2, 60)]);
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn a_reader_that_reads_nothing_holds_up_nobody() {
    let mut port = Null::open(&PortConfig::default());
    let (mut at_port, pool) = (queues(&mut port), pool());
    let (own, other) = UnixStream::pair().expect("sockets");
    let capture = LiveCapture::start(other.into(), "null", Vec::new()).expect("a capture");
    at_port.tx = capture.wrap_tx()(at_port.tx);
    for _ in 0..1000 {
        send(&mut at_port, &pool, &frames(100));
    }
    assert_eq!(port.stats().tx_packets, 100_000);
    assert!(!capture.has_ended());
    // It has what fitted into the socket, and is told how much it has not.
    let read = reader(own.try_clone().expect("a socket"));
    std::thread::sleep(Duration::from_millis(300));
    own.shutdown(Shutdown::Write).expect("it is connected");
    poll_until("the capture's end", || capture.has_ended());
    drop(capture);
    let stream = read.join().expect("the capture");
    let missing = 100_000 - frames_in(&stream).len() as u64;
    assert!(missing > 0);
    // The last block: interface statistics (5), whose first option is the number of frames, the second how many are missing.
    let last = &stream[stream.len() - 52..];
    let number = |at: usize| u64::from_le_bytes(last[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!((&last[..4], number(24), number(36)), (&5_u32.to_le_bytes()[..], 100_000, missing));
}

#[test]
fn a_reader_that_leaves_ends_the_capture_and_what_is_no_socket_begins_none() {
    let mut port = Null::open(&PortConfig::default());
    let (mut at_port, pool) = (queues(&mut port), pool());
    let (own, other) = UnixStream::pair().expect("sockets");
    let filters = vec!["udp:53".parse().expect("a filter")];
    let capture = LiveCapture::start(other.into(), "null", filters).expect("a capture");
    at_port.tx = capture.wrap_tx()(at_port.tx);
    drop(own);
    poll_until("the capture's end", || capture.has_ended());
    send(&mut at_port, &pool, &frames(100));
    drop(capture);
    // A queue whose capture is over before it was unwrapped still sends.
    send(&mut at_port, &pool, &frames(100));
    assert_eq!(port.stats().tx_packets, 200);

    let file = tempfile::tempfile().expect("a file");
    let refused = LiveCapture::start(file.into(), "null", Vec::new()).map(drop).expect_err("a file");
    assert!(refused.to_string().contains("stream socket"), "{refused}");
}

#[test]
fn filters_see_tags_beside_frames_and_frames_of_several_buffers() {
    let mut port = Null::open(&PortConfig::default());
    let (mut at_port, pool) = (queues(&mut port), pool());
    let (own, other) = UnixStream::pair().expect("sockets");
    let filters = ["vlan:5", "dst-mac:02:00:00:00:00:07"].map(|filter| filter.parse().expect("a filter")).into();
    let capture = LiveCapture::start(other.into(), "null", filters).expect("a capture");
    at_port.tx = capture.wrap_tx()(at_port.tx);
    let mut to_seven = frame(7, 60);
    to_seven[..6].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
    let tagged = frame(1, 5000);
    let mut burst = Burst::new(4);
    for (bytes, tag) in [(&frame(0, 60), None), (&tagged, Some(0x2005)), (&frame(2, 100), Some(6)), (&to_seven, None)] {
        let mut packet = ringpass_port::chain([&bytes[..]], || pool.alloc()).expect("buffers");
        tag.into_iter().for_each(|tag| packet.set_vlan(tag));
        burst.push(packet);
    }
    assert_eq!(at_port.tx.tx_burst(&mut burst), 4);
    own.shutdown(Shutdown::Write).expect("it is connected");
    poll_until("the capture's end", || capture.has_ended());
    drop(capture);
    let stream = reader(own).join().expect("the capture");
    let whole = [&tagged[..12], &[0x81, 0, 0x20, 5], &tagged[12..]].concat();
    assert!(frames_in(&stream) == [whole, to_seven]);
}
