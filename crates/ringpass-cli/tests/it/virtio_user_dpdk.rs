//! The front-end with DPDK's vhost driver as its back-end, which sends back what it receives: frames arrive in
//! both directions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::dpdk::Testpmd;
use crate::common::{folder, listened_to, wait_until};
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{Offloads, Port, PortConfig, QueuePair, Role, State, VirtioUserConfig};
use ringpass_testing::{bytes_of, frame, scattered};
use ringpass_virtio_user::VirtioUser;
use tempfile::TempDir;

/// Starts DPDK's testpmd with a vhost port, sending back what it receives.
fn testpmd(socket: &Path, options: &str, queues: usize) -> Testpmd {
    let (rx, tx) = (format!("--rxq={queues}"), format!("--txq={queues}"));
    Testpmd::start(&format!("net_vhost0,iface={}{options}", socket.display()), "io", &[&rx, &tx])
}

fn config(path: &Path, role: Role, features: &str) -> VirtioUserConfig {
    let features = Some(features.into());
    VirtioUserConfig { features, ..VirtioUserConfig::new(path, role) }
}

fn pool() -> Mempool {
    Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap()
}

/// Creates a frame that [`echo`] can tell from its own.
fn other(len: usize) -> Vec<u8> {
    let mut frame = frame(0, len);
    frame[13] = 0xb6;
    frame
}

/// Sends frames of many lengths, and checks that the same frames come back.
fn echo(queues: &mut QueuePair, pool: &Mempool, count: u32, longest: usize) {
    let len = |number: u32| 60 + number as usize * 131 % (longest - 59);
    let (mut sent, mut received, start) = (0, 0, Instant::now());
    let mut burst = Burst::new(32);
    while received < count {
        assert!(start.elapsed() < Duration::from_secs(60), "{received} of {sent} came back");
        while burst.room() > 0 && sent < count && sent - received < 64 {
            burst.push(scattered(pool, &frame(sent, len(sent)), 1900));
            sent += 1;
        }
        queues.tx.tx_burst(&mut burst);
        let mut back = Burst::new(32);
        if queues.rx.rx_burst(&mut back) == 0 {
            // The other end polls, perhaps on this CPU.
            std::thread::yield_now();
        }
        for packet in back.drain() {
            let bytes = bytes_of(&packet);
            if bytes[13] == 0xb6 {
                continue; // a late frame from before this call
            }
            assert_eq!(bytes, frame(received, len(received)), "frame {received}");
            received += 1;
        }
    }
}

/// A folder with a socket, testpmd at one end and our port at the other.
struct Pair {
    _peer: Testpmd,
    port: VirtioUser,
    queues: Vec<QueuePair>,
    pool: Mempool,
    socket: PathBuf,
    _folder: TempDir,
}

impl Pair {
    /// Opens our port with `features` as a client of testpmd's vhost port with `options`.
    fn new(features: &str, options: &str, port: &PortConfig) -> Self {
        let folder = folder();
        let socket = folder.path().join("vhost");
        let peer = testpmd(&socket, options, port.queues);
        wait_until("testpmd's socket", || listened_to(&socket));
        let pool = pool();
        let config = config(&socket, Role::Connect, features);
        let mut port = VirtioUser::open("card", &config, port, &pool).unwrap_or_else(|error| panic!("{error}"));
        let queues = port.take_queues();
        Self { _peer: peer, port, queues, pool, socket, _folder: folder }
    }

    /// Echoes frames of lengths up to `longest` on all queues.
    fn echo(&mut self, count: u32, longest: usize) {
        for queues in &mut self.queues {
            echo(queues, &self.pool, count, longest);
        }
    }

    /// Asserts that the driver's notes on the negotiation contain these parts.
    fn says(&self, parts: &[&str]) {
        let notes = self.port.notes().join("\n");
        parts.iter().for_each(|part| assert!(notes.contains(part), "no '{part}' in {notes}"));
    }
}

#[test]
fn all_kinds_of_rings_carry_frames_both_ways() {
    let plain = PortConfig::default();
    let jumbo = PortConfig { mtu: 3500, ..plain };
    for (features, port, longest, parts) in [
        ("", plain, 1514, &["packed rings, in order, indirect descriptors, event index, a buffer"][..]),
        ("-in_order", plain, 1514, &["packed rings, indirect"]),
        ("-in_order-indirect_desc-event_idx", plain, 1514, &["packed rings, a buffer"]),
        ("-packed", plain, 1514, &["split rings, in order, indirect"]),
        ("-packed-in_order-event_idx", plain, 1514, &["split rings, indirect descriptors, a buffer"]),
        ("-packed-in_order-indirect_desc", plain, 1514, &["split rings, event index"]),
        ("", jumbo, 3514, &["packed rings, in order", "mergeable buffers"]),
        ("-packed", jumbo, 3514, &["split rings, in order", "mergeable buffers"]),
        ("-in_order-indirect_desc", jumbo, 3514, &["packed rings, event index, mergeable buffers"]),
        ("-packed-in_order-indirect_desc", jumbo, 3514, &["split rings, event index, mergeable buffers"]),
        ("-mrg_rxbuf", jumbo, 3514, &["packed rings", "2 buffers for each frame"]),
        ("-mrg_rxbuf-packed-indirect_desc", jumbo, 3514, &["split rings", "2 buffers for each frame"]),
    ] {
        eprintln!("{features}, MTU {}", port.mtu);
        let mut pair = Pair::new(features, "", &port);
        pair.says(parts);
        assert!(pair.port.link().up);
        pair.echo(3000, longest);
        let stats = pair.port.stats();
        assert_eq!((stats.rx_packets, stats.tx_packets, stats.rx_drops), (3000, 3000, 0));
        assert_eq!(stats.rx_bytes, stats.tx_bytes);
    }
}

/// A segment (TSO) is passed whole, with its offload request, and comes back the same way.
#[test]
fn segments_cross_uncut() {
    let offloads = Offloads { checksum: true, tso: true, ..Default::default() };
    let port = PortConfig { offloads, ..Default::default() };
    for features in ["", "-packed", "-packed-in_order-indirect_desc"] {
        let mut pair = Pair::new(features, ",tso=1,legacy-ol-flags=1", &port);
        pair.says(&["checksums, segmentation, received segments", "mergeable buffers"]);
        pair.echo(500, 1514);
        let mut bytes = vec![0; 20_054];
        bytes[..6].copy_from_slice(&[0xff; 6]);
        bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        bytes[16..18].copy_from_slice(&(20_040u16).to_be_bytes());
        (bytes[22], bytes[23], bytes[46]) = (64, 6, 0x50);
        bytes[54..].iter_mut().zip(0u32..).for_each(|(byte, i)| *byte = (i % 251) as u8);
        let mut packet = scattered(&pair.pool, &bytes, 1900);
        let headers = ringpass_port::parse_headers(&packet).expect("TCP");
        packet.request_segmentation(1460, headers);
        let mut burst = Burst::new(1);
        burst.push(packet);
        assert_eq!(pair.queues[0].tx.tx_burst(&mut burst), 1);
        let mut back = Burst::new(1);
        wait_until("the segment", || pair.queues[0].rx.rx_burst(&mut back) > 0);
        let segment = back.pop().expect("a packet");
        let mut came = vec![0; segment.total_len()];
        segment.copy_to(&mut came).unwrap();
        assert_eq!(came.len(), bytes.len());
        assert!(came[54..] == bytes[54..]);
        assert_eq!(segment.mss(), Some(1460));
    }
}

#[test]
fn several_pairs_of_queues_are_enabled_without_a_control_queue() {
    let port = PortConfig { queues: 2, ..Default::default() };
    for features in ["", "-packed"] {
        let mut pair = Pair::new(features, ",queues=2", &port);
        assert_eq!(pair.queues.len(), 2);
        pair.echo(2000, 1514);
    }
    let pair = Pair::new("", ",queues=1", &PortConfig::default());
    let config = config(&pair.socket, Role::Connect, "");
    drop(pair.queues);
    drop(pair.port);
    let several = PortConfig { queues: 200, ..port };
    let error = VirtioUser::open("card", &config, &several, &pair.pool).err().expect("so many are not there");
    assert!(error.to_string().contains("200 queues"), "{error}");
}

#[test]
fn a_back_end_comes_to_a_server() {
    let folder = folder();
    let socket = folder.path().join("front");
    let peer = testpmd(&socket, ",client=1", 1);
    let pool = pool();
    let config = config(&socket, Role::Listen, "");
    let mut port = VirtioUser::open("card", &config, &PortConfig::default(), &pool).unwrap();
    let mut queues = port.take_queues();
    // testpmd discards frames that arrived before it started.
    settle(&mut queues[0], &pool);
    echo(&mut queues[0], &pool, 3000, 1514);
    // Our end is closed and opened again: the back-end, a client, reconnects.
    drop((queues, port));
    assert!(!socket.exists());
    let mut port = VirtioUser::open("card", &config, &PortConfig::default(), &pool).unwrap();
    let mut queues = port.take_queues();
    echo(&mut queues[0], &pool, 3000, 1514);
    drop((queues, port, peer));
    assert_eq!(pool.outstanding(1), 0, "buffers were lost");
}

#[test]
fn a_back_end_that_is_killed_comes_back_under_traffic() {
    for (features, listen) in [("", false), ("-packed", false), ("-packed-in_order-indirect_desc", true)] {
        eprintln!("{features}, listen: {listen}");
        let folder = folder();
        let socket = folder.path().join("vhost");
        let (role, client) = if listen { (Role::Listen, ",client=1") } else { (Role::Connect, "") };
        let mut peer = testpmd(&socket, client, 1);
        if !listen {
            wait_until("testpmd's socket", || listened_to(&socket));
        }
        let pool = pool();
        let mut port =
            VirtioUser::open("card", &config(&socket, role, features), &PortConfig::default(), &pool).unwrap();
        let mut queues = port.take_queues();
        settle(&mut queues[0], &pool);
        echo(&mut queues[0], &pool, 1000, 1514);
        for round in 1..=2 {
            flood(&mut queues[0], &pool, Duration::from_millis(300));
            drop(peer);
            flood(&mut queues[0], &pool, Duration::from_millis(300));
            wait_until("the link's end", || !port.link().up);
            if !listen {
                std::fs::remove_file(&socket).unwrap();
            }
            peer = testpmd(&socket, client, 1);
            wait_until("the link", || port.link().up);
            settle(&mut queues[0], &pool);
            echo(&mut queues[0], &pool, 1000, 1514);
            assert!(matches!(port.state(), State::Running), "{:?}", port.state());
            assert!(port.extended().contains(&("reconnects", round)));
        }
        drop((queues, port));
        assert_eq!(pool.outstanding(1), 0, "buffers were lost");
    }
}

/// Sends as many frames as there is room for, and takes what comes back.
fn flood(queues: &mut QueuePair, pool: &Mempool, time: Duration) {
    let (start, mut burst, mut back) = (Instant::now(), Burst::new(32), Burst::new(32));
    while start.elapsed() < time {
        while burst.room() > 0 {
            burst.push(scattered(pool, &other(200), 1900));
        }
        queues.tx.tx_burst(&mut burst);
        queues.rx.rx_burst(&mut back);
        back.drain().for_each(|packet| assert_eq!(packet.total_len(), 200));
    }
}

/// Receives until no more frames come, and until a frame of another length has passed.
fn settle(queues: &mut QueuePair, pool: &Mempool) {
    let (start, mut burst, mut back) = (Instant::now(), Burst::new(1), Burst::new(32));
    let (mut came, mut last) = (false, Instant::now());
    while !came || last.elapsed() < Duration::from_millis(300) {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing comes back");
        if burst.is_empty() {
            burst.push(scattered(pool, &other(100), 1900));
        }
        if !came {
            queues.tx.tx_burst(&mut burst);
        }
        queues.rx.rx_burst(&mut back);
        for packet in back.drain() {
            came |= packet.total_len() == 100;
            last = Instant::now();
        }
    }
}
