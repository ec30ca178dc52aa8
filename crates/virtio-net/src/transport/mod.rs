//! How the driver reaches a virtio device: its status, features, configuration and queues, over either interface that
//! PCI cards have (VIRTIO 1.3, 4.1).

mod capabilities;
mod legacy;
mod modern;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ringpass_bus::Bus;
use ringpass_port::Error;
use ringpass_registers::IoRegion;
use ringpass_virtio::driver::{Addresses, Broken, HandedOver, Unreturned};

use self::legacy::Legacy;
use self::modern::Modern;

/// No vector, in the registers that name one (4.1.5.1.2).
const NO_VECTOR: u16 = 0xffff;

/// How long a reset may take.
const LIMIT: Duration = Duration::from_secs(1);

/// How often configuration is read until it holds still.
const ATTEMPTS: usize = 100;

/// A device as its driver sees it, without its queues' memory.
pub trait Transport: Send {
    /// Which interface this is and how it is reached, for people.
    fn description(&self) -> String;

    /// Whether it is the legacy interface: queues of one size, features of 32 bits, no FEATURES_OK.
    fn is_legacy(&self) -> bool;

    /// Resets the device, and waits at most 1 s until it says that it is.
    fn reset(&mut self) -> Result<(), Error>;

    /// Device status (2.1).
    fn status(&mut self) -> u8;

    /// Writes the device status.
    fn set_status(&mut self, status: u8);

    /// Features that the device offers.
    fn features(&mut self) -> u64;

    /// Tells the device which of them the driver takes.
    fn accept(&mut self, features: u64);

    /// The largest size of a queue, with the legacy interface the only one; 0 if there is no such queue.
    fn queue_size(&mut self, queue: u16) -> u16;

    /// Tells the device where a queue lies, and starts it.
    ///
    /// # Safety
    /// The device may use the addresses for a queue of that size until it or the queue is reset.
    unsafe fn start_queue(&mut self, queue: u16, setup: &Setup) -> Result<Box<dyn Notify>, Error>;

    /// Resets one queue, and waits at most 1 s until the device says that it is. With
    /// [`RING_RESET`](ringpass_virtio::features::RING_RESET) only (2.6.1).
    fn reset_queue(&mut self, queue: u16) -> Result<(), Error>;

    /// Reads a field of the device-specific configuration, or an array of bytes; an error beyond the end.
    fn read_config(&mut self, offset: usize, out: &mut [u8]) -> Result<(), Error>;

    /// Writes a field of the device-specific configuration, or an array of bytes; an error beyond the end.
    fn write_config(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Who has the device use several pairs of queues.
    fn pairs(&self) -> Pairs {
        Pairs::ByCommand
    }

    /// Whether another device may take the place of one that has died. If so, the transport is given its queues.
    fn outlives_device(&self) -> bool {
        false
    }

    /// A queue, before the device is up.
    fn adopt(&mut self, queue: u16, ring: Weak<dyn HandOver>) {
        let _ = (queue, ring);
    }
}

/// How a device is told to use several pairs of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// By its driver, over the control queue (5.1.6.5.5).
    ByCommand,
    /// By the transport, which enables all queues that it is told to start.
    ByTransport,
}

/// A queue that another device can be given, while it is used.
pub trait HandOver: Send + Sync {
    /// As [`Virtqueue::hand_over`](ringpass_virtio::driver::Virtqueue::hand_over).
    fn hand_over(&self, rest: Unreturned) -> Result<HandedOver, Broken>;
}

/// How a queue is started.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Descriptors.
    pub size: u16,
    /// Where it lies, on the device's side.
    pub addresses: Addresses,
    /// The interrupt vector of the bus that it uses, if any.
    pub vector: Option<u16>,
    /// [`NOTIFICATION_DATA`](ringpass_virtio::features::NOTIFICATION_DATA) was negotiated.
    pub notification_data: bool,
}

/// A queue's doorbell.
pub trait Notify: Send {
    /// Tells the device to look at the queue. `position` is what
    /// [`publish`](ringpass_virtio::driver::Virtqueue::publish) returned.
    fn notify(&self, position: u16);
}

/// The interface of the device on a bus: the modern one if it has that, else the legacy one.
pub fn find(bus: &Arc<dyn Bus>) -> Result<Box<dyn Transport>, Error> {
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
    says: Says,
}

/// What a doorbell tells (4.1.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Queue,
    QueueAndPosition,
}

impl Says {
    /// Bytes that are written.
    const fn width(self) -> usize {
        match self {
            Self::Queue => 2,
            Self::QueueAndPosition => 4,
        }
    }
}

impl Notify for Doorbell {
    fn notify(&self, position: u16) {
        match self.says {
            Says::Queue => self.region.write16(self.offset, self.queue),
            Says::QueueAndPosition => {
                self.region.write32(self.offset, u32::from(self.queue) | u32::from(position) << 16);
            }
        }
    }
}

/// Reads a register until it is 0, for at most [`LIMIT`]; one of all ones is a device that is gone.
fn wait_for_zero(what: &str, ones: u16, mut read: impl FnMut() -> u16) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        let late = start.elapsed() >= LIMIT;
        match read() {
            0 => return Ok(()),
            value if value == ones => return Err(gone()),
            value if late => {
                let ms = LIMIT.as_millis();
                return Err(Error::Other(format!("{what} did not end within {ms} ms; it reads {value:#x}")));
            }
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Writes a queue's vector, or none, by a function that returns what is read back. A device that has not what it takes
/// for a vector says none (4.1.5.1.2).
fn set_vector(queue: u16, vector: Option<u16>, write: impl FnOnce(u16) -> u16) -> Result<(), Error> {
    let wanted = vector.unwrap_or(NO_VECTOR);
    match write(wanted) {
        found if found == wanted => Ok(()),
        NO_VECTOR => {
            Err(Error::Other(format!("the card refuses interrupt vector {wanted} for queue {queue}; use fewer queues")))
        }
        found => Err(Error::Other(format!("the card took vector {found} for queue {queue} instead of {wanted}"))),
    }
}

fn gone() -> Error {
    Error::Other("the device is gone: its registers read as ones".into())
}

/// Part of a region: the device-specific configuration.
struct Config<'a> {
    region: &'a dyn IoRegion,
    start: usize,
    len: usize,
}

impl Config<'_> {
    fn at(&self, offset: usize, count: usize) -> Result<usize, Error> {
        let inside = offset.checked_add(count).is_some_and(|end| end <= self.len);
        let error = || {
            let (len, end) = (self.len, offset.saturating_add(count));
            Error::Other(format!("the device's configuration has {len} bytes; it cannot be reached up to {end}"))
        };
        inside.then(|| self.start + offset).ok_or_else(error)
    }

    /// 4.1.3.1: fields are accessed as a whole, those of 64 bits by halves. What has another length is bytes.
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
