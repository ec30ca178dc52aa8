//! TAP interfaces of the kernel. The port receives what the kernel sends through the interface, and the other
//! way round. Each frame takes one system call: the kernel offers no batched interface for TAPs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringpass_memory::{Burst, Flags, Mempool, Packet};
use ringpass_port::{
    Error, Link, MAX_L2_HEADER_LEN, MacAddress, Offloads, Port, PortConfig, PortStatus, QueuePair, RxQueue,
    SoftwareOffload, State, Stats, TxQueue, WakeSource, Wakeable, fits_mtu,
};
use ringpass_virtio::net_header;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::buffers::{SparePackets, drop_front};
use crate::presence::{Presence, RejoinTimer};
use crate::sys::{Interfaces, attach_tap, read_packet, set_tap_offloads, tap_name, write_packet, write_packets};

/// The port `tap:NAME`. The interface may be moved to another network namespace while it is in use.
pub struct Tap {
    name: String,
    mac: MacAddress,
    /// One descriptor per queue.
    tuns: Vec<Arc<OwnedFd>>,
    vnet: bool,
    offloads: Offloads,
    interfaces: Interfaces,
    status: Arc<PortStatus>,
    presence: Arc<Presence>,
    rejoin_timer: RejoinTimer,
    queues: Vec<QueuePair>,
    notes: Vec<String>,
}

struct Rx {
    tun: Arc<OwnedFd>,
    buffers: SparePackets,
    /// Buffers for the longest frame plus one byte, by which longer frames are detected.
    max_buffers: usize,
    vnet: Option<Offloads>,
    status: Arc<PortStatus>,
    presence: Arc<Presence>,
    queue: usize,
    mtu: usize,
}

struct Tx {
    tun: Arc<OwnedFd>,
    vnet: bool,
    status: Arc<PortStatus>,
    presence: Arc<Presence>,
    queue: usize,
    mtu: usize,
}

/// Descriptors of a TAP interface: one for each queue, and a socket for requests about the interface. A process that may opens them for one that may
/// not.
pub struct TapFiles {
    tuns: Vec<OwnedFd>,
    interfaces: Interfaces,
    mac: MacAddress,
}

impl TapFiles {
    /// Creates the interface, or attaches to an existing one, sets its MTU and brings it up.
    ///
    /// # Errors
    /// It is not permitted, another program has the interface, or it is no TAP.
    pub fn open(name: &str, config: &PortConfig) -> Result<Self, Error> {
        let wrong = |what: &'static str| move |source: io::Error| Error::os(format!("tap:{name}: {what}"), source);
        let attach = || {
            let tun = open_tun(name)?;
            attach_tap(tun.as_fd(), name, config.queues > 1, has_header(config).is_some())
                .map_err(|error| attach_error(name, config, error))?;
            set_tap_offloads(tun.as_fd(), config.offloads).map_err(wrong("setting offloads"))?;
            Ok(tun)
        };
        let tuns = (0..config.queues).map(|_| attach()).collect::<Result<_, Error>>()?;
        let interfaces = Interfaces::new().map_err(wrong("a socket"))?;
        interfaces.set_mtu(name, config.mtu).map_err(wrong("setting the MTU"))?;
        interfaces.set_up(name).map_err(wrong("bringing the interface up"))?;
        let (_, mac) = interfaces.hardware(name).map_err(wrong("reading the hardware address"))?;
        Ok(Self { tuns, interfaces, mac })
    }

    /// Returns them for another process.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        std::iter::once(self.interfaces.into()).chain(self.tuns).collect()
    }

    /// Takes the descriptors that another process has opened for a port with this configuration.
    ///
    /// # Errors
    /// They are not those of this interface.
    pub fn of_descriptors(name: &str, descriptors: Vec<OwnedFd>, config: &PortConfig) -> Result<Self, Error> {
        let wrong = |why: String| Error::Config(format!("tap:{name}: {why}"));
        let mut tuns = descriptors;
        if tuns.len() != 1 + config.queues {
            return Err(wrong(format!("{} descriptors have come, not {}", tuns.len(), 1 + config.queues)));
        }
        let interfaces = Interfaces::from(tuns.remove(0));
        for tun in &tuns {
            rustix::io::ioctl_fionbio(tun, true).map_err(|errno| wrong(format!("a descriptor: {errno}")))?;
            if tap_name(tun.as_fd()).ok().as_deref() != Some(name) {
                return Err(wrong("a descriptor is not that of this interface".into()));
            }
        }
        let (_, mac) = interfaces.hardware(name).map_err(|source| Error::os(format!("tap:{name}"), source))?;
        Ok(Self { tuns, interfaces, mac })
    }
}

/// Returns the offloads for which frames have a virtio-net header: only if it has a use.
fn has_header(config: &PortConfig) -> Option<Offloads> {
    let Offloads { checksum, tso, .. } = config.offloads;
    Some(Offloads { checksum: checksum || tso, ..config.offloads }).filter(|offloads| offloads.checksum)
}

impl Tap {
    /// Creates the interface, or attaches to an existing one, sets its MTU and brings it up. An interface
    /// created here is deleted with the port and its queues. Its owner can attach without privileges to an
    /// interface that exists, is up and has the right MTU.
    pub fn open(name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        Self::of_files(name, || TapFiles::open(name, config), config, pool)
    }

    /// Makes a port of the descriptors that another process has opened with the same configuration, and passed on.
    ///
    /// # Errors
    /// They are not those of this interface; the pool has too few buffers for the longest frame.
    pub fn of_descriptors(
        name: &str,
        descriptors: Vec<OwnedFd>,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        Self::of_files(name, || TapFiles::of_descriptors(name, descriptors, config), config, pool)
    }

    fn of_files(
        name: &str,
        files: impl FnOnce() -> Result<TapFiles, Error>,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        let Offloads { checksum, tso, .. } = config.offloads;
        let vnet = has_header(config);
        let longest = if tso { 65535 } else { config.mtu } + MAX_L2_HEADER_LEN + 1;
        let max_buffers = SparePackets::of(pool, longest)?;
        let TapFiles { tuns, interfaces, mac } = files()?;
        let tuns: Vec<Arc<OwnedFd>> = tuns.into_iter().map(Arc::new).collect();
        let status = Arc::new(PortStatus::new(config.queues));
        let presence = Arc::new(Presence::new(&format!("tap:{name}"), config.rejoin));
        let queues = tuns.iter().enumerate().map(|(queue, tun)| {
            let tun = tun.clone();
            let status = status.clone();
            let presence = presence.clone();
            let mtu = config.mtu;
            let (vnet_header, shown) = (vnet.is_some(), presence.clone());
            let tx = Tx { tun: tun.clone(), vnet: vnet_header, status: status.clone(), presence: shown, queue, mtu };
            let rx = Rx { tun, buffers: SparePackets::new(pool), max_buffers, vnet, status, presence, queue, mtu };
            let kernel = if vnet.is_some() { Flags::CHECKSUM | Flags::TSO } else { Flags::default() };
            QueuePair { rx: Box::new(rx), tx: Box::new(SoftwareOffload::new(tx, kernel, pool)) }
        });
        let queues: Vec<QueuePair> = queues.collect();
        let left_open = match (checksum, tso) {
            (_, true) => "; the kernel leaves checksums and segmentation to this port",
            (true, false) => "; the kernel leaves checksums to this port",
            (false, false) => "",
        };
        let note = format!(
            "{} queue(s), one system call a frame (faster: a pair of veth with packet:){left_open}",
            queues.len()
        );
        let (name, vnet, rejoin_timer, offloads) =
            (format!("tap:{name}"), vnet.is_some(), RejoinTimer::default(), config.offloads);
        let notes = vec![note];
        Ok(Self { name, mac, tuns, vnet, offloads, interfaces, status, presence, rejoin_timer, queues, notes })
    }
}

fn open_tun(name: &str) -> Result<OwnedFd, Error> {
    const TUN: &str = "/dev/net/tun";
    rustix::fs::open(TUN, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
        let remedy = match errno {
            Errno::ACCESS | Errno::PERM => "; run as root",
            Errno::NOENT => "; make it: modprobe tun, or mkdir -p /dev/net && mknod /dev/net/tun c 10 200",
            Errno::NODEV | Errno::NXIO => "; the kernel lacks the driver: modprobe tun",
            _ => "",
        };
        Error::refused(errno, format!("tap:{name}: {TUN}: {}{remedy}", io::Error::from(errno)))
    })
}

fn attach_error(name: &str, config: &PortConfig, error: io::Error) -> Error {
    let errno = Errno::from_io_error(&error);
    let why = match errno {
        Some(Errno::PERM) => "not permitted; run as root or with CAP_NET_ADMIN".into(),
        Some(Errno::BUSY) => {
            format!("another program has this interface (or its queues); end it or take another name; {error}")
        }
        Some(Errno::INVAL) => format!(
            "there is an interface of this name that is not a TAP, or a TAP with {}; take another name; {error}",
            if config.queues > 1 { "one queue" } else { "several queues" }
        ),
        Some(Errno::NAMETOOLONG) => "the name is too long; interface names have 1 to 15 characters".into(),
        Some(Errno::TOOBIG) => format!("the kernel does not support {} queues for a TAP; ask for fewer", config.queues),
        _ => format!("making the interface: {error}"),
    };
    let text = format!("tap:{name}: {why}");
    match errno {
        Some(Errno::NAMETOOLONG) => Error::Address(text),
        Some(Errno::INVAL) => Error::Busy(text),
        Some(Errno::TOOBIG) => Error::Unsupported(text),
        errno => Error::refused(errno.unwrap_or(Errno::IO), text),
    }
}

/// Returns whether an error of reading or writing means that the interface was deleted.
fn deleted(errno: Errno) -> bool {
    matches!(errno, Errno::BADFD | Errno::NXIO | Errno::NODEV)
}

const DELETED: &str = "the interface was deleted";

/// Attaches descriptors whose interface was deleted to a new one of the same name. That takes no privilege if
/// the interface exists and this user may use it. Returns `false` if there is no such interface.
fn rejoin_interface(
    (tuns, interfaces): (&[Arc<OwnedFd>], &Interfaces),
    name: &str,
    vnet: bool,
    offloads: Offloads,
) -> io::Result<bool> {
    if interfaces.index(name).is_err() {
        return Ok(false);
    }
    for tun in tuns.iter().filter(|tun| tap_name(tun.as_fd()).is_err()) {
        attach_tap(tun.as_fd(), name, tuns.len() > 1, vnet)?;
        set_tap_offloads(tun.as_fd(), offloads)?;
    }
    Ok(true)
}

impl Wakeable for Rx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        // Without an interface, the descriptor reports an error permanently.
        if !self.presence.is_away() {
            each(WakeSource::Readable(self.tun.as_fd()));
        }
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut packets = 0;
        let mut bytes = 0;
        let mut drops = 0;
        for _ in 0..burst.room() {
            let plain = self.max_buffers == 1 && self.vnet.is_none();
            match if plain { self.receive_plain() } else { self.receive() } {
                Ok(Some(packet)) if fits_mtu(&packet, self.mtu) => {
                    (packets, bytes) = (packets + 1, bytes + packet.total_len());
                    burst.push(packet);
                }
                Ok(Some(packet)) => {
                    drops += 1;
                    self.buffers.put_back(packet);
                }
                // The pool is empty: frames wait in the kernel's queue.
                Ok(None) => break,
                Err(errno) => {
                    if deleted(errno) {
                        self.presence.mark_lost(&self.status, DELETED);
                    }
                    break;
                }
            }
        }
        self.status.rx(self.queue).count(packets, bytes, drops);
        packets
    }
}

impl Rx {
    /// Reads a frame into one buffer; `None` if the pool is empty.
    #[inline]
    fn receive_plain(&mut self) -> Result<Option<Packet>, Errno> {
        let Some(mut packet) = self.buffers.take() else { return Ok(None) };
        packet.set_len(packet.capacity());
        match read_packet(self.tun.as_fd(), &mut packet) {
            Ok(len) => {
                packet.set_len(len);
                Ok(Some(packet))
            }
            Err(errno) => {
                self.buffers.put_back(packet);
                Err(errno)
            }
        }
    }

    /// Reads a frame, with its header if headers are on, into as many buffers as it takes. A frame whose header
    /// is invalid is returned with length 0.
    fn receive(&mut self) -> Result<Option<Packet>, Errno> {
        let mut header = [0; net_header::LEN];
        let head = if self.vnet.is_some() { header.len() } else { 0 };
        let packet = self.buffers.read(&self.tun, self.max_buffers, &mut header[..head])?;
        let Some(mut packet) = packet else { return Ok(None) };
        if !self.vnet.is_none_or(|offloads| net_header::apply(&header, 0, &mut packet, offloads)) {
            packet.take_rest();
            packet.set_len(0);
        }
        Ok(Some(packet))
    }
}

impl Tx {
    /// Writes a frame of any number of buffers, with its header if headers are on.
    fn send(&self, packet: &Packet) -> Result<usize, Errno> {
        let header = if self.vnet { net_header::encode(packet) } else { [0; net_header::LEN] };
        write_packets(self.tun.as_fd(), if self.vnet { &header } else { &[] }, packet)
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut packets = 0;
        let mut bytes = 0;
        let mut drops = 0;
        for packet in burst.iter() {
            if !fits_mtu(packet, self.mtu) {
                drops += 1;
                continue;
            }
            let plain = !self.vnet && !packet.is_chained();
            match if plain { write_packet(self.tun.as_fd(), packet) } else { self.send(packet) } {
                Ok(_) => (packets, bytes) = (packets + 1, bytes + packet.total_len()),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => {
                    // EIO means that the interface is down, which may be temporary.
                    drops += 1;
                    if deleted(errno) {
                        self.presence.mark_lost(&self.status, DELETED);
                    }
                }
            }
        }
        drop_front(burst, packets + drops);
        self.status.tx(self.queue).count(packets, bytes, drops);
        packets + drops
    }
}

impl Port for Tap {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn link(&mut self) -> Link {
        Link { up: matches!(self.state(), State::Running) && !self.presence.is_away(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.status.queue_stats()
    }

    fn state(&mut self) -> State {
        if tap_name(self.tuns[0].as_fd()).is_err() {
            self.presence.mark_lost(&self.status, DELETED);
        }
        let Self { name, tuns, interfaces, vnet, offloads, .. } = self;
        let name = name.trim_start_matches("tap:");
        self.rejoin_timer.try_rejoin(&self.presence, || rejoin_interface((tuns, interfaces), name, *vnet, *offloads));
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
