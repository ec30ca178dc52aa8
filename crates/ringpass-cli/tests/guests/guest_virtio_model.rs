//! Linux's own virtio_net, unmodified, in a guest on the modelled card: the model that checks our driver is
//! itself checked by an independent driver.

use std::time::Duration;

use crate::common::guest::{Guest, Sender, Wire, answered, carrier, mac, ping, tcp};
use serde_json::Value;

/// The kinds of cards, each with a name and the options of `ringpass model`.
const CARDS: [(&str, &[&str]); 6] = [
    ("usual", &[]),
    ("packed", &["--features", "packed+notification_data+notif_config_data"]),
    ("plain", &["--features=-event_idx-indirect_desc-mrg_rxbuf-ctrl_vq-status"]),
    ("packed, plain", &["--features=packed-event_idx-indirect_desc-csum-guest_csum"]),
    ("transitional", &["--device", "1000"]),
    ("two pairs", &["--queues", "2", "--features", "in_order"]),
];

/// Brings up the interface of card `number` with Linux's driver, and returns its name.
fn up(guest: &Guest, number: u8) -> String {
    let (address, waits) = (mac(number), Duration::from_secs(180));
    let name = guest.run_within(
        waits,
        &format!(
            "modprobe virtio_net >&2 || exit
             tries=0
             until name=$(grep -l {address} /sys/class/net/*/address); do
                 [ $((tries += 1)) -lt 300 ] || {{ echo no interface with {address}; exit 1; }}
                 sleep 0.1
             done
             name=${{name#/sys/class/net/}}; name=${{name%/address}}
             ip address replace 198.18.{number}.2/24 dev $name
             ip link set $name up || exit
             echo $name"
        ),
    );
    let name = name.trim().to_owned();
    guest.run_within(waits, &carrier(name.trim_start_matches("eth").parse().expect("an interface eth0 to eth9")));
    name
}

/// Returns the faults of the driver that the model has found.
fn wrong(card: &Value) -> Vec<(&'static str, &Value)> {
    ["faults", "wrong_notifications", "wrong_accesses", "tx_malformed", "tx_odd_headers", "dma_faults", "rx_unfit"]
        .into_iter()
        .map(|name| (name, &card[name]))
        .filter(|(_, count)| count.as_u64() != Some(0))
        .collect()
}

#[test]
fn linux_drives_the_card() {
    let wires: Vec<Wire> =
        (1..).zip(CARDS).map(|(number, (_, options))| Wire::of("virtio-net", number, options)).collect();
    let guest = wires.iter().fold(Guest::new().cpus(2), |guest, wire| guest.card(&wire.socket())).boot();
    for ((number, wire), (kind, _)) in (1..).zip(&wires).zip(CARDS) {
        eprintln!("- {kind}");
        let name = up(&guest, number);
        assert!(guest.run(&format!("ethtool -i {name}")).contains("driver: virtio_net"));
        for length in [0, 56, 1472] {
            ping(&guest, &wire.address(), &format!("-s {length}"));
        }
        let guest_address = format!("198.18.{number}.2");
        let back = wire.host.run(&["ping", "-c", "20", "-w", "60", "-i", "0.02", &guest_address]);
        assert!(answered(&back, 20), "{back}");
        tcp(&guest, &wire.host, &wire.address(), Sender::Guest);
        tcp(&guest, &wire.host, &wire.address(), Sender::Host);
        if kind == "two pairs" {
            guest.run(&format!("ethtool -L {name} combined 2"));
            tcp(&guest, &wire.host, &wire.address(), Sender::Guest);
            tcp(&guest, &wire.host, &wire.address(), Sender::Host);
        }
        if kind == "usual" || kind == "transitional" {
            // Control commands: a new MAC address, VLANs, address lists.
            guest.run(&format!(
                "ip link set {name} address 02:00:00:00:02:77; ip link set {name} promisc on; ip link set {name} promisc off
                 ip link add link {name} name {name}.7 type vlan id 7
                 ip address add 198.18.1{number}.2/24 dev {name}.7; ip link set {name}.7 up; ip link del {name}.7"
            ));
            ping(&guest, &wire.address(), "");
        }
        eprintln!("- {kind}: the link goes down and up, the driver goes and comes");
        guest.run(&format!("ip link set {name} down; ip link set {name} up"));
        ping(&guest, &wire.address(), "");
    }
    guest.run("rmmod virtio_net");
    up(&guest, 2);
    ping(&guest, &wires[1].address(), "");
    let trouble = guest.run("dmesg");
    for sign in ["NETDEV WATCHDOG", "Call Trace", "is not a head", "output.0:id"] {
        assert!(!trouble.contains(sign), "{trouble}");
    }
    drop(guest);
    for (wire, (kind, _)) in wires.into_iter().zip(CARDS) {
        let card = wire.counters();
        eprintln!("{kind}: {card}");
        // Linux leaves the number of merged buffers in a header unchanged unless it uses them.
        let forgiven = |name: &str| kind == "plain" && name == "tx_odd_headers";
        let wrong: Vec<_> = wrong(&card).into_iter().filter(|(name, _)| !forgiven(name)).collect();
        assert_eq!(wrong, [], "{kind}: {card}");
        assert!(card["rx_packets"].as_u64() > Some(100) && card["tx_packets"].as_u64() > Some(100), "{kind}: {card}");
    }
}
