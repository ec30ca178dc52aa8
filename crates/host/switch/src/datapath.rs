//! The datapath: one worker's part of the switch. It receives from its queues, looks up where each packet goes,
//! and sends.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_ipc::drop_elsewhere;
use ringpass_memory::{Burst, MAX_BATCH, Packet};
use ringpass_port::{RxQueue, WakeSource, Wakeable};

use crate::changes::{Change, Forwarding, Mailbox, QueueExchange};
use crate::counters::{Counter, PortCounters};
use crate::egress::EgressPorts;
use crate::flows::{Flows, Way};
use crate::lookup::{Classified, Lookup, Verdict};
use crate::state::{PortView, Shared};

/// An Rx queue of a port.
struct Ingress {
    port: usize,
    view: Arc<PortView>,
    rx: Box<dyn RxQueue>,
    way: Forwarding,
    /// Counters of the queue's port.
    counters: Arc<PortCounters>,
}

/// One worker's part of the switch. As a [`Wakeable`] it is woken by any of its Rx queues, and by ports that
/// are added or removed.
pub struct Datapath {
    ingress: Vec<Ingress>,
    received: Box<Burst>,
    /// Ways of the packets in `received`, and verdicts on those with other ways.
    ways: Box<[Way; MAX_BATCH]>,
    verdicts: Box<[Verdict; MAX_BATCH]>,
    egress: EgressPorts,
    flows: Flows,
    /// Whether the Rx queues are armed.
    armed: bool,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
}

impl Datapath {
    pub(crate) fn new(egress: EgressPorts, batch: usize, mailbox: Arc<Mailbox>, shared: Arc<Shared>) -> Self {
        let (ways, verdicts) = (Box::new([Way::OTHER; MAX_BATCH]), Box::new([Verdict::DROP; MAX_BATCH]));
        let received = Box::new(Burst::new(batch));
        Self {
            ingress: Vec::new(),
            received,
            ways,
            verdicts,
            flows: Flows::new(egress.slots()),
            egress,
            armed: false,
            mailbox,
            shared,
        }
    }

    /// Receives one burst from each Rx queue and forwards its packets. Returns how many packets were received.
    pub fn round(&mut self) -> usize {
        if self.mailbox.is_pending() {
            self.change();
        }
        if self.egress.present() & !self.shared.up.load(Ordering::Relaxed) != 0 {
            self.poll_links();
        }
        self.flows.begin(self.shared.epoch(self.egress.present()));
        let mut moved = 0;
        for Ingress { port, view, rx, way, counters } in &mut self.ingress {
            let received = rx.rx_burst(&mut self.received);
            if received > 0 {
                self.shared.mark_up(*port);
                moved += received;
                match *way {
                    Forwarding::Lookup => {
                        let (ways, verdicts) = (&mut self.ways[..], &mut self.verdicts[..]);
                        let known = (&mut self.flows, &self.egress);
                        let lookup = Lookup::new((*port, view), (&self.shared, counters), known);
                        let classified = lookup.classify(&mut self.received, ways, verdicts);
                        send(&mut self.egress, &mut self.received, (ways, verdicts), &classified);
                    }
                    Forwarding::Direct(to) => {
                        let up = (self.shared.up.load(Ordering::Relaxed) & self.egress.present()) >> to & 1 != 0;
                        let counter = if up { Counter::Passed } else { Counter::Nowhere };
                        counters.add(counter, self.received.len() as u64);
                        if up {
                            self.egress.pass(to, &mut self.received);
                        }
                        self.received.clear();
                    }
                }
            }
        }
        if moved > 0 {
            self.egress.flush();
        }
        moved
    }

    /// Finds ports whose link has come up since the control side polled the links, which it does several times
    /// a second. Frames for these ports must not be lost until then.
    #[cold]
    fn poll_links(&self) {
        let up = self.ingress.iter().filter(|ingress| ingress.rx.has_link());
        up.for_each(|ingress| self.shared.mark_up(ingress.port));
    }

    /// Adds and removes ports, as the control side requested.
    #[cold]
    fn change(&mut self) {
        self.flows.forget();
        for change in self.mailbox.take() {
            match change {
                Change::Insert { port, view, mut share, counters } => {
                    // This round may be the one between arming and sleeping: arm the new queues as well. The
                    // rest of the round polls them.
                    if self.armed {
                        share.rx.iter_mut().for_each(|(rx, _)| rx.arm());
                    }
                    self.egress.insert(port, &view, share.tx, counters.clone());
                    let ingress = |(rx, way)| Ingress { port, view: view.clone(), rx, way, counters: counters.clone() };
                    self.ingress.extend(share.rx.into_iter().map(ingress));
                }
                Change::View { port, view } => {
                    self.egress.set_view(port, &view);
                    let own = self.ingress.iter_mut().filter(|ingress| ingress.port == port);
                    own.for_each(|ingress| ingress.view = view.clone());
                }
                Change::Exchange { port, queues: QueueExchange { mut rx, tx } } => {
                    let exchanged = |own: Ingress| match own.port == port {
                        true => Ingress { rx: rx(own.rx), ..own },
                        false => own,
                    };
                    self.ingress = std::mem::take(&mut self.ingress).into_iter().map(exchanged).collect();
                    self.egress.exchange(port, tx);
                }
                Change::Remove { port } => {
                    let removed: Vec<Ingress> = self.ingress.extract_if(.., |ingress| ingress.port == port).collect();
                    // Forgets stations learned from frames that arrived after the control side had forgotten
                    // the port's stations.
                    if !removed.is_empty() {
                        self.shared.forget(port);
                    }
                    // A queue may wait for its card to stop, which takes seconds if that does not answer.
                    drop_elsewhere((removed, self.egress.remove(port)));
                }
            }
        }
    }
}

impl Wakeable for Datapath {
    fn arm(&mut self) {
        self.armed = true;
        self.ingress.iter_mut().for_each(|ingress| ingress.rx.arm());
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.ingress.iter_mut().for_each(|ingress| ingress.rx.disarm());
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.mailbox.as_fd()));
        self.ingress.iter().for_each(|ingress| ingress.rx.wake_sources(each));
    }
}

/// Forwards the packets of a burst by their ways and verdicts.
#[inline]
fn send(egress: &mut EgressPorts, burst: &mut Burst, (ways, verdicts): (&[Way], &[Verdict]), all: &Classified) {
    // Smaller bursts are better collected with packets from other queues for the same port.
    const MANY: usize = 16;
    match all.same {
        Some(port) if burst.len() >= MANY && (!all.lent || egress.lends(port)) => return egress.pass(port, burst),
        _ => {}
    }
    let len = burst.len();
    let mut packets = burst.drain();
    for (number, way) in ways[..len].iter().enumerate() {
        match way.as_is() {
            Some(port) if !all.lent => egress.put_as_is(port, &mut packets),
            Some(port) => packets.next().into_iter().for_each(|packet| egress.put_unchanged(port, packet)),
            None => packets.next().into_iter().for_each(|packet| send_one(egress, packet, verdicts[number])),
        }
    }
}

/// Forwards a packet by its verdict.
#[inline(never)]
fn send_one(egress: &mut EgressPorts, packet: Packet, Verdict { ports, vlan }: Verdict) {
    if ports.is_power_of_two() {
        egress.put(ports.trailing_zeros() as usize, packet, vlan);
    } else if ports != 0 {
        egress.put_to_all(ports, packet, vlan);
    }
}
