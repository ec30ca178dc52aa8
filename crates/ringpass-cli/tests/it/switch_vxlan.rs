//! A tunnel between the kernel's own vxlan device and a port of the switch: the network inside reaches a kernel
//! behind another port. If that port is a guest's, a card can receive into the guest's buffers, where the
//! frames are decapsulated.

use crate::common::guest::tcp_to;
use crate::common::tunnel::{Options, Tunnel, mapped, pings};
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
