//! XDP sockets from the command line, with the kernel at the other end.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ringpass_ipc::{Descriptors, Stream};
use ringpass_lab::{Ended, Namespace, Program, wait_until};
use ringpass_testing::{bytes_of, frame};
use serde_json::Value;

use crate::common::dpdk::Testpmd;
use crate::common::guest::tcp_from;
use crate::common::{RINGPASS, for_everybody, text};

/// Joins two namespaces by a veth pair, `va` and `vb`, both up; the kernel of the first one has this address.
fn veth(address: &str) -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
    a.ip(&["address", "add", address, "dev", "va"]);
    a.ip(&["link", "set", "va", "up"]);
    b.ip(&["link", "set", "vb", "up"]);
    a.run(&["ethtool", "-K", "va", "tx", "off"]);
    (a, b)
}

/// Starts a subcommand and waits until its ports are open.
fn start(namespace: &Namespace, arguments: &[&str]) -> Program {
    let program = namespace.spawn(&[&[RINGPASS], arguments, &["--json"]].concat());
    wait_until("the first line", || !program.line().is_empty());
    program
}

fn has_program(namespace: &Namespace, interface: &str) -> bool {
    namespace.ip(&["-d", "link", "show", interface]).contains("prog/xdp")
}

#[test]
fn ten_thousand_pings_pass_two_xdp_sockets() {
    let ((a, left), (_b, right)) = (veth("198.18.0.1/24"), veth("198.18.0.2/24"));
    // Both interfaces in one namespace, as on a host.
    right.ip(&["link", "set", "vb", "down"]);
    right.ip(&["link", "set", "vb", "name", "vc", "netns", &left.0]);
    left.ip(&["link", "set", "vc", "up"]);
    let forwarder = start(&left, &["fwd", "xdp:vb", "xdp:vc"]);
    wait_until("the link", || a.ip(&["link", "show", "va"]).contains("state UP"));
    let text = a.run(&["ping", "-q", "-f", "-c", "10000", "-w", "60", "198.18.0.2"]);
    assert!(text.contains("10000 received, 0% packet loss"), "{text}");
    forwarder.signal("INT");
    let Ended { status, lines, errors } = forwarder.wait(Duration::from_secs(20));
    assert_eq!(status, Some(0), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
    assert!(summary["ports"][0]["rx_packets"].as_u64() >= Some(10_000), "{summary}");
    assert!(!has_program(&left, "vb") && !has_program(&left, "vc"), "the interfaces are as they were");
}

#[test]
fn nothing_stays_of_programs_that_are_killed_under_load() {
    const KILLS: u32 = 100;
    let (a, b) = veth("198.18.0.1/24");
    let flood = [RINGPASS, "pktgen", "packet:va", "--rate", "50k", "--time", "300", "--json"];
    let generator = a.spawn(&flood);
    for round in 0..KILLS {
        let port = ["xdp:vb", "xdp:vb,mode=native", "xdp:vb,mode=generic"][round as usize % 3];
        // The queue of the last one may be busy for a moment. The first line comes after an interval.
        let echo = start(&b, &["echo", port, "--interval", "0.05"]);
        assert!(has_program(&b, "vb"));
        std::thread::sleep(Duration::from_millis(u64::from(round) % 7));
        echo.signal("KILL");
        echo.wait(Duration::from_secs(20));
        wait_until("its program to be gone", || !has_program(&b, "vb"));
    }
    generator.signal("INT");
    generator.wait(Duration::from_secs(20));
    let echo = start(&b, &["echo", "xdp:vb"]);
    let text = a.run(&[RINGPASS, "ping", "packet:va", "-c", "5", "--json"]);
    let summary: Value = serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON");
    assert_eq!((&summary["probes"], &summary["answers"]), (&5.into(), &5.into()), "{summary}");
    drop(echo);
}

#[test]
fn list_and_doctor_say_what_can_be_done() {
    let (a, _b) = veth("198.18.0.1/24");
    let text = a.run(&[RINGPASS, "list", "--json"]);
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let own = lines.into_iter().find(|line: &Value| line["name"] == "va").expect("the interface");
    assert_eq!(
        (&own["event"], &own["kernel_driver"], &own["queues"]),
        (&"interface".into(), &"veth".into(), &1.into())
    );
    // Kernels before 6.3 do not say it.
    if !own["xdp"].is_null() {
        assert_eq!((&own["xdp"]["native"], &own["xdp"]["zero_copy"]), (&true.into(), &false.into()), "{own}");
        assert!(a.run(&[RINGPASS, "list"]).contains("native and generic mode, copies only"));
    }
    let text = a.run(&[RINGPASS, "doctor"]);
    assert!(text.contains("XDP sockets         the kernel has them, and this user may attach programs"), "{text}");
}

/// Starts `ringpass xdp attach vb` with a socket for everybody; returns the port's address for others.
fn attach(namespace: &Namespace, folder: &tempfile::TempDir, options: &[&str]) -> (Program, String) {
    let socket = folder.path().join("socket");
    let place = format!("{},mode=0666", text(&socket));
    let server = start(namespace, &[&["xdp", "attach", "vb", "--socket", &place], options].concat());
    (server, format!("xdp:vb,socket={}", text(&socket)))
}

/// Returns the start of a command as a user without any privileges.
const ORDINARY: [&str; 6] = ["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"];

fn pings(namespace: &Namespace) {
    let text = namespace.run(&[RINGPASS, "ping", "packet:va", "-c", "5", "--json"]);
    let summary: Value = serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON");
    assert_eq!((&summary["probes"], &summary["answers"]), (&5.into(), &5.into()), "{summary}");
}

#[test]
fn a_process_without_privileges_has_an_interfaces_frames() {
    let (a, b) = veth("198.18.0.1/24");
    let (folder, program) = for_everybody();
    let (server, port) = attach(&b, &folder, &[]);
    assert!(has_program(&b, "vb"));
    let command = |arguments: &[&str]| [&ORDINARY, &[text(&program)][..], arguments].concat().join(" ");
    let ordinary = |arguments: &[&str]| {
        let command = command(arguments);
        b.spawn(&["sh", "-c", &format!("ulimit -l 64; exec {command}")])
    };
    for _ in 0..3 {
        let echo = ordinary(&["echo", &port, "--json"]);
        wait_until("the first line", || !echo.line().is_empty());
        wait_until("who has the frames", || server.line().contains("granted"));
        pings(&a);
        // A second one waits for a moment, as the first may be about to end.
        let Ended { status, errors, .. } = ordinary(&["echo", &port]).wait(Duration::from_secs(20));
        assert_eq!(status, Some(1));
        assert!(errors.concat().contains("has the interface's frames; end it first"), "{errors:?}");
        echo.signal("KILL");
        echo.wait(Duration::from_secs(20));
        wait_until("the end to be seen", || server.line().contains("ended"));
    }
    for (arguments, why) in [
        (&["echo", &port, "--queues", "2"][..], "1 queue(s) are granted, not 2; attach it with --queues 2"),
        (&["echo", &port, "--rxd", "4096", "--txd", "4096", "--queues", "17"], "16 at most"),
        (&["echo", "xdp:vb,socket=/nothing"], "nobody serves /nothing; as root: ringpass xdp attach vb"),
        (&["echo", "xdp:vb"], "run as root"),
    ] {
        let Ended { status, errors, .. } = ordinary(arguments).wait(Duration::from_secs(20));
        assert!(status == Some(1) && errors.concat().contains(why), "{arguments:?}: {status:?} {errors:?}");
    }
    let echo = ordinary(&["echo", &port, "--json"]);
    wait_until("the first line", || !echo.line().is_empty());
    pings(&a);
    server.signal("INT");
    assert_eq!(server.wait(Duration::from_secs(20)).status, Some(0));
    assert!(!has_program(&b, "vb"), "the interface is as it was");
    let Ended { status, errors, .. } = echo.wait(Duration::from_secs(20));
    let why = "the process that has attached the program has ended";
    assert!(status == Some(1) && errors.concat().contains(why), "{status:?} {errors:?}");
}

#[test]
fn peers_of_attach_that_lie_or_say_nothing() {
    let (a, b) = veth("198.18.0.1/24");
    let (folder, program) = for_everybody();
    let (server, port) = attach(&b, &folder, &["--memory", "8M"]);
    let socket = folder.path().join("socket");
    let word = |value: u32| value.to_le_bytes();
    let ask = |len: u32, chunk: u32| [0x5044_5802, 1, 64, 64, len, 0, chunk, 0, 0].map(word).concat();
    let memory = |len: u64| ringpass_testing::memfd(len);
    // Garbage; too much memory; more than the file has; chunks of a size that the kernel does not know; no memory at all.
    let cases: [(Vec<u8>, Option<u64>); 6] = [
        (vec![0xff; 36], Some(4096)),
        (ask(64 << 20, 2304), Some(64 << 20)),
        (ask(1 << 20, 2304), Some(4096)),
        (ask(1 << 20, 9000), Some(1 << 20)),
        (ask(1 << 20, 2304), None),
        (vec![1], None),
    ];
    for (bytes, file) in cases {
        let peer = UnixStream::connect(&socket).expect("it listens");
        let file = file.map(memory);
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        ringpass_testing::send(&peer, &bytes, &files).expect("sent");
        if bytes.len() > 1 {
            let mut answer = [0; 4];
            peer.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
            (&peer).read_exact(&mut answer).expect("an answer");
            assert_eq!(u32::from_le_bytes(answer), 3, "refused");
        }
        drop(peer);
        wait_until("the peer to be gone", || server.line().contains("refused"));
    }
    // One that keeps its sockets and hangs up: the kernel has the frames, the queue is busy until they are closed.
    let peer = UnixStream::connect(&socket).expect("it listens");
    peer.set_nonblocking(true).expect("a socket");
    let mut stream = Stream::new(peer.into(), 4096, Descriptors::Trusted);
    stream.send(ask(1 << 20, 2304), vec![memory(1 << 20)]).expect("sent");
    wait_until("an answer", || {
        stream.receive().expect("the server lives");
        stream.arrived().len() >= 2048
    });
    let (_, sockets) = stream.take(2048);
    assert_eq!(sockets.len(), 1);
    drop(stream);
    wait_until("the end to be seen", || server.line().contains("ended"));
    let echo = || b.spawn(&[&ORDINARY[..], &[text(&program), "echo", &port, "--json"]].concat());
    let Ended { status, errors, .. } = echo().wait(Duration::from_secs(20));
    assert!(
        status == Some(1) && errors.concat().contains("another program has an XDP socket on queue 0"),
        "{errors:?}"
    );
    drop(sockets);
    let echo = echo();
    wait_until("the first line", || !echo.line().is_empty());
    pings(&a);
}

#[test]
fn long_frames_and_tcp_pass_four_queues() {
    let (a, left, b) = (Namespace::new(), Namespace::new(), Namespace::new());
    for (far, name, address) in [(&a, "vb", "198.18.0.1/24"), (&b, "vc", "198.18.0.2/24")] {
        let queues = ["numrxqueues", "4", "numtxqueues", "4"];
        let ends = [&["name", "va"][..], &queues, &["type", "veth", "peer", "name", name], &queues].concat();
        far.ip(&[&["link", "add"], &ends[..], &["netns", &left.0]].concat());
        for (namespace, interface) in [(far, "va"), (&left, name)] {
            namespace.run(&["ethtool", "-L", interface, "rx", "4", "tx", "4"]);
            namespace.ip(&["link", "set", interface, "mtu", "9000", "up"]);
        }
        far.ip(&["address", "add", address, "dev", "va"]);
        far.run(&["ethtool", "-K", "va", "tx", "off"]);
    }
    for mode in ["native", "generic"] {
        let [one, other] = ["vb", "vc"].map(|name| format!("xdp:{name},mode={mode}"));
        let forwarder = start(&left, &["fwd", &one, &other, "--queues", "4", "--mtu", "9000"]);
        wait_until("the link", || a.ip(&["link", "show", "va"]).contains("state UP"));
        for size in ["56", "1472", "8972"] {
            let text = a.run(&["ping", "-A", "-c", "200", "-s", size, "-M", "do", "-w", "60", "198.18.0.2"]);
            assert!(text.contains(" 0% packet loss"), "{mode}, {size} bytes: {text}");
        }
        let rate = tcp_from(&b, || a.run(&["iperf3", "-c", "198.18.0.2", "-t", "1", "-P", "12", "-J"]));
        eprintln!("{mode}: TCP {rate:.0} Mbit/s");
        forwarder.signal("INT");
        let Ended { status, lines, errors } = forwarder.wait(Duration::from_secs(20));
        assert_eq!(status, Some(0), "{errors:?}");
        let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
        let queues = summary["ports"][0]["queues"].as_array().expect("its queues");
        let used = queues.iter().filter(|queue| queue["rx_packets"].as_u64() > Some(0)).count();
        assert!(used > 1, "{mode}: frames of several connections come on {used} queue: {summary}");
    }
}

#[test]
fn dpdks_xdp_sockets_return_what_ours_send() {
    const FRAMES: u64 = 3200;
    let (a, b) = veth("198.18.0.1/24");
    for namespace in [&a, &b] {
        // The kernel would send IPv6 packets of its own.
        namespace.run(&["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 || true"]);
    }
    let mut testpmd = Testpmd::start_by(|command| b.spawn(command), "net_af_xdp0,iface=vb", "macswap", &[]);
    testpmd.ready();
    assert!(has_program(&b, "vb"));
    for port in ["xdp:va,mode=native", "xdp:va,mode=generic"] {
        let mut ports = a.enter(|| ringpass::open([port], &ringpass::Config::default())).expect("an XDP socket");
        let pool = ports.pool().clone();
        wait_until("the link", || ports[0].link().up);
        let mut queues = ports[0].take_queues().remove(0);
        let mut burst = ringpass::Burst::new(32);
        for number in 0..FRAMES as usize / 32 {
            let frames: Vec<Vec<u8>> =
                (0..32).map(|at| frame((32 * number + at) as u32, 60 + number * 11 % 1455)).collect();
            frames.iter().for_each(|frame| burst.push(ringpass_testing::packet(&pool, frame)));
            assert_eq!(queues.tx.tx_burst(&mut burst), 32);
            let mut back = Vec::new();
            wait_until("the frames to come back", || {
                queues.rx.rx_burst(&mut burst);
                back.extend(burst.iter().map(bytes_of));
                burst.clear();
                back.len() >= 32
            });
            // It has swapped the addresses.
            back.iter_mut().for_each(|frame| frame[..12].rotate_left(6));
            assert!(back == frames, "{port}: burst {number}");
        }
    }
    let forwarded = testpmd.end();
    assert_eq!((forwarded.received, forwarded.sent, forwarded.dropped), (2 * FRAMES, 2 * FRAMES, 0));
}

#[test]
fn locked_memory_that_is_not_allowed_is_named() {
    let (_a, b) = veth("198.18.0.1/24");
    let command = format!("ulimit -l 64; exec {RINGPASS} echo xdp:vb --hugepages off");
    let limited = ["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "sh", "-c", &command];
    let Ended { status, errors, .. } = b.spawn(&limited).wait(Duration::from_secs(20));
    assert!(status == Some(1) && errors.concat().contains("raise 'ulimit -l', or run with CAP_IPC_LOCK"), "{errors:?}");
    assert!(!has_program(&b, "vb"), "the interface is as it was");
}
