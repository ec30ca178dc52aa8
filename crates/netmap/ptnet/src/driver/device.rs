//! A port's device: brought up in the order of netmap's own driver, and stopped when its rings are no longer used.

use std::sync::Arc;

use ringpass_memory::{DmaRegion, RegionConfig};
use ringpass_netmap::{Buffers, Notifier, PortRing, attach_each};
use ringpass_pci::registers::IoRegion;
use ringpass_pci::registers::ptnet::port::{
    CONTROL, CREATE, CSB_GUEST, CSB_HOST, DELETE, FEATURES, HEADER_LEN, INTERFACE, KICKS, MAC, MEMORY_ID, RINGS,
};
use ringpass_pci::{EventWaiter, PciDevice};
use ringpass_port::{Error, MacAddress};

use super::memory;

/// Size in bytes of either half of a CSB: 64 entries.
const PAGE: usize = 4096;

/// The running device, which is stopped when dropped. Rings keep it alive, because their doorbells are its
/// registers.
pub(crate) struct Device {
    registers: Arc<dyn IoRegion>,
    bus: Arc<dyn PciDevice>,
    _memory: Arc<dyn PciDevice>,
    csb: Arc<DmaRegion>,
}

/// The rings of a port, as any netmap program has them, and the resources that belong to them.
pub struct Rings {
    /// Tx rings, then Rx rings.
    pub rings: [Vec<PortRing>; 2],
    /// Interrupts by ring, Tx rings first; the device signals them if the ring asked for it. Empty where interrupts
    /// do not reach user space.
    pub interrupts: Vec<EventWaiter>,
    /// The frame buffers.
    pub buffers: Buffers,
    /// MAC address of the port.
    pub mac: MacAddress,
    pub(crate) device: Arc<Device>,
}

impl Rings {
    /// Starts a port. `memory` opens the device whose memory has the number that it is given.
    ///
    /// The CSB is allocated as `region` says, with the addressing of the device; physical addresses require huge
    /// pages.
    pub fn open(
        bus: Arc<dyn PciDevice>,
        memory: &dyn Fn(u16) -> Result<Arc<dyn PciDevice>, Error>,
        region: &RegionConfig,
    ) -> Result<Self, Error> {
        let registers = bus.region(0)?;
        let (read, write) = words(&registers);
        // Ends whatever the device still does for a previous owner.
        if !stop(&registers) {
            return Err(Error::Gone("the device does not stop; is its host gone?".into()));
        }
        write(FEATURES, 0);
        let counts = RINGS.map(|at| read(at) as usize);
        if counts.contains(&0) || counts.iter().any(|&count| count > 64) || counts.iter().sum::<usize>() > 64 {
            let [tx, rx] = counts;
            return Err(Error::Fault(format!("a netmap port with {tx} rings to send and {rx} to receive")));
        }
        let number = read(MEMORY_ID) as u16;
        let memdev = memory(number)?;
        let (shared, buffers) = memory::map(&*memdev, number)?;
        let csb = DmaRegion::new(2 * PAGE, &RegionConfig { addressing: bus.addressing(), ..*region })?;
        bus.map(&csb)?;
        bus.set_bus_master(true)?;
        // With physical addresses the region is one huge page, so both halves are physically contiguous.
        for (words, half) in [(CSB_GUEST, 0), (CSB_HOST, PAGE)] {
            let iova = csb.iova(half);
            words.into_iter().zip([(iova >> 32) as u32, iova as u32]).for_each(|(at, value)| write(at, value));
        }
        let mut interrupts = bus.interrupts(counts.iter().sum())?;
        if interrupts.len() < counts.iter().sum() {
            interrupts.clear();
        }
        let device = Arc::new(Device { registers: registers.clone(), bus, _memory: memdev, csb: csb.clone() });
        write(HEADER_LEN, 0);
        write(CONTROL, CREATE);
        let status = read(CONTROL);
        if status != 0 || read(HEADER_LEN) != 0 {
            let why = std::io::Error::from_raw_os_error(status as i32);
            return Err(Error::Fault(format!("the device does not start: {why}")));
        }
        let kick = |entry: usize| -> Notifier {
            let (device, at) = (device.clone(), KICKS as usize + 4 * entry);
            Arc::new(move || device.registers.write32(at, 0))
        };
        let interface = read(INTERFACE);
        let rings = attach_each(&shared, interface as usize, [0; 2], &csb.into(), kick);
        let rings = rings.filter(|rings| rings.each_ref().map(Vec::len) == counts);
        let rings = rings
            .ok_or_else(|| Error::Fault(format!("the port's rings do not lie in its memory, at {interface:#x}")))?;
        let [[c, d, e, f], [_, _, a, b]] = MAC.map(|at| read(at).to_be_bytes());
        Ok(Self { rings, interrupts, buffers, mac: MacAddress([a, b, c, d, e, f]), device })
    }
}

fn words(registers: &Arc<dyn IoRegion>) -> (impl Fn(u64) -> u32, impl Fn(u64, u32)) {
    (|at| registers.read32(at as usize), |at, value| registers.write32(at as usize, value))
}

/// Stops the device's use of CSB and rings. Returns whether the device confirms that.
fn stop(registers: &Arc<dyn IoRegion>) -> bool {
    let (read, write) = words(registers);
    write(CONTROL, DELETE);
    read(CONTROL) == 0
}

impl Device {
    /// Describes how the device is reached.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.bus.description(), self.registers.description())
    }

    /// Returns whether the device still responds. A device has at most 64 rings, and a missing one reads as all
    /// ones.
    pub(crate) fn is_there(&self) -> bool {
        self.registers.read32(RINGS[0] as usize) <= 64
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let (_, write) = words(&self.registers);
        let stopped = stop(&self.registers);
        CSB_GUEST.into_iter().chain(CSB_HOST).for_each(|at| write(at, 0));
        let _ = self.bus.set_bus_master(false);
        // Memory that the device may still write to is never freed.
        if !stopped {
            std::mem::forget(self.csb.clone());
        }
    }
}
