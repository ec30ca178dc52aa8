//! Tunnels between the kernel's own vxlan devices and a port of the switch: the network inside reaches a kernel
//! behind another port. If that port is a guest's, a card can receive into the guest's buffers, where the
//! frames are decapsulated.

use crate::common::guest::tcp_to;
use crate::common::tunnel::{Options, Tunnel, mapped, pings, pings_up_to};
use crate::common::{Namespace, RINGPASS, folder, text, unique, wait_until};

/// Peer behind the switch's other port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Tap,
    /// A process with a virtio-user port, like a guest.
    Guest,
}

/// Sends pings of all sizes, and TCP in both directions; checks the counters.
fn through_the_tunnel(inside: Inside, options: Options) {
    let (near, folder, inner) = (Namespace::new(), folder(), unique("ti"));
    let socket = folder.path().join("guest");
    let other = match inside {
        Inside::Tap => format!("{}tap:{inner}", options.card),
        Inside::Guest => format!("vhost:{}", text(&socket)),
    };
    let tunnel = Tunnel::new(&other, "198.18.0.1/24", options);
    let _guest = (inside == Inside::Guest).then(|| {
        let (card, tap) = (format!("virtio-user:{}", text(&socket)), format!("tap:{inner}"));
        let forward = [RINGPASS, "fwd", &card, &tap, "--json", "--hugepages", "off"];
        let guest = tunnel.middle.spawn(&[&forward, options.switch].concat());
        wait_until("the guest's first line", || !guest.line().is_empty());
        guest
    });
    near.take(&tunnel.middle, &inner, "198.18.0.2/24");
    pings(&tunnel.far, "198.18.0.2");
    pings(&near, "198.18.0.1");
    for direction in [&[][..], &["-R"]] {
        let server = near.spawn(&["iperf3", "-s", "-1", "--forceflush"]);
        wait_until("the iperf3 server", || server.line().contains("listening"));
        tcp_to(&tunnel.far, "198.18.0.2", direction);
    }
    let stations = [tunnel.far.mac("vx"), near.mac(&inner)];
    let summary = tunnel.end();
    assert_eq!(summary["stations"], 2, "{stations:?}: {summary}");
    assert_eq!(mapped(&summary), options.mapped, "{summary}");
}

const CARD: Options = Options { card: "model:", mapped: false, switch: &[], device: &[] };
const OFFLOADS: &[&str] = &["--offloads", "all"];
const CHECKSUM: &[&str] = &["udpcsum"];

#[test]
fn between_taps() {
    through_the_tunnel(Inside::Tap, Options::default());
}

#[test]
fn between_cards() {
    through_the_tunnel(Inside::Tap, CARD);
}

#[test]
fn with_the_outer_checksum() {
    through_the_tunnel(Inside::Tap, Options { device: CHECKSUM, ..Default::default() });
    through_the_tunnel(Inside::Tap, Options { switch: OFFLOADS, device: CHECKSUM, ..CARD });
}

#[test]
fn with_all_that_may_be_left_to_ports() {
    through_the_tunnel(Inside::Tap, Options { switch: OFFLOADS, ..Default::default() });
}

#[test]
fn into_a_guest() {
    through_the_tunnel(Inside::Guest, Options::default());
    through_the_tunnel(Inside::Guest, Options { switch: OFFLOADS, device: CHECKSUM, ..CARD });
}

#[test]
fn into_a_guests_own_buffers() {
    through_the_tunnel(Inside::Guest, Options { mapped: true, ..CARD });
}

/// A network with the kernel's vxlan device at each end but one, which is a port of the switch. All have all others.
#[test]
fn to_several_kernels() {
    let (middle, near, folder) = (Namespace::new(), Namespace::new(), folder());
    let [far, further] = [Namespace::new(), Namespace::new()];
    let (outer, inner, file) = (unique("to"), unique("ti"), folder.path().join("switch.toml"));
    let config = format!(
        "[[port]]\naddress = \"tap:{outer}\"\nname = \"tunnel\"\n\
         [port.vxlan]\nvni = 42\nlocal = \"10.0.0.1\"\nremotes = [\"10.0.0.2\", \"10.0.0.3\"]\n\
         [[port]]\naddress = \"tap:{inner}\"\n"
    );
    std::fs::write(&file, config).unwrap();
    let switch = middle.spawn(&[RINGPASS, "switch", "--config", text(&file), "--json", "--hugepages", "off"]);
    wait_until("the switch's first line", || !switch.line().is_empty());
    // The outer network: a bridge with the switch's TAP and a cable to each of the others.
    middle.run(&["ip", "link", "add", "outer", "type", "bridge"]);
    middle.run(&["ip", "link", "set", "outer", "up"]);
    middle.run(&["ip", "link", "set", &outer, "master", "outer", "up"]);
    for (there, own, other) in [(&far, "10.0.0.2", "10.0.0.3"), (&further, "10.0.0.3", "10.0.0.2")] {
        let [here, peer] = ["ua", "ub"].map(unique);
        middle.run(&["ip", "link", "add", &here, "type", "veth", "peer", "name", &peer]);
        middle.run(&["ip", "link", "set", &here, "master", "outer", "up"]);
        there.take(&middle, &peer, &format!("{own}/24"));
        let kind = ["ip", "link", "add", "vx", "type", "vxlan", "id", "42", "local", own];
        there.run(&[&kind[..], &["dev", &peer, "dstport", "4789"]].concat());
        for remote in ["10.0.0.1", other] {
            there.run(&["bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vx", "dst", remote]);
        }
        there.run(&["ip", "address", "add", &format!("198.18.0.{}/24", &own[7..]), "dev", "vx"]);
        there.run(&["ip", "link", "set", "vx", "up"]);
    }
    near.take(&middle, &inner, "198.18.0.1/24");
    for (from, to) in [(&near, "198.18.0.2"), (&near, "198.18.0.3"), (&far, "198.18.0.3"), (&further, "198.18.0.1")] {
        pings(from, to);
    }
    // What is for a station behind one remote does not go to the other.
    let before = further.counter("vx", "rx_packets");
    pings(&near, "198.18.0.2");
    let more = further.counter("vx", "rx_packets") - before;
    assert!(more < 20, "{more} frames at the other end");
    // A station moves from one kernel to the other, and says so with its first frame.
    for (there, moves_on) in [(&far, true), (&further, false)] {
        let mac = "02:00:00:00:00:77";
        there.run(&["ip", "link", "add", "mv", "link", "vx", "address", mac, "type", "macvlan"]);
        there.run(&["ip", "address", "add", "198.18.0.9/32", "dev", "mv"]);
        there.run(&["ip", "link", "set", "mv", "up"]);
        there.run(&["ip", "route", "add", "198.18.0.1/32", "dev", "mv", "src", "198.18.0.9"]);
        pings(there, "198.18.0.1");
        pings(&near, "198.18.0.9");
        if moves_on {
            there.run(&["ip", "link", "delete", "mv"]);
        }
    }
    let summary = switch.summary();
    let counters = &summary["ports"][0]["extended"];
    assert!(counters["vxlan_copies"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!((&counters["vxlan_malformed"], &counters["vxlan_tx_drops"]), (&0.into(), &0.into()), "{summary}");
}

/// A tunnel over IPv6 to the kernel's vxlan device in a network behind a router. The kernel wants UDP checksums.
#[test]
fn over_ipv6_and_through_a_router() {
    let (middle, near, router, far, folder) =
        (Namespace::new(), Namespace::new(), Namespace::new(), Namespace::new(), folder());
    let (outer, inner, file) = (unique("to"), unique("ti"), folder.path().join("switch.toml"));
    let [here, there] = ["ua", "ub"].map(unique);
    let config = format!(
        "[[port]]\naddress = \"tap:{outer}\"\n\
         [port.vxlan]\nvni = 42\nlocal = \"fd00:1::1/64\"\ngateway = \"fd00:1::ff\"\nremote = \"fd00:2::2\"\n\
         [[port]]\naddress = \"tap:{inner}\"\n"
    );
    std::fs::write(&file, config).unwrap();
    let switch = middle.spawn(&[RINGPASS, "switch", "--config", text(&file), "--json", "--hugepages", "off"]);
    wait_until("the switch's first line", || !switch.line().is_empty());
    router.run(&["ip", "link", "add", &here, "type", "veth", "peer", "name", &there, "netns", &far.0]);
    middle.run(&["ip", "link", "set", &outer, "netns", &router.0]);
    for (namespace, interface, address) in
        [(&router, &outer, "fd00:1::ff/64"), (&router, &here, "fd00:2::ff/64"), (&far, &there, "fd00:2::2/64")]
    {
        let enable = format!("echo 0 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        namespace.run(&["sh", "-c", &enable]);
        namespace.run(&["ip", "address", "add", address, "dev", interface, "nodad"]);
        namespace.run(&["ip", "link", "set", interface, "up"]);
    }
    router.run(&["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"]);
    far.run(&["ip", "route", "add", "fd00:1::/64", "via", "fd00:2::ff"]);
    let kind = ["ip", "link", "add", "vx", "type", "vxlan", "id", "42", "local", "fd00:2::2"];
    far.run(&[&kind[..], &["remote", "fd00:1::1", "dev", &there, "dstport", "4789"]].concat());
    far.run(&["ip", "address", "add", "198.18.0.2/24", "dev", "vx"]);
    far.run(&["ip", "link", "set", "vx", "up"]);
    near.take(&middle, &inner, "198.18.0.1/24");
    // 70 bytes of headers.
    pings_up_to(1402, &near, "198.18.0.2");
    pings_up_to(1402, &far, "198.18.0.1");
    let summary = switch.summary();
    let counters = &summary["ports"][0]["extended"];
    assert_eq!((&counters["vxlan_malformed"], &counters["vxlan_tx_drops"]), (&0.into(), &0.into()), "{summary}");
    assert!(counters["vxlan_received"].as_u64().unwrap() > 300, "{summary}");
}
