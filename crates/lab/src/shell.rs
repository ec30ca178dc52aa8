//! An interactive guest with two cards and the program, and a shell on this terminal.

use std::path::Path;
use std::process::ExitStatus;

use crate::{Guest, Namespace, Tap};

/// Network behind the two cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Two hosts in network namespaces, one of which pings the other. Needs permission to create namespaces.
    Hosts,
    /// QEMU's user networking, which any user may use.
    UserNetworks,
}

const HOSTS: &str = include_str!("shell/hosts.sh");
const USER_NETWORKS: &str = include_str!("shell/user_networks.sh");

/// Starts a guest with the program and waits until its shell ends.
pub fn shell(program: &Path, uplink: Uplink) -> std::io::Result<ExitStatus> {
    let guest = Guest::new().memory(768).cpus(2).program(program);
    match uplink {
        Uplink::Hosts => {
            let (a, b) = (Namespace::new(), Namespace::new());
            let guest = guest
                .nic("virtio-net-pci,packed=on", &Tap::new(&a, "198.18.0.1/24"))
                .nic("virtio-net-pci,packed=on", &Tap::new(&b, "198.18.0.2/24"));
            // The loop retries because ping fails until the TAPs appear.
            let _pings = a.spawn(&["sh", "-c", "while :; do ping -q -i 0.2 198.18.0.2; sleep 0.2; done 2>&1"]);
            guest.shell(HOSTS)
        }
        Uplink::UserNetworks => {
            let card = "virtio-net-pci,packed=on";
            guest.nic_with_user_network(card).nic_with_user_network(card).shell(USER_NETWORKS)
        }
    }
}
