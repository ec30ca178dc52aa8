//! A driver's view of a BAR.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::{Bell, DMA, Readable, Reg, Writable};

/// How registers are reached: a mapped BAR, or a model in this process.
///
/// # Safety
/// What [`doorbell`](Self::doorbell) returns stays valid for volatile 32-bit writes as long as `self` lives.
pub unsafe trait Bar: Send + Sync {
    /// Reads 32 bits.
    fn read(&self, offset: u32) -> u32;
    /// Writes 32 bits.
    fn write(&self, offset: u32, value: u32);
    /// Where a register that is written for each burst lies in memory.
    fn doorbell(&self, offset: u32) -> NonNull<u32>;
    /// What wakes a device of software that sleeps; a card of silicon does not.
    fn bell(&self) -> Option<Bell> {
        None
    }
}

/// A register that did not get where it should in time; the text says which, where to and what it reads.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Timeout(String);

/// A BAR with typed registers.
#[derive(Clone)]
pub struct Window(Arc<dyn Bar>);

impl Window {
    /// A window onto a BAR.
    pub fn new(bar: Arc<dyn Bar>) -> Self {
        Self(bar)
    }

    /// Reads a register.
    pub fn read(&self, reg: Reg<impl Readable>) -> u32 {
        self.0.read(reg.offset)
    }

    /// Writes a register that starts no DMA.
    pub fn write(&self, reg: Reg<impl Writable>, value: u32) {
        self.0.write(reg.offset, value);
    }

    /// Writes an address that the device will access by itself to its low and its high register.
    ///
    /// # Safety
    /// The address is memory mapped for the device, for as long as the device may use it.
    pub unsafe fn write_dma(&self, [low, high]: [Reg<DMA>; 2], address: u64) {
        self.0.write(low.offset, address as u32);
        self.0.write(high.offset, (address >> 32) as u32);
    }

    /// Sets bits; the others stay.
    pub fn set(&self, reg: Reg<impl Readable + Writable + Copy>, bits: u32) {
        self.write(reg, self.read(reg) | bits);
    }

    /// Clears bits; the others stay.
    pub fn clear(&self, reg: Reg<impl Readable + Writable + Copy>, bits: u32) {
        self.write(reg, self.read(reg) & !bits);
    }

    /// Waits until `register & mask == want`.
    pub fn wait(&self, reg: Reg<impl Readable + Copy>, mask: u32, want: u32, limit: Duration) -> Result<(), Timeout> {
        let start = Instant::now();
        loop {
            let late = start.elapsed() >= limit;
            let last = self.read(reg);
            if last & mask == want {
                return Ok(());
            }
            if late {
                let (name, ms) = (reg.name, limit.as_millis());
                let text =
                    format!("{name} did not reach {want:#x} (mask {mask:#x}) within {ms} ms; it reads {last:#x}");
                return Err(Timeout(text));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The doorbell at a register.
    pub fn doorbell(&self, reg: Reg<impl Writable>) -> Doorbell {
        Doorbell { cell: self.0.doorbell(reg.offset), bell: self.0.bell(), _bar: self.0.clone() }
    }
}

/// A register that tells the device of new descriptors.
pub struct Doorbell {
    cell: NonNull<u32>,
    bell: Option<Bell>,
    _bar: Arc<dyn Bar>,
}

// SAFETY: the cell is valid as long as the BAR, which is `Send` and `Sync`.
unsafe impl Send for Doorbell {}

impl Doorbell {
    /// Rings: the device sees all that was written before, then `value`.
    #[inline]
    pub fn ring(&self, value: u32) {
        fence(Ordering::Release);
        // SAFETY: valid for volatile writes while the BAR lives (`Bar`), which `self` sees to.
        unsafe { self.cell.as_ptr().write_volatile(value) };
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}
