//! `ringpass list` and `doctor` in a guest: the cards that they list, and the features that the host should
//! offer for more speed.

use std::path::Path;

use crate::common::RINGPASS;
use crate::common::guest::Guest;
use serde_json::Value;

/// Returns the JSON objects that a command prints, one per line.
fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns the QEMU options that would make a card faster.
fn wishes(card: &Value) -> Vec<&str> {
    let wishes = card["virtio"]["host_could"].as_array();
    wishes.unwrap_or_else(|| panic!("{card}")).iter().filter_map(|wish| wish["qemu"].as_str()).collect()
}

#[test]
fn cards_are_known_and_what_the_host_should_offer_is_said() {
    let guest = Guest::new()
        .memory(768)
        .cpus(2)
        .program(Path::new(RINGPASS))
        .nic_with_user_network("virtio-net-pci,disable-modern=on,event_idx=off,indirect_desc=off,mrg_rxbuf=off")
        .nic_with_user_network("virtio-net-pci,disable-legacy=on,packed=on,rx_queue_size=1024")
        .nic_with_user_network("igb")
        .boot();
    // Without the kernel's driver, the features that the cards offer are unknown, which is not an error.
    let cards = objects(&guest.run("ringpass list --json"));
    assert_eq!(cards.len(), 3, "{cards:?}");
    assert!(cards.iter().all(|card| card["usable"] == true && card["virtio"].is_null()), "{cards:?}");

    guest.run("modprobe virtio_net; until [ -e /sys/class/net/eth1 ]; do sleep 0.1; done");
    let cards = objects(&guest.run("ringpass list --json"));
    let ids: Vec<&str> = cards.iter().filter_map(|card| card["id"].as_str()).collect();
    assert_eq!(ids, ["1af4:1000", "1af4:1041", "8086:10c9"]);
    let [old, new] = [wishes(&cards[0]), wishes(&cards[1])];
    for option in ["packed=on", "event_idx=on", "indirect_desc=on", "mrg_rxbuf=on", "rx_queue_size=1024"] {
        assert!(old.contains(&option), "{option} for {}", cards[0]);
        assert!(!new.contains(&option), "{option} for {}", cards[1]);
    }
    for wish in ["disable-legacy=on,disable-modern=off", "mq=on", "iommu_platform=on"] {
        assert!(old.iter().any(|option| option.contains(wish)), "{wish} for {}", cards[0]);
    }
    assert!(new.iter().any(|option| option.starts_with("mq=on")), "{}", cards[1]);
    assert_eq!(cards[1]["virtio"]["rx_ring"], 1024);
    assert!(cards[2]["virtio"].is_null(), "{}", cards[2]);

    let text = guest.run("ringpass list");
    assert!(text.contains("virtio         legacy, split rings of 256, 1 pair of queues"), "{text}");
    assert!(text.contains("virtio         modern, packed rings of 1024, 1 pair of queues"), "{text}");
    assert!(text.contains("libvirt: <driver packed='on'/>"), "{text}");

    let checks = objects(&guest.run("ringpass doctor --json"));
    let of = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{checks:?}"));
    assert_eq!(of("0000:00:02.0")["ok"], false);
    assert!(of("0000:00:02.0")["remedy"].as_str().is_some_and(|remedy| remedy.contains("packed=on;")), "{checks:?}");
    assert!(of("cards")["found"].as_str().is_some_and(|found| found.starts_with("3 of 3 ")), "{checks:?}");
}
