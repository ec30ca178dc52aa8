//! The driver for Intel's 82576, a 1 Gbit/s card that QEMU emulates too (`-device igb`): its registers, and the steps
//! of its datasheet.
//!
//! The card is initialised in the datasheet's order (section 4.5), and each step names its section. The rest is
//! shared with other cards, see [`IntelPort`]. Descriptors are the 82599's but for the error bits.

mod counters;
mod link;

use std::time::Duration;

use ringpass_pci::PciDevice;
use ringpass_pci::registers::igb::{bits::*, descriptor::*, *};
use ringpass_pci::registers::{RW, Reg, Window};
use ringpass_port::{Error, Link, PortConfig, Stats};

use crate::device::{Device, RxErrors};
use crate::family::{Family, Registers, RingRegisters};
use crate::frame::OVERHEAD;
use crate::port::IntelPort;
use crate::rss;
use counters::Counters;

/// A port on an 82576. The largest MTU is 9198 bytes.
pub type Igb = IntelPort<Family82576>;

/// Shortest time between two interrupts of a queue, in steps of 1 µs from bit 2 on (8.8).
const THROTTLE: u32 = 20 << 2;

/// An 82576.
pub struct Family82576 {
    counters: Counters,
}

impl Family for Family82576 {
    const MODELS: &'static [(&'static str, &'static [u16])] = MODELS;
    /// Largest MTU: the longest frame has 9216 bytes, with header and CRC.
    const MAX_MTU: usize = 9198;
    const STEERS: bool = false;
    const COUNTS_QUEUES: bool = false;
    const REGISTERS: Registers = Registers {
        status: STATUS,
        receive_address: [RAL, RAH],
        promiscuous: (RCTL, RCTL_UPE | RCTL_MPE),
        rx: RingRegisters { base: [RDBAL, RDBAH], len: RDLEN, head: RDH, tail: RDT, control: RXDCTL },
        tx: RingRegisters { base: [TDBAL, TDBAH], len: TDLEN, head: TDH, tail: TDT, control: TXDCTL },
        head_write_back: [TDWBAL, TDWBAH],
        rss_key: RSSRK,
        rss_queues: RETA,
        rss_mode: (
            MRQC,
            MRQC_RSS
                | (MRQC_RSS_IPV4 | MRQC_RSS_TCP_IPV4 | MRQC_RSS_UDP_IPV4)
                | (MRQC_RSS_IPV6 | MRQC_RSS_TCP_IPV6 | MRQC_RSS_UDP_IPV6),
        ),
        interrupt_mode: (GPIE, GPIE_MSIX_MODE | GPIE_PBA_SUPPORT | GPIE_EIAME),
        auto_clear: EIAC,
        auto_mask: EIAM,
        unmask: EIMS,
        mask: EIMC,
        throttle: (EITR, THROTTLE),
    };
    /// Error bits of the 82576's descriptors (7.1.5.2).
    const RX_ERRORS: RxErrors = RxErrors { mac: RX_RXE, l3: RX_IPE, l4: RX_L4E };

    fn init(device: &Device, config: &PortConfig) -> Result<Self, Error> {
        reset(device)?;
        link::init(device)?;
        init_rx(&device.window, config);
        init_tx(&device.window);
        Ok(Self { counters: Counters::start(&device.window) }) // 4.5.8
    }

    fn set_up_rx(window: &Window, q: usize, kib: u32, _: &PortConfig) {
        // 8.10.2: buffer size in KiB. A queue without free descriptors drops frames instead of blocking the others.
        window.write(SRRCTL.at(q), SRRCTL_DESCTYPE_ADV_ONEBUF | SRRCTL_DROP_EN | kib & SRRCTL_BSIZEPACKET);
        // 8.10.10: prefetch and host thresholds of 8 descriptors each; every descriptor is written back at once.
        window.write(RXDCTL.at(q), 8 | 8 << 8 | 1 << 16);
    }

    /// Returns the entry in IVAR (8.8.13: a register has the Rx and Tx causes of a queue, then those of the queue with
    /// a number higher by 8).
    fn rx_route(q: usize) -> (Reg<RW>, u32) {
        (IVAR.at(q % 8), q as u32 / 8 * 16)
    }

    fn set_up_tx(window: &Window, q: usize) {
        // 8.12.13: prefetch and host thresholds of 8 and 1 descriptors. Write-back is immediate (WTHRESH 0),
        // because reports are requested rarely.
        window.write(TXDCTL.at(q), 8 | 1 << 8);
    }

    fn note(bus: &dyn PciDevice, ordinary: bool) -> Option<String> {
        let why = "behind an IOMMU QEMU's card drops frames to be sent that straddle ordinary pages";
        (bus.behind_iommu() && ordinary).then(|| format!("{why}; in a guest take --hugepages on"))
    }

    fn link(window: &Window) -> Link {
        link::state(window)
    }

    fn count(&mut self, window: &Window, stats: &mut Stats, _: &mut [Stats]) {
        self.counters.count(window, stats);
    }

    fn extended(&self) -> Vec<(&'static str, u64)> {
        self.counters.extended()
    }

    /// Ends reception and transmission.
    fn stop(window: &Window) {
        window.clear(RCTL, RCTL_RXEN);
        window.clear(TCTL, TCTL_EN);
    }
}

/// Resets the card (4.5.4, 4.2.1.6.1): masks interrupts, ends PCIe requests, resets, then waits for the EEPROM.
fn reset(device: &Device) -> Result<(), Error> {
    let window = &device.window;
    mask_interrupts(window);
    Family82576::stop(window);
    window.set(CTRL, CTRL_GIO_MASTER_DISABLE);
    // The reset ends requests that are still outstanding.
    let _ = window.wait(STATUS, STATUS_GIO_MASTER_ENABLE, 0, Duration::from_millis(80));
    window.set(CTRL, CTRL_RST);
    std::thread::sleep(Duration::from_millis(10)); // at least 1 ms before any other access
    device.wait(CTRL, CTRL_RST, 0)?;
    // A card without an EEPROM never sets this bit, nor does QEMU's, so a timeout is no error.
    let _ = window.wait(EECD, EECD_AUTO_RD, EECD_AUTO_RD, Duration::from_millis(20));
    mask_interrupts(window);
    Ok(())
}

fn mask_interrupts(window: &Window) {
    window.write(EIMC, u32::MAX);
    window.write(IMC, u32::MAX);
}

/// Sets up reception (4.5.9). All queues are off, so nothing is received yet; no queue can start before this
/// (8.10.10).
fn init_rx(window: &Window, config: &PortConfig) {
    (0..QUEUES).for_each(|q| window.clear(RXDCTL.at(q), RXDCTL_ENABLE)); // a reset leaves the first one on
    // 8.10: the limit includes the CRC and the VLAN tag.
    if config.mtu > 1500 {
        window.write(RLPML, (config.mtu + OVERHEAD + 4) as u32);
        window.set(RCTL, RCTL_LPE);
    }
    // SCTP checksums stay off: the card gets them wrong for the shortest frames (Linux's igb,
    // `igb_rx_checksum`). With PCSD the descriptor has the RSS hash in place of a checksum.
    window.write(RXCSUM, RXCSUM_IPOFLD | RXCSUM_TUOFLD | RXCSUM_PCSD);
    if config.offloads.vlan {
        window.set(CTRL, CTRL_VME);
    }
    if config.queues > 1 || config.offloads.hash {
        rss::spread(window, &Family82576::REGISTERS, config.queues);
    }
    window.set(RCTL, RCTL_SECRC | RCTL_BAM | RCTL_RXEN);
}

/// Sets up transmission (4.5.10). No queue can start before this (8.12.13).
fn init_tx(window: &Window) {
    (0..QUEUES).for_each(|q| window.clear(TXDCTL.at(q), TXDCTL_ENABLE));
    window.set(TCTL, TCTL_PSP | TCTL_EN);
}
