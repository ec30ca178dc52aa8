//! Queues shared with their transport, which hands them over to another device when theirs has died. The queue
//! is behind a lock, which its thread takes once per burst, almost always uncontended.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringpass_memory::{Burst, FrameBatch};
use ringpass_pci::EventWaiter;
use ringpass_port::lending::Lending;
use ringpass_port::{Error, RxQueue, TxQueue, WakeSource, Wakeable};
use ringpass_virtio::driver::{Broken, HandedOver, InflightPolicy, Virtqueue};

use crate::rx::Rx;
use crate::transport::HandOver;
use crate::tx::Tx;

/// A queue behind a lock.
pub(crate) struct LockedQueue<T>(Mutex<T>);

impl<T> LockedQueue<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Virtqueue + 'static> HandOver for LockedQueue<Rx<Q>> {
    fn hand_over(&self, rest: InflightPolicy) -> Result<HandedOver, Broken> {
        self.lock().hand_over(rest)
    }
}

impl<Q: Virtqueue + 'static> HandOver for LockedQueue<Tx<Q>> {
    fn hand_over(&self, rest: InflightPolicy) -> Result<HandedOver, Broken> {
        self.lock().hand_over(rest)
    }
}

/// The handle that the queue's thread uses.
pub(crate) struct SharedQueue<T> {
    queue: Arc<LockedQueue<T>>,
    /// The interrupt's eventfd, so that waiting for it does not need the lock.
    event: Option<Arc<EventWaiter>>,
}

impl<T> SharedQueue<T>
where
    LockedQueue<T>: HandOver + 'static,
{
    /// Returns the handle for the transport.
    pub(crate) fn handle(&self) -> Weak<dyn HandOver> {
        let handle: Weak<LockedQueue<T>> = Arc::downgrade(&self.queue);
        handle
    }
}

impl<Q: Virtqueue + 'static> SharedQueue<Rx<Q>> {
    pub(crate) fn receiving(queue: Rx<Q>) -> Self {
        let event = queue.event().cloned();
        Self { queue: Arc::new(LockedQueue(Mutex::new(queue))), event }
    }

    /// Calls [`Rx::begin`] on the queue.
    pub(crate) fn begin(&mut self) {
        self.queue.lock().begin();
    }
}

impl<Q: Virtqueue + 'static> SharedQueue<Tx<Q>> {
    pub(crate) fn sending(queue: Tx<Q>) -> Self {
        Self { queue: Arc::new(LockedQueue(Mutex::new(queue))), event: None }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<Q: Virtqueue + 'static> RxQueue for SharedQueue<Rx<Q>> {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        self.queue.lock().rx_burst(burst)
    }

    fn rx_frames(&mut self, frames: &mut FrameBatch) -> usize {
        self.queue.lock().rx_frames(frames)
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.queue.lock().borrow_from(lending)
    }

    fn has_link(&self) -> bool {
        self.queue.lock().has_link()
    }

    fn rx_timestamps(&self) -> &[u64] {
        &[]
    }
}

#[deny(clippy::missing_trait_methods)]
impl<Q: Virtqueue + 'static> Wakeable for SharedQueue<Rx<Q>> {
    fn arm(&mut self) {
        self.queue.lock().arm();
    }

    fn disarm(&mut self) {
        if let Some(event) = &self.event {
            self.queue.lock().disarm_ring();
            event.clear();
        }
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(self.event.as_ref().map_or(WakeSource::Polled, |event| WakeSource::Readable(event.as_fd())));
    }
}

impl<Q: Virtqueue + 'static> TxQueue for SharedQueue<Tx<Q>> {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.queue.lock().tx_burst(burst)
    }
}
