//! The driver for virtio network cards, which every virtual machine has.
//!
//! [`VirtioNet::open`] brings the card up as *VIRTIO 1.3* has it (section 3.1). After that it is driven through
//! virtqueues alone: `rx` and `tx`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod config;
mod control;
mod device;
mod gather;
mod hang;
mod negotiate;
mod queues;
mod ring;
mod rx;
mod shared;
pub mod transport;
mod tx;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_bus::{Bus, DeviceId};
use ringpass_memory::Mempool;
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, Rule, Spread, State, Stats};
use ringpass_virtio::features::{CTRL_MAC_ADDR, CTRL_RX, CTRL_VQ, MQ};

use config::{Config, MAC_AT};
use control::{Command, Control};
use device::{Device, status};
use negotiate::{Agreed, Circumstances};
use queues::Plan;
use ring::Counters;
use transport::Transport;

/// The card's name, if this driver drives it (4.1.2): a transitional or legacy one, or a modern one.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    match id {
        DeviceId { vendor: 0x1af4, device: 0x1000 | 0x1041 } => Some("virtio network card"),
        _ => None,
    }
}

/// A virtio network card as a port.
pub struct VirtioNet {
    name: String,
    /// Behind the device's other queues: dropped before the device is.
    control: Option<Box<dyn Control>>,
    queues: Vec<Queues>,
    device: Arc<Device>,
    features: u64,
    mac: MacAddress,
    /// As the device had it when it was opened.
    config: Config,
    rx: Vec<Arc<Counters>>,
    tx: Vec<Arc<Counters>>,
    notes: Vec<String>,
    /// Why the port came to its end.
    gone: Option<String>,
}

impl VirtioNet {
    /// Resets the card, agrees with it on features and starts its queues. Rings of 64 to 32768 descriptors, a power of
    /// two, or as many as the card has; an MTU of 68 to 9710 bytes.
    ///
    /// Received packets are the pool's; so must be those that are sent, which the card is shown no other memory of.
    pub fn open(bus: Arc<dyn Bus>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let transport = transport::find(&bus).map_err(named(name))?;
        Self::open_over(transport, bus, name, config, pool)
    }

    /// Likewise, over a transport other than that of PCI. The bus is the way to memory and interrupts.
    pub fn open_over(
        transport: Box<dyn Transport>,
        bus: Arc<dyn Bus>,
        name: &str,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        let device = Arc::new(Device::new(transport, bus));
        Self::bring_up(device, name, config, pool).map_err(named(name))
    }

    /// Section 3.1.1, step by step.
    fn bring_up(device: Arc<Device>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        check(config)?;
        let (agreed, found) = {
            let mut transport = device.transport();
            transport.reset()?;
            transport.set_status(status::ACKNOWLEDGE);
            transport.set_status(status::ACKNOWLEDGE | status::DRIVER);
            let (buffer, legacy) = (pool.buffer_size(), transport.is_legacy());
            let (iommu, pairs) = (device.bus.behind_iommu(), transport.pairs());
            let circumstances = Circumstances { config, buffer, legacy, iommu, pairs };
            let agreed = Agreed::new(transport.features(), &circumstances)?;
            transport.accept(agreed.features);
            if !legacy {
                transport.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
                if transport.status() & status::FEATURES_OK == 0 {
                    let features = agreed.features;
                    return Err(Error::Other(format!("the card offered features {features:#x} and refuses them now")));
                }
            }
            (agreed, Config::read(&mut **transport, agreed.features)?)
        };
        found.check(config)?;
        let plan = Plan { device: &device, agreed: &agreed, config, pool, pairs: found.pairs };
        let started = plan.start()?;
        let (features, mac, gone) = (agreed.features, found.mac.unwrap_or_else(random_mac), None);
        let queues::Started { pairs: queues, control, rx, tx, notes } = started;
        let name = name.to_owned();
        let mut port = Self { name, control, queues, device, features, mac, config: found, rx, tx, notes, gone };
        port.set_up(config)?;
        Ok(port)
    }

    /// What is told by the control queue, or by configuration.
    fn set_up(&mut self, config: &PortConfig) -> Result<(), Error> {
        if self.features & (MQ | CTRL_VQ) == MQ | CTRL_VQ {
            self.command(Command::Pairs(config.queues as u16))?;
        }
        if self.config.mac.is_none() {
            let told = self.set_mac(self.mac).is_ok();
            let how = if told { "made up" } else { "made up, which the card does not know" };
            self.notes.push(format!("the card has no MAC address; {} is {how}", self.mac));
        }
        if self.features & CTRL_RX != 0 {
            self.command(Command::AllMulticast(true))?;
            self.set_promiscuous(config.promiscuous)?;
        } else {
            self.notes.push("the card decides which addresses it receives for: it takes no such commands".into());
        }
        Ok(())
    }

    fn command(&mut self, command: Command) -> Result<(), Error> {
        let none = || Error::Other(format!("the card has no control queue to be told {command:?} by"));
        self.control.as_mut().ok_or_else(none)?.command(command)
    }

    /// Gives the card another MAC address.
    pub fn set_mac(&mut self, mac: MacAddress) -> Result<(), Error> {
        if self.features & CTRL_MAC_ADDR != 0 {
            self.command(Command::Mac(mac))?;
        } else if self.device.transport().is_legacy() {
            // 5.1.4.3
            self.device.transport().write_config(MAC_AT, &mac.0)?;
        } else {
            return Err(Error::Other(format!("{}: the card keeps its MAC address", self.name)));
        }
        self.mac = mac;
        self.config.mac = self.config.mac.map(|_| mac);
        Ok(())
    }

    /// What ends the port, if anything does.
    fn end(&mut self) -> Option<String> {
        if let Some(why) = self.device.broken.get() {
            return Some(format!("the card broke the rules: {why}"));
        }
        let mut transport = self.device.transport();
        match transport.status() {
            u8::MAX => return Some("the card is gone; its registers read as ones".into()),
            status if status & status::NEEDS_RESET != 0 => {
                return Some("the card has failed and asks for a reset".into());
            }
            status if status & status::DRIVER_OK == 0 => return Some("somebody else has reset the card".into()),
            _ => {}
        }
        let now = match Config::read(&mut **transport, self.features) {
            Ok(now) => now,
            Err(error) => return Some(error.to_string()),
        };
        if let Some(what) = self.config.changed(&now) {
            return Some(format!("the card has changed {what}"));
        }
        // Whether a back-end lives its socket says; when it begins to move packets is its own affair.
        let stuck = self.device.hang.seen(now.link) && !transport.outlives_device();
        stuck.then(hang::report)
    }
}

/// An error of the port of that name.
fn named(name: &str) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Other(why) => Error::Other(format!("{name}: {why}")),
        error => error,
    }
}

fn check(config: &PortConfig) -> Result<(), Error> {
    let PortConfig { queues, rx_ring, tx_ring, mtu, spread, .. } = *config;
    let ring = |size: usize| size.is_power_of_two() && (64..=32_768).contains(&size);
    let ensure = |right, otherwise| if right { Ok(()) } else { Err(Error::Other(otherwise)) };
    let rings = format!("rings of {rx_ring} and {tx_ring} descriptors; take a power of two, 64 to 32768");
    ensure(ring(rx_ring) && ring(tx_ring), rings)?;
    ensure((1..=128).contains(&queues), format!("{queues} queues; take 1 to 128"))?;
    ensure((68..=9710).contains(&mtu), format!("an MTU of {mtu}; take 68 to 9710"))?;
    ensure(spread == Spread::Hash || queues == 1, UNSTEERED.into())
}

const UNSTEERED: &str = "a virtio card spreads frames over its queues by itself and cannot be told how; use one queue";

/// A counter of all queues.
fn sum(all: &[Arc<Counters>], field: fn(&Counters) -> &AtomicU64) -> u64 {
    all.iter().map(|counters| field(counters).load(Relaxed)).sum()
}

/// An address of local administration.
fn random_mac() -> MacAddress {
    let [.., a, b, c, d, e] = RandomState::new().build_hasher().finish().to_ne_bytes();
    MacAddress([2, a, b, c, d, e])
}

impl Port for VirtioNet {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    /// A speed says nothing of a card that is software.
    fn link(&mut self) -> Link {
        let now = Config::read(&mut **self.device.transport(), self.features);
        Link { up: self.gone.is_none() && now.is_ok_and(|now| now.link), mbps: 0 }
    }

    /// The queues count; the device says nothing of frames that found no buffer.
    fn stats(&mut self) -> Stats {
        Stats {
            rx_packets: sum(&self.rx, |counters| &counters.packets),
            rx_bytes: sum(&self.rx, |counters| &counters.bytes),
            rx_drops: sum(&self.rx, |counters| &counters.drops),
            tx_packets: sum(&self.tx, |counters| &counters.packets),
            tx_bytes: sum(&self.tx, |counters| &counters.bytes),
            tx_drops: sum(&self.tx, |counters| &counters.drops),
        }
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        let doorbells = [&self.rx, &self.tx].map(|queues| sum(queues, |counters| &counters.doorbells));
        vec![
            ("doorbells", doorbells.iter().sum()),
            ("rx_ring_errors", sum(&self.rx, |counters| &counters.errors)),
            ("tx_ring_errors", sum(&self.tx, |counters| &counters.errors)),
        ]
    }

    /// A card that does what it may not is reset, so that it leaves the memory alone.
    fn state(&mut self) -> State {
        if self.gone.is_none()
            && let Some(why) = self.end()
        {
            let reset = self.device.transport().reset();
            let rest = reset.map_or("; it does not answer to a reset", |()| "; it was reset");
            self.gone = Some(format!("{}: {why}{rest}", self.name));
        }
        self.gone.clone().map_or(State::Running, State::Gone)
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        if self.features & CTRL_RX == 0 {
            return Err(Error::Other(format!("{}: the card decides which addresses it receives for", self.name)));
        }
        self.command(Command::Promiscuous(on))
    }

    fn steer(&mut self, _: &Rule, _: usize) -> Result<(), Error> {
        Err(Error::Other(format!("{}: {UNSTEERED}", self.name)))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
