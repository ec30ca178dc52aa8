//! The NIC in the process: what a driver in it, a server and the wire reach.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_ipc::{EventNotifier, EventWaiter};
use ringpass_memory::{Access, Addressing, DmaMapError, DmaRegion, ForeignMemory, Memory};
use ringpass_pci::registers::ixgbe::VENDOR;
use ringpass_pci::registers::{Bar, DeviceWaker, Window};
use ringpass_pci::{DeviceId, ForeignMaps, PciDevice};
use ringpass_port::{Direction, Error, QueuePair};

use super::config::CardConfig;
use super::device::Device;
use super::doorbells::{self, Doorbells};
use super::interrupts;
use super::stats::Counters;
use crate::model::{Interest, Model};
use crate::step::Step;

/// A NIC in the process: a PCI device for the driver, and a wire on the other side.
pub struct Card {
    id: DeviceId,
    foreign: ForeignMaps,
    shared: Arc<Shared>,
}

/// State shared by the NIC and the windows and doorbells of its BAR.
struct Shared {
    device: Mutex<Device>,
    doorbells: Doorbells,
    /// Number of register accesses under way. The stepping thread, which holds the lock nearly all the time,
    /// yields to them.
    waiting: AtomicU32,
}

impl Card {
    /// Number of MSI-X vectors.
    pub const VECTORS: usize = interrupts::VECTORS;
    /// Bytes from one cell of [`doorbells`](Self::doorbells) to the next.
    pub const DOORBELL_STRIDE: usize = doorbells::STRIDE;

    /// Creates a NIC in its state after power-on.
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

    /// Carries out a driver's read of a register of BAR 0, with its side effects.
    pub fn read(&self, offset: u32) -> u32 {
        self.shared.read(offset)
    }

    /// Carries out a driver's write to a register of BAR 0.
    pub fn write(&self, offset: u32, value: u32) {
        self.shared.write(offset, value);
    }

    /// Returns the cell of a tail register.
    pub(super) fn tail(&self, offset: u32) -> Option<&AtomicU32> {
        self.shared.doorbells.at(offset)
    }

    /// Calls `f` between two steps.
    pub(super) fn look<R>(&self, f: impl FnOnce(&Device) -> R) -> R {
        self.shared.access(|device| f(device))
    }

    /// Maps memory for DMA, from `iova` on.
    pub fn map_at(&self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        self.shared.change(|device| device.map_at(iova, memory, access))
    }

    /// Unmaps a range of addresses, which may cover many maps, a part of one, or none. The NIC does not access
    /// it afterwards. Fails, with nothing unmapped, if a hole would make one more map than there may be.
    pub fn unmap(&self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        self.shared.access(|device| device.unmap(iova, len))
    }

    /// Unmaps all memory.
    pub fn unmap_all(&self) {
        self.shared.access(Device::unmap_all);
    }

    /// Sets or removes the event of an MSI-X vector. Without MSI-X, all interrupts go to vector 0. Signalling
    /// never blocks.
    ///
    /// # Panics
    /// If the NIC has no such vector.
    pub fn set_vector(&self, vector: usize, event: Option<EventNotifier>) {
        self.shared.access(|device| device.interrupts.set_vector(vector, event, &device.registers));
    }

    /// Resets the function (FLR) to its state after power-on, except that memory, vectors, link and wire stay.
    pub fn reset(&self) {
        self.shared.change(|device| device.reset(&self.shared.doorbells));
    }

    /// Returns the file with the cells of the tail registers, for a driver in another process. In units of
    /// [`DOORBELL_STRIDE`](Self::DOORBELL_STRIDE), the cell of `RDT(q)` is at `q` and that of `TDT(q)` at
    /// `128 + q`, for `q` in `0..128`. At 256 is the word that is not 0 while the model sleeps (see
    /// [`DeviceWaker`]).
    pub fn doorbells(&self) -> BorrowedFd<'_> {
        self.shared.doorbells.file()
    }

    /// Returns the eventfd that a driver in another process signals to wake the model.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.shared.doorbells.sleeper().event()
    }

    /// Runs one step: receives up to a burst from the wire and sends up to a burst from each Tx ring. Returns
    /// how many packets moved. The same state, doorbells and wire give the same result; only throttled
    /// interrupts depend on the time.
    pub fn step(&self, wire: &mut QueuePair) -> usize {
        self.shared.yield_to_registers();
        self.shared.lock().step(wire, &self.shared.doorbells)
    }

    /// Announces that the stepping thread is about to sleep: from now on, doorbells and register writes make
    /// [`waker`](Self::waker) readable. Step once more before sleeping.
    pub fn prepare_to_wait(&self) {
        self.shared.doorbells.sleeper().prepare_to_wait();
    }

    /// Ends what [`prepare_to_wait`](Self::prepare_to_wait) announced.
    pub fn finish_wait(&self) {
        self.shared.doorbells.sleeper().finish_wait();
    }

    /// Returns the other events that the stepping thread has to wait for while it sleeps.
    pub fn interest(&self) -> Interest {
        self.shared.access(|device| device.interest())
    }

    /// Returns the model's own totals, which a driver cannot clear.
    pub fn counters(&self) -> Counters {
        self.shared.access(|device| *device.counters())
    }

    /// Returns the number of descriptors that the driver has posted to all enabled Rx rings, and that the NIC has not used yet.
    pub fn rx_posted(&self) -> usize {
        self.shared.access(|device| device.rx_posted(&self.shared.doorbells))
    }

    /// Sets the link up or down. While it is down, frames from the wire are lost and none is sent.
    pub fn set_link(&self, up: bool) {
        self.shared.change(|device| device.set_link(up));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Device> {
        // If a test panicked with the lock held, that has been reported; the registers are valid at any time.
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` between two steps.
    fn access<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = f(&mut self.lock());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Runs `f` between two steps and wakes the stepping thread, as `f` may give the NIC something to do.
    fn change<R>(&self, f: impl FnOnce(&mut Device) -> R) -> R {
        let result = self.access(f);
        self.doorbells.sleeper().waker().ring();
        result
    }

    /// Yields to register accesses that wait for the lock: a mutex that is unlocked and locked again at once
    /// starves other threads.
    fn yield_to_registers(&self) {
        for _ in 0..100 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

// SAFETY: `doorbell` returns pointers to cells in the region of `self.doorbells`, which `self` keeps mapped.
// The cells are atomics, aligned and valid for 32-bit writes.
#[allow(unsafe_code)]
unsafe impl Bar for Shared {
    fn read(&self, offset: u32) -> u32 {
        self.access(|device| device.mmio_read(offset, &self.doorbells))
    }

    fn write(&self, offset: u32, value: u32) {
        self.change(|device| device.mmio_write(offset, value, &self.doorbells));
    }

    /// # Panics
    /// If the register is neither RDT nor TDT: a driver writes no other once per burst.
    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        let cell = self.doorbells.at(offset).unwrap_or_else(|| panic!("no doorbell at {offset:#x}, only RDT and TDT"));
        NonNull::new(cell.as_ptr()).expect("the address of an atomic")
    }

    fn waker(&self) -> Option<DeviceWaker> {
        Some(self.doorbells.sleeper().waker().clone())
    }
}

impl Model for Card {
    fn step(&self, wire: &mut QueuePair) -> usize {
        self.step(wire)
    }

    fn prepare_to_wait(&self) {
        self.prepare_to_wait();
    }

    fn finish_wait(&self) {
        self.finish_wait();
    }

    fn waker(&self) -> BorrowedFd<'_> {
        self.shared.doorbells.sleeper().as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest()
    }

    fn can_step_one(&self) -> bool {
        true
    }

    fn trace(&self, on: bool) {
        self.shared.access(|device| device.trace(on, &self.shared.doorbells));
    }

    fn step_one(&self, wire: &mut QueuePair, direction: Direction) -> Option<Step> {
        self.shared.access(|device| device.step_one(wire, direction, &self.shared.doorbells))
    }

    fn settle(&self) {
        self.shared.access(Device::settle);
    }
}

impl PciDevice for Card {
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
        self.shared.change(|device| device.map(region)).map_err(|error| Error::Fault(error.to_string()))
    }

    fn map_foreign(&self, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        let iova = memory.as_ptr() as u64;
        self.foreign.add(memory, || {
            let mapped = self.map_at(iova, memory.clone().into(), Access::ReadWrite);
            mapped.map_err(|error| Error::Fault(error.to_string()))
        })
    }

    fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        // A map that is removed as a whole leaves no hole, so this does not fail.
        self.foreign.remove(memory, || _ = self.unmap(memory.as_ptr() as u64, memory.len() as u64));
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.change(|device| device.bus_master = on);
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        crate::vector::vectors(vectors.min(Self::VECTORS), |vector, signal| self.set_vector(vector, Some(signal)))
    }
}
