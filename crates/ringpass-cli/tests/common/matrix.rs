//! Runs kinds of virtio cards one after the other in one guest, and prints a table of the results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ringpass_lab::{Guest, Qemu};
use serde_json::Value;

use super::RINGPASS;
use super::pairs::Pairs;

/// A kind of card, and how it is driven.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Options of `-device virtio-net-pci`.
    pub device: &'static str,
    /// Options of `ringpass fwd`.
    pub options: &'static str,
    /// MTU of the hosts at the far ends.
    pub mtu: u32,
    /// Texts that the driver's notes must contain.
    pub says: &'static [&'static str],
}

/// Forwards between two cards of each kind in turn, and prints a table of the results.
pub fn go_through(name: &str, qemu: Qemu, kinds: &[Kind]) {
    let devices: Vec<String> = kinds.iter().map(|kind| device(kind.device)).collect();
    let guest = Guest::new().memory(768).cpus(2).qemu(qemu).program(Path::new(RINGPASS));
    let pairs = Pairs::boot(guest, devices.iter().map(String::as_str));
    pairs.guest.run("echo 100 >/proc/sys/vm/nr_hugepages; [ $(cat /proc/sys/vm/nr_hugepages) = 100 ]");
    let mut failed = Vec::new();
    let mut table = String::from(
        "| QEMU | `-device virtio-net-pci,…` | `ringpass fwd …` | what the driver says | pings lost | TCP | file | packets | \
         a doorbell |\n|---|---|---|---|---:|---:|---|---:|---:|\n",
    );
    for (pair, kind) in kinds.iter().enumerate() {
        let row = catch_unwind(AssertUnwindSafe(|| one(&pairs, pair, kind))).unwrap_or_else(|why| {
            failed.push((kind.device, kind.options));
            // Ends this forwarder, so that the next one finds its cards free.
            pairs.guest.run("kill -KILL $(cat /run/forwarder); sleep 0.5");
            let why = why.downcast::<String>().map_or_else(|_| "a panic".to_owned(), |why| *why);
            format!("FAILED: {}", why.lines().next().unwrap_or_default())
        });
        let device = if kind.device.is_empty() { "as it comes" } else { kind.device };
        table += &format!("| {name} | {device} | {} | {row} |\n", kind.options);
    }
    println!("{table}");
    assert!(failed.is_empty(), "failed: {failed:?}\n{table}");
}

/// Returns QEMU's device from its options.
fn device(options: &str) -> String {
    if options.is_empty() { "virtio-net-pci".to_owned() } else { format!("virtio-net-pci,{options}") }
}

/// Sends the kernel's traffic through the driver between two cards of a kind.
fn one(pairs: &Pairs, pair: usize, kind: &Kind) -> String {
    let [left, right] = &pairs.taps[pair];
    for (namespace, tap) in [(&pairs.a, left), (&pairs.b, right)] {
        namespace.run(&["ip", "link", "set", &tap.name, "mtu", &kind.mtu.to_string()]);
    }
    let job = pairs.forward(pair, "root", kind.options);
    // With their headers, these are frames of the maximum length.
    pairs.pings_of(pair, kind.mtu - 28);
    let mbits = pairs.tcp(pair);
    pairs.file(pair);
    let (text, summary) = pairs.end(&job);
    eprintln!("{}\n{text}", kind.device);
    for what in kind.says.iter().chain(&["on 2 MiB pages"]) {
        assert!(text.contains(what), "no {what:?}: {text}");
    }
    let sum = |of: &dyn Fn(&Value) -> Option<u64>| -> u64 {
        summary["ports"].as_array().into_iter().flatten().filter_map(of).sum()
    };
    let packets = sum(&|port| port["tx_packets"].as_u64());
    assert!(packets > 200, "{summary}");
    for error in ["rx_ring_errors", "tx_ring_errors"] {
        assert_eq!(sum(&|port| port["extended"][error].as_u64()), 0, "{error}: {summary}");
    }
    let doorbells = sum(&|port| port["extended"]["doorbells"].as_u64());
    assert!(doorbells > 0, "{summary}");
    // Linux's driver has the card again.
    let [card, _] = Pairs::cards(pair);
    let driver = pairs.guest.run(&format!("basename $(readlink /sys/bus/pci/devices/{card}/driver)"));
    assert_eq!(driver.trim(), "virtio-pci");

    let said = |what| text.lines().find_map(|line| Some(line.split_once(what)?.1)).unwrap_or("?");
    let interface = said(" card, ").split(", PCI").next().unwrap();
    let (rings, per_doorbell) = (said("virtio: "), packets as f64 / doorbells as f64);
    format!("{interface}; {rings} | 0 of 100 | {mbits:.0} Mbit/s | same | {packets} | {per_doorbell:.0}")
}
