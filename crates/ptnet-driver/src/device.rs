//! A port's device: brought up in the order of netmap's own driver, stopped when nobody uses its rings any more.

use std::sync::Arc;

use ringpass_bus::{Bus, Waiter};
use ringpass_memory::{DmaRegion, RegionConfig};
use ringpass_netmap::{Bell, Buffers, PortRing, attach_each};
use ringpass_port::{Error, MacAddress};
use ringpass_registers::IoRegion;
use ringpass_registers::ptnet::port::{
    CONTROL, CREATE, CSB_GUEST, CSB_HOST, DELETE, FEATURES, HEADER_LEN, INTERFACE, KICKS, MAC, MEMORY_ID, RINGS,
};

use crate::memory;

/// Bytes of either half of a CSB: 64 entries.
const PAGE: usize = 4096;

/// Tells the device to stop when it is dropped. Rings hold it: their doorbells are registers.
pub(crate) struct Device {
    registers: Arc<dyn IoRegion>,
    bus: Arc<dyn Bus>,
    _memory: Arc<dyn Bus>,
    csb: Arc<DmaRegion>,
}

/// The rings of a port, as any netmap program has them, and what belongs to them.
pub struct Rings {
    /// To send, to receive.
    pub rings: [Vec<PortRing>; 2],
    /// By ring, those to send first: what the device signals if the ring asked for that. Empty where interrupts do not
    /// reach user space.
    pub interrupts: Vec<Waiter>,
    /// Where frames lie.
    pub buffers: Buffers,
    /// The port's address.
    pub mac: MacAddress,
    pub(crate) device: Arc<Device>,
}

impl Rings {
    /// Starts a port. `memory` finds the device with the memory of a number. The CSB is made as `region` says, with addresses
    /// as the bus has them; with physical ones it needs huge pages.
    pub fn open(
        bus: Arc<dyn Bus>,
        memory: &dyn Fn(u16) -> Result<Arc<dyn Bus>, Error>,
        region: &RegionConfig,
    ) -> Result<Self, Error> {
        let registers = bus.region(0)?;
        let (read, write) = words(&registers);
        // Whatever it did for its last owner ends here.
        if !stop(&registers) {
            return Err(Error::Other("the device does not stop; is its host gone?".into()));
        }
        write(FEATURES, 0);
        let counts = RINGS.map(|at| read(at) as usize);
        if counts.contains(&0) || counts.iter().any(|&count| count > 64) || counts.iter().sum::<usize>() > 64 {
            let [tx, rx] = counts;
            return Err(Error::Other(format!("a netmap port with {tx} rings to send and {rx} to receive")));
        }
        let number = read(MEMORY_ID) as u16;
        let memdev = memory(number)?;
        let (shared, buffers) = memory::map(&*memdev, number)?;
        let csb = DmaRegion::new(2 * PAGE, &RegionConfig { addressing: bus.addressing(), ..*region })?;
        bus.map(&csb)?;
        bus.set_bus_master(true)?;
        // On physical addresses the region is a huge page, so both halves are neighbours there too.
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
            return Err(Error::Other(format!("the device does not start: {why}")));
        }
        let kick = |entry: usize| -> Bell {
            let (device, at) = (device.clone(), KICKS as usize + 4 * entry);
            Arc::new(move || device.registers.write32(at, 0))
        };
        let interface = read(INTERFACE);
        let rings = attach_each(&shared, interface as usize, &csb.into(), kick);
        let rings = rings.filter(|rings| rings.each_ref().map(Vec::len) == counts);
        let rings = rings
            .ok_or_else(|| Error::Other(format!("the port's rings do not lie in its memory, at {interface:#x}")))?;
        let [[c, d, e, f], [_, _, a, b]] = MAC.map(|at| read(at).to_be_bytes());
        Ok(Self { rings, interrupts, buffers, mac: MacAddress([a, b, c, d, e, f]), device })
    }
}

fn words(registers: &Arc<dyn IoRegion>) -> (impl Fn(u64) -> u32, impl Fn(u64, u32)) {
    (|at| registers.read32(at as usize), |at, value| registers.write32(at as usize, value))
}

/// Has the device leave CSB and rings alone. Whether it said that it does.
fn stop(registers: &Arc<dyn IoRegion>) -> bool {
    let (read, write) = words(registers);
    write(CONTROL, DELETE);
    read(CONTROL) == 0
}

impl Device {
    /// How the device is reached.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.bus.description(), self.registers.description())
    }

    /// Whether its registers can be read still. A device has at most 64 rings.
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
        // Memory that a device may still write is never given back.
        if !stopped {
            std::mem::forget(self.csb.clone());
        }
    }
}
