//! The model as a PCI function that another process uses over vfio-user.

use std::sync::Arc;

use ringpass_memory::{Access, DmaMapError, Memory};
use ringpass_pci::registers::ixgbe::{RDT, TDT};
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_vfio_user::{
    CONFIG_REGION, Change, ConfigSpace, Device, DoorbellArray, Doorbells, EventNotifier, Identity, Mapping,
    PCI_REGIONS, Region, words,
};

use super::card::Card;

/// BAR of the registers.
const BAR: u32 = 0;
/// Size of the registers in bytes (9.3.6.1).
pub(super) const BAR_SIZE: u64 = 128 << 10;
/// BAR of the MSI-X table and its pending bits, which the client emulates (9.3.6.1).
const MSIX_BAR: u32 = 4;
const MSIX_BAR_SIZE: u64 = 16 << 10;
const PENDING: u32 = 0x2000;
/// Region of the tail registers as memory, for drivers that support it. Not in a BAR: on real hardware these
/// registers share their pages with registers whose accesses have side effects, so a guest's accesses are
/// trapped like all others.
const DOORBELLS: u32 = PCI_REGIONS;
/// Size in bytes, in whole pages, for 2 * 128 cells and the word that says whether the model sleeps.
const DOORBELLS_SIZE: u64 = (257 * Card::DOORBELL_STRIDE as u64).next_multiple_of(4096);

/// A NIC with its PCI configuration space (9.3), to be served over vfio-user.
pub struct VfioUserFunction {
    card: Arc<Card>,
    config: ConfigSpace,
    doorbells: Doorbells,
}

impl VfioUserFunction {
    /// Wraps a NIC to be served.
    pub fn new(card: Arc<Card>) -> Self {
        let config = config_space(card.id());
        let stride = Card::DOORBELL_STRIDE as u32;
        let cells = |register: u32, count: u32, line: u32| DoorbellArray {
            register: [register, 0x40, count],
            cell: [stride * line, stride],
        };
        let cells =
            vec![cells(RDT.at(0).offset, 64, 0), cells(RDT.at(64).offset, 64, 64), cells(TDT.at(0).offset, 128, 128)];
        Self { card, config, doorbells: Doorbells { asleep: 256 * stride, cells } }
    }

    fn set_bus_master(&self, on: bool) {
        self.card.set_bus_master(on).expect("a model takes it");
    }

    /// Resets the function.
    fn restart(&mut self) {
        self.set_bus_master(false);
        self.card.reset();
    }

    /// Writes registers, which are 32 bits wide (8.1.1): a write of a part does nothing.
    fn write_registers(&self, offset: u64, data: &[u8]) {
        if !offset.is_multiple_of(4) {
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(data.chunks_exact(4)) {
            self.card.write(at as u32, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
}

/// Returns the configuration space of a NIC after a reset (9.3).
pub(super) fn config_space(DeviceId { vendor, device }: DeviceId) -> ConfigSpace {
    let identity = Identity { vendor, device, subsystem: (vendor, 0x000c), revision: 1, class: 0x02_0000 };
    // The capabilities are at the offsets where drivers of the family expect them without walking the list
    // (9.3.2).
    ConfigSpace::new(&identity)
        .memory_bar(BAR as usize, BAR_SIZE)
        .memory_bar(MSIX_BAR as usize, MSIX_BAR_SIZE)
        .power_management(0x40)
        .msix(0x70, Card::VECTORS as u16, (MSIX_BAR, 0), (MSIX_BAR, PENDING))
        .express(0xa0)
}

impl Device for VfioUserFunction {
    fn regions(&self) -> u32 {
        PCI_REGIONS + 1
    }

    fn region(&self, index: u32) -> Region<'_> {
        let trapped = |size| Region { size, readable: true, writable: true, ..Region::default() };
        match index {
            BAR => trapped(BAR_SIZE),
            MSIX_BAR => trapped(MSIX_BAR_SIZE),
            CONFIG_REGION => trapped(ConfigSpace::SIZE),
            DOORBELLS => Region {
                size: DOORBELLS_SIZE,
                mapping: Some(Mapping { file: self.card.doorbells(), offset: 0, areas: &[] }),
                doorbells: Some((&self.doorbells, self.card.waker())),
                ..Region::default()
            },
            _ => Region::default(),
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        match region {
            BAR => words::read(offset, out, |at| self.card.read(at as u32)),
            CONFIG_REGION => self.config.read(offset, out),
            // The client emulates the table; no vector is ever pending here.
            _ => out.fill(0),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region {
            BAR => self.write_registers(offset, data),
            CONFIG_REGION => match self.config.write(offset, data) {
                Change::None => {}
                Change::BusMaster => self.set_bus_master(self.config.bus_master()),
                Change::Reset => self.restart(),
            },
            _ => {}
        }
    }

    fn vectors(&self) -> u32 {
        Card::VECTORS as u32
    }

    fn set_vector(&mut self, vector: u32, signal: Option<EventNotifier>) {
        self.card.set_vector(vector as usize, signal);
    }

    fn map(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        self.card.map_at(iova, memory, access)
    }

    fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        self.card.unmap(iova, len)
    }

    fn reset(&mut self) {
        self.config.reset();
        self.restart();
    }
}
