//! `make lab-shell`, driven as a user at the terminal would: ixy's applications between two virtio cards.

use std::path::Path;
use std::process::Command;

use crate::common::terminal::Terminal;
use crate::common::{RINGPASS, built};
use serde_json::Value;

/// Parses the summary of a run, which must be its only output.
fn summary(text: &str) -> Value {
    serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_newcomer_tries_what_the_greeting_says() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/lab-shell");
    let folder = Path::new(RINGPASS).parent().unwrap();
    let mut terminal = Terminal::start(Command::new(script).arg(folder));
    terminal.expect("Try:");
    terminal.expect("guest# ");

    let list = terminal.run("ringpass list");
    assert_eq!(list.matches("yes, as virtio network card").count(), 2, "{list}");
    // Runs end after a number of packets, not after a time: how many arrive in a few seconds depends on the
    // load of the machine. A card without a forwarder receives ARP requests.
    let dump = terminal.run("ringpass dump 0000:00:02.0 -c 1 -t 150 2>/dev/null");
    assert!(dump.contains("ARP") && dump.contains("198.18.0.2"), "{dump}");
    // With a forwarder the pings are answered: half of the packets, except some ARP requests before the first
    // answer.
    let fwd = "ringpass fwd capture,file=a.pcap:0000:00:02.0 0000:00:03.0 -c 40 -t 150 --json 2>/dev/null | tail -n 1";
    let passed = summary(&terminal.run(fwd));
    assert!([0, 1].iter().all(|&port| passed["ports"][port]["rx_packets"].as_u64() > Some(5)), "{passed}");
    let dump = terminal.run("ringpass dump pcap:a.pcap 2>/dev/null");
    assert!(dump.contains("198.18.0.1") && dump.contains("198.18.0.2") && dump.contains("ICMP"), "{dump}");
    let sent = summary(&terminal.run("ringpass pktgen 0000:00:02.0 -c 5000 --json 2>/dev/null | tail -n 1"));
    assert!(sent["ports"][0]["tx_packets"].as_u64() >= Some(5000), "{sent}");
    // Ctrl-C ends the running command, not the guest.
    terminal.keys("ringpass fwd 0000:00:02.0 0000:00:03.0\n");
    terminal.expect("drops");
    terminal.keys("\x03");
    terminal.expect("s in all");
    terminal.end();
}

#[test]
fn without_namespaces_the_cards_are_in_qemus_user_networks() {
    let launcher = built("examples/shell");
    let mut terminal = Terminal::start(Command::new(launcher).args([RINGPASS, "user-networks"]));
    terminal.expect("Try:");
    terminal.expect("guest# ");
    terminal.run("ringpass fwd 0000:00:02.0 tap:t0 --json >log 2>&1 &\ntrue");
    terminal.run("until ip link set t0 up 2>/dev/null; do sleep 0.1; done; ip address add 10.0.2.15/24 dev t0");
    let pings = terminal.run("ping -c 5 -w 60 10.0.2.2");
    assert!(pings.contains(" 0% packet loss"), "{pings}");
    terminal.run("kill %1; wait; tail -n 1 log | grep -q summary");
    terminal.end();
}
