//! The driver for Intel's 82599, X540 and X550.
//!
//! [`Ixgbe::open`] brings the card up in the datasheet's order (section 4.6), each step with its section. After that
//! the card is driven through descriptor rings alone: `rx` and `tx` of [`ringpass_intel`].

mod head_write_back;
mod interrupt;
mod queue;
mod rss;
mod rx_offload;
mod steering;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringpass_bus::{Bus, DeviceId};
use ringpass_intel::{Device, Hang, check, ring_memory};
use ringpass_memory::Mempool;
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, Rule, State, Stats};
use ringpass_registers::Window;
use ringpass_registers::ixgbe::{bits::*, *};

use steering::Steering;

/// The card's name, if this driver drives it.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    MODELS.iter().find(|(_, ids)| id.vendor == VENDOR && ids.contains(&id.device)).map(|&(name, _)| name)
}

/// Section 4.6.3: interrupts off, reset, then wait for the EEPROM and for DMA.
fn reset(device: &Device) -> Result<(), Error> {
    device.window.write(EIMC, 0x7fff_ffff);
    device.window.write(CTRL, CTRL_RST | CTRL_LRST);
    device.wait(CTRL, CTRL_RST | CTRL_LRST, 0)?;
    std::thread::sleep(Duration::from_millis(10)); // 4.6.3.2: before any other access
    device.window.write(EIMC, 0x7fff_ffff);
    device.wait(EEC, EEC_AUTO_RD, EEC_AUTO_RD)?;
    device.wait(RDRXCTL, RDRXCTL_DMAIDONE, RDRXCTL_DMAIDONE)
}

/// Section 4.6.4: the link comes up by itself after a restart of the negotiation. The PHYs of X540 and X550 do without
/// (X540 datasheet, 4.6.4).
fn init_link(device: &Device) {
    if supports(device.bus.id()) == Some("82599") {
        device.window.set(AUTOC, AUTOC_AN_RESTART);
    }
}

/// Section 4.6.7. Receive stays off until the queues are set up.
fn init_rx(window: &Window, config: &PortConfig) {
    window.clear(RXCTRL, RXCTRL_RXEN);
    // 8.2.3.22.8, 8.2.3.8.8: the card strips the CRC; the other bits as the datasheet asks.
    window.set(HLREG0, HLREG0_RXCRCSTRP);
    window.clear(RDRXCTL, RDRXCTL_RSCFRSTSIZE);
    window.set(RDRXCTL, RDRXCTL_CRCSTRIP | RDRXCTL_RSCACKC | RDRXCTL_FCOE_WRFIX);
    window.set(FCTRL, FCTRL_BAM);
    rx_offload::enable(window, config);
}

/// Section 4.6.8.
fn init_tx(window: &Window) {
    window.set(HLREG0, HLREG0_TXCRCEN | HLREG0_TXPADEN);
    window.write(DTXMXSZRQ, 0xffff); // 7.2.1.2.1: bytes requested at once; the largest value without DCB
    window.clear(RTTDCS, RTTDCS_ARBDIS);
    window.set(DMATXCTL, DMATXCTL_TE);
}

/// A card of the family as a port.
pub struct Ixgbe {
    name: String,
    device: Arc<Device>,
    stats: Stats,
    queues: Vec<Queues>,
    notes: Vec<String>,
    steering: Steering,
}

impl Ixgbe {
    /// Resets the card, sets it up and starts its queues. 1 to 16 queues; rings of 64 to 4096 descriptors, a power of
    /// two; an MTU of 68 to 9710 bytes.
    ///
    /// Received packets are the pool's; so must be those that are sent, which the card is shown no other memory of.
    pub fn open(bus: Arc<dyn Bus>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        check(config, 9710)?;
        let device = Device::new(bus, rx_offload::ERRORS, |window| window.clear(RXCTRL, RXCTRL_RXEN))?;
        reset(&device)?;
        init_link(&device);
        init_rx(&device.window, config);
        init_tx(&device.window);
        let (stats, queues, notes) = Default::default();
        let steering = Steering::start(&device.window, config);
        let mut port = Self { name: name.to_owned(), device, stats, queues, notes, steering };
        port.stats(); // 4.6.5: reading clears them
        port.stats = Stats::default();
        port.start_queues(config, pool)?;
        port.set_promiscuous(config.promiscuous)?;
        Ok(port)
    }

    /// Sections 4.6.7.1 and 4.6.8.1: memory, then each queue.
    fn start_queues(&mut self, config: &PortConfig, pool: &Mempool) -> Result<(), Error> {
        let PortConfig { queues, rx_ring, tx_ring, .. } = *config;
        let (device, bus) = (&self.device, &self.device.bus);
        let memory = ring_memory(&**bus, config, pool)?;
        let (mut interrupts, waiting) = interrupt::enable(&**bus, queues)?;
        for (q, memory) in memory.into_iter().enumerate() {
            let (q, setup) = (self.steering.card_queue(q), (device, config, pool));
            self.queues.push(queue::start(q, memory, setup, interrupts.next())?);
        }
        device.window.set(RXCTRL, RXCTRL_RXEN);
        let (model, pages) = (supports(bus.id()).unwrap_or("unknown card"), pool.region().config().pages);
        self.notes.push(format!("{model}, {}, {waiting}", bus.description()));
        self.notes.push(format!("{queues} queues, rings of {rx_ring} and {tx_ring} on {pages} pages"));
        Ok(())
    }
}

impl Port for Ixgbe {
    fn name(&self) -> &str {
        &self.name
    }

    /// The first receive address is loaded from the EEPROM by a reset (4.6.3).
    fn mac(&self) -> MacAddress {
        let [a, b, c, d] = self.device.window.read(RAL.at(0)).to_le_bytes();
        let [e, f, ..] = self.device.window.read(RAH.at(0)).to_le_bytes();
        MacAddress([a, b, c, d, e, f])
    }

    fn link(&mut self) -> Link {
        let links = self.device.window.read(LINKS);
        let mbps = match links & LINKS_SPEED_MASK {
            LINKS_SPEED_10G => 10_000,
            LINKS_SPEED_1G => 1_000,
            LINKS_SPEED_100M => 100,
            _ => 0,
        };
        Link { up: links & LINKS_UP != 0, mbps }
    }

    /// Section 8.2.3.23. Every counter clears when read, so they are added up here; the 32-bit ones wrap after 288 s at
    /// line rate, so ask more often. Queue counters count what reached memory, without the stripped CRC; `GOTC` counts
    /// the CRC that the card appends. Of a card that is gone the last counts stay.
    fn stats(&mut self) -> Stats {
        if self.device.window.read(STATUS) == u32::MAX {
            return self.stats;
        }
        let (device, stats) = (&self.device, &mut self.stats);
        let read = |reg| u64::from(device.window.read(reg));
        stats.rx_packets += read(QPRC.at(0));
        stats.rx_bytes += read(QBRC_L.at(0)) + (read(QBRC_H.at(0)) << 32);
        stats.rx_drops += (0..8).map(|buffer| read(MPC.at(buffer))).sum::<u64>() + read(QPRDC.at(0));
        stats.rx_drops += [CRCERRS, ILLERRC, ERRBC, RLEC, RUC, ROC].map(read).iter().sum::<u64>();
        let sent = read(GPTC);
        stats.tx_packets += sent;
        // From the sum: a frame that left between these reads has its octets in this round, and its count in the next.
        let octets = stats.tx_bytes + read(GOTCL) + (read(GOTCH) << 32);
        stats.tx_bytes = octets.saturating_sub(4 * sent);
        stats.rx_drops += device.rx_faulty.swap(0, Ordering::Relaxed);
        stats.tx_drops += device.tx_refused.swap(0, Ordering::Relaxed);
        *stats
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
        let (window, modes) = (&self.device.window, FCTRL_UPE | FCTRL_MPE);
        if on {
            window.set(FCTRL, modes)
        } else {
            window.clear(FCTRL, modes)
        }
        Ok(())
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.steering.add(&self.device.window, rule, queue)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
