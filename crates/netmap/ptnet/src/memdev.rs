//! The memory of a port as a PCI device.

use std::os::fd::{AsFd, OwnedFd};

use ringpass_memory::Memory;
use ringpass_netmap::Pools;
use ringpass_pci::registers::ptnet::VENDOR;
use ringpass_pci::registers::ptnet::memdev::{DEVICE, ID, MEMORY_BAR, POOLS, SIZE};
use ringpass_vfio_user::{Area, CONFIG_REGION, ConfigSpace, Device, EventNotifier, Identity, Mapping, Region, words};

use crate::BAR;

/// A netmap region that a guest is given as a whole.
pub struct SharedRegion {
    /// The region's file, for the guest's hypervisor to map.
    pub file: OwnedFd,
    /// The whole region, mapped in this process; a whole number of pages.
    pub memory: Memory,
    /// Layout of the region.
    pub pools: Pools,
    /// Number of the memory; ports with the same number share it.
    pub id: u16,
}

/// Size of an interface descriptor in bytes.
const INTERFACE_BYTES: u32 = 1024;
/// PCI class code: RAM controller.
const CLASS: u32 = 0x05_0000;

/// The device with the memory. It has no function of its own and no state that a guest could change.
pub struct Memdev {
    config: ConfigSpace,
    shared: SharedRegion,
    /// Part of the BAR that is backed by memory.
    area: [Area; 1],
}

impl Memdev {
    /// Creates a device for this memory.
    pub fn new(shared: SharedRegion) -> Self {
        let len = shared.memory.len() as u64;
        let identity =
            Identity { vendor: VENDOR, device: DEVICE, subsystem: (0x1af4, 0x1100), revision: 0, class: CLASS };
        let config = ConfigSpace::new(&identity)
            .register_bar(0, BAR)
            .memory_bar(MEMORY_BAR as usize, len.next_power_of_two())
            .power_management(0x40);
        Self { config, shared, area: [Area { offset: 0, size: len }] }
    }

    fn register(&self, offset: u64) -> u32 {
        let SharedRegion { memory, pools, id, .. } = &self.shared;
        let len = memory.len() as u64;
        let pool = [
            [0, pools.interfaces, INTERFACE_BYTES],
            [pools.interfaces * INTERFACE_BYTES, 1, pools.ring_bytes as u32],
            [pools.buffers_at() as u32, pools.buffers, pools.buffer_size],
        ];
        let registers = [(SIZE[0], len as u32), (SIZE[1], (len >> 32) as u32), (ID, u32::from(*id))];
        let pools = POOLS.as_flattened().iter().copied().zip(pool.as_flattened().iter().copied());
        registers.into_iter().chain(pools).find_map(|(at, value)| (at == offset).then_some(value)).unwrap_or(0)
    }

    /// Limits an access to the memory. Returns its offset and length in bytes.
    fn inside(&self, offset: u64, len: usize) -> (usize, usize) {
        let at = offset.min(self.shared.memory.len() as u64) as usize;
        (at, len.min(self.shared.memory.len() - at))
    }
}

impl Device for Memdev {
    fn region(&self, index: u32) -> Region<'_> {
        let trapped = |size| Region { size, readable: true, writable: true, ..Region::default() };
        match index {
            0 => trapped(BAR.into()),
            MEMORY_BAR => {
                let mapping = Mapping { file: self.shared.file.as_fd(), offset: 0, areas: &self.area };
                Region { mapping: Some(mapping), ..trapped(self.area[0].size.next_power_of_two()) }
            }
            CONFIG_REGION => trapped(ConfigSpace::SIZE),
            _ => Region::default(),
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        out.fill(0);
        match region {
            0 => words::read(offset, out, |at| self.register(at)),
            // Read by clients that do not map the BAR; beyond the memory it reads as zeros.
            MEMORY_BAR => {
                let (at, len) = self.inside(offset, out.len());
                let _ = self.shared.memory.read(at, &mut out[..len]);
            }
            _ => self.config.read(offset, out),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region {
            MEMORY_BAR => {
                let (at, len) = self.inside(offset, data.len());
                let _ = self.shared.memory.write(at, &data[..len]);
            }
            // There is no DMA and nothing to reset.
            CONFIG_REGION => _ = self.config.write(offset, data),
            _ => {}
        }
    }

    fn vectors(&self) -> u32 {
        0
    }

    fn set_vector(&mut self, _: u32, _: Option<EventNotifier>) {}

    fn reset(&mut self) {
        self.config.reset();
    }
}
