//! The driver for Intel's 82599, X540 and X550.
//!
//! [`Ixgbe::open`] brings the card up in the datasheet's order (section 4.6), each step with its section. After that
//! the card is driven through descriptor rings alone: [`rx`] and [`tx`].

mod ring;
mod rx;
mod tx;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringpass_bus::{Bus, DeviceId};
use ringpass_memory::{Addressing, DmaRegion, Mempool, RegionConfig};
use ringpass_port::{Error, Link, MacAddress, Port, PortConfig, Queues, State, Stats};
use ringpass_registers::ixgbe::{bits::*, *};
use ringpass_registers::{Reg, Window};

use rx::RxRing;
use tx::TxRing;

/// How long the card may take for a reset, an enabled queue and the like.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a frame beyond its payload: Ethernet header and one VLAN tag.
const OVERHEAD: usize = 18;

/// The card's name, if this driver drives it.
pub fn supports(id: DeviceId) -> Option<&'static str> {
    MODELS.iter().find(|model| id.vendor == VENDOR && id.device == model.device).map(|model| model.name)
}

/// What the port and its queues share. The card stops when the last of them is dropped.
struct Device {
    window: Window,
    bus: Arc<dyn Bus>,
    /// Frames that the queues dropped for what the card said of them, and for their length.
    rx_faulty: AtomicU64,
    tx_refused: AtomicU64,
}

impl Device {
    /// Starts a queue, or stops it, and waits until the card says so (8.2.3.8.6, 8.2.3.9.10).
    fn enable(&self, control: Reg<ringpass_registers::RW>, bit: u32) -> Result<(), Error> {
        self.window.set(control, bit);
        self.window.wait(control, bit, bit, PATIENCE).map_err(card_error)
    }

    fn disable(&self, control: Reg<ringpass_registers::RW>, bit: u32) -> Result<(), Error> {
        self.window.clear(control, bit);
        self.window.wait(control, bit, 0, PATIENCE).map_err(card_error)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.window.clear(RXCTRL, RXCTRL_RXEN);
        let _ = self.bus.set_bus_master(false);
    }
}

fn card_error(timeout: ringpass_registers::Timeout) -> Error {
    Error::Other(format!("the card does not answer: {timeout}; reset it or power it off and on"))
}

/// A card of the family as a port.
pub struct Ixgbe {
    name: String,
    device: Arc<Device>,
    mac: MacAddress,
    stats: Stats,
    queues: Vec<Queues>,
    notes: Vec<String>,
}

impl Ixgbe {
    /// Resets the card, sets it up and starts its queues. 1 to 16 queues; rings of 64 to 4096 descriptors, a power of
    /// two; an MTU of 68 to 1500 bytes.
    ///
    /// Received packets are the pool's; so must be those that are sent, which the card is shown no other memory of.
    pub fn open(bus: Arc<dyn Bus>, name: &str, config: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        check(config)?;
        let window = bus.window();
        let device = Arc::new(Device { window, bus, rx_faulty: AtomicU64::new(0), tx_refused: AtomicU64::new(0) });
        let mut port = Self {
            name: name.to_owned(),
            device,
            mac: MacAddress::default(),
            stats: Stats::default(),
            queues: Vec::new(),
            notes: Vec::new(),
        };
        port.reset()?;
        port.init_link();
        port.stats(); // 4.6.5: reading clears them
        port.stats = Stats::default();
        port.init_rx(config);
        port.init_tx();
        port.start_queues(config, pool)?;
        port.set_promiscuous(config.promiscuous)?;
        Ok(port)
    }

    /// Section 4.6.3: interrupts off, reset, then wait for the EEPROM and for DMA.
    fn reset(&mut self) -> Result<(), Error> {
        let window = &self.device.window;
        window.write(EIMC, 0x7fff_ffff);
        window.write(CTRL, CTRL_RST | CTRL_LRST);
        window.wait(CTRL, CTRL_RST | CTRL_LRST, 0, PATIENCE).map_err(card_error)?;
        std::thread::sleep(Duration::from_millis(10)); // 4.6.3.2: before any other access
        window.write(EIMC, 0x7fff_ffff);
        window.wait(EEC, EEC_AUTO_RD, EEC_AUTO_RD, PATIENCE).map_err(card_error)?;
        window.wait(RDRXCTL, RDRXCTL_DMAIDONE, RDRXCTL_DMAIDONE, PATIENCE).map_err(card_error)?;
        let (low, high) = (window.read(RAL.at(0)).to_le_bytes(), window.read(RAH.at(0)).to_le_bytes());
        self.mac = MacAddress([low[0], low[1], low[2], low[3], high[0], high[1]]);
        Ok(())
    }

    /// Section 4.6.4: the link comes up by itself after a restart of the negotiation. The PHYs of X540 and X550 do
    /// without (X540 datasheet, 4.6.4).
    fn init_link(&self) {
        if supports(self.device.bus.id()).is_some_and(|name| name.starts_with("82599")) {
            self.device.window.set(AUTOC, AUTOC_AN_RESTART);
        }
    }

    /// Section 4.6.7. Receive stays off until the queues are set up.
    fn init_rx(&self, config: &PortConfig) {
        let window = &self.device.window;
        window.clear(RXCTRL, RXCTRL_RXEN);
        // 8.2.3.22.8, 8.2.3.8.8: the card strips the CRC; the other bits as the datasheet asks.
        window.set(HLREG0, HLREG0_RXCRCSTRP);
        window.clear(RDRXCTL, RDRXCTL_RSCFRSTSIZE);
        window.set(RDRXCTL, RDRXCTL_CRCSTRIP | RDRXCTL_RSCACKC | RDRXCTL_FCOE_WRFIX);
        window.set(FCTRL, FCTRL_BAM);
        if config.queues > 1 {
            self.init_rss(config.queues);
        }
    }

    /// Section 7.1.2.8: frames are spread over the queues by a hash of their addresses and ports. The repeating key
    /// (Woo and Park, 2012) gives both directions of a flow the same hash.
    fn init_rss(&self, queues: usize) {
        let window = &self.device.window;
        (0..10).for_each(|i| window.write(RSSRK.at(i), 0x5a6d_5a6d));
        for i in 0..32 {
            let entries = std::array::from_fn(|byte| ((i * 4 + byte) % queues) as u8);
            window.write(RETA.at(i), u32::from_le_bytes(entries));
        }
        let ipv4 = MRQC_RSS_IPV4 | MRQC_RSS_TCP_IPV4 | MRQC_RSS_UDP_IPV4;
        let ipv6 = MRQC_RSS_IPV6 | MRQC_RSS_TCP_IPV6 | MRQC_RSS_UDP_IPV6;
        window.write(MRQC, MRQC_MRQE_RSS | ipv4 | ipv6);
    }

    /// Section 4.6.8.
    fn init_tx(&self) {
        let window = &self.device.window;
        window.set(HLREG0, HLREG0_TXCRCEN | HLREG0_TXPADEN);
        window.write(DTXMXSZRQ, 0xffff); // 7.2.1.2.1: bytes requested at once; the largest value without DCB
        window.clear(RTTDCS, RTTDCS_ARBDIS);
        window.set(DMATXCTL, DMATXCTL_TE);
    }

    /// Sections 4.6.7.1 and 4.6.8.1: memory, then each queue.
    fn start_queues(&mut self, config: &PortConfig, pool: &Mempool) -> Result<(), Error> {
        let bus = &self.device.bus;
        // Rings are 1 to 64 KiB, powers of two, largest first: none straddles a huge page. Heads are written behind.
        let (rx, tx) = (config.rx_ring * 16, config.tx_ring * 16);
        let memory = RegionConfig { numa_node: bus.numa_node(), ..*pool.region().config() };
        if bus.addressing() == Addressing::Physical && memory.addressing != Addressing::Physical {
            return Err(ringpass_memory::Error::PhysicalOnOrdinaryPages.into());
        }
        let rings = DmaRegion::new(config.queues * (rx + tx + 64), &memory)?;
        bus.map(pool.region())?;
        bus.map(&rings)?;
        bus.set_bus_master(true)?;
        self.notes = vec![
            format!("{}, {}", supports(bus.id()).unwrap_or("unknown card"), bus.description()),
            format!(
                "{} queues, rings of {} and {} on {} pages",
                config.queues, config.rx_ring, config.tx_ring, memory.pages
            ),
        ];
        let align = rx.max(tx);
        for q in 0..config.queues {
            let (first, second) = (q * align, config.queues * align + q * rx.min(tx));
            let (rx_at, tx_at) = if rx >= tx { (first, second) } else { (second, first) };
            let head_at = config.head_write_back.then_some(config.queues * (rx + tx) + q * 64);
            self.queues.push(Queues {
                rx: Box::new(RxRing::start(&self.device, q, (&rings, rx_at), config, pool)?),
                tx: Box::new(TxRing::start(&self.device, q, (&rings, tx_at), config, head_at)?),
            });
        }
        self.device.window.set(RXCTRL, RXCTRL_RXEN);
        Ok(())
    }
}

fn check(config: &PortConfig) -> Result<(), Error> {
    let ring = |size: usize| size.is_power_of_two() && (64..=4096).contains(&size);
    let wrong = |what: String| Err(Error::Other(what));
    match config {
        _ if !ring(config.rx_ring) || !ring(config.tx_ring) => wrong(format!(
            "rings of {} and {} descriptors; take a power of two, 64 to 4096",
            config.rx_ring, config.tx_ring
        )),
        _ if !(1..=16).contains(&config.queues) => wrong(format!("{} queues; the card has 1 to 16", config.queues)),
        _ if !(68..=1500).contains(&config.mtu) => wrong(format!("an MTU of {}; take 68 to 1500", config.mtu)),
        _ => Ok(()),
    }
}

impl Port for Ixgbe {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
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
    /// the CRC that the card appends.
    fn stats(&mut self) -> Stats {
        let window = &self.device.window;
        let read = |reg| u64::from(window.read(reg));
        self.stats.rx_packets += read(QPRC.at(0));
        self.stats.rx_bytes += read(QBRC_L.at(0)) + (read(QBRC_H.at(0)) << 32);
        self.stats.rx_drops += (0..8).map(|buffer| read(MPC.at(buffer))).sum::<u64>() + read(QPRDC.at(0));
        self.stats.rx_drops += [CRCERRS, ILLERRC, ERRBC, RLEC, RUC, ROC].map(read).iter().sum::<u64>();
        let sent = read(GPTC);
        self.stats.tx_packets += sent;
        self.stats.tx_bytes += read(GOTCL) + (read(GOTCH) << 32) - 4 * sent;
        let faulty = self.device.rx_faulty.load(Ordering::Relaxed);
        let refused = self.device.tx_refused.load(Ordering::Relaxed);
        Stats { rx_drops: self.stats.rx_drops + faulty, tx_drops: refused, ..self.stats }
    }

    fn state(&mut self) -> State {
        match self.device.window.read(STATUS) {
            u32::MAX => State::Gone(format!("{}: the card is gone; its registers read as ones", self.name)),
            _ => State::Running,
        }
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        match on {
            true => self.device.window.set(FCTRL, FCTRL_UPE | FCTRL_MPE),
            false => self.device.window.clear(FCTRL, FCTRL_UPE | FCTRL_MPE),
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
