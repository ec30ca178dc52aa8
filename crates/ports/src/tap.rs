//! TAP interfaces of the kernel: what the kernel sends through the interface is received here, and the other way
//! round. One system call a frame: the kernel offers nothing better for these.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringpass_memory::{Burst, Mempool};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, RxQueue, State, Stats, TxQueue};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::buffers::{Buffers, drop_front};
use crate::status::{Status, passes};
use crate::sys::{Interfaces, attach_tap, tap_name};

/// `tap:NAME`. The interface may be moved to another network namespace under way.
pub struct Tap {
    name: String,
    mac: MacAddress,
    /// Of the first queue.
    tun: Arc<OwnedFd>,
    status: Arc<Status>,
    queues: Vec<Queues>,
    notes: Vec<String>,
}

struct Rx {
    tun: Arc<OwnedFd>,
    buffers: Buffers,
    status: Arc<Status>,
    queue: usize,
    mtu: usize,
}

struct Tx {
    tun: Arc<OwnedFd>,
    status: Arc<Status>,
    queue: usize,
    mtu: usize,
}

impl Tap {
    /// Makes the interface if it does not exist, joins it if it does, sets its MTU and brings it up. An interface that
    /// was made here disappears with the port and its queues.
    pub fn open(name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let wrong =
            |what: &'static str| move |source: io::Error| Error::Os { what: format!("tap:{name}: {what}"), source };
        let attach = || {
            let tun = open_tun(name)?;
            attach_tap(tun.as_fd(), name, config.queues > 1).map_err(|error| attach_error(name, config, error))?;
            Ok(Arc::new(tun))
        };
        let tuns: Vec<Arc<OwnedFd>> = (0..config.queues).map(|_| attach()).collect::<Result<_, Error>>()?;
        let interfaces = Interfaces::new().map_err(wrong("a socket"))?;
        interfaces.set_mtu(name, config.mtu).map_err(wrong("setting the MTU"))?;
        interfaces.set_up(name).map_err(wrong("bringing the interface up"))?;
        let (_, mac) = interfaces.hardware(name).map_err(wrong("reading the hardware address"))?;

        let status = Arc::new(Status::new(config.queues));
        let queues = tuns.iter().enumerate().map(|(queue, tun)| {
            let (tun, status, mtu) = (tun.clone(), status.clone(), config.mtu);
            let tx = Tx { tun: tun.clone(), status: status.clone(), queue, mtu };
            Queues { rx: Box::new(Rx { tun, buffers: Buffers::new(pool), status, queue, mtu }), tx: Box::new(tx) }
        });
        let queues: Vec<Queues> = queues.collect();
        let note = format!("{} queue(s), one system call a frame (faster: a pair of veth with packet:)", queues.len());
        let tun = tuns[0].clone();
        Ok(Self { name: format!("tap:{name}"), mac, tun, status, queues, notes: vec![note] })
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
        Error::Other(format!("tap:{name}: {TUN}: {}{remedy}", io::Error::from(errno)))
    })
}

fn attach_error(name: &str, config: &PortConfig, error: io::Error) -> Error {
    let why = match Errno::from_io_error(&error) {
        Some(Errno::PERM) => "not permitted; run as root or with CAP_NET_ADMIN".into(),
        Some(Errno::BUSY) => {
            format!("another program has this interface (or its queues); end it or take another name; {error}")
        }
        Some(Errno::INVAL) => format!(
            "there is an interface of this name that is no TAP, or a TAP with {}; take another name; {error}",
            if config.queues > 1 { "one queue" } else { "several queues" }
        ),
        Some(Errno::NAMETOOLONG) => "the name is too long; interface names have 1 to 15 characters".into(),
        Some(Errno::TOOBIG) => format!("the kernel gives a TAP no {} queues; ask for fewer", config.queues),
        _ => format!("making the interface: {error}"),
    };
    Error::Other(format!("tap:{name}: {why}"))
}

/// What the kernel says on reading or writing once the interface is deleted.
fn deleted(errno: Errno) -> bool {
    matches!(errno, Errno::BADFD | Errno::NXIO | Errno::NODEV)
}

const DELETED: &str = "the interface was deleted";

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (mut packets, mut bytes, mut drops) = (0, 0, 0);
        for _ in 0..burst.room() {
            // With the pool dry, frames wait in the kernel's queue.
            let Some(mut packet) = self.buffers.take() else { break };
            packet.set_len(packet.capacity());
            match rustix::io::read(&self.tun, &mut packet[..]) {
                Ok(len) => {
                    packet.set_len(len);
                    if passes(&packet, self.mtu) {
                        (packets, bytes) = (packets + 1, bytes + len);
                        burst.push(packet);
                    } else {
                        drops += 1;
                        self.buffers.put_back(packet);
                    }
                }
                Err(errno) => {
                    self.buffers.put_back(packet);
                    if deleted(errno) {
                        self.status.set_gone(|| DELETED.into());
                    }
                    break;
                }
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
        for packet in burst.iter() {
            if !passes(packet, self.mtu) {
                drops += 1;
                continue;
            }
            match rustix::io::write(&self.tun, packet) {
                Ok(_) => (packets, bytes) = (packets + 1, bytes + packet.len()),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => {
                    // EIO says that the interface is down, which it may be for a while.
                    drops += 1;
                    if deleted(errno) {
                        self.status.set_gone(|| DELETED.into());
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

impl Port for Tap {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn link(&mut self) -> Link {
        Link { up: matches!(self.state(), State::Running), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn state(&mut self) -> State {
        if tap_name(self.tun.as_fd()).is_err() {
            self.status.set_gone(|| DELETED.into());
        }
        self.status.state()
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    /// A TAP hands over all that the kernel sends through it, whomever it is for.
    fn set_promiscuous(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
