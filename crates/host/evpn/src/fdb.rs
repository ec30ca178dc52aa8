//! The forwarding tables of VXLAN devices and the neighbours of bridges, which the kernel reports by netlink (rtnetlink(7), "RTM_NEWNEIGH" of the
//! family `AF_BRIDGE` and of the others).

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use ringpass_port::{Error, MacAddress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with, sockopt};

/// An entry of a VXLAN device's table: frames to this address go to that end. The address 0 stands for all that are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Index of the device.
    pub(crate) device: u32,
    pub(crate) mac: MacAddress,
    pub(crate) remote: IpAddr,
}

/// A neighbour of a bridge, as FRR has told the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    /// Index of the device.
    pub(crate) device: u32,
    pub(crate) ip: IpAddr,
    pub(crate) mac: MacAddress,
    /// Set if it is an IPv6 router.
    pub(crate) is_router: bool,
}

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Added(Entry),
    Removed(Entry),
    Address(Neighbour),
    /// Device and address.
    AddressGone(u32, IpAddr),
    /// Name and index of a device.
    Device(String, u32),
    /// Index of a device that is gone.
    DeviceGone(u32),
}

/// Multicast groups of devices and of tables of neighbours (linux/rtnetlink.h, `RTNLGRP_LINK` and `RTNLGRP_NEIGH`).
const GROUPS: u32 = 1 << 0 | 1 << 2;
/// Bytes of changes that wait to be read. More than usual needs privileges; without them, tables are read anew more often.
const BUFFER: usize = 8 << 20;
/// Longest message: the kernel gives a dump's reader as much as it has room for, up to 32 KiB.
const LONGEST: usize = 1 << 16;
/// Longest time for a table to be read.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sockets for changes and for whole tables. They stay in the network namespace in which they were opened.
pub(crate) struct Fdb {
    changes: OwnedFd,
    /// Connected to the kernel, so that a sandbox lets it send.
    requests: OwnedFd,
    buffer: Vec<u8>,
}

impl Fdb {
    pub(crate) fn open() -> Result<Self, Error> {
        let wrong = |what: &'static str| move |errno: Errno| Error::os(format!("netlink: {what}"), errno);
        let new = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            // The protocol 0 is that of routes and neighbours.
            socket_with(rustix::net::AddressFamily::NETLINK, SocketType::RAW, flags, None)
        };
        let changes = new().map_err(wrong("a socket for changes of tables"))?;
        if sockopt::set_socket_recv_buffer_size_force(&changes, BUFFER).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&changes, BUFFER);
        }
        bind(&changes, &SocketAddrNetlink::new(0, GROUPS)).map_err(wrong("joining the groups of tables"))?;
        let requests = new().map_err(wrong("a socket for tables"))?;
        connect(&requests, &SocketAddrNetlink::new(0, 0)).map_err(wrong("the kernel"))?;
        Ok(Self { changes, requests, buffer: vec![0; LONGEST] })
    }

    /// Passes what has changed to `each`, of up to `most` messages. Returns `false` if some were lost, so that tables must be read anew.
    pub(crate) fn read_changes(&mut self, most: usize, mut each: impl FnMut(Change)) -> bool {
        for _ in 0..most {
            let read = match receive(&self.changes, &mut self.buffer) {
                Ok(read) => read,
                Err(Errno::NOBUFS) => {
                    // The kernel adds none, and says nothing of those that it drops, until there are none any more
                    // (`NETLINK_S_CONGESTED`).
                    discard(&self.changes, &mut self.buffer);
                    return false;
                }
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            for message in messages(&self.buffer[..read]) {
                change(message.payload).into_iter().for_each(&mut each);
            }
        }
        true
    }

    /// Passes a whole table to `each`. Returns `false` if the kernel did not say all.
    pub(crate) fn read_all(&mut self, what: Whole, mut each: impl FnMut(Change)) -> bool {
        // What is left of an answer that was given up.
        discard(&self.requests, &mut self.buffer);
        let request = match what {
            Whole::Entries => {
                let mut entries = NeighbourMessage::default();
                entries.header.family = AddressFamily::Bridge;
                RouteNetlinkMessage::GetNeighbour(entries)
            }
            Whole::Neighbours => RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
            Whole::Devices => RouteNetlinkMessage::GetLink(Default::default()),
        };
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(request));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        if send(&self.requests, &bytes, SendFlags::empty()).is_err() {
            return false;
        }
        let start = Instant::now();
        let mut whole = true;
        while start.elapsed() < PATIENCE {
            let read = match receive(&self.requests, &mut self.buffer) {
                Ok(read) => read,
                Err(Errno::AGAIN | Errno::INTR) => {
                    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                    let _ = poll(&mut [PollFd::new(&self.requests, PollFlags::IN)], Some(&second));
                    continue;
                }
                Err(_) => return false,
            };
            for message in messages(&self.buffer[..read]) {
                // The table has changed while it was read, in more than what is reported as a change.
                const INTERRUPTED: u16 = 0x10;
                whole &= message.header.flags & INTERRUPTED == 0;
                match message.payload {
                    NetlinkPayload::Done(_) => return whole,
                    NetlinkPayload::Error(_) => return false,
                    other => change(other).into_iter().for_each(&mut each),
                }
            }
        }
        false
    }
}

/// A table that is read as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Devices,
    Entries,
    Neighbours,
}

impl AsFd for Fdb {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// Receives a message. Only the kernel sends to multicast groups and to sockets that are connected to it, unless another process has
/// `CAP_NET_ADMIN`.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    recv(socket, buffer, RecvFlags::empty()).map(|(read, _)| read)
}

/// Takes all messages that wait.
fn discard(socket: &OwnedFd, buffer: &mut [u8]) {
    const MOST: usize = 1 << 20;
    for _ in 0..MOST {
        match receive(socket, buffer) {
            Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
            Err(_) => return,
        }
    }
}

/// Returns the messages of a datagram, without those that cannot be read.
fn messages(mut bytes: &[u8]) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
    const HEADER: usize = 16;
    let mut found = Vec::new();
    while let Some(len) = bytes.first_chunk::<4>().map(|len| u32::from_ne_bytes(*len) as usize) {
        if !(HEADER..=bytes.len()).contains(&len) {
            break;
        }
        found.extend(NetlinkMessage::deserialize(&bytes[..len]));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    found
}

fn change(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<Change> {
    let NetlinkPayload::InnerMessage(message) = payload else { return None };
    match message {
        RouteNetlinkMessage::NewNeighbour(message) => of_table(&message, true),
        RouteNetlinkMessage::DelNeighbour(message) => of_table(&message, false),
        // Those of the family of bridges are about a port's membership.
        RouteNetlinkMessage::NewLink(message) if message.header.interface_family == AddressFamily::Unspec => {
            let name = message.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            });
            name.map(|name| Change::Device(name, message.header.index))
        }
        RouteNetlinkMessage::DelLink(message) if message.header.interface_family == AddressFamily::Unspec => {
            Some(Change::DeviceGone(message.header.index))
        }
        _ => None,
    }
}

/// Returns what a message says about an entry of a table of either kind, which `is_there` or is gone.
fn of_table(message: &NeighbourMessage, is_there: bool) -> Option<Change> {
    match message.header.family {
        AddressFamily::Bridge => entry(message).map(if is_there { Change::Added } else { Change::Removed }),
        _ => neighbour(message, is_there),
    }
}

/// Returns the entry of a VXLAN device that a message is about.
fn entry(message: &NeighbourMessage) -> Option<Entry> {
    let header = &message.header;
    if !header.flags.contains(NeighbourFlags::Own) {
        return None;
    }
    let (mac, remote) = addresses(message);
    Some(Entry { device: header.ifindex, mac: mac?, remote: remote? })
}

/// Returns what a message about a neighbour, which `is_there` or is gone, says. One that others than FRR have told the kernel of is
/// none behind an end.
fn neighbour(message: &NeighbourMessage, is_there: bool) -> Option<Change> {
    let header = &message.header;
    let (mac, ip) = addresses(message);
    let (device, ip) = (header.ifindex, ip?);
    Some(match mac.filter(|_| is_there && header.flags.contains(NeighbourFlags::ExtLearned)) {
        Some(mac) => {
            let is_router = header.flags.contains(NeighbourFlags::Router);
            Change::Address(Neighbour { device, ip, mac, is_router })
        }
        None => Change::AddressGone(device, ip),
    })
}

/// Returns the addresses in a message.
fn addresses(message: &NeighbourMessage) -> (Option<MacAddress>, Option<IpAddr>) {
    let (mut mac, mut destination) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddress),
            NeighbourAttribute::Destination(address) => destination = ip(address),
            _ => {}
        }
    }
    (mac, destination)
}

fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        // The family of these messages says nothing of the address.
        NeighbourAddress::Other(bytes) => {
            let four = <[u8; 4]>::try_from(&bytes[..]).map(IpAddr::from);
            four.or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from)).ok()
        }
        _ => None,
    }
}
