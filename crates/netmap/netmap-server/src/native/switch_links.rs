//! A native port's links to the switch that it is attached to.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use ringpass_memory::{Burst, Cache, Mempool};
use ringpass_port::{QueuePair, TxQueue, WakeSource};

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

/// Links that the control side has changed, for the forwarder to take.
#[derive(Default)]
pub(super) struct SwitchMailbox {
    is_new: AtomicBool,
    links: Mutex<Option<SwitchLinks>>,
}

impl SwitchMailbox {
    /// Sets the links; without any, the port is detached.
    pub(super) fn put(&self, links: Option<SwitchLinks>) {
        let before = mem::replace(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner), links);
        self.is_new.store(true, Relaxed);
        drop(before);
    }

    /// Takes the links that were set since the last call; `None` if there was no change.
    pub(super) fn take(&self) -> Option<Option<SwitchLinks>> {
        let is_new = self.is_new.load(Relaxed) && self.is_new.swap(false, Relaxed);
        is_new.then(|| self.links.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

/// A link to a switch, for the forwarder. Frames are copied both ways, as switch and port have pools of their own.
pub(super) struct SwitchLink {
    queues: QueuePair,
    switch_pool: Cache,
    port_pool: Cache,
    /// Frames of the switch, before they are copied; empty between two calls.
    received: Box<Burst>,
    /// Frames that the port has not accepted yet.
    sending: Box<Burst>,
    /// Frames for the switch; empty between two calls.
    passing: Box<Burst>,
}

impl SwitchLink {
    pub(super) fn new(queues: QueuePair, switch_pool: &Mempool, port_pool: &Mempool, batch: usize) -> Self {
        let burst = || Box::new(Burst::new(batch));
        let (switch_pool, port_pool) = (switch_pool.cache(), port_pool.cache());
        Self { queues, switch_pool, port_pool, received: burst(), sending: burst(), passing: burst() }
    }

    /// Copies frames to the switch. What it has no room for stays in `frames`.
    pub(super) fn pass(&mut self, frames: &mut Burst) {
        let Self { queues, switch_pool, passing, .. } = self;
        copy(frames.iter(), switch_pool, passing);
        let copied = passing.len();
        queues.tx.tx_burst(passing);
        frames.discard(copied - passing.len());
        passing.clear();
    }

    /// Sends frames of the switch by a port. Returns how many moved, and how many were dropped for want of buffers.
    pub(super) fn send(&mut self, port: &mut dyn TxQueue) -> (usize, usize) {
        let Self { queues, port_pool, received, sending, .. } = self;
        let mut dropped = 0;
        // Frames that the port has no room for stay in the burst, and the frames after them in the link.
        if sending.is_empty() {
            queues.rx.rx_burst(received);
            copy(received.iter(), port_pool, sending);
            dropped = received.len() - sending.len();
            received.clear();
        }
        let moved = if sending.is_empty() { 0 } else { port.tx_burst(sending) };
        (moved, dropped)
    }

    pub(super) fn arm(&mut self) {
        self.queues.rx.arm();
    }

    pub(super) fn disarm(&mut self) {
        self.queues.rx.disarm();
    }

    pub(super) fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        self.queues.rx.wake_sources(each);
        // A port does not signal when it has room again.
        if !self.sending.is_empty() {
            each(WakeSource::Polled);
        }
    }
}
