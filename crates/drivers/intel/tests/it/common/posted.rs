//! A bus on which writes to registers take as long as a test likes, and reads wait for them, as on PCI Express.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ringpass_memory::{Addressing, DmaRegion, ForeignMemory};
use ringpass_models::ixgbe::Card;
use ringpass_pci::registers::ixgbe::{RDT, TDT};
use ringpass_pci::registers::{Bar, Window};
use ringpass_pci::{DeviceId, EventWaiter, PciDevice};
use ringpass_port::Error;

/// The bus of a modelled card.
#[derive(Clone)]
pub struct PostedBus(Arc<Posted>);

struct Posted {
    card: Arc<Card>,
    /// The cells of the tails.
    doorbells: Arc<ForeignMemory>,
    /// Writes on their way, while these are held.
    held: Mutex<Option<Vec<(u32, u32)>>>,
}

impl PostedBus {
    pub fn new(card: Arc<Card>) -> Arc<Self> {
        let doorbells = ForeignMemory::map(card.doorbells(), 0, 257 * Card::DOORBELL_STRIDE).expect("the model's file");
        Arc::new(Self(Arc::new(Posted { card, doorbells, held: Mutex::default() })))
    }

    /// Holds writes from now on, until a read.
    pub fn hold(&self) {
        *self.0.held.lock().unwrap() = Some(Vec::new());
    }

    /// Lets writes arrive at once again, and those that are held.
    pub fn release(&self) {
        self.0.arrive();
        *self.0.held.lock().unwrap() = None;
    }
}

impl Posted {
    fn arrive(&self) {
        let held = self.held.lock().unwrap().as_mut().map(std::mem::take);
        held.into_iter().flatten().for_each(|(offset, value)| self.card.write(offset, value));
    }
}

// SAFETY: a doorbell points into `doorbells`, which `self` keeps mapped.
unsafe impl Bar for Posted {
    fn read(&self, offset: u32) -> u32 {
        self.arrive();
        self.card.read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        match &mut *self.held.lock().unwrap() {
            Some(held) => held.push((offset, value)),
            None => self.card.write(offset, value),
        }
    }

    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        let first = TDT.at(0).offset;
        let index = if offset >= first { 128 + (offset - first) / 0x40 } else { (offset - RDT.at(0).offset) / 0x40 };
        let cell = self.doorbells.as_ptr().wrapping_add(index as usize * Card::DOORBELL_STRIDE);
        NonNull::new(cell.cast()).expect("an address in a mapping")
    }
}

impl PciDevice for PostedBus {
    fn id(&self) -> DeviceId {
        self.0.card.id()
    }

    fn description(&self) -> String {
        "a bus that takes its time".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Ok(Window::new(self.0.clone()))
    }

    fn addressing(&self) -> Addressing {
        self.0.card.addressing()
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        self.0.card.map(region)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.0.card.set_bus_master(on)
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        self.0.card.interrupts(vectors)
    }
}
