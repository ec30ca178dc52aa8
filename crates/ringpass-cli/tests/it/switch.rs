//! The switch with the kernel's own network stacks, each in a namespace behind a TAP or the wire of a software
//! card.

use std::fmt::Write;
use std::time::Duration;

use crate::common::guest::{answered, tcp_from};
use crate::common::{Namespace, Program, RINGPASS, folder, ringpass, text, unique, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

/// Namespaces 198.18.0.1, 198.18.0.2, … around a switch in the middle.
struct Star {
    namespaces: Vec<Namespace>,
    taps: Vec<String>,
    switch: Program,
    _middle: Namespace,
    _folder: tempfile::TempDir,
}

/// A port of the star: the prefix of its TAP in the address, and its lines in the configuration.
type Port<'a> = (&'a str, &'a str);

impl Star {
    fn new(global: &str, ports: &[Port], options: &[&str]) -> Self {
        let (middle, folder) = (Namespace::new(), folder());
        let taps: Vec<String> = ports.iter().map(|_| unique("ts")).collect();
        let mut config = format!("{global}\n");
        for (number, ((card, rules), tap)) in ports.iter().zip(&taps).enumerate() {
            writeln!(config, "[[port]]\nname = \"p{number}\"\naddress = \"{card}tap:{tap}\"\n{rules}").unwrap();
        }
        let file = folder.path().join("switch.toml");
        std::fs::write(&file, config).unwrap();
        let switch = middle.spawn(&[&[RINGPASS, "switch", "--config", text(&file), "--json"], options].concat());
        wait_until("the switch's first line", || !switch.line().is_empty());
        let namespaces: Vec<_> = taps
            .iter()
            .enumerate()
            .map(|(number, tap)| {
                let namespace = Namespace::new();
                namespace.take(&middle, tap, &format!("198.18.0.{}/24", number + 1));
                namespace
            })
            .collect();
        Self { namespaces, taps, switch, _middle: middle, _folder: folder }
    }

    /// Sends a hundred pings, none of which may be lost.
    fn pings(&self, from: usize, to: &str) {
        let text = self.namespaces[from].run(&["ping", "-A", "-n", "-c", "100", "-w", "60", to]);
        assert!(answered(&text, 100), "{from} to {to}: {text}");
    }

    /// Waits for the first answer, then sends pings of which none may be lost.
    fn reaches(&self, from: usize, to: &str) {
        wait_until("the first ping", || self.answers(from, to));
        self.pings(from, to);
    }

    /// Returns whether one ping is answered.
    fn answers(&self, from: usize, to: &str) -> bool {
        let ping = self.namespaces[from].spawn(&["ping", "-c", "1", "-W", "1", to]);
        ping.wait(Duration::from_secs(10)).status == Some(0)
    }

    /// Sends TCP for a second, in the direction that the option names.
    fn tcp(&self, from: usize, to: usize, direction: &[&str]) {
        let address = format!("198.18.0.{}", to + 1);
        let client = [&["iperf3", "-c", &address, "-t", "1", "-J"], direction].concat();
        let rate = tcp_from(&self.namespaces[to], || self.namespaces[from].run(&client));
        println!("iperf3 {from} to {to} {direction:?}: {rate:.0} Mbit/s");
    }

    /// Returns the MAC table that the switch prints on request: (station, VLAN, port).
    fn table(&self) -> Vec<(String, u64, String)> {
        self.switch.signal("USR1");
        let mut table = Value::Null;
        wait_until("the table", || {
            table = serde_json::from_str(&self.switch.line()).unwrap();
            table["event"] == "table"
        });
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let stations = table["stations"].as_array().unwrap().iter();
        stations.map(|it| (text(&it["mac"]), it["vlan"].as_u64().unwrap(), text(&it["port"]))).collect()
    }
}

/// Counters of received frames: each frame is counted in exactly one of them.
const FATES: [&str; 11] = [
    "forwarded",
    "flooded",
    "passed",
    "limited",
    "local",
    "isolated",
    "nowhere",
    "spoofed",
    "vlan",
    "reserved",
    "invalid",
];

fn count(summary: &Value, port: usize, counter: &str) -> u64 {
    let extended = &summary["ports"][port]["extended"];
    extended[format!("switch_{counter}")].as_u64().unwrap_or_else(|| panic!("no {counter}: {summary}"))
}

/// Every frame that the switch received is counted in one of `FATES`, except those that a card received while
/// the worker ended.
fn balanced(summary: &Value, ports: usize) {
    for port in 0..ports {
        let fates: u64 = FATES.iter().map(|fate| count(summary, port, fate)).sum();
        let received = summary["ports"][port]["rx_packets"].as_u64().expect("a number");
        assert!((fates..fates + 8).contains(&received), "{fates} of {received} at port {port}: {summary}");
    }
}

#[test]
fn three_kernels_talk_to_each_other() {
    for options in [&[][..], &["--offloads", "all"], &["--queues", "2", "--hugepages", "off"]] {
        let star = Star::new("", &[("model:", ""), ("model:", ""), ("model:", "")], options);
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            star.reaches(from, &format!("198.18.0.{}", to + 1));
        }
        star.tcp(0, 1, &[]);
        star.tcp(2, 0, &["-R"]);
        let expected: Vec<_> =
            (0..3).map(|port| (star.namespaces[port].mac(&star.taps[port]), 0, format!("p{port}"))).collect();
        let table = star.table();
        assert!(table.len() == 3 && expected.iter().all(|station| table.contains(station)), "{table:?} {expected:?}");
        let summary = star.switch.summary();
        balanced(&summary, 3);
        assert!((0..3).all(|port| count(&summary, port, "learned") >= 1), "{summary}");
        assert!((0..3).all(|port| count(&summary, port, "unknown") < 20), "floods what is known: {summary}");
    }
}

#[test]
fn tcp_through_taps_with_and_without_offloads() {
    for options in [&[][..], &["--offloads", "all"]] {
        let star = Star::new("", &[("", ""), ("", "")], options);
        star.reaches(0, "198.18.0.2");
        star.tcp(0, 1, &[]);
        star.tcp(0, 1, &["-R"]);
        balanced(&star.switch.summary(), 2);
    }
}

/// The kernel's own VLAN interfaces are tested in a guest (`guest_switch.rs`).
#[test]
fn access_ports_of_two_vlans_are_apart() {
    let star = Star::new("", &[("", "vlan = 10"), ("model:", "vlan = 10"), ("", "vlan = 20"), ("", "vlan = 20")], &[]);
    star.reaches(0, "198.18.0.2");
    star.reaches(3, "198.18.0.3");
    assert!(!star.answers(1, "198.18.0.3") && !star.answers(3, "198.18.0.1"));
    let mut vlans: Vec<_> = star.table().into_iter().map(|(_, vlan, port)| (vlan, port)).collect();
    vlans.sort();
    assert_eq!(vlans, [(10, "p0".into()), (10, "p1".into()), (20, "p2".into()), (20, "p3".into())]);
    balanced(&star.switch.summary(), 4);
}

#[test]
fn isolation_sources_and_fixed_stations_come_from_the_file() {
    let group = "isolation = 1";
    let star = Star::new("", &[("", ""), ("", group), ("", group), ("", "sources = [\"02:00:00:00:00:99\"]")], &[]);
    star.reaches(0, "198.18.0.2");
    star.reaches(2, "198.18.0.1");
    assert!(!star.answers(1, "198.18.0.3") && !star.answers(3, "198.18.0.1"));
    // The same station with the address that it is allowed to use.
    let (namespace, tap) = (&star.namespaces[3], &star.taps[3]);
    namespace.run(&["ip", "link", "set", tap, "address", "02:00:00:00:00:99"]);
    star.reaches(3, "198.18.0.2");
    // Isolated ports do not reach each other even with each other's addresses known.
    let (one, other) = (&star.namespaces[1], &star.namespaces[2]);
    one.neighbour(&star.taps[1], "198.18.0.3", &other.mac(&star.taps[2]));
    other.neighbour(&star.taps[2], "198.18.0.2", &one.mac(&star.taps[1]));
    assert!(!star.answers(1, "198.18.0.3"));
    let summary = star.switch.summary();
    balanced(&summary, 4);
    assert!(count(&summary, 3, "spoofed") > 0 && count(&summary, 1, "isolated") > 0, "{summary}");
}

#[test]
fn a_station_that_moves_is_found_at_its_new_port() {
    let star = Star::new("", &[("", ""), ("model:", ""), ("", "")], &[]);
    star.reaches(0, "198.18.0.2");
    let mac = star.namespaces[1].mac(&star.taps[1]);
    star.namespaces[1].run(&["ip", "link", "set", &star.taps[1], "down"]);
    // Its address appears behind another port and sends a frame, as when a virtual machine migrates.
    let (namespace, tap) = (&star.namespaces[2], &star.taps[2]);
    namespace.run(&["ip", "link", "set", tap, "down"]);
    namespace.run(&["ip", "link", "set", tap, "address", &mac]);
    namespace.run(&["ip", "address", "add", "198.18.0.2/24", "dev", tap]);
    namespace.run(&["ip", "link", "set", tap, "up"]);
    wait_until("the first ping", || star.answers(2, "198.18.0.1"));
    star.reaches(0, "198.18.0.2");
    assert!(star.table().contains(&(mac, 0, "p2".into())));
    let summary = star.switch.summary();
    balanced(&summary, 3);
    assert_eq!(count(&summary, 2, "moved"), 1, "{summary}");
}

#[test]
fn floods_are_limited_and_the_rest_is_not() {
    let star = Star::new("flood = 100", &[("", ""), ("", ""), ("", "")], &[]);
    star.reaches(0, "198.18.0.2");
    // Three thousand frames at once to an unknown station; a TAP's default queue holds a thousand and drops the
    // rest.
    star.namespaces[0].run(&["ip", "link", "set", &star.taps[0], "txqueuelen", "10000"]);
    star.namespaces[0].neighbour(&star.taps[0], "198.18.0.99", "02:00:00:00:00:63");
    let before = star.namespaces[2].counter(&star.taps[2], "rx_packets");
    let flood = star.namespaces[0].spawn(&["ping", "-q", "-l", "3000", "-c", "3000", "-W", "1", "198.18.0.99"]);
    star.pings(0, "198.18.0.2");
    flood.wait(Duration::from_secs(20));
    let flooded = star.namespaces[2].counter(&star.taps[2], "rx_packets") - before;
    let summary = star.switch.summary();
    balanced(&summary, 3);
    let limited = count(&summary, 0, "limited");
    assert!(flooded > 0 && flooded < 1500 && limited > 1000, "{flooded} passed, {limited} did not: {summary}");
    assert!(summary["limited"].as_u64() >= Some(limited));
}

#[test]
fn a_port_that_is_gone_leaves_and_the_last_two_end_the_run() {
    let star = Star::new("", &[("model:", ""), ("model:", ""), ("model:", "")], &[]);
    star.reaches(0, "198.18.0.2");
    star.reaches(2, "198.18.0.2");
    // Meanwhile the others exchange pings.
    let pings = star.namespaces[0].spawn(&["ping", "-n", "-c", "100", "-i", "0.01", "-w", "60", "198.18.0.2"]);
    std::thread::sleep(Duration::from_millis(300));
    star.namespaces[2].run(&["ip", "link", "delete", &star.taps[2]]);
    let Ended { status, lines, .. } = pings.wait(Duration::from_secs(25));
    assert!(status == Some(0) && answered(&lines.join("\n"), 100), "{lines:?}");
    star.namespaces[0].run(&["ip", "link", "delete", &star.taps[0]]);
    let Ended { status, lines, errors } = star.switch.wait(Duration::from_secs(10));
    assert_eq!(status, Some(1), "{errors:?}");
    let left: Vec<_> = errors.iter().filter(|line| line.contains("has left the switch")).collect();
    assert!(left.len() == 2 && left[0].contains(&star.taps[2]) && left[1].contains(&star.taps[0]), "{errors:?}");
    assert!(errors.last().is_some_and(|line| line.contains("fewer than two ports")), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).unwrap();
    assert_eq!(summary["event"], "summary");
    balanced(&summary, 3);
}

#[test]
fn an_idle_switch_sleeps() {
    let star = Star::new("", &[("", ""), ("model:", ""), ("model:", "")], &[]);
    star.reaches(0, "198.18.0.2");
    std::thread::sleep(Duration::from_secs(1));
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", star.switch.id())).unwrap();
        let fields: Vec<u64> =
            stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2).map(|n| n.parse().unwrap()).collect();
        fields[0] + fields[1]
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(3));
    // A thread that does not sleep uses 300 ticks.
    let used = ticks() - before;
    assert!(used < 30, "{used} ticks of 10 ms in three seconds");
}

#[test]
fn passed_frames_go_straight_through() {
    let pass = "[[pass]]\nfrom = \"p0\"\nto = \"p1\"\n[[pass]]\nfrom = \"p1\"\nto = \"p0\"";
    let star = Star::new("", &[("", "vlan = 10"), ("model:", "vlan = 20"), ("", pass)], &[]);
    star.reaches(0, "198.18.0.2");
    assert!(!star.answers(0, "198.18.0.3"));
    assert!(star.table().iter().all(|(_, _, port)| port == "p2"));
    let summary = star.switch.summary();
    balanced(&summary, 3);
    assert!(count(&summary, 0, "passed") > 100 && count(&summary, 0, "forwarded") == 0, "{summary}");
}

#[test]
fn bad_input_gets_one_line() {
    let folder = folder();
    let file = folder.path().join("x.toml");
    let refused = |arguments: &[&str], parts: &[&str]| {
        let (status, out, errors) = crate::common::ringpass(arguments);
        assert_eq!((status, out.as_str()), (Some(1), ""), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{arguments:?}: {parts:?} in {errors}");
    };
    refused(&["switch", "null"], &["2 to 64"]);
    refused(&["switch", "null", "null@4095"], &["null@4095", "1 to 4094"]);
    refused(&["switch", "null", "eth0"], &["eth0", "packet:NAME"]);
    refused(&["switch", "null", "model:null", "--ageing", "40000"], &["32400"]);
    refused(&["switch", "--config", "/does/not/exist"], &["/does/not/exist"]);
    for (config, parts) in [
        ("[[port]]\naddress = \"null\"\nvlans = 3", &["x.toml:3: ", "vlans"][..]),
        ("ageing = 5\nport = 3", &["x.toml:2: "]),
        (
            "[[port]]\naddress = \"null\"\nname = \"a\"\nstations = [\"02:00:00:00:00:01@7\"]\nvlan = 8\n[[port]]\naddress = \"null\"",
            &["'a'", "VLAN 7"],
        ),
    ] {
        std::fs::write(&file, config).unwrap();
        refused(&["switch", "--config", text(&file)], parts);
    }
    let (status, out, _) = crate::common::ringpass(&["switch", "--help"]);
    assert!(status == Some(0) && out.contains("EXAMPLES") && out.contains("[[port]]"));
    let (status, _, errors) = crate::common::ringpass(&["switch"]);
    assert!(status == Some(2) && errors.contains("PORT"), "{errors}");
}

#[test]
fn an_input_that_ends_ends_the_run_with_the_last_of_two() {
    let folder = folder();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let (status, _, errors) =
        crate::common::ringpass(&["pktgen", &format!("pcap:,out={}", text(&input)), "--count", "500", "--json"]);
    assert_eq!(status, Some(0), "{errors}");
    let ports = [format!("pcap:{}", text(&input)), format!("pcap:,out={}", text(&output))];
    let (status, out, errors) = crate::common::ringpass(&["switch", &ports[0], &ports[1], "--json", "--time", "30"]);
    assert_eq!(status, Some(0), "{errors}");
    let summary: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["ports"][0]["rx_packets"], &summary["ports"][1]["tx_packets"]), (&500.into(), &500.into()));
    assert!(summary["seconds"].as_f64() < Some(20.0), "{summary}");
}

/// A port may have more queues than there are workers.
#[test]
fn each_queue_of_a_guest_has_a_worker() {
    let folder = folder();
    let guest = format!("vhost:{},queues=2", text(&folder.path().join("guest")));
    let run = |ports: [&str; 2]| ringpass(&["switch", ports[0], ports[1], "--worker-per-guest", "-t", "0.2", "--json"]);
    let (status, out, errors) = run([&guest, "null"]);
    assert!(status == Some(0) && out.contains("\"summary\""), "{out}{errors}");
    let (status, _, errors) = run(["model:null", "null"]);
    assert_eq!((status, errors.trim()), (Some(1), "ringpass: --worker-per-guest: no port is a guest's (vhost:PATH)"));
}
