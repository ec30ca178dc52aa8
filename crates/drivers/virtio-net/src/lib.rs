//! The driver for virtio network cards, which most virtual machines provide.
//!
//! [`VirtioNet::open`] initialises the card as *VIRTIO 1.3* requires (section 3.1). After that the card is
//! driven only through virtqueues: `rx` and `tx`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod assembler;
mod config;
mod control;
mod device;
mod empty_header;
mod negotiate;
mod queues;
mod ring;
mod rx;
mod shared;
pub mod transport;
mod tx;
mod vector;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::Mempool;
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_port::{
    Error, Link, MacAddress, Port, PortConfig, QueuePair, Rule, Spread, State, Stats, TX_HANG_TIMEOUT,
};
use ringpass_virtio::features::{CTRL_MAC_ADDR, CTRL_RX, CTRL_VQ, MQ};

use config::{DeviceConfig, MAC_AT};
use control::{Command, Control};
use device::{Device, status};
use negotiate::{Negotiated, NegotiationContext};
use queues::QueueBuilder;
use ring::Counters;
use transport::Transport;

/// Returns a name if this driver supports the device: a transitional, legacy or modern virtio network card
/// (4.1.2).
pub fn supports(id: DeviceId) -> Option<&'static str> {
    match id {
        DeviceId { vendor: 0x1af4, device: 0x1000 | 0x1041 } => Some("virtio network card"),
        _ => None,
    }
}

/// A port on a virtio network card.
pub struct VirtioNet {
    name: String,
    /// The control queue. It comes before `device`, so it is dropped first.
    control: Option<Box<dyn Control>>,
    queues: Vec<QueuePair>,
    device: Arc<Device>,
    features: u64,
    mac: MacAddress,
    /// The device's configuration when the port was opened.
    config: DeviceConfig,
    rx: Vec<Arc<Counters>>,
    tx: Vec<Arc<Counters>>,
    notes: Vec<String>,
    /// Why the port has ended, if it has.
    gone: Option<String>,
}

impl VirtioNet {
    /// Resets the card, negotiates features and starts its queues. Supports rings of 64 to 32768 descriptors (a
    /// power of two), or of as many as the card has, and an MTU of 68 to 9710 bytes.
    ///
    /// Received packets come from `pool`. Packets to be sent must come from it too: no other packet memory is
    /// mapped for the card.
    pub fn open(bus: Arc<dyn PciDevice>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let transport = transport::find(&bus).map_err(|error| error.of(name))?;
        Self::open_over(transport, bus, name, config, pool)
    }

    /// Opens a device on a transport other than PCI's, in the same way as [`open`](Self::open). `bus` gives
    /// access to DMA memory and interrupts.
    pub fn open_over(
        transport: Box<dyn Transport>,
        bus: Arc<dyn PciDevice>,
        name: &str,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<Self, Error> {
        let device = Arc::new(Device::new(transport, bus, config.avx2()));
        Self::bring_up(device, name, config, pool).map_err(|error| error.of(name))
    }

    /// Initialises the device in the steps of section 3.1.1.
    fn bring_up(device: Arc<Device>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        check(config)?;
        let (negotiated, found) = {
            let mut transport = device.transport();
            transport.reset()?;
            transport.set_status(status::ACKNOWLEDGE);
            transport.set_status(status::ACKNOWLEDGE | status::DRIVER);
            let (buffer, legacy) = (pool.buffer_size(), transport.is_legacy());
            let (iommu, pairs) = (device.bus.behind_iommu(), transport.pairs());
            let circumstances = NegotiationContext { config, buffer, legacy, iommu, pairs };
            let negotiated = Negotiated::new(transport.features(), &circumstances)?;
            transport.accept(negotiated.features);
            if !legacy {
                transport.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
                if transport.status() & status::FEATURES_OK == 0 {
                    let features = negotiated.features;
                    return Err(Error::Fault(format!("the card offered features {features:#x} and refuses them now")));
                }
            }
            (negotiated, DeviceConfig::read(&mut **transport, negotiated.features)?)
        };
        found.check(config)?;
        let plan = QueueBuilder { device: &device, negotiated: &negotiated, config, pool, pairs: found.pairs };
        let started = plan.start()?;
        let features = negotiated.features;
        let mac = found.mac.unwrap_or_else(random_mac);
        let queues::StartedQueues { pairs: queues, control, rx, tx, notes } = started;
        let name = name.to_owned();
        let mut port = Self { name, control, queues, device, features, mac, config: found, rx, tx, notes, gone: None };
        port.set_up(config)?;
        Ok(port)
    }

    /// Configures queue pairs, MAC address and receive modes, by the control queue or by writing the
    /// configuration.
    fn set_up(&mut self, config: &PortConfig) -> Result<(), Error> {
        if self.features & (MQ | CTRL_VQ) == MQ | CTRL_VQ {
            self.command(Command::Pairs(config.queues as u16))?;
        }
        if self.config.mac.is_none() {
            let told = self.set_mac(self.mac).is_ok();
            let how = if told { "made up" } else { "made up here; the card does not know it" };
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
        let none = || Error::Unsupported(format!("the card has no control queue to be told {command:?} by"));
        self.control.as_mut().ok_or_else(none)?.command(command)
    }

    /// Changes the card's MAC address.
    pub fn set_mac(&mut self, mac: MacAddress) -> Result<(), Error> {
        if self.features & CTRL_MAC_ADDR != 0 {
            self.command(Command::Mac(mac))?;
        } else if self.device.transport().is_legacy() {
            // 5.1.4.3: legacy devices have the address in writable configuration.
            self.device.transport().write_config(MAC_AT, &mac.0)?;
        } else {
            return Err(Error::Unsupported(format!("{}: the card keeps its MAC address", self.name)));
        }
        self.mac = mac;
        self.config.mac = self.config.mac.map(|_| mac);
        Ok(())
    }

    /// Returns why the port must end, if it must.
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
        let now = match DeviceConfig::read(&mut **transport, self.features) {
            Ok(now) => now,
            Err(error) => return Some(error.to_string()),
        };
        if let Some(what) = self.config.changed(&now) {
            return Some(format!("the card has changed {what}"));
        }
        // No hang detection where the transport outlives its device: the socket shows whether the back-end is
        // alive, and the back-end decides when it starts to move packets.
        let stuck = self.device.hang.is_hung(now.link) && !transport.outlives_device();
        stuck.then(|| {
            format!("the card has sent nothing for {} s; check its back-end on the host", TX_HANG_TIMEOUT.as_secs())
        })
    }
}

fn check(config: &PortConfig) -> Result<(), Error> {
    let PortConfig { queues, rx_ring, tx_ring, mtu, spread, .. } = *config;
    let ring = |size: usize| size.is_power_of_two() && (64..=32_768).contains(&size);
    let ensure = |right, otherwise| if right { Ok(()) } else { Err(Error::Config(otherwise)) };
    let rings = format!("rings of {rx_ring} and {tx_ring} descriptors; take a power of two, 64 to 32768");
    ensure(ring(rx_ring) && ring(tx_ring), rings)?;
    ensure((1..=128).contains(&queues), format!("{queues} queues; take 1 to 128"))?;
    ensure((68..=9710).contains(&mtu), format!("an MTU of {mtu}; take 68 to 9710"))?;
    ensure(spread == Spread::Hash || queues == 1, UNSTEERED.into())
}

const UNSTEERED: &str = "a virtio card spreads frames over its queues by itself and cannot be told how; use one queue";

/// Sums a counter over all queues.
fn sum(all: &[Arc<Counters>], field: fn(&Counters) -> &AtomicU64) -> u64 {
    all.iter().map(|counters| field(counters).load(Relaxed)).sum()
}

/// Returns the counters of queues.
fn stats_of(rx: &[Arc<Counters>], tx: &[Arc<Counters>]) -> Stats {
    Stats {
        rx_packets: sum(rx, |counters| &counters.packets),
        rx_bytes: sum(rx, |counters| &counters.bytes),
        rx_drops: sum(rx, |counters| &counters.drops),
        tx_packets: sum(tx, |counters| &counters.packets),
        tx_bytes: sum(tx, |counters| &counters.bytes),
        tx_drops: sum(tx, |counters| &counters.drops),
    }
}

/// Returns a random, locally administered MAC address.
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

    /// Returns the link's state. The speed is 0: for a card implemented in software it would mean nothing.
    fn link(&mut self) -> Link {
        let now = DeviceConfig::read(&mut **self.device.transport(), self.features);
        Link { up: self.gone.is_none() && now.is_ok_and(|now| now.link), mbps: 0 }
    }

    /// Returns the counters of the queues. The device does not report frames that found no buffer.
    fn stats(&mut self) -> Stats {
        stats_of(&self.rx, &self.tx)
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.rx.chunks(1).zip(self.tx.chunks(1)).map(|(rx, tx)| stats_of(rx, tx)).collect()
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        let doorbells = [&self.rx, &self.tx].map(|queues| sum(queues, |counters| &counters.doorbells));
        vec![
            ("doorbells", doorbells.iter().sum()),
            ("rx_ring_errors", sum(&self.rx, |counters| &counters.errors)),
            ("tx_ring_errors", sum(&self.tx, |counters| &counters.errors)),
        ]
    }

    /// Returns the port's state. A card that violated the protocol is reset, so that it stops accessing memory.
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

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        if self.features & CTRL_RX == 0 {
            return Err(Error::Unsupported(format!("{}: the card decides which addresses it receives for", self.name)));
        }
        self.command(Command::Promiscuous(on))
    }

    fn steer(&mut self, _: &Rule, _: usize) -> Result<(), Error> {
        Err(Error::Unsupported(format!("{}: {UNSTEERED}", self.name)))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
