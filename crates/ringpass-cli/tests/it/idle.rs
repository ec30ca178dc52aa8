//! A forwarder without traffic sleeps, and wakes for each packet; so do a slow generator and a slow ping.
//! `ringpass bench idle` measures how much it sleeps; this test only checks that nothing spins.

use std::time::Duration;

use crate::common::guest::answered;
use crate::common::netmap::Netmapd;
use crate::common::{Namespace, Program, RINGPASS, unique, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

/// Returns the clock ticks that a process has used (proc(5), `stat`: utime and stime, a hundredth of a second
/// each).
fn ticks(process: &Program) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Fails if the process spins.
fn sleeps(what: &str, process: &Program) {
    std::thread::sleep(Duration::from_secs(1));
    let before = ticks(process);
    std::thread::sleep(Duration::from_secs(3));
    let used = ticks(process) - before;
    println!("{what}: {used} of 300 ticks");
    assert!(used < 15, "{what} used {used} ticks in 3 s");
}

/// Starts ringpass in a namespace and waits until it is up.
fn start(namespace: &Namespace, arguments: &[&str]) -> Program {
    let program = namespace.spawn(&[&[RINGPASS], arguments, &["--json"]].concat());
    wait_until("the first line", || !program.line().is_empty());
    program
}

#[test]
fn a_forwarder_without_traffic_sleeps_and_wakes_for_pings() {
    for model in ["", "model:"] {
        let (a, b, middle) = (Namespace::new(), Namespace::new(), Namespace::new());
        let (left, right) = (unique("il"), unique("ir"));
        let forwarder = start(&middle, &["fwd", &format!("{model}tap:{left}"), &format!("{model}tap:{right}")]);
        a.take(&middle, &left, "198.18.0.1/24");
        b.take(&middle, &right, "198.18.0.2/24");
        sleeps(&format!("fwd {model}tap"), &forwarder);
        let text = a.run(&["ping", "-c", "10", "-i", "0.2", "-w", "60", "198.18.0.2"]);
        assert!(answered(&text, 10), "{text}");
        sleeps("after the pings", &forwarder);
        forwarder.summary();
    }
}

#[test]
fn the_bench_measures_what_it_says() {
    let namespace = Namespace::new();
    let text = namespace.run(&[RINGPASS, "bench", "idle", "--through", "tap,model", "-t", "1", "-c", "10", "--json"]);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 2, "{text}");
    for row in rows {
        let of = |what: &str| row[what].as_f64().unwrap_or_else(|| panic!("no {what}: {row}"));
        assert_eq!(of("packets") + of("lost"), 10.0);
        assert!(0.0 < of("min_us") && of("min_us") <= of("median_us") && of("median_us") <= of("max_us"), "{row}");
        assert!((0.0..200.0).contains(&of("cpu_percent")), "{row}");
    }
}

#[test]
fn packet_sockets_sleep_also_while_their_interface_is_down() {
    let middle = Namespace::new();
    for pair in ["x", "y"] {
        let (one, other) = (format!("{pair}0"), format!("{pair}1"));
        middle.run(&["ip", "link", "add", &one, "type", "veth", "peer", "name", &other]);
        [&one, &other].iter().for_each(|name| _ = middle.run(&["ip", "link", "set", name, "up"]));
    }
    let forwarder = start(&middle, &["fwd", "packet:x0", "packet:y0"]);
    sleeps("fwd packet", &forwarder);
    middle.run(&["ip", "link", "set", "x0", "down"]);
    sleeps("fwd packet, one down", &forwarder);
    middle.run(&["ip", "link", "set", "x0", "up"]);
    let generator = middle.spawn(&[RINGPASS, "pktgen", "packet:x1", "-c", "10", "--rate", "100", "--json"]);
    generator.wait(Duration::from_secs(20));
    wait_until("ten packets at the other end", || middle.counter("y1", "rx_packets") == 10);
    let summary = forwarder.summary();
    assert_eq!(summary["ports"][1]["tx_packets"], 10, "{summary}");
}

#[test]
fn a_slow_generator_and_a_slow_ping_sleep() {
    let middle = Namespace::new();
    middle.run(&["ip", "link", "add", "x0", "type", "veth", "peer", "name", "x1"]);
    ["x0", "x1"].iter().for_each(|name| _ = middle.run(&["ip", "link", "set", name, "up"]));
    let generator = start(&middle, &["pktgen", "packet:x0", "--rate", "50"]);
    sleeps("pktgen at 50 packets a second", &generator);
    // It skips packets for which it is too late.
    wait_until("150 packets", || middle.counter("x0", "tx_packets") > 150);
    let sent = generator.summary();
    assert!(sent["sent"].as_u64() > Some(150), "{sent}");

    let echo = start(&middle, &["echo", "packet:x1"]);
    let ping = start(&middle, &["ping", "packet:x0", "--interval", "0.5", "-c", "9", "-W", "20"]);
    sleeps("ping twice a second", &ping);
    sleeps("echo", &echo);
    let Ended { status, lines, errors } = ping.wait(Duration::from_secs(30));
    assert_eq!(status, Some(0), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).unwrap();
    assert_eq!((&summary["answers"], &summary["lost"]), (&Value::from(9), &Value::from(0)), "{summary}");
}

/// Returns the voluntary context switches of a process's workers so far. A sleep costs one; polling at
/// intervals costs thousands of them a second.
fn switches(process: &Program) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("the process runs");
    let status = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let workers: Vec<String> = status
        .filter(|status| ["Name:\tworker-", "Name:\tmodels\n"].iter().any(|name| status.starts_with(name)))
        .collect();
    assert!(!workers.is_empty());
    let count = |status: &String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).expect("a count")
    };
    workers.iter().map(count).sum()
}

/// A worker can sleep on a queue that waits for several things also behind decorators and at the far end of a
/// model's wire.
#[test]
fn programs_at_decorated_netmap_ports_sleep() {
    let netmapd = Netmapd::new(&[]);
    let capture =
        |number: u32| format!("capture,file={}", netmapd.folder.path().join(format!("{number}.pcap")).display());
    for (number, port) in ["", "faults:", "model:"].iter().enumerate() {
        let port = format!("{}:{port}vale0:idle{number}", capture(number as u32));
        let forwarder = netmapd.spawn(&["fwd", &port, "null", "--json"]);
        wait_until("the first line", || !forwarder.line().is_empty());
        std::thread::sleep(Duration::from_secs(1));
        let before = switches(&forwarder);
        std::thread::sleep(Duration::from_secs(3));
        let count = switches(&forwarder) - before;
        println!("{port}: {count} wake-ups in 3 s");
        // It checks for its end ten times a second; polling at intervals would cost about twenty thousand
        // context switches.
        assert!(count < 300, "{port}: {count} wake-ups in 3 s");
        forwarder.summary();
    }
    netmapd.end();
}
