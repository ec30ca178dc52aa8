//! Linux's own ixgbe, unmodified, in a guest on the modelled card: link, traffic, counters, self-test.

use std::time::Duration;

use crate::common::guest::{Guest, Sender, Wire, answered, carrier, counters, mac, ping, tcp, up};
use crate::common::wait_until;

#[test]
fn linux_drives_the_card() {
    let wire = Wire::new(1, &[]);
    let guest = Guest::new().card(&wire.socket()).boot();
    up(&guest, 0, 1);

    eprintln!("- the link, at 10 Gbit/s");
    let link = guest.run("ethtool eth0");
    for expected in ["Speed: 10000Mb/s", "Duplex: Full", "Link detected: yes"] {
        assert!(link.contains(expected), "{link}");
    }
    assert!(guest.run("ethtool -i eth0").contains("driver: ixgbe"));
    assert_eq!(guest.run("cat /sys/class/net/eth0/address"), "02:00:00:00:01:01\n");

    eprintln!("- pings of all lengths, both ways");
    for length in [0, 56, 1000, 1472] {
        ping(&guest, "198.18.1.1", &format!("-s {length}"));
        let length = length.to_string();
        let back = wire.host.run(&["ping", "-c", "20", "-w", "60", "-i", "0.02", "-s", &length, "198.18.1.2"]);
        assert!(answered(&back, 20), "{back}");
    }

    eprintln!("- TCP both ways");
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Guest);
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Host);

    eprintln!("- the link down and up, in the guest");
    guest.run("ip link set eth0 down");
    let lost = guest.output("ping -q -c 2 -W 1 198.18.1.1", Duration::from_secs(60));
    assert_ne!(lost.status, 0, "{}", lost.text);
    guest.run(&format!("ip link set eth0 up; {}", carrier(0)));
    ping(&guest, "198.18.1.1", "");

    eprintln!("- the driver unloaded and loaded");
    guest.run("rmmod ixgbe; ! ip link show eth0 2>/dev/null");
    up(&guest, 0, 1);
    ping(&guest, "198.18.1.1", "");
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Host);

    eprintln!("- the driver's self-test");
    let test = guest.run_within(Duration::from_secs(180), "ethtool -t eth0 offline; true");
    eprintln!("{test}");
    guest.run(&carrier(0));
    ping(&guest, "198.18.1.1", "");
    assert!(test.contains("The test result is PASS"), "{test}");

    let trouble = guest.run("dmesg");
    for sign in ["Detected Tx Unit Hang", "NETDEV WATCHDOG", "Call Trace", "DMAR: DRHD", "PCIe link lost"] {
        assert!(!trouble.contains(sign), "{trouble}");
    }
}

/// The driver's counters, read from the card's registers, equal those of the model and of the far end.
#[test]
fn counters_agree() {
    let wire = Wire::new(1, &[]);
    let guest = Guest::new().card(&wire.socket()).boot();
    // No ARP: its frames are shorter than Ethernet's minimum, and are padded on the wire where the kernel does
    // not count.
    wire.host.neighbour(&wire.tap, "198.18.1.2", &mac(1));
    let far = wire.host.mac(&wire.tap);
    guest.run(&format!("modprobe ixgbe; ip neighbour replace 198.18.1.1 lladdr {far} dev eth0 nud permanent"));
    up(&guest, 0, 1);
    ping(&guest, "198.18.1.1", "");
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Guest);
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Host);

    // The driver reads the card's counters every second or two, later on a loaded machine.
    let far = || ["tx_packets", "tx_bytes", "rx_packets", "rx_bytes"].map(|name| wire.host.counter(&wire.tap, name));
    let (mut driver, mut host) = (counters(&guest, 0), far());
    wait_until("the counters to come to rest", || {
        std::thread::sleep(Duration::from_millis(2500));
        let before = (std::mem::replace(&mut driver, counters(&guest, 0)), std::mem::replace(&mut host, far()));
        let read = [driver["rx_pkts_nic"], driver["tx_pkts_nic"]];
        eprintln!("the driver has read {read:?}, the far end has counted {host:?}");
        before == (driver.clone(), host) && read == [host[0], host[2]]
    });
    drop(guest);
    let model = wire.counters();
    let [host_tx_packets, host_tx_bytes, host_rx_packets, host_rx_bytes] = host;
    let driven = |name: &str| driver.get(name).copied().unwrap_or_else(|| panic!("no {name} in {driver:?}"));
    let modelled = |name: &str| model[name].as_u64().unwrap_or_else(|| panic!("no {name} in {model}"));
    for (name, on_the_card, host) in
        [("rx_packets", "rx_pkts_nic", host_tx_packets), ("tx_packets", "tx_pkts_nic", host_rx_packets)]
    {
        assert_eq!([driven(name), driven(on_the_card), modelled(name)], [host; 3], "{name}: {model} {driver:#?}");
    }
    // The card also counts the four bytes of the frame check sequence.
    assert_eq!(driven("rx_bytes"), modelled("rx_bytes"));
    assert_eq!(driven("rx_bytes_nic"), modelled("rx_bytes") + 4 * host_tx_packets);
    assert_eq!(driven("tx_bytes_nic"), modelled("tx_bytes") + 4 * host_rx_packets);
    assert_eq!(modelled("tx_bytes"), host_rx_bytes);
    // A TCP reset has 54 bytes, and is padded by 6 bytes on the wire.
    let grown = modelled("rx_bytes") - host_tx_bytes;
    assert!(grown % 6 == 0 && grown < 6 * 500, "{grown} bytes more than the far end has sent");
    for name in ["rx_errors", "tx_errors", "rx_crc_errors", "rx_no_dma_resources", "rx_missed_errors", "tx_dropped"] {
        assert_eq!(driven(name), 0, "{name}: {driver:#?}");
    }
    assert_eq!([modelled("dma_faults"), modelled("tx_malformed"), modelled("rx_filtered")], [0; 3], "{model}");
}

/// Three device IDs, with three ways to detect the link: an SFP+ module over I2C, a backplane, a copper PHY
/// over MDIO.
#[test]
fn all_device_ids_come_up() {
    let wires = [("10fb", 1), ("10f7", 2), ("1528", 3)].map(|(id, number)| Wire::new(number, &["--device", id]));
    let mut guest = Guest::new();
    for wire in &wires {
        guest = guest.card(&wire.socket());
    }
    let guest = guest.boot();
    for (eth, wire) in wires.iter().enumerate() {
        let (eth, number) = (eth as u8, eth as u8 + 1);
        up(&guest, eth, number);
        let link = guest.run(&format!("ethtool eth{eth}"));
        assert!(link.contains("Speed: 10000Mb/s"), "{link}");
        ping(&guest, &wire.address(), "");
    }
}
