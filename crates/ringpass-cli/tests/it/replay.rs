//! Captures through the forwarder.

use std::time::Duration;

use crate::common::{Lab, Program, RINGPASS, folder, ringpass, text, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

/// Returns tcpdump's output for a capture: a line for each packet with all of its bytes, without the time.
fn packets(file: &std::path::Path) -> String {
    crate::common::run(&["tcpdump", "-r", text(file), "-t", "-n", "-xx"])
}

#[test]
fn the_kernels_traffic_is_captured_replayed_and_dumped_byte_for_byte() {
    let files = folder();
    let capture = files.path().join("kernel.pcap");
    {
        let lab = Lab::new(
            |side, card| match side {
                "left" => format!("capture,file={}:{card}", text(&capture)),
                _ => card.to_owned(),
            },
            &[],
        );
        lab.a.run(&["ping", "-f", "-q", "-c", "2000", "-s", "1000", "198.18.0.2"]);
        lab.forwarder.summary();
    }
    let before = packets(&capture);
    let count = before.lines().filter(|line| !line.starts_with('\t')).count();
    assert!(count >= 4000, "{count} packets captured");
    // Few enough for rings of 4096 to hold them all, however long a thread has to wait for a core.
    assert!(count < 4096, "{count} packets captured");

    // The capture goes into the wire of one card, through its driver, the forwarder and another driver, out of
    // the wire of the second card, and into a file.
    let replayed = files.path().join("replayed.pcap");
    let (left, right) =
        (format!("model:pcap:{},speed=recorded", text(&capture)), format!("model:pcap:,out={}", text(&replayed)));
    let (status, out, errors) = ringpass(&["fwd", &left, &right, "--json", "--rxd", "4096", "--txd", "4096"]);
    assert_eq!(status, Some(0), "{out}{errors}");
    let summary: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(summary["ports"][1]["tx_packets"], count, "{summary}");
    assert!(packets(&replayed) == before, "the replayed packets differ");

    // From one process to another: replayed by pktgen, captured by dump, over a veth pair.
    let (a, b) = (crate::common::Namespace::new(), crate::common::Namespace::new());
    a.run(&["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
    a.run(&["ip", "link", "set", "va", "up"]);
    b.run(&["ip", "link", "set", "vb", "up"]);
    let dumped = files.path().join("dumped.pcap");
    let dump = b.spawn(&[
        RINGPASS,
        "dump",
        "packet:vb",
        "-w",
        text(&dumped),
        "--count",
        &count.to_string(),
        "--time",
        "30",
        "--rxd",
        "4096",
        "--json",
    ]);
    wait_until("the interface to be listened to", || b.run(&["cat", "/proc/net/packet"]).lines().count() > 1);
    let pktgen = [RINGPASS, "pktgen", "packet:va", "--pcap", text(&capture), "--rate", "20k", "--json"];
    let generator = a.spawn(&pktgen);
    let Ended { status, errors, .. } = generator.wait(Duration::from_secs(30));
    assert_eq!(status, Some(0), "{errors:?}");
    let Ended { status, errors, .. } = dump.wait(Duration::from_secs(40));
    assert_eq!(status, Some(0), "{errors:?}");
    assert!(packets(&dumped) == before, "the dumped packets differ");
}

#[test]
fn echo_answers_ping() {
    let (a, b) = (crate::common::Namespace::new(), crate::common::Namespace::new());
    a.run(&["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
    a.run(&["ip", "link", "set", "va", "up"]);
    b.run(&["ip", "link", "set", "vb", "up"]);
    let echo = b.spawn(&[RINGPASS, "echo", "packet:vb", "--json"]);
    wait_until("the interface to be listened to", || b.run(&["cat", "/proc/net/packet"]).lines().count() > 1);
    let ping = a.spawn(&[RINGPASS, "ping", "packet:va", "--count", "20", "--interval", "0.01", "-W", "10", "--json"]);
    let Ended { status, lines, errors } = ping.wait(Duration::from_secs(20));
    assert_eq!(status, Some(0), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(summary["event"], "summary");
    assert_eq!((&summary["ports"][0]["tx_packets"], &summary["ports"][0]["rx_packets"]), (&20.into(), &20.into()));
    echo.summary();
}

#[test]
fn bad_captures_are_refused_in_one_line() {
    let files = folder();
    let garbage = files.path().join("garbage.pcap");
    std::fs::write(&garbage, b"this is no capture at all, is it").unwrap();
    let missing = files.path().join("missing.pcap");
    for file in [&garbage, &missing] {
        let (status, out, errors) = ringpass(&["fwd", &format!("pcap:{}", text(file)), "null"]);
        assert_eq!((status, out.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.lines().last().unwrap().starts_with("ringpass: ") && errors.contains(text(file)), "{errors}");
    }
}

#[test]
fn a_truncated_capture_is_played_to_its_end_and_is_an_error() {
    let files = folder();
    let (whole, cut, out) = (files.path().join("w.pcap"), files.path().join("c.pcap"), files.path().join("o.pcap"));
    let (status, _, errors) = ringpass(&["pktgen", &format!("pcap:,out={}", text(&whole)), "--count", "100", "--json"]);
    assert_eq!(status, Some(0), "{errors}");
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
    let (status, summary, errors) =
        ringpass(&["fwd", &format!("pcap:{}", text(&cut)), &format!("pcap:,out={}", text(&out)), "--json"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.lines().last().unwrap().contains("truncated"), "{errors}");
    let summary: Value = serde_json::from_str(summary.lines().last().unwrap()).unwrap();
    assert_eq!(summary["ports"][1]["tx_packets"], 99, "{summary}");
}

#[test]
fn a_second_ctrl_c_ends_at_once_and_the_first_with_a_summary() {
    let program = Program::spawn(&[RINGPASS, "fwd", "null", "null", "--json"]);
    wait_until("the first line", || !program.line().is_empty());
    program.summary();
}
