//! A card of straw: registers that answer as a driver hopes, and descriptors that a test writes back by hand, truly or
//! not. Honest behaviour is the business of QEMU's card; this is for what no honest card does.

#![allow(dead_code)] // Each test file uses its part.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ringpass_bus::{Bus, DeviceId, Waiter};
use ringpass_memory::{Addressing, DmaRegion};
use ringpass_port::Error;
use ringpass_registers::igb::{bits::*, *};
use ringpass_registers::{Bar, Window};
use rustix::event::{EventfdFlags, eventfd};

pub const STATUS_SPEED_1000: u32 = 0x80;
/// What the PHY says of itself: 1000 Mbit/s, full duplex.
pub const PHY_CONTROL: u32 = 0x0140;

/// The card. Registers keep what is written, but for those in `stuck`, which always read the same.
pub struct Straw {
    cells: Box<[AtomicU32]>,
    stuck: Mutex<HashMap<u32, u32>>,
    pub mapped: Mutex<Vec<Arc<DmaRegion>>>,
    pub bus_master: AtomicU32,
    /// What was written to MDIC.
    pub phy: Mutex<Vec<u32>>,
    /// The vectors that the driver enabled.
    pub events: Mutex<Vec<OwnedFd>>,
}

impl Straw {
    pub fn new() -> Arc<Self> {
        let cells = (0..0x20000 / 4).map(|_| AtomicU32::new(0)).collect();
        let (stuck, mapped, bus_master, phy, events) = Default::default();
        let straw = Self { cells, stuck, mapped, bus_master, phy, events };
        straw.stick(EECD.offset, EECD_AUTO_RD);
        straw.stick(RAL.at(0).offset, u32::from_le_bytes([2, 0, 0, 1]));
        straw.stick(RAH.at(0).offset, 0x8000_0000 | u32::from(u16::from_le_bytes([2, 3])));
        straw.stick(STATUS.offset, STATUS_LU | STATUS_SPEED_1000);
        straw.stick(MDIC.offset, MDIC_R | PHY_CONTROL);
        Arc::new(straw)
    }

    /// Makes a register always read `value`.
    pub fn stick(&self, offset: u32, value: u32) {
        self.stuck.lock().unwrap().insert(offset, value);
    }

    pub fn get(&self, offset: u32) -> u32 {
        self.cells[offset as usize / 4].load(Ordering::Acquire)
    }

    /// Sets a register, as if it had just been reset.
    pub fn write_for_test(&self, offset: u32, value: u32) {
        self.cells[offset as usize / 4].store(value, Ordering::Release);
    }

    fn word(&self, low: u32, index: u32, half: usize) -> &AtomicU64 {
        let base = u64::from(self.get(low)) | u64::from(self.get(low + 4)) << 32;
        // SAFETY: tests run the driver correctly: the base is that of a ring in mapped memory, 16 bytes a descriptor,
        // and `mapped` keeps the memory.
        unsafe { &*((base + u64::from(index) * 16 + half as u64 * 8) as *const AtomicU64) }
    }

    /// Half of a descriptor of Rx queue 0.
    pub fn rx(&self, index: u32, half: usize) -> &AtomicU64 {
        self.word(RDBAL.at(0).offset, index, half)
    }

    /// Half of a descriptor of Tx queue 0.
    pub fn tx(&self, index: u32, half: usize) -> &AtomicU64 {
        self.word(TDBAL.at(0).offset, index, half)
    }
}

// SAFETY: the cells live as long as the card.
unsafe impl Bar for Straw {
    fn read(&self, offset: u32) -> u32 {
        let stuck = self.stuck.lock().unwrap().get(&offset).copied();
        stuck.unwrap_or_else(|| self.get(offset))
    }

    fn write(&self, offset: u32, value: u32) {
        // A reset has ended when it is asked for.
        let value = if offset == CTRL.offset { value & !CTRL_RST } else { value };
        if offset == MDIC.offset {
            self.phy.lock().unwrap().push(value);
        }
        self.cells[offset as usize / 4].store(value, Ordering::Release);
    }

    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        NonNull::new(self.cells[offset as usize / 4].as_ptr()).expect("the address of a cell")
    }
}

/// The bus of a card of straw.
pub struct StrawBus(pub Arc<Straw>);

impl Bus for StrawBus {
    fn id(&self) -> DeviceId {
        DeviceId { vendor: 0x8086, device: 0x10c9 }
    }

    fn description(&self) -> String {
        "straw".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.0.clone()))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.0.mapped.lock().unwrap().push(region.clone());
        Ok(())
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<Waiter>, Error> {
        let mut events = self.0.events.lock().unwrap();
        events.resize_with(vectors, || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
        let waiter = |event: &OwnedFd| Waiter::on(event.try_clone().expect("a descriptor is left"));
        Ok(events.iter().map(waiter).collect::<Result<_, _>>().expect("a descriptor is left"))
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.0.bus_master.store(on.into(), Ordering::Release);
        Ok(())
    }
}
