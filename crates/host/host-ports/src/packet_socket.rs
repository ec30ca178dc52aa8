//! Interfaces of the kernel through packet sockets. Frames are received through a ring shared with the kernel,
//! without system calls, and sent with one system call per burst.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringpass_memory::{Burst, Flags, Mempool, Packet};
use ringpass_port::{
    Error, Link, MAX_L2_HEADER_LEN, MacAddress, Offloads, Port, PortConfig, PortStatus, QueuePair, RxQueue,
    SoftwareOffload, State, Stats, TxQueue, WakeSource, Wakeable, fits_mtu,
};
use ringpass_virtio::net_header;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::buffers::{SparePackets, drop_front};
use crate::presence::{GONE, Presence, RejoinTimer};
use crate::sys::{
    Interface, Interfaces, bind_packet, packet_interface_exists, packet_option, send_frames, set_packet_option,
    set_promiscuous_membership,
};
use crate::tpacket_ring::TpacketRing;
use crate::vlan_tag::add_tag;

/// The port `packet:NAME`. Frames that the kernel itself sends through the interface are not received.
pub struct PacketSocket {
    name: String,
    index: i32,
    mac: MacAddress,
    interfaces: Interfaces,
    /// Receiving sockets, one per queue.
    sockets: Vec<Arc<OwnedFd>>,
    /// Sending sockets, one per queue.
    senders: Vec<Arc<OwnedFd>>,
    promiscuous: Arc<AtomicBool>,
    status: Arc<PortStatus>,
    presence: Arc<Presence>,
    rejoin_timer: RejoinTimer,
    queues: Vec<QueuePair>,
    notes: Vec<String>,
}

struct Rx {
    socket: Arc<OwnedFd>,
    ring: TpacketRing,
    buffers: SparePackets,
    /// Buffers for the longest frame plus one byte, by which longer frames are detected.
    max_buffers: usize,
    promiscuous: Arc<AtomicBool>,
    offloads: Offloads,
    status: Arc<PortStatus>,
    queue: usize,
    mtu: usize,
}

struct Tx {
    socket: Arc<OwnedFd>,
    /// Whether each frame is sent with a virtio-net header.
    vnet: bool,
    status: Arc<PortStatus>,
    presence: Arc<Presence>,
    queue: usize,
    mtu: usize,
}

/// The sockets that receive, with their rings.
struct Receivers {
    sockets: Vec<Arc<OwnedFd>>,
    rings: Vec<TpacketRing>,
}

impl Receivers {
    /// Opens a socket for each queue, over which the kernel spreads what it receives.
    fn open(interface: &str, index: i32, config: &PortConfig) -> Result<Self, Error> {
        let wrong = |what| wrong(interface, what);
        let mut sockets = Vec::new();
        let mut rings = Vec::new();
        for _ in 0..config.queues {
            let socket = Arc::new(open_socket(interface)?);
            let longest = config.mtu + MAX_L2_HEADER_LEN;
            let tso = config.offloads.tso;
            let ring = TpacketRing::new(&socket, config.rx_ring, longest, tso).map_err(wrong("a receive ring"))?;
            if tso {
                set_receive_buffer(&socket).map_err(wrong("room for segments"))?;
            }
            set_packet_option(socket.as_fd(), libc::PACKET_IGNORE_OUTGOING, 1i32)
                .map_err(wrong("ignoring the kernel's own frames"))?;
            bind_packet(socket.as_fd(), index, libc::ETH_P_ALL).map_err(wrong("binding to the interface"))?;
            sockets.push(socket);
            rings.push(ring);
        }
        if config.queues > 1 {
            join_fanout(&sockets).map_err(wrong("spreading over several queues"))?;
            // Before they joined, each of the sockets received every frame.
            rings.iter_mut().for_each(|ring| while ring.receive(|_| ()).is_some() {});
        }
        Ok(Self { sockets, rings })
    }
}

/// Opens a socket that sends, with a virtio-net header in front of each frame if `vnet`.
fn open_sender(interface: &str, index: i32, vnet: bool) -> Result<Arc<OwnedFd>, Error> {
    let socket = Arc::new(open_socket(interface)?);
    bind_packet(socket.as_fd(), index, 0).map_err(wrong(interface, "binding to the interface"))?;
    if vnet {
        set_packet_option(socket.as_fd(), libc::PACKET_VNET_HDR, 1i32).map_err(wrong(interface, "setting offloads"))?;
    }
    Ok(socket)
}

/// Returns how to turn a refusal of the kernel into an error.
fn wrong(interface: &str, what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::os(format!("packet:{interface}: {what}"), source)
}

impl PacketSocket {
    /// Opens a port on an Ethernet interface, or on loopback, which has the same framing.
    pub fn open(interface: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let wrong = |what| wrong(interface, what);
        let interfaces = Interfaces::new().map_err(wrong("a socket"))?;
        let Interface { index, hardware, mac } = interfaces.look_up("packet", interface)?;
        if !matches!(hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Err(Error::Unsupported(format!("packet:{interface}: no Ethernet interface; take one that is")));
        }
        let mut notes = notes(&interfaces, interface, config).map_err(wrong("reading the interface's state"))?;

        let Offloads { checksum, tso, .. } = config.offloads;
        let offloads = Offloads { checksum: checksum || tso, ..config.offloads };
        let max_buffers = SparePackets::of(pool, if tso { 65535 } else { config.mtu } + MAX_L2_HEADER_LEN + 1)?;
        let status = Arc::new(PortStatus::new(config.queues));
        let promiscuous = Arc::new(AtomicBool::new(false));
        let Receivers { sockets, rings } = Receivers::open(interface, index, config)?;
        // The kernel does not bind a socket again that is in a fanout group (packet(7), PACKET_FANOUT).
        let rejoins = config.rejoin && config.queues == 1;
        if config.rejoin && !rejoins {
            notes.push("with several queues, the port ends when the interface is deleted".into());
        }
        let presence = Arc::new(Presence::new(&format!("packet:{interface}"), rejoins));
        let vnet = offloads.checksum;
        let kernel = if vnet { Flags::CHECKSUM | Flags::TSO } else { Flags::default() };
        let mut queues = Vec::new();
        let mut senders = Vec::new();
        for (queue, ring) in rings.into_iter().enumerate() {
            let sender = open_sender(interface, index, vnet)?;
            senders.push(sender.clone());
            let tx =
                Tx { socket: sender, vnet, status: status.clone(), presence: presence.clone(), queue, mtu: config.mtu };
            let rx = Rx {
                socket: sockets[queue].clone(),
                ring,
                buffers: SparePackets::new(pool),
                max_buffers,
                promiscuous: promiscuous.clone(),
                offloads,
                status: status.clone(),
                queue,
                mtu: config.mtu,
            };
            queues.push(QueuePair { rx: Box::new(rx), tx: Box::new(SoftwareOffload::new(tx, kernel, pool)) });
        }
        let name = format!("packet:{interface}");
        let rejoin_timer = RejoinTimer::default();
        let mut port = Self {
            name,
            index,
            mac,
            interfaces,
            sockets,
            senders,
            promiscuous,
            status,
            presence,
            rejoin_timer,
            queues,
            notes,
        };
        port.set_promiscuous(config.promiscuous)?;
        Ok(port)
    }

    /// Binds the sockets to the interface that has the port's name now, which takes no privilege. Returns
    /// `false` if there is none.
    fn rejoin_interface(&mut self) -> io::Result<bool> {
        let name = self.name.trim_start_matches("packet:");
        let Ok(index) = self.interfaces.index(name) else { return Ok(false) };
        let (kind, mac) = self.interfaces.hardware(name)?;
        if !matches!(kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Ok(false);
        }
        for socket in &self.senders {
            bind_packet(socket.as_fd(), index, 0)?;
        }
        // Last, because the binding of these sockets shows whether the interface exists.
        for socket in &self.sockets {
            bind_packet(socket.as_fd(), index, libc::ETH_P_ALL)?;
        }
        (self.index, self.mac) = (index, mac);
        if self.promiscuous.load(Relaxed) {
            self.set_membership(true)?;
        }
        Ok(true)
    }

    /// Enters or leaves promiscuous mode.
    fn set_membership(&self, on: bool) -> io::Result<()> {
        set_promiscuous_membership(self.sockets[0].as_fd(), self.index, on)
    }
}

fn open_socket(interface: &str) -> Result<OwnedFd, Error> {
    open_packet_socket(&format!("packet:{interface}"))
}

/// Opens a packet socket that receives nothing yet, for the port with this name.
pub(crate) fn open_packet_socket(port: &str) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => {
            Error::Permission(format!("{port}: packet sockets are not permitted; run as root or with CAP_NET_RAW"))
        }
        errno => Error::os(format!("{port}: a packet socket"), errno),
    })
}

/// Enlarges the socket's buffer for segments that wait there: 4 MiB if permitted, else as much as the system
/// allows.
fn set_receive_buffer(socket: &OwnedFd) -> io::Result<()> {
    const ROOM: usize = 4 << 20;
    sockopt::set_socket_recv_buffer_size_force(socket, ROOM)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, ROOM))
        .map_err(io::Error::from)
}

/// Makes the kernel spread frames over the sockets by flow.
fn join_fanout(sockets: &[Arc<OwnedFd>]) -> io::Result<()> {
    const HASH: u32 = 0;
    const UNIQUE_ID: u32 = 0x2000;
    let mut group = (HASH | UNIQUE_ID) << 16;
    for socket in sockets {
        set_packet_option(socket.as_fd(), libc::PACKET_FANOUT, group)?;
        // The first socket gets a new group, whose number the others use to join it.
        let [value] = packet_option(socket.as_fd(), libc::PACKET_FANOUT)?;
        group = value & 0xffff | HASH << 16;
    }
    Ok(())
}

fn notes(interfaces: &Interfaces, interface: &str, config: &PortConfig) -> io::Result<Vec<String>> {
    let slots = config.rx_ring;
    let mut notes = vec![format!("{} queue(s), receive rings of {slots} frames, frames are copied", config.queues)];
    if interfaces.flags(interface)? & libc::IFF_UP == 0 {
        // The first note is the one that everybody sees.
        notes.insert(0, format!("the interface is down; bring it up: ip link set {interface} up"));
    }
    let mtu = interfaces.mtu(interface)?;
    if mtu != config.mtu && interface != "lo" {
        notes.push(format!("the interface's MTU is {mtu}, the port's {}; the smaller one counts", config.mtu));
    }
    if config.offloads.tso {
        notes.push("segments that the kernel has merged (GRO) or not yet cut (TSO) pass as they are".into());
    } else {
        notes.push(format!(
            "frames above the MTU, which the kernel makes by merging (GRO) or not yet cutting (TSO), are dropped; to \
             let them pass: --offloads tso; or switch it off: ethtool -K {interface} gro off lro off; for a veth, at its \
             peer: ethtool -K PEER tso off gso off"
        ));
    }
    Ok(notes)
}

/// Result of taking the next frame from the ring.
enum Next {
    Packet(Packet),
    Dropped,
    /// A frame for another host, which is not counted.
    Unwanted,
    Empty,
}

impl Rx {
    fn next(&mut self, promiscuous: bool) -> Next {
        const OTHER_HOST: u8 = 3;
        let Self { socket, ring, buffers, max_buffers, offloads, mtu, .. } = self;
        // The pool is empty: frames wait in the ring.
        if buffers.ready(*max_buffers).is_none() {
            return Next::Empty;
        }
        let received = ring.receive(|frame| {
            let mut header = frame.header;
            let packet = if frame.waits {
                // Read it even if it is not wanted, because the next frame that waits is queued behind it.
                buffers.read(socket, *max_buffers, &mut header).ok().flatten()
            } else {
                frame.whole.then(|| buffers.fill([frame.bytes])).flatten()
            };
            if !promiscuous && frame.kind == OTHER_HOST {
                return Next::Unwanted;
            }
            let finished = packet.and_then(|packet| finish(packet, &header, frame.vlan, *offloads));
            finished.filter(|packet| fits_mtu(packet, *mtu)).map_or(Next::Dropped, Next::Packet)
        });
        received.unwrap_or(Next::Empty)
    }
}

/// Adds to a frame what the kernel passed beside it: the VLAN tag that it stripped, and the virtio-net header.
/// Returns `None` if the frame has no room for the tag or its header is invalid.
fn finish(
    mut packet: Packet,
    header: &[u8; net_header::LEN],
    tag: Option<[u8; 4]>,
    offloads: Offloads,
) -> Option<Packet> {
    let shift = match tag {
        Some(tag) => add_tag(&mut packet, tag, offloads)?,
        None => 0,
    };
    net_header::apply(header, shift, &mut packet, offloads).then_some(packet)
}
impl Wakeable for Rx {
    fn disarm(&mut self) {
        // An interface that goes down leaves an error on the socket, which would keep waking the queue.
        let _ = sockopt::socket_error(&self.socket);
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.socket.as_fd()));
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let promiscuous = self.promiscuous.load(Relaxed);
        let mut packets = 0;
        let mut bytes = 0;
        let mut drops = 0;
        for _ in 0..burst.room() {
            match self.next(promiscuous) {
                Next::Packet(packet) => {
                    (packets, bytes) = (packets + 1, bytes + packet.total_len());
                    burst.push(packet);
                }
                Next::Dropped => drops += 1,
                Next::Unwanted => {}
                Next::Empty => break,
            }
        }
        self.status.rx(self.queue).count(packets, bytes, drops);
        packets
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut packets = 0;
        let mut bytes = 0;
        let mut drops = 0;
        while packets + drops < burst.len() {
            let rest = &burst[packets + drops..];
            let sendable = rest.iter().take_while(|packet| fits_mtu(packet, self.mtu)).count();
            if sendable == 0 {
                drops += 1;
                continue;
            }
            match send_frames(self.socket.as_fd(), &rest[..sendable], self.vnet) {
                Ok(sent) => {
                    packets += sent;
                    bytes += rest[..sent].iter().map(Packet::total_len).sum::<usize>();
                }
                // The interface's queue is full, or the socket's memory limit is reached.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(errno) => {
                    // The first frame is at fault (too long for the interface, for instance), or the interface
                    // is down.
                    drops += 1;
                    if matches!(errno, Errno::NXIO | Errno::NODEV) {
                        self.presence.mark_lost(&self.status, GONE);
                    }
                }
            }
        }
        drop_front(burst, packets + drops);
        self.status.tx(self.queue).count(packets, bytes, drops);
        packets + drops
    }
}

impl PacketSocket {
    /// Counts what the kernel has dropped since the last call.
    fn count_drops(&self) {
        for (queue, socket) in self.sockets.iter().enumerate() {
            // `struct tpacket_stats`: packets and drops since the last call.
            if let Ok([_, drops]) = packet_option(socket.as_fd(), libc::PACKET_STATISTICS) {
                self.status.rx(queue).count(0, 0, drops as usize);
            }
        }
    }
}

impl Port for PacketSocket {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn link(&mut self) -> Link {
        Link { up: self.interfaces.is_running(self.index), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.count_drops();
        self.status.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.count_drops();
        self.status.queue_stats()
    }

    fn state(&mut self) -> State {
        if !packet_interface_exists(self.sockets[0].as_fd()) {
            self.presence.mark_lost(&self.status, GONE);
        }
        let (mut rejoin_timer, presence) = (std::mem::take(&mut self.rejoin_timer), self.presence.clone());
        rejoin_timer.try_rejoin(&presence, || self.rejoin_interface());
        self.rejoin_timer = rejoin_timer;
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        if self.promiscuous.load(Relaxed) == on {
            return Ok(());
        }
        self.set_membership(on).map_err(|source| Error::os(format!("{}: promiscuous mode", self.name), source))?;
        self.promiscuous.store(on, Relaxed);
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
