//! Asks the kernel what an interface's driver can do with XDP, by generic netlink (Linux 6.3, netlink/specs/netdev).
//!
//! It is two requests with an attribute each; a library for netlink would be more than all of them.

use rustix::net::netlink::GENERIC;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::sys::{Interfaces, driver, rx_queues};

/// A kernel interface, as far as XDP sockets are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelInterface {
    /// Name of its driver, such as `ixgbe`; `None` if it has none.
    pub driver: Option<String>,
    /// Number of its Rx queues, if the driver reports it.
    pub queues: Option<u32>,
    /// Abilities of the driver, if the kernel reports them (Linux 6.3).
    pub xdp: Option<XdpFeatures>,
}

/// Abilities of a driver with XDP. Programs in generic mode work with any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Bits `NETDEV_XDP_ACT_*`.
    xdp: u64,
    /// Bits `NETDEV_XDP_RX_METADATA_*`.
    metadata: u64,
    /// Bits `NETDEV_XSK_FLAGS_*`.
    sockets: u64,
}

impl XdpFeatures {
    /// Programs run in the driver and redirect frames to sockets.
    pub fn native(&self) -> bool {
        const BASIC_AND_REDIRECT: u64 = 1 << 0 | 1 << 1;
        self.xdp & BASIC_AND_REDIRECT == BASIC_AND_REDIRECT
    }

    /// The card reads and writes a socket's memory.
    pub fn zero_copy(&self) -> bool {
        self.xdp & 1 << 3 != 0
    }

    /// Received frames may lie in several buffers.
    pub fn pieces(&self) -> bool {
        self.xdp & 1 << 5 != 0
    }

    /// Programs learn when the card received a frame.
    pub fn rx_timestamp(&self) -> bool {
        self.metadata & 1 << 0 != 0
    }

    /// Programs learn the RSS hash.
    pub fn rx_hash(&self) -> bool {
        self.metadata & 1 << 1 != 0
    }

    /// Programs learn a VLAN tag that the card has taken out of the frame.
    pub fn rx_vlan_tag(&self) -> bool {
        self.metadata & 1 << 2 != 0
    }

    /// Cards complete checksums of frames that they read from a socket's memory.
    pub fn tx_checksum(&self) -> bool {
        self.sockets & 1 << 1 != 0
    }

    /// Returns in words what programs and sockets learn from the card and leave to it.
    pub fn hints(&self) -> Vec<&'static str> {
        let names = [
            (self.rx_timestamp(), "Rx timestamp"),
            (self.rx_hash(), "Rx hash"),
            (self.rx_vlan_tag(), "Rx VLAN tag"),
            (self.sockets & 1 << 0 != 0, "Tx timestamp"),
            (self.tx_checksum(), "Tx checksum"),
        ];
        names.into_iter().filter(|(can, _)| *can).map(|(_, name)| name).collect()
    }
}

/// Describes a kernel interface of this process's network namespace; `None` if there is no such one.
pub fn kernel_interface(name: &str) -> Option<KernelInterface> {
    let index = Interfaces::new().ok()?.index(name).ok()?;
    Some(KernelInterface { driver: driver(name), queues: rx_queues(name), xdp: features(index) })
}

/// Types of messages and numbers of attributes.
const ERROR: u16 = 2;
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const DEVICE_GET: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_XDP: u16 = 3;
const DEVICE_METADATA: u16 = 5;
const DEVICE_SOCKETS: u16 = 6;

/// Bytes of the headers of a message (`struct nlmsghdr` and `struct genlmsghdr`), and of an attribute.
const HEADERS: usize = 16 + 4;
const ATTRIBUTE: usize = 4;

pub(crate) fn features(index: i32) -> Option<XdpFeatures> {
    let family = ask(CONTROL, GET_FAMILY, FAMILY_NAME, b"netdev\0")?;
    let family = u16::from_ne_bytes(attribute(&family, FAMILY_ID)?.try_into().ok()?);
    let device = ask(family, DEVICE_GET, DEVICE_INDEX, &index.to_ne_bytes())?;
    let bits = |kind| Some(u64::from_ne_bytes(attribute(&device, kind)?.try_into().ok()?));
    let later = |kind| bits(kind).unwrap_or_default();
    Some(XdpFeatures { xdp: bits(DEVICE_XDP)?, metadata: later(DEVICE_METADATA), sockets: later(DEVICE_SOCKETS) })
}

/// Sends a command with an attribute to the kernel; returns its answer, unless that is an error.
fn ask(family: u16, command: u8, kind: u16, value: &[u8]) -> Option<Vec<u8>> {
    const REQUEST: u16 = 1;
    let len = HEADERS + ATTRIBUTE + value.len();
    let mut message = Vec::with_capacity(len + 3);
    message.extend((len as u32).to_ne_bytes());
    message.extend([family, REQUEST].map(u16::to_ne_bytes).concat());
    // The number of the message and of its sender, then the command with its version.
    message.extend([[0; 4], [0; 4], [command, 1, 0, 0]].concat());
    message.extend([(ATTRIBUTE + value.len()) as u16, kind].map(u16::to_ne_bytes).concat());
    message.extend(value);
    message.resize(len.next_multiple_of(4), 0);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC)).ok()?;
    send(&socket, &message, SendFlags::empty()).ok()?;
    // The kernel has answered before `send` returns.
    let mut answer = vec![0; 16 << 10];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    answer.truncate(len);
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    (kind != ERROR && kind == family).then_some(answer)
}

/// Returns the value of an attribute in a message.
fn attribute(message: &[u8], kind: u16) -> Option<&[u8]> {
    /// The rest of an attribute's type are flags.
    const TYPE: u16 = 0x3fff;
    let mut rest = message.get(HEADERS..)?;
    loop {
        let half = |at: usize| Some(u16::from_ne_bytes(rest.get(at..at + 2)?.try_into().ok()?));
        let len = usize::from(half(0)?);
        let value = rest.get(ATTRIBUTE..len)?;
        if half(2)? & TYPE == kind {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_broken_ones_end_the_search() {
        let attribute_of = |kind: u16, value: &[u8]| {
            let len = (ATTRIBUTE + value.len()) as u16;
            [
                &[len, kind].map(u16::to_ne_bytes).concat(),
                value,
                &[0; 3][..value.len().next_multiple_of(4) - value.len()],
            ]
            .concat()
        };
        let message = [vec![0; HEADERS], attribute_of(7, &[1, 2, 3]), attribute_of(0x8003, &[4])].concat();
        assert_eq!(attribute(&message, 7), Some(&[1, 2, 3][..]));
        assert_eq!(attribute(&message, 3), Some(&[4][..]));
        assert_eq!(attribute(&message, 8), None);
        for len in 0..message.len() {
            attribute(&message[..len], 8);
        }
        // Lengths that lead nowhere.
        for len in [0u16, 3, 5, 0xffff] {
            let message = [vec![0; HEADERS], len.to_ne_bytes().to_vec(), vec![0; 2]].concat();
            assert_eq!(attribute(&message, 9), None);
        }
    }

    #[test]
    fn what_is_not_there_is_not_described() {
        assert_eq!(kernel_interface("no such one"), None);
        let loopback = kernel_interface("lo").expect("every namespace has it");
        assert!(!loopback.xdp.is_some_and(|xdp| xdp.native() || xdp.zero_copy() || xdp.pieces()), "{loopback:?}");
    }
}
