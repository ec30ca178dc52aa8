//! One worker's share of the switch: receives from its queues, finds out where each packet goes, and sends.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, MAX_BATCH};
use ringpass_port::{RxQueue, Wake, Wakeable};

use crate::changes::{Change, Mailbox};
use crate::counters::{Counter, PortCounters};
use crate::exits::Exits;
use crate::lookup::{Lookup, Verdict};
use crate::switch::Shared;

/// What becomes of packets of an Rx queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The switch looks where they go.
    Lookup,
    /// They go to this port as they are, without a look.
    Pass(usize),
}

/// An Rx queue of a port.
struct Ingress {
    port: usize,
    rx: Box<dyn RxQueue>,
    way: Way,
    /// Of the port.
    counters: Arc<PortCounters>,
}

/// See the module. It is [`Wakeable`] by any of its Rx queues, and by ports that come or go.
pub struct Datapath {
    ingress: Vec<Ingress>,
    received: Box<Burst>,
    /// Of the packets received.
    verdicts: Box<[Verdict; MAX_BATCH]>,
    exits: Exits,
    /// Its Rx queues are.
    armed: bool,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
}

impl Datapath {
    pub(crate) fn new(exits: Exits, batch: usize, mailbox: Arc<Mailbox>, shared: Arc<Shared>) -> Self {
        let (received, verdicts) = (Box::new(Burst::new(batch)), Box::new([Verdict::DROP; MAX_BATCH]));
        Self { ingress: Vec::new(), received, verdicts, exits, armed: false, mailbox, shared }
    }

    /// One burst from each Rx queue, to wherever its packets go; returns how many packets were received.
    pub fn round(&mut self) -> usize {
        if self.mailbox.is_pending() {
            self.change();
        }
        if self.exits.present() & !self.shared.up.load(Ordering::Relaxed) != 0 {
            self.look_for_links();
        }
        let mut moved = 0;
        for Ingress { port, rx, way, counters } in &mut self.ingress {
            let received = rx.rx_burst(&mut self.received);
            if received > 0 {
                self.shared.may_receive(*port);
                moved += received;
                match *way {
                    Way::Lookup => {
                        let verdicts = &mut self.verdicts[..self.received.len()];
                        let lookup = Lookup::new(*port, self.exits.present(), &self.shared, counters);
                        lookup.judge(&mut self.received, verdicts);
                        send(&mut self.exits, &mut self.received, verdicts);
                    }
                    Way::Pass(to) => {
                        let up = (self.shared.up.load(Ordering::Relaxed) & self.exits.present()) >> to & 1 != 0;
                        let counter = if up { Counter::Passed } else { Counter::Nowhere };
                        counters.add(counter, self.received.len() as u64);
                        if up {
                            self.exits.pass(to, &mut self.received);
                        }
                        self.received.clear();
                    }
                }
            }
        }
        if moved > 0 {
            self.exits.flush();
        }
        moved
    }

    /// Finds ports that have got their link since the control side looked, which it does some times a second: what is
    /// for them now must not be lost until then.
    #[cold]
    fn look_for_links(&self) {
        let up = self.ingress.iter().filter(|ingress| ingress.rx.has_link());
        up.for_each(|ingress| self.shared.may_receive(ingress.port));
    }

    /// Takes ports in and lets go of others, as the control side wants.
    #[cold]
    fn change(&mut self) {
        for change in self.mailbox.take() {
            match change {
                Change::Insert { port, mut share, counters } => {
                    // It may come between arming and sleeping; the look that belongs to it follows.
                    if self.armed {
                        share.rx.iter_mut().for_each(|(rx, _)| rx.arm());
                    }
                    self.exits.insert(port, share.tx, counters.clone());
                    let ingress = |(rx, way)| Ingress { port, rx, way, counters: counters.clone() };
                    self.ingress.extend(share.rx.into_iter().map(ingress));
                }
                Change::Remove { port } => {
                    let before = self.ingress.len();
                    self.ingress.retain(|ingress| ingress.port != port);
                    self.exits.remove(port);
                    // What came from it after the control side had them forgotten.
                    if self.ingress.len() < before {
                        self.shared.forget(port);
                    }
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

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Readable(self.mailbox.as_fd()));
        self.ingress.iter().for_each(|ingress| ingress.rx.wakes(each));
    }
}

/// Sends packets to where they go.
#[inline]
fn send(exits: &mut Exits, burst: &mut Burst, verdicts: &[Verdict]) {
    // Fewer are better gathered with what others bring for the port.
    const MANY: usize = 16;
    let first = verdicts[0];
    if first.ports.is_power_of_two() && verdicts.len() >= MANY && verdicts.iter().all(|verdict| *verdict == first) {
        exits.pass_as_is(first.ports.trailing_zeros() as usize, burst, first.vlan);
    }
    for (packet, &Verdict { ports, vlan }) in burst.drain().zip(verdicts) {
        if ports.is_power_of_two() {
            exits.put(ports.trailing_zeros() as usize, packet, vlan);
        } else if ports != 0 {
            exits.put_to_all(ports, packet, vlan);
        }
    }
}
