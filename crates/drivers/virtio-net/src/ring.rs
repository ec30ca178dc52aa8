//! A virtqueue with its doorbell and its counters.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::DmaRegion;
use ringpass_port::Error;
use ringpass_virtio::driver::{Broken, Config, Virtqueue};
use ringpass_virtio::features::NOTIFICATION_DATA;

use crate::device::Device;
use crate::transport::{Notify, QueueSetup};

/// Counters of a queue, written only by the queue's thread. Aligned so that they have cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) drops: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    pub(crate) errors: AtomicU64,
}

impl Counters {
    /// Adds to a counter without a locked instruction, which is enough because only the queue's thread writes
    /// it.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

/// Location of a queue's memory.
pub(crate) struct Memory<'a> {
    pub(crate) region: &'a Arc<DmaRegion>,
    pub(crate) offset: usize,
}

/// A queue that the device uses.
pub(crate) struct Ring<Q: Virtqueue + 'static> {
    pub(crate) queue: ManuallyDrop<Q>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) device: Arc<Device>,
    notify: Box<dyn Notify>,
    number: u16,
    config: Config,
}

impl<Q: Virtqueue + 'static> Ring<Q> {
    /// Creates a queue and has the device start it. The memory must be mapped for the device.
    pub(crate) fn start(
        device: &Arc<Device>,
        number: u16,
        features: u64,
        memory: &Memory,
        config: &Config,
        vector: Option<u16>,
    ) -> Result<Self, Error> {
        let queue = Q::new(memory.region, memory.offset, config)?;
        let notification_data = features & NOTIFICATION_DATA != 0;
        let setup = QueueSetup { size: config.size, addresses: queue.addresses(), vector, notification_data };
        // SAFETY: the region is mapped for the device: `QueueBuilder::map` does so before it starts any queue.
        // The queue keeps its memory until it is reclaimed after a reset, or for ever.
        let notify = unsafe { device.transport().start_queue(number, &setup) };
        let notify = match notify {
            Ok(notify) => notify,
            Err(error) => {
                device.retire(number, queue);
                return Err(error);
            }
        };
        let (queue, counters) = (ManuallyDrop::new(queue), Arc::default());
        Ok(Self { queue, counters, device: device.clone(), notify, number, config: *config })
    }

    /// Returns the number of descriptors.
    pub(crate) fn size(&self) -> usize {
        self.config.size.into()
    }

    /// Returns whether a packet of several pieces takes one descriptor.
    pub(crate) fn indirect(&self) -> bool {
        self.config.indirect > 0
    }

    /// Makes posted descriptors visible to the device, and notifies it if it asked for that.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if let Some(position) = self.queue.publish() {
            self.ring(position);
        }
    }

    #[inline(never)]
    fn ring(&self, position: u16) {
        Counters::add(&self.counters.doorbells, 1);
        self.notify.notify(position);
    }

    /// Reports a protocol violation by the device. This happens once: the queue stays broken, and the port
    /// ends.
    #[cold]
    pub(crate) fn fail(&self, broken: Broken) {
        self.counters.errors.store(1, Relaxed);
        self.device.broken.get_or_init(|| format!("queue {}: {broken}", self.number));
    }
}

impl<Q: Virtqueue + 'static> Drop for Ring<Q> {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once and is the only place that takes the queue; it is not used afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        self.device.retire(self.number, queue);
    }
}
