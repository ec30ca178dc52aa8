//! Linux's own ixgbe with VLANs, at both ends of a wire: tag insertion, tag stripping, and the VLAN filter.

use std::time::Duration;

use crate::common::guest::{Guest, Wire, carrier, counters, mac, ping, tcp_by, up};
use crate::common::wait_until;
use ringpass_lab::Ended;

/// Joins the wires of two cards.
fn join(wires: &[Wire; 2]) {
    let [one, two] = wires;
    let host = &one.host;
    host.take(&two.host, &two.tap, "198.18.2.1/24");
    host.run(&["ip", "link", "add", "cable", "type", "bridge"]);
    for tap in [&one.tap, &two.tap] {
        host.run(&["ip", "address", "flush", "dev", tap]);
        host.run(&["ip", "link", "set", tap, "master", "cable"]);
    }
    host.run(&["ip", "link", "set", "cable", "up"]);
}

#[test]
fn vlans() {
    let wires = [Wire::new(1, &[]), Wire::new(2, &[])];
    join(&wires);
    let guest = Guest::new().card(&wires[0].socket()).card(&wires[1].socket()).boot();
    up(&guest, 0, 1);
    up(&guest, 1, 2);

    // The second card is in its own namespace in the guest: seen from here, behind the wire.
    guest.run(&format!(
        "modprobe 8021q
         ip netns add far
         ip link set eth1 netns far
         ip -n far link set eth1 up
         ip -n far address add 198.18.1.1/24 dev eth1
         for id in 5 6; do
             ip -n far link add link eth1 name vlan$id type vlan id $id
             ip -n far address add 198.18.10$id.1/24 dev vlan$id
             ip -n far link set vlan$id up
         done
         ip link add link eth0 name vlan5 type vlan id 5
         ip address add 198.18.105.2/24 dev vlan5
         ip link set vlan5 up
         {}",
        carrier(0)
    ));
    wait_until("the bridge between the wires", || {
        guest.output("ping -c 1 -W 1 198.18.1.1", Duration::from_secs(60)).status == 0
    });
    for (rx, tx) in [("on", "on"), ("off", "off"), ("on", "off"), ("off", "on")] {
        eprintln!("- tags taken away by the card: {rx}, put in by it: {tx}");
        guest.run(&format!("ethtool -K eth0 rxvlan {rx} txvlan {tx}"));
        ping(&guest, "198.18.105.1", "");
        ping(&guest, "198.18.1.1", "");
    }

    eprintln!("- the tags on the wire");
    let tap = &wires[0].tap;
    let tcpdump = wires[0].host.spawn(&["tcpdump", "-l", "-n", "-e", "-c", "10", "-i", tap, "vlan 5 and icmp"]);
    tcpdump.wait_for_stderr("listening on");
    ping(&guest, "198.18.105.1", "");
    let Ended { status, lines, errors } = tcpdump.wait(Duration::from_secs(60));
    assert_eq!((status, lines.len()), (Some(0), 10), "{lines:?} {errors:?}");

    eprintln!("- TCP both ways");
    guest.run("ip netns exec far iperf3 -s -D");
    for reverse in ["", "-R"] {
        let rate = tcp_by(|| guest.run(&format!("iperf3 -c 198.18.105.1 -t 2 -J {reverse}")));
        eprintln!("{reverse} {rate:.0} Mbit/s");
    }

    eprintln!("- a VLAN that nobody wants does not get through the card's filter");
    guest.run("ethtool -K eth0 rxvlan on txvlan on");
    let before = counters(&guest, 0)["rx_packets"];
    guest.run(&format!("ip -n far neighbour replace 198.18.106.2 lladdr {} dev vlan6 nud permanent", mac(1)));
    guest.output("ip netns exec far ping -q -c 50 -i 0.02 -W 1 198.18.106.2", Duration::from_secs(60));
    let after = counters(&guest, 0)["rx_packets"];
    assert!(after - before < 10, "{} packets of the other VLAN", after - before);
    // Now this VLAN is accepted.
    guest.run(
        "ip link add link eth0 name vlan6 type vlan id 6
         ip address add 198.18.106.2/24 dev vlan6
         ip link set vlan6 up",
    );
    ping(&guest, "198.18.106.1", "");
    guest.run("ip link delete vlan5");
    ping(&guest, "198.18.106.1", "");
}
