//! A fake card: registers that answer as the driver expects, and descriptors that a test writes back by hand,
//! correctly or not. Correct behaviour is tested with the model and with QEMU's card; this is for what no correct
//! card does.

#![allow(dead_code)] // Each test file uses a part of this module.

pub mod posted;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ringpass_intel::igb::Igb;
use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::{Addressing, DmaRegion, Mempool};
use ringpass_pci::registers::igb::{self, bits as igb_bits, descriptor as igb_descriptor};
use ringpass_pci::registers::ixgbe::{self, bits as ixgbe_bits, descriptor as ixgbe_descriptor};
use ringpass_pci::registers::{Bar, Window};
use ringpass_pci::{DeviceId, EventWaiter, PciDevice};
use ringpass_port::{Error, Port, PortConfig};
use rustix::event::{EventfdFlags, eventfd};

/// Value that the PHY's control register of an 82576 reads: 1000 Mbit/s, full duplex.
pub const PHY_CONTROL: u32 = 0x0140;
/// Value of the 82576's STATUS with a link of 1000 Mbit/s.
pub const IGB_LINK_UP: u32 = igb_bits::STATUS_LU | 0x80;

/// Opens a card with its driver.
type Driver = fn(Arc<dyn PciDevice>, &PortConfig, &Mempool) -> Result<Box<dyn Port>, Error>;

/// A kind of card: its driver, and what the tests must know of its registers. Registers are given by offset, those
/// of queues by that of queue 0.
pub struct Kind {
    pub name: &'static str,
    /// Set if the driver may use vector instructions.
    vector: bool,
    device: u16,
    driver: Driver,
    /// Registers that read as a value other than what was written.
    stuck: &'static [(u32, u32)],
    pub status: u32,
    /// The register with the state of the link, and its value with a link.
    pub link: (u32, u32),
    pub mbps: u32,
    pub max_mtu: usize,
    rdbal: u32,
    pub rdlen: u32,
    pub rdt: u32,
    pub rxdctl: u32,
    tdbal: u32,
    pub tdt: u32,
    pub txdctl: u32,
    pub tdwbal: u32,
    pub tdwbah: u32,
    /// Bits of a received frame's errors: of the MAC, in the IPv4 checksum, in the TCP or UDP checksum.
    pub rx_errors: [u64; 3],
    /// Counters of received packets and octets (low, high), then of sent ones.
    pub counters: [u32; 6],
    /// Whether reading the low half of octets clears it.
    pub octets_clear: bool,
    /// Values with which a register keeps the card from getting ready, and the register's name.
    pub never_ready: &'static [(u32, u32, &'static str)],
}

pub static IXGBE: Kind = IXGBE_CARD;
pub static IXGBE_WITHOUT_VECTORS: Kind =
    Kind { name: "ixgbe, without vector instructions", vector: false, ..IXGBE_CARD };
const IXGBE_CARD: Kind = Kind {
    name: "ixgbe",
    vector: true,
    device: 0x10fb,
    driver: |bus, config, pool| Ok(Box::new(Ixgbe::open(bus, "straw", config, pool)?)),
    stuck: &[
        (ixgbe::CTRL.offset, 0),
        (ixgbe::EEC.offset, ixgbe_bits::EEC_PRES | ixgbe_bits::EEC_AUTO_RD),
        (ixgbe::RDRXCTL.offset, ixgbe_bits::RDRXCTL_DMAIDONE),
        (ixgbe::RAL.at(0).offset, u32::from_le_bytes([2, 0, 0, 1])),
        (ixgbe::RAH.at(0).offset, ixgbe_bits::RAH_AV | u16::from_le_bytes([2, 3]) as u32),
        (ixgbe::LINKS.offset, ixgbe_bits::LINKS_UP | ixgbe_bits::LINKS_SPEED_10G),
    ],
    status: ixgbe::STATUS.offset,
    link: (ixgbe::LINKS.offset, ixgbe_bits::LINKS_UP | ixgbe_bits::LINKS_SPEED_10G),
    mbps: 10_000,
    max_mtu: 9710,
    rdbal: ixgbe::RDBAL.at(0).offset,
    rdlen: ixgbe::RDLEN.at(0).offset,
    rdt: ixgbe::RDT.at(0).offset,
    rxdctl: ixgbe::RXDCTL.at(0).offset,
    tdbal: ixgbe::TDBAL.at(0).offset,
    tdt: ixgbe::TDT.at(0).offset,
    txdctl: ixgbe::TXDCTL.at(0).offset,
    tdwbal: ixgbe::TDWBAL.at(0).offset,
    tdwbah: ixgbe::TDWBAH.at(0).offset,
    rx_errors: [ixgbe_descriptor::RX_RXE, ixgbe_descriptor::RX_IPE, ixgbe_descriptor::RX_L4E],
    counters: [
        ixgbe::QPRC.at(0).offset,
        ixgbe::QBRC_L.at(0).offset,
        ixgbe::QBRC_H.at(0).offset,
        ixgbe::GPTC.offset,
        ixgbe::GOTCL.offset,
        ixgbe::GOTCH.offset,
    ],
    octets_clear: true,
    never_ready: &[
        (ixgbe::CTRL.offset, ixgbe_bits::CTRL_RST, "CTRL"),
        (ixgbe::EEC.offset, 0, "EEC"),
        (ixgbe::RDRXCTL.offset, 0, "RDRXCTL"),
        (ixgbe::RXDCTL.at(0).offset, 0, "RXDCTL"),
        (ixgbe::TXDCTL.at(0).offset, 0, "TXDCTL"),
    ],
};

pub static IGB: Kind = IGB_CARD;
pub static IGB_WITHOUT_VECTORS: Kind = Kind { name: "igb, without vector instructions", vector: false, ..IGB_CARD };
const IGB_CARD: Kind = Kind {
    name: "igb",
    vector: true,
    device: 0x10c9,
    driver: |bus, config, pool| Ok(Box::new(Igb::open(bus, "straw", config, pool)?)),
    stuck: &[
        (igb::EECD.offset, igb_bits::EECD_AUTO_RD),
        (igb::RAL.at(0).offset, u32::from_le_bytes([2, 0, 0, 1])),
        (igb::RAH.at(0).offset, 0x8000_0000 | u16::from_le_bytes([2, 3]) as u32),
        (igb::STATUS.offset, IGB_LINK_UP),
        (igb::MDIC.offset, igb_bits::MDIC_R | PHY_CONTROL),
    ],
    status: igb::STATUS.offset,
    link: (igb::STATUS.offset, IGB_LINK_UP),
    mbps: 1_000,
    max_mtu: 9198,
    rdbal: igb::RDBAL.at(0).offset,
    rdlen: igb::RDLEN.at(0).offset,
    rdt: igb::RDT.at(0).offset,
    rxdctl: igb::RXDCTL.at(0).offset,
    tdbal: igb::TDBAL.at(0).offset,
    tdt: igb::TDT.at(0).offset,
    txdctl: igb::TXDCTL.at(0).offset,
    tdwbal: igb::TDWBAL.at(0).offset,
    tdwbah: igb::TDWBAH.at(0).offset,
    rx_errors: [igb_descriptor::RX_RXE, igb_descriptor::RX_IPE, igb_descriptor::RX_L4E],
    counters: [
        igb::GPRC.offset,
        igb::GORCL.offset,
        igb::GORCH.offset,
        igb::GPTC.offset,
        igb::GOTCL.offset,
        igb::GOTCH.offset,
    ],
    octets_clear: false,
    never_ready: &[
        (igb::CTRL.offset, igb_bits::CTRL_RST, "CTRL"),
        (igb::MDIC.offset, 0, "MDIC"),
        (igb::MDIC.offset, igb_bits::MDIC_R | igb_bits::MDIC_E, "MDIC"),
        (igb::SWSM.offset, 0, "SWSM"),
        (igb::SW_FW_SYNC.offset, u32::MAX, "SW_FW_SYNC"),
        (igb::RXDCTL.at(0).offset, 0, "RXDCTL"),
        (igb::TXDCTL.at(0).offset, 0, "TXDCTL"),
    ],
};

/// Runs a test for each kind of card, with vector instructions and without.
pub fn each_kind(test: impl Fn(&'static Kind)) {
    for kind in [&IXGBE, &IXGBE_WITHOUT_VECTORS, &IGB, &IGB_WITHOUT_VECTORS] {
        eprintln!("{}:", kind.name);
        test(kind);
    }
}

/// The card. Registers keep what is written, except those in `stuck`, which always read the same value.
pub struct FakeCard {
    kind: &'static Kind,
    cells: Box<[AtomicU32]>,
    stuck: Mutex<HashMap<u32, u32>>,
    pub mapped: Mutex<Vec<Arc<DmaRegion>>>,
    pub bus_master: AtomicU32,
    /// Values written to the 82576's MDIC.
    pub phy: Mutex<Vec<u32>>,
    /// Eventfds of the vectors that the driver enabled.
    pub events: Mutex<Vec<OwnedFd>>,
}

impl FakeCard {
    pub fn new(kind: &'static Kind) -> Arc<Self> {
        let cells = (0..0x20000 / 4).map(|_| AtomicU32::new(0)).collect();
        let (stuck, mapped, bus_master, phy, events) = Default::default();
        let straw = Self { kind, cells, stuck, mapped, bus_master, phy, events };
        kind.stuck.iter().for_each(|&(offset, value)| straw.stick(offset, value));
        Arc::new(straw)
    }

    /// Opens the card with its driver.
    pub fn open(self: &Arc<Self>, config: &PortConfig, pool: &Mempool) -> Result<Box<dyn Port>, Error> {
        let config = PortConfig { vector: self.kind.vector, ..*config };
        (self.kind.driver)(Arc::new(FakeBus(self.clone())), &config, pool)
    }

    /// Makes a register always read `value`.
    pub fn stick(&self, offset: u32, value: u32) {
        self.stuck.lock().unwrap().insert(offset, value);
    }

    pub fn get(&self, offset: u32) -> u32 {
        self.cells[offset as usize / 4].load(Ordering::Acquire)
    }

    /// Sets a register, for instance to its value after a reset.
    pub fn write_for_test(&self, offset: u32, value: u32) {
        self.cells[offset as usize / 4].store(value, Ordering::Release);
    }

    fn word(&self, low: u32, index: u32, half: usize) -> &AtomicU64 {
        let base = u64::from(self.get(low)) | u64::from(self.get(low + 4)) << 32;
        // SAFETY: the driver wrote the base of a ring of 16-byte descriptors in a region that it had mapped,
        // and `mapped` keeps that region. Tests pass indices within the ring.
        unsafe { &*((base + u64::from(index) * 16 + half as u64 * 8) as *const AtomicU64) }
    }

    /// Returns one half of a descriptor of Rx queue 0.
    pub fn rx(&self, index: u32, half: usize) -> &AtomicU64 {
        self.word(self.kind.rdbal, index, half)
    }

    /// Returns one half of a descriptor of Tx queue 0.
    pub fn tx(&self, index: u32, half: usize) -> &AtomicU64 {
        self.word(self.kind.tdbal, index, half)
    }
}

// SAFETY: a doorbell points into `cells`, a boxed slice that is neither replaced nor dropped before the card
// is.
unsafe impl Bar for FakeCard {
    fn read(&self, offset: u32) -> u32 {
        let stuck = self.stuck.lock().unwrap().get(&offset).copied();
        stuck.unwrap_or_else(|| self.get(offset))
    }

    fn write(&self, offset: u32, value: u32) {
        // A reset is done as soon as it is requested.
        let value = if offset == igb::CTRL.offset { value & !igb_bits::CTRL_RST } else { value };
        if offset == igb::MDIC.offset {
            self.phy.lock().unwrap().push(value);
        }
        self.cells[offset as usize / 4].store(value, Ordering::Release);
    }

    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        NonNull::new(self.cells[offset as usize / 4].as_ptr()).expect("the address of a cell")
    }
}

/// The bus of a fake card.
struct FakeBus(Arc<FakeCard>);

impl PciDevice for FakeBus {
    fn id(&self) -> DeviceId {
        DeviceId { vendor: 0x8086, device: self.0.kind.device }
    }

    fn description(&self) -> String {
        "straw".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.0.clone()))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.0.mapped.lock().unwrap().push(region.clone());
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        let mut events = self.0.events.lock().unwrap();
        events.resize_with(vectors, || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
        let waiter = |event: &OwnedFd| EventWaiter::on(event.try_clone().expect("a descriptor is left"));
        Ok(events.iter().map(waiter).collect::<Result<_, _>>().expect("a descriptor is left"))
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.0.bus_master.store(on.into(), Ordering::Release);
        Ok(())
    }
}
