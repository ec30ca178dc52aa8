//! The forwarding decision: VLAN, source and destination of each packet.

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Flags, Packet};

use crate::counters::{Counter, PortCounters};
use crate::egress::EgressPorts;
use crate::flows::{Flows, Way};
use crate::frame::{RawHeader, is_group, is_reserved};
use crate::state::{PortView, Shared};
use crate::table::{Key, Learned};
use crate::tag::{self, Tagged, Vlan};

/// Part of the packets of a burst whose flows may be unknown before tables are prefetched for the next one.
const COLD: usize = 8;

/// Flags of packets whose headers do not say all: those with a tag, and those that are not learned from.
const SPECIAL: Flags = Flags::VLAN.or(Flags::NO_LEARN);

/// The ports that a packet goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ports: u64,
    pub(crate) vlan: Vlan,
}

impl Verdict {
    pub(crate) const DROP: Self = Self { ports: 0, vlan: Vlan { id: 0, tagged: Tagged::No } };
}

/// Summary of all packets of a burst.
pub(crate) struct Classified {
    /// The port that all of them go to unchanged.
    pub(crate) same: Option<usize>,
    /// Set if some have lent buffers.
    pub(crate) lent: bool,
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
    flows: &'a mut Flows,
    /// Tag of the port's flows.
    tag: u64,
    egress: &'a EgressPorts,
}

impl<'a> Lookup<'a> {
    #[inline]
    pub(crate) fn new(
        (port, view): (usize, &'a PortView),
        (shared, counters): (&'a Shared, &'a PortCounters),
        (flows, egress): (&'a mut Flows, &'a EgressPorts),
    ) -> Self {
        let reach = view.reach.load(Ordering::Relaxed) & egress.present() & shared.up.load(Ordering::Relaxed);
        let now = shared.now.load(Ordering::Relaxed);
        let tag = flows.tag(port);
        Self { port, view, shared, counters, reach, now, forwarded: 0, flows, tag, egress }
    }

    /// Decides on all packets of the burst. The verdicts are those of packets with another way than to a port that takes them as they are.
    #[inline]
    pub(crate) fn classify(mut self, burst: &mut Burst, ways: &mut [Way], verdicts: &mut [Verdict]) -> Classified {
        if self.flows.cold && self.shared.table.is_large() {
            self.prefetch(burst);
        }
        let mut all = Flags::default();
        let (len, mut others) = (burst.len(), 0);
        // The flow of the frame before, which the next one mostly belongs to as well.
        let mut before = (RawHeader::NONE, Way::OTHER);
        for (number, (packet, way)) in burst.iter_mut().zip(&mut *ways).enumerate() {
            all |= packet.flags();
            match RawHeader::of(&*packet).filter(|_| !packet.flags().any(SPECIAL)) {
                Some(header) if header == before.0 => {}
                Some(header) => before = (header, self.flows.find(header, self.tag)),
                None => before = (RawHeader::NONE, Way::OTHER),
            }
            *way = before.1;
            if way.as_is().is_none() {
                others += 1;
                verdicts[number] = self.verdict(packet, way);
                before.0 = RawHeader::NONE;
            }
        }
        self.flows.cold = others > len / COLD;
        self.forwarded += (len - others) as u64;
        if self.forwarded > 0 {
            self.counters.add(Counter::Forwarded, self.forwarded);
        }
        Classified { same: Way::of_all(&ways[..len]).and_then(Way::as_is), lent: all.any(Flags::LENT) }
    }

    /// Fetches what the packets' stations will be looked up in, all at the same time: a table of many stations is far away.
    #[cold]
    fn prefetch(&self, burst: &Burst) {
        for header in burst.iter().filter_map(RawHeader::of).map(RawHeader::header) {
            for mac in [header.source, header.destination] {
                self.shared.table.prefetch(Key::new(mac, self.view.untagged));
            }
        }
    }

    /// Returns the verdict on a packet whose way is not known, or that gets a tag. Its way says from here on whether it needs that.
    #[inline(never)]
    fn verdict(&mut self, packet: &mut Packet, way: &mut Way) -> Verdict {
        let tagged = std::mem::replace(way, Way::OTHER);
        if tagged != Way::OTHER {
            self.forwarded += 1;
            return Verdict { ports: 1 << tagged.port(), vlan: Vlan { id: self.view.untagged, tagged: Tagged::No } };
        }
        let verdict = self.classify_new(packet);
        let port = verdict.ports.trailing_zeros() as usize;
        if verdict.ports.is_power_of_two() && self.egress.as_is(port, verdict.vlan) {
            *way = Way::to(port, true);
        }
        verdict
    }

    /// Decides on a packet of a flow that is not known.
    fn classify_new(&mut self, packet: &mut Packet) -> Verdict {
        let Some(start) = RawHeader::of(&*packet) else { return self.drop(Counter::Invalid) };
        let plain = !packet.flags().any(SPECIAL);
        let header = start.header();
        let named = header.has_source();
        if !named && (!self.shared.any_source || !self.view.sources.is_empty()) {
            return self.drop(Counter::Invalid);
        }
        // Whether the next packet with this header has the same way.
        let mut again = plain;
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
        if named {
            match self.learn(source, header.source, packet.flags()) {
                Ok(known) => again &= known,
                Err(why) => return self.drop(why),
            }
        }
        if is_group(header.destination) {
            return self.group(vlan, header.destination, members);
        }
        let destination = Key::new(header.destination, vlan.id);
        let Some(to) = self.shared.table.lookup(destination) else {
            return self.flood(vlan, members, Counter::Unknown);
        };
        if (self.reach & members) >> to & 1 == 0 {
            return self.out_of_reach(to);
        }
        self.forwarded += 1;
        let verdict = Verdict { ports: 1 << to, vlan };
        if again && self.flows.wants_more() {
            self.flows.put(start, self.tag, Way::to(to, self.egress.as_is(to, vlan)));
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

    /// Learns the source's port, unless the packet's flags forbid it. Returns whether it was known before. An error says why the packet must be
    /// dropped.
    #[inline]
    fn learn(&mut self, source: Key, mac: u64, flags: Flags) -> Result<bool, Counter> {
        if !self.view.sources.is_empty() && self.view.sources.binary_search(&mac).is_err() {
            return Err(Counter::Spoofed);
        }
        if !self.view.learns {
            return self.pass_unlearned(source).map(|()| true);
        }
        if flags.any(Flags::NO_LEARN) {
            return self.pass_unlearned(source).map(|()| false);
        }
        match self.shared.table.learn(source, self.port, self.now) {
            Learned::Known => Ok(true),
            Learned::Fixed => Err(Counter::Spoofed),
            other => {
                self.learned(other);
                Ok(false)
            }
        }
    }

    /// Checks the source of a packet that must not be learned from: a static station of another port is still
    /// rejected.
    #[cold]
    fn pass_unlearned(&self, source: Key) -> Result<(), Counter> {
        match self.shared.table.fixed(source) {
            Some(port) if port != self.port => Err(Counter::Spoofed),
            _ => Ok(()),
        }
    }

    #[cold]
    fn learned(&mut self, learned: Learned) {
        // A destination of the flows may be the station that has just changed.
        if matches!(learned, Learned::Moved | Learned::Evicted) {
            self.flows.forget();
            self.tag = self.flows.tag(self.port);
        }
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
