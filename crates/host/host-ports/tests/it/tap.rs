//! Tests of TAP interfaces against the kernel, in network namespaces.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use ringpass_host_ports::{PacketSocket, Tap};
use ringpass_memory::Burst;
use ringpass_port::{Port, PortConfig, State};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

fn open(namespace: &Namespace, name: &str, config: &PortConfig) -> Tap {
    namespace.enter(|| Tap::open(name, config, &pool())).expect("a TAP opens")
}

/// Returns an ICMP echo request to 10.9.0.1 from 10.9.0.2, or the reply to it.
fn echo(kind: u8, to: [u8; 6], from: [u8; 6], number: u16, len: usize) -> Vec<u8> {
    let (mut source, mut target) = ([10, 9, 0, 2], [10, 9, 0, 1]);
    if kind == 0 {
        std::mem::swap(&mut source, &mut target);
    }
    let total = ((28 + len) as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, 1, 0, 0];
    ip.extend([source, target].concat());
    let header = !sum(&[&ip]);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let mut icmp = vec![kind, 0, 0, 0, 0, 9];
    icmp.extend(number.to_be_bytes());
    icmp.extend((0..len).map(|i| i as u8));
    let checksum = !sum(&[&icmp]);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    [&to[..], &from, &[8, 0], &ip, &icmp].concat()
}

/// Gives the interface its address and one neighbour.
fn configure(namespace: &Namespace, name: &str) {
    namespace.ip(&["addr", "add", "10.9.0.1/24", "dev", name]);
    namespace.ip(&["neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:77", "dev", name]);
}

/// Checks the header checksum of a frame, and clears the fields that the kernel chooses: identification, flags,
/// time to live, checksum.
fn normal(mut frame: Vec<u8>) -> Vec<u8> {
    assert_eq!(sum(&[&frame[14..34]]), 0xffff, "the header's checksum");
    frame[18..26].copy_from_slice(&[0; 8]);
    frame
}

#[test]
fn the_kernel_answers_echo_requests() {
    let namespace = Namespace::new();
    let mut tap = open(&namespace, "rp0", &PortConfig::default());
    configure(&namespace, "rp0");
    let link = namespace.ip(&["link", "show", "rp0"]);
    assert!(link.contains(&tap.mac().to_string()) && link.contains("mtu 1500") && link.contains("LOWER_UP"), "{link}");
    let (mut queues, pool, mac) = (queues(&mut tap), pool(), tap.mac().0);
    for round in 0..50u16 {
        let numbers = (0..20).map(|i| (round * 20 + i, usize::from(round * 20 + i) * 37 % 1473));
        let requests: Vec<_> = numbers.clone().map(|(number, len)| echo(8, mac, MAC, number, len)).collect();
        send(&mut queues, &pool, &requests);
        let replies = receive_exactly(&mut queues, 20);
        for (reply, (number, len)) in replies.into_iter().zip(numbers) {
            assert_eq!(normal(reply), normal(echo(0, MAC, mac, number, len)));
        }
    }
    let stats = tap.stats();
    assert_eq!((stats.tx_packets, stats.rx_packets), (1000, 1000));
    assert_eq!(stats.tx_bytes, stats.rx_bytes);
    assert_eq!((stats.tx_drops, stats.rx_drops), (0, 0));
    drop(queues);
    assert_eq!(pool.outstanding(1), 0);
    drop(tap);
    assert!(!namespace.ip(&["link"]).contains("rp0"), "the interface goes with its port");
}

#[test]
fn it_works_on_in_another_network_namespace() {
    let (first, second) = (Namespace::new(), Namespace::new());
    let name = unique("rp");
    let mut tap = open(&first, &name, &PortConfig { mtu: 1400, ..Default::default() });
    let (mut queues, pool, mac) = (queues(&mut tap), pool(), tap.mac().0);
    first.ip(&["link", "set", &name, "netns", &second.0]);
    // The move has brought the interface down: the frame is lost, but the port continues.
    send(&mut queues, &pool, &[echo(8, mac, MAC, 0, 10)]);
    assert_eq!(tap.stats().tx_drops, 1);
    assert!(matches!(tap.state(), State::Running));
    second.ip(&["link", "set", &name, "up"]);
    configure(&second, &name);
    assert!(second.ip(&["link", "show", &name]).contains("mtu 1400"));
    send(&mut queues, &pool, &[echo(8, mac, MAC, 1, 10)]);
    let replies = receive_exactly(&mut queues, 1);
    assert_eq!(normal(replies[0].clone()), normal(echo(0, MAC, mac, 1, 10)));
}

#[test]
fn bursts_of_any_length_reach_the_kernel_byte_for_byte() {
    let namespace = Namespace::new();
    let mut tap = open(&namespace, "rp0", &PortConfig::default());
    let config = PortConfig { rx_ring: 4096, ..Default::default() };
    let mut socket = namespace.enter(|| PacketSocket::open("rp0", &config, &pool())).expect("a packet socket");
    let (mut at_tap, mut at_socket, pool) = (queues(&mut tap), queues(&mut socket), pool());
    let frames = frames(10_000);
    for some in frames.chunks(100) {
        send(&mut at_tap, &pool, some);
        assert!(receive_exactly(&mut at_socket, some.len()) == some);
        send(&mut at_socket, &pool, some);
        assert!(receive_exactly(&mut at_tap, some.len()) == some);
    }
    send(&mut at_tap, &pool, &[frame(1, 1515), vec![1; 13], Vec::new(), frame(2, 1514)]);
    assert_eq!(receive_exactly(&mut at_socket, 1), [frame(2, 1514)]);
    assert_eq!((tap.stats().tx_packets, tap.stats().tx_drops), (10_001, 3));
}

#[test]
fn frames_that_a_raised_mtu_lets_through_are_dropped() {
    let namespace = Namespace::new();
    let mut tap = open(&namespace, "rp0", &PortConfig { mtu: 1000, ..Default::default() });
    namespace.ip(&["link", "set", "rp0", "mtu", "9000"]);
    configure(&namespace, "rp0");
    let mut queues = queues(&mut tap);
    namespace.enter(|| {
        let socket = UdpSocket::bind("10.9.0.1:0").expect("a UDP socket");
        for len in [972, 973, 8000, 10] {
            socket.send_to(&vec![1; len], "10.9.0.2:9").expect("a datagram is sent");
        }
    });
    let lens: Vec<_> = receive_exactly(&mut queues, 2).iter().map(Vec::len).collect();
    assert_eq!((lens, tap.stats().rx_drops), (vec![1014, 52], 2));
}

#[test]
fn flows_spread_over_queues() {
    let namespace = Namespace::new();
    let mut tap = open(&namespace, "rp0", &PortConfig { queues: 4, ..Default::default() });
    configure(&namespace, "rp0");
    let (mut queues, pool, mac) = (tap.take_queues(), pool(), tap.mac().0);
    assert_eq!(queues.len(), 4);
    namespace.enter(|| {
        for number in 0..200u8 {
            let socket = UdpSocket::bind("10.9.0.1:0").expect("a UDP socket");
            socket.send_to(&[number], "10.9.0.2:9").expect("a datagram is sent");
        }
    });
    let (mut received, mut counts) = (HashSet::new(), [0; 4]);
    poll_until("200 datagrams", || {
        for (queues, count) in queues.iter_mut().zip(&mut counts) {
            for frame in receive(queues) {
                assert!(received.insert(frame[42]) && l4_sum(&frame) == 0xffff);
                *count += 1;
            }
        }
        received.len() == 200
    });
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    for queues in &mut queues {
        send(queues, &pool, &[echo(8, mac, MAC, 1, 10)]);
    }
    let mut replies = 0;
    poll_until("four replies", || {
        replies += queues.iter_mut().map(|queues| receive(queues).len()).sum::<usize>();
        replies == 4
    });
    assert_eq!((tap.stats().rx_packets, tap.stats().tx_packets), (204, 4));
}

#[test]
fn ping_runs_between_two_namespaces_without_loss() {
    let (a, b) = (Namespace::new(), Namespace::new());
    let (mut tap_a, mut tap_b) = (open(&a, "rp0", &PortConfig::default()), open(&b, "rp0", &PortConfig::default()));
    a.ip(&["addr", "add", "10.9.0.1/24", "dev", "rp0"]);
    b.ip(&["addr", "add", "10.9.0.2/24", "dev", "rp0"]);
    let (at_a, at_b, stop) = (queues(&mut tap_a), queues(&mut tap_b), AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| forward(at_a, at_b, &stop));
        let ping =
            scope.spawn(|| a.run(&["ping", "-i", "0", "-c", "2000", "-s", "1400", "-w", "60", "10.9.0.2"])).join();
        stop.store(true, Ordering::Relaxed);
        ping
    });
    let text = result.expect("ping succeeds");
    // Check the sequence numbers: ping ends with the last reply, when further requests may be on their way.
    let number = |line: &str| line.split_once("icmp_seq=")?.1.split(' ').next()?.parse().ok();
    let numbers: Vec<u32> = text.lines().filter_map(number).collect();
    assert!(numbers.len() >= 2000 && numbers.iter().copied().eq(1..=numbers.len() as u32), "{text}");
    assert_eq!(tap_a.stats().tx_packets, tap_b.stats().rx_packets);
}

#[test]
fn a_deleted_interface_is_gone() {
    let namespace = Namespace::new();
    let mut tap = open(&namespace, "rp0", &PortConfig::default());
    let (mut queues, pool) = (queues(&mut tap), pool());
    assert!(matches!(tap.state(), State::Running) && tap.link().up);
    namespace.ip(&["link", "del", "rp0"]);
    assert_eq!(receive(&mut queues).len(), 0);
    send(&mut queues, &pool, &frames(3));
    let State::Gone(why) = tap.state() else { panic!("still {:?}", tap.state()) };
    assert!(why.contains("deleted") && !tap.link().up);
    assert_eq!(tap.stats().tx_drops, 3);
    assert_eq!(queues.tx.tx_burst(&mut Burst::new(1)), 0);

    // The control side notices it, too, without the queues.
    let mut tap = open(&namespace, "rp1", &PortConfig::default());
    namespace.ip(&["link", "del", "rp1"]);
    assert!(matches!(tap.state(), State::Gone(_)));
}

/// Setting values that are right already would need a privilege.
#[test]
fn an_ordinary_user_joins_an_interface_that_is_ready() {
    let namespace = Namespace::new();
    namespace.ip(&["tuntap", "add", "rp0", "mode", "tap"]);
    let join = |mtu: usize| {
        namespace.enter(move || {
            without_capabilities();
            Tap::open("rp0", &PortConfig { mtu, ..Default::default() }, &pool())
        })
    };
    let refused = |mtu: usize| join(mtu).map(drop).expect_err("not permitted").to_string();
    let error = refused(1500);
    assert!(error.contains("bringing the interface up") && error.contains("not permitted"), "{error}");
    namespace.ip(&["link", "set", "rp0", "up"]);
    let error = refused(1400);
    assert!(error.contains("setting the MTU") && error.contains("not permitted"), "{error}");
    let mut tap = join(1500).expect("nothing is to be set");
    configure(&namespace, "rp0");
    let (mut queues, pool, mac) = (queues(&mut tap), pool(), tap.mac().0);
    send(&mut queues, &pool, &[echo(8, mac, MAC, 1, 10)]);
    assert_eq!(normal(receive_exactly(&mut queues, 1).remove(0)), normal(echo(0, MAC, mac, 1, 10)));
}

#[test]
fn errors_name_cause_and_remedy() {
    let namespace = Namespace::new();
    let error = |name: &str, config: &PortConfig| {
        let error = namespace.enter(|| Tap::open(name, config, &pool()).map(drop)).expect_err(name).to_string();
        assert!(error.starts_with(&format!("tap:{name}: ")) && !error.contains('\n'), "{error}");
        error
    };
    let one = PortConfig::default();
    assert!(error("a-name-that-is-too-long", &one).contains("1 to 15 characters"));
    assert!(error("lo", &one).contains("not a TAP"));
    let _tap = open(&namespace, "rp0", &one);
    assert!(error("rp0", &one).contains("another program has this interface"));
    assert!(error("rp0", &PortConfig { queues: 2, ..one }).contains("one queue"));
    assert!(error("rp1", &PortConfig { mtu: 1, ..one }).contains("setting the MTU"));
    assert!(!namespace.ip(&["link"]).contains("rp1"), "a failed start leaves nothing behind");
    let denied = namespace.enter(|| {
        without_capabilities();
        Tap::open("rp2", &one, &pool()).map(drop).expect_err("not permitted").to_string()
    });
    assert!(denied.contains("CAP_NET_ADMIN") || denied.contains("run as root"), "{denied}");
}
