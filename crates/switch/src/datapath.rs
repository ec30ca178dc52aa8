//! One worker's share of the switch: receives from its queues, finds out where each packet goes, and sends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Flags, MAX_BATCH, Packet};
use ringpass_port::{RxQueue, Wake, Wakeable};

use crate::counters::{Counter, PortCounters};
use crate::exits::{Exits, Vlan};
use crate::frame::{Header, is_group, is_reserved};
use crate::switch::{PortView, Shared};
use crate::table::{Key, Learned};
use crate::tag::{self, Tagged};

/// What becomes of packets of an Rx queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The switch looks where they go.
    Lookup,
    /// They go to this port as they are, without a look.
    Pass(usize),
}

/// An Rx queue of a port.
pub struct Ingress {
    /// The port's number.
    pub port: usize,
    /// The queue.
    pub rx: Box<dyn RxQueue>,
    /// Where its packets go.
    pub way: Way,
}

/// See the module. It is [`Wakeable`] by any of its Rx queues.
pub struct Datapath {
    ingress: Vec<Ingress>,
    received: Box<Burst>,
    /// Of the packets received.
    verdicts: Box<[Verdict; MAX_BATCH]>,
    exits: Exits,
    /// Ports that were there in the last round.
    present: u64,
    shared: Arc<Shared>,
    counters: Arc<[PortCounters]>,
}

impl Datapath {
    pub(crate) fn new(
        ingress: Vec<Ingress>,
        exits: Exits,
        batch: usize,
        shared: Arc<Shared>,
        counters: Arc<[PortCounters]>,
    ) -> Self {
        let (received, verdicts) = (Box::new(Burst::new(batch)), Box::new([Verdict::DROP; MAX_BATCH]));
        Self { ingress, received, verdicts, exits, present: shared.all(), shared, counters }
    }

    /// One burst from each Rx queue, to wherever its packets go; returns how many packets were received.
    pub fn round(&mut self) -> usize {
        let present = self.shared.present.load(Ordering::Relaxed);
        if present != self.present {
            self.keep(present);
        }
        let mut moved = 0;
        for Ingress { port, rx, way } in &mut self.ingress {
            let received = rx.rx_burst(&mut self.received);
            if received > 0 {
                moved += received;
                match *way {
                    Way::Lookup => {
                        let verdicts = &mut self.verdicts[..self.received.len()];
                        Lookup::new(*port, &self.shared, &self.counters[*port]).judge(&mut self.received, verdicts);
                        send(&mut self.exits, &mut self.received, verdicts);
                    }
                    Way::Pass(to) => {
                        let up = self.shared.up.load(Ordering::Relaxed) >> to & 1 != 0;
                        let counter = if up { Counter::Passed } else { Counter::Nowhere };
                        self.counters[*port].add(counter, self.received.len() as u64);
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

    /// Lets go of ports that are gone.
    #[cold]
    fn keep(&mut self, present: u64) {
        self.present = present;
        self.ingress.retain(|ingress| present >> ingress.port & 1 != 0);
        self.exits.keep(present);
    }
}

impl Wakeable for Datapath {
    fn arm(&mut self) {
        self.ingress.iter_mut().for_each(|ingress| ingress.rx.arm());
    }

    fn disarm(&mut self) {
        self.ingress.iter_mut().for_each(|ingress| ingress.rx.disarm());
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        self.ingress.iter().for_each(|ingress| ingress.rx.wakes(each));
    }
}

/// Where a packet goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Verdict {
    to: To,
    vlan: Vlan,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Nobody,
    One(u8),
    Several(u64),
}

impl Verdict {
    const DROP: Self = Self { to: To::Nobody, vlan: Vlan { id: 0, tagged: Tagged::No } };
}

/// Sends packets to where they go.
#[inline]
fn send(exits: &mut Exits, burst: &mut Burst, verdicts: &[Verdict]) {
    // Fewer are better gathered with what others bring for the port.
    const MANY: usize = 16;
    let Verdict { to, vlan } = verdicts[0];
    if let To::One(port) = to
        && verdicts.len() >= MANY
        && verdicts.iter().all(|verdict| *verdict == Verdict { to: To::One(port), vlan })
    {
        exits.pass_as_is(port.into(), burst, vlan);
    }
    for (packet, &Verdict { to, vlan }) in burst.drain().zip(verdicts) {
        match to {
            To::One(port) => exits.put(port.into(), packet, vlan),
            To::Several(ports) => exits.put_to_all(ports, packet, vlan),
            To::Nobody => drop(packet),
        }
    }
}

/// Finds out where the packets of one burst from one port go.
struct Lookup<'a> {
    port: usize,
    view: &'a PortView,
    shared: &'a Shared,
    counters: &'a PortCounters,
    /// Ports that this one may send to, and that are up.
    reach: u64,
    now: u16,
    forwarded: u64,
    /// Packets of one flow follow each other: the last source that was learned, and the last destination that was found.
    source: Key,
    destination: (Key, usize),
}

impl<'a> Lookup<'a> {
    #[inline]
    fn new(port: usize, shared: &'a Shared, counters: &'a PortCounters) -> Self {
        let view = &shared.ports[port];
        let reach = view.reach & shared.up.load(Ordering::Relaxed);
        let now = shared.now.load(Ordering::Relaxed);
        let (source, destination) = (Key::NONE, (Key::NONE, 0));
        Self { port, view, shared, counters, reach, now, forwarded: 0, source, destination }
    }

    #[inline]
    fn judge(mut self, burst: &mut Burst, verdicts: &mut [Verdict]) {
        for (packet, verdict) in burst.iter_mut().zip(verdicts) {
            *verdict = self.one(packet);
        }
        if self.forwarded > 0 {
            self.counters.add(Counter::Forwarded, self.forwarded);
        }
    }

    #[inline]
    fn one(&mut self, packet: &mut Packet) -> Verdict {
        let Some(header) = Header::of(packet) else { return self.drop(Counter::Invalid) };
        let mut vlan = Vlan { id: self.view.untagged, tagged: Tagged::No };
        if header.ethertype == tag::ETHERTYPE || packet.flags().any(Flags::VLAN) {
            match self.tagged(packet) {
                Ok(found) => vlan = found,
                Err(why) => return self.drop(why),
            }
        }
        let members = self.shared.members[usize::from(vlan.id & 0xfff)];
        if members >> self.port & 1 == 0 {
            return self.drop(Counter::Vlan);
        }
        let source = Key::new(header.source, vlan.id);
        if source != self.source
            && let Err(why) = self.learn(source, header.source)
        {
            return self.drop(why);
        }
        if is_group(header.destination) {
            return self.group(vlan, header.destination, members);
        }
        let destination = Key::new(header.destination, vlan.id);
        if destination != self.destination.0 {
            match self.shared.table.lookup(destination) {
                Some(port) => self.destination = (destination, port),
                None => return self.flood(vlan, members, Counter::Unknown),
            }
        }
        let to = self.destination.1;
        if (self.reach & members) >> to & 1 == 0 {
            return self.out_of_reach(to);
        }
        self.forwarded += 1;
        Verdict { to: To::One(to as u8), vlan }
    }

    /// The VLAN of a packet with a tag.
    #[cold]
    fn tagged(&self, packet: &mut Packet) -> Result<Vlan, Counter> {
        match tag::id(packet) {
            None => Err(Counter::Invalid),
            // A priority, but no VLAN: as if it had no tag (IEEE 802.1Q, 6.9.1).
            Some(0) => {
                tag::pop(packet);
                Ok(Vlan { id: self.view.untagged, tagged: Tagged::No })
            }
            Some(_) if self.view.access => Err(Counter::Vlan),
            Some(id) => Ok(Vlan { id, tagged: Tagged::Yes }),
        }
    }

    /// Notes where the source is. An error says why its packet must be dropped.
    #[inline]
    fn learn(&mut self, source: Key, mac: u64) -> Result<(), Counter> {
        if !self.view.sources.is_empty() && self.view.sources.binary_search(&mac).is_err() {
            return Err(Counter::Spoofed);
        }
        match self.shared.table.learn(source, self.port, self.now) {
            Learned::Known => {}
            Learned::Fixed => return Err(Counter::Spoofed),
            other => self.learned(other),
        }
        self.source = source;
        Ok(())
    }

    #[cold]
    fn learned(&mut self, learned: Learned) {
        // It may be the one that was found last.
        self.destination.0 = Key::NONE;
        match learned {
            Learned::New => self.counters.add(Counter::Learned, 1),
            Learned::Evicted => {
                self.counters.add(Counter::Learned, 1);
                self.counters.add(Counter::Evicted, 1);
            }
            Learned::Moved => self.counters.add(Counter::Moved, 1),
            Learned::Damped => self.counters.add(Counter::Damped, 1),
            Learned::Known | Learned::Fixed | Learned::Not => {}
        }
    }

    #[cold]
    fn group(&mut self, vlan: Vlan, mac: u64, members: u64) -> Verdict {
        if is_reserved(mac) {
            return self.drop(Counter::Reserved);
        }
        self.flood(vlan, members, Counter::Flooded)
    }

    /// To all that may have it, if the limit allows.
    #[cold]
    fn flood(&mut self, vlan: Vlan, members: u64, why: Counter) -> Verdict {
        if why == Counter::Unknown {
            self.counters.add(Counter::Unknown, 1);
        }
        if !self.view.limit.admits(|| self.shared.start.elapsed()) {
            return self.drop(Counter::Limited);
        }
        let ports = self.reach & members;
        if ports == 0 {
            return self.drop(Counter::Nowhere);
        }
        self.counters.add(Counter::Flooded, 1);
        Verdict { to: To::Several(ports), vlan }
    }

    #[cold]
    fn out_of_reach(&self, to: usize) -> Verdict {
        self.drop(if to == self.port {
            Counter::Local
        } else if self.view.reach >> to & 1 == 0 {
            Counter::Isolated
        } else {
            Counter::Nowhere
        })
    }

    #[cold]
    fn drop(&self, why: Counter) -> Verdict {
        self.counters.add(why, 1);
        Verdict::DROP
    }
}
