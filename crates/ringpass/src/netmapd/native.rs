//! The machine's ports in netmap mode, each with a thread.

use std::cell::RefCell;
use std::str::FromStr;

use ringpass_bus::addressing_of;
use ringpass_memory::{Addressing, Mempool};
use ringpass_netmap::native::NativePort;
use ringpass_netmap::server::{Native, Refusal, ServedPort};
use ringpass_netmap::{Place, Pools, Region, Served};
use ringpass_port::{Address, Error, Port, PortConfig, State};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::worker::{Worker, batch};
use crate::open::{addressed, check_cards, on_pages, open_with_wire, pool_for, takes_bare_buffers};
use crate::options::Options;

/// A port by its address, and what programs call it: `eth0=0000:01:00.0`.
#[derive(Clone, Debug)]
pub struct Named {
    /// Behind `netmap:`.
    pub name: String,
    address: String,
}

impl FromStr for Named {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('=').filter(|(name, address)| !name.is_empty() && !address.is_empty());
        let (name, address) = parts.ok_or("write NAME=ADDRESS, as eth0=0000:01:00.0")?;
        Ok(Self { name: name.into(), address: address.into() })
    }
}

impl Named {
    /// Where it is.
    pub fn address(&self) -> Result<Address, Error> {
        self.address.parse()
    }

    /// Opens it.
    pub fn open(&self, packets: &Packets, options: &Options) -> Result<Opened, Error> {
        let address = self.address()?;
        let exchanged = packets.exchange().filter(|_| exchanges(&address, options));
        let usual = packets.usual.as_ref();
        let pool = exchanged.or(usual).expect("made for this port");
        // A card of silicon has no wire here.
        let port = open_with_wire(
            &address,
            &PortConfig { rejoin: true, ..options.port() },
            (pool, usual.unwrap_or(pool)),
            options,
        )?;
        Ok(Opened { name: self.name.clone(), port, exchanges: exchanged.is_some(), pool: pool.clone() })
    }
}

/// Whether buffers of a port are exchanged with programs: each frame lies in one, from its beginning, and bears nothing beside.
/// Not with a card that has no IOMMU: programs could take pages away that the card still writes to.
fn exchanges(address: &Address, options: &Options) -> bool {
    let card = addressed(std::slice::from_ref(address));
    card.is_none_or(|card| addressing_of(card) == Addressing::Virtual)
        && takes_bare_buffers(address)
        && !options.offloads.any()
        && options.mtu + OVERHEAD <= BUFFER as usize
}

/// Of a frame, beyond its payload: Ethernet's header and a VLAN tag.
const OVERHEAD: usize = 18;
/// Bytes of a buffer.
const BUFFER: u32 = 2048;

/// Where packets of all ports lie.
pub struct Packets {
    /// Of ports whose frames are copied, and of models' wires.
    usual: Option<Mempool>,
    /// Of ports whose buffers are exchanged with programs, with the memory of these.
    pub exchanged: Option<Region>,
}

impl Packets {
    /// For these ports. `programs` is what programs have in a memory.
    pub fn new(ports: &[Named], programs: Pools, options: &Options) -> Result<Self, Error> {
        let addresses = ports.iter().map(Named::address).collect::<Result<Vec<_>, _>>()?;
        check_cards(&addresses, options)?;
        let (bare, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| exchanges(address, options));
        let wires = bare.iter().filter(|address| matches!(address, Address::Model(..)));
        let usual: Vec<_> = others.iter().chain(wires).cloned().collect();
        let usual = (!usual.is_empty()).then(|| pool_for(&usual, 0, options)).transpose()?;
        // As many for a port's rings and bursts as `pool_for` has.
        let own = (bare.len() * options.queues * (options.rxd + options.txd + 1024)) as u32;
        let pools = Pools { buffers: programs.buffers + own, buffer_size: BUFFER, ..programs };
        let region = || {
            on_pages(bare.len(), addressed(&bare), options, |config| {
                Region::exchanging(pools, own, config).map_err(|error| Error::Other(error.to_string()))
            })
        };
        let exchanged = (!bare.is_empty()).then(region).transpose()?;
        Ok(Self { usual, exchanged })
    }

    fn exchange(&self) -> Option<&Mempool> {
        Some(self.exchanged.as_ref()?.exchange()?.pool())
    }
}

/// A port that is open, without a thread so far.
pub struct Opened {
    /// See [`Named`].
    pub name: String,
    port: Box<dyn Port>,
    exchanges: bool,
    pool: Mempool,
}

impl Opened {
    /// What was chosen for it.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.port.notes().into_iter().map(|note| format!("netmap:{}: {note}", self.name));
        let how = if self.exchanges {
            "buffers are exchanged with programs, without a copy"
        } else {
            "frames are copied between the port's buffers and those of programs"
        };
        notes.chain([format!("netmap:{}: {how}", self.name)]).collect()
    }

    /// Has its frames moved. `number` is that of the thread.
    pub fn start(mut self, number: usize, options: &Options) -> Result<Box<dyn Native>, Refusal> {
        let failed = |error: Error| Refusal::new(Errno::NOMEM, error);
        let (rings, joint) = NativePort::new(self.port.take_queues(), &self.pool, batch(options)).map_err(failed)?;
        let worker = Worker::spawn(&self.name, number, options, joint, |joint| joint.round())?;
        Ok(Box::new(Started { _worker: worker, rings, port: self.port.into(), exchanges: self.exchanges }))
    }
}

/// A port with its thread, which ends before it.
struct Started {
    _worker: Worker,
    rings: NativePort,
    port: RefCell<Box<dyn Port>>,
    exchanges: bool,
}

impl Native for Started {
    fn rings(&self) -> u16 {
        self.rings.queues() as u16
    }

    fn exchanges(&self) -> bool {
        self.exchanges
    }

    fn join(&mut self, served: Vec<Served>, place: &Place) -> Result<Box<dyn ServedPort>, Refusal> {
        self.rings.join(served, place).map_err(|error| Refusal::new(Errno::NOMEM, error))
    }

    fn gone(&mut self) -> Option<String> {
        match self.port.get_mut().state() {
            State::Gone(why) => Some(why),
            State::Running | State::Finished => None,
        }
    }

    fn status(&self) -> Value {
        let mut port = self.port.borrow_mut();
        let link = port.link();
        json!({
            "address": port.name(), "mac": port.mac().to_string(), "link": link.up, "mbps": link.mbps,
            "stats": port.stats(), "dropped": self.rings.dropped(), "exchanges": self.exchanges,
        })
    }
}
