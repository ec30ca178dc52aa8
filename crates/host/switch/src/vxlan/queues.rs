//! The wrapped queues of a tunnel's port.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringpass_memory::{Burst, Cache, MAX_BATCH, Mempool, Packet};
use ringpass_port::{RxDecorator, RxQueue, TxQueue, copy_packet};

use super::State;
use super::neighbours::{self, Heard, Neighbour};
use super::networks::Network;
use super::outer::{self, DecapError, Outer, Path};
use super::remotes::{Remote, Remotes, View};

/// The port's own Tx queue, which answers to questions use too. Both halves belong to one worker, so the lock is never
/// contended.
type Wire = Arc<Mutex<Box<dyn TxQueue>>>;

fn lock(wire: &Wire) -> MutexGuard<'_, Box<dyn TxQueue>> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Rx {
    inner: Box<dyn RxQueue>,
    wire: Wire,
    state: Arc<State>,
    remotes: View,
    /// Buffers for replies. The request's buffer is not reused: it may be a guest's, which the card must not
    /// read from.
    cache: Cache,
}

pub(super) struct Tx {
    wire: Wire,
    state: Arc<State>,
    remotes: View,
    cache: Cache,
    /// Frames with their outer headers; empty between bursts.
    ready: Burst,
    /// Number of bursts.
    turn: usize,
}

pub(super) fn wrap(inner: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, state: Arc<State>, pool: &Mempool) -> (Rx, Tx) {
    let wire = Arc::new(Mutex::new(tx));
    let rx = Rx {
        inner,
        wire: wire.clone(),
        state: state.clone(),
        remotes: View::new(state.remotes.clone()),
        cache: pool.cache(),
    };
    let remotes = View::new(state.remotes.clone());
    (rx, Tx { wire, state, remotes, cache: pool.cache(), ready: Burst::new(MAX_BATCH), turn: 0 })
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
            let remotes = self.remotes.load();
            match self.state.decapsulate(&mut packet, remotes) {
                Ok(()) => {
                    received += 1;
                    burst.push(packet);
                }
                Err(DecapError::Malformed) => malformed += 1,
                Err(DecapError::Foreign) if self.hear(&packet) => {}
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

impl State {
    /// Returns the addresses of this end.
    fn own(&self) -> Neighbour {
        (self.mac, self.config.local)
    }

    /// Takes a frame of one of the networks out of what a remote has sent. Nothing is changed if it is not for this end.
    fn decapsulate(&self, packet: &mut Packet, remotes: &Remotes) -> Result<(), DecapError> {
        let Outer { source, vni, inner } = outer::parse(packet, &self.config)?;
        let remote = remotes.number(source).ok_or(DecapError::Foreign)?;
        let network = self.networks.with(vni).ok_or(DecapError::Foreign)?;
        outer::strip(packet, inner)?;
        if network.receive(packet, remote) { Ok(()) } else { Err(DecapError::Malformed) }
    }
}

impl Rx {
    /// Handles a frame about neighbours: learns the sender's address and answers questions. Returns `false` if the packet is none.
    #[cold]
    fn hear(&mut self, packet: &Packet) -> bool {
        let state = &self.state;
        let Some(Heard { neighbour, answer }) = Heard::parse(packet, state.own()) else { return false };
        if let Some((mac, address)) = neighbour
            && let Some(hop) = self.remotes.load().hop_at(address)
        {
            hop.learn(mac, state.start.elapsed());
        }
        answer.iter().for_each(|answer| send(&self.wire, &mut self.cache, answer));
        true
    }
}

/// Sends a frame if a buffer is free and the queue has room.
fn send(wire: &Wire, cache: &mut Cache, frame: &[u8]) {
    if let Some(mut packet) = cache.take(1).next()
        && packet.copy_from(frame)
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
        if taken > 0 {
            let Self { wire, state, remotes, cache, ready, turn } = self;
            let now = state.start.elapsed();
            *turn = turn.wrapping_add(1);
            state.networks.age(*turn, now);
            let remotes = remotes.load();
            let mut sending = Sending { wire, state, remotes, cache, ready, now, counts: Counts::default() };
            burst.drain().for_each(|packet| sending.send(packet));
            sending.flush();
            let Counts { sent, copies, unresolved, drops } = sending.counts;
            let counters = &state.counters;
            count(&counters.sent, sent);
            count(&counters.copies, copies);
            count(&counters.unresolved, unresolved);
            count(&counters.tx_drops, drops);
        }
        taken
    }
}

/// A burst on its way into the tunnel.
struct Sending<'a> {
    wire: &'a Wire,
    state: &'a State,
    remotes: &'a Remotes,
    cache: &'a mut Cache,
    /// Frames with their outer headers.
    ready: &'a mut Burst,
    /// Time since the start of the tunnel.
    now: Duration,
    counts: Counts,
}

/// Numbers of outer frames.
#[derive(Default)]
struct Counts {
    sent: usize,
    copies: usize,
    unresolved: usize,
    drops: usize,
}

impl Sending<'_> {
    /// Sends a frame to the remote of its destination, or to all.
    fn send(&mut self, mut packet: Packet) {
        let Some(network) = self.state.networks.of(&mut packet) else {
            self.counts.drops += 1;
            return;
        };
        match network.destination(&packet).and_then(|number| self.remotes.get(number)) {
            Some(remote) => self.send_to(remote, network.vni, packet),
            None => self.replicate(network, packet),
        }
    }

    /// Sends a frame to all remotes of its network.
    fn replicate(&mut self, network: &Network, packet: Packet) {
        let (remotes, vni) = (self.remotes, network.vni);
        let Some((last, others)) = remotes.floods(network.place).split_last() else {
            self.counts.drops += 1;
            return;
        };
        for remote in others.iter().filter_map(|&number| remotes.get(number)) {
            if let Some(to) = self.resolve(remote) {
                match copy_packet(&packet, self.cache) {
                    Some(copy) => {
                        self.counts.copies += 1;
                        self.put(to, vni, copy);
                    }
                    None => self.counts.drops += 1,
                }
            }
        }
        match remotes.get(*last) {
            Some(remote) => self.send_to(remote, vni, packet),
            None => self.counts.drops += 1,
        }
    }

    /// Sends a frame to one remote.
    fn send_to(&mut self, remote: &Remote, vni: u32, packet: Packet) {
        if let Some(to) = self.resolve(remote) {
            self.put(to, vni, packet);
        }
    }

    /// Puts a frame with its outer headers to those that are ready.
    fn put(&mut self, to: Neighbour, vni: u32, packet: Packet) {
        if self.ready.room() == 0 {
            self.flush();
        }
        match self.encapsulated(packet, vni, to) {
            Some(packet) => self.ready.push(packet),
            None => self.counts.drops += 1,
        }
    }

    /// Returns the address of a remote with the hardware address of its next hop, for a frame to it. Asks for that if it is due, and counts
    /// the frame if it is not known.
    fn resolve(&mut self, remote: &Remote) -> Option<Neighbour> {
        let hop = &remote.hop;
        if hop.request_is_due(self.now)
            && let Some(question) = neighbours::question(self.state.own(), hop.address)
        {
            send(self.wire, self.cache, &question);
        }
        let mac = hop.mac();
        self.counts.unresolved += usize::from(mac.is_none());
        Some((mac?, remote.address))
    }

    /// Puts the outer headers in front of a frame, or of a copy of it if it has no headroom for them. `None` if it is too long, or
    /// no buffer is free.
    fn encapsulated(&mut self, mut packet: Packet, vni: u32, (mac, to): Neighbour) -> Option<Packet> {
        let State { config, mac: own, .. } = self.state;
        let path = Path { hardware: [*own, mac], ip: [config.local, to] };
        if !outer::encapsulate(&mut packet, vni, config.port, path) {
            packet = copy_packet(&packet, self.cache)?;
            if !outer::encapsulate(&mut packet, vni, config.port, path) {
                return None;
            }
        }
        Some(packet)
    }

    /// Sends what is ready, as far as the port has room.
    fn flush(&mut self) {
        let ready = self.ready.len();
        let sent = if ready > 0 { lock(self.wire).tx_burst(self.ready) } else { 0 };
        self.ready.clear();
        self.counts.sent += sent;
        self.counts.drops += ready - sent;
    }
}
