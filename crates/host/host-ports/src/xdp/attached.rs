//! An interface to which this process has attached its program.

use std::os::fd::{AsFd, OwnedFd};

use ringpass_port::{Error, MacAddress, XdpConfig, XdpMode, XdpTransfer};
use rustix::io::Errno;

use super::hints::{self, Hints};
use super::program::{Attachment, Program};
use super::socket::{Socket, bind_socket, open_socket, register, transfer_of, wrong};
use super::{Control, Granted, Wanted, Ways};
use crate::netdev::{XdpFeatures, features};
use crate::packet_socket::open_packet_socket;
use crate::presence::GONE;
use crate::sys::{
    Interface, Interfaces, driver, prefer_busy_polling, rx_queues, rx_queues_in_sysfs, set_promiscuous_membership,
};

/// An interface with our program, which is removed when this is dropped.
pub(super) struct Attached {
    name: String,
    index: i32,
    mac: MacAddress,
    interfaces: Interfaces,
    program: Program,
    attachment: Attachment,
    transfer: Option<XdpTransfer>,
    /// A socket by which the interface is in promiscuous mode.
    members: OwnedFd,
    /// Number of Rx queues, if it is known.
    rx_queues: Option<u32>,
    features: Option<XdpFeatures>,
    is_veth: bool,
    busy_poll: bool,
}

/// Attaches a program to an interface, with a socket for each queue.
pub(super) fn open(config: &XdpConfig, wanted: &Wanted) -> Result<Granted, Error> {
    let attached = Attached::new(config, wanted.queues, wanted.hints)?;
    let map = wrong(&config.interface, "mapping the rings of a socket");
    let (sockets, ways) = attached.bind(wanted, |fd| Socket::map(fd, wanted.rings).map_err(&map))?;
    let (notes, mtu) = (attached.notes(&sockets)?, attached.mtu()?);
    let mac = attached.mac;
    Ok(Granted { mac, mtu, ways, sockets, notes, control: Box::new(attached) })
}

impl Attached {
    /// Attaches a program to an interface, for sockets on this many of its queues. The kernel gets all frames until there are some.
    pub(super) fn new(config: &XdpConfig, queues: usize, hints: hints::Wanted) -> Result<Self, Error> {
        let name = &config.interface[..];
        let interfaces = Interfaces::new().map_err(wrong(name, "a socket"))?;
        let Interface { index, hardware, mac } = interfaces.look_up("xdp", name)?;
        if hardware != libc::ARPHRD_ETHER {
            return Err(Error::Unsupported(format!("xdp:{name}: no Ethernet interface; take one that is")));
        }
        let rx_queues = rx_queues(name);
        if let Some(there) = rx_queues.filter(|there| (*there as usize) < queues) {
            return Err(Error::Config(format!(
                "xdp:{name}: the interface has {there} queue(s), not {queues}; take as many, or give it more: ethtool -L {name} \
                 combined {queues}"
            )));
        }
        let ways = match config.mode {
            None if config.transfer == Some(XdpTransfer::ZeroCopy) => &[Attachment::Native][..],
            None => &[Attachment::Native, Attachment::Generic][..],
            Some(XdpMode::Native) => &[Attachment::Native],
            Some(XdpMode::Generic) => &[Attachment::Generic],
        };
        let native = ways.contains(&Attachment::Native);
        let features = features(index);
        let hints = if native { Hints::of(features, hints) } else { Hints::default() };
        let (program, attachment) = Program::attach(index, queues as u32, ways, &config.filters, hints)
            .map_err(|error| refused(name, config.mode, error))?;
        Ok(Self {
            name: name.into(),
            index,
            mac,
            interfaces,
            program,
            attachment,
            transfer: config.transfer,
            members: open_packet_socket(&format!("xdp:{name}"))?,
            // Some drivers receive on more queues with a program than without.
            rx_queues: rx_queues.max(rx_queues_in_sysfs(name, index)),
            features,
            busy_poll: config.busy_poll,
            is_veth: driver(name).as_deref() == Some("veth"),
        })
    }

    /// Opens a socket for each queue and redirects the queue's frames to it. `prepare` gets it before it is bound. Returns them with what the
    /// port has to do.
    pub(super) fn bind<T: AsFd>(
        &self,
        wanted: &Wanted,
        prepare: impl Fn(OwnedFd) -> Result<T, Error>,
    ) -> Result<(Vec<T>, Ways), Error> {
        let Self { name, index, program, .. } = self;
        let transfer = match (self.attachment, wanted.umem.is_contiguous()) {
            (Attachment::Native, true) => self.transfer,
            (Attachment::Native, false) if self.transfer == Some(XdpTransfer::ZeroCopy) => {
                return Err(Error::Unsupported(format!(
                    "xdp:{name}: zero-copy needs packets in huge pages, or in a page each; leave zerocopy out"
                )));
            }
            _ => Some(XdpTransfer::Copy),
        };
        let mut checksums = wanted.checksums && self.completes_checksums(transfer);
        let mut sockets: Vec<T> = Vec::new();
        for queue in 0..wanted.queues as u32 {
            let socket = open_socket(name, wanted.rings)?;
            let first = sockets.first().map(AsFd::as_fd);
            if first.is_none() {
                checksums = register(name, &socket, wanted.umem, checksums)?;
            }
            if self.busy_poll {
                prefer_busy_polling(socket.as_fd()).map_err(wrong(name, "busy polling (needs Linux 5.11)"))?;
            }
            let socket = prepare(socket)?;
            bind_socket(name, socket.as_fd(), (*index, queue), (wanted.umem, first), transfer, wanted.patience)?;
            program.redirect(queue, &socket).map_err(wrong(name, "redirecting frames to a socket"))?;
            sockets.push(socket);
        }
        Ok((sockets, Ways { busy_poll: self.busy_poll, hints: program.asks(), checksums }))
    }

    /// Whether the kernel or the card completes checksums of frames that are sent: the kernel where it copies them, the card if it can.
    fn completes_checksums(&self, transfer: Option<XdpTransfer>) -> bool {
        // Who reports no features has no metadata in front of frames, either.
        self.features.is_some_and(|features| {
            transfer == Some(XdpTransfer::Copy) || !features.zero_copy() || features.tx_checksum()
        })
    }

    /// Lets the kernel have all frames again, whatever becomes of the sockets.
    pub(super) fn clear(&self, queues: usize) {
        (0..queues as u32).for_each(|queue| self.program.clear(queue));
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The interface's MAC address.
    pub(super) fn mac(&self) -> MacAddress {
        self.mac
    }

    /// The interface's MTU.
    pub(super) fn mtu(&self) -> Result<usize, Error> {
        self.interfaces.mtu(&self.name).map_err(wrong(&self.name, "reading the interface's MTU"))
    }

    /// Says what there is to know about an interface with these sockets; first what everybody sees.
    pub(super) fn notes(&self, sockets: &[impl AsFd]) -> Result<Vec<String>, Error> {
        let (name, own) = (&self.name, sockets.len() as u32);
        let zero_copy = sockets.first().map(transfer_of).transpose();
        let zero_copy = zero_copy.map_err(wrong(name, "asking for zero-copy"))? == Some(XdpTransfer::ZeroCopy);
        let transfer = match zero_copy {
            true => "zero-copy: the card reads and writes the pool's memory",
            false => "copy mode: the kernel copies each frame",
        };
        let mut notes = vec![format!("XDP in {} mode, {transfer}", self.attachment.name())];
        if self.interfaces.flags(name).map_err(wrong(name, "reading the interface's state"))? & libc::IFF_UP == 0 {
            notes.insert(0, format!("the interface is down; bring it up: ip link set {name} up"));
        }
        if let Some(there) = self.rx_queues.filter(|there| *there > own) {
            notes.push(format!(
                "the interface has {there} queues, and frames of all but the first {own} go to the kernel; for all frames: ethtool -L \
                 {name} combined {there} and --queues {there}, or ethtool -L {name} combined {own}"
            ));
        }
        if self.program.asks() {
            notes.push(
                "the driver is asked for VLAN tags that it has taken out of frames, for RSS hashes with the offload hash, and for times with timestamps"
                    .into(),
            );
        }
        if self.busy_poll {
            notes.push(format!(
                "busy polling: the port drives the card's receiving; for no interrupts meanwhile: echo 2 >/sys/class/net/{name}/napi_defer_hard_irqs \
                 and echo 200000 >/sys/class/net/{name}/gro_flush_timeout"
            ));
        }
        if self.is_veth {
            notes.push(
                "frames of a veth's peer may come without their checksums, which cards complete; for complete ones, at the peer: ethtool -K \
                 PEER tx off"
                    .into(),
            );
        }
        Ok(notes)
    }
}

impl Control for Attached {
    fn is_running(&mut self) -> bool {
        self.interfaces.is_running(self.index)
    }

    fn gone(&mut self) -> Option<String> {
        // By its index, as it may have been renamed.
        self.interfaces.name(self.index).is_err().then(|| GONE.into())
    }

    fn set_promiscuous(&mut self, on: bool) -> std::io::Result<()> {
        set_promiscuous_membership(self.members.as_fd(), self.index, on)
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
