//! The driver for Intel's 82576, a card of 1 Gbit/s that QEMU plays too (`-device igb`).
//!
//! [`Igb::open`] brings the card up in the datasheet's order (section 4.5), each step with its section. After that the card
//! is driven through the descriptor rings that it has in common with the 82599: [`ringpass_intel`].

mod counters;
mod interrupt;
mod link;
mod offload;
mod queue;
mod rss;

use std::sync::Arc;
use std::time::Duration;

use ringpass_bus::{Bus, DeviceId};
use ringpass_intel::{Device, Hang, check, ring_memory};
use ringpass_memory::{Mempool, PageSize};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, Spread, State, Stats};
use ringpass_registers::Window;
use ringpass_registers::igb::{bits::*, *};

use counters::Counters;

/// The largest frame is 9216 bytes long, with its header and CRC.
const LARGEST_MTU: usize = 9198;

/// The card's name, if this driver drives it.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    MODELS.iter().find(|(_, ids)| id.vendor == VENDOR && ids.contains(&id.device)).map(|&(name, _)| name)
}

/// Sections 4.5.4 and 4.2.1.6.1: interrupts off, no more requests over PCIe, reset, then wait for the EEPROM.
fn reset(device: &Device) -> Result<(), Error> {
    let window = &device.window;
    mask_interrupts(window);
    stop(window);
    window.set(CTRL, CTRL_GIO_MASTER_DISABLE);
    // If requests stay outstanding the reset ends them.
    let _ = window.wait(STATUS, STATUS_GIO_MASTER_ENABLE, 0, Duration::from_millis(80));
    window.set(CTRL, CTRL_RST);
    std::thread::sleep(Duration::from_millis(10)); // at least 1 before any other access
    device.wait(CTRL, CTRL_RST, 0)?;
    // Never said by a card without an EEPROM, nor by QEMU's.
    let _ = window.wait(EECD, EECD_AUTO_RD, EECD_AUTO_RD, Duration::from_millis(20));
    mask_interrupts(window);
    Ok(())
}

fn mask_interrupts(window: &Window) {
    window.write(EIMC, u32::MAX);
    window.write(IMC, u32::MAX);
}

/// What ends reception and transmission.
fn stop(window: &Window) {
    window.clear(RCTL, RCTL_RXEN);
    window.clear(TCTL, TCTL_EN);
}

/// Section 4.5.9. All queues are off, so nothing is received yet; but none starts before this (8.10.10).
fn init_rx(window: &Window, config: &PortConfig) {
    (0..QUEUES).for_each(|q| window.clear(RXDCTL.at(q), RXDCTL_ENABLE)); // a reset leaves the first one on
    offload::enable(window, config);
    if config.queues > 1 || config.offloads.hash {
        rss::spread(window, config.queues);
    }
    window.set(RCTL, RCTL_SECRC | RCTL_BAM | RCTL_RXEN);
}

/// Section 4.5.10. No queue starts before this (8.12.13).
fn init_tx(window: &Window) {
    (0..QUEUES).for_each(|q| window.clear(TXDCTL.at(q), TXDCTL_ENABLE));
    window.set(TCTL, TCTL_PSP | TCTL_EN);
}

/// A card of the family as a port.
pub struct Igb {
    name: String,
    device: Arc<Device>,
    counters: Counters,
    queues: Vec<Queues>,
    notes: Vec<String>,
}

impl Igb {
    /// Resets the card, sets it up and starts its queues. 1 to 16 queues; rings of 64 to 4096 descriptors, a power of
    /// two; an MTU of 68 to 9198 bytes.
    ///
    /// Received packets are the pool's; so must be those that are sent, which the card is shown no other memory of.
    pub fn open(bus: Arc<dyn Bus>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        check(config, LARGEST_MTU)?;
        if config.spread != Spread::Hash {
            return Err(Error::Other(format!(
                "{name}: this driver does not steer an 82576's frames; take --spread hash"
            )));
        }
        let device = Device::new(bus, offload::ERRORS, stop)?;
        reset(&device)?;
        link::init(&device)?;
        init_rx(&device.window, config);
        init_tx(&device.window);
        let (counters, queues, notes) = Default::default();
        let mut port = Self { name: name.to_owned(), device, counters, queues, notes };
        port.counters.clear(&port.device); // 4.5.8
        port.set_promiscuous(config.promiscuous)?;
        port.start_queues(config, pool)?;
        Ok(port)
    }

    fn start_queues(&mut self, config: &PortConfig, pool: &Mempool) -> Result<(), Error> {
        let PortConfig { queues, rx_ring, tx_ring, .. } = *config;
        let (device, bus) = (&self.device, &self.device.bus);
        let memory = ring_memory(&**bus, config, pool)?;
        let (mut interrupts, waiting) = interrupt::enable(&**bus, queues)?;
        for (q, memory) in memory.into_iter().enumerate() {
            self.queues.push(queue::start(q, memory, (device, config, pool), interrupts.next())?);
        }
        let (model, pages) = (supports(bus.id()).unwrap_or("unknown card"), pool.region().config().pages);
        self.notes.push(format!("{model}, {}, {waiting}", bus.description()));
        self.notes.push(format!("{queues} queues, rings of {rx_ring} and {tx_ring} on {pages} pages"));
        if bus.behind_iommu() && pages == PageSize::Ordinary {
            let why = "behind an IOMMU QEMU's card drops frames to be sent that straddle ordinary pages";
            self.notes.push(format!("{why}; in a guest take --hugepages on"));
        }
        Ok(())
    }
}

impl Port for Igb {
    fn name(&self) -> &str {
        &self.name
    }

    /// The first receive address is loaded from the EEPROM by a reset.
    fn mac(&self) -> MacAddress {
        let [a, b, c, d] = self.device.window.read(RAL.at(0)).to_le_bytes();
        let [e, f, ..] = self.device.window.read(RAH.at(0)).to_le_bytes();
        MacAddress([a, b, c, d, e, f])
    }

    fn link(&mut self) -> Link {
        link::state(&self.device.window)
    }

    fn stats(&mut self) -> Stats {
        self.counters.stats(&self.device)
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        self.counters.extended(&self.device)
    }

    fn state(&mut self) -> State {
        match (self.device.window.read(STATUS), self.link().up) {
            (u32::MAX, _) => State::Gone(format!("{}: the card is gone; its registers read as ones", self.name)),
            (_, link) if self.device.hang.seen(link) => State::Gone(Hang::report(&self.name)),
            _ => State::Running,
        }
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        let (window, modes) = (&self.device.window, RCTL_UPE | RCTL_MPE);
        if on {
            window.set(RCTL, modes)
        } else {
            window.clear(RCTL, modes)
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
