//! Network cards that QEMU emulates, and their network back-ends.

use std::path::{Path, PathBuf};

use super::{Builder, Qemu};
use crate::host::{Namespace, run, unique};

/// A TAP of the host's kernel as the back-end of a card. It appears with its address in a namespace once the
/// guest is up, and is removed when the guest ends.
#[derive(Clone, Debug)]
pub struct Tap {
    /// Name of the interface.
    pub name: String,
    namespace: String,
    address: String,
    queues: u32,
    vnet_hdr: &'static str,
}

impl Tap {
    /// Describes a TAP that will be created in `namespace`, with an address such as `198.18.1.1/24`.
    pub fn new(namespace: &Namespace, address: &str) -> Self {
        Self {
            name: unique("tq"),
            namespace: namespace.0.clone(),
            address: address.to_owned(),
            queues: 1,
            vnet_hdr: "on",
        }
    }

    /// Sets the number of queue pairs; the default is one. Only `virtio-net-pci,mq=on` uses more.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Turns the virtio-net header off. QEMU then does segmentation and checksums for its card, and the kernel
    /// verifies the checksums of frames that arrive.
    pub fn without_offloads(mut self) -> Self {
        self.vnet_hdr = "off";
        self
    }

    /// Moves the TAP from the namespace where QEMU created it to its own, and configures it.
    pub(super) fn move_to_namespace(&self, from: &Namespace) {
        let Self { name, namespace, address, .. } = self;
        run(&["ip", "-n", &from.0, "link", "set", name, "netns", namespace]);
        run(&["ip", "-n", namespace, "address", "add", address, "dev", name]);
        run(&["ip", "-n", namespace, "link", "set", name, "up"]);
    }
}

/// A vhost-user back-end of a card, which the test runs.
#[derive(Clone, Debug)]
pub struct VhostUser {
    socket: PathBuf,
    owner: SocketOwner,
    queues: u32,
}

/// Side that creates the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketOwner {
    Qemu,
    BackEnd,
}

impl VhostUser {
    /// Describes a back-end that listens. QEMU connects, and reconnects every second after the connection has
    /// ended. The guest starts once it is connected.
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), owner: SocketOwner::BackEnd, queues: 1 }
    }

    /// Describes a back-end that connects to a socket of QEMU's, which any user may do. The guest starts once
    /// it is connected.
    pub fn connecting_to(socket: &Path) -> Self {
        Self { owner: SocketOwner::Qemu, ..Self::at(socket) }
    }

    /// Sets the number of queue pairs; the default is one. Only `virtio-net-pci,mq=on` uses more.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    fn chardev(&self, number: usize, qemu: Qemu) -> String {
        let role = match (self.owner, qemu) {
            (SocketOwner::Qemu, _) => "server=on,wait=off",
            (SocketOwner::BackEnd, Qemu::Newest) => "reconnect-ms=1000",
            (SocketOwner::BackEnd, Qemu::V7_2) => "reconnect=1",
        };
        format!("socket,id=wire{number},path={},{role}", self.socket.display())
    }
}

/// A card that QEMU emulates.
pub(super) struct Nic {
    device: String,
    net_backend: NetBackend,
}

enum NetBackend {
    Tap(Tap),
    VhostUser(VhostUser),
    /// QEMU's user networking, which answers DHCP, and pings of 10.0.2.2.
    User,
}

/// Returns the PCI address of card `number` of [`Builder::nic`], counted from 0.
pub fn nic_address(number: usize) -> String {
    format!("0000:00:{:02x}.0", slot(number))
}

/// Returns the MAC address of card `number` of [`Builder::nic`], counted from 0.
pub fn nic_mac(number: usize) -> String {
    format!("02:00:00:00:02:{number:02x}")
}

/// Returns the PCI slot of card `number`. Slots 0 and 1 belong to the chipset, 0x10 and above to
/// [`Builder::card`], 0x1e to the agent.
fn slot(number: usize) -> usize {
    2 + number
}

impl Builder {
    /// Adds a card that QEMU emulates, such as `virtio-net-pci,packed=on` or `igb`, with a TAP as its back-end.
    /// Its PCI address is [`nic_address`] and its MAC address [`nic_mac`].
    pub fn nic(mut self, device: &str, tap: &Tap) -> Self {
        self.nics.push(Nic { device: device.to_owned(), net_backend: NetBackend::Tap(tap.clone()) });
        self
    }

    /// Adds a card of type `virtio-net-pci` with a vhost-user back-end, which maps the guest's memory.
    pub fn vhost_user_nic(mut self, device: &str, back_end: &VhostUser) -> Self {
        self.nics.push(Nic { device: device.to_owned(), net_backend: NetBackend::VhostUser(back_end.clone()) });
        self
    }

    /// Adds a card with QEMU's user networking as its back-end: DHCP gives 10.0.2.15, and 10.0.2.2 answers
    /// pings.
    pub fn nic_with_user_network(mut self, device: &str) -> Self {
        self.nics.push(Nic { device: device.to_owned(), net_backend: NetBackend::User });
        self
    }
}

impl Nic {
    pub(super) fn tap(&self) -> Option<&Tap> {
        match &self.net_backend {
            NetBackend::Tap(tap) => Some(tap),
            NetBackend::VhostUser(_) | NetBackend::User => None,
        }
    }

    /// Returns QEMU's arguments for card `number`.
    pub(super) fn arguments(&self, number: usize, qemu: Qemu) -> Vec<String> {
        let mut arguments = Vec::new();
        let netdev = match &self.net_backend {
            NetBackend::Tap(Tap { name, queues, vnet_hdr, .. }) => {
                format!(
                    "tap,id=nic{number},ifname={name},script=no,downscript=no,vhost=off,queues={queues},vnet_hdr={vnet_hdr}"
                )
            }
            NetBackend::VhostUser(back_end) => {
                arguments.extend(["-chardev".to_owned(), back_end.chardev(number, qemu)]);
                format!("vhost-user,id=nic{number},chardev=wire{number},queues={}", back_end.queues)
            }
            NetBackend::User => format!("user,id=nic{number}"),
        };
        // Without KVM, QEMU 7.2 crashes as soon as a driver sets up interrupts of such a card: it looks for
        // KVM's interrupts.
        let vectors = match (&self.net_backend, qemu) {
            (NetBackend::VhostUser(_), Qemu::V7_2) => ",vectors=0",
            _ => "",
        };
        let device = &self.device;
        let slot = slot(number);
        let mac = nic_mac(number);
        // No boot ROM: its network boot would cost start-up time.
        let device = format!("{device},netdev=nic{number},addr={slot:x},mac={mac},romfile={vectors}");
        arguments.extend(["-netdev".to_owned(), netdev, "-device".to_owned(), device]);
        arguments
    }
}
