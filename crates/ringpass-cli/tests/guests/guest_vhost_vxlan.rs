//! Linux's virtio-net in a QEMU guest at one port of the switch, and a tunnel from the kernel's own vxlan
//! device at the other: frames are decapsulated on their way to the guest, also in the guest's own buffers.

use crate::common::folder;
use crate::common::guest::tcp_to;
use crate::common::tunnel::{Options, Tunnel, mapped, pings};
use crate::common::vhost::{serve, socket, up, vhost, with_servers, wrong_checksums};
use ringpass_lab::{Guest, VhostUser};

/// Kinds of cards in the guest, and whether their frames are mapped.
const KINDS: [(&str, bool); 3] =
    [("virtio-net-pci", false), ("virtio-net-pci", true), ("virtio-net-pci,packed=on,mrg_rxbuf=off", true)];

#[test]
fn a_guest_in_a_tunnels_network() {
    let (folder, mut builder, mut tunnels) = (folder(), with_servers(Guest::new().cpus(2)), Vec::new());
    for (number, (device, mapped)) in (0..).zip(KINDS) {
        let socket = socket(&folder, number);
        let options = Options { card: "model:", mapped, ..Default::default() };
        tunnels.push(Tunnel::new(&vhost(&socket), &format!("198.18.{number}.1/24"), options));
        builder = builder.vhost_user_nic(device, &VhostUser::at(&socket));
    }
    let guest = builder.boot();
    serve(&guest);
    for ((number, tunnel), (device, is_mapped)) in (0..).zip(tunnels).zip(KINDS) {
        up(&guest, number, number as u8);
        let to = format!("198.18.{number}.2");
        pings(&tunnel.far, &to);
        tcp_to(&tunnel.far, &to, &[]);
        tcp_to(&tunnel.far, &to, &["-R"]);
        let summary = tunnel.end();
        assert_eq!(mapped(&summary), is_mapped, "{device}: {summary}");
        assert_eq!(summary["ports"][1]["extended"]["guest_faults"], 0, "{summary}");
    }
    assert_eq!(wrong_checksums(&guest.run("cat /proc/net/snmp")), 0);
}
