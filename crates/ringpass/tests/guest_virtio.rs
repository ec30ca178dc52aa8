//! Ringpass between two virtio cards in a guest, with the host's kernel at both far ends: every kind of virtio card that
//! QEMU plays, of two QEMUs. The table that this prints is the one in docs/guests.md.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use common::RINGPASS;
use common::guest::{Guest, alone};
use common::pairs::Pairs;
use ringpass_lab::Qemu;
use serde_json::Value;

/// A kind of card: what `-device virtio-net-pci` gets, and what the driver's notes must say of it.
type Kind = (&'static str, &'static [&'static str]);

/// What both QEMUs have.
const KINDS: [Kind; 9] = [
    ("disable-modern=on", &["legacy"]),
    ("", &["modern"]),
    ("disable-legacy=on", &["modern"]),
    ("packed=on", &["packed"]),
    ("mrg_rxbuf=off", &[]),
    ("mq=on", &[]),
    ("event_idx=off", &[]),
    ("indirect_desc=off", &[]),
    // As VirtualBox's card is: the header needs a descriptor of its own.
    ("disable-modern=on,any_layout=off,mrg_rxbuf=off,event_idx=off,indirect_desc=off", &["legacy"]),
];

/// What QEMU has since 10 or so.
const NEWER: [Kind; 4] = [
    ("in_order=on", &["in order"]),
    ("packed=on,in_order=on", &["packed", "in order"]),
    ("packed=on,event_idx=off,indirect_desc=off,mrg_rxbuf=off", &["packed"]),
    ("queue_reset=off,rx_queue_size=1024", &[]),
];

#[test]
fn every_kind_of_card_of_the_newest_qemu() {
    every_kind("newest", Qemu::Newest, KINDS.into_iter().chain(NEWER));
}

#[test]
fn every_kind_of_card_of_qemu_7_2() {
    every_kind("7.2", Qemu::V7_2, KINDS);
}

fn every_kind(name: &str, qemu: Qemu, kinds: impl IntoIterator<Item = Kind>) {
    let _alone = alone();
    let kinds: Vec<Kind> = kinds.into_iter().collect();
    let devices: Vec<String> = kinds.iter().map(|(options, _)| device(options)).collect();
    let guest = Guest::new().memory(512).cpus(2).qemu(qemu).program(Path::new(RINGPASS));
    let pairs = Pairs::boot(guest, devices.iter().map(String::as_str));
    pairs.guest.run("echo 64 >/proc/sys/vm/nr_hugepages; [ $(cat /proc/sys/vm/nr_hugepages) = 64 ]");
    let mut failed = Vec::new();
    let mut table = String::from(
        "| QEMU | `-device virtio-net-pci` | rings | pings lost | TCP | file | packets | doorbells |\n\
         |---|---|---|---:|---:|---|---:|---:|\n",
    );
    for (pair, (options, notes)) in kinds.iter().enumerate() {
        let row = catch_unwind(AssertUnwindSafe(|| one_kind(&pairs, pair, options, notes)));
        let row = row.unwrap_or_else(|why| {
            failed.push(*options);
            let why = why.downcast::<String>().map_or_else(|_| "a panic".to_owned(), |why| *why);
            format!("FAILED: {}", why.lines().next().unwrap_or_default())
        });
        table += &format!("| {name} | `{options}` | {row} |\n");
    }
    println!("{table}");
    assert!(failed.is_empty(), "failed: {failed:?}\n{table}");
}

/// QEMU's device, from its options.
fn device(options: &str) -> String {
    if options.is_empty() { "virtio-net-pci".to_owned() } else { format!("virtio-net-pci,{options}") }
}

/// The kernel's traffic through the driver between two cards of a kind.
fn one_kind(pairs: &Pairs, pair: usize, options: &str, notes: &[&str]) -> String {
    let start = std::time::Instant::now();
    let queues = if options.contains("mq=on") { 2 } else { 1 };
    let job = pairs.forward(pair, "root", &format!("--queues {queues}"));
    pairs.pings(pair);
    let bits = pairs.tcp(pair);
    pairs.file(pair);
    let (text, summary) = pairs.end(&job);
    eprintln!("{options}: {:.1} s\n{text}", start.elapsed().as_secs_f64());
    assert!(notes.iter().all(|note| text.contains(note)), "{notes:?} in {text}");
    assert!(text.contains("on 2 MiB pages"), "{text}");
    let sum = |of: &dyn Fn(&Value) -> Option<u64>| -> u64 {
        summary["ports"].as_array().into_iter().flatten().filter_map(of).sum()
    };
    let packets = sum(&|port| port["tx_packets"].as_u64());
    assert!(packets > 200, "{summary}");
    assert_eq!(summary["forwarder_drops"], 0, "{summary}");
    let doorbells = sum(&|port| port["extended"]["doorbells"].as_u64());
    let rings = text.lines().find_map(|line| line.split_once("virtio: ")).map_or("", |(_, rest)| rest);
    // Linux's driver has the card again.
    let [card, _] = Pairs::cards(pair);
    let driver = format!("basename $(readlink /sys/bus/pci/devices/{card}/driver)");
    assert_eq!(pairs.guest.run_within(Duration::from_secs(10), &driver).trim(), "virtio-pci");
    format!("{rings} | 0 of 100 | {:.0} Mbit/s | same | {packets} | {doorbells}", bits / 1e6)
}
