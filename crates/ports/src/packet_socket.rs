//! Interfaces of the kernel through packet sockets: received through a ring shared with the kernel, without a system
//! call; sent in one system call a burst.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringpass_memory::{Burst, Mempool, Packet};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, RxQueue, State, Stats, TxQueue};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::buffers::{Buffers, drop_front};
use crate::checksum;
use crate::kernel_ring::{Frame, KernelRing};
use crate::status::{Status, passes};
use crate::sys::{Interfaces, bind_packet, packet_interface_exists, packet_option, send_frames, set_packet_option};

/// `packet:NAME`. Frames that the kernel itself sends through the interface are not received.
pub struct PacketSocket {
    name: String,
    index: i32,
    mac: MacAddress,
    interfaces: Interfaces,
    /// Those that receive, one a queue.
    sockets: Vec<Arc<OwnedFd>>,
    promiscuous: Arc<AtomicBool>,
    status: Arc<Status>,
    queues: Vec<Queues>,
    notes: Vec<String>,
}

struct Rx {
    ring: KernelRing,
    buffers: Buffers,
    promiscuous: Arc<AtomicBool>,
    status: Arc<Status>,
    queue: usize,
    mtu: usize,
}

struct Tx {
    socket: OwnedFd,
    status: Arc<Status>,
    queue: usize,
    mtu: usize,
}

impl PacketSocket {
    /// The interface must be Ethernet (or loopback, which is framed alike).
    pub fn open(interface: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let wrong = |what: &'static str| {
            move |source: io::Error| Error::Os { what: format!("packet:{interface}: {what}"), source }
        };
        let interfaces = Interfaces::new().map_err(wrong("a socket"))?;
        let index = interfaces.index(interface).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) => {
                Error::Other(format!("packet:{interface}: no such interface; 'ip link' shows those there are"))
            }
            _ => wrong("looking for the interface")(error),
        })?;
        let (kind, mac) = interfaces.hardware(interface).map_err(wrong("reading the hardware address"))?;
        if !matches!(kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Err(Error::Other(format!("packet:{interface}: no Ethernet interface; take one that is")));
        }
        let notes = notes(&interfaces, interface, config).map_err(wrong("reading the interface's state"))?;

        let status = Arc::new(Status::new(config.queues));
        let promiscuous = Arc::new(AtomicBool::new(false));
        let (mut sockets, mut rings) = (Vec::new(), Vec::new());
        for _ in 0..config.queues {
            let socket = Arc::new(open_socket(interface)?);
            let option = |option, value: i32| set_packet_option(socket.as_fd(), option, value);
            let ring = KernelRing::new(&socket, config.rx_ring).map_err(wrong("a receive ring"))?;
            option(libc::PACKET_IGNORE_OUTGOING, 1).map_err(wrong("ignoring the kernel's own frames"))?;
            bind_packet(socket.as_fd(), index, libc::ETH_P_ALL).map_err(wrong("binding to the interface"))?;
            sockets.push(socket);
            rings.push(ring);
        }
        if config.queues > 1 {
            join_fanout(&sockets).map_err(wrong("spreading over several queues"))?;
            // Before they had joined, each of the sockets received every frame.
            rings.iter_mut().for_each(|ring| while ring.receive(|_| ()).is_some() {});
        }
        let mut queues = Vec::new();
        for (queue, ring) in rings.into_iter().enumerate() {
            let socket = open_socket(interface)?;
            bind_packet(socket.as_fd(), index, 0).map_err(wrong("binding to the interface"))?;
            let (promiscuous, mtu) = (promiscuous.clone(), config.mtu);
            let tx = Tx { socket, status: status.clone(), queue, mtu };
            let rx = Rx { ring, buffers: Buffers::new(pool), promiscuous, status: status.clone(), queue, mtu };
            queues.push(Queues { rx: Box::new(rx), tx: Box::new(tx) });
        }
        let name = format!("packet:{interface}");
        let mut port = Self { name, index, mac, interfaces, sockets, promiscuous, status, queues, notes };
        port.set_promiscuous(config.promiscuous)?;
        Ok(port)
    }

    /// The interface's name now: it may have been renamed.
    fn flags(&self) -> io::Result<i32> {
        self.interfaces.flags(&self.interfaces.name(self.index)?)
    }
}

fn open_socket(interface: &str) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => Error::Other(format!(
            "packet:{interface}: packet sockets are not permitted; run as root or with CAP_NET_RAW"
        )),
        errno => Error::Os { what: format!("packet:{interface}: a packet socket"), source: errno.into() },
    })
}

/// Lets the kernel spread frames over the sockets by their flow.
fn join_fanout(sockets: &[Arc<OwnedFd>]) -> io::Result<()> {
    const HASH: u32 = 0;
    const UNIQUE_ID: u32 = 0x2000;
    let mut group = (HASH | UNIQUE_ID) << 16;
    for socket in sockets {
        set_packet_option(socket.as_fd(), libc::PACKET_FANOUT, group)?;
        // The first one is told the number of its new group, which the others join.
        let [value] = packet_option(socket.as_fd(), libc::PACKET_FANOUT)?;
        group = value & 0xffff | HASH << 16;
    }
    Ok(())
}

fn notes(interfaces: &Interfaces, interface: &str, config: &PortConfig) -> io::Result<Vec<String>> {
    let slots = config.rx_ring;
    let mut notes = vec![format!("{} queue(s), receive rings of {slots} frames, frames are copied", config.queues)];
    if interfaces.flags(interface)? & libc::IFF_UP == 0 {
        notes.push(format!("the interface is down; bring it up: ip link set {interface} up"));
    }
    let mtu = interfaces.mtu(interface)?;
    if mtu != config.mtu && interface != "lo" {
        notes.push(format!("the interface's MTU is {mtu}, the port's {}; the smaller one counts", config.mtu));
    }
    notes.push(format!(
        "frames above the MTU, which the kernel makes by merging (GRO) or not yet cutting (TSO), are dropped; switch it \
         off: ethtool -K {interface} gro off lro off; for a veth, at its peer: ethtool -K PEER tso off gso off"
    ));
    Ok(notes)
}

/// Copies a frame out of its slot, with its VLAN tag and its checksum; `false` if it must be dropped.
fn copy(frame: &Frame, packet: &mut Packet, mtu: usize) -> bool {
    const ADDRESSES: usize = 12;
    let tag = frame.vlan.as_ref().map_or(&[][..], |tag| tag);
    let len = frame.bytes.len() + tag.len();
    if !frame.whole || frame.bytes.len() < ADDRESSES || len > packet.capacity() {
        return false;
    }
    packet.set_len(len);
    let (addresses, rest) = frame.bytes.split_at(ADDRESSES);
    packet[..ADDRESSES].copy_from_slice(addresses);
    packet[ADDRESSES..ADDRESSES + tag.len()].copy_from_slice(tag);
    packet[ADDRESSES + tag.len()..].copy_from_slice(rest);
    let complete = frame.checksum.is_none_or(|(start, offset)| checksum::complete(packet, start + tag.len(), offset));
    complete && passes(packet, mtu)
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        const OTHER_HOST: u8 = 3;
        let promiscuous = self.promiscuous.load(Relaxed);
        let (mut packets, mut bytes, mut drops) = (0, 0, 0);
        for _ in 0..burst.room() {
            // With the pool dry, frames wait in the ring.
            let Some(mut packet) = self.buffers.take() else { break };
            let received = self.ring.receive(|frame| {
                let wanted = promiscuous || frame.kind != OTHER_HOST;
                wanted.then(|| copy(&frame, &mut packet, self.mtu))
            });
            if let Some(Some(true)) = received {
                (packets, bytes) = (packets + 1, bytes + packet.len());
                burst.push(packet);
                continue;
            }
            self.buffers.put_back(packet);
            match received {
                Some(Some(_)) => drops += 1,
                Some(None) => {}
                None => break,
            }
        }
        if packets + drops > 0 {
            let counters = self.status.rx(self.queue);
            counters.count(packets, bytes);
            counters.count_drops(drops);
        }
        packets
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let (mut packets, mut bytes, mut drops) = (0, 0, 0);
        while packets + drops < burst.len() {
            let rest = &burst[packets + drops..];
            let sendable = rest.iter().take_while(|packet| passes(packet, self.mtu)).count();
            if sendable == 0 {
                drops += 1;
                continue;
            }
            match send_frames(self.socket.as_fd(), &rest[..sendable]) {
                Ok(sent) => {
                    packets += sent;
                    bytes += rest[..sent].iter().map(|packet| packet.len()).sum::<usize>();
                }
                // The interface's queue is full, or the socket's share of memory is used up.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(errno) => {
                    // The first frame's fault (too long for the interface, say), or the interface is down.
                    drops += 1;
                    if matches!(errno, Errno::NXIO | Errno::NODEV) {
                        self.status.set_gone(|| GONE.into());
                    }
                }
            }
        }
        drop_front(burst, packets + drops);
        let counters = self.status.tx(self.queue);
        counters.count(packets, bytes);
        counters.count_drops(drops);
        packets + drops
    }
}

const GONE: &str = "the interface was deleted or moved to another network namespace";

impl Port for PacketSocket {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn link(&mut self) -> Link {
        const BOTH: i32 = libc::IFF_UP | libc::IFF_RUNNING;
        Link { up: self.flags().is_ok_and(|flags| flags & BOTH == BOTH), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        // `struct tpacket_stats`: packets and drops since this was last asked.
        for (queue, socket) in self.sockets.iter().enumerate() {
            if let Ok([_, drops]) = packet_option(socket.as_fd(), libc::PACKET_STATISTICS) {
                self.status.rx(queue).count_drops(drops as usize);
            }
        }
        self.status.stats()
    }

    fn state(&mut self) -> State {
        if !packet_interface_exists(self.sockets[0].as_fd()) {
            self.status.set_gone(|| GONE.into());
        }
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        if self.promiscuous.load(Relaxed) == on {
            return Ok(());
        }
        let request = libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let option = if on { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        set_packet_option(self.sockets[0].as_fd(), option, request)
            .map_err(|source| Error::Os { what: format!("{}: promiscuous mode", self.name), source })?;
        self.promiscuous.store(on, Relaxed);
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
