//! The forwarding decision: VLAN, source and destination of each packet.

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Flags, Packet};

use crate::counters::{Counter, PortCounters};
use crate::frame::{RawHeader, is_group, is_reserved};
use crate::state::{PortView, Shared};
use crate::table::{Key, Learned};
use crate::tag::{self, Tagged, Vlan};

/// The ports that a packet goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ports: u64,
    pub(crate) vlan: Vlan,
}

impl Verdict {
    pub(crate) const DROP: Self = Self { ports: 0, vlan: Vlan { id: 0, tagged: Tagged::No } };
}

/// Forwarding decisions for one burst of one port.
pub(crate) struct Lookup<'a> {
    port: usize,
    view: &'a PortView,
    shared: &'a Shared,
    counters: &'a PortCounters,
    /// Ports that this port may send to and that are up, one bit each.
    reach: u64,
    now: u16,
    forwarded: u64,
    /// Caches for consecutive packets of one flow: the source learned last, and the destination found last.
    source: Key,
    destination: (Key, usize),
    /// Header and verdict of the previous frame, if it repeated its flow, had no tag and went to one port. A
    /// frame with the same header gets the same verdict.
    before: (RawHeader, Verdict),
}

impl<'a> Lookup<'a> {
    #[inline]
    pub(crate) fn new(
        (port, view): (usize, &'a PortView),
        present: u64,
        shared: &'a Shared,
        counters: &'a PortCounters,
    ) -> Self {
        let reach = view.reach.load(Ordering::Relaxed) & present & shared.up.load(Ordering::Relaxed);
        let now = shared.now.load(Ordering::Relaxed);
        let (source, destination) = (Key::NONE, (Key::NONE, 0));
        let before = (RawHeader::NONE, Verdict::DROP);
        Self { port, view, shared, counters, reach, now, forwarded: 0, source, destination, before }
    }

    /// Decides on all packets of the burst.
    #[inline]
    pub(crate) fn classify(mut self, burst: &mut Burst, verdicts: &mut [Verdict]) {
        for (packet, verdict) in burst.iter_mut().zip(verdicts) {
            *verdict = self.classify_packet(packet);
        }
        if self.forwarded > 0 {
            self.counters.add(Counter::Forwarded, self.forwarded);
        }
    }

    #[inline]
    fn classify_packet(&mut self, packet: &mut Packet) -> Verdict {
        let Some(start) = RawHeader::of(&*packet) else { return self.drop(Counter::Invalid) };
        if start == self.before.0 && !packet.flags().any(Flags::VLAN) {
            self.forwarded += 1;
            return self.before.1;
        }
        let header = start.header();
        let named = header.has_source();
        if !named && (!self.shared.any_source || !self.view.sources.is_empty()) {
            return self.drop(Counter::Invalid);
        }
        // Whether the packet has no tag and belongs to the same flow as the one before.
        let mut again = true;
        let mut vlan = Vlan { id: self.view.untagged, tagged: Tagged::No };
        if header.ethertype == tag::ETHERTYPE || packet.flags().any(Flags::VLAN) {
            again = false;
            match self.tagged(packet) {
                Ok(found) => vlan = found,
                Err(why) => return self.drop(why),
            }
        }
        let members = self.shared.members[usize::from(vlan.id & 0xfff)].load(Ordering::Relaxed);
        if members >> self.port & 1 == 0 {
            return self.drop(Counter::Vlan);
        }
        let source = Key::new(header.source, vlan.id);
        if source != self.source {
            again = false;
            if named && let Err(why) = self.learn(source, header.source, packet.flags()) {
                return self.drop(why);
            }
        }
        if is_group(header.destination) {
            return self.group(vlan, header.destination, members);
        }
        let destination = Key::new(header.destination, vlan.id);
        if destination != self.destination.0 {
            again = false;
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
        let verdict = Verdict { ports: 1 << to, vlan };
        if again {
            self.before = (start, verdict);
        }
        verdict
    }

    /// Returns the VLAN of a packet that has a tag.
    #[cold]
    fn tagged(&self, packet: &mut Packet) -> Result<Vlan, Counter> {
        match tag::id(packet) {
            None => Err(Counter::Invalid),
            // A priority tag, without a VLAN, counts as no tag (IEEE 802.1Q, 6.9.1).
            Some(0) => {
                tag::pop(packet);
                Ok(Vlan { id: self.view.untagged, tagged: Tagged::No })
            }
            Some(_) if self.view.access => Err(Counter::Vlan),
            Some(id) => Ok(Vlan { id, tagged: Tagged::Yes }),
        }
    }

    /// Learns the source's port, unless the packet's flags forbid it. An error says why the packet must be
    /// dropped.
    #[inline]
    fn learn(&mut self, source: Key, mac: u64, flags: Flags) -> Result<(), Counter> {
        if !self.view.sources.is_empty() && self.view.sources.binary_search(&mac).is_err() {
            return Err(Counter::Spoofed);
        }
        if flags.any(Flags::NO_LEARN) {
            return self.pass_unlearned(source);
        }
        match self.shared.table.learn(source, self.port, self.now) {
            Learned::Known => {}
            Learned::Fixed => return Err(Counter::Spoofed),
            other => self.learned(other),
        }
        self.source = source;
        Ok(())
    }

    /// Checks the source of a packet that must not be learned from: a static station of another port is still
    /// rejected. Nothing is cached, so the following packets are checked too.
    #[cold]
    fn pass_unlearned(&self, source: Key) -> Result<(), Counter> {
        match self.shared.table.fixed(source) {
            Some(port) if port != self.port => Err(Counter::Spoofed),
            _ => Ok(()),
        }
    }

    #[cold]
    fn learned(&mut self, learned: Learned) {
        // The cached destination, and that of the previous frame, may be the station that has just changed.
        self.destination.0 = Key::NONE;
        self.before.0 = RawHeader::NONE;
        match learned {
            Learned::New => self.counters.add(Counter::Learned, 1),
            Learned::Evicted => {
                self.counters.add(Counter::Learned, 1);
                self.counters.add(Counter::Evicted, 1);
            }
            Learned::Moved => self.counters.add(Counter::Moved, 1),
            Learned::Damped => self.counters.add(Counter::Damped, 1),
            Learned::Full => self.counters.add(Counter::TableFull, 1),
            Learned::Known | Learned::Fixed | Learned::Busy => {}
        }
    }

    #[cold]
    fn group(&mut self, vlan: Vlan, mac: u64, members: u64) -> Verdict {
        if is_reserved(mac) {
            return self.drop(Counter::Reserved);
        }
        self.flood(vlan, members, Counter::Flooded)
    }

    /// Sends the packet to all ports that may get it, within the flooding limit.
    #[cold]
    fn flood(&mut self, vlan: Vlan, members: u64, why: Counter) -> Verdict {
        if why == Counter::Unknown {
            self.counters.add(Counter::Unknown, 1);
        }
        if !self.view.rate_limiter.allow(|| self.shared.start.elapsed()) {
            return self.drop(Counter::Limited);
        }
        let ports = self.reach & members;
        if ports == 0 {
            return self.drop(Counter::Nowhere);
        }
        self.counters.add(Counter::Flooded, 1);
        Verdict { ports, vlan }
    }

    #[cold]
    fn out_of_reach(&self, to: usize) -> Verdict {
        self.drop(if to == self.port {
            Counter::Local
        } else if self.view.reach.load(Ordering::Relaxed) >> to & 1 == 0 {
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
