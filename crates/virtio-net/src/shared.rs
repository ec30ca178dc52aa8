//! Queues that the transport reaches too, to hand them over when their device has died: behind a lock, which their thread
//! takes once a burst and finds free.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringpass_bus::Waiter;
use ringpass_memory::{Burst, Lending};
use ringpass_port::{Error, RxQueue, TxQueue, Wake, Wakeable};
use ringpass_virtio::driver::{Broken, HandedOver, Unreturned, Virtqueue};

use crate::rx::Rx;
use crate::transport::HandOver;
use crate::tx::Tx;

/// A queue behind its lock.
pub(crate) struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Virtqueue + 'static> HandOver for Locked<Rx<Q>> {
    fn hand_over(&self, rest: Unreturned) -> Result<HandedOver, Broken> {
        self.lock().hand_over(rest)
    }
}

impl<Q: Virtqueue + 'static> HandOver for Locked<Tx<Q>> {
    fn hand_over(&self, rest: Unreturned) -> Result<HandedOver, Broken> {
        self.lock().hand_over(rest)
    }
}

/// The queue as its thread has it.
pub(crate) struct Shared<T> {
    queue: Arc<Locked<T>>,
    /// What wakes it, to be waited for without the lock.
    event: Option<Arc<Waiter>>,
}

impl<T> Shared<T>
where
    Locked<T>: HandOver + 'static,
{
    /// For the transport.
    pub(crate) fn handle(&self) -> Weak<dyn HandOver> {
        let handle: Weak<Locked<T>> = Arc::downgrade(&self.queue);
        handle
    }
}

impl<Q: Virtqueue + 'static> Shared<Rx<Q>> {
    pub(crate) fn receiving(queue: Rx<Q>) -> Self {
        let event = queue.event().cloned();
        Self { queue: Arc::new(Locked(Mutex::new(queue))), event }
    }

    /// As [`Rx::begin`].
    pub(crate) fn begin(&mut self) {
        self.queue.lock().begin();
    }
}

impl<Q: Virtqueue + 'static> Shared<Tx<Q>> {
    pub(crate) fn sending(queue: Tx<Q>) -> Self {
        Self { queue: Arc::new(Locked(Mutex::new(queue))), event: None }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<Q: Virtqueue + 'static> RxQueue for Shared<Rx<Q>> {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        self.queue.lock().rx_burst(burst)
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.queue.lock().borrow_from(lending)
    }

    fn has_link(&self) -> bool {
        self.queue.lock().has_link()
    }

    fn recorded(&self) -> &[u64] {
        &[]
    }
}

#[deny(clippy::missing_trait_methods)]
impl<Q: Virtqueue + 'static> Wakeable for Shared<Rx<Q>> {
    fn arm(&mut self) {
        self.queue.lock().arm();
    }

    fn disarm(&mut self) {
        if let Some(event) = &self.event {
            self.queue.lock().disarm_ring();
            event.clear();
        }
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(self.event.as_ref().map_or(Wake::Turns, |event| Wake::Readable(event.as_fd())));
    }
}

impl<Q: Virtqueue + 'static> TxQueue for Shared<Tx<Q>> {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.queue.lock().tx_burst(burst)
    }
}
