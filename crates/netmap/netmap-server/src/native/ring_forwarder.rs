//! The loop that moves frames between a native port's queues, its rings and the host's stack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringpass_memory::{Burst, Mempool};
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};

use super::UseOfRings;
use super::mailbox::Mailbox;
use super::polling::{Polling, PollingCpu};
use super::ring_poller::{Lent, Loan};
use super::switch_links::{SwitchLink, SwitchLinks, ToSwitch};
use crate::vale::Forwarded;

/// Moves frames between a native port's queues and its rings. Belongs to one thread.
pub struct RingForwarder {
    pairs: Vec<Pair>,
    /// The port to the host's stack, and the host's rings.
    host: Option<Pair>,
    shared: SharedState,
    /// Pool of the port's packets, and the largest number of frames moved at a time.
    pool: Mempool,
    batch: usize,
    /// Links to the switch that the port is attached to, and that the host's stack is attached to.
    links: [Option<SwitchLink>; 2],
    polling: Polling,
}

/// State that the control side shares with the forwarder.
pub(super) struct SharedState {
    pub(super) used: Arc<UseOfRings>,
    pub(super) switch: Arc<Mailbox<Option<SwitchLinks>>>,
    pub(super) loans: Arc<Mailbox<Vec<Arc<Loan>>>>,
    pub(super) polling: Arc<PollingCpu>,
    pub(super) dropped: Arc<AtomicU64>,
}

/// A queue of a port, and its rings.
pub(super) struct Pair {
    /// The port's queue; its receiving side may be lent to a thread that polls it.
    rx: Option<Box<dyn RxQueue>>,
    tx: Box<dyn TxQueue>,
    lent_to: Option<Arc<Loan>>,
    rings: QueuePair,
    /// Frames that programs pass on to the other side, if there is one.
    forwarded: Option<Forwarded>,
    /// Frames that programs have sent and the port has not accepted yet.
    sending: Box<Burst>,
    received: Box<Burst>,
}

impl Pair {
    pub(super) fn new(port: QueuePair, rings: QueuePair, forwarded: Option<Forwarded>, batch: usize) -> Self {
        let burst = || Box::new(Burst::new(batch));
        let QueuePair { rx, tx } = port;
        Self { rx: Some(rx), tx, lent_to: None, rings, forwarded, sending: burst(), received: burst() }
    }

    /// Sends what programs have put into the rings. Returns how many frames moved.
    fn send(&mut self) -> usize {
        let Self { tx, rings, sending, .. } = self;
        // Frames that the port has no room for stay in the burst, and the frames after them in the ring.
        if sending.is_empty() {
            rings.rx.rx_burst(sending);
        }
        if sending.is_empty() { 0 } else { tx.tx_burst(sending) }
    }

    /// Receives a burst. Returns how many frames came.
    fn receive(&mut self) -> usize {
        match &mut self.rx {
            Some(rx) => rx.rx_burst(&mut self.received),
            None => {
                self.take_back();
                0
            }
        }
    }

    /// Lends the receiving side to a thread that passes on what it receives.
    fn lend(&mut self, loan: Arc<Loan>, switch: ToSwitch) {
        self.take_back();
        if let Some(rx) = self.rx.take() {
            let received = Box::new(Burst::new(switch.batch));
            loan.lend(Lent { rx, switch, received });
            self.lent_to = Some(loan);
        }
    }

    /// Takes the receiving side back, if the thread that has it has ended.
    #[cold]
    fn take_back(&mut self) {
        if let Some(Lent { rx, .. }) = self.lent_to.as_ref().and_then(|loan| loan.take_back()) {
            (self.rx, self.lent_to) = (Some(rx), None);
        }
    }

    /// Puts the received frames into the rings, as many as there is room for.
    fn fill_rings(&mut self) {
        self.rings.tx.tx_burst(&mut self.received);
    }

    /// Sends the received frames by the port on the other side.
    fn pass_to(&mut self, other: &mut dyn TxQueue) {
        other.tx_burst(&mut self.received);
    }

    /// Sends what programs pass on by the port on the other side. Returns how many frames moved.
    fn forward_to(&mut self, other: &mut dyn TxQueue) -> usize {
        let Self { forwarded, received, .. } = self;
        forwarded.as_mut().map_or(0, |forwarded| forwarded.pass(received, other))
    }
}

impl RingForwarder {
    pub(super) fn new(
        pairs: Vec<Pair>,
        host: Option<Pair>,
        shared: SharedState,
        (pool, batch): (Mempool, usize),
    ) -> Self {
        Self { pairs, host, shared, pool, batch, links: [None, None], polling: Polling::default() }
    }

    /// Takes links to a switch that the control side has set.
    fn update_links(&mut self) {
        let Self { shared, pool, batch, links, .. } = self;
        let Some(changed) = shared.switch.take() else { return };
        *links = match changed {
            Some(SwitchLinks { own, host, pool: switch_pool }) => {
                let link = |queues| SwitchLink::new(queues, &switch_pool, pool, *batch);
                [Some(link(own)), host.map(link)]
            }
            None => [None, None],
        };
    }

    /// Lends queues to threads that are to poll them.
    fn lend_queues(&mut self) {
        // Threads that poll are for an attached port, whose links were set before.
        let Some(link) = &mut self.links[0] else { return };
        let Some(loans) = self.shared.loans.take() else { return };
        for loan in loans {
            if let Some(pair) = self.pairs.get_mut(loan.queue) {
                pair.lend(loan, link.to_switch.another());
            }
        }
    }

    /// Moves one burst each way between the port's queues and the switch. Returns how many frames moved.
    fn round_with_switch(&mut self) -> usize {
        let Self { pairs, host, shared, links, .. } = self;
        let (mut moved, mut dropped) = (0, 0);
        let [own, of_host] = links;
        for (pairs, link) in [(&mut pairs[..], own), (host.as_mut_slice(), of_host)] {
            for pair in pairs.iter_mut() {
                moved += pair.receive();
                if let Some(link) = link {
                    link.to_switch.pass(&mut pair.received);
                }
                dropped += pair.received.len();
                pair.received.clear();
            }
            if let (Some(link), Some(pair)) = (link, pairs.first_mut()) {
                let (sent, lost) = link.send(&mut *pair.tx);
                (moved, dropped) = (moved + sent, dropped + lost);
            }
        }
        if dropped > 0 {
            shared.dropped.fetch_add(dropped as u64, Relaxed);
        }
        moved
    }

    /// Moves one burst each way for each queue. Returns how many frames moved, or 1 or more if it is to poll without pause.
    pub fn round(&mut self) -> usize {
        let polls = self.polling.update(&self.shared.polling);
        self.move_bursts().max(usize::from(polls))
    }

    fn move_bursts(&mut self) -> usize {
        self.update_links();
        self.lend_queues();
        if self.links[0].is_some() {
            return self.round_with_switch();
        }
        let Self { pairs, host, shared: SharedState { used, dropped, .. }, .. } = self;
        let mut moved = 0;
        let drop_rest = |received: &mut Burst| {
            if !received.is_empty() {
                dropped.fetch_add(received.len() as u64, Relaxed);
                received.clear();
            }
        };
        for pair in pairs.iter_mut() {
            moved += pair.send();
            if let Some(host) = host {
                moved += pair.forward_to(&mut *host.tx);
            }
            let came = pair.receive();
            if came > 0 {
                moved += came;
                match host {
                    Some(host) if !used.own() => pair.pass_to(&mut *host.tx),
                    _ => pair.fill_rings(),
                }
            }
            drop_rest(&mut pair.received);
        }
        if let Some(host) = host {
            moved += host.send();
            if let Some(pair) = pairs.first_mut() {
                moved += host.forward_to(&mut *pair.tx);
            }
            let came = host.receive();
            if came > 0 {
                moved += came;
                if used.host() {
                    host.fill_rings();
                } else if let Some(pair) = pairs.first_mut().filter(|_| !used.own()) {
                    host.pass_to(&mut *pair.tx);
                }
            }
            drop_rest(&mut host.received);
        }
        moved
    }
}

impl Wakeable for RingForwarder {
    fn arm(&mut self) {
        for Pair { rx, rings, forwarded, .. } in self.pairs.iter_mut().chain(&mut self.host) {
            rx.iter_mut().for_each(|rx| rx.arm());
            rings.rx.arm();
            forwarded.iter_mut().for_each(Forwarded::arm);
        }
        self.links.iter_mut().flatten().for_each(SwitchLink::arm);
    }

    fn disarm(&mut self) {
        for Pair { rx, rings, forwarded, .. } in self.pairs.iter_mut().chain(&mut self.host) {
            rx.iter_mut().for_each(|rx| rx.disarm());
            rings.rx.disarm();
            forwarded.iter_mut().for_each(Forwarded::disarm);
        }
        self.links.iter_mut().flatten().for_each(SwitchLink::disarm);
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        for Pair { rx, rings, sending, .. } in self.pairs.iter().chain(&self.host) {
            rx.iter().for_each(|rx| rx.wake_sources(each));
            rings.rx.wake_sources(each);
            // A port does not signal when it has room again.
            if !sending.is_empty() {
                each(WakeSource::Polled);
            }
        }
        self.links.iter().flatten().for_each(|link| link.wake_sources(each));
    }
}
