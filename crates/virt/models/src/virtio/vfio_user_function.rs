//! The model as a PCI function that another process uses over vfio-user.

use std::sync::Arc;

use ringpass_memory::{Access, DmaMapError, Memory};
use ringpass_pci::PciDevice;
use ringpass_vfio_user::{CONFIG_REGION, Change, ConfigSpace, Device, EventNotifier, Region};

use super::card::VirtioCard;
use super::layout::{LEGACY_BAR, LEGACY_LEN, MODERN_BAR, MODERN_LEN, MSIX_BAR, MSIX_BAR_LEN};
use super::pci::WINDOW;

/// Offset of the writable fields of the capability that gives access to the BARs (4.1.4.9): BAR, offset,
/// length, data.
const FIELDS: u64 = WINDOW as u64 + 4;
const DATA: usize = 12;
const FIELDS_LEN: usize = 16;

/// The part of a BAR that the fields of that capability select.
struct Selection {
    bar: usize,
    offset: u64,
    len: usize,
}

/// A virtio device with its PCI configuration space, to be served over vfio-user.
pub struct VfioUserFunction {
    card: Arc<VirtioCard>,
    window: [u8; FIELDS_LEN],
}

impl VfioUserFunction {
    /// Wraps a device to be served.
    pub fn new(card: Arc<VirtioCard>) -> Self {
        Self { card, window: [0; FIELDS_LEN] }
    }

    fn set_bus_master(&self, on: bool) {
        self.card.set_bus_master(on).expect("a model takes it");
    }

    /// Resets the function.
    fn restart(&mut self) {
        self.set_bus_master(false);
        self.card.reset();
        self.window = [0; FIELDS_LEN];
    }

    /// Reads a BAR in accesses of the client's width, or in single bytes if the client's access is misaligned
    /// or of another size.
    fn read_bar(&self, bar: usize, offset: u64, out: &mut [u8]) {
        let width = width(offset, out.len());
        for (at, part) in (offset as usize..).step_by(width).zip(out.chunks_mut(width)) {
            part.copy_from_slice(&self.card.shared.read(bar, at, width).to_le_bytes()[..width]);
        }
    }

    fn write_bar(&self, bar: usize, offset: u64, data: &[u8]) {
        let width = width(offset, data.len());
        for (at, part) in (offset as usize..).step_by(width).zip(data.chunks(width)) {
            let value = part.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            self.card.shared.write(bar, at, value, width);
        }
    }

    /// Returns the part of a BAR that the capability's fields select, if they are valid.
    fn selected(&self) -> Option<Selection> {
        let [bar, ..] = self.window;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| self.window[at + i]));
        let (offset, len) = (word(4), word(8) as usize);
        let region = self.region(bar.into()).size;
        let right = matches!(len, 1 | 2 | 4) && u64::from(offset) + len as u64 <= region;
        (right && is_registers(bar.into()) && offset.is_multiple_of(len as u32)).then_some(Selection {
            bar: bar.into(),
            offset: offset.into(),
            len,
        })
    }

    fn read_config(&mut self, offset: u64, out: &mut [u8]) {
        self.card.shared.space().read(offset, out);
        let touches = |at: u64| (offset..offset + out.len() as u64).contains(&at);
        if touches(FIELDS + DATA as u64)
            && let Some(Selection { bar, offset: at, len }) = self.selected()
        {
            let mut data = [0; 4];
            self.read_bar(bar, at, &mut data[..len]);
            self.window[DATA..].copy_from_slice(&data);
        }
        for (at, byte) in (offset..).zip(out) {
            if let Some(field) = at.checked_sub(FIELDS).and_then(|at| self.window.get(at as usize)) {
                *byte = *field;
            }
        }
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        for (at, &byte) in (offset..).zip(data) {
            if let Some(field) = at.checked_sub(FIELDS).and_then(|at| self.window.get_mut(at as usize)) {
                *field = byte;
            }
        }
        if (offset..offset + data.len() as u64).contains(&(FIELDS + DATA as u64))
            && let Some(Selection { bar, offset: at, len }) = self.selected()
        {
            let bytes: [u8; 4] = std::array::from_fn(|i| self.window[DATA + i]);
            self.write_bar(bar, at, &bytes[..len]);
        }
        let (change, master) = {
            let mut space = self.card.shared.space();
            (space.write(offset, data), space.bus_master())
        };
        match change {
            Change::None => {}
            Change::BusMaster => self.set_bus_master(master),
            Change::Reset => self.restart(),
        }
    }
}

fn is_registers(bar: usize) -> bool {
    matches!(bar, LEGACY_BAR | MODERN_BAR)
}

/// Returns the width in bytes of the accesses that a client's access is split into.
fn width(offset: u64, len: usize) -> usize {
    match len {
        1 | 2 | 4 if offset.is_multiple_of(len as u64) => len,
        8 if offset.is_multiple_of(4) => 4,
        _ => 1,
    }
}

impl Device for VfioUserFunction {
    fn region(&self, index: u32) -> Region<'_> {
        let trapped = |size| Region { size, readable: true, writable: true, ..Region::default() };
        let has = |bar| self.card.shared.access(|device| device.has_bar(bar));
        match index as usize {
            LEGACY_BAR if has(LEGACY_BAR) => trapped(LEGACY_LEN as u64),
            MSIX_BAR => trapped(MSIX_BAR_LEN),
            MODERN_BAR if has(MODERN_BAR) => trapped(MODERN_LEN as u64),
            _ if index == CONFIG_REGION => trapped(ConfigSpace::SIZE),
            _ => Region::default(),
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        match region as usize {
            bar @ (LEGACY_BAR | MODERN_BAR) => self.read_bar(bar, offset, out),
            _ if region == CONFIG_REGION => self.read_config(offset, out),
            // The client emulates the MSI-X table; no vector is ever pending here.
            _ => out.fill(0),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region as usize {
            bar @ (LEGACY_BAR | MODERN_BAR) => self.write_bar(bar, offset, data),
            _ if region == CONFIG_REGION => self.write_config(offset, data),
            _ => {}
        }
    }

    fn vectors(&self) -> u32 {
        self.card.vectors() as u32
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
        self.card.shared.space().reset();
        self.restart();
    }
}
