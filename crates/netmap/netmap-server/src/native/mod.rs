//! Native ports: any port in netmap mode, with a Tx ring and an Rx ring for each of its queues.
//!
//! The host's stack may be behind it, as another port, such as a TAP: it has rings as well, any number of each direction. Without a
//! program the two ports are connected. If a program has rings of the port, the host's frames go to the host's rings, and are
//! dropped if no program has those; if programs have host rings only, the host still receives what the port does. Without the host's
//! stack, what the port receives without a program is dropped.
//!
//! A [`NativePort`] is the control side; a [`RingForwarder`] moves the frames, either by copying or by
//! exchanging buffers, if their region has a pool ([`Region::exchange`]). The rings are served like those of a VALE switch. Frames that the
//! port has no room for wait in the ring, as with a card.

mod mailbox;
mod polling;
mod ring_forwarder;
mod ring_poller;
mod switch_links;
mod use_of_rings;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_ipc::{EventNotifier, WakeFd};
use ringpass_memory::Mempool;
use ringpass_netmap::{Direction, Kring, Offsets, Region};
use ringpass_port::{Error, QueuePair};
use serde_json::{Value, json};

use crate::BufferAccess;
use crate::server::{RequestError, ServedPort, Watched};
use crate::vale::{Forwarded, Monitor, Part, Shared, kick};

use mailbox::Mailbox;
use polling::PollingCpu;
pub use polling::PollingMode;
pub(crate) use polling::may_run_on;
pub use ring_forwarder::RingForwarder;
use ring_forwarder::{Pair, SharedState};
use ring_poller::{Loan, RingPoller};
pub use switch_links::SwitchLinks;
use use_of_rings::UseOfRings;

/// Control side of a native port.
pub struct NativePort {
    /// One entry for each queue.
    pairs: Vec<Arc<Shared>>,
    /// Rings of the host's stack.
    host: Option<Arc<Shared>>,
    used: Arc<UseOfRings>,
    switch: Arc<Mailbox<Option<SwitchLinks>>>,
    polling: Arc<PollingCpu>,
    /// Threads that poll single queues, and what the forwarder lends them.
    pollers: Vec<RingPoller>,
    loans: Arc<Mailbox<Vec<Arc<Loan>>>>,
    kick: Arc<WakeFd>,
    dropped: Arc<AtomicU64>,
}

impl NativePort {
    /// Creates a native port from a port's queues, with the forwarder that moves its frames. `host` are the queues of the port
    /// to the host's stack, if there is one.
    ///
    /// `pool` is the pool that frames are copied to, in at most 64 buffers each. If rings exchange buffers it
    /// is the exchange's pool, and the port's packets must be of it, too. `batch` (1 to 256) is the largest
    /// number of frames moved at a time.
    pub fn new(
        queues: Vec<QueuePair>,
        host: Option<QueuePair>,
        pool: &Mempool,
        batch: usize,
    ) -> Result<(Self, RingForwarder), Error> {
        let kick = kick()?;
        let (dropped, used) = (Arc::new(AtomicU64::new(0)), Arc::new(UseOfRings::default()));
        let pairs: Vec<_> = queues.iter().map(|_| Shared::new(&kick)).collect();
        let has_host = host.is_some();
        let pair = |(port, shared): (QueuePair, &Arc<Shared>)| {
            let forwarded = has_host.then(|| Forwarded::new(shared, pool));
            Ok::<_, Error>(Pair::new(port, shared.queues(pool)?, forwarded, batch))
        };
        let host = host.map(|port| (port, Shared::new(&kick)));
        let own_pairs = queues.into_iter().zip(&pairs).map(pair).collect::<Result<_, _>>()?;
        let (host_port, host) = host.unzip();
        let host_pair = host_port.zip(host.as_ref()).map(pair).transpose()?;
        let switch = Arc::new(Mailbox::default());
        let loans = Arc::new(Mailbox::default());
        let polling = Arc::new(PollingCpu::default());
        let shared = SharedState {
            used: used.clone(),
            switch: switch.clone(),
            loans: loans.clone(),
            polling: polling.clone(),
            dropped: dropped.clone(),
        };
        let ring_forwarder = RingForwarder::new(own_pairs, host_pair, shared, (pool.clone(), batch));
        let pollers = Vec::new();
        Ok((Self { pairs, host, used, switch, polling, pollers, loans, kick, dropped }, ring_forwarder))
    }

    /// Number of queues. A program's port has as many rings of each direction.
    pub fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// Received frames that were dropped, because no program had room for them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Attaches the port to a switch, in place of programs: what it receives goes there, and it sends what comes from there.
    /// Without a link for the host's stack, what that sends is dropped meanwhile.
    pub fn attach(&self, links: SwitchLinks) {
        self.switch.put(Some(links));
        self.kick.wake();
    }

    /// Detaches the port from its switch. The links are dropped by the forwarder's thread.
    pub fn detach(&self) {
        self.switch.put(None);
        self.kick.wake();
    }

    /// Has an attached port polled without pause: by the forwarder, or queues each by a thread of its own. Without a mode, the
    /// forwarder sleeps again when there is nothing to do. Fails if a thread cannot be started.
    pub fn poll(&mut self, mode: Option<PollingMode>) -> Result<(), Error> {
        self.pollers.clear();
        let (cpu, queues) = match mode {
            Some(PollingMode::OneCpu(cpu)) => (Some(cpu), None),
            Some(PollingMode::CpuPerQueue(queues)) => (None, Some(queues)),
            None => (None, None),
        };
        if let Some(queues) = queues {
            let queues = queues.start as usize..queues.end as usize;
            let started = RingPoller::start(queues, &self.dropped, &self.kick);
            self.pollers = started.map_err(|source| Error::os("starting a thread that polls", source))?;
            self.loans.put(self.pollers.iter().map(RingPoller::loan).collect());
        }
        self.polling.set(cpu);
        self.kick.wake();
        Ok(())
    }

    /// Returns whether the host's stack is behind it.
    pub fn has_host(&self) -> bool {
        self.host.is_some()
    }

    /// Attaches rings of a region in their initial state, one of each direction to each queue and the others to the host's stack,
    /// in the order of their CSB entries, until the returned value is dropped. If buffers are exchanged, only frames that lie in one
    /// buffer pass; others are dropped and counted.
    ///
    /// # Panics
    /// If there are fewer rings of a direction than queues, or more and no host's stack. The forwarder panics if frames are exchanged
    /// with another pool than its own.
    pub fn join(&self, served: Vec<Kring>, region: &Region) -> Result<Box<dyn ServedPort>, Error> {
        let (mut tx, mut rx): (Vec<_>, Vec<_>) = served.into_iter().partition(|ring| ring.direction() == Direction::Tx);
        let queues = self.pairs.len();
        let host_rings = [tx.split_off(queues), rx.split_off(queues)].into_iter().flatten().collect::<Vec<_>>();
        assert!(host_rings.is_empty() || self.has_host(), "a ring each way for each queue");
        let buffer_access = BufferAccess::of(region);
        let all = self.pairs.iter().chain(&self.host).cloned().collect();
        let joined =
            AttachedRings { queues, all, programs: Vec::new(), used: self.used.clone(), kick: self.kick.clone() };
        if let Some(host) = &self.host {
            host.open(host_rings, &buffer_access);
        }
        for (pair, (tx, rx)) in self.pairs.iter().zip(tx.into_iter().zip(rx)) {
            pair.open(vec![tx, rx], &buffer_access);
        }
        // Wakes the forwarder, which now polls other rings.
        self.kick.wake();
        Ok(Box::new(joined))
    }
}

/// Rings that are attached to a native port.
struct AttachedRings {
    /// Number of the port's queues.
    queues: usize,
    /// Rings of each queue, then those of the host's stack.
    all: Vec<Arc<Shared>>,
    /// Programs, by the number of their registration, and the CSB entries of their rings.
    programs: Vec<(u64, u64)>,
    used: Arc<UseOfRings>,
    kick: Arc<WakeFd>,
}

impl AttachedRings {
    /// Records which rings programs have.
    fn note_use(&self) {
        let entries = self.programs.iter().fold(0, |all, (_, entries)| all | entries);
        let own = u64::MAX.checked_shr(64 - 2 * self.queues as u32).unwrap_or(0);
        self.used.set(entries & own != 0, entries & !own != 0);
        self.kick.wake();
    }
}

impl ServedPort for AttachedRings {
    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.event()
    }

    fn subscribe(&mut self, number: u64, entries: u64, call: EventNotifier) {
        self.all.iter().for_each(|rings| rings.subscribe(number, entries, &call));
        self.programs.push((number, entries));
        self.note_use();
    }

    fn unsubscribe(&mut self, number: u64) {
        self.all.iter().for_each(|rings| rings.unsubscribe(number));
        self.programs.retain(|(other, _)| *other != number);
        self.note_use();
    }

    fn set_offsets(&mut self, offsets: &dyn Fn(usize) -> Offsets) {
        self.all.iter().for_each(|rings| rings.set_offsets(offsets));
    }

    /// Counters of each queue and of the host's stack, since the port was created. Received frames are those that programs have
    /// sent.
    fn counters(&self) -> Value {
        match &self.all[..] {
            [pair] => pair.counters.json(),
            all => json!(all.iter().map(|rings| rings.counters.json()).collect::<Vec<_>>()),
        }
    }

    fn monitor(
        &self,
        watched: Watched,
        served: Vec<Kring>,
        region: &Region,
    ) -> Result<Box<dyn ServedPort>, RequestError> {
        // Each queue has one ring each way, and the host's rings come last.
        let parts = self.all.iter().enumerate().map(|(first, shared)| Part { shared: shared.clone(), first });
        Monitor::open(parts.collect(), watched, served, region)
    }
}

impl Drop for AttachedRings {
    fn drop(&mut self) {
        self.all.iter().for_each(|rings| rings.close());
        self.used.set(false, false);
        // Wakes the forwarder, which connects port and host now.
        self.kick.wake();
    }
}
