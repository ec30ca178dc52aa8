//! TCP of the kernel between two namespaces through the forwarder, with and without checksum and segmentation
//! offloads.

use crate::common::guest::{answered, tcp_from};
use crate::common::{Lab, Namespace, folder, ringpass, run, text};

/// Connects the TAPs by a forwarder directly, without cards.
fn lab(options: &[&str]) -> Lab {
    Lab::new(|_, card| card.trim_start_matches("model:").to_owned(), options)
}

/// Sends TCP in both directions, one after the other, for a second each.
fn iperf(lab: &Lab) {
    for direction in [&[][..], &["-R"]] {
        let client = [&["iperf3", "-c", "198.18.0.2", "-t", "1", "-J"], direction].concat();
        let rate = tcp_from(&lab.b, || lab.a.run(&client));
        println!("iperf3 {direction:?}: {rate:.0} Mbit/s");
    }
}

/// Returns the number of TCP checksum errors that a kernel has counted.
fn checksum_errors(namespace: &Namespace) -> u64 {
    let text = run(&["ip", "netns", "exec", &namespace.0, "nstat", "-asz", "TcpInCsumErrors"]);
    let line = text.lines().find(|line| line.starts_with("TcpInCsumErrors")).expect("the kernel counts them");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Returns the average number of bytes per frame that the interface has received.
fn average(namespace: &Namespace, interface: &str) -> u64 {
    namespace.counter(interface, "rx_bytes") / namespace.counter(interface, "rx_packets")
}

#[test]
fn segments_cross_the_forwarder_whole() {
    let lab = lab(&["--offloads", "all"]);
    iperf(&lab);
    let averages = [average(&lab.a, &lab.left), average(&lab.b, &lab.right)];
    assert!(averages.iter().all(|&bytes| bytes > 1514), "{averages:?} bytes a frame at the kernels");
    assert_eq!([checksum_errors(&lab.a), checksum_errors(&lab.b)], [0, 0]);
    let summary = lab.forwarder.summary();
    for port in summary["ports"].as_array().unwrap() {
        let of = |what: &str| port[what].as_u64().unwrap();
        assert!(of("rx_bytes") / of("rx_packets") > 1514 && of("tx_bytes") / of("tx_packets") > 1514, "{summary}");
        assert_eq!((of("rx_drops"), of("tx_drops")), (0, 0), "{summary}");
    }
}

#[test]
fn without_offloads_frames_are_finished() {
    let lab = lab(&["--offloads", "none"]);
    iperf(&lab);
    assert_eq!([checksum_errors(&lab.a), checksum_errors(&lab.b)], [0, 0]);
    for (namespace, interface) in [(&lab.a, &lab.left), (&lab.b, &lab.right)] {
        assert!(average(namespace, interface) <= 1514);
    }
}

#[test]
fn jumbo_frames_cross_the_forwarder() {
    let lab = lab(&["--mtu", "9000"]);
    let text = lab.a.run(&["ping", "-c", "20", "-w", "60", "-i", "0.01", "-s", "8972", "-M", "do", "198.18.0.2"]);
    assert!(answered(&text, 20), "{text}");
    let average = average(&lab.b, &lab.right);
    assert!(average > 7000, "{average} bytes a frame");
}

#[test]
fn checksums_by_hardware_and_software_are_right() {
    let folder = folder();
    let file = folder.path().join("x.pcap");
    let port = format!("pcap:,out={}", text(&file));
    for options in [
        &["--offloads", "none", "--size", "60"][..],
        &["--offloads", "checksum", "--size", "60"],
        &["--offloads", "checksum", "--imix"],
        &["--offloads", "none", "--mtu", "9710", "--size", "9724"],
        &["--offloads", "all", "--mtu", "9000", "--size", "9013"],
    ] {
        let arguments = [&["pktgen", &port, "-c", "24", "--flows", "5"], options].concat();
        let (status, _, errors) = ringpass(&arguments);
        assert_eq!(status, Some(0), "{errors}");
        let lines = run(&["tcpdump", "-vv", "-nr", text(&file)]);
        assert_eq!(lines.matches("[udp sum ok]").count(), 24, "{options:?}: {lines}");
    }
}
