//! `ringpass loadtest` with devices whose limits are known: the kernel's bridge and queues, `fwd` that spoils frames.

use std::time::Duration;

use serde_json::Value;

use crate::common::{Ended, Namespace, Program, RINGPASS, folder, ringpass, text, wait_until};

/// Creates a namespace in which packets of `v1` pass to `p1`, and those of `v2` to `p2`.
fn wires() -> Namespace {
    let namespace = Namespace::new();
    for [near, far] in [["v1", "p1"], ["v2", "p2"]] {
        namespace.ip(&["link", "add", "name", near, "type", "veth", "peer", "name", far]);
        [near, far].iter().for_each(|name| drop(namespace.ip(&["link", "set", name, "up"])));
    }
    namespace
}

/// Connects `p1` and `p2` by the kernel's bridge.
fn bridge() -> Namespace {
    let namespace = wires();
    namespace.ip(&["link", "add", "name", "switch", "type", "bridge"]);
    ["p1", "p2"].iter().for_each(|name| drop(namespace.ip(&["link", "set", name, "master", "switch"])));
    namespace.ip(&["link", "set", "switch", "up"]);
    namespace
}

/// Connects `p1` and `p2` by `ringpass fwd`, whose port of `p1` has a decorator.
fn forwarder(decorator: &str) -> (Namespace, Program) {
    let namespace = wires();
    let port = format!("{decorator}packet:p1");
    let program = namespace.spawn(&[RINGPASS, "fwd", &port, "packet:p2", "--json", "--interval", "0.05"]);
    wait_until("its first line", || !program.line().is_empty());
    (namespace, program)
}

/// Measures between the ports; returns the objects that are printed.
fn measure(namespace: &Namespace, ports: &[&str], options: &[&str]) -> Vec<Value> {
    let command = [&[RINGPASS, "loadtest"], ports, &["--json", "--trial", "0.4"], options].concat();
    let Ended { status, lines, errors } = namespace.spawn(&command).wait(Duration::from_secs(100));
    assert_eq!(status, Some(0), "{errors:?}");
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

const BOTH: [&str; 2] = ["packet:v1", "packet:v2"];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

#[test]
fn the_limit_of_a_bridge_is_its_throughput() {
    let namespace = bridge();
    // 4167 frames of 60 bytes a second, and in each trial some 130 more, which its buckets hold.
    namespace
        .run(&["tc", "qdisc", "add", "dev", "p2", "root", "tbf", "rate", "2mbit", "burst", "4000", "limit", "4000"]);
    let folder = folder();
    let report = folder.path().join("report.html");
    let measured = measure(
        &namespace,
        &BOTH,
        &["--sizes", "60,508", "--max-rate", "20k", "--retries", "4", "--report", text(&report)],
    );
    let page = std::fs::read_to_string(&report).expect("a report");
    for part in ["Between packet:v1 and packet:v2", "<title>throughput, 508: ", "<title>60 bytes, 100: 7", "</html>"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let [short, long, summary] = &measured[..] else { panic!("{measured:?}") };
    for (result, size, limit) in [(short, 60.0, 4167.0), (long, 508.0, 492.0)] {
        assert_eq!((number(&result["size"]), &result["complete"]), (size, &true.into()), "{result}");
        let throughput = number(&result["throughput"]["frames_per_second"]);
        // A busy machine may lose frames below the limit.
        assert!((limit * 0.7..limit * 1.12).contains(&throughput), "{result}");
        assert_eq!(result["throughput"]["limited_by"], "device");
        let bits = number(&result["throughput"]["bits_per_second"]);
        assert!((bits / throughput / 8.0 - size).abs() < 0.1, "{result}");
        let times = ["min", "p50", "p99", "p99.9", "max"].map(|name| number(&result["latency_us"][name]));
        assert!(times[0] > 0.0 && times.is_sorted() && number(&result["latency_us"]["jitter"]) >= 0.0, "{result}");
        let loss = result["loss"].as_array().expect("rows");
        let full = number(&loss[0]["loss_percent"]);
        assert!((full - (100.0 - limit / 200.0)).abs() < 4.0, "{result}");
        for row in loss {
            let [sent, returned, lost] = ["sent", "returned", "lost"].map(|name| number(&row[name]));
            assert_eq!(sent, returned + lost, "{row}");
        }
    }
    assert_eq!((&summary["event"], &summary["complete"]), (&"summary".into(), &true.into()));
}

#[test]
fn frames_that_are_lost_or_come_twice_are_counted_apart() {
    let (namespace, _program) = forwarder("faults,drop=0.1,duplicate=0.05,seed=1:");
    let options = ["--size", "200", "--max-rate", "5k", "--tests", "loss,throughput", "--loss", "20"];
    let measured = measure(&namespace, &BOTH, &options);
    let result = &measured[0];
    // On a busy machine the sender is the limit.
    assert!(result["throughput"]["limited_by"] != "device" && result["loss"][9].is_object(), "{result}");
    for row in result["loss"].as_array().expect("rows").iter().take(5) {
        assert!((5.0..16.0).contains(&number(&row["loss_percent"])), "{result}");
        assert!(number(&row["duplicate"]) > 0.0, "{result}");
    }
    assert!(result["latency_us"].is_null(), "{result}");
}

#[test]
fn frames_return_to_one_port_or_pass_both_ways_in_a_table() {
    let namespace = wires();
    let echo = namespace.spawn(&[RINGPASS, "echo", "packet:p1", "--json", "--interval", "0.05"]);
    wait_until("its first line", || !echo.line().is_empty());
    let common = ["--max-rate", "2k", "--tests", "throughput,latency", "--loss", "1"];
    let result = &measure(&namespace, &["packet:v1"], &[&common[..], &["--sizes", "60"]].concat())[0];
    assert!(number(&result["throughput"]["frames_per_second"]) > 500.0, "{result}");
    drop(echo);
    let (namespace, _program) = forwarder("");
    let both =
        [&[RINGPASS, "loadtest"], &BOTH[..], &["--both-ways", "--imix", "--flows", "8", "--trial", "0.2"], &common]
            .concat();
    let lines = namespace.run(&both);
    let row = lines.lines().find(|line| line.trim().starts_with("mix ")).unwrap_or_else(|| panic!("{lines}"));
    assert!(row.contains("pps ") && row.contains("bit/s "), "{lines}");
    assert!(lines.contains("latency at the throughput") && !lines.contains("frame loss"), "{lines}");
}

#[test]
fn ctrl_c_ends_it_with_what_was_measured() {
    let (namespace, _program) = forwarder("");
    let options = ["--json", "--trial", "0.2", "--max-rate", "2k", "--sizes", "60,1514", "--tests", "latency"];
    let options = [&options[..], &["--loss", "90"]].concat();
    let program = namespace.spawn(&[&[RINGPASS, "loadtest"], &BOTH[..], &options].concat());
    wait_until("a result", || program.line().contains("\"result\""));
    program.signal("INT");
    let Ended { status, lines, errors } = program.wait(Duration::from_secs(30));
    assert_eq!(status, Some(0), "{errors:?}");
    assert!(lines.last().is_some_and(|line| line.ends_with("\"complete\":false}")), "{lines:?}");
    assert!(errors.iter().any(|line| line == "ended before all was measured: 1 of 2 sizes are complete"), "{errors:?}");
}

#[test]
fn without_a_device_it_says_what_to_do() {
    let (status, _, errors) = ringpass(&["loadtest", "null", "--no-sandbox", "--wait", "0.01"]);
    assert_eq!(status, Some(1), "{errors}");
    let line = errors.lines().last().expect("an error");
    assert!(line.starts_with("ringpass: no frame came back; connect both ports"), "{errors}");
    for (options, expected) in [
        (&["--queues", "2"][..], "leave out --queues"),
        (&["--report", "/nowhere/report.html"], "--report /nowhere/report.html: "),
        (&["--max-rate", "40%"], "the link speed of null is not known"),
        (&["--sizes", "60,9000"], "frames of 9000 bytes, but --mtu 1500 allows 1514"),
        (&["--sizes", "60", "--tcp"], "frames of 60 bytes, but TCP over IPv4 takes 72"),
    ] {
        let (status, out, errors) = ringpass(&[&["loadtest", "null", "--no-sandbox"], options].concat());
        assert_eq!((status, out.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.lines().last().is_some_and(|line| line.contains(expected)), "{errors}");
    }
}
