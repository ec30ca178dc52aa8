//! The device that a server serves.

use std::os::fd::BorrowedFd;

use ringpass_ipc::EventNotifier;
use ringpass_memory::{Access, DmaMapError, Memory};

use crate::{Area, Doorbells};

/// Number of regions that every PCI device has: six BARs, the expansion ROM, configuration space, VGA.
pub const PCI_REGIONS: u32 = 9;
/// Index of the region that is the configuration space.
pub const CONFIG_REGION: u32 = 7;
/// Number of interrupt types that every PCI device has: INTx, MSI, MSI-X, errors, requests.
pub const PCI_IRQS: u32 = 5;
/// Index of the interrupt type MSI-X.
pub const MSIX: u32 = 2;

/// A region of the device, which the client accesses by messages or maps.
#[derive(Clone, Copy, Default)]
pub struct Region<'a> {
    /// Size in bytes; 0 if the device has no such region.
    pub size: u64,
    /// Whether it may be read by messages.
    pub readable: bool,
    /// Whether it may be written by messages.
    pub writable: bool,
    /// How the region may be mapped; `None` if it may not.
    pub mapping: Option<Mapping<'a>>,
    /// Only for a region after the standard ones: the layout of its doorbells, and the eventfd that wakes the
    /// device.
    pub doorbells: Option<(&'a Doorbells, BorrowedFd<'a>)>,
}

/// File and areas by which a region is mapped.
#[derive(Clone, Copy)]
pub struct Mapping<'a> {
    /// The file that holds the region.
    pub file: BorrowedFd<'a>,
    /// Offset of the region in the file, in bytes.
    pub offset: u64,
    /// Areas that may be mapped, in whole pages; if empty, the whole region.
    pub areas: &'a [Area],
}

/// A PCI device, as its server uses it. The server checks all arguments first: regions and vectors exist,
/// accesses are inside their region and have at most [`MAX_TRANSFER`](crate::MAX_TRANSFER) bytes, and mappings
/// consist of whole pages.
pub trait Device {
    /// Returns the number of regions, at least [`PCI_REGIONS`].
    fn regions(&self) -> u32 {
        PCI_REGIONS
    }

    /// Returns the description of a region.
    fn region(&self, index: u32) -> Region<'_>;

    /// Reads from a region.
    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]);

    /// Writes to a region.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);

    /// Returns the number of MSI-X vectors.
    fn vectors(&self) -> u32;

    /// Sets the notifier that a vector signals from now on; `None` for none.
    fn set_vector(&mut self, vector: u32, signal: Option<EventNotifier>);

    /// Lets the device access `memory` at DMA address `iova`. A device with DMA keeps a
    /// [`DmaMap`](ringpass_memory::DmaMap), which refuses maps that overlap, and more than a client may have; by
    /// default a device has no DMA.
    fn map(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        let _ = (iova, memory, access);
        Ok(())
    }

    /// Removes the device's access to a range of DMA addresses; once this returns, the device does not access
    /// it any more. The range may hold many mappings, a part of one, or none. Fails, with nothing removed, if a hole
    /// would make one more mapping than there may be.
    fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        let _ = (iova, len);
        Ok(())
    }

    /// Resets the device to its state after power-on. Mappings and vectors stay.
    fn reset(&mut self);
}
