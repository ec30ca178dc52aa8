//! The driver for Intel's 82599, X540 and X550: their registers, and the steps of their datasheet.
//!
//! The card is initialised in the datasheet's order (section 4.6), and each step names its section. The rest is
//! shared with other cards, see [`IntelPort`].

mod counters;
mod steering;

use std::time::Duration;

use ringpass_pci::registers::ixgbe::{bits::*, descriptor::*, *};
use ringpass_pci::registers::{RW, Reg, Window};
use ringpass_port::{Error, Link, PortConfig, Rule, Spread, Stats};

use crate::device::{Device, RxErrors};
use crate::family::{Family, Registers, RingRegisters};
use crate::port::IntelPort;
use crate::rss;
use steering::Steering;

/// A port on an 82599, X540 or X550. The largest MTU is 9710 bytes.
pub type Ixgbe = IntelPort<Family82599>;

/// Shortest time between two interrupts of a queue (8.2.3.5.12): 10 steps of 2 µs.
const THROTTLE: u32 = 10 << 3;

/// An 82599, X540 or X550.
pub struct Family82599 {
    steering: Steering,
}

impl Family for Family82599 {
    const MODELS: &'static [(&'static str, &'static [u16])] = MODELS;
    const MAX_MTU: usize = 9710;
    const STEERS: bool = true;
    const COUNTS_QUEUES: bool = true;
    const REGISTERS: Registers = Registers {
        status: STATUS,
        receive_address: [RAL, RAH],
        promiscuous: (FCTRL, FCTRL_UPE | FCTRL_MPE),
        rx: RingRegisters { base: [RDBAL, RDBAH], len: RDLEN, head: RDH, tail: RDT, control: RXDCTL },
        tx: RingRegisters { base: [TDBAL, TDBAH], len: TDLEN, head: TDH, tail: TDT, control: TXDCTL },
        head_write_back: [TDWBAL, TDWBAH],
        rss_key: RSSRK,
        rss_queues: RETA,
        rss_mode: (
            MRQC,
            MRQC_MRQE_RSS
                | (MRQC_RSS_IPV4 | MRQC_RSS_TCP_IPV4 | MRQC_RSS_UDP_IPV4)
                | (MRQC_RSS_IPV6 | MRQC_RSS_TCP_IPV6 | MRQC_RSS_UDP_IPV6),
        ),
        interrupt_mode: (GPIE, GPIE_MSIX_MODE | GPIE_PBA_SUPPORT | GPIE_OCD | GPIE_EIAME),
        auto_clear: EIAC,
        auto_mask: EIAM,
        unmask: EIMS,
        mask: EIMC,
        throttle: (EITR, THROTTLE),
    };
    /// Error bits of the 82599's descriptors (7.1.6.2).
    const RX_ERRORS: RxErrors = RxErrors { mac: RX_RXE, l3: RX_IPE, l4: RX_L4E };

    fn init(device: &Device, config: &PortConfig) -> Result<Self, Error> {
        reset(device)?;
        init_link(device);
        init_rx(&device.window, config);
        init_tx(&device.window);
        let steering = Steering::start(&device.window, config);
        if config.spread == Spread::Hash && (config.queues > 1 || config.offloads.hash) {
            rss::spread(&device.window, &Self::REGISTERS, config.queues);
        }
        counters::start(&device.window, (0..config.queues).map(|queue| steering.hw_queue(queue)));
        Ok(Self { steering })
    }

    fn hw_queue(&self, queue: usize) -> usize {
        self.steering.hw_queue(queue)
    }

    fn set_up_rx(window: &Window, q: usize, kib: u32, config: &PortConfig) {
        // 8.2.3.8.7: buffer size in KiB. A queue without free descriptors drops frames instead of blocking the
        // others.
        window.write(SRRCTL.at(q), SRRCTL_DESCTYPE_ADV_ONEBUF | SRRCTL_DROP_EN | kib & SRRCTL_BSIZEPACKET);
        if config.offloads.vlan {
            window.set(RXDCTL.at(q), RXDCTL_VME); // 8.2.3.8.6: the tag goes to the descriptor
        }
    }

    /// Returns the entry in IVAR (8.2.3.5.16: four entries per register; the even ones are Rx).
    fn rx_route(q: usize) -> (Reg<RW>, u32) {
        (IVAR.at(q / 2), q as u32 % 2 * 16)
    }

    fn set_up_tx(window: &Window, q: usize) {
        // 8.2.3.9.10: prefetch and host thresholds of 36 and 8 descriptors. Write-back is immediate (WTHRESH 0),
        // because reports are requested rarely.
        window.write(TXDCTL.at(q), 36 | 8 << 8);
    }

    /// Enables reception as the last step of its setup (4.6.7).
    fn enable_rx(window: &Window) {
        window.set(RXCTRL, RXCTRL_RXEN);
    }

    fn link(window: &Window) -> Link {
        let links = window.read(LINKS);
        let mbps = match links & LINKS_SPEED_MASK {
            LINKS_SPEED_10G => 10_000,
            LINKS_SPEED_1G => 1_000,
            LINKS_SPEED_100M => 100,
            _ => 0,
        };
        Link { up: links & LINKS_UP != 0, mbps }
    }

    fn count(&mut self, window: &Window, stats: &mut Stats, queues: &mut [Stats]) {
        counters::count(window, stats, queues);
    }

    fn steer(&mut self, window: &Window, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.steering.add(window, rule, queue)
    }

    fn stop(window: &Window) {
        window.clear(RXCTRL, RXCTRL_RXEN);
    }
}

/// Resets the card (4.6.3): masks interrupts, resets, then waits for the EEPROM and for DMA initialisation.
fn reset(device: &Device) -> Result<(), Error> {
    device.window.write(EIMC, 0x7fff_ffff);
    device.window.write(CTRL, CTRL_RST | CTRL_LRST);
    device.wait(CTRL, CTRL_RST | CTRL_LRST, 0)?;
    std::thread::sleep(Duration::from_millis(10)); // 4.6.3.2: before any other access
    device.window.write(EIMC, 0x7fff_ffff);
    device.wait(EEC, EEC_AUTO_RD, EEC_AUTO_RD)?;
    device.wait(RDRXCTL, RDRXCTL_DMAIDONE, RDRXCTL_DMAIDONE)
}

/// Restarts link negotiation (4.6.4), after which the link comes up without further help. The PHYs of X540 and
/// X550 need no restart (X540 datasheet, 4.6.4).
fn init_link(device: &Device) {
    if Ixgbe::supports(device.bus.id()) == Some("82599") {
        device.window.set(AUTOC, AUTOC_AN_RESTART);
    }
}

/// Sets up reception (4.6.7). It stays disabled until the queues are set up.
fn init_rx(window: &Window, config: &PortConfig) {
    window.clear(RXCTRL, RXCTRL_RXEN);
    // 8.2.3.22.8, 8.2.3.8.8: the card strips the CRC; the other bits are set as the datasheet requires.
    window.set(HLREG0, HLREG0_RXCRCSTRP);
    window.clear(RDRXCTL, RDRXCTL_RSCFRSTSIZE);
    window.set(RDRXCTL, RDRXCTL_CRCSTRIP | RDRXCTL_RSCACKC | RDRXCTL_FCOE_WRFIX);
    window.set(FCTRL, FCTRL_BAM);
    // 8.2.3.22.13: longest frame with its CRC. The card itself allows 4 more bytes for a VLAN tag.
    if config.mtu > 1500 {
        window.write(MAXFRS, ((config.mtu + 18) << 16) as u32);
        window.set(HLREG0, HLREG0_JUMBOEN);
    }
    // 8.2.3.7.5: report the RSS hash instead of the checksum of fragments.
    if config.offloads.any() {
        window.set(RXCSUM, RXCSUM_PCSD | RXCSUM_IPPCSE);
    }
}

/// Sets up transmission (4.6.8).
fn init_tx(window: &Window) {
    window.set(HLREG0, HLREG0_TXCRCEN | HLREG0_TXPADEN);
    window.write(DTXMXSZRQ, 0xffff); // 7.2.1.2.1: bytes requested at once; the largest value without DCB
    window.clear(RTTDCS, RTTDCS_ARBDIS);
    window.set(DMATXCTL, DMATXCTL_TE);
}
