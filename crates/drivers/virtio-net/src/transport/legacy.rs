//! The legacy interface: registers in the I/O ports of BAR 0 (VIRTIO 1.3, 4.1.4.10). All of them are
//! little-endian, like the processors that Ringpass runs on.

use std::sync::Arc;

use ringpass_pci::PciDevice;
use ringpass_pci::registers::IoRegion;
use ringpass_port::Error;
use ringpass_virtio::driver::Addresses;
use ringpass_virtio::layout::{LEGACY_ALIGN, MAX_SIZE};

use super::capabilities::{msix_control, msix_is_on};
use super::{
    ATTEMPTS, ConfigRegion, Doorbell, NO_VECTOR, Notify, NotifyPayload, QueueSetup, Transport, set_vector,
    wait_for_zero,
};

const DEVICE_FEATURES: usize = 0;
const DRIVER_FEATURES: usize = 4;
const QUEUE_ADDRESS: usize = 8;
const QUEUE_SIZE: usize = 12;
const QUEUE_SELECT: usize = 14;
const QUEUE_NOTIFY: usize = 16;
const DEVICE_STATUS: usize = 18;
// Only with MSI-X enabled; without it, the device-specific configuration follows the status directly.
const CONFIG_MSIX_VECTOR: usize = 20;
const QUEUE_MSIX_VECTOR: usize = 22;
const CONFIG: usize = 20;
const CONFIG_WITH_MSIX: usize = 24;

/// Queue addresses are given as page numbers of 4096 bytes.
const PAGE_SHIFT: u32 = 12;

/// A device with the legacy interface.
pub(super) struct Legacy {
    header: Arc<dyn IoRegion>,
    /// Offset of the MSI-X control register in configuration space, if there is one.
    msix_control: Option<usize>,
    bus: Arc<dyn PciDevice>,
}

impl Legacy {
    pub(super) fn new(bus: &Arc<dyn PciDevice>) -> Result<Self, Error> {
        let header = bus.region(0)?;
        if header.len() < CONFIG_WITH_MSIX {
            let what = format!("BAR 0 has {} bytes, too few for the legacy interface of virtio", header.len());
            return Err(Error::Fault(format!("{what}; this card cannot be driven")));
        }
        Ok(Self { header, msix_control: msix_control(&**bus)?, bus: bus.clone() })
    }

    fn msix_is_on(&self) -> Result<bool, Error> {
        self.msix_control.map_or(Ok(false), |control| msix_is_on(&*self.bus, control))
    }

    fn config(&self) -> Result<ConfigRegion<'_>, Error> {
        let start = if self.msix_is_on()? { CONFIG_WITH_MSIX } else { CONFIG };
        Ok(ConfigRegion { region: &*self.header, start, len: self.header.len() - start })
    }
}

/// Returns the page number of a queue with the layout that legacy devices require (2.7.2): descriptors, then
/// the available ring, then the used ring at the next multiple of 4096.
fn page(size: u16, addresses: Addresses) -> Result<u32, Error> {
    let Addresses { descriptors, driver, device } = addresses;
    let len = u64::from(size);
    let available = descriptors.checked_add(16 * len);
    let used = available.and_then(|at| at.checked_add(6 + 2 * len)?.checked_next_multiple_of(LEGACY_ALIGN as u64));
    if !descriptors.is_multiple_of(1 << PAGE_SHIFT) || available != Some(driver) || used != Some(device) {
        let what = format!("descriptors at {descriptors:#x}, available ring at {driver:#x}, used ring at {device:#x}");
        return Err(Error::Fault(format!("a legacy card's queue of {size} does not lie so: {what}")));
    }
    u32::try_from(descriptors >> PAGE_SHIFT).map_err(|_| {
        Error::Unsupported(format!("a legacy card takes queues below 16 TiB; this one lies at {descriptors:#x}"))
    })
}

impl Transport for Legacy {
    fn description(&self) -> String {
        format!("legacy, {}", self.header.description())
    }

    fn is_legacy(&self) -> bool {
        true
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.set_status(0);
        wait_for_zero("the device's reset", 0xff, || self.header.read8(DEVICE_STATUS).into())?;
        if self.msix_is_on()? {
            // No interrupt for configuration changes: they are polled.
            self.header.write16(CONFIG_MSIX_VECTOR, NO_VECTOR);
        }
        Ok(())
    }

    fn status(&mut self) -> u8 {
        self.header.read8(DEVICE_STATUS)
    }

    fn set_status(&mut self, status: u8) {
        self.header.write8(DEVICE_STATUS, status);
    }

    fn features(&mut self) -> u64 {
        self.header.read32(DEVICE_FEATURES).into()
    }

    fn accept(&mut self, features: u64) {
        self.header.write32(DRIVER_FEATURES, features as u32);
    }

    fn queue_size(&mut self, queue: u16) -> u16 {
        self.header.write16(QUEUE_SELECT, queue);
        // A queue of an invalid size, which the device chose, cannot be used.
        Some(self.header.read16(QUEUE_SIZE)).filter(|size| size.is_power_of_two() && *size <= MAX_SIZE).unwrap_or(0)
    }

    unsafe fn start_queue(&mut self, queue: u16, setup: &QueueSetup) -> Result<Box<dyn Notify>, Error> {
        let size = self.queue_size(queue);
        if size != setup.size {
            let what = format!("queue {queue} of this legacy card has {size} descriptors, not {}", setup.size);
            return Err(Error::Fault(what));
        }
        let page = page(size, setup.addresses)?;
        if self.msix_is_on()? {
            set_vector(queue, setup.vector, |vector| {
                self.header.write16(QUEUE_MSIX_VECTOR, vector);
                self.header.read16(QUEUE_MSIX_VECTOR)
            })?;
        } else if setup.vector.is_some() {
            return Err(Error::Unsupported(format!("queue {queue}: MSI-X is not on, so it has no interrupt vectors")));
        }
        self.header.write32(QUEUE_ADDRESS, page);
        Ok(Box::new(Doorbell {
            region: self.header.clone(),
            offset: QUEUE_NOTIFY,
            queue,
            payload: NotifyPayload::Queue,
        }))
    }

    fn reset_queue(&mut self, queue: u16) -> Result<(), Error> {
        Err(Error::Unsupported(format!("queue {queue}: legacy cards are reset as a whole only")))
    }

    /// Reads until two consecutive reads agree, as there is no generation counter that shows whether the
    /// configuration has changed meanwhile (2.5.4).
    fn read_config(&mut self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let config = self.config()?;
        config.read(offset, out)?;
        let mut again = vec![0; out.len()];
        for _ in 0..ATTEMPTS {
            config.read(offset, &mut again)?;
            if again == out {
                return Ok(());
            }
            out.copy_from_slice(&again);
        }
        Err(Error::Fault("the device's configuration changes all the time".into()))
    }

    fn write_config(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.config()?.write(offset, bytes)
    }
}
