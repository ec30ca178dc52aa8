//! A tunnel between the kernel's own vxlan device and a port of the switch: the network inside reaches a kernel behind
//! another port.

mod common;

use std::time::Duration;

use common::guest::answered;
use common::{Namespace, RINGPASS, folder, text, unique, until};
use serde_json::Value;

const PORT: &str = "4789";

/// Pings of all sizes, TCP both ways, counters. `card` stands before the TAPs in the ports' addresses.
fn through_the_tunnel(card: &str, options: &[&str], device: &[&str]) {
    let (middle, far, near, folder) = (Namespace::new(), Namespace::new(), Namespace::new(), folder());
    let (outer, inner) = (unique("to"), unique("ti"));
    let file = folder.path().join("switch.toml");
    let config = format!(
        "[[port]]\naddress = \"{card}tap:{outer}\"\nvlan = 7\n\
         [port.vxlan]\nvni = 42\nport = {PORT}\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\"\n\
         [[port]]\naddress = \"{card}tap:{inner}\"\nvlan = 7\n"
    );
    std::fs::write(&file, config).unwrap();
    let switch = middle.spawn(&[&[RINGPASS, "switch", "--config", text(&file), "--json"], options].concat());
    until("the switch's first line", || !switch.line().is_empty());
    far.take(&middle, &outer, "10.0.0.2/24");
    near.take(&middle, &inner, "198.18.0.2/24");
    let add =
        ["ip", "link", "add", "vx", "type", "vxlan", "id", "42", "remote", "10.0.0.1", "dev", &outer, "dstport", PORT];
    far.run(&[&add, device].concat());
    far.run(&["ip", "address", "add", "198.18.0.1/24", "dev", "vx"]);
    far.run(&["ip", "link", "set", "vx", "up"]);
    until("the first ping", || {
        let ping = near.spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.1"]);
        ping.wait(Duration::from_secs(10)).0 == Some(0)
    });
    // What fits into the device's MTU.
    for (from, to) in [(&far, "198.18.0.2"), (&near, "198.18.0.1")] {
        for size in ["0", "17", "1422"] {
            let text = from.run(&["ping", "-n", "-c", "50", "-i", "0.005", "-s", size, "-M", "do", "-w", "20", to]);
            assert!(answered(&text, 50), "{text}");
        }
    }
    for direction in [&[][..], &["-R"]] {
        let server = near.spawn(&["iperf3", "-s", "-1", "--forceflush"]);
        until("the iperf3 server", || server.line().contains("listening"));
        let text = far.run(&[&["iperf3", "-c", "198.18.0.2", "-t", "1", "-J"], direction].concat());
        let result: Value = serde_json::from_str(&text).unwrap();
        let bits = result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0);
        println!("iperf3 {direction:?} {options:?} {device:?}: {:.2} Gbit/s", bits / 1e9);
        assert!(bits > 1e6, "{text}");
    }
    let mac = |namespace: &Namespace, interface: &str| namespace.mac(interface);
    let stations = [mac(&far, "vx"), mac(&near, &inner)];
    let summary = switch.summary();
    let counters = &summary["ports"][0]["extended"];
    let count = |name: &str| counters[name].as_u64().unwrap_or_else(|| panic!("no {name}: {summary}"));
    assert!(count("vxlan_received") > 300 && count("vxlan_sent") > 300, "{summary}");
    assert_eq!(count("vxlan_malformed"), 0, "{summary}");
    assert_eq!(summary["stations"], 2, "{stations:?}: {summary}");
}

#[test]
fn between_taps() {
    through_the_tunnel("", &[], &[]);
}

#[test]
fn between_cards() {
    through_the_tunnel("model:", &[], &[]);
}

#[test]
fn with_the_outer_checksum() {
    through_the_tunnel("", &[], &["udpcsum"]);
    through_the_tunnel("model:", &["--offloads", "all"], &["udpcsum"]);
}

#[test]
fn with_all_that_may_be_left_to_ports() {
    through_the_tunnel("", &["--offloads", "all"], &[]);
}
