//! Linux's own ixgbe on the modelled card with offloads (checksums, segmentation) and with long frames.

use crate::common::guest::{Guest, Sender, Wire, carrier, counters, ping, tcp, udp, up};

/// Returns the length of the longest frame in a capture at the far end of the wire, while the guest sends by
/// TCP.
fn longest_frame(guest: &Guest, wire: &Wire) -> usize {
    let file = crate::common::folder();
    let capture = file.path().join("capture");
    let name = crate::common::text(&capture).to_owned();
    // Written as root: tcpdump drops its privileges before it opens the file.
    let tcpdump = wire.host.spawn(&[
        "tcpdump",
        "-Z",
        "root",
        "-i",
        &wire.tap,
        "-U",
        "-s",
        "96",
        "-w",
        &name,
        "tcp and src 198.18.1.2",
    ]);
    crate::common::wait_until("the capture", || std::fs::metadata(&capture).is_ok_and(|file| file.len() >= 24));
    tcp(guest, &wire.host, "198.18.1.1", Sender::Guest);
    tcpdump.signal("INT");
    tcpdump.wait(std::time::Duration::from_secs(60));
    let bytes = std::fs::read(&capture).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    // After the file header of 24 bytes come the records: seconds, microseconds, length in the file, length on
    // the wire.
    let (mut at, mut longest) = (24, 0);
    while at + 16 <= bytes.len() {
        longest = longest.max(word(at + 12));
        at += 16 + word(at + 8);
    }
    longest
}

/// Returns how many segments and datagrams with a wrong checksum the guest's TCP and UDP have received.
fn bad_checksums(guest: &Guest) -> u64 {
    let text = guest.run("grep -E '^(Tcp|Udp):' /proc/net/snmp");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    // A line of names, followed by a line of numbers.
    let count = |pair: &[Vec<&str>]| {
        let column = pair[0].iter().position(|&name| name == "InCsumErrors").expect("Linux counts them");
        pair[1][column].parse::<u64>().expect("a number")
    };
    lines.chunks(2).map(count).sum()
}

#[test]
fn checksums_and_segmentation() {
    let wire = Wire::new(1, &[]);
    let guest = Guest::new().card(&wire.socket()).boot();
    up(&guest, 0, 1);
    for (checksums, segmentation) in [("on", "on"), ("on", "off"), ("off", "off"), ("on", "on")] {
        eprintln!("- checksums {checksums}, segmentation {segmentation}");
        guest
            .run(&format!("ethtool -K eth0 rx {checksums} tx {checksums} sg on tso {segmentation} gso {segmentation}"));
        let features = guest.run("ethtool -k eth0");
        assert!(features.contains(&format!("rx-checksumming: {checksums}")), "{features}");
        assert!(features.contains(&format!("tx-checksum-ip-generic: {checksums}")), "{features}");
        assert!(features.contains(&format!("tcp-segmentation-offload: {segmentation}")), "{features}");
        ping(&guest, "198.18.1.1", "-s 1400");
        let longest = longest_frame(&guest, &wire);
        assert!((1400..=1514).contains(&longest), "{longest} bytes");
        tcp(&guest, &wire.host, "198.18.1.1", Sender::Host);
        udp(&guest, &wire.host, "198.18.1.1", Sender::Guest);
        udp(&guest, &wire.host, "198.18.1.1", Sender::Host);
    }
    // No correct checksum was reported as wrong.
    let counters = counters(&guest, 0);
    assert_eq!(counters.get("rx_csum_offload_errors"), Some(&0), "{counters:?}");
    assert_eq!(bad_checksums(&guest), 0);
    let model = wire.counters();
    assert_eq!((&model["tx_malformed"], &model["dma_faults"]), (&0.into(), &0.into()));
}

#[test]
fn long_frames() {
    let wire = Wire::new(1, &["--mtu", "9000"]);
    let guest = Guest::new().card(&wire.socket()).boot();
    up(&guest, 0, 1);
    wire.host.run(&["ip", "link", "set", &wire.tap, "mtu", "9000"]);
    guest.run(&format!("ip link set eth0 mtu 9000; {}", carrier(0)));
    for length in [1472, 1473, 2000, 4000, 8000, 8972] {
        ping(&guest, "198.18.1.1", &format!("-M do -s {length}"));
    }
    let longest = longest_frame(&guest, &wire);
    assert!((8000..=9014).contains(&longest), "{longest} bytes");
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Host);
    let counters = counters(&guest, 0);
    assert_eq!((counters["rx_length_errors"], counters["rx_errors"]), (0, 0), "{counters:?}");
}
