//! The Intel 82599 and its successors, seen from the driver's side (registers, descriptors, statistics) and from the
//! wire's. Sections are those of the *Intel 82599 10 GbE Controller Datasheet*, revision 3.4.
//!
//! What is not modelled: interrupts, flow control, offloads (checksums, segmentation, VLAN insertion and stripping),
//! legacy and split descriptors, virtualisation, DCB, flow director. Frames have no bad checksum on this wire.

mod bits;
mod crc;
mod decode;
mod device;
mod doorbells;
mod eeprom;
mod fifo;
mod filter;
mod registers;
mod rss;
mod rx;
mod stats;
mod tx;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_bus::{Bus, DeviceId};
use ringpass_memory::{Addressing, DmaRegion};
use ringpass_port::{Error, Link, MacAddress, Queues};
use ringpass_registers::ixgbe::VENDOR;
use ringpass_registers::{Bar, Window};

use device::Device;
use doorbells::Doorbells;
pub use stats::Counters;

/// What a [`Card`] is.
#[derive(Clone, Copy, Debug)]
pub struct CardConfig {
    /// PCI device id.
    pub device: u16,
    /// MAC address in the EEPROM.
    pub mac: MacAddress,
    /// The link when the card is made; its speed stays.
    pub link: Link,
}

impl Default for CardConfig {
    fn default() -> Self {
        let mac = MacAddress([0x02, 0x82, 0x59, 0x90, 0, 1]);
        Self { device: 0x10fb, mac, link: Link { up: true, mbps: 10_000 } }
    }
}

/// A card in the process: the bus that a driver opens, with a wire on the other side.
pub struct Card {
    id: DeviceId,
    shared: Arc<Shared>,
}

/// What the card shares with its BAR's windows and doorbells.
struct Shared {
    device: Mutex<Device>,
    doorbells: Doorbells,
    /// Register accesses under way. The stepping thread, which has the lock nearly all the time, lets them in first.
    waiting: AtomicU32,
}

impl Card {
    /// A card as after power-on.
    pub fn new(config: &CardConfig) -> Arc<Self> {
        let id = DeviceId { vendor: VENDOR, device: config.device };
        let doorbells = Doorbells::default();
        let device = Mutex::new(Device::new(config));
        Arc::new(Self { id, shared: Arc::new(Shared { device, doorbells, waiting: AtomicU32::new(0) }) })
    }

    /// One round: up to a burst from the wire into the Rx rings, and up to a burst from each Tx ring onto the wire.
    /// Returns how many packets moved. The same state, doorbells and wire give the same round.
    pub fn step(&self, wire: &mut Queues) -> usize {
        self.shared.let_registers_in();
        self.shared.lock().step(wire, &self.shared.doorbells)
    }

    /// The model's own totals, which no driver can clear.
    pub fn counters(&self) -> Counters {
        self.shared.access(|device| *device.counters())
    }

    /// Plugs the cable in or out. While it is out, frames from the wire are lost and none is sent.
    pub fn set_link(&self, up: bool) {
        self.shared.access(|device| device.set_link(up));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Device> {
        // A test that panicked with the lock held has reported that; the registers are valid at any time.
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` between two steps.
    fn access<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = f(&mut self.lock());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// A mutex that is unlocked and locked again at once starves those who sleep on it.
    fn let_registers_in(&self) {
        for _ in 0..100 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

// SAFETY: `Doorbells::cell` is valid as long as `self`, which owns the doorbells and never moves them.
#[allow(unsafe_code)]
unsafe impl Bar for Shared {
    fn read(&self, offset: u32) -> u32 {
        self.access(|device| device.read(offset, &self.doorbells))
    }

    fn write(&self, offset: u32, value: u32) {
        self.access(|device| device.write(offset, value, &self.doorbells));
    }

    /// # Panics
    /// If the register is neither RDT nor TDT: no other is written for each burst.
    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        let cell = self.doorbells.at(offset).unwrap_or_else(|| panic!("no doorbell at {offset:#x}, only RDT and TDT"));
        NonNull::new(cell.as_ptr()).expect("the address of an atomic")
    }
}

impl Bus for Card {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        "a model in this process".into()
    }

    fn window(&self) -> Window {
        Window::new(self.shared.clone())
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.shared.access(|device| device.dma.add(region));
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.access(|device| device.bus_master = on);
        Ok(())
    }
}
