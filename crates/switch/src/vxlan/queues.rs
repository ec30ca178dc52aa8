//! The queues of a port at the end of a tunnel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringpass_memory::{Burst, Cache, MAX_BATCH, Mempool, Packet};
use ringpass_port::{RxQueue, TxQueue, Wake, Wakeable};

use super::State;
use super::arp::{Arp, Operation};
use super::outer::{self, Refused};
use crate::frame;

/// The port's own Tx queue, which answers to ARP take too. Both halves belong to one worker, so nobody ever waits.
type Wire = Arc<Mutex<Box<dyn TxQueue>>>;

fn lock(wire: &Wire) -> MutexGuard<'_, Box<dyn TxQueue>> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Rx {
    inner: Box<dyn RxQueue>,
    wire: Wire,
    state: Arc<State>,
    /// For answers: a question may lie in a guest's buffer, which is not the card's to send from.
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

#[deny(clippy::missing_trait_methods)]
impl Wakeable for Rx {
    fn arm(&mut self) {
        self.inner.arm();
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        self.inner.wakes(each);
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut outer = Burst::new(burst.room());
        if burst.room() == 0 || self.inner.rx_burst(&mut outer) == 0 {
            return 0;
        }
        let (mut received, mut malformed, mut foreign) = (0, 0, 0);
        for mut packet in outer.drain() {
            match outer::strip(&mut packet, &self.state.config) {
                Ok(()) => {
                    received += 1;
                    burst.push(packet);
                }
                Err(Refused::Malformed) => malformed += 1,
                Err(Refused::Foreign) if self.arp(&packet) => {}
                Err(Refused::Foreign) => foreign += 1,
            }
        }
        let counters = &self.state.counters;
        count(&counters.received, received);
        count(&counters.malformed, malformed);
        count(&counters.foreign, foreign);
        received
    }

    fn has_link(&self) -> bool {
        self.inner.has_link()
    }
}

impl Rx {
    /// Learns and answers; `false` if the packet is none of that.
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

/// Best effort, as ARP is.
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
    /// Takes all: what the port has no room for is dropped.
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        let remote = self.state.remote();
        if taken > 0 && self.state.must_ask(remote) {
            self.ask();
        }
        let Self { wire, state, cache } = self;
        let Some(remote) = remote else {
            count(&state.counters.unresolved, taken);
            burst.clear();
            return taken;
        };
        let mut ready = Burst::new(MAX_BATCH);
        for mut packet in burst.drain() {
            if !outer::put(&mut packet, &state.config, state.mac, remote) {
                // No headroom: a copy has some.
                match frame::copy(&packet, cache) {
                    Some(copy) => packet = copy,
                    None => continue,
                }
                if !outer::put(&mut packet, &state.config, state.mac, remote) {
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
    fn ask(&mut self) {
        let State { config, mac, .. } = &*self.state;
        let arp = Arp { operation: Operation::Request, sender: (*mac, config.local), target: ([0; 6], config.remote) };
        send(&self.wire, &mut self.cache, &arp);
    }
}
