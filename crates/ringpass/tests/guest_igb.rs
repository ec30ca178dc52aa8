//! Ringpass's driver for the 82576 on QEMU's own card, with the host's kernel at both far ends.

mod common;

use std::path::Path;
use std::time::Duration;

use common::guest::{Guest, Iommu, alone, answered};
use common::pairs::Pairs;
use common::{RINGPASS, until};
use serde_json::Value;

fn guest() -> ringpass_lab::Builder {
    Guest::new().memory(768).cpus(2).program(Path::new(RINGPASS))
}

fn huge_pages(pairs: &Pairs) {
    pairs.guest.run("echo 64 >/proc/sys/vm/nr_hugepages; [ $(cat /proc/sys/vm/nr_hugepages) = 64 ]");
}

/// Traffic of all kinds between the namespaces, through the cards of the only pair.
fn traffic(pairs: &Pairs) {
    pairs.pings(0);
    eprintln!("TCP: {:.1} Mbit/s", pairs.tcp(0) / 1e6);
    pairs.file(0);
}

/// The kernel's counters of a TAP, as the card's port should have them: what the one sent the other received.
fn tap(pairs: &Pairs, end: usize) -> [u64; 4] {
    let (namespace, tap) = ([&pairs.a, &pairs.b][end], &pairs.taps[0][end].name);
    ["tx_packets", "tx_bytes", "rx_packets", "rx_bytes"].map(|counter| namespace.counter(tap, counter))
}

fn port(summary: &Value, end: usize, counter: &str) -> u64 {
    summary["ports"][end][counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {summary}"))
}

#[test]
fn root_forwards_through_sysfs_and_gives_the_cards_back() {
    let _alone = alone();
    let pairs = Pairs::boot(guest(), ["igb"]);
    let guest = &pairs.guest;
    huge_pages(&pairs);
    guest.run("modprobe igb");
    let driver = |card: &str| guest.run(&format!("basename $(readlink /sys/bus/pci/devices/{card}/driver) || true"));
    let cards = Pairs::cards(0);
    let all_linux = || cards.iter().all(|card| driver(card).trim() == "igb");
    until("Linux's driver", all_linux);
    let list = guest.run("ringpass list");
    assert!(list.contains("yes, as 82576"), "{list}");

    let before = [0, 1].map(|end| tap(&pairs, end));
    let job = pairs.forward(0, "root", "--queues 2");
    traffic(&pairs);
    let (text, summary) = pairs.end(&job);
    let after = [0, 1].map(|end| tap(&pairs, end));
    assert!(text.contains("82576, PCI through sysfs") && text.contains("on 2 MiB pages"), "{text}");
    // To the packet and the byte; what came before the forwarder was there the card did not take.
    for end in 0..2 {
        let counted = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"].map(|counter| port(&summary, end, counter));
        let [sent, sent_bytes, received, received_bytes] = std::array::from_fn(|i| after[end][i] - before[end][i]);
        assert_eq!(counted, [sent, sent_bytes, received, received_bytes], "card {end}: {summary}");
        assert_eq!([port(&summary, end, "rx_drops"), port(&summary, end, "tx_drops")], [0, 0], "{summary}");
    }
    until("Linux's driver", all_linux);

    // All queues of the card; and the card's head in memory.
    for options in ["--queues 16 --rxd 64 --txd 64", "--head-write-back"] {
        let job = pairs.forward(0, "root", options);
        traffic(&pairs);
        pairs.end(&job);
    }
}

/// How many interrupts of each vector of a card `/proc/interrupts` has counted.
fn woken(interrupts: &str, card: &str) -> Vec<u64> {
    let lines = interrupts.lines().filter(|line| line.contains(card));
    lines.map(|line| line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()).collect()
}

#[test]
fn an_ordinary_user_forwards_through_vfio_and_sleeps() {
    let _alone = alone();
    let pairs = Pairs::boot(guest().iommu(Iommu::Translated), ["igb"]);
    let guest = &pairs.guest;
    guest.run("modprobe vfio-pci");
    for card in Pairs::cards(0) {
        guest.run(&format!(
            "echo vfio-pci >/sys/bus/pci/devices/{card}/driver_override; \
             echo {card} >/sys/bus/pci/drivers_probe; \
             chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{card}/iommu_group))"
        ));
    }
    let job = pairs.forward(0, "user", "--hugepages off --queues 2");
    traffic(&pairs);
    // Flows of several ports: some hash to either queue, whose vectors both wake.
    (0..8).for_each(|_| pairs.file(0));
    let interrupts = guest.run("grep vfio-msix /proc/interrupts");
    for card in Pairs::cards(0) {
        let vectors = woken(&interrupts, &card);
        assert!(vectors.len() == 2 && vectors.iter().all(|&count| count > 0), "{interrupts}");
    }
    // Nothing to do: no time of the processor's.
    let time = || {
        let stat = guest.run("cat /proc/$(cat /run/forwarder)/stat");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        rest.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = time();
    std::thread::sleep(Duration::from_secs(2));
    let ticks = time() - before;
    assert!(ticks < 50, "{ticks} ticks of 10 ms in two idle seconds of two workers");
    let (text, _) = pairs.end(&job);
    assert!(text.contains("PCI through VFIO") && text.contains("interrupts"), "{text}");
    assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");

    // Killed in mid traffic, and the cards are free again.
    let job = pairs.forward(0, "user", "--hugepages off");
    pairs.pings(0);
    guest.run("kill -KILL $(cat /run/forwarder)");
    assert_eq!(guest.wait(&job, Duration::from_secs(20)).status, 137);
    let job = pairs.forward(0, "user", "--hugepages off");
    pairs.pings(0);
    pairs.end(&job);
    assert_eq!(guest.run("dmesg | grep -i 'DMAR.*fault addr' || true"), "");
}
