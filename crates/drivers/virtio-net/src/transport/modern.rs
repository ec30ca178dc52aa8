//! The modern interface: structures in BARs, located by PCI capabilities (VIRTIO 1.3, 4.1.4).

use std::sync::Arc;

use ringpass_pci::PciDevice;
use ringpass_pci::registers::IoRegion;
use ringpass_port::Error;
use ringpass_virtio::layout::MAX_SIZE;

use super::capabilities::{Location, Structures};
use super::{
    ATTEMPTS, ConfigRegion, Doorbell, NO_VECTOR, Notify, NotifyPayload, QueueSetup, Transport, set_vector,
    wait_for_zero,
};

// 4.1.4.3, struct virtio_pci_common_cfg: fields are accessed whole, 64-bit ones in halves (4.1.3.1).
const DEVICE_FEATURE_SELECT: usize = 0;
const DEVICE_FEATURE: usize = 4;
const DRIVER_FEATURE_SELECT: usize = 8;
const DRIVER_FEATURE: usize = 12;
const CONFIG_MSIX_VECTOR: usize = 16;
const NUM_QUEUES: usize = 18;
const DEVICE_STATUS: usize = 20;
const CONFIG_GENERATION: usize = 21;
const QUEUE_SELECT: usize = 22;
const QUEUE_SIZE: usize = 24;
const QUEUE_MSIX_VECTOR: usize = 26;
const QUEUE_ENABLE: usize = 28;
const QUEUE_NOTIFY_OFF: usize = 30;
const QUEUE_DESC: usize = 32;
const QUEUE_DRIVER: usize = 40;
const QUEUE_DEVICE: usize = 48;
const QUEUE_RESET: usize = 58;
/// Length in bytes that every card supports.
const COMMON_LEN: usize = 56;
/// Length in bytes on cards that can reset queues one by one.
const WITH_QUEUE_RESET: usize = 60;

/// A device with the modern interface.
pub(super) struct Modern {
    common: Arc<dyn IoRegion>,
    /// Offset of the common structure in its region, and its length.
    at: usize,
    len: usize,
    notify: (Arc<dyn IoRegion>, Location),
    multiplier: usize,
    device: Option<(Arc<dyn IoRegion>, Location)>,
    /// Kept because regions may be accessed only while the bus holds the device.
    _bus: Arc<dyn PciDevice>,
}

impl Modern {
    pub(super) fn new(bus: &Arc<dyn PciDevice>, structures: &Structures) -> Result<Self, Error> {
        let open = |what, place: Location, least, align| -> Result<_, Error> {
            let region = bus.region(place.bar)?;
            let Location { bar, offset, len } = place;
            let fits = offset.checked_add(len).is_some_and(|end| end <= region.len());
            if fits && len >= least && offset.is_multiple_of(align) {
                return Ok((region, place));
            }
            let size = region.len();
            Err(Error::Fault(format!(
                "the card's {what} structure cannot be {len} bytes at {offset:#x} of BAR {bar}, which has {size}"
            )))
        };
        let (common, place) = open("common configuration", structures.common, COMMON_LEN, 4)?;
        let notify = open("notification", structures.notify, 2, 2)?;
        let device = structures.device.map(|place| open("device configuration", place, 0, 4)).transpose()?;
        let at = place.offset;
        let len = place.len;
        let multiplier = structures.multiplier as usize;
        Ok(Self { common, at, len, notify, multiplier, device, _bus: bus.clone() })
    }

    fn read16(&self, field: usize) -> u16 {
        self.common.read16(self.at + field)
    }

    fn write16(&self, field: usize, value: u16) {
        self.common.write16(self.at + field, value);
    }

    fn write32(&self, field: usize, value: u32) {
        self.common.write32(self.at + field, value);
    }

    fn write64(&self, field: usize, value: u64) {
        self.write32(field, value as u32);
        self.write32(field + 4, (value >> 32) as u32);
    }

    fn config(&self) -> Result<ConfigRegion<'_>, Error> {
        let none = || Error::Fault("the card has no device configuration".into());
        let (region, place) = self.device.as_ref().ok_or_else(none)?;
        Ok(ConfigRegion { region: &**region, start: place.offset, len: place.len })
    }

    fn generation(&self) -> u8 {
        self.common.read8(self.at + CONFIG_GENERATION)
    }

    /// Returns the doorbell of the selected queue (4.1.4.4).
    fn doorbell(&self, queue: u16, payload: NotifyPayload) -> Result<Doorbell, Error> {
        let (region, place) = &self.notify;
        let inside = usize::from(self.read16(QUEUE_NOTIFY_OFF)).checked_mul(self.multiplier);
        let inside = inside.filter(|offset| offset.checked_add(payload.width()).is_some_and(|end| end <= place.len));
        let offset = inside.map(|inside| place.offset + inside).filter(|offset| offset.is_multiple_of(payload.width()));
        let error = || Error::Fault(format!("the card's doorbell of queue {queue} lies outside its notification area"));
        Ok(Doorbell { region: region.clone(), offset: offset.ok_or_else(error)?, queue, payload })
    }
}

impl Transport for Modern {
    fn description(&self) -> String {
        let (common, doorbells) = (self.common.description(), self.notify.0.description());
        if doorbells == common {
            format!("modern, {common}")
        } else {
            format!("modern, {common}, doorbells: {doorbells}")
        }
    }

    fn is_legacy(&self) -> bool {
        false
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.set_status(0);
        wait_for_zero("the device's reset", 0xff, || self.common.read8(self.at + DEVICE_STATUS).into())?;
        // No interrupt for configuration changes: they are polled.
        self.write16(CONFIG_MSIX_VECTOR, NO_VECTOR);
        Ok(())
    }

    fn status(&mut self) -> u8 {
        self.common.read8(self.at + DEVICE_STATUS)
    }

    fn set_status(&mut self, status: u8) {
        self.common.write8(self.at + DEVICE_STATUS, status);
    }

    fn features(&mut self) -> u64 {
        let half = |select| {
            self.write32(DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read32(self.at + DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    fn accept(&mut self, features: u64) {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.write32(DRIVER_FEATURE_SELECT, select);
            self.write32(DRIVER_FEATURE, half);
        }
    }

    fn queue_size(&mut self, queue: u16) -> u16 {
        // The specification does not say what a queue number beyond this selects.
        if queue >= self.read16(NUM_QUEUES) {
            return 0;
        }
        self.write16(QUEUE_SELECT, queue);
        self.read16(QUEUE_SIZE).min(MAX_SIZE)
    }

    unsafe fn start_queue(&mut self, queue: u16, setup: &QueueSetup) -> Result<Box<dyn Notify>, Error> {
        self.write16(QUEUE_SELECT, queue);
        self.write16(QUEUE_SIZE, setup.size);
        let size = self.read16(QUEUE_SIZE);
        if size != setup.size {
            let what = format!("the card takes {size} descriptors for queue {queue} instead of {}", setup.size);
            return Err(Error::Fault(what));
        }
        set_vector(queue, setup.vector, |vector| {
            self.write16(QUEUE_MSIX_VECTOR, vector);
            self.read16(QUEUE_MSIX_VECTOR)
        })?;
        let payload = if setup.notification_data { NotifyPayload::QueueAndPosition } else { NotifyPayload::Queue };
        let doorbell = self.doorbell(queue, payload)?;
        self.write64(QUEUE_DESC, setup.addresses.descriptors);
        self.write64(QUEUE_DRIVER, setup.addresses.driver);
        self.write64(QUEUE_DEVICE, setup.addresses.device);
        self.write16(QUEUE_ENABLE, 1);
        Ok(Box::new(doorbell))
    }

    fn reset_queue(&mut self, queue: u16) -> Result<(), Error> {
        if self.len < WITH_QUEUE_RESET {
            return Err(Error::Fault("the card offers to reset queues one by one, but has no register for it".into()));
        }
        self.write16(QUEUE_SELECT, queue);
        self.write16(QUEUE_RESET, 1);
        let what = format!("the reset of queue {queue}");
        wait_for_zero(&what, 0xffff, || self.read16(QUEUE_RESET))?;
        wait_for_zero(&what, 0xffff, || self.read16(QUEUE_ENABLE))
    }

    fn read_config(&mut self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let config = self.config()?;
        for _ in 0..ATTEMPTS {
            let before = self.generation();
            config.read(offset, out)?;
            if self.generation() == before {
                return Ok(());
            }
        }
        Err(Error::Fault("the device's configuration changes all the time".into()))
    }

    fn write_config(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.config()?.write(offset, bytes)
    }
}
