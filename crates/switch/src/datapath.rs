//! One worker's share of the switch: receives from its queues, finds out where each packet goes, and sends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Flags, Packet};
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
        Self { ingress, received: Box::new(Burst::new(batch)), exits, present: shared.all(), shared, counters }
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
                        let counters = &self.counters[*port];
                        Lookup::new(*port, &self.shared, counters, &mut self.exits).forward(&mut self.received);
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

/// Takes the packets of one burst from one port to where they go.
struct Lookup<'a> {
    port: usize,
    view: &'a PortView,
    shared: &'a Shared,
    counters: &'a PortCounters,
    exits: &'a mut Exits,
    /// Ports that this one may send to, and that are up.
    reach: u64,
    now: u16,
    /// Packets of one flow follow each other: the last source that was learned, and the last destination that was found.
    source: Key,
    destination: (Key, usize),
}

impl<'a> Lookup<'a> {
    #[inline]
    fn new(port: usize, shared: &'a Shared, counters: &'a PortCounters, exits: &'a mut Exits) -> Self {
        let view = &shared.ports[port];
        let reach = view.reach & shared.up.load(Ordering::Relaxed);
        let now = shared.now.load(Ordering::Relaxed);
        let (source, destination) = (Key::NONE, (Key::NONE, 0));
        Self { port, view, shared, counters, exits, reach, now, source, destination }
    }

    fn forward(mut self, burst: &mut Burst) {
        let mut forwarded = 0;
        for packet in burst.drain() {
            forwarded += self.one(packet);
        }
        if forwarded > 0 {
            self.counters.add(Counter::Forwarded, forwarded);
        }
    }

    /// Returns 1 if the packet went to the one port where its destination is; all else is counted here.
    #[inline]
    fn one(&mut self, mut packet: Packet) -> u64 {
        let Some(header) = Header::of(&packet) else { return self.drop(Counter::Invalid) };
        let mut vlan = Vlan { id: self.view.untagged, tagged: Tagged::No };
        if header.ethertype == tag::ETHERTYPE || packet.flags().any(Flags::VLAN) {
            match self.tagged(&mut packet) {
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
            return self.group(packet, vlan, header.destination, members);
        }
        let destination = Key::new(header.destination, vlan.id);
        if destination != self.destination.0 {
            match self.shared.table.lookup(destination) {
                Some(port) => self.destination = (destination, port),
                None => return self.flood(packet, vlan, members, Counter::Unknown),
            }
        }
        let to = self.destination.1;
        if (self.reach & members) >> to & 1 == 0 {
            return self.out_of_reach(to);
        }
        self.exits.put(to, packet, vlan);
        1
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
    fn group(&mut self, packet: Packet, vlan: Vlan, mac: u64, members: u64) -> u64 {
        if is_reserved(mac) {
            return self.drop(Counter::Reserved);
        }
        self.flood(packet, vlan, members, Counter::Flooded)
    }

    /// To all that may have it, if the limit allows.
    #[cold]
    fn flood(&mut self, packet: Packet, vlan: Vlan, members: u64, why: Counter) -> u64 {
        if why == Counter::Unknown {
            self.counters.add(Counter::Unknown, 1);
        }
        if !self.view.limit.admits(|| self.shared.start.elapsed()) {
            return self.drop(Counter::Limited);
        }
        match self.reach & members {
            0 => self.drop(Counter::Nowhere),
            ports => {
                self.counters.add(Counter::Flooded, 1);
                self.exits.put_to_all(ports, packet, vlan);
                0
            }
        }
    }

    #[cold]
    fn out_of_reach(&self, to: usize) -> u64 {
        self.drop(if to == self.port {
            Counter::Local
        } else if self.view.reach >> to & 1 == 0 {
            Counter::Isolated
        } else {
            Counter::Nowhere
        })
    }

    #[cold]
    fn drop(&self, why: Counter) -> u64 {
        self.counters.add(why, 1);
        0
    }
}
