//! Guests on two hosts, in one of two networks that EVPN by FRR spans over three hosts. One migrates.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringpass_lab::{Builder, Guest, Migrated, VhostUser, wait_until};

use crate::common::fabric::{Kernel, Ours, Underlay, pings, reaches};
use crate::common::guest::{tcp_by, tcp_to};
use crate::common::vhost::{serve, up, with_servers};
use crate::common::{folder, text};

/// Returns ports for guests in VLAN 8, which is network 200.
fn ports(folder: &Path) -> String {
    let port = |name: &str| {
        let socket = folder.join(name);
        format!("[[switch.port]]\naddress = \"vhost:{}\"\nvlan = 8\n", text(&socket))
    };
    port("first") + &port("second")
}

fn guest(host: &Ours, socket: &str) -> Builder {
    with_servers(Guest::new().cpus(2))
        .vhost_user_nic("virtio-net-pci", &VhostUser::at(&host.folder.path().join(socket)))
}

/// Gives a guest an address in network 200.
fn settle(guest: &Guest, number: u8, mac: &str) {
    serve(guest);
    up(guest, 0, 0);
    guest.run(&format!(
        "ip link set v0 down; ip link set v0 address {mac} up; ip address flush dev v0
         ip address add 198.18.0.{number}/24 dev v0; ping -c 1 -W 1 198.18.0.250 || true"
    ));
}

/// Asserts that a guest reaches a station of network 200, with this address.
fn reaches_from(guest: &Guest, number: u8, mac: &str) {
    let said = guest.run(&format!(
        "ping -c 1 -w 60 198.18.0.{number} >/dev/null; ping -q -c 50 -i 0.02 -w 60 198.18.0.{number}; ip neigh show 198.18.0.{number}"
    ));
    assert!(said.contains(" 0% packet loss") && said.contains(mac), "{said}");
}

#[test]
fn guests_in_one_of_two_networks_of_three_hosts() {
    let (underlay, folder) = (Underlay::new(), folder());
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our folder");
    let mut third = Kernel::start(&underlay, folder.path(), &[100, 200]);
    let [mut one, mut two] = [1, 2].map(|number| Ours::with(&underlay, number, &["7=100", "8=200"], ports));
    for ours in [&mut one, &mut two] {
        ours.start_frr();
        ours.start_switch();
    }
    let [first, second] = Builder::boot_all([guest(&one, "first"), guest(&two, "first")]);
    // Both networks have the same IP addresses, and the first guest the MAC address of the other network's station on its host.
    let [first_mac, second_mac] = [one.station.mac(&one.interface), "02:00:00:00:08:02".to_owned()];
    settle(&first, 1, &first_mac);
    settle(&second, 2, &second_mac);
    let kernels = [0, 1].map(|network: usize| third.stations[network].mac("st"));
    reaches_from(&first, 2, &second_mac);
    reaches_from(&first, 3, &kernels[1]);
    reaches_from(&second, 3, &kernels[1]);
    for (network, from) in third.stations.iter().enumerate() {
        reaches(from, "198.18.0.1");
        reaches(from, "198.18.0.2");
        let others = [two.station.mac(&two.interface), second_mac.clone()];
        assert!(from.ip(&["neigh"]).contains(&others[network]), "network {network}: {}", from.ip(&["neigh"]));
    }
    reaches(&one.station, "198.18.0.2");
    tcp_to(&third.stations[1], "198.18.0.1", &[]);
    tcp_to(&third.stations[1], "198.18.0.2", &["-R"]);
    // The guests' MTU is too large for the tunnel. The switch tells them so.
    tcp_by(|| first.run("iperf3 -c 198.18.0.2 -t 1 -J"));
    tcp_by(|| first.run("iperf3 -c 198.18.0.2 -t 1 -J -R"));
    assert!(one.count("vxlan_too_long") > 0);

    // The first guest migrates to the other host, with a TCP connection.
    let mut load =
        third.stations[1].spawn(&["iperf3", "-c", "198.18.0.1", "-t", "1000", "--bitrate", "5M", "--forceflush"]);
    wait_until("the connection", || load.lines().iter().any(|line| line.contains("bits/sec")));
    let Migrated { guest: again, down, total } = first.migrate(guest(&two, "second"));
    println!("down for {down:?} of {total:?}");
    reaches(&third.stations[1], "198.18.0.1");
    load.lines();
    let moves = |line: &String| line.contains("bits/sec") && !line.contains(" 0.00 bits/sec");
    wait_until("TCP at the new place", || load.lines().iter().any(moves));
    assert!(load.ended().is_none(), "{:?}", load.said());
    reaches_from(&again, 2, &second_mac);
    assert_eq!(one.remote_of_in(&first_mac, 8).as_deref(), Some("10.9.0.2"));
    assert_eq!(two.remote_of_in(&first_mac, 7).as_deref(), Some("10.9.0.1"), "the other network's is where it was");
    reaches(&third.stations[0], "198.18.0.1");

    // One network ends on the kernel's host, and the other goes on.
    third.host.run(&["ip", "link", "del", "vx200"]);
    wait_until("the withdrawal", || two.remote_of_in(&kernels[1], 8).is_none());
    assert!(!pings(&third.stations[1], "198.18.0.2"));
    reaches(&third.stations[0], "198.18.0.2");
    third.kill_bgp();
    for ours in [&one, &two] {
        assert_eq!(ours.count("evpn_refused"), 0);
    }
}
