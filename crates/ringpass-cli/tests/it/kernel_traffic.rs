//! The kernel's own traffic through the forwarder: namespace A – TAP – wire of card 1 – driver – `fwd` – driver
//! – wire of card 2 – TAP – namespace B.

use crate::common::guest::tcp_from;
use crate::common::{Lab, flood, folder, noise, text, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

fn lab() -> Lab {
    Lab::new(|_, card| card.to_owned(), &[])
}

/// After the traffic, the counters of the kernel, the models and the driver agree to the packet.
fn counters_agree(lab: Lab) {
    let (a, b) = (&lab.a, &lab.b);
    // An answer may be in flight, and TCP delays some.
    std::thread::sleep(std::time::Duration::from_millis(300));
    wait_until("all to have arrived", || {
        let of = |counter| [a.counter(&lab.left, counter), b.counter(&lab.right, counter)];
        let ([left, right], received) = (of("tx_packets"), of("rx_packets"));
        [right, left] == received
    });
    let kernel = [(a, &lab.left), (b, &lab.right)].map(|(namespace, tap)| {
        ["tx_packets", "tx_bytes", "rx_packets", "rx_bytes", "tx_dropped", "rx_dropped"]
            .map(|counter| namespace.counter(tap, counter))
    });
    let summary = lab.forwarder.summary();
    for (port, [tx_packets, tx_bytes, rx_packets, rx_bytes, tx_dropped, rx_dropped]) in kernel.into_iter().enumerate() {
        let driver = &summary["ports"][port];
        let model = &driver["extended"];
        assert_eq!([tx_dropped, rx_dropped], [0, 0], "the kernel's drops");
        for (what, kernel) in
            [("rx_packets", tx_packets), ("rx_bytes", tx_bytes), ("tx_packets", rx_packets), ("tx_bytes", rx_bytes)]
        {
            assert_eq!(driver[what], kernel, "{what} of the driver against the kernel's: {summary}");
            assert_eq!(model[format!("model_{what}")], kernel, "{what} of the model against the kernel's: {summary}");
        }
        assert_eq!((&driver["rx_drops"], &driver["tx_drops"]), (&Value::from(0), &Value::from(0)), "{summary}");
    }
    assert_eq!(summary["forwarder_drops"], 0);
}

#[test]
fn ten_thousand_pings_come_back() {
    let lab = lab();
    flood(&lab.a, &lab.left, "198.18.0.2", 10_000, &[]);
    counters_agree(lab);
}

#[test]
fn every_way_to_drive_the_card_loses_nothing() {
    for options in [
        &["--head-write-back"][..],
        &["--hugepages", "off", "--rxd", "64", "--txd", "64", "--batch", "1"],
        &["--queues", "4", "--rxd", "4096", "--txd", "128", "--batch", "256"],
    ] {
        let lab = Lab::new(|_, card| card.to_owned(), options);
        flood(&lab.a, &lab.left, "198.18.0.2", 1000, &[]);
        counters_agree(lab);
    }
}

#[test]
fn tcp_runs_both_ways() {
    let lab = lab();
    for direction in [&[][..], &["-R"]] {
        let client = [&["iperf3", "-c", "198.18.0.2", "-t", "3", "-J"], direction].concat();
        let rate = tcp_from(&lab.b, || lab.a.run(&client));
        println!("iperf3 {direction:?}: {rate:.0} Mbit/s");
    }
    // TCP overloads the wires now and then, where frames may be lost; no other frames were lost.
    let summary = lab.forwarder.summary();
    assert_eq!(summary["ports"].as_array().unwrap().len(), 2);
}

#[test]
fn a_file_arrives_whole() {
    let lab = lab();
    let (from, to) = (folder(), folder());
    let content = noise(1 << 20);
    std::fs::write(from.path().join("file"), &content).unwrap();
    let server = lab.b.spawn(&[
        "python3",
        "-u",
        "-m",
        "http.server",
        "8000",
        "--bind",
        "198.18.0.2",
        "--directory",
        text(from.path()),
    ]);
    wait_until("the server", || server.line().contains("Serving"));
    let fetched = to.path().join("file");
    lab.a.run(&["curl", "-sS", "--max-time", "20", "-o", text(&fetched), "http://198.18.0.2:8000/file"]);
    assert!(std::fs::read(&fetched).unwrap() == content, "the file differs");
    drop(server);
    counters_agree(lab);
}

#[test]
fn a_wire_that_is_cut_ends_the_forwarder_with_its_statistics() {
    let lab = lab();
    lab.a.run(&["ip", "link", "delete", &lab.left]);
    let Ended { status, lines, errors } = lab.forwarder.wait(std::time::Duration::from_secs(10));
    assert_eq!(status, Some(1), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).unwrap();
    assert_eq!(summary["event"], "summary");
    assert!(summary["ports"][0]["rx_packets"].as_u64() > Some(0), "{summary}");
    assert!(errors.last().is_some_and(|line| line.contains(&lab.left)), "{errors:?}");
}

#[test]
fn the_packet_path_makes_no_system_call_while_packets_flow() {
    // Two cards that only receive from each other's wires would be idle, so a polling generator sends to them.
    let demo = crate::common::Program::spawn(&[crate::common::RINGPASS, "demo", "--json", "--poll"]);
    wait_until("the first line", || !demo.line().is_empty());
    let mut thread = String::new();
    // The thread sets its name when it starts.
    wait_until("the forwarder's thread", || {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", demo.id())).unwrap().flatten();
        let is_it = |name: String| name.starts_with("worker-0");
        let worker = tasks.find(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(is_it));
        worker.map(|worker| thread = worker.file_name().into_string().unwrap()).is_some()
    });
    let trace = folder();
    let file = trace.path().join("trace");
    let command = "exec strace -c -o \"$0\" -p \"$1\" 2>&1";
    let strace = crate::common::Program::spawn(&["sh", "-c", command, text(&file), &thread]);
    let message = strace.line();
    assert!(message.contains(&format!("Process {thread} attached")), "strace must be there, and allowed: {message}");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let received = || -> Option<u64> {
        let stats: Value = serde_json::from_str(&demo.line()).ok()?;
        stats["ports"][0]["rx_packets"].as_u64()
    };
    let before = received();
    wait_until("traffic", || received() > before.map(|before| before + 10_000));
    strace.signal("INT");
    strace.wait(std::time::Duration::from_secs(20));
    // Without any call, strace does not even print the head of its table.
    let table = std::fs::read_to_string(&file).expect("strace's summary");
    assert_eq!(table.trim(), "", "system calls of the forwarding thread");
    demo.summary();
}
