//! A driver's access to the registers of a BAR.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::{DMA, DeviceWaker, Readable, Reg, Writable};

/// A BAR as the driver accesses it: mapped, or of a model in this process.
///
/// # Safety
/// The pointer that [`doorbell`](Self::doorbell) returns stays valid for volatile 32-bit writes as long as
/// `self` lives.
pub unsafe trait Bar: Send + Sync {
    /// Reads 32 bits.
    fn read(&self, offset: u32) -> u32;
    /// Writes 32 bits.
    fn write(&self, offset: u32, value: u32);
    /// Returns the address in memory of a register that is written once per burst.
    fn doorbell(&self, offset: u32) -> NonNull<u32>;
    /// Returns the waker of a software device that can sleep; `None` for hardware.
    fn waker(&self) -> Option<DeviceWaker> {
        None
    }
}

/// A register did not reach the expected value in time. The text gives its name, the value expected and the
/// last value read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Timeout(String);

/// A BAR with typed registers.
#[derive(Clone)]
pub struct Window(Arc<dyn Bar>);

impl Window {
    /// Creates a window onto a BAR.
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

    /// Writes an address that the device will access by DMA to its low and its high register.
    ///
    /// # Safety
    /// The address is memory mapped for the device, for as long as the device may use it.
    pub unsafe fn write_dma(&self, [low, high]: [Reg<DMA>; 2], address: u64) {
        self.0.write(low.offset, address as u32);
        self.0.write(high.offset, (address >> 32) as u32);
    }

    /// Sets bits; the others keep their value.
    pub fn set(&self, reg: Reg<impl Readable + Writable + Copy>, bits: u32) {
        self.write(reg, self.read(reg) | bits);
    }

    /// Clears bits; the others keep their value.
    pub fn clear(&self, reg: Reg<impl Readable + Writable + Copy>, bits: u32) {
        self.write(reg, self.read(reg) & !bits);
    }

    /// Waits until `register & mask == want`, for at most `limit`.
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

    /// Returns the doorbell at a register.
    pub fn doorbell(&self, reg: Reg<impl Writable>) -> Doorbell {
        Doorbell { cell: self.0.doorbell(reg.offset), waker: self.0.waker(), _bar: self.0.clone() }
    }
}

/// A doorbell: a register that tells the device that there are new descriptors.
pub struct Doorbell {
    cell: NonNull<u32>,
    waker: Option<DeviceWaker>,
    _bar: Arc<dyn Bar>,
}

// SAFETY: `cell` may be written from any thread as long as the BAR lives (`Bar::doorbell`), which `_bar`
// ensures. The BAR is `Send` and `Sync`, and `DeviceWaker` is `Send`.
unsafe impl Send for Doorbell {}

impl Doorbell {
    // ANCHOR: ring
    /// Rings the doorbell: the device sees everything that was written before, then `value`.
    #[inline]
    pub fn ring(&self, value: u32) {
        fence(Ordering::Release);
        // SAFETY: `Bar` guarantees that the pointer is valid for volatile writes while the BAR lives, and
        // `_bar` keeps it alive.
        unsafe { self.cell.as_ptr().write_volatile(value) };
        if let Some(waker) = &self.waker {
            waker.ring();
        }
    }
    // ANCHOR_END: ring
}
