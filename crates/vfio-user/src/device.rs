//! What is served.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use ringpass_peer::Signal;

use crate::{Area, Doorbells, Refusal};

/// Regions that every PCI device has: six BARs, the expansion ROM, configuration space, VGA.
pub const PCI_REGIONS: u32 = 9;
/// Configuration space.
pub const CONFIG_REGION: u32 = 7;
/// Types of interrupts that every PCI device has: INTx, MSI, MSI-X, errors, requests.
pub const PCI_IRQS: u32 = 5;
/// MSI-X among them.
pub const MSIX: u32 = 2;

/// What a device may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// A part of the device that its client sees, by messages or mapped.
#[derive(Clone, Copy, Default)]
pub struct Region<'a> {
    /// Bytes; 0 if the device has no such region.
    pub size: u64,
    /// May be read by messages.
    pub readable: bool,
    /// May be written by messages.
    pub writable: bool,
    /// May be mapped.
    pub mapping: Option<Mapping<'a>>,
    /// Behind the standard regions: doorbells, mapped, and the eventfd that wakes the device.
    pub doorbells: Option<(&'a Doorbells, BorrowedFd<'a>)>,
}

/// How a region is mapped.
#[derive(Clone, Copy)]
pub struct Mapping<'a> {
    /// Its file.
    pub file: BorrowedFd<'a>,
    /// Where in the file it begins.
    pub offset: u64,
    /// What may be mapped, in whole pages; all of it if empty.
    pub areas: &'a [Area],
}

/// A PCI device, as its server sees it. What reaches it has been checked: regions exist, accesses are inside and of at
/// most [`MAX_TRANSFER`](crate::MAX_TRANSFER) bytes, maps do not overlap, vectors exist.
pub trait Device {
    /// How many regions: [`PCI_REGIONS`] or more.
    fn regions(&self) -> u32 {
        PCI_REGIONS
    }

    /// A region.
    fn region(&self, index: u32) -> Region<'_>;

    /// Reads a region.
    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]);

    /// Writes a region.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);

    /// MSI-X vectors.
    fn vectors(&self) -> u32;

    /// What a vector is signalled by, from now on; `None` for nothing.
    fn set_vector(&mut self, vector: u32, signal: Option<Signal>);

    /// The device may access `len` bytes of memory, from `offset`, at `iova`.
    fn map(
        &mut self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<(), Refusal>;

    /// It may no longer, and does not once this returns: many maps, a part of one, or none.
    fn unmap(&mut self, iova: u64, len: u64);

    /// All as after power-on. Maps and vectors stay.
    fn reset(&mut self);
}
