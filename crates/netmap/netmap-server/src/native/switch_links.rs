//! A native port's links to the switch that it is attached to.

use std::sync::{Arc, Mutex, PoisonError};

use ringpass_memory::{Burst, Cache, Mempool};
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource};

use crate::copies::copy;

/// Queues that connect a native port to a switch: what is sent there reaches the switch.
pub struct SwitchLinks {
    /// Connects the port.
    pub own: QueuePair,
    /// Connects the host's stack, if that is attached as well.
    pub host: Option<QueuePair>,
    /// Pool of the switch's packets.
    pub pool: Mempool,
}

/// A link to a switch, for the forwarder. Frames are copied both ways, as switch and port have pools of their own.
pub(super) struct SwitchLink {
    from_switch: Box<dyn RxQueue>,
    pub(super) to_switch: ToSwitch,
    port_pool: Cache,
    /// Frames of the switch, before they are copied; empty between two calls.
    received: Box<Burst>,
    /// Frames that the port has not accepted yet.
    sending: Box<Burst>,
}

/// The way to the switch. The forwarder has one, and each thread that polls a queue of the port.
pub(super) struct ToSwitch {
    /// Locked for a burst at a time; nobody else asks for it unless queues are polled.
    queue: Arc<Mutex<Box<dyn TxQueue>>>,
    pool: Mempool,
    cache: Cache,
    /// Largest number of frames passed at a time.
    pub(super) batch: usize,
    /// Frames for the switch; empty between two calls.
    passing: Box<Burst>,
}

impl ToSwitch {
    fn new(queue: Arc<Mutex<Box<dyn TxQueue>>>, pool: &Mempool, batch: usize) -> Self {
        Self { queue, pool: pool.clone(), cache: pool.cache(), batch, passing: Box::new(Burst::new(batch)) }
    }

    /// Returns another way to the same switch, for another thread.
    pub(super) fn another(&self) -> Self {
        Self::new(self.queue.clone(), &self.pool, self.batch)
    }

    /// Copies frames to the switch. What it has no room for stays in `frames`.
    pub(super) fn pass(&mut self, frames: &mut Burst) {
        let Self { queue, cache, passing, .. } = self;
        copy(frames.iter(), cache, passing);
        let copied = passing.len();
        queue.lock().unwrap_or_else(PoisonError::into_inner).tx_burst(passing);
        frames.discard(copied - passing.len());
        passing.clear();
    }
}

impl SwitchLink {
    pub(super) fn new(queues: QueuePair, switch_pool: &Mempool, port_pool: &Mempool, batch: usize) -> Self {
        let burst = || Box::new(Burst::new(batch));
        let QueuePair { rx, tx } = queues;
        let to_switch = ToSwitch::new(Arc::new(Mutex::new(tx)), switch_pool, batch);
        let port_pool = port_pool.cache();
        Self { from_switch: rx, to_switch, port_pool, received: burst(), sending: burst() }
    }

    /// Sends frames of the switch by a port. Returns how many moved, and how many were dropped for want of buffers.
    pub(super) fn send(&mut self, port: &mut dyn TxQueue) -> (usize, usize) {
        let Self { from_switch, port_pool, received, sending, .. } = self;
        let mut dropped = 0;
        // Frames that the port has no room for stay in the burst, and the frames after them in the link.
        if sending.is_empty() {
            from_switch.rx_burst(received);
            copy(received.iter(), port_pool, sending);
            dropped = received.len() - sending.len();
            received.clear();
        }
        let moved = if sending.is_empty() { 0 } else { port.tx_burst(sending) };
        (moved, dropped)
    }

    pub(super) fn arm(&mut self) {
        self.from_switch.arm();
    }

    pub(super) fn disarm(&mut self) {
        self.from_switch.disarm();
    }

    pub(super) fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        self.from_switch.wake_sources(each);
        // A port does not signal when it has room again.
        if !self.sending.is_empty() {
            each(WakeSource::Polled);
        }
    }
}
