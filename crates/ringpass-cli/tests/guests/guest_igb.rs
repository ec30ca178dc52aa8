//! Ringpass's driver for the 82576 on QEMU's own card, with the host's kernel at both far ends.

use std::path::Path;
use std::time::Duration;

use crate::common::guest::{Builder, Guest, Iommu, tcp_from};
use crate::common::pairs::Pairs;
use crate::common::{Namespace, RINGPASS, wait_until};
use ringpass_lab::{Ended, Tap, nic_address};
use serde_json::Value;

/// Two cards between two namespaces. They are two slots apart, because a card's virtual functions occupy the
/// slots after it.
fn boot(guest: Builder) -> (Pairs, [String; 2]) {
    boot_with(guest, |tap| tap)
}

fn boot_with(guest: Builder, left: impl Fn(Tap) -> Tap) -> (Pairs, [String; 2]) {
    let ends = [Namespace::new(), Namespace::new()];
    let tap = |end: usize| Tap::new(&ends[end - 1], &format!("198.18.0.{end}/24"));
    let (left, right) = (left(tap(1)), tap(2));
    let guest = guest.memory(768).cpus(2).program(Path::new(RINGPASS));
    let guest = guest.nic("igb", &left).nic_with_user_network("virtio-net-pci").nic("igb", &right).boot();
    (Pairs::over(guest, ends, vec![[left, right]]), [0, 2].map(nic_address))
}

fn huge_pages(pairs: &Pairs) {
    pairs.guest.run("echo 64 >/proc/sys/vm/nr_hugepages; [ $(cat /proc/sys/vm/nr_hugepages) = 64 ]");
}

/// Sends traffic of all kinds between the namespaces, through the cards of the only pair.
fn traffic(pairs: &Pairs) {
    pairs.pings(0);
    eprintln!("TCP: {:.1} Mbit/s", pairs.tcp(0));
    pairs.file(0);
}

/// Returns the kernel's counters of a TAP in the order of the card's port: what one sends, the other receives.
fn tap(pairs: &Pairs, end: usize) -> [u64; 4] {
    let (namespace, tap) = ([&pairs.a, &pairs.b][end], &pairs.taps[0][end].name);
    ["tx_packets", "tx_bytes", "rx_packets", "rx_bytes"].map(|counter| namespace.counter(tap, counter))
}

fn port(summary: &Value, end: usize, counter: &str) -> u64 {
    summary["ports"][end][counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {summary}"))
}

#[test]
fn root_forwards_through_sysfs_and_gives_the_cards_back() {
    let (pairs, cards) = boot(Guest::new());
    let guest = &pairs.guest;
    huge_pages(&pairs);
    guest.run("modprobe igb");
    let driver = |card: &str| guest.run(&format!("basename $(readlink /sys/bus/pci/devices/{card}/driver) || true"));
    let all_linux = || cards.iter().all(|card| driver(card).trim() == "igb");
    wait_until("Linux's driver", all_linux);
    let list = guest.run("ringpass list");
    assert!(list.contains("yes, as 82576"), "{list}");

    let before = [0, 1].map(|end| tap(&pairs, end));
    // QEMU's card does not count frames that it drops for want of descriptors, so there are more of them than
    // TCP ever fills.
    let job = pairs.forward_between(&cards, 0, "root", "--queues 2 --rxd 4096");
    traffic(&pairs);
    let (text, summary) = pairs.end(&job);
    let after = [0, 1].map(|end| tap(&pairs, end));
    assert!(text.contains("82576, PCI through sysfs") && text.contains("on 2 MiB pages"), "{text}");
    for end in 0..2 {
        let [sent, sent_bytes, received, received_bytes] = std::array::from_fn(|i| after[end][i] - before[end][i]);
        let [rx_bytes, tx_bytes] = ["rx_bytes", "tx_bytes"].map(|counter| port(&summary, end, counter));
        let packets = ["rx_packets", "rx_drops", "tx_packets", "tx_drops"].map(|counter| port(&summary, end, counter));
        assert_eq!(packets, [sent, 0, received, 0], "card {end}: {summary}");
        assert_eq!(tx_bytes, received_bytes, "card {end}: {summary}");
        // The card pads frames to 60 bytes, and counts how many it has padded.
        let padded = summary["ports"][end]["extended"]["rx_too_short"].as_u64().expect("a count");
        assert!((sent_bytes..=sent_bytes + 18 * padded).contains(&rx_bytes), "card {end}: {sent_bytes}, {summary}");
    }
    wait_until("Linux's driver", all_linux);

    // With all queues of the card, and with its head written back to memory.
    for options in ["--queues 16 --rxd 64 --txd 64", "--head-write-back"] {
        let job = pairs.forward_between(&cards, 0, "root", options);
        traffic(&pairs);
        pairs.end(&job);
    }
}

/// Returns how many interrupts `/proc/interrupts` has counted for each vector of a card.
fn woken(interrupts: &str, card: &str) -> Vec<u64> {
    let lines = interrupts.lines().filter(|line| line.contains(card));
    lines.map(|line| line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()).collect()
}

#[test]
fn an_ordinary_user_forwards_through_vfio_and_sleeps() {
    let (pairs, cards) = boot(Guest::new().iommu(Iommu::Translated));
    let guest = &pairs.guest;
    // Behind an IOMMU, QEMU's card does not send frames that straddle two pages which are not adjacent.
    huge_pages(&pairs);
    guest.run("modprobe vfio-pci");
    for card in &cards {
        guest.run(&format!(
            "echo vfio-pci >/sys/bus/pci/devices/{card}/driver_override; \
             echo {card} >/sys/bus/pci/drivers_probe; \
             chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{card}/iommu_group))"
        ));
    }
    let job = pairs.forward_between(&cards, 0, "user", "--hugepages on --queues 2");
    traffic(&pairs);
    // Flows from several ports: sooner or later some hash to each of the two queues, so both vectors wake their
    // workers.
    wait_until("both vectors' interrupts", || {
        (0..8).for_each(|_| pairs.file(0));
        let interrupts = guest.run("grep vfio-msix /proc/interrupts");
        let vectors = cards.each_ref().map(|card| woken(&interrupts, card));
        assert!(vectors.iter().all(|vectors| vectors.len() == 2), "{interrupts}");
        vectors.iter().flatten().all(|&count| count > 0)
    });
    // An idle forwarder uses no processor time.
    let time = || {
        let stat = guest.run("cat /proc/$(cat /run/forwarder)/stat");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        rest.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum::<u64>()
    };
    // The guest charges the time in which QEMU is not scheduled to the process that would have run.
    wait_until("two idle seconds of two workers, with fewer than 50 ticks of 10 ms", || {
        let before = time();
        std::thread::sleep(Duration::from_secs(2));
        let ticks = time() - before;
        eprintln!("{ticks} ticks in two idle seconds");
        ticks < 50
    });
    let (text, _) = pairs.end(&job);
    assert!(text.contains("PCI through VFIO") && text.contains("interrupts"), "{text}");
    assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");

    // After a kill under traffic, the cards are free again.
    let job = pairs.forward_between(&cards, 0, "user", "--hugepages on");
    pairs.pings(0);
    guest.run("kill -KILL $(cat /run/forwarder)");
    assert_eq!(guest.wait(&job, Duration::from_secs(60)).status, 137);
    let job = pairs.forward_between(&cards, 0, "user", "--hugepages on");
    pairs.pings(0);
    pairs.end(&job);
    assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");
}

/// Returns the number of TCP checksum errors that a kernel has counted.
fn checksum_errors(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split_whitespace());
    let (names, mut numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
    let column = names.clone().position(|name| name == "InCsumErrors").expect("the kernel counts them");
    numbers.nth(column).and_then(|number| number.parse().ok()).expect("a number")
}

/// The guest's own kernel leaves segmentation and checksums to the card. QEMU performs them before the frames
/// reach the host's kernel, and the guest trusts the verdicts of the card on received frames.
#[test]
fn the_card_cuts_segments_and_fills_in_checksums() {
    let (pairs, [card, _]) = boot_with(Guest::new(), Tap::without_offloads);
    let (guest, far, tap) = (&pairs.guest, &pairs.a, &pairs.taps[0][0].name);
    huge_pages(&pairs);
    guest.run("modprobe tun");
    for offloads in ["all", "checksum,hash"] {
        let job = guest.spawn(&format!(
            "echo $$ >/run/forwarder; exec ringpass fwd tap:inner {card} --json --offloads {offloads} 2>&1"
        ));
        wait_until("the forwarder's first line", || guest.printed(&job).contains("\"stats\""));
        guest.run("ip address add 198.18.0.3/24 dev inner; ip link set inner up");
        wait_until("the first ping", || guest.output("ping -c 1 -W 1 198.18.0.1", Duration::from_secs(60)).status == 0);
        let tcp = |options: &str| {
            let rate = tcp_from(far, || guest.run(&format!("iperf3 -c 198.18.0.1 -J {options}")));
            eprintln!("{offloads}, iperf3 {options}: {rate:.1} Mbit/s");
        };
        let sent = || -> Vec<u64> {
            let text = guest.run("cd /sys/class/net/inner/statistics; cat tx_bytes tx_packets");
            text.lines().map(|line| line.parse().expect("a number")).collect()
        };
        let arrived = || ["rx_bytes", "rx_packets"].map(|counter| far.counter(tap, counter));
        // On a loaded machine it takes TCP a while to have more than one frame to send at once.
        let average = [1, 2, 4, 8, 16].into_iter().find_map(|seconds| {
            let before = (sent(), arrived());
            tcp(&format!("-t {seconds}"));
            let after = (sent(), arrived());
            let average = (after.0[0] - before.0[0]) / (after.0[1] - before.0[1]);
            let frame = (after.1[0] - before.1[0]) / (after.1[1] - before.1[1]);
            assert!((100..=1514).contains(&frame), "{frame} bytes a frame");
            (offloads != "all" || average > 1514).then_some(average)
        });
        let average = average.expect("packets longer than a frame");
        assert_eq!(average > 1514, offloads == "all", "{average} bytes a packet from the guest's kernel");
        tcp("-t 1 -R");
        let (_, summary) = pairs.end(&job);
        assert_eq!([0, 1].map(|end| port(&summary, end, "tx_drops")), [0, 0], "{summary}");
    }
    assert_eq!(checksum_errors(&far.run(&["cat", "/proc/net/snmp"])), 0);
    assert_eq!(checksum_errors(&guest.run("cat /proc/net/snmp")), 0);
}

#[test]
fn the_card_takes_tags_out_and_puts_them_in_and_long_frames_pass() {
    let (pairs, cards) = boot(Guest::new());
    huge_pages(&pairs);
    let [left, right] = [0, 1].map(|end| pairs.taps[0][end].name.clone());

    let job = pairs.forward_between(&cards, 0, "root", "--offloads all");
    let before = tap(&pairs, 0);
    let tcpdump = pairs.b.spawn(&["tcpdump", "-l", "-n", "-e", "-c", "20", "-i", &right, "vlan 5"]);
    let send = "import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
for i in range(20): s.send(bytes.fromhex('020000000009 02000000000a 8100 6005 88b5') + bytes([i] * 100))";
    tcpdump.wait_for_stderr("listening on");
    pairs.a.run(&["python3", "-c", send, &left]);
    let Ended { status, lines, errors } = tcpdump.wait(Duration::from_secs(60));
    let tagged = lines.iter().filter(|line| line.contains("vlan 5, p 3, ethertype")).count();
    assert_eq!((status, tagged), (Some(0), 20), "{lines:?} {errors:?}");
    let [frames, bytes] = [0, 1].map(|i| tap(&pairs, 0)[i] - before[i]);
    let (_, summary) = pairs.end(&job);
    // QEMU's card counts the length of a frame without the tag that it has removed.
    let [received, sent] = [port(&summary, 0, "rx_bytes"), port(&summary, 1, "tx_bytes")];
    assert!(sent > bytes && received == sent - 4 * frames, "{frames} frames, {bytes} bytes, {summary}");

    for (namespace, tap) in [(&pairs.a, &left), (&pairs.b, &right)] {
        namespace.run(&["ip", "link", "set", tap, "mtu", "9000"]);
    }
    for options in ["--mtu 9000", "--mtu 9000 --offloads all"] {
        let job = pairs.forward_between(&cards, 0, "root", options);
        pairs.pings_of(0, 8972);
        traffic(&pairs);
        let (_, summary) = pairs.end(&job);
        assert_eq!(port(&summary, 1, "tx_drops"), 0, "{summary}");
    }
}
