//! The frames of `ringpass pktgen`, as the kernel and tshark see them.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Ended, Namespace, RINGPASS, folder, ringpass, run, text, wait_until};

/// Kinds of frames, by their options.
const KINDS: [&[&str]; 8] = [
    &[],
    &["--tcp"],
    &["--src-ip", "2001:db8::2"],
    &["--src-ip", "2001:db8::2", "--tcp"],
    &["--vlan", "100:5"],
    &["--vlan", "100:5", "--tcp"],
    &["--vlan", "100:5", "--dst-ip", "2001:db8::1"],
    &["--vlan", "100:5", "--dst-ip", "2001:db8::1", "--tcp"],
];

/// Fields that vary, of all kinds of frames.
const VARY: [&str; 12] = [
    "--vary",
    "src-ip=count",
    "--vary",
    "dst-ip=random",
    "--vary",
    "src-port=random:1024-65535",
    "--vary",
    "dst-port=count",
    "--vary",
    "src-mac=random",
    "--vary",
    "dst-mac=count:02:00:00:00:01:fe-02:00:00:00:02:05",
];

/// Returns what tshark says of a field in each frame of a file. Wrong checksums are malformed for it.
fn fields(file: &std::path::Path, fields: &[&str]) -> Vec<String> {
    let mut command = vec!["tshark", "-r", text(file), "-T", "fields"];
    for check in ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"] {
        command.extend(["-o", check]);
    }
    fields.iter().for_each(|field| command.extend(["-e", *field]));
    run(&command).lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn tshark_sees_fields_that_vary() {
    let folder = folder();
    let file = folder.path().join("varied.pcap");
    let port = format!("pcap:,out={}", text(&file));
    let options = ["--vlan", "4090:5", "--vary", "vlan=count", "--dst-ip", "2001:db8::1"];
    let (status, _, errors) = ringpass(&[&["pktgen", &port, "-c", "24"], &options[..], &VARY].concat());
    assert_eq!(status, Some(0), "{errors}");
    let lines = fields(&file, &["vlan.id", "vlan.priority", "ipv6.src", "udp.dstport", "eth.dst"]);
    for (n, line) in lines.iter().enumerate() {
        let (vlan, host, port) = (4090 + n % 5, 1 + n, 50000 + n);
        let mac = 0x1fe + n % 8;
        let mac = format!("02:00:00:00:{:02x}:{:02x}", mac >> 8, mac & 0xff);
        assert_eq!(*line, format!("{vlan}\t5\t2001:2::{host:x}\t{port}\t{mac}"), "{lines:?}");
    }
    let different = |field| fields(&file, &[field]).into_iter().collect::<HashSet<_>>().len();
    assert!(["ipv6.dst", "udp.srcport", "eth.src"].map(different).iter().all(|&n| n > 20));
}

#[test]
fn tshark_finds_the_checksums_of_all_kinds_right() {
    let folder = folder();
    let (all, least) = (folder.path().join("all.pcap"), [60, 72, 80, 92, 64, 76, 84, 96]);
    let (mut files, mut expected) = (Vec::new(), Vec::new());
    for (kind, least) in KINDS.iter().zip(least) {
        let with_offload = [&["--offloads", "checksum"], &VARY[..]].concat();
        for options in [&[][..], &["--offloads", "checksum"], &["--imix", "--flows", "5"], &VARY, &with_offload] {
            let file = folder.path().join(format!("{}.pcap", files.len()));
            let port = format!("pcap:,out={}", text(&file));
            let (status, _, errors) = ringpass(&[&["pktgen", &port, "-c", "24"], *kind, options].concat());
            assert_eq!(status, Some(0), "{errors}");
            files.push(text(&file).to_owned());
            expected.push(least);
        }
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    run(&[&["mergecap", "-a", "-w", text(&all)], &files[..]].concat());
    let names = ["frame.len", "ip.checksum.status", "udp.checksum.status", "tcp.checksum.status"];
    let lines = fields(&all, &names);
    assert_eq!(lines.len(), 24 * expected.len());
    for ((lines, least), file) in lines.chunks(24).zip(expected).zip(&files) {
        let mut lengths = Vec::new();
        for line in lines {
            let (len, statuses) = line.split_once('\t').expect("at least one checksum");
            lengths.push(len.parse::<usize>().expect("a length"));
            // Good is 1; IPv6 has none.
            assert!(statuses.split('\t').all(|status| matches!(status, "1" | "")), "{file}: {line}");
        }
        assert_eq!(lengths.into_iter().min(), Some(least), "{file}");
    }
    let last = std::path::Path::new(files.last().expect("several"));
    let names = ["vlan.id", "vlan.priority", "tcp.flags.str", "ipv6.src", "ipv6.dst"];
    let line = &fields(last, &names)[0];
    assert!(line.starts_with("100\t5\t·······A····\t2001:2::1\t2001:db8::"), "{line}");
}

/// Connects two namespaces by a pair of veth. The one of the second has addresses.
fn veth() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
    a.ip(&["link", "set", "va", "up"]);
    b.run(&["sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/vb/disable_ipv6"]);
    b.ip(&["link", "set", "vb", "up"]);
    b.ip(&["address", "add", "198.51.100.1/24", "dev", "vb"]);
    b.ip(&["address", "add", "2001:db8::1/64", "dev", "vb", "nodad"]);
    wait_until("the link", || a.ip(&["link", "show", "va"]).contains("state UP"));
    (a, b)
}

/// Returns one of the kernel's counters.
fn counter(namespace: &Namespace, name: &str) -> u64 {
    let text = namespace.run(&["nstat", "-asz", name]);
    let line = text.lines().find(|line| line.starts_with(name)).expect("the kernel counts them");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[test]
fn the_kernel_takes_datagrams_and_segments() {
    // As many as fit into a socket's buffer.
    const COUNT: u64 = 200;
    let (a, b) = veth();
    let mac = b.mac("vb");
    let sockets =
        ["0.0.0.0:50000", "[::]:50001"].map(|address| b.enter(|| UdpSocket::bind(address)).expect("a socket"));
    for socket in &sockets {
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("above 0");
    }
    let count = COUNT.to_string();
    let send = |more: &[&str]| {
        let common = [RINGPASS, "pktgen", "packet:va", "--count", &count, "--rate", "20k", "--dst-mac", &mac, "--json"];
        a.run(&[&common, more].concat());
    };
    for (socket, port, from, to) in
        [(&sockets[0], "50000", "198.51.100.2", "198.51.100.1"), (&sockets[1], "50001", "2001:db8::2", "2001:db8::1")]
    {
        for offloads in ["none", "checksum"] {
            let options = ["--offloads", offloads, "--src-ip", from, "--dst-ip", to, "--port", port];
            send(&options);
            for n in 0..COUNT {
                let (len, sender) = socket.recv_from(&mut [0; 2048]).unwrap_or_else(|e| panic!("{options:?} {n}: {e}"));
                assert_eq!((len, sender.ip().to_string()), (18, from.to_owned()));
            }
            // Segments of a connection that does not exist are answered by a reset each, if they are right.
            let (before, errors) = (counter(&b, "TcpOutRsts"), counter(&b, "TcpInCsumErrors"));
            send(&[&options[..], &["--tcp"]].concat());
            wait_until("the segments", || counter(&b, "TcpOutRsts") == before + COUNT);
            assert_eq!(counter(&b, "TcpInCsumErrors"), errors);
        }
    }
}

#[test]
fn frames_of_streams_return_to_their_streams() {
    let (a, b) = veth();
    let echo = b.spawn(&[RINGPASS, "echo", "packet:vb", "--json", "--interval", "0.05"]);
    wait_until("its first line", || !echo.line().is_empty());
    let folder = folder();
    let file = folder.path().join("streams.toml");
    let streams = "[[stream]]\nweight = 3\nvary = [\"dst-port=count\"]\n[[stream]]\nvlan = \"100:5\"\ntcp = true\n\
        [[stream]]\nsrc-ip = \"2001:db8::2\"\nimix = true\nflows = 5\nrate = 1000\n";
    std::fs::write(&file, streams).expect("a file");
    let generator = [RINGPASS, "pktgen", "packet:va", "--streams", text(&file), "--rate", "4k", "-c", "500"];
    let summary = a.spawn(&[&generator[..], &["--json"]].concat()).wait(Duration::from_secs(30));
    assert_eq!(summary.status, Some(0), "{:?}", summary.errors);
    let summary: Value = serde_json::from_str(summary.lines.last().expect("a summary")).expect("JSON");
    let number = |stream: &Value, name: &str| stream[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
    assert_eq!(["sent", "returned", "lost"].map(|name| number(&summary, name)), [500, 500, 0]);
    let streams = summary["streams"].as_array().expect("the streams");
    let sent: Vec<u64> = streams.iter().map(|stream| number(stream, "sent")).collect();
    assert!(sent[1] > 50 && sent[0].abs_diff(3 * sent[1]) <= 3 && sent[2].abs_diff(sent[1]) < 40, "{summary}");
    for (stream, sent) in streams.iter().zip(&sent) {
        let numbers = ["returned", "lost", "reordered", "duplicate"].map(|name| number(stream, name));
        assert_eq!(numbers, [*sent, 0, 0, 0], "{summary}");
        assert!(stream["round_trip_p50_us"].as_f64() > Some(0.0), "{summary}");
    }
    let lines = a.run(&generator);
    let last: Vec<&str> = lines.lines().rev().take(4).collect();
    assert!(last[3].starts_with("sent 500, returned 500, lost 0") && last[0].starts_with("stream 3: sent "), "{lines}");
}

#[test]
fn frames_of_all_kinds_are_recognised_when_they_return() {
    let (a, b) = veth();
    let echo = b.spawn(&[RINGPASS, "echo", "packet:vb", "--json", "--interval", "0.05"]);
    wait_until("its first line", || !echo.line().is_empty());
    let kinds = KINDS.iter().map(|kind| [&["--flows", "8"], *kind].concat());
    let varied = KINDS.iter().map(|kind| [&VARY, *kind].concat());
    for kind in kinds.chain(varied) {
        let common = [RINGPASS, "pktgen", "packet:va", "-c", "200", "--rate", "10k", "--json"];
        let generator = a.spawn(&[&common[..], &kind].concat());
        let Ended { status, lines, errors } = generator.wait(Duration::from_secs(30));
        assert_eq!(status, Some(0), "{errors:?}");
        let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
        let numbers =
            ["sent", "returned", "lost", "reordered", "duplicate"].map(|name| summary[name].as_u64().unwrap());
        assert_eq!(numbers, [200, 200, 0, 0, 0], "{kind:?}: {summary}");
        let round_trips = ["p50", "p90", "p99", "p99.9", "max"]
            .map(|name| summary[format!("round_trip_{name}_us")].as_f64().unwrap());
        assert!(round_trips[0] > 0.0 && round_trips.is_sorted(), "{round_trips:?}");
    }
    drop(echo);
}
