//! The wrapped queues of a tunnel's port.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_memory::{Burst, Cache, MAX_BATCH, Mempool, Packet};
use ringpass_port::{RxDecorator, RxQueue, TxQueue, copy_packet};

use super::State;
use super::arp::{Arp, Operation};
use super::outer::{self, DecapError};

/// The port's own Tx queue, which ARP replies use too. Both halves belong to one worker, so the lock is never
/// contended.
type Wire = Arc<Mutex<Box<dyn TxQueue>>>;

fn lock(wire: &Wire) -> MutexGuard<'_, Box<dyn TxQueue>> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Rx {
    inner: Box<dyn RxQueue>,
    wire: Wire,
    state: Arc<State>,
    /// Buffers for replies. The request's buffer is not reused: it may be a guest's, which the card must not
    /// read from.
    cache: Cache,
}

pub(super) struct Tx {
    wire: Wire,
    state: Arc<State>,
    cache: Cache,
}

pub(super) fn wrap(inner: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, state: Arc<State>, pool: &Mempool) -> (Rx, Tx) {
    let wire = Arc::new(Mutex::new(tx));
    let (rx_wire, rx_state) = (wire.clone(), state.clone());
    let rx = Rx { inner, wire: rx_wire, state: rx_state, cache: pool.cache() };
    (rx, Tx { wire, state, cache: pool.cache() })
}

fn count(counter: &AtomicU64, n: usize) {
    if n > 0 {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}

impl RxDecorator for Rx {
    fn inner(&self) -> &dyn RxQueue {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.inner
    }

    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut outer = Burst::new(burst.room());
        if burst.room() == 0 || self.inner.rx_burst(&mut outer) == 0 {
            return 0;
        }
        let mut received = 0;
        let mut malformed = 0;
        let mut foreign = 0;
        for mut packet in outer.drain() {
            match outer::decapsulate(&mut packet, &self.state.config) {
                Ok(()) => {
                    received += 1;
                    burst.push(packet);
                }
                Err(DecapError::Malformed) => malformed += 1,
                Err(DecapError::Foreign) if self.arp(&packet) => {}
                Err(DecapError::Foreign) => foreign += 1,
            }
        }
        let counters = &self.state.counters;
        count(&counters.received, received);
        count(&counters.malformed, malformed);
        count(&counters.foreign, foreign);
        received
    }

    /// Returns no timestamps, because packets of the inner queue's last burst may have been dropped.
    fn rx_timestamps(&self) -> &[u64] {
        &[]
    }
}

impl Rx {
    /// Handles an ARP packet for this end: learns the sender's address and answers requests. Returns `false` if
    /// the packet is none.
    #[cold]
    fn arp(&mut self, packet: &Packet) -> bool {
        let Some(Arp { operation, sender, target }) = Arp::parse(packet) else { return false };
        let config = &self.state.config;
        if target.1 != config.local {
            return false;
        }
        if sender.1 == config.remote {
            self.state.learn_remote(sender.0);
        }
        let reply = Arp { operation: Operation::Reply, sender: (self.state.mac, config.local), target: sender };
        if operation == Operation::Request {
            send(&self.wire, &mut self.cache, &reply);
        }
        true
    }
}

/// Sends an ARP packet if a buffer is free and the queue has room.
fn send(wire: &Wire, cache: &mut Cache, arp: &Arp) {
    if let Some(mut packet) = cache.take(1).next()
        && packet.copy_from(&arp.frame())
    {
        let mut burst = Burst::new(1);
        burst.push(packet);
        lock(wire).tx_burst(&mut burst);
    }
}

impl TxQueue for Tx {
    /// Takes all packets. Drops those that the port has no room for.
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        let remote = self.state.remote();
        if taken > 0 && self.state.arp_due(remote) {
            self.send_arp_request();
        }
        let Self { wire, state, cache } = self;
        let Some(remote) = remote else {
            count(&state.counters.unresolved, taken);
            burst.clear();
            return taken;
        };
        let mut ready = Burst::new(MAX_BATCH);
        for mut packet in burst.drain() {
            if !outer::encapsulate(&mut packet, &state.config, state.mac, remote) {
                // No headroom: copy the frame into a buffer that has some.
                match copy_packet(&packet, cache) {
                    Some(copy) => packet = copy,
                    None => continue,
                }
                if !outer::encapsulate(&mut packet, &state.config, state.mac, remote) {
                    continue;
                }
            }
            ready.push(packet);
        }
        let sent = lock(wire).tx_burst(&mut ready);
        count(&state.counters.sent, sent);
        count(&state.counters.tx_drops, taken - sent);
        taken
    }
}

impl Tx {
    #[cold]
    fn send_arp_request(&mut self) {
        let State { config, mac, .. } = &*self.state;
        let arp = Arp { operation: Operation::Request, sender: (*mac, config.local), target: ([0; 6], config.remote) };
        send(&self.wire, &mut self.cache, &arp);
    }
}
