//! The wrapped queues of a tunnel's port.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringpass_memory::{Burst, Cache, MAX_BATCH, Mempool, Packet};
use ringpass_port::{RxDecorator, RxQueue, TxQueue, copy_packet};
use tracing::warn;

use super::State;
use super::control::Address;
use super::neighbours::{self, Heard, Neighbour};
use super::networks::Network;
use super::outer::{self, DecapError, ETHERNET, Outer, Path, Template};
use super::remotes::{Remotes, View};
use super::replies::Replies;
use super::stations::RemoteId;
use super::too_big;
use crate::frame::RawHeader;

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
    /// Answers to this side's stations.
    replies: Arc<Replies>,
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
    replies: Arc<Replies>,
    /// Number of bursts.
    turn: usize,
    /// Length of the longest frame that fits.
    longest: usize,
    /// The millisecond in which a sender was last told that its frame does not fit.
    told: u64,
    routes: Routes,
}

/// What was worked out for the other ends, by their numbers.
#[derive(Default)]
struct Routes {
    /// The set to which the numbers belong.
    set: Option<Arc<Remotes>>,
    routes: Vec<Route>,
}

/// The way to another end.
#[derive(Default)]
struct Route {
    /// The millisecond in which it was looked at last, from 1 on.
    seen: u64,
    /// Hardware address of the next hop, and the headers with it; `None` if it is not known.
    headers: Option<([u8; 6], Template)>,
}

impl Routes {
    /// Forgets all routes if another set of ends is in force.
    fn follow(&mut self, set: &Arc<Remotes>) {
        if !self.set.as_ref().is_some_and(|before| Arc::ptr_eq(before, set)) {
            self.set = Some(set.clone());
            self.routes.clear();
        }
    }

    /// Returns the route to an end.
    #[inline]
    fn to(&mut self, number: RemoteId) -> &mut Route {
        let place = usize::from(number);
        if place >= self.routes.len() {
            self.routes.resize_with(place + 1, Route::default);
        }
        &mut self.routes[place]
    }
}

pub(super) fn wrap(
    inner: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    state: Arc<State>,
    pool: &Mempool,
    mtu: usize,
) -> (Rx, Tx) {
    let longest = outer::longest(state.config.local, mtu);
    let (wire, replies) = (Arc::new(Mutex::new(tx)), Arc::new(Replies::new()));
    let rx = Rx {
        inner,
        wire: wire.clone(),
        state: state.clone(),
        remotes: View::new(state.remotes.clone()),
        replies: replies.clone(),
        cache: pool.cache(),
    };
    let remotes = View::new(state.remotes.clone());
    (
        rx,
        Tx {
            wire,
            state,
            remotes,
            cache: pool.cache(),
            ready: Burst::new(MAX_BATCH),
            replies,
            turn: 0,
            longest,
            told: 0,
            routes: Routes::default(),
        },
    )
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
        let replies = self.replies.take(burst);
        let mut outer = Burst::new(burst.room());
        if burst.room() == 0 || self.inner.rx_burst(&mut outer) == 0 {
            return replies;
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
        replies + received
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

/// Returns a packet of our own with this frame; `None` if no buffer is free.
fn filled(cache: &mut Cache, frame: &[u8]) -> Option<Packet> {
    let mut packet = cache.take(1).next()?;
    packet.copy_from(frame).then_some(packet)
}

/// Sends a frame if a buffer is free and the queue has room.
fn send(wire: &Wire, cache: &mut Cache, frame: &[u8]) {
    if let Some(packet) = filled(cache, frame) {
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
            let Self { wire, state, remotes, cache, ready, replies, turn, longest, told, routes } = self;
            let now = state.start.elapsed();
            *turn = turn.wrapping_add(1);
            state.networks.age(*turn, now);
            let remotes = remotes.load();
            routes.follow(remotes);
            let (moment, counts) = (now.as_millis() as u64 + 1, Counts::default());
            let longest = *longest;
            let mut sending =
                Sending { wire, state, remotes, routes, cache, ready, replies, longest, told, now, moment, counts };
            let plain = sending.encapsulate(burst);
            if plain == taken {
                sending.send_all(burst);
            } else {
                for (number, packet) in burst.drain().enumerate() {
                    if number < plain { sending.put_ready(packet) } else { sending.send(packet) }
                }
                sending.flush();
            }
            let Counts { sent, copies, unresolved, answered, too_long, drops } = sending.counts;
            let counters = &state.counters;
            count(&counters.sent, sent);
            count(&counters.copies, copies);
            count(&counters.unresolved, unresolved);
            count(&counters.answered, answered);
            count(&counters.too_long, too_long);
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
    routes: &'a mut Routes,
    cache: &'a mut Cache,
    /// Frames with their outer headers.
    ready: &'a mut Burst,
    replies: &'a Replies,
    longest: usize,
    told: &'a mut u64,
    /// Time since the start of the tunnel.
    now: Duration,
    /// That time in milliseconds, from 1 on.
    moment: u64,
    counts: Counts,
}

/// Numbers of outer frames.
#[derive(Default)]
struct Counts {
    sent: usize,
    copies: usize,
    unresolved: usize,
    answered: usize,
    too_long: usize,
    drops: usize,
}

impl Sending<'_> {
    /// Puts the headers in front of the first frames of a burst, as long as each goes to one remote whose address is known. Returns their number.
    #[inline]
    fn encapsulate(&mut self, burst: &mut Burst) -> usize {
        // The frame before, which the next one mostly goes the way of.
        let mut before = (RawHeader::NONE, 0);
        let mut done = 0;
        let Some(network) = self.state.networks.of_all() else { return 0 };
        for packet in burst.iter_mut() {
            let Some(header) = RawHeader::of(&*packet) else { break };
            if header != before.0 {
                let Some(number) = network.end_of(header) else { break };
                if self.remotes.get(number).is_none() || !self.is_resolved(number) {
                    break;
                }
                before = (header, number);
            }
            let Some((_, headers)) = &self.routes.to(before.1).headers else { break };
            if !headers.encapsulate(packet, network.vni) {
                break;
            }
            done += 1;
        }
        done
    }

    /// Sends a burst of frames with their headers, as far as the port has room.
    fn send_all(&mut self, burst: &mut Burst) {
        let frames = burst.len();
        let sent = lock(self.wire).tx_burst(burst);
        burst.clear();
        self.counts.sent += sent;
        self.counts.drops += frames - sent;
    }

    /// Sends a frame to the remote of its destination, or to all.
    fn send(&mut self, mut packet: Packet) {
        let Some(network) = self.state.networks.of(&mut packet) else {
            self.counts.drops += 1;
            return;
        };
        if packet.total_len() > self.longest {
            return self.refuse_long(network, &packet);
        }
        match network.destination(&packet).filter(|&number| self.remotes.get(number).is_some()) {
            Some(number) => self.send_to(number, network.vni, packet),
            None if self.answer(network, &packet) => self.counts.answered += 1,
            None => self.replicate(network, packet),
        }
    }

    /// Answers a question for a station behind another end in its place. Returns `false` if the frame is none.
    fn answer(&mut self, network: &Network, packet: &Packet) -> bool {
        let heard = |mac, ip| {
            let vni = network.vni;
            self.state.heard.get().into_iter().for_each(|to| to.record(Address { vni, ip, mac, is_router: false }));
        };
        let Some(answer) = network.answer(packet, heard) else { return false };
        self.reply(network, &answer)
    }

    /// Gives a frame back to this side. Returns `false` if no buffer is free.
    fn reply(&mut self, network: &Network, frame: &[u8]) -> bool {
        let Some(mut reply) = filled(self.cache, frame) else { return false };
        network.vlan.into_iter().for_each(|vlan| reply.set_vlan(vlan));
        self.replies.add(reply);
        true
    }

    /// Drops a frame that does not fit. Tells its sender, once in a millisecond, as that limits what answers to floods cost (RFC 4443, 2.4).
    #[cold]
    fn refuse_long(&mut self, network: &Network, packet: &Packet) {
        self.counts.too_long += 1;
        if *self.told != self.moment
            && let Some(answer) = too_big::answer(packet.bytes(), self.longest)
            && self.reply(network, &answer)
        {
            *self.told = self.moment;
        }
        if !self.state.said_too_long.swap(true, Ordering::Relaxed) {
            let (len, fits) = (packet.total_len(), self.longest);
            warn!(
                "VXLAN: a frame of {len} bytes does not fit into the network between the ends, only one of {fits}; such frames are dropped, and their \
                 senders told by ICMP where they listen; give stations an MTU of at most {}, or that network and --mtu a larger one",
                fits.saturating_sub(ETHERNET)
            );
        }
    }

    /// Sends a frame to all remotes of its network.
    fn replicate(&mut self, network: &Network, packet: Packet) {
        let (remotes, vni) = (self.remotes, network.vni);
        let Some((&last, others)) = remotes.floods(network.place).split_last() else {
            self.counts.drops += 1;
            return;
        };
        for &number in others {
            if self.is_resolved(number) {
                match copy_packet(&packet, self.cache) {
                    Some(copy) => {
                        self.counts.copies += 1;
                        self.put(number, vni, copy);
                    }
                    None => self.counts.drops += 1,
                }
            }
        }
        self.send_to(last, vni, packet);
    }

    /// Sends a frame to one remote.
    #[inline]
    fn send_to(&mut self, number: RemoteId, vni: u32, packet: Packet) {
        if self.is_resolved(number) {
            self.put(number, vni, packet);
        }
    }

    /// Puts a frame with its outer headers to those that are ready.
    #[inline]
    fn put(&mut self, number: RemoteId, vni: u32, mut packet: Packet) {
        let Some((_, headers)) = &self.routes.to(number).headers else { return };
        if !headers.encapsulate(&mut packet, vni) {
            // Perhaps there is no headroom, which a copy has.
            match copy_packet(&packet, self.cache) {
                Some(copy) => packet = copy,
                None => return self.counts.drops += 1,
            }
            if !headers.encapsulate(&mut packet, vni) {
                return self.counts.drops += 1;
            }
        }
        self.put_ready(packet);
    }

    /// Puts a frame that has its headers to those that are ready.
    fn put_ready(&mut self, packet: Packet) {
        if self.ready.room() == 0 {
            self.flush();
        }
        self.ready.push(packet);
    }

    /// Returns whether frames to a remote have an address to go to, and counts the frame if not.
    #[inline]
    fn is_resolved(&mut self, number: RemoteId) -> bool {
        let route = self.routes.to(number);
        if route.seen == self.moment && route.headers.is_some() {
            return true;
        }
        route.seen = self.moment;
        self.resolve(number)
    }

    /// Looks for the hardware address of a remote's next hop, and asks for it if that is due. Returns whether it is known, and counts the frame if not.
    #[cold]
    fn resolve(&mut self, number: RemoteId) -> bool {
        let Some(remote) = self.remotes.get(number) else { return false };
        let (hop, own) = (&remote.hop, self.state.own());
        if hop.request_is_due(self.now)
            && let Some(question) = neighbours::question(own, hop.address)
        {
            send(self.wire, self.cache, &question);
        }
        let mac = hop.mac();
        let route = self.routes.to(number);
        if route.headers.as_ref().map(|(mac, _)| *mac) != mac {
            let path = |mac| Path { hardware: [own.0, mac], ip: [own.1, remote.address] };
            route.headers = mac.map(|mac| (mac, Template::new(path(mac), self.state.config.port, self.longest)));
        }
        self.counts.unresolved += usize::from(mac.is_none());
        mac.is_some()
    }

    /// Sends what is ready, as far as the port has room.
    fn flush(&mut self) {
        let frames = self.ready.len();
        let sent = if frames > 0 { lock(self.wire).tx_burst(self.ready) } else { 0 };
        self.ready.clear();
        self.counts.sent += sent;
        self.counts.drops += frames - sent;
    }
}
