//! Access to a virtio device: status, features, configuration and queues, by either interface of PCI cards
//! (VIRTIO 1.3, 4.1).

mod capabilities;
mod legacy;
mod modern;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ringpass_pci::PciDevice;
use ringpass_pci::registers::IoRegion;
use ringpass_port::Error;
use ringpass_virtio::driver::{Addresses, Broken, HandedOver, InflightPolicy};

use self::legacy::Legacy;
use self::modern::Modern;

/// Value that means "no vector" in registers that name one (4.1.5.1.2).
const NO_VECTOR: u16 = 0xffff;

/// How long a reset may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

/// How many times the configuration is read until it is consistent.
const ATTEMPTS: usize = 100;

/// A virtio device as its driver accesses it, without the memory of its queues.
pub trait Transport: Send {
    /// Describes the interface and how it is accessed, for the user.
    fn description(&self) -> String;

    /// Returns whether this is the legacy interface: fixed queue sizes, 32 feature bits, no FEATURES_OK.
    fn is_legacy(&self) -> bool;

    /// Resets the device, and waits up to 1 s until it reports the reset as done.
    fn reset(&mut self) -> Result<(), Error>;

    /// Returns the device status (2.1).
    fn status(&mut self) -> u8;

    /// Writes the device status.
    fn set_status(&mut self, status: u8);

    /// Returns the features that the device offers.
    fn features(&mut self) -> u64;

    /// Writes the features that the driver accepts.
    fn accept(&mut self, features: u64);

    /// Returns the largest size of a queue, or 0 if there is no such queue. With the legacy interface it is the
    /// only size.
    fn queue_size(&mut self, queue: u16) -> u16;

    /// Gives the device the addresses of a queue, and starts it.
    ///
    /// # Safety
    /// The device may use the addresses for a queue of that size until it or the queue is reset.
    unsafe fn start_queue(&mut self, queue: u16, setup: &QueueSetup) -> Result<Box<dyn Notify>, Error>;

    /// Resets one queue, and waits up to 1 s until the device reports that as done. Only with
    /// [`RING_RESET`](ringpass_virtio::features::RING_RESET) (2.6.1).
    fn reset_queue(&mut self, queue: u16) -> Result<(), Error>;

    /// Reads a field or a byte array of the device-specific configuration; an error if it lies beyond the end.
    fn read_config(&mut self, offset: usize, out: &mut [u8]) -> Result<(), Error>;

    /// Writes a field or a byte array of the device-specific configuration; an error if it lies beyond the end.
    fn write_config(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Returns how the device is told to use several queue pairs.
    fn pairs(&self) -> Pairs {
        Pairs::ByCommand
    }

    /// Returns whether another device can replace one that has died. If so, the driver gives its queues to the
    /// transport ([`adopt`](Self::adopt)).
    fn outlives_device(&self) -> bool {
        false
    }

    /// Gives the transport a handle of a queue, before the device is up.
    fn adopt(&mut self, queue: u16, ring: Weak<dyn HandOver>) {
        let _ = (queue, ring);
    }
}

/// How a device is told to use several queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// By a command of the driver on the control queue (5.1.6.5.5).
    ByCommand,
    /// By the transport, which enables every queue that it starts.
    ByTransport,
}

/// A queue that can be handed over to another device while it is in use.
pub trait HandOver: Send + Sync {
    /// Hands the queue over, as [`Virtqueue::hand_over`](ringpass_virtio::driver::Virtqueue::hand_over) does.
    fn hand_over(&self, rest: InflightPolicy) -> Result<HandedOver, Broken>;
}

/// Parameters for starting a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueSetup {
    /// Number of descriptors.
    pub size: u16,
    /// Device-side addresses of the queue.
    pub addresses: Addresses,
    /// The bus's interrupt vector for the queue, if any.
    pub vector: Option<u16>,
    /// Whether [`NOTIFICATION_DATA`](ringpass_virtio::features::NOTIFICATION_DATA) was negotiated.
    pub notification_data: bool,
}

/// A queue's doorbell.
pub trait Notify: Send {
    /// Notifies the device of new buffers in the queue. `position` is the value that
    /// [`publish`](ringpass_virtio::driver::Virtqueue::publish) returned.
    fn notify(&self, position: u16);
}

/// Returns the transport for a device on a bus: the modern interface if the device has it, else the legacy one.
pub fn find(bus: &Arc<dyn PciDevice>) -> Result<Box<dyn Transport>, Error> {
    Ok(match capabilities::structures(&**bus)? {
        Some(structures) => Box::new(Modern::new(bus, &structures)?),
        None => Box::new(Legacy::new(bus)?),
    })
}

/// A doorbell in a device's registers.
struct Doorbell {
    region: Arc<dyn IoRegion>,
    offset: usize,
    queue: u16,
    payload: NotifyPayload,
}

/// Value that is written to a doorbell (4.1.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotifyPayload {
    Queue,
    QueueAndPosition,
}

impl NotifyPayload {
    /// Returns the width of the write in bytes.
    const fn width(self) -> usize {
        match self {
            Self::Queue => 2,
            Self::QueueAndPosition => 4,
        }
    }
}

impl Notify for Doorbell {
    fn notify(&self, position: u16) {
        match self.payload {
            NotifyPayload::Queue => self.region.write16(self.offset, self.queue),
            NotifyPayload::QueueAndPosition => {
                self.region.write32(self.offset, u32::from(self.queue) | u32::from(position) << 16);
            }
        }
    }
}

/// Polls a register until it reads 0, for at most [`RESET_TIMEOUT`]. The value `ones` means that the device is
/// gone.
fn wait_for_zero(what: &str, ones: u16, mut read: impl FnMut() -> u16) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        let late = start.elapsed() >= RESET_TIMEOUT;
        match read() {
            0 => return Ok(()),
            value if value == ones => return Err(gone()),
            value if late => {
                let ms = RESET_TIMEOUT.as_millis();
                return Err(Error::Gone(format!("{what} did not end within {ms} ms; it reads {value:#x}")));
            }
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Sets a queue's vector, or none, by a function that writes it and returns what the register then reads. A
/// device that cannot allocate resources for the vector makes it read as "none" (4.1.5.1.2).
fn set_vector(queue: u16, vector: Option<u16>, write: impl FnOnce(u16) -> u16) -> Result<(), Error> {
    let wanted = vector.unwrap_or(NO_VECTOR);
    match write(wanted) {
        found if found == wanted => Ok(()),
        NO_VECTOR => Err(Error::Unsupported(format!(
            "the card refuses interrupt vector {wanted} for queue {queue}; use fewer queues"
        ))),
        found => Err(Error::Fault(format!("the card took vector {found} for queue {queue} instead of {wanted}"))),
    }
}

fn gone() -> Error {
    Error::Gone("the device is gone: its registers read as ones".into())
}

/// The part of a region that is the device-specific configuration.
struct ConfigRegion<'a> {
    region: &'a dyn IoRegion,
    start: usize,
    len: usize,
}

impl ConfigRegion<'_> {
    fn at(&self, offset: usize, count: usize) -> Result<usize, Error> {
        let inside = offset.checked_add(count).is_some_and(|end| end <= self.len);
        let error = || {
            let (len, end) = (self.len, offset.saturating_add(count));
            Error::Fault(format!("the device's configuration has {len} bytes; it cannot be reached up to {end}"))
        };
        inside.then(|| self.start + offset).ok_or_else(error)
    }

    /// Returns the width of an access in bytes (4.1.3.1): fields are accessed whole, 64-bit ones in halves.
    /// Other lengths are byte arrays.
    fn width(at: usize, count: usize) -> usize {
        match count {
            2 if at.is_multiple_of(2) => 2,
            4 | 8 if at.is_multiple_of(4) => 4,
            _ => 1,
        }
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let at = self.at(offset, out.len())?;
        let width = Self::width(at, out.len());
        for (at, out) in (at..).step_by(width).zip(out.chunks_exact_mut(width)) {
            match width {
                2 => out.copy_from_slice(&self.region.read16(at).to_le_bytes()),
                4 => out.copy_from_slice(&self.region.read32(at).to_le_bytes()),
                _ => out[0] = self.region.read8(at),
            }
        }
        Ok(())
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = self.at(offset, bytes.len())?;
        let width = Self::width(at, bytes.len());
        for (at, bytes) in (at..).step_by(width).zip(bytes.chunks_exact(width)) {
            match *bytes {
                [a, b] => self.region.write16(at, u16::from_le_bytes([a, b])),
                [a, b, c, d] => self.region.write32(at, u32::from_le_bytes([a, b, c, d])),
                _ => self.region.write8(at, bytes[0]),
            }
        }
        Ok(())
    }
}
