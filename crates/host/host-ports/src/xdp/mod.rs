//! The port `xdp:NAME`: an interface that any driver of the kernel drives, through an AF_XDP socket. Frames pass between the kernel and
//! the pool's own memory by rings, without a packet of the kernel's for each.

mod bpf;
mod filter;
mod held;
mod program;
mod ring;
mod rx;
mod socket;
mod tx;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringpass_memory::{Burst, Flags, MAGAZINE, Mempool, PAGE_BUFFER_SIZE, PageSize};
use ringpass_port::{
    Error, Link, MacAddress, Port, PortConfig, PortStatus, QueuePair, SoftwareOffload, State, Stats, XdpConfig,
    XdpMode, XdpTransfer,
};
use rustix::io::Errno;
use rustix::net::sockopt;

use self::held::{Posted, SharedSocket};
use self::program::{Attachment, Program};
use self::rx::Rx;
use self::socket::{Socket, Umem, wrong};
use self::tx::Tx;
use crate::packet_socket::open_packet_socket;
use crate::presence::GONE;
use crate::sys::{Interface, Interfaces, driver, rx_queues, rx_queues_in_sysfs, set_promiscuous_membership};

const BROKEN: &str = "the kernel has returned a buffer that it does not have";

/// The port `xdp:NAME`. It receives what its filters take of the frames on its queues, which the kernel does not see then.
pub struct Xdp {
    name: String,
    index: i32,
    mac: MacAddress,
    interfaces: Interfaces,
    /// The socket of each queue.
    sockets: Vec<OpenSocket>,
    /// Removed from the interface when the port is dropped.
    _program: Program,
    /// A socket by which the interface is in promiscuous mode.
    members: OwnedFd,
    promiscuous: Arc<AtomicBool>,
    status: Arc<PortStatus>,
    queues: Vec<QueuePair>,
    notes: Vec<String>,
}

/// The socket of a queue.
struct OpenSocket {
    socket: Arc<SharedSocket>,
    /// Frames that the kernel had dropped when it was last asked.
    dropped: u64,
}

impl Xdp {
    /// Returns a size for the buffers of a pool, in bytes, with which cards can receive into it without a copy, frames of the default MTU
    /// at least. On ordinary pages each buffer is one; on others, the kernel's headroom leaves 2048 bytes, because some cards count in KiB.
    pub fn buffer_size(pages: PageSize) -> usize {
        match pages {
            PageSize::Ordinary => PAGE_BUFFER_SIZE,
            PageSize::Huge2M | PageSize::Huge1G => 2176,
        }
    }

    /// Opens a port on an Ethernet interface. The pool's memory is shared with the kernel, so packets of other ports are sent from where
    /// they are.
    ///
    /// # Errors
    /// The interface does not exist; it has another XDP program or socket; the kernel, the user's rights or the limit of locked
    /// memory do not allow it; the MTU does not fit into a buffer; it has fewer queues; `rejoin` is not supported.
    pub fn open(config: &XdpConfig, port_config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let interface = &config.interface[..];
        let wrong = |what| wrong(interface, what);
        let unsupported = |what: &str| Err(Error::Unsupported(format!("xdp:{interface}: {what}")));
        if port_config.offloads.tso {
            return unsupported("segments cannot be received; leave out the offload tso");
        }
        let interfaces = Interfaces::new().map_err(wrong("a socket"))?;
        let Interface { index, hardware, mac } = interfaces.look_up("xdp", interface)?;
        if hardware != libc::ARPHRD_ETHER {
            return unsupported("no Ethernet interface; take one that is");
        }
        let umem = Umem::new(pool, port_config.mtu).map_err(|why| Error::Config(format!("xdp:{interface}: {why}")))?;
        if config.transfer == Some(XdpTransfer::ZeroCopy) && !umem.is_contiguous() {
            return unsupported("zero-copy needs packets in huge pages, or in a page each; leave zerocopy out");
        }
        let ways = match config.mode {
            None if config.transfer == Some(XdpTransfer::ZeroCopy) => &[Attachment::Native][..],
            None => &[Attachment::Native, Attachment::Generic][..],
            Some(XdpMode::Native) => &[Attachment::Native],
            Some(XdpMode::Generic) => &[Attachment::Generic],
        };
        let rx_queues = rx_queues(interface);
        if let Some(there) = rx_queues.filter(|there| (*there as usize) < port_config.queues) {
            let wanted = port_config.queues;
            return Err(Error::Config(format!(
                "xdp:{interface}: the interface has {there} queue(s), not {wanted}; take as many, or give it more: ethtool -L \
                 {interface} combined {wanted}"
            )));
        }
        let (program, attachment) =
            Program::attach(index, port_config.queues as u32, ways, &config.filters, umem.is_in_pieces())
                .map_err(|error| refused(interface, config.mode, error))?;
        let transfer = match attachment {
            Attachment::Native if umem.is_contiguous() => config.transfer,
            Attachment::Native | Attachment::Generic => Some(XdpTransfer::Copy),
        };
        let rings = [port_config.rx_ring, port_config.tx_ring].map(|slots| slots.next_power_of_two() as u32);
        let members = open_packet_socket(&format!("xdp:{interface}"))?;
        let status = Arc::new(PortStatus::new(port_config.queues));
        let promiscuous = Arc::new(AtomicBool::new(false));
        let parts = Parts { umem, pool, mac, promiscuous: &promiscuous, status: &status, config: port_config };
        let mut sockets: Vec<OpenSocket> = Vec::new();
        let mut queues = Vec::new();
        let mut in_force = None;
        for queue in 0..port_config.queues {
            let first = sockets.first().map(|first| first.socket.fd());
            let socket = Socket::open(interface, (index, queue as u32), (umem, first), transfer, rings)?;
            in_force = Some(socket.transfer().map_err(wrong("asking for zero-copy"))?);
            let (socket, pair) = parts.queue_pair(queue, socket);
            program.redirect(queue as u32, socket.fd()).map_err(wrong("redirecting frames to a socket"))?;
            sockets.push(OpenSocket { socket, dropped: 0 });
            queues.push(pair);
        }
        let way = (attachment, in_force == Some(XdpTransfer::ZeroCopy));
        // Some drivers receive on more queues with a program than without.
        let rx_queues = rx_queues.max(rx_queues_in_sysfs(interface, index));
        let notes = notes(&interfaces, interface, port_config, way, rx_queues);
        let mut port = Self {
            name: format!("xdp:{interface}"),
            index,
            mac,
            interfaces,
            sockets,
            _program: program,
            members,
            promiscuous,
            status,
            queues,
            notes: notes.map_err(wrong("reading the interface's state"))?,
        };
        port.set_promiscuous(port_config.promiscuous)?;
        Ok(port)
    }

    /// Counts what the kernel has dropped since the last call.
    fn count_drops(&mut self) {
        for (queue, OpenSocket { socket, dropped }) in self.sockets.iter_mut().enumerate() {
            let Ok(statistics) = sockopt::xdp_statistics(socket.fd()) else { continue };
            let now = statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0);
            self.status.rx(queue).count(0, 0, now.saturating_sub(*dropped) as usize);
            *dropped = now;
        }
    }
}

/// Parts that the queues of a port have in common.
struct Parts<'a> {
    umem: Umem,
    pool: &'a Mempool,
    mac: MacAddress,
    promiscuous: &'a Arc<AtomicBool>,
    status: &'a Arc<PortStatus>,
    config: &'a PortConfig,
}

impl Parts<'_> {
    /// Makes the queues of a socket, with buffers for received frames.
    fn queue_pair(&self, queue: usize, socket: Socket) -> (Arc<SharedSocket>, QueuePair) {
        let Socket { fd, fill, rx, tx, completion } = socket;
        let (umem, PortConfig { rx_ring, tx_ring, mtu, .. }) = (self.umem, *self.config);
        let socket = Arc::new(SharedSocket::new(fd));
        let mut rx = Rx {
            fill,
            ring: rx,
            umem,
            cache: self.pool.cache(),
            posted: Posted::new(&umem),
            partial: None,
            target: rx_ring,
            mac: self.mac,
            promiscuous: self.promiscuous.clone(),
            status: self.status.clone(),
            queue,
            mtu,
            socket: socket.clone(),
        };
        // The kernel drops what it has no buffer for.
        (0..rx_ring.div_ceil(MAGAZINE)).for_each(|_| rx.post());
        let tx = Tx {
            ring: tx,
            completion,
            umem,
            cache: self.pool.cache(),
            in_flight: VecDeque::with_capacity(tx_ring),
            limit: tx_ring,
            sent: Burst::new(MAGAZINE),
            down: false,
            status: self.status.clone(),
            queue,
            mtu,
            socket: socket.clone(),
        };
        let tx = Box::new(SoftwareOffload::new(tx, Flags::default(), self.pool));
        (socket, QueuePair { rx: Box::new(rx), tx })
    }
}

/// Returns why a program cannot be attached.
fn refused(interface: &str, mode: Option<XdpMode>, error: std::io::Error) -> Error {
    let mode = mode.map(|mode| if mode == XdpMode::Native { "native" } else { "generic" });
    match (Errno::from_io_error(&error), mode) {
        (Some(Errno::PERM | Errno::ACCESS), _) => Error::Permission(format!(
            "xdp:{interface}: XDP programs are not permitted; run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"
        )),
        (Some(Errno::BUSY | Errno::EXIST), _) => Error::Busy(format!(
            "xdp:{interface}: the interface has an XDP program already, as 'ip link show {interface}' shows; end who attached it, or \
             take packet:{interface}"
        )),
        (Some(Errno::OPNOTSUPP), Some(mode)) => {
            Error::Unsupported(format!("xdp:{interface}: the driver has no {mode} mode; leave mode={mode} out"))
        }
        (Some(Errno::OPNOTSUPP), None) => Error::Unsupported(format!(
            "xdp:{interface}: the driver has no native mode, which zero-copy needs; leave zerocopy out"
        )),
        (Some(Errno::NOSYS), _) => {
            Error::Unsupported(format!("xdp:{interface}: this kernel has no bpf(2); take packet:{interface}"))
        }
        _ => wrong(interface, "attaching an XDP program")(error),
    }
}

fn notes(
    interfaces: &Interfaces,
    interface: &str,
    config: &PortConfig,
    (attachment, zero_copy): (Attachment, bool),
    rx_queues: Option<u32>,
) -> std::io::Result<Vec<String>> {
    let transfer = match zero_copy {
        true => "zero-copy: the card reads and writes the pool's memory",
        false => "copy mode: the kernel copies each frame",
    };
    let mut notes = vec![format!("XDP in {} mode, {transfer}", attachment.name())];
    if interfaces.flags(interface)? & libc::IFF_UP == 0 {
        // The first note is the one that everybody sees.
        notes.insert(0, format!("the interface is down; bring it up: ip link set {interface} up"));
    }
    let own = config.queues;
    if let Some(there) = rx_queues.filter(|there| *there as usize > own) {
        notes.push(format!(
            "the interface has {there} queues, and frames of all but the first {own} go to the kernel; for all frames: ethtool -L \
             {interface} combined {there} and --queues {there}, or ethtool -L {interface} combined {own}"
        ));
    }
    let mtu = interfaces.mtu(interface)?;
    if mtu != config.mtu {
        notes.push(format!("the interface's MTU is {mtu}, the port's {}; the smaller one counts", config.mtu));
    }
    if config.rejoin {
        notes.push("the port ends when the interface is deleted".into());
    }
    if driver(interface).as_deref() == Some("veth") {
        notes.push(
            "frames of a veth's peer may come without their checksums, which cards complete; for complete ones, at the peer: ethtool -K PEER tx off"
                .into(),
        );
    }
    Ok(notes)
}

impl Port for Xdp {
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
        // By its index, as it may have been renamed.
        if self.interfaces.name(self.index).is_err() {
            self.status.set_gone(|| GONE.into());
        }
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        if self.promiscuous.load(Relaxed) == on {
            return Ok(());
        }
        set_promiscuous_membership(self.members.as_fd(), self.index, on)
            .map_err(|source| Error::os(format!("{}: promiscuous mode", self.name), source))?;
        self.promiscuous.store(on, Relaxed);
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
