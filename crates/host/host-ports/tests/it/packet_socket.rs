//! Tests of packet sockets against the kernel, over veth pairs between network namespaces.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use ringpass_host_ports::PacketSocket;
use ringpass_port::{Port, PortConfig, State};

fn open(namespace: &Namespace, interface: &str, config: &PortConfig) -> PacketSocket {
    namespace.enter(|| PacketSocket::open(interface, config, &pool())).expect("a packet socket opens")
}

#[test]
fn ten_thousand_frames_cross_byte_for_byte_in_both_directions() {
    let (a, b) = veth();
    let (mut port_a, mut port_b) = (open(&a, "va", &PortConfig::default()), open(&b, "vb", &PortConfig::default()));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let (pool, frames) = (pool(), frames(10_000));
    for some in frames.chunks(100) {
        send(&mut at_a, &pool, some);
        assert!(receive_exactly(&mut at_b, some.len()) == some);
        send(&mut at_b, &pool, some);
        assert!(receive_exactly(&mut at_a, some.len()) == some);
    }
    let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
    for port in [&mut port_a, &mut port_b] {
        let stats = port.stats();
        assert_eq!((stats.rx_packets, stats.rx_bytes, stats.rx_drops), (10_000, bytes, 0));
        assert_eq!((stats.tx_packets, stats.tx_bytes, stats.tx_drops), (10_000, bytes, 0));
        assert!(matches!(port.state(), State::Running));
        // The kernel reports a new link with some delay.
        poll_until("the link", || port.link().up);
    }
    drop((at_a, at_b));
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn vlan_tags_that_the_kernel_cut_out_are_put_back() {
    let (a, b) = veth();
    let (mut port_a, mut port_b) = (open(&a, "va", &PortConfig::default()), open(&b, "vb", &PortConfig::default()));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let tagged = |tag: &[u8], len| {
        let mut frame = frame(7, len);
        frame.splice(12..12, tag.iter().copied());
        frame
    };
    let frames = [
        tagged(&[0x81, 0, 0x60, 42], 60),
        tagged(&[0x81, 0, 0, 0], 60),
        tagged(&[0x88, 0xa8, 0xef, 0xff], 100),
        tagged(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2], 100),
        tagged(&[0x81, 0, 0, 1], 1514),
    ];
    send(&mut at_a, &pool(), &frames);
    assert_eq!(receive_exactly(&mut at_b, frames.len()), frames);
}

#[test]
fn checksums_that_the_kernel_left_to_the_card_are_completed() {
    let (a, b) = veth();
    let mut port = open(&b, "vb", &PortConfig::default());
    let mut at_b = queues(&mut port);
    a.ip(&["addr", "add", "10.9.0.1/24", "dev", "va"]);
    a.ip(&["neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", "va"]);
    a.enter(|| {
        let socket = UdpSocket::bind("10.9.0.1:0").expect("a UDP socket");
        for len in [0, 1, 18, 999, 1472] {
            socket.send_to(&vec![0xa5; len], "10.9.0.2:9").expect("a datagram is sent");
        }
    });
    let frames = receive_exactly(&mut at_b, 5);
    for (frame, len) in frames.iter().zip([0, 1, 18, 999, 1472]) {
        assert_eq!((frame[23], frame.len()), (17, 42 + len));
        assert_ne!(frame[40..42], [0, 0]);
        assert_eq!(l4_sum(frame), 0xffff, "checksum of a datagram of {len} bytes");
    }
}

#[test]
fn the_kernels_tcp_runs_through_two_packet_sockets() {
    let ((a, left), (b, right)) = (veth(), veth());
    for (namespace, address) in [(&a, "10.9.0.1/24"), (&b, "10.9.0.2/24")] {
        namespace.ip(&["addr", "add", address, "dev", "va"]);
        namespace.run(&["ethtool", "-K", "va", "tso", "off", "gso", "off"]);
    }
    // The rings hold the whole content: no frame is lost, however late they are emptied.
    let config = PortConfig { rx_ring: 4096, ..Default::default() };
    let (mut port_left, mut port_right) = (open(&left, "vb", &config), open(&right, "vb", &config));
    let (at_left, at_right) = (queues(&mut port_left), queues(&mut port_right));
    let stop = AtomicBool::new(false);
    let content: Vec<u8> = (0..4u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| forward(at_left, at_right, &stop));
        let listener = b.enter(|| TcpListener::bind("10.9.0.2:5000")).expect("a TCP socket");
        let content = &content;
        let server = scope.spawn(move || {
            let mut stream = accept(&listener);
            let mut received = vec![0; content.len()];
            stream.read_exact(&mut received).expect("all bytes arrive");
            stream.write_all(&received).expect("they are sent back");
            received
        });
        let address = "10.9.0.2:5000".parse().expect("an address");
        let limit = Duration::from_secs(60);
        let stream = a.enter(|| TcpStream::connect_timeout(&address, limit));
        let echoed = stream.map(|mut stream| {
            stream.set_read_timeout(Some(limit)).expect("a timeout");
            let mut echoed = vec![0; content.len()];
            stream.write_all(content).and_then(|()| stream.read_exact(&mut echoed)).map(|()| echoed)
        });
        let received = server.join();
        stop.store(true, Ordering::Relaxed);
        assert!(received.expect("the server does not panic") == *content);
        assert!(echoed.expect("a connection").expect("all bytes come back") == *content);
    });
    let stats = port_left.stats();
    assert!(stats.rx_packets > 3000 && stats.rx_drops == 0, "{stats:?}");
}

#[test]
fn flows_spread_over_queues_and_every_frame_arrives_once() {
    let (a, b) = veth();
    let config = PortConfig { queues: 3, ..Default::default() };
    let mut port_b = open(&b, "vb", &config);
    let mut port_a = open(&a, "va", &config);
    let (pool, mut at_a, mut at_b) = (pool(), port_a.take_queues(), port_b.take_queues());
    assert_eq!((at_a.len(), at_b.len()), (3, 3));
    let frames: Vec<Vec<u8>> = (0..300u16)
        .map(|flow| {
            let [high, low] = flow.to_be_bytes();
            let mut frame = frame(flow.into(), 60);
            frame[12..34]
                .copy_from_slice(&[8, 0, 0x45, 0, 0, 46, high, low, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let header = !sum(&[&frame[14..34]]);
            frame[24..26].copy_from_slice(&header.to_be_bytes());
            frame[34..42].copy_from_slice(&[high, low, 0, 9, 0, 26, 0, 0]);
            frame
        })
        .collect();
    frames.chunks(100).zip(&mut at_a).for_each(|(some, queues)| send(queues, &pool, some));
    let mut received = HashSet::new();
    let mut counts = [0; 3];
    poll_until("300 frames", || {
        for (queues, count) in at_b.iter_mut().zip(&mut counts) {
            for frame in receive(queues) {
                assert!(received.insert(frame), "a frame arrives twice");
                *count += 1;
            }
        }
        received.len() == 300
    });
    assert_eq!(received, frames.into_iter().collect());
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    assert_eq!((port_b.stats().rx_packets, port_a.stats().tx_packets), (300, 300));
}

#[test]
fn own_frames_of_the_kernel_are_not_received_and_strangers_only_when_promiscuous() {
    let (a, b) = veth();
    let config = PortConfig { promiscuous: false, ..Default::default() };
    let (mut port_a, mut port_b) = (open(&a, "va", &config), open(&b, "vb", &config));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    a.ip(&["addr", "add", "10.9.0.1/24", "dev", "va"]);
    a.ip(&["neigh", "add", "10.9.0.2", "lladdr", &port_b.mac().to_string(), "dev", "va"]);
    a.enter(|| UdpSocket::bind("10.9.0.1:0").and_then(|socket| socket.send_to(b"x", "10.9.0.2:9"))).expect("sent");
    assert_eq!(receive_exactly(&mut at_b, 1)[0][..6], port_b.mac().0);

    let pool = pool();
    let mut stranger = frame(1, 60);
    stranger[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    send(&mut at_a, &pool, &[stranger.clone(), frame(2, 60)]);
    assert_eq!(receive_exactly(&mut at_b, 1), [frame(2, 60)]);
    port_b.set_promiscuous(true).expect("promiscuous mode");
    assert!(b.ip(&["-d", "link", "show", "vb"]).contains("promiscuity 1"));
    send(&mut at_a, &pool, &[stranger.clone(), frame(2, 60)]);
    assert_eq!(receive_exactly(&mut at_b, 2), [stranger, frame(2, 60)]);
    port_b.set_promiscuous(false).expect("no promiscuous mode");
    assert!(b.ip(&["-d", "link", "show", "vb"]).contains("promiscuity 0"));
    assert_eq!(receive(&mut at_a).len(), 0);
    assert_eq!(port_b.stats().rx_drops, 0);
}

#[test]
fn what_cannot_be_received_or_sent_is_counted() {
    let (a, b) = veth();
    let config = PortConfig { rx_ring: 64, ..Default::default() };
    let (mut port_a, mut port_b) = (open(&a, "va", &config), open(&b, "vb", &config));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let pool = pool();
    // In parts, because the kernel's queue between the two interfaces holds 1,000 frames for all interfaces
    // together.
    for (some, sent) in frames(1000).chunks(100).zip((100..).step_by(100)) {
        send(&mut at_a, &pool, some);
        poll_until("the ring to overflow", || port_b.stats().rx_drops >= sent - 64);
    }
    let received = receive_exactly(&mut at_b, 64);
    assert_eq!(received, frames(64));
    assert_eq!((port_b.stats().rx_packets, port_b.stats().rx_drops), (64, 1000 - 64));

    send(&mut at_a, &pool, &[frame(1, 1515), vec![1; 13], Vec::new(), frame(2, 1514)]);
    assert_eq!(receive_exactly(&mut at_b, 1), [frame(2, 1514)]);
    assert_eq!((port_a.stats().tx_packets, port_a.stats().tx_drops), (1001, 3));

    // The interface's MTU is smaller than the port's: the kernel rejects one frame, and those behind it are
    // sent.
    a.ip(&["link", "set", "va", "mtu", "1000"]);
    send(&mut at_a, &pool, &[frame(3, 1014), frame(4, 1300), frame(5, 60)]);
    assert_eq!(receive_exactly(&mut at_b, 2), [frame(3, 1014), frame(5, 60)]);
    assert_eq!(port_a.stats().tx_drops, 4);
    drop((at_a, at_b));
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn an_interface_may_go_down_but_deleted_it_is_gone() {
    let (a, b) = veth();
    let (mut port_a, mut port_b) = (open(&a, "va", &PortConfig::default()), open(&b, "vb", &PortConfig::default()));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let pool = pool();
    a.ip(&["link", "set", "va", "down"]);
    assert!(!port_a.link().up && matches!(port_a.state(), State::Running));
    send(&mut at_a, &pool, &[frame(1, 60)]);
    assert_eq!(port_a.stats().tx_drops, 1);
    a.ip(&["link", "set", "va", "up"]);
    poll_until("the link", || port_a.link().up);
    send(&mut at_a, &pool, &[frame(2, 60)]);
    assert_eq!(receive_exactly(&mut at_b, 1), [frame(2, 60)]);

    a.ip(&["link", "del", "va"]);
    for (port, queues) in [(&mut port_a, &mut at_a), (&mut port_b, &mut at_b)] {
        poll_until("the port to be gone", || matches!(port.state(), State::Gone(_)));
        assert!(!port.link().up);
        send(queues, &pool, &[frame(3, 60)]);
        assert_eq!(receive(queues).len(), 0);
        assert!(port.stats().tx_drops >= 1);
    }
}

#[test]
fn errors_name_cause_and_remedy() {
    let namespace = Namespace::new();
    let error = |interface: &str| {
        let opened = namespace.enter(|| PacketSocket::open(interface, &PortConfig::default(), &pool()).map(drop));
        opened.expect_err(interface).to_string()
    };
    assert!(error("nothing").contains("no such interface"));
    assert!(error("a-name-that-is-too-long").contains("packet:a-name"));
    namespace.ip(&["tuntap", "add", "t", "mode", "tun"]);
    assert!(error("t").contains("no Ethernet interface"));
    let denied = namespace.enter(|| {
        without_capabilities();
        PacketSocket::open("lo", &PortConfig::default(), &pool()).map(drop).expect_err("not permitted").to_string()
    });
    assert!(denied.contains("CAP_NET_RAW") && !denied.contains('\n'), "{denied}");
}
