//! A guest for people: two cards, the program, and a shell on this terminal.

use std::path::Path;
use std::process::ExitStatus;

use crate::{Guest, Namespace, Tap};

/// What is behind the two cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Two hosts, in network namespaces that this process must be allowed to make; one pings the other.
    Hosts,
    /// QEMU's user networking, which everybody may use.
    UserNetworks,
}

const HOSTS: &str = include_str!("shell/hosts.sh");
const USER_NETWORKS: &str = include_str!("shell/user_networks.sh");

/// Runs the program's guest until its shell ends.
pub fn shell(program: &Path, behind: Behind) -> std::io::Result<ExitStatus> {
    let guest = Guest::new().memory(768).cpus(2).program(program);
    match behind {
        Behind::Hosts => {
            let (a, b) = (Namespace::new(), Namespace::new());
            let guest = guest
                .nic("virtio-net-pci,packed=on", &Tap::new(&a, "198.18.0.1/24"))
                .nic("virtio-net-pci,packed=on", &Tap::new(&b, "198.18.0.2/24"));
            // It says that the network is unreachable as long as the TAPs are not there.
            let _pings = a.spawn(&["sh", "-c", "while :; do ping -q -i 0.2 198.18.0.2; sleep 0.2; done 2>&1"]);
            guest.shell(HOSTS)
        }
        Behind::UserNetworks => {
            let card = "virtio-net-pci,packed=on";
            guest.nic_with_user_network(card).nic_with_user_network(card).shell(USER_NETWORKS)
        }
    }
}
