//! Linux's virtio-net in QEMU guests on our vhost-user back-end: every kind of card, one after the other in one
//! guest.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::folder;
use crate::common::vhost::{Backend, serve, socket, up, vhost, with_servers, wrong_checksums};
use ringpass_lab::{Guest, Qemu, VhostUser};
use serde_json::Value;

/// A kind of card, and how it is served.
#[derive(Clone, Copy)]
struct Kind {
    /// Options of `-device virtio-net-pci`.
    device: &'static str,
    /// Options of `ringpass fwd`.
    options: &'static str,
    /// Which side creates the socket.
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Ringpass creates it, and QEMU connects.
    Server,
    /// QEMU creates it, and Ringpass connects.
    Client,
}

const fn kind(device: &'static str, options: &'static str) -> Kind {
    Kind { device, options, role: Role::Server }
}

const fn client(device: &'static str, options: &'static str) -> Kind {
    Kind { role: Role::Client, ..kind(device, options) }
}

const OLD: [Kind; 6] = [
    kind("", ""),
    kind("packed=on", "--offloads all"),
    kind("mrg_rxbuf=off,event_idx=off,indirect_desc=off", ""),
    kind("mq=on,packed=on", "--queues 2"),
    kind("disable-modern=on", "--offloads all"),
    client("", "--offloads all"),
];

const KINDS: [Kind; 14] = [
    kind("", ""),
    kind("", "--offloads all"),
    kind("packed=on", ""),
    kind("packed=on", "--offloads all"),
    kind("mrg_rxbuf=off", "--offloads all"),
    kind("packed=on,mrg_rxbuf=off", "--offloads all"),
    kind("indirect_desc=off", "--offloads all"),
    kind("packed=on,event_idx=off,indirect_desc=off", "--offloads all"),
    kind("mq=on", "--queues 2"),
    kind("mq=on,packed=on", "--queues 2 --offloads all"),
    kind("disable-modern=on", ""),
    kind("host_mtu=9000", "--mtu 9000"),
    kind("packed=on,in_order=on", "--offloads all"),
    client("packed=on", ""),
];

#[test]
fn every_kind_of_card_of_the_newest_qemu() {
    go_through("newest", Qemu::Newest, &KINDS);
}

#[test]
fn every_kind_of_card_of_qemu_7_2() {
    go_through("7.2", Qemu::V7_2, &OLD);
}

/// Sends traffic through a card of each kind in turn, and prints a table of the results.
fn go_through(name: &str, qemu: Qemu, kinds: &[Kind]) {
    let folder = folder();
    // A back-end that connects has dropped root before.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("my folder");
    let mut guest = with_servers(Guest::new().memory(512).cpus(2).qemu(qemu));
    let mut backends = Vec::new();
    for (number, kind) in (0..).zip(kinds) {
        let socket = socket(&folder, number);
        let (address, peer) = match kind.role {
            Role::Server => (vhost(&socket), VhostUser::at(&socket)),
            Role::Client => (format!("{},client", vhost(&socket)), VhostUser::connecting_to(&socket)),
        };
        backends.push(Backend::new(number, &address, kind.options));
        let device =
            if kind.device.is_empty() { "virtio-net-pci".into() } else { format!("virtio-net-pci,{}", kind.device) };
        guest = guest.vhost_user_nic(&device, &peer.queues(if kind.device.contains("mq=on") { 2 } else { 1 }));
    }
    let guest = guest.boot();
    serve(&guest);
    let mut failed = Vec::new();
    let mut table = String::from(
        "| QEMU | `-device virtio-net-pci,…` | `ringpass fwd …` | socket of | pings lost | TCP to the guest | TCP from the guest | \
         file | packets to and from the guest |\n|---|---|---|---|---:|---:|---:|---|---:|\n",
    );
    for ((number, kind), backend) in (0..).zip(kinds).zip(backends) {
        let row = catch_unwind(AssertUnwindSafe(|| one(&guest, number, kind, backend))).unwrap_or_else(|why| {
            failed.push((kind.device, kind.options));
            let why = why.downcast::<String>().map_or_else(|_| "a panic".to_owned(), |why| *why);
            format!("FAILED: {}", why.lines().next().unwrap_or_default())
        });
        let device = if kind.device.is_empty() { "as it comes" } else { kind.device };
        let role = if kind.role == Role::Server { "Ringpass" } else { "QEMU" };
        table += &format!("| {name} | {device} | {} | {role} | {row} |\n", kind.options);
    }
    println!("{table}");
    assert!(failed.is_empty(), "failed: {failed:?}\n{table}");
    assert_eq!(wrong_checksums(&guest.run("cat /proc/net/snmp")), 0, "in the guest");
}

/// Sends traffic of both kernels through one card.
fn one(guest: &Guest, number: u8, kind: &Kind, backend: Backend) -> String {
    up(guest, number.into(), number);
    backend.first_ping();
    let longest = if kind.options.contains("--mtu 9000") { 9000 - 28 } else { 1500 - 28 };
    for (count, size) in [(33, 16), (33, 700), (34, longest)] {
        backend.pings(count, size);
    }
    let streams: &[&str] = if kind.options.contains("--queues") { &["-P", "8"] } else { &[] };
    let to = backend.tcp(streams);
    let from = backend.tcp(&[&["-R"], streams].concat());
    backend.file();
    if kind.options.contains("--queues") {
        both_queues(guest, number);
    }
    assert_eq!(backend.wrong_checksums(), 0, "at the far end");
    let (summary, log) = backend.end();
    assert!(!log.contains("WARN"), "{log}");
    let port = &summary["ports"][1];
    let count = |name: &str| port[name].as_u64().unwrap_or_else(|| panic!("no {name}: {port}"));
    assert_eq!(port["extended"]["guest_faults"], Value::from(0), "{port}");
    assert_eq!(port["extended"]["sessions"], Value::from(1), "{port}");
    let (packets_to, packets_from) = (count("tx_packets"), count("rx_packets"));
    assert!(packets_to > 100 && packets_from > 100, "{port}");
    format!("0 of 100 | {to:.0} Mbit/s | {from:.0} Mbit/s | same | {packets_to}, {packets_from}")
}

/// Both queue pairs have carried packets in both directions.
fn both_queues(guest: &Guest, number: u8) {
    guest.run(&format!("for cpu in 1 2; do taskset $cpu ping -c 5 -i 0.01 198.18.{number}.1 || exit; done"));
    let counters = guest.run(&format!("ethtool -S v{number}"));
    for name in ["rx_queue_0_packets", "rx_queue_1_packets", "tx_queue_0_packets", "tx_queue_1_packets"] {
        let count = counters.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
        assert!(count.is_some_and(|count| count != "0"), "{name}: {counters}");
    }
}
