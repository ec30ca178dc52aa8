//! XDP sockets from the command line, with the kernel at the other end.

use std::time::Duration;

use ringpass_lab::{Ended, Namespace, Program, wait_until};
use serde_json::Value;

use crate::common::RINGPASS;

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
        // The queue of the last one may be busy for a moment.
        let echo = start(&b, &["echo", port]);
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
