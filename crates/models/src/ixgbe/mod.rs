//! The Intel 82599 and its successors, seen from the driver's side (registers, descriptors, statistics) and from the
//! wire's. Sections are those of the *Intel 82599 10 GbE Controller Datasheet*, revision 3.4.
//!
//! What is not modelled: flow control, DCB's arbitration, the switch from one pool to another on the way out, virtual
//! functions, coalescing (RSC), FCoE, IPsec and MACsec, time stamps. Frames have no bad CRC on this wire.

mod bits;
mod checksum;
mod crc;
mod decode;
mod device;
mod director;
mod doorbells;
mod eeprom;
mod fifo;
mod filter;
mod headers;
mod interrupts;
mod liar;
mod lies;
mod link;
mod mdio;
mod memory;
mod offload;
mod pools;
mod receive;
mod registers;
mod rss;
mod rx;
mod segment;
mod served;
mod sfp;
mod spi;
mod stats;
mod steering;
mod tx;

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_bus::{Bus, DeviceId, ForeignMaps};
use ringpass_memory::{Addressing, DmaRegion, ForeignMemory};
use ringpass_peer::{Signal, Waiter};
use ringpass_port::{Error, Link, MacAddress, Queues};
use ringpass_registers::ixgbe::VENDOR;
use ringpass_registers::{Bar, Bell, Window};

use crate::Model;
pub use crate::Wants;
pub use crate::dma::Access;
pub use crate::lies::When;
use device::Device;
use doorbells::Doorbells;
pub use lies::{Lie, Lies};
pub use served::Served;
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
    /// What it lies about.
    pub lies: Lies,
}

impl Default for CardConfig {
    fn default() -> Self {
        let mac = MacAddress([0x02, 0x82, 0x59, 0x90, 0, 1]);
        Self { device: 0x10fb, mac, link: Link { up: true, mbps: 10_000 }, lies: Lies::default() }
    }
}

/// A card in the process: the bus that a driver opens, with a wire on the other side.
pub struct Card {
    id: DeviceId,
    foreign: ForeignMaps,
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
    /// MSI-X vectors.
    pub const VECTORS: usize = interrupts::VECTORS;
    /// Bytes from one cell of [`doorbells`](Self::doorbells) to the next.
    pub const DOORBELL_STRIDE: usize = doorbells::STRIDE;

    /// A card as after power-on.
    pub fn new(config: &CardConfig) -> Arc<Self> {
        let id = DeviceId { vendor: VENDOR, device: config.device };
        let doorbells = Doorbells::new();
        let device = Mutex::new(Device::new(config));
        Arc::new(Self {
            id,
            foreign: ForeignMaps::default(),
            shared: Arc::new(Shared { device, doorbells, waiting: AtomicU32::new(0) }),
        })
    }

    /// A driver's read of a register of BAR 0, with its side effects.
    pub fn read(&self, offset: u32) -> u32 {
        self.shared.read(offset)
    }

    /// A driver's write to a register of BAR 0.
    pub fn write(&self, offset: u32, value: u32) {
        self.shared.write(offset, value);
    }

    /// Gives the card a part of another process's memory.
    pub fn map_foreign(
        &self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<(), Error> {
        self.shared.change(|device| device.map_foreign(iova, memory, offset, len, access))
    }

    /// Takes memory away: any span, with many maps, a part of one, or none. The card does not touch it afterwards.
    pub fn unmap(&self, iova: u64, len: u64) {
        self.shared.access(|device| device.unmap(iova, len));
    }

    /// Takes all memory away.
    pub fn unmap_all(&self) {
        self.shared.access(Device::unmap_all);
    }

    /// Where an MSI-X vector is heard; without MSI-X, all interrupts are vector 0. The event is written to without
    /// waiting.
    ///
    /// # Panics
    /// If the card has no such vector.
    pub fn set_vector(&self, vector: usize, event: Option<Signal>) {
        self.shared.access(|device| device.interrupts.set_vector(vector, event, &device.registers));
    }

    /// A function level reset: all as after power-on, but memory, vectors, link and wire stay.
    pub fn reset(&self) {
        self.shared.change(|device| device.reset(&self.shared.doorbells));
    }

    /// The file with the cells of the tail registers, for a driver in another process: `RDT(q)` at `q` times
    /// [`DOORBELL_STRIDE`](Self::DOORBELL_STRIDE) for `q` in `0..128`, `TDT(q)` at 128 + `q`, and at 256 the word that is
    /// not 0 while the model sleeps (see [`Bell`]).
    pub fn doorbells(&self) -> BorrowedFd<'_> {
        self.shared.doorbells.file()
    }

    /// The eventfd that wakes the model, for a driver in another process to signal.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.doorbells.sleeper().event()
    }

    /// One round: up to a burst from the wire into the Rx rings, and up to a burst from each Tx ring onto the wire.
    /// Returns how many packets moved. The same state, doorbells and wire give the same round.
    pub fn step(&self, wire: &mut Queues) -> usize {
        self.shared.let_registers_in();
        self.shared.lock().step(wire, &self.shared.doorbells)
    }

    /// Says that the stepping thread is about to sleep: from now on, doorbells and register writes make
    /// [`bell`](Self::bell) readable. Step once more before sleeping.
    pub fn doze(&self) {
        self.shared.doorbells.sleeper().doze();
    }

    /// Takes that back.
    pub fn rise(&self) {
        self.shared.doorbells.sleeper().rise();
    }

    /// What else the stepping thread has to look for while it sleeps.
    pub fn wants(&self) -> Wants {
        self.shared.access(|device| device.wants())
    }

    /// The model's own totals, which no driver can clear.
    pub fn counters(&self) -> Counters {
        self.shared.access(|device| *device.counters())
    }

    /// Plugs the cable in or out. While it is out, frames from the wire are lost and none is sent.
    pub fn set_link(&self, up: bool) {
        self.shared.change(|device| device.set_link(up));
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

    /// As `access`, where that may give the card something to do.
    fn change<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        let result = self.access(f);
        self.doorbells.sleeper().bell().ring();
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

// SAFETY: the cells are in the doorbells' region, which `self` keeps mapped.
#[allow(unsafe_code)]
unsafe impl Bar for Shared {
    fn read(&self, offset: u32) -> u32 {
        self.access(|device| device.observe(offset, &self.doorbells))
    }

    fn write(&self, offset: u32, value: u32) {
        self.change(|device| device.obey(offset, value, &self.doorbells));
    }

    /// # Panics
    /// If the register is neither RDT nor TDT: no other is written for each burst.
    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        let cell = self.doorbells.at(offset).unwrap_or_else(|| panic!("no doorbell at {offset:#x}, only RDT and TDT"));
        NonNull::new(cell.as_ptr()).expect("the address of an atomic")
    }

    fn bell(&self) -> Option<Bell> {
        Some(self.doorbells.sleeper().bell().clone())
    }
}

impl Model for Card {
    fn step(&self, wire: &mut Queues) -> usize {
        self.step(wire)
    }

    fn doze(&self) {
        self.doze();
    }

    fn rise(&self) {
        self.rise();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.shared.doorbells.sleeper().as_fd()
    }

    fn wants(&self) -> Wants {
        self.wants()
    }
}

impl Bus for Card {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        "a model in this process".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.shared.clone()))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.shared.change(|device| device.map(region));
        Ok(())
    }

    fn map_foreign(&self, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        let (iova, len) = (memory.as_ptr() as u64, memory.len());
        self.foreign.add(memory, || Card::map_foreign(self, iova, memory, 0, len, Access::ReadWrite))
    }

    fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        self.foreign.remove(memory, || self.unmap(memory.as_ptr() as u64, memory.len() as u64));
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.change(|device| device.bus_master = on);
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<Waiter>, Error> {
        crate::vectors(vectors.min(Self::VECTORS), |vector, signal| self.set_vector(vector, Some(signal)))
    }
}
