//! Tests of XDP sockets against the kernel, over veth pairs between network namespaces.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use ringpass_host_ports::{PacketSocket, Tap, Xdp};
use ringpass_memory::{Burst, Headers, L4, Mempool, MempoolConfig, PAGE_BUFFER_SIZE};
use ringpass_port::{
    Error, FrameFilter, Offloads, Port, PortConfig, QueuePair, State, WakeSource, XdpConfig, XdpMode, chain,
};
use ringpass_testing::bytes_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MODES: [Option<XdpMode>; 3] = [None, Some(XdpMode::Native), Some(XdpMode::Generic)];

fn try_open(
    namespace: &Namespace,
    interface: &str,
    mode: Option<XdpMode>,
    config: &PortConfig,
    pool: &Mempool,
) -> Result<Xdp, Error> {
    let address = XdpConfig { interface: interface.into(), mode, ..Default::default() };
    namespace.enter(|| Xdp::open(&address, config, pool))
}

fn open_filtered(
    namespace: &Namespace,
    interface: &str,
    mode: XdpMode,
    filters: &[FrameFilter],
    pool: &Mempool,
) -> Xdp {
    let address =
        XdpConfig { interface: interface.into(), mode: Some(mode), filters: filters.into(), ..Default::default() };
    namespace.enter(|| Xdp::open(&address, &PortConfig::default(), pool)).unwrap_or_else(|error| panic!("{error}"))
}

fn open(namespace: &Namespace, interface: &str, mode: Option<XdpMode>, pool: &Mempool) -> Xdp {
    try_open(namespace, interface, mode, &PortConfig::default(), pool).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns whether an interface has an XDP program.
fn has_program(namespace: &Namespace, interface: &str) -> bool {
    namespace.ip(&["-d", "link", "show", interface]).contains("prog/xdp")
}

#[test]
fn ten_thousand_frames_cross_byte_for_byte_in_both_directions() {
    for mode in MODES {
        let (a, b) = veth();
        let pool = pool();
        let (mut port_a, mut port_b) = (open(&a, "va", mode, &pool), open(&b, "vb", mode, &pool));
        assert!(has_program(&a, "va") && has_program(&b, "vb"));
        let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
        let frames = frames(10_000);
        for some in frames.chunks(100) {
            send(&mut at_a, &pool, some);
            assert!(receive_exactly(&mut at_b, some.len()) == some);
            send(&mut at_b, &pool, some);
            assert!(receive_exactly(&mut at_a, some.len()) == some);
        }
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        for port in [&mut port_a, &mut port_b] {
            let stats = port.stats();
            assert_eq!((stats.rx_packets, stats.rx_bytes, stats.rx_drops), (10_000, bytes, 0), "{mode:?}");
            assert_eq!((stats.tx_packets, stats.tx_bytes, stats.tx_drops), (10_000, bytes, 0), "{mode:?}");
            assert!(matches!(port.state(), State::Running));
        }
        drop((port_a, port_b));
        assert!(!has_program(&a, "va") && !has_program(&b, "vb"), "the interfaces are as they were");
        drop((at_a, at_b));
        assert_eq!(pool.outstanding(1), 0, "all buffers are back");
    }
}

#[test]
fn a_packet_socket_sees_the_same_frames() {
    let (a, b) = veth();
    let pool = pool();
    let mut xdp = open(&a, "va", None, &pool);
    let mut packet = b.enter(|| PacketSocket::open("vb", &PortConfig::default(), &pool)).expect("a packet socket");
    let (mut at_a, mut at_b) = (queues(&mut xdp), queues(&mut packet));
    let mut frames = frames(1000);
    // VLAN tags are in the bytes.
    frames.iter_mut().step_by(3).for_each(|frame| _ = frame.splice(12..12, [0x81, 0, 0x60, 42]));
    for some in frames.chunks(50) {
        send(&mut at_a, &pool, some);
        assert!(receive_exactly(&mut at_b, some.len()) == some);
        send(&mut at_b, &pool, some);
        assert!(receive_exactly(&mut at_a, some.len()) == some);
    }
}

#[test]
fn long_frames_lie_in_several_buffers() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let (a, b) = veth();
        a.ip(&["link", "set", "va", "mtu", "9000"]);
        b.ip(&["link", "set", "vb", "mtu", "9000"]);
        let (pool, other) = (pool(), pool());
        let config = PortConfig { mtu: 9000, ..Default::default() };
        let mut xdp = try_open(&a, "va", Some(mode), &config, &pool).unwrap_or_else(|error| panic!("{error}"));
        let mut packet = b.enter(|| PacketSocket::open("vb", &config, &pool)).expect("a packet socket");
        let (mut at_a, mut at_b) = (queues(&mut xdp), queues(&mut packet));
        let lens = [60, 1514, 1920, 1921, 2048, 2049, 4097, 9014];
        let frames: Vec<_> = (0..400).map(|number| frame(number, lens[number % lens.len()])).collect();
        for (round, some) in frames.chunks(20).enumerate() {
            send(&mut at_a, [&pool, &other][round % 2], some);
            assert!(receive_exactly(&mut at_b, some.len()) == some, "{mode:?}: sent");
            send(&mut at_b, &pool, some);
            assert!(receive_exactly(&mut at_a, some.len()) == some, "{mode:?}: received");
        }
        assert_eq!((xdp.stats().rx_packets, xdp.stats().rx_drops, xdp.stats().tx_drops), (400, 0, 0));
        drop((xdp, packet, at_a, at_b));
        assert_eq!((pool.outstanding(1), other.outstanding(1)), (0, 0), "all buffers are back");
    }
}

#[test]
fn packets_of_another_pool_are_copied() {
    let (a, b) = veth();
    let (own, other) = (pool(), pool());
    let (mut port_a, mut port_b) = (open(&a, "va", None, &own), open(&b, "vb", None, &own));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let frames = frames(100);
    send(&mut at_a, &other, &frames);
    assert_eq!(other.outstanding(1), 0, "the kernel does not have them");
    assert!(receive_exactly(&mut at_b, 100) == frames);
}

#[test]
fn the_kernels_tcp_runs_through_two_xdp_sockets() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let ((a, left), (b, right)) = (veth(), veth());
        for (namespace, address) in [(&a, "10.9.0.1/24"), (&b, "10.9.0.2/24")] {
            namespace.ip(&["addr", "add", address, "dev", "va"]);
            namespace.run(&["ethtool", "-K", "va", "tx", "off", "tso", "off", "gso", "off"]);
        }
        let pool = Mempool::new(&MempoolConfig { buffers: 16_384, ..Default::default() }).expect("memory");
        let config = PortConfig { rx_ring: 4096, ..Default::default() };
        let open = |namespace| try_open(namespace, "vb", Some(mode), &config, &pool).expect("an XDP socket");
        let (mut port_left, mut port_right) = (open(&left), open(&right));
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
                received
            });
            let address = "10.9.0.2:5000".parse().expect("an address");
            let stream = a.enter(|| TcpStream::connect_timeout(&address, Duration::from_secs(60)));
            let sent = stream.and_then(|mut stream| stream.write_all(content));
            let received = server.join();
            stop.store(true, Ordering::Relaxed);
            sent.expect("a connection");
            assert!(received.expect("the server does not panic") == *content);
        });
        assert!(port_left.stats().rx_packets > 1500, "{mode:?}");
    }
}

#[test]
fn checksums_are_completed_behind_the_socket() {
    // UDP over IPv4, from 10.0.0.1 to 10.0.0.2; its checksum's field has the sum of the pseudo header.
    let datagram = |len: usize| {
        let mut frame = frame(1, len);
        let (ip_len, udp_len) = ((len - 14) as u16, (len - 34) as u16);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17]);
        frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
        let pseudo = sum(&[&frame[26..34], &[0, 17], &udp_len.to_be_bytes()]);
        frame[40..42].copy_from_slice(&pseudo.to_be_bytes());
        frame
    };
    const HEADERS: Headers = Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp };
    let pages = MempoolConfig { size: PAGE_BUFFER_SIZE, ..Default::default() };
    for (mode, memory) in [(XdpMode::Native, MempoolConfig::default()), (XdpMode::Generic, pages)] {
        let (a, b) = veth();
        a.ip(&["link", "set", "va", "mtu", "9000"]);
        b.ip(&["link", "set", "vb", "mtu", "9000"]);
        let pool = Mempool::new(&memory).expect("memory");
        let offloads = Offloads { checksum: true, ..Offloads::default() };
        let config = PortConfig { offloads, mtu: 9000, ..Default::default() };
        let mut port_a = try_open(&a, "va", Some(mode), &config, &pool).expect("an XDP socket");
        let mut port_b = b.enter(|| PacketSocket::open("vb", &config, &pool)).expect("a packet socket");
        poll_until("the links", || port_a.link().up && port_b.link().up);
        let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
        let mut pass = |at_b: &mut QueuePair, len: usize, headers, has_room: bool| {
            let mut packet = chain([&datagram(len)[..]], || pool.alloc()).expect("buffers");
            if !has_room {
                assert!(packet.prepend(packet.headroom()));
                packet.write(0, &datagram(len)[..len.min(packet.len())]);
                packet.set_len(len);
            }
            packet.request_checksum(headers);
            let mut burst = Burst::new(1);
            burst.push(packet);
            poll_until("room", || at_a.tx.tx_burst(&mut burst) == 1);
            let is_valid = headers == HEADERS;
            poll_until("the frame", || at_b.rx.rx_burst(&mut burst) > 0 || !is_valid);
            burst.drain().next()
        };
        for by_card in [false, true] {
            a.run(&["ethtool", "-K", "va", "tx", if by_card { "on" } else { "off" }]);
            for (len, has_room) in [(60, true), (61, false), (1514, true), (8000, true)] {
                let got = pass(&mut at_b, len, HEADERS, has_room).expect("it has come");
                let bytes = bytes_of(&got);
                // veth leaves it to the next card, as the frame stays in this kernel.
                assert_eq!(got.headers(), by_card.then_some(HEADERS), "{mode:?} {len}");
                assert!(if by_card { bytes == datagram(len) } else { l4_sum(&bytes) == 0xffff });
                assert!(bytes[42..] == datagram(len)[42..]);
            }
        }
        // The kernel does not see requests that lead out of the frame.
        assert!(pass(&mut at_b, 60, Headers { l3: 60_000, ..HEADERS }, true).is_none());
        let stats = port_a.stats();
        assert_eq!((stats.tx_packets, stats.tx_drops), (8, 1), "{mode:?}");
    }
}

#[test]
fn each_queue_has_a_socket_and_the_kernel_gets_the_others() {
    let (a, b) = (Namespace::new(), Namespace::new());
    let four = ["numrxqueues", "4", "numtxqueues", "4"];
    let add =
        ["link", "add", "name", "va", "numrxqueues", "4", "numtxqueues", "4", "type", "veth", "peer", "name", "vb"];
    a.ip(&[&add[..], &four, &["netns", &b.0]].concat());
    for (namespace, interface) in [(&a, "va"), (&b, "vb")] {
        namespace.run(&["ethtool", "-L", interface, "rx", "4", "tx", "4"]);
        namespace.ip(&["link", "set", interface, "up"]);
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let pool = Mempool::new(&MempoolConfig { buffers: 16_384, ..Default::default() }).expect("memory");
        let open = |namespace, interface, queues| {
            let config = PortConfig { queues, ..Default::default() };
            try_open(namespace, interface, Some(mode), &config, &pool).unwrap_or_else(|error| panic!("{error}"))
        };
        let (mut port_a, mut port_b) = (open(&a, "va", 4), open(&b, "vb", 3));
        assert!(port_b.notes().iter().any(|note| note.contains("all but the first 3")), "{:?}", port_b.notes());
        let (mut at_a, mut at_b) = (port_a.take_queues(), port_b.take_queues());
        poll_until("the link", || port_a.link().up && port_b.link().up);
        // It sees what the kernel gets.
        let mut packet = b.enter(|| PacketSocket::open("vb", &PortConfig::default(), &pool)).expect("a packet socket");
        at_b.push(queues(&mut packet));
        let mut sent = Vec::new();
        for (queue, pair) in at_a.iter_mut().enumerate() {
            let frames: Vec<_> = (0..100).map(|number| frame(1000 * queue + number, 60)).collect();
            send(pair, &pool, &frames);
            sent.extend(frames);
        }
        let mut received = vec![Vec::new(); at_b.len()];
        poll_until("all frames", || {
            received.iter_mut().zip(&mut at_b).for_each(|(of_queue, pair)| of_queue.extend(receive(pair)));
            received.iter().map(Vec::len).sum::<usize>() >= sent.len()
        });
        let counts: Vec<usize> = received.iter().map(Vec::len).collect();
        // A veth gives what a queue has sent to the same queue of its peer; the kernel's stack counts queues otherwise.
        match mode {
            XdpMode::Native => assert_eq!(counts, [100; 4]),
            XdpMode::Generic => assert!(counts[..3].iter().all(|count| *count >= 100), "{counts:?}"),
        }
        let mut all = received.concat();
        all.sort();
        sent.sort();
        assert!(all == sent, "each frame once: {counts:?}");
        let packets: Vec<u64> = port_b.queue_stats().iter().map(|stats| stats.rx_packets).collect();
        assert!(
            packets.iter().zip(&counts).all(|(of_queue, count)| *of_queue == *count as u64),
            "{packets:?}, {counts:?}"
        );
        drop((port_a, port_b, packet, at_a, at_b));
        assert_eq!(pool.outstanding(1), 0, "all buffers are back");
    }
}

#[test]
fn a_filter_leaves_everything_else_to_the_kernel() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let (a, b) = veth();
        for (namespace, interface, address) in [(&a, "va", "10.9.0.1/24"), (&b, "vb", "10.9.0.2/24")] {
            namespace.ip(&["addr", "add", address, "dev", interface]);
        }
        let pool = pool();
        let mut port = open_filtered(&b, "vb", mode, &[FrameFilter::Udp(4789), FrameFilter::EtherType(0x88b5)], &pool);
        let mut at_b = queues(&mut port);
        let mut packet = a.enter(|| PacketSocket::open("va", &PortConfig::default(), &pool)).expect("a packet socket");
        let mut at_a = queues(&mut packet);
        // A session of bytes to and fro, as SSH and BGP have, beside the datagrams.
        let listener = b.enter(|| TcpListener::bind("10.9.0.2:22")).expect("a TCP socket");
        let mut session = a.enter(|| TcpStream::connect("10.9.0.2:22")).expect("a connection to the kernel");
        let mut server = accept(&listener);
        let udp =
            |namespace: &Namespace, address: &str| namespace.enter(|| UdpSocket::bind(address)).expect("a UDP socket");
        let (sender, tunnel, other) = (udp(&a, "10.9.0.1:0"), udp(&b, "10.9.0.2:4789"), udp(&b, "10.9.0.2:4790"));
        for socket in [&tunnel, &other] {
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        }
        for round in 0..100_u8 {
            let mut line = [0];
            session.write_all(&[round]).expect("the session lasts");
            server.read_exact(&mut line).expect("the session lasts");
            assert_eq!(line, [round]);
            server.write_all(&line).expect("the session lasts");
            session.read_exact(&mut line).expect("the session lasts");

            for to in ["10.9.0.2:4789", "10.9.0.2:4790"] {
                sender.send_to(&[round; 100], to).expect("sent");
            }
            let mut datagram = [0; 200];
            assert_eq!(other.recv(&mut datagram).expect("it is the kernel's"), 100);
            let mut own = frame(usize::from(round), 60);
            own[12..14].copy_from_slice(&[0x88, 0xb5]);
            send(&mut at_a, &pool, &[own.clone()]);
            let [datagram, received] = &receive_exactly(&mut at_b, 2)[..] else { panic!() };
            assert_eq!(datagram[42..], [round; 100]);
            assert_eq!((&datagram[36..38], received), (&4789_u16.to_be_bytes()[..], &own));
        }
        tunnel.set_nonblocking(true).expect("a socket");
        assert!(tunnel.recv(&mut [0; 200]).is_err(), "the kernel has none of the port's");
        assert_eq!(port.stats().rx_packets, 200);
        drop((port, at_b));
        sender.send_to(&[7; 100], "10.9.0.2:4789").expect("sent");
        tunnel.set_nonblocking(false).expect("a socket");
        assert_eq!(tunnel.recv(&mut [0; 200]).expect("the kernel has the interface back"), 100);
    }
}

#[test]
fn a_vlan_is_received_with_its_tags_and_others_are_the_kernels() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let (a, b) = veth();
        let pool = pool();
        let mut port = open_filtered(&b, "vb", mode, &[FrameFilter::Vlan(10)], &pool);
        let packet = |namespace: &Namespace, interface| {
            let port = namespace.enter(|| PacketSocket::open(interface, &PortConfig::default(), &pool));
            port.expect("a packet socket")
        };
        let (mut sender, mut kernel) = (packet(&a, "va"), packet(&b, "vb"));
        let (mut at_a, mut own, mut others) = (queues(&mut sender), queues(&mut port), queues(&mut kernel));
        let tagged = |number: usize| {
            let mut frame = frame(number, 60);
            let tag = [[0x81, 0, 0xe0, 10], [0x88, 0xa8, 0, 10], [0x81, 0, 0, 20], [0x81, 0, 0x20, 11]][number % 4];
            frame.splice(12..12, tag);
            frame
        };
        let frames: Vec<_> = (0..400).map(tagged).collect();
        for some in frames.chunks(40) {
            send(&mut at_a, &pool, some);
            let (wanted, left): (Vec<_>, Vec<_>) = some.iter().cloned().partition(|frame| frame[15] == 10);
            assert!(receive_exactly(&mut own, wanted.len()) == wanted);
            assert!(receive_exactly(&mut others, left.len()) == left);
        }
    }
}

#[test]
fn strangers_are_received_only_when_promiscuous() {
    let (a, b) = veth();
    let pool = pool();
    let config = PortConfig { promiscuous: false, ..Default::default() };
    let mut port_a = open(&a, "va", None, &pool);
    let mut port_b = try_open(&b, "vb", None, &config, &pool).expect("an XDP socket");
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let mut own = frame(3, 60);
    own[..6].copy_from_slice(&port_b.mac().0);
    let mut stranger = frame(1, 60);
    stranger[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    let sent = [stranger.clone(), own.clone(), frame(2, 60)];
    send(&mut at_a, &pool, &sent);
    assert_eq!(receive_exactly(&mut at_b, 2), [own, frame(2, 60)]);
    port_b.set_promiscuous(true).expect("promiscuous mode");
    assert!(b.ip(&["-d", "link", "show", "vb"]).contains("promiscuity 1"));
    send(&mut at_a, &pool, &sent);
    assert_eq!(receive_exactly(&mut at_b, 3), sent);
    port_b.set_promiscuous(false).expect("no promiscuous mode");
    assert!(b.ip(&["-d", "link", "show", "vb"]).contains("promiscuity 0"));
}

#[test]
fn what_is_not_received_is_counted_and_waits_are_woken() {
    let (a, b) = veth();
    let pool = pool();
    let config = PortConfig { rx_ring: 64, ..Default::default() };
    let (mut port_a, mut port_b) =
        (open(&a, "va", None, &pool), try_open(&b, "vb", None, &config, &pool).expect("an XDP socket"));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    let readable = |at_b: &ringpass_port::QueuePair| {
        let sources = WakeSource::all(&*at_b.rx);
        let [WakeSource::Readable(fd)] = sources[..] else { panic!("{sources:?}") };
        let limit = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).expect("poll") == 1
    };
    assert!(!readable(&at_b), "nothing was sent");
    send(&mut at_a, &pool, &frames(200));
    assert!(readable(&at_b));
    poll_until("all frames to be received or dropped", || {
        receive(&mut at_b);
        let stats = port_b.stats();
        stats.rx_packets >= 64 && stats.rx_packets + stats.rx_drops == 200
    });
    send(&mut at_a, &pool, &frames(50));
    assert!(receive_exactly(&mut at_b, 50) == frames(50), "it goes on");
    let mut burst = burst(&pool, &[vec![0; 13], frame(1, 1515), frame(2, 60)]);
    assert_eq!(at_a.tx.tx_burst(&mut burst), 3);
    assert_eq!(port_a.stats().tx_drops, 2, "too short, and longer than the MTU");
    assert_eq!(receive_exactly(&mut at_b, 1), [frame(2, 60)]);
}

#[test]
fn an_interface_that_goes_down_and_away() {
    let (a, b) = veth();
    let pool = pool();
    let (mut port_a, mut port_b) = (open(&a, "va", None, &pool), open(&b, "vb", None, &pool));
    let (mut at_a, mut at_b) = (queues(&mut port_a), queues(&mut port_b));
    a.ip(&["link", "set", "va", "down"]);
    assert!(!port_a.link().up);
    for _ in 0..3 {
        send(&mut at_a, &pool, &frames(20));
    }
    assert!(matches!(port_a.state(), State::Running) && port_a.stats().tx_drops > 0, "{:?}", port_a.stats());
    a.ip(&["link", "set", "va", "up"]);
    poll_until("the link", || port_a.link().up);
    receive(&mut at_b);
    poll_until("frames after that", || {
        send(&mut at_a, &pool, &[frame(9, 60)]);
        receive(&mut at_b).contains(&frame(9, 60))
    });
    b.ip(&["link", "set", "vb", "name", "renamed"]);
    assert!(matches!(port_b.state(), State::Running), "a name may change");
    a.ip(&["link", "del", "va"]);
    for port in [&mut port_a, &mut port_b] {
        assert!(matches!(port.state(), State::Gone(why) if why.contains("deleted")));
    }
    send(&mut at_a, &pool, &frames(20));
    receive(&mut at_b);
    drop((at_a, at_b, port_a, port_b));
    assert_eq!(pool.outstanding(1), 0, "all buffers are back");
}

#[test]
fn errors_say_what_to_do() {
    let (a, b) = veth();
    let pool = pool();
    let error = |namespace: &Namespace, interface: &str, config: PortConfig| {
        let error = try_open(namespace, interface, None, &config, &pool).map(drop).expect_err("it is refused");
        let text = error.to_string();
        assert!(text.starts_with(&format!("xdp:{interface}: ")) && !text.contains('\n'), "{text}");
        text
    };
    assert!(error(&a, "nothing", PortConfig::default()).contains("ip link"));
    assert!(error(&a, "lo", PortConfig::default()).contains("no Ethernet"));
    assert!(error(&a, "va", PortConfig { queues: 2, ..Default::default() }).contains("1 queue(s), not 2"));
    let first = open(&a, "va", None, &pool);
    assert!(error(&a, "va", PortConfig::default()).contains("has an XDP program already"));
    drop(first);
    assert!(!has_program(&a, "va"));
    let refused = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            b.enter(|| {
                without_capabilities();
                let address = XdpConfig { interface: "vb".into(), ..Default::default() };
                Xdp::open(&address, &PortConfig::default(), &pool).map(drop)
            })
        });
        unprivileged.join().expect("no panic")
    });
    assert!(matches!(&refused, Err(Error::Permission(why)) if why.contains("CAP_BPF")), "{refused:?}");
    assert!(!has_program(&b, "vb"));
    assert_eq!(pool.outstanding(1), 0);
}

#[test]
fn busy_polling_receives_the_same() {
    let (a, b) = veth();
    let pool = pool();
    let address = XdpConfig { interface: "vb".into(), busy_poll: true, ..Default::default() };
    let mut port = b.enter(|| Xdp::open(&address, &PortConfig::default(), &pool)).expect("an XDP socket");
    assert!(port.notes().iter().any(|note| note.contains("napi_defer_hard_irqs")), "{:?}", port.notes());
    let (mut port_a, mut at_b) = (open(&a, "va", None, &pool), queues(&mut port));
    let mut at_a = queues(&mut port_a);
    for some in frames(1000).chunks(100) {
        send(&mut at_a, &pool, some);
        assert!(receive_exactly(&mut at_b, some.len()) == some);
        send(&mut at_b, &pool, some);
        assert!(receive_exactly(&mut at_a, some.len()) == some);
    }
}

#[test]
fn a_tap_is_an_interface_like_others() {
    let a = Namespace::new();
    let pool = pool();
    let mut tap = a.enter(|| Tap::open("tx0", &PortConfig::default(), &pool)).expect("a TAP");
    a.ip(&["link", "set", "tx0", "up"]);
    let mut at_tap = queues(&mut tap);
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let mut xdp = open(&a, "tx0", Some(mode), &pool);
        poll_until("the link", || xdp.link().up);
        let mut at_xdp = queues(&mut xdp);
        for some in frames(1000).chunks(50) {
            send(&mut at_tap, &pool, some);
            assert!(receive_exactly(&mut at_xdp, some.len()) == some, "{mode:?}: the TAP's owner sends");
            send(&mut at_xdp, &pool, some);
            assert!(receive_exactly(&mut at_tap, some.len()) == some, "{mode:?}: the socket sends");
        }
    }
}

#[test]
fn queues_and_programs_that_are_taken_away_under_way() {
    let (a, b) = (Namespace::new(), Namespace::new());
    let two = ["numrxqueues", "2", "numtxqueues", "2"];
    let add =
        ["link", "add", "name", "va", "numrxqueues", "2", "numtxqueues", "2", "type", "veth", "peer", "name", "vb"];
    a.ip(&[&add[..], &two, &["netns", &b.0]].concat());
    for (namespace, interface) in [(&a, "va"), (&b, "vb")] {
        namespace.run(&["ethtool", "-L", interface, "rx", "2", "tx", "2"]);
        namespace.ip(&["link", "set", interface, "up"]);
    }
    let pool = Mempool::new(&MempoolConfig { buffers: 16_384, ..Default::default() }).expect("memory");
    let config = PortConfig { queues: 2, ..Default::default() };
    let mut port = try_open(&b, "vb", None, &config, &pool).expect("two sockets");
    let (mut other, mut sender) = (open(&a, "va", None, &pool), None);
    poll_until("the link", || port.link().up && other.link().up);
    let mut at_b = port.take_queues();
    let at_a = sender.insert(queues(&mut other));
    let pass = |at_a: &mut QueuePair, at_b: &mut Vec<QueuePair>| {
        poll_until("a frame", || {
            send(at_a, &pool, &[frame(1, 60)]);
            at_b.iter_mut().any(|pair| !receive(pair).is_empty())
        });
    };
    pass(at_a, &mut at_b);
    // The kernel refuses that as long as there is a socket on the queue, or takes it and leaves the other queue as it is.
    let fewer = b.enter(|| std::process::Command::new("ethtool").args(["-L", "vb", "rx", "1", "tx", "1"]).output());
    let fewer = fewer.expect("ethtool runs");
    eprintln!("ethtool -L: {:?} {}", fewer.status, String::from_utf8_lossy(&fewer.stderr));
    send(&mut at_b[1], &pool, &frames(10));
    pass(at_a, &mut at_b);
    // Nobody else can replace the program, whose link is ours.
    let replaced = b.enter(|| std::process::Command::new("ip").args(["link", "set", "vb", "xdp", "off"]).output());
    assert!(!replaced.expect("ip runs").status.success(), "the program is gone");
    pass(at_a, &mut at_b);
    // To another namespace it goes without the port, which ends; the interface is as it was found.
    b.ip(&["link", "set", "vb", "netns", &a.0]);
    assert!(matches!(port.state(), State::Gone(why) if why.contains("moved")));
    send(&mut at_b[0], &pool, &frames(10));
    at_b.iter_mut().for_each(|pair| _ = receive(pair));
    drop((port, at_b));
    assert!(!has_program(&a, "vb"));
    drop((other, sender));
    assert_eq!(pool.outstanding(1), 0, "all buffers are back");
}
