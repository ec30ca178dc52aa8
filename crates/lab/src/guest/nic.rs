//! Network cards that QEMU itself plays, and what is at the far end of their wires.

use std::path::{Path, PathBuf};

use super::{Builder, Qemu};
use crate::host::{Namespace, run, unique};

/// The far end of a card's wire in the host's kernel: a TAP, which appears in a namespace with an address when the guest is
/// up, and goes with the guest.
#[derive(Clone, Debug)]
pub struct Tap {
    /// The interface.
    pub name: String,
    namespace: String,
    address: String,
    queues: u32,
    vnet_hdr: &'static str,
}

impl Tap {
    /// A TAP to be, in a namespace, with an address such as `198.18.1.1/24`.
    pub fn new(namespace: &Namespace, address: &str) -> Self {
        Self {
            name: unique("tq"),
            namespace: namespace.0.clone(),
            address: address.to_owned(),
            queues: 1,
            vnet_hdr: "on",
        }
    }

    /// Queue pairs, one unless said otherwise. A card uses more than one if it is `virtio-net-pci,mq=on`.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// For finished frames only: QEMU cuts segments and fills in checksums for its card, and the kernel checks what arrives.
    pub fn bare(mut self) -> Self {
        self.vnet_hdr = "off";
        self
    }

    /// Brings the TAP from where QEMU made it to where it belongs.
    pub(super) fn settle(&self, from: &Namespace) {
        let Self { name, namespace, address, .. } = self;
        run(&["ip", "-n", &from.0, "link", "set", name, "netns", namespace]);
        run(&["ip", "-n", namespace, "address", "add", address, "dev", name]);
        run(&["ip", "-n", namespace, "link", "set", name, "up"]);
    }
}

/// The far end of a card's wire in a vhost-user back-end, which a test runs.
#[derive(Clone, Debug)]
pub struct VhostUser {
    socket: PathBuf,
    listens: Listens,
    queues: u32,
}

/// Who makes the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listens {
    Qemu,
    BackEnd,
}

impl VhostUser {
    /// A back-end that listens: QEMU connects, and tries it again each second when the connection has ended. The guest
    /// starts when it is there.
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), listens: Listens::BackEnd, queues: 1 }
    }

    /// A back-end that connects to a socket of QEMU's, which everybody may. The guest starts when it has come.
    pub fn coming_to(socket: &Path) -> Self {
        Self { listens: Listens::Qemu, ..Self::at(socket) }
    }

    /// Queue pairs, one unless said otherwise. A card uses more than one if it is `virtio-net-pci,mq=on`.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    fn chardev(&self, number: usize, qemu: Qemu) -> String {
        let role = match (self.listens, qemu) {
            (Listens::Qemu, _) => "server=on,wait=off",
            (Listens::BackEnd, Qemu::Newest) => "reconnect-ms=1000",
            (Listens::BackEnd, Qemu::V7_2) => "reconnect=1",
        };
        format!("socket,id=wire{number},path={},{role}", self.socket.display())
    }
}

/// A card of QEMU's own.
pub(super) struct Nic {
    device: String,
    far_end: FarEnd,
}

enum FarEnd {
    Tap(Tap),
    VhostUser(VhostUser),
    /// QEMU's own network: it answers DHCP, and pings of 10.0.2.2.
    User,
}

/// Where card `number` of [`Builder::nic`] is found, counted from 0.
pub fn nic_address(number: usize) -> String {
    format!("0000:00:{:02x}.0", slot(number))
}

/// The hardware address of card `number` of [`Builder::nic`], counted from 0.
pub fn nic_mac(number: usize) -> String {
    format!("02:00:00:00:02:{number:02x}")
}

/// Below are the chipset's devices, from 0x10 on those of [`Builder::card`], at 0x1e the agent's.
fn slot(number: usize) -> usize {
    2 + number
}

impl Builder {
    /// A network card that QEMU plays, such as `virtio-net-pci,packed=on` or `igb`, with a TAP at the far end of its wire.
    /// It is found at [`nic_address`], with the hardware address [`nic_mac`].
    pub fn nic(mut self, device: &str, tap: &Tap) -> Self {
        self.nics.push(Nic { device: device.to_owned(), far_end: FarEnd::Tap(tap.clone()) });
        self
    }

    /// The same, with a vhost-user back-end at the far end, which has the guest's memory. It takes `virtio-net-pci`.
    pub fn vhost_user_nic(mut self, device: &str, back_end: &VhostUser) -> Self {
        self.nics.push(Nic { device: device.to_owned(), far_end: FarEnd::VhostUser(back_end.clone()) });
        self
    }

    /// The same, with QEMU's user networking at the far end: DHCP gives 10.0.2.15, and 10.0.2.2 answers pings.
    pub fn nic_with_user_network(mut self, device: &str) -> Self {
        self.nics.push(Nic { device: device.to_owned(), far_end: FarEnd::User });
        self
    }
}

impl Nic {
    pub(super) fn tap(&self) -> Option<&Tap> {
        match &self.far_end {
            FarEnd::Tap(tap) => Some(tap),
            FarEnd::VhostUser(_) | FarEnd::User => None,
        }
    }

    /// QEMU's arguments for card `number`.
    pub(super) fn arguments(&self, number: usize, qemu: Qemu) -> Vec<String> {
        let mut arguments = Vec::new();
        let netdev = match &self.far_end {
            FarEnd::Tap(Tap { name, queues, vnet_hdr, .. }) => {
                format!(
                    "tap,id=nic{number},ifname={name},script=no,downscript=no,vhost=off,queues={queues},vnet_hdr={vnet_hdr}"
                )
            }
            FarEnd::VhostUser(back_end) => {
                arguments.extend(["-chardev".to_owned(), back_end.chardev(number, qemu)]);
                format!("vhost-user,id=nic{number},chardev=wire{number},queues={}", back_end.queues)
            }
            FarEnd::User => format!("user,id=nic{number}"),
        };
        // Without KVM, QEMU 7.2 dies as soon as a driver gives interrupts to such a card: it looks for those of KVM.
        let vectors = match (&self.far_end, qemu) {
            (FarEnd::VhostUser(_), Qemu::V7_2) => ",vectors=0",
            _ => "",
        };
        let (device, slot, mac) = (&self.device, slot(number), nic_mac(number));
        // Without the ROM of its boot by network, which takes the firmware time.
        let device = format!("{device},netdev=nic{number},addr={slot:x},mac={mac},romfile={vectors}");
        arguments.extend(["-netdev".to_owned(), netdev, "-device".to_owned(), device]);
        arguments
    }
}
