//! Tests with the kernel's TCP through pairs of ports: with and without checksum and segmentation offload, over
//! IPv4 and IPv6, and with jumbo frames of several buffers. Also VLAN tags in the metadata.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use ringpass_host_ports::{PacketSocket, Tap, Xdp};
use ringpass_memory::{Burst, Headers, L4, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{Offloads, Port, PortConfig, Stats, XdpConfig, chain};

const NONE: Offloads = Offloads { checksum: false, hash: false, vlan: false, tso: false };
const CHECKSUM: Offloads = Offloads { checksum: true, ..NONE };
const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tap,
    Packet,
    Xdp,
}

/// A network stack of the kernel with one interface, and the port at the other side of that.
struct End {
    host: Namespace,
    interface: &'static str,
    port: Box<dyn Port>,
    /// The namespace of the port's own interface, if it is not the host's.
    _middle: Option<Namespace>,
}

fn end((kind, offloads): (Kind, Offloads), mtu: usize, pool: &Mempool) -> End {
    // The rings hold the whole content: no frame is lost, however late they are emptied.
    let config = PortConfig { offloads, mtu, rx_ring: 4096, ..Default::default() };
    let mtu = mtu.to_string();
    match kind {
        Kind::Tap => {
            let host = Namespace::new();
            let port = Box::new(host.enter(|| Tap::open("rp0", &config, pool)).expect("a TAP"));
            End { host, interface: "rp0", port, _middle: None }
        }
        Kind::Packet | Kind::Xdp => {
            let (host, middle) = veth();
            host.ip(&["link", "set", "va", "mtu", &mtu]);
            middle.ip(&["link", "set", "vb", "mtu", &mtu]);
            if !offloads.tso {
                host.run(&["ethtool", "-K", "va", "tso", "off", "gso", "off"]);
            }
            let port: Box<dyn Port> = if let Kind::Packet = kind {
                Box::new(middle.enter(|| PacketSocket::open("vb", &config, pool)).expect("a packet socket"))
            } else {
                // XDP sockets receive frames as they are, without a word on their checksums.
                host.run(&["ethtool", "-K", "va", "tx", "off"]);
                let address = XdpConfig { interface: "vb".into(), ..XdpConfig::default() };
                Box::new(middle.enter(|| Xdp::open(&address, &config, pool)).expect("an XDP socket"))
            };
            End { host, interface: "va", port, _middle: Some(middle) }
        }
    }
}

impl End {
    /// Gives the interface an address.
    fn configure(&self, number: u8, network: Network) {
        let address = match network {
            Network::V4 => format!("10.9.0.{number}/24"),
            Network::V6 => {
                let file = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.interface);
                self.host.enter(|| std::fs::write(&file, "0").expect("IPv6 is switched on in a namespace"));
                format!("fd00::{number}/64")
            }
        };
        let unique: &[&str] = if network == Network::V6 { &["nodad"] } else { &[] };
        self.host.ip(&[&["addr", "add", &address, "dev", self.interface], unique].concat());
    }

    /// Returns how many wrong TCP checksums the kernel has found, over either IP version.
    fn checksum_errors(&self) -> u64 {
        let text = self.host.run(&["cat", "/proc/net/snmp"]);
        let lines: Vec<Vec<&str>> =
            text.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' ').collect()).collect();
        let column = lines[0].iter().position(|&name| name == "InCsumErrors").expect("the kernel counts them");
        lines[1][column].parse().expect("a number")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Network {
    V4,
    V6,
}

/// Sends content there and back over TCP. Returns the statistics of both ports.
fn echo(left: (Kind, Offloads), right: (Kind, Offloads), network: Network, mtu: usize) -> [Stats; 2] {
    println!("{left:?} {right:?} {network:?} {mtu}");
    let pool = Mempool::new(&MempoolConfig { buffers: 16384, ..Default::default() }).expect("memory for a test");
    let (mut left, mut right) = (end(left, mtu, &pool), end(right, mtu, &pool));
    left.configure(1, network);
    right.configure(2, network);
    let stop = AtomicBool::new(false);
    let (at_left, at_right) = (queues(&mut *left.port), queues(&mut *right.port));
    let content: Vec<u8> = (0..4u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let address: SocketAddr = match network {
        Network::V6 => "[fd00::2]:5000",
        Network::V4 => "10.9.0.2:5000",
    }
    .parse()
    .expect("an address");
    std::thread::scope(|scope| {
        scope.spawn(|| forward(at_left, at_right, &stop));
        let listener = right.host.enter(|| TcpListener::bind(address)).expect("a TCP socket");
        let (content, limit) = (&content, Duration::from_secs(60));
        let server = scope.spawn(move || {
            let mut stream = accept(&listener);
            let mut received = vec![0; content.len()];
            stream.read_exact(&mut received).expect("all bytes arrive");
            stream.write_all(&received).expect("they are sent back");
            received
        });
        let stream = left.host.enter(|| TcpStream::connect_timeout(&address, limit));
        let echoed = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(limit))?;
            let mut echoed = vec![0; content.len()];
            stream.write_all(content).and_then(|()| stream.read_exact(&mut echoed)).map(|()| echoed)
        });
        let received = server.join();
        stop.store(true, Ordering::Relaxed);
        assert!(echoed.expect("a connection, and all bytes back") == *content);
        assert!(received.expect("the server does not panic") == *content);
    });
    assert_eq!((left.checksum_errors(), right.checksum_errors()), (0, 0), "checksums that the kernel refused");
    [left.port.stats(), right.port.stats()]
}

/// Returns whether segments were received: packets, including acknowledgements, were longer on average than any
/// frame.
fn segments(stats: &Stats) -> bool {
    stats.rx_bytes / stats.rx_packets > 1514
}

#[test]
fn segments_cross_between_taps() {
    for network in [Network::V4, Network::V6] {
        let stats = echo((Kind::Tap, ALL), (Kind::Tap, ALL), network, 1500);
        assert!(stats.iter().all(segments), "{stats:?}");
        assert_eq!((stats[0].rx_bytes, stats[0].rx_packets), (stats[1].tx_bytes, stats[1].tx_packets));
    }
}

#[test]
fn segments_are_cut_for_a_port_without_offloads() {
    // The far kernel verifies every checksum made here, as it is not told that it may trust them.
    for (right, network) in
        [(Kind::Tap, Network::V4), (Kind::Tap, Network::V6), (Kind::Packet, Network::V4), (Kind::Packet, Network::V6)]
    {
        let [left, right] = echo((Kind::Tap, ALL), (right, NONE), network, 1500);
        assert!(segments(&left) && !segments(&right), "{left:?} {right:?}");
        assert!(right.tx_packets > left.rx_packets && right.tx_bytes > left.rx_bytes, "{left:?} {right:?}");
        assert_eq!(right.tx_drops, 0);
    }
}

#[test]
fn segments_cross_packet_sockets() {
    for (left, network) in [(Kind::Packet, Network::V4), (Kind::Packet, Network::V6), (Kind::Tap, Network::V4)] {
        let [left, right] = echo((left, ALL), (Kind::Packet, ALL), network, 1500);
        assert!(segments(&left) && segments(&right), "{left:?} {right:?}");
        assert_eq!((left.rx_drops, right.rx_drops), (0, 0));
    }
}

#[test]
fn checksums_alone_may_be_left_open() {
    for right in [(Kind::Tap, CHECKSUM), (Kind::Packet, CHECKSUM), (Kind::Packet, NONE)] {
        let stats = echo((Kind::Tap, CHECKSUM), right, Network::V4, 1500);
        assert!(!stats.iter().any(segments), "{stats:?}");
    }
}

#[test]
fn checksums_are_left_to_the_kernel_by_xdp_sockets() {
    for network in [Network::V4, Network::V6] {
        echo((Kind::Tap, CHECKSUM), (Kind::Xdp, CHECKSUM), network, 1500);
    }
}

#[test]
fn jumbo_frames_lie_in_several_buffers() {
    for (left, right, network) in [
        ((Kind::Tap, NONE), (Kind::Tap, NONE), Network::V4),
        ((Kind::Tap, NONE), (Kind::Packet, NONE), Network::V6),
        ((Kind::Packet, CHECKSUM), (Kind::Packet, NONE), Network::V4),
        ((Kind::Tap, ALL), (Kind::Packet, NONE), Network::V6),
    ] {
        let stats = echo(left, right, network, 9000);
        assert!(stats.iter().all(|stats| stats.tx_drops + stats.rx_drops == 0), "{stats:?}");
        assert!(stats[1].rx_bytes / stats[1].rx_packets > 1600, "{stats:?}");
    }
}

#[test]
fn a_tag_beside_the_frame_is_the_one_on_the_wire() {
    let (a, b) = veth();
    let open = |namespace: &Namespace, name: &str, offloads| {
        let config = PortConfig { offloads, ..Default::default() };
        namespace.enter(|| PacketSocket::open(name, &config, &pool())).expect("a packet socket")
    };
    let (mut wire, mut port) = (open(&a, "va", NONE), open(&b, "vb", Offloads { vlan: true, ..NONE }));
    let (mut at_wire, mut at_port, pool) = (queues(&mut wire), queues(&mut port), pool());
    for (tags, beside) in [
        (&[0x81, 0, 0x60, 42][..], Some(0x602a)),
        (&[0x81, 0, 0, 0], Some(0)),
        (&[0x81, 0, 0, 1, 0x81, 0, 0, 2], Some(1)),
        // A kind of tag that a packet's metadata cannot hold.
        (&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2], None),
        (&[], None),
    ] {
        let mut frame = frame(7, 100);
        frame.splice(12..12, tags.iter().copied());
        send(&mut at_wire, &pool, std::slice::from_ref(&frame));
        let mut burst = Burst::new(1);
        poll_until("the frame", || at_port.rx.rx_burst(&mut burst) > 0);
        assert_eq!(burst[0].vlan(), beside);
        let mut rest = frame.clone();
        if beside.is_some() {
            rest.drain(12..16);
        }
        assert!(burst[0].to_vec() == rest);
        assert_eq!(at_port.tx.tx_burst(&mut burst), 1);
        assert_eq!(receive_exactly(&mut at_wire, 1), [frame]);
    }
}

#[test]
fn a_segment_keeps_all_that_is_asked_of_it_through_the_kernel() {
    let pool = pool();
    let mut end = end((Kind::Tap, ALL), 1500, &pool);
    let config = PortConfig { offloads: ALL, ..Default::default() };
    let mut behind = end.host.enter(|| PacketSocket::open("rp0", &config, &pool)).expect("a packet socket");
    let (mut at_tap, mut at_socket) = (queues(&mut *end.port), queues(&mut behind));
    let mut frame = frame(1, 20_054);
    // IPv4 with don't fragment, and TCP; from 10.0.0.1 to 10.0.0.2.
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0x4e, 0x48, 0, 1, 0x40, 0, 64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[46..48].copy_from_slice(&[0x50, 0x18]);
    let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
    for (tag, mss) in [(None, Some(1000)), (Some(0x6005), Some(1460)), (Some(5), None)] {
        let len = if mss.is_some() { frame.len() } else { 1000 };
        let mut packet = chain([&frame[..len]], || pool.alloc()).expect("buffers");
        match mss {
            Some(mss) => packet.request_segmentation(mss, headers),
            None => packet.request_checksum(headers),
        }
        if let Some(tag) = tag {
            packet.set_vlan(tag);
        }
        let mut burst = Burst::new(1);
        burst.push(packet);
        assert_eq!(at_tap.tx.tx_burst(&mut burst), 1);
        poll_until("the packet", || at_socket.rx.rx_burst(&mut burst) > 0);
        let packet = &burst[0];
        assert_eq!((packet.vlan(), packet.mss(), packet.headers()), (tag, mss, Some(headers)));
        assert!(packet.segments().flat_map(|segment| segment.to_vec()).eq(frame[..len].iter().copied()));
    }
    assert_eq!((end.port.stats().tx_packets, end.port.stats().tx_drops), (3, 0));
}

#[test]
fn long_frames_pass_in_any_pieces() {
    let (a, b) = veth();
    for (namespace, name) in [(&a, "va"), (&b, "vb")] {
        namespace.ip(&["link", "set", name, "mtu", "9710"]);
    }
    let config = PortConfig { mtu: 9710, ..Default::default() };
    let pool = Mempool::new(&MempoolConfig { size: 512, buffers: 8192, ..Default::default() }).expect("memory");
    let open = |namespace: &Namespace, name: &str| namespace.enter(|| PacketSocket::open(name, &config, &pool));
    let (mut port_a, mut port_b) = (open(&a, "va").expect("a socket"), open(&b, "vb").expect("a socket"));
    let mut tap = a.enter(|| Tap::open("rp0", &config, &pool)).expect("a TAP");
    let mut behind = open(&a, "rp0").expect("a packet socket");
    let pairs = [(queues(&mut port_a), queues(&mut port_b)), (queues(&mut tap), queues(&mut behind))];
    for (mut one, mut other) in pairs {
        for round in 0..2 {
            for len in [60, 511, 512, 513, 1024, 1514, 9000, 9723, 9724] {
                let frame = frame(len, len);
                let mut burst = Burst::new(MAX_BATCH);
                burst.push(chain([&frame[..]], || pool.alloc()).expect("buffers"));
                assert_eq!(one.tx.tx_burst(&mut burst), 1);
                let mut received = Burst::new(1);
                poll_until("the frame", || other.rx.rx_burst(&mut received) > 0);
                assert_eq!(received[0].segments().count(), len.div_ceil(512));
                assert_eq!(received[0].segments().flat_map(|segment| segment.to_vec()).collect::<Vec<_>>(), frame);
            }
            // Too long, in any number of buffers.
            let mut burst = Burst::new(1);
            burst.push(chain([&frame(1, 9725)[..]], || pool.alloc()).expect("buffers"));
            assert_eq!(one.tx.tx_burst(&mut burst), 1);
            let mut received = Burst::new(1);
            assert_eq!(other.rx.rx_burst(&mut received), 0, "round {round}");
            std::mem::swap(&mut one, &mut other);
        }
    }
    assert_eq!((port_a.stats().tx_drops, tap.stats().tx_drops), (1, 1));
}
