//! The machine's ports in netmap mode, each with a thread.

use std::cell::RefCell;
use std::str::FromStr;

use crate::stats::note_lines;
use ringpass::sandbox::Needs;
use ringpass::{Address, Config, Error, Mempool, Port, PortConfig, State, Workers};
use ringpass_memory::Addressing;
use ringpass_netmap::{Kring, Pools, Region};
use ringpass_netmap_server::{Native, NativePort, PollingMode, RequestError, ServedPort, SwitchLinks};
use ringpass_pci::addressing_of;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::worker::{self, batch};
use ringpass::open::{
    addressing_card, buffers, check_cards, open_address, open_with_wire, pool, with_page_fallback,
    works_without_headroom,
};

/// A port's address and its name for programs, written as `eth0=0000:01:00.0`.
#[derive(Clone, Debug)]
pub struct NamedPort {
    /// Name after `netmap:`.
    pub name: String,
    address: String,
}

impl FromStr for NamedPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('=').filter(|(name, address)| !name.is_empty() && !address.is_empty());
        let (name, address) = parts.ok_or("write NAME=ADDRESS, such as eth0=0000:01:00.0")?;
        Ok(Self { name: name.into(), address: address.into() })
    }
}

impl NamedPort {
    /// Parses the port's address.
    pub fn address(&self) -> Result<Address, Error> {
        self.address.parse()
    }
}

/// A native port that is to be opened.
pub struct NativeConfig {
    port: NamedPort,
    /// Port to the host's stack.
    host: Option<NamedPort>,
}

/// Returns the native ports, each with the port to the host's stack that has its name.
pub fn with_hosts(ports: Vec<NamedPort>, mut hosts: Vec<NamedPort>) -> Result<Vec<NativeConfig>, Error> {
    let with_host = |port: NamedPort| {
        let at = hosts.iter().position(|host| host.name == port.name);
        NativeConfig { host: at.map(|at| hosts.swap_remove(at)), port }
    };
    let ports = ports.into_iter().map(with_host).collect();
    match hosts.first() {
        Some(host) => {
            let name = &host.name;
            Err(Error::Config(format!(
                "--host {name}: there is one for each --port {name}=ADDRESS, and no such port is left"
            )))
        }
        None => Ok(ports),
    }
}

impl NativeConfig {
    /// Opens the port with packets of the right pool.
    pub fn open(&self, packets: &PacketPools, config: &Config, needs: &mut Needs) -> Result<OpenedNative, Error> {
        let address = self.port.address()?;
        let exchanged = packets.exchange().filter(|_| exchanges(&address, config));
        let copying = packets.copying.as_ref();
        let pool = exchanged.or(copying).expect("made for this port");
        // Model ports need the copying pool for their wires; a hardware card has no wire, so `pool` is never
        // used for one.
        let port = open_with_wire(
            &address,
            &PortConfig { rejoin: true, ..config.port },
            (pool, copying.unwrap_or(pool)),
            config,
            needs,
        )?;
        let open_host = |host: &NamedPort| {
            let queue = PortConfig { rejoin: true, queues: 1, ..config.port };
            open_address(&host.address()?, &queue, pool, config, needs)
        };
        let host = self.host.as_ref().map(open_host).transpose()?;
        let name = self.port.name.clone();
        Ok(OpenedNative { name, port, host, exchanges: exchanged.is_some(), pool: pool.clone() })
    }
}

/// Returns whether buffers of a port are exchanged with programs. That takes frames that lie in one buffer
/// each, start at its beginning and need no metadata. Never for a card without an IOMMU: programs could free
/// pages to which the card still writes.
fn exchanges(address: &Address, config: &Config) -> bool {
    let card = addressing_card(std::slice::from_ref(address));
    card.is_none_or(|card| addressing_of(card) == Addressing::Virtual)
        && works_without_headroom(address)
        && !config.port.offloads.any()
        && config.port.mtu + OVERHEAD <= BUFFER as usize
}

/// Bytes of a frame beyond its payload: Ethernet header and VLAN tag.
const OVERHEAD: usize = 18;
/// Size of a buffer in bytes.
const BUFFER: u32 = 2048;

/// Packet pools of all ports.
pub struct PacketPools {
    /// Pool of the ports whose frames are copied, and of the models' wires.
    copying: Option<Mempool>,
    /// Memory whose buffers are exchanged between ports and programs.
    pub exchanged: Option<Region>,
}

impl PacketPools {
    /// Creates the pools for these ports. `programs` has the sizes of a memory for programs.
    pub fn new(ports: &[NativeConfig], programs: Pools, config: &Config) -> Result<Self, Error> {
        let addresses = ports.iter().map(|named| named.port.address()).collect::<Result<Vec<_>, _>>()?;
        check_cards(&addresses, config)?;
        // Each port to the host's stack has packets of the same pool.
        let hosts =
            addresses.iter().zip(ports).filter(|(_, named)| named.host.is_some()).map(|(address, _)| address.clone());
        let all: Vec<_> = addresses.iter().cloned().chain(hosts).collect();
        let (bare, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|address| exchanges(address, config));
        let wires = bare.iter().filter(|address| matches!(address, Address::Model(..)));
        let copying: Vec<_> = others.iter().chain(wires).cloned().collect();
        let alike = |addresses: &[Address]| vec![config.port; addresses.len()];
        let copying = (!copying.is_empty()).then(|| pool(&alike(&copying), &copying, config));
        let copying = copying.transpose()?;
        let own = (bare.len() * buffers(&config.port, config.batch)) as u32;
        let pools = Pools { buffers: programs.buffers + own, buffer_size: BUFFER, ..programs };
        let region = || {
            with_page_fallback(&alike(&bare), addressing_card(&bare), config, |region| {
                Region::exchanging(pools, own, region).map_err(|error| Error::Fault(error.to_string()))
            })
        };
        let exchanged = (!bare.is_empty()).then(region).transpose()?;
        Ok(Self { copying, exchanged })
    }

    fn exchange(&self) -> Option<&Mempool> {
        Some(self.exchanged.as_ref()?.exchange()?.pool())
    }
}

/// An open port without a thread.
pub struct OpenedNative {
    /// Name after `netmap:`.
    pub name: String,
    port: Box<dyn Port>,
    /// Port to the host's stack.
    host: Option<Box<dyn Port>>,
    exchanges: bool,
    pool: Mempool,
}

impl OpenedNative {
    /// Returns the notes on the config chosen for the port.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.port.notes();
        let how = if self.exchanges {
            "buffers are exchanged with programs, without a copy"
        } else {
            "frames are copied between the port's buffers and those of programs"
        };
        notes.push(how.into());
        if let Some(host) = &self.host {
            notes.push(format!("the host's stack is behind {}", host.name()));
        }
        note_lines(&format!("netmap:{}", self.name), &notes)
    }

    /// Starts the thread that moves the port's frames; `number` selects its CPU.
    pub fn start(mut self, number: usize, config: &Config) -> Result<Box<dyn Native>, RequestError> {
        let failed = |error: Error| RequestError::new(Errno::NOMEM, error);
        let host_queue = self.host.as_mut().and_then(|host| host.take_queues().pop());
        let (rings, ring_forwarder) =
            NativePort::new(self.port.take_queues(), host_queue, &self.pool, batch(config)).map_err(failed)?;
        let worker =
            worker::spawn(&self.name, number, config, ring_forwarder, |ring_forwarder| ring_forwarder.round())?;
        let ports = RefCell::new(std::iter::once(self.port).chain(self.host).collect());
        Ok(Box::new(RunningNative { _worker: worker, rings, ports, exchanges: self.exchanges }))
    }
}

/// A port with its thread. The thread is the first field, so that it ends before the port is dropped.
struct RunningNative {
    _worker: Workers,
    rings: NativePort,
    /// The port, and the port to the host's stack if there is one.
    ports: RefCell<Vec<Box<dyn Port>>>,
    exchanges: bool,
}

impl Native for RunningNative {
    fn rings(&self) -> u16 {
        self.rings.queues() as u16
    }

    fn has_host(&self) -> bool {
        self.rings.has_host()
    }

    fn exchanges(&self) -> bool {
        self.exchanges
    }

    fn join(&mut self, served: Vec<Kring>, region: &Region) -> Result<Box<dyn ServedPort>, RequestError> {
        self.rings.join(served, region).map_err(|error| RequestError::new(Errno::NOMEM, error))
    }

    fn attach(&mut self, links: SwitchLinks) {
        self.rings.attach(links);
    }

    fn detach(&mut self) {
        self.rings.detach();
    }

    fn poll(&mut self, mode: Option<PollingMode>) -> Result<(), RequestError> {
        self.rings.poll(mode).map_err(|error| RequestError::new(Errno::AGAIN, error))
    }

    fn gone(&mut self) -> Option<String> {
        self.ports.get_mut().iter_mut().find_map(|port| match port.state() {
            State::Gone(why) => Some(why),
            State::Running | State::Finished => None,
        })
    }

    fn status(&self) -> Value {
        let mut ports = self.ports.borrow_mut();
        let mut of_each = ports.iter_mut().map(|port| {
            let link = port.link();
            json!({
                "address": port.name(), "mac": port.mac().to_string(), "link": link.up, "mbps": link.mbps,
                "stats": port.stats(),
            })
        });
        let mut status = of_each.next().expect("a port");
        status["dropped"] = self.rings.dropped().into();
        status["exchanges"] = self.exchanges.into();
        if let Some(host) = of_each.next() {
            status["host"] = host;
        }
        status
    }
}
