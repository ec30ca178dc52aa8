//! The port `xdp:NAME`: an interface that any driver of the kernel drives, through an AF_XDP socket. Frames pass between the kernel and
//! the pool's own memory by rings, without a packet of the kernel's for each.

mod assembler;
mod attached;
mod bpf;
mod btf;
mod client;
mod filter;
mod held;
mod hints;
mod messages;
mod program;
mod ring;
mod rx;
mod server;
mod socket;
mod tx;
mod tx_metadata;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use ringpass_memory::{Flags, MAGAZINE, MAX_BATCH, Mempool, PAGE_BUFFER_SIZE, PageSize, Reclaimer};
use ringpass_port::{
    Error, Link, MacAddress, Offloads, Port, PortConfig, PortStatus, QueuePair, SoftwareOffload, State, Stats,
    XdpConfig,
};
use rustix::net::sockopt;

use self::held::{Held, SharedSocket};
use self::rx::Rx;
pub use self::server::{XdpServer, XdpServerEvent};
use self::socket::{Socket, Umem};
use self::tx::Tx;

const BROKEN: &str = "the kernel has returned a buffer that it does not have";

/// The port `xdp:NAME`. It receives what its filters take of the frames on its queues, which the kernel does not see then.
pub struct Xdp {
    name: String,
    mac: MacAddress,
    control: Box<dyn Control>,
    /// The socket of each queue.
    sockets: Vec<OpenSocket>,
    promiscuous: Arc<AtomicBool>,
    status: Arc<PortStatus>,
    queues: Vec<QueuePair>,
    notes: Vec<String>,
}

/// Control of an interface, by whom its program was attached.
trait Control: Send {
    /// Returns whether the interface is up and has a carrier.
    fn is_running(&mut self) -> bool;

    /// Returns why the port has ended, if it has.
    fn gone(&mut self) -> Option<String>;

    /// Enters or leaves promiscuous mode.
    fn set_promiscuous(&mut self, on: bool) -> std::io::Result<()>;
}

/// Sockets that a port wants.
struct Wanted {
    umem: Umem,
    queues: usize,
    /// Numbers of entries of each Rx and Tx ring, powers of two.
    rings: [u32; 2],
    /// For how long a queue may stay busy.
    patience: Duration,
    hints: hints::Wanted,
    /// Whether checksums of frames to be sent are left to the kernel or the card, if they can.
    checksums: bool,
}

/// Duties of a port, and what it may leave to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ways {
    /// Drive the card's receiving by system calls.
    busy_poll: bool,
    /// Take what the program has written in front of frames.
    hints: bool,
    /// Leave checksums of frames to the kernel or the card, which need room in front of each frame.
    checksums: bool,
}

/// For how long a queue may stay busy: the kernel frees that of a process that has ended a moment later.
const BUSY: Duration = Duration::from_secs(3);

/// What a port gets.
struct Granted {
    mac: MacAddress,
    /// The interface's MTU.
    mtu: usize,
    ways: Ways,
    /// A bound socket for each queue.
    sockets: Vec<Socket>,
    notes: Vec<String>,
    control: Box<dyn Control>,
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
    /// memory do not allow it; the MTU does not fit into the buffers; it has fewer queues.
    pub fn open(config: &XdpConfig, port_config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let interface = &config.interface[..];
        if port_config.offloads.tso {
            let what = "segments cannot be received; leave out the offload tso";
            return Err(Error::Unsupported(format!("xdp:{interface}: {what}")));
        }
        let umem = Umem::new(pool, port_config.mtu).map_err(|why| Error::Config(format!("xdp:{interface}: {why}")))?;
        let rings = [port_config.rx_ring, port_config.tx_ring].map(|slots| slots.next_power_of_two() as u32);
        let Offloads { hash, checksum: checksums, .. } = port_config.offloads;
        let hints = hints::Wanted { hash, time: config.timestamps };
        let wanted = Wanted { umem, queues: port_config.queues, rings, patience: BUSY, hints, checksums };
        let granted = match &config.socket {
            None => attached::open(config, &wanted),
            Some(path) => client::open(interface, path, &wanted, pool),
        };
        let Granted { mac, mtu, ways, sockets, notes, control } = granted?;
        let status = Arc::new(PortStatus::new(port_config.queues));
        let promiscuous = Arc::new(AtomicBool::new(false));
        let parts = Parts {
            umem,
            pool,
            mac,
            ways,
            timestamps: config.timestamps,
            promiscuous: &promiscuous,
            status: &status,
            config: port_config,
        };
        let mut port = Self {
            name: format!("xdp:{interface}"),
            mac,
            control,
            sockets: Vec::new(),
            promiscuous: promiscuous.clone(),
            status: status.clone(),
            queues: Vec::new(),
            notes,
        };
        for (queue, socket) in sockets.into_iter().enumerate() {
            let (socket, pair) = parts.queue_pair(queue, socket);
            port.sockets.push(OpenSocket { socket, dropped: 0 });
            port.queues.push(pair);
        }
        if mtu != port_config.mtu {
            let own = port_config.mtu;
            port.notes.push(format!("the interface's MTU is {mtu}, the port's {own}; the smaller one counts"));
        }
        if port_config.rejoin {
            port.notes.push("the port ends when the interface is deleted".into());
        }
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
    ways: Ways,
    timestamps: bool,
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
            posted: Held::new(umem),
            partial: None,
            ways: self.ways,
            timestamps: self.timestamps.then(|| Vec::with_capacity(MAX_BATCH)),
            offloads: self.config.offloads,
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
            in_flight: Held::new(umem),
            limit: tx_ring,
            sent: Reclaimer::default(),
            down: false,
            front: if self.ways.checksums { tx_metadata::LEN } else { 0 },
            status: self.status.clone(),
            queue,
            mtu,
            socket: socket.clone(),
        };
        let others = if self.ways.checksums { Flags::CHECKSUM } else { Flags::default() };
        let tx = Box::new(SoftwareOffload::new(tx, others, self.pool));
        (socket, QueuePair { rx: Box::new(rx), tx })
    }
}

impl Port for Xdp {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn link(&mut self) -> Link {
        Link { up: self.control.is_running(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.count_drops();
        self.status.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.count_drops();
        self.status.queue_stats()
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        vec![("wakeups", self.sockets.iter().map(|open| open.socket.wakeups()).sum())]
    }

    fn state(&mut self) -> State {
        if let Some(why) = self.control.gone() {
            self.status.set_gone(|| why);
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
        self.control
            .set_promiscuous(on)
            .map_err(|source| Error::os(format!("{}: promiscuous mode", self.name), source))?;
        self.promiscuous.store(on, Relaxed);
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
