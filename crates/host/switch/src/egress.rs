//! Egress of one datapath: packets are collected by destination port and sent together.

use std::sync::Arc;

use ringpass_memory::{Burst, Cache, Drain, Flags, MAX_BATCH, Packet};
use ringpass_port::{TxQueue, copy_packet};

use crate::changes::ExchangeTx;
use crate::counters::{Counter, PortCounters};
use crate::state::PortView;
use crate::tag::{self, Tagged, Vlan};

struct Egress {
    /// The VLAN whose frames are sent without a tag.
    untagged: u16,
    /// See [`PortView::lends`].
    lends: bool,
    /// `None` while the slot is empty.
    tx: Option<Box<dyn TxQueue>>,
    waiting: Box<Burst>,
    /// Counters of the port.
    counters: Arc<PortCounters>,
}

impl Egress {
    /// Returns whether frames of this VLAN are sent without adding or removing a tag.
    #[inline]
    fn as_is(&self, vlan: Vlan) -> bool {
        (self.untagged == vlan.id) == (vlan.tagged == Tagged::No)
    }

    /// Returns whether the port may get the packet's buffer. Lent buffers go only to ports of guests: such a
    /// port returns its own guest's buffers, and copies out of those of other guests at once.
    #[inline]
    fn accepts(&self, packet: &Packet) -> bool {
        self.lends || !packet.flags().any(Flags::LENT)
    }
}

/// Egress state of all ports, for one datapath.
pub(crate) struct EgressPorts {
    egress: Vec<Egress>,
    /// Slots that are not empty, one bit each.
    present: u64,
    /// Ports with collected packets that have not been sent yet, one bit each.
    pending: u64,
    cache: Cache,
}

impl EgressPorts {
    /// Creates this many empty slots.
    pub(crate) fn new(slots: usize, cache: Cache) -> Self {
        let empty = || Egress {
            untagged: 0,
            lends: false,
            tx: None,
            waiting: Box::new(Burst::new(MAX_BATCH)),
            counters: Arc::default(),
        };
        Self { egress: (0..slots).map(|_| empty()).collect(), present: 0, pending: 0, cache }
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.egress.len()
    }

    /// Returns the set of slots that are not empty.
    #[inline]
    pub(crate) fn present(&self) -> u64 {
        self.present
    }

    /// Returns whether a port sends frames of this VLAN without adding or removing a tag.
    pub(crate) fn as_is(&self, port: usize, vlan: Vlan) -> bool {
        self.egress[port].as_is(vlan)
    }

    /// Returns whether a port may get lent buffers.
    pub(crate) fn lends(&self, port: usize) -> bool {
        self.egress[port].lends
    }

    /// Fills a slot.
    pub(crate) fn insert(&mut self, port: usize, view: &PortView, tx: Box<dyn TxQueue>, counters: Arc<PortCounters>) {
        self.present |= 1 << port;
        self.set_view(port, view);
        let slot = &mut self.egress[port];
        (slot.tx, slot.counters) = (Some(tx), counters);
    }

    /// Changes how packets for a port are tagged, and which it accepts. No packets are collected for it between rounds.
    pub(crate) fn set_view(&mut self, port: usize, view: &PortView) {
        let slot = &mut self.egress[port];
        (slot.untagged, slot.lends) = (view.untagged, view.lends);
    }

    /// Replaces the queue of a slot, unless that is empty. No packets are collected for it between rounds.
    pub(crate) fn exchange(&mut self, port: usize, exchange: ExchangeTx) {
        let slot = &mut self.egress[port];
        slot.tx = slot.tx.take().map(exchange);
    }

    /// Empties a slot and returns its queue. No packets are collected for its port between rounds.
    pub(crate) fn remove(&mut self, port: usize) -> Option<Box<dyn TxQueue>> {
        self.present &= !(1 << port);
        self.egress[port].tx.take()
    }

    /// Collects the next packet for a port that takes it as it is. Its buffer is not lent.
    #[inline(always)]
    pub(crate) fn put_as_is(&mut self, port: usize, packets: &mut Drain<'_>) {
        if packets.move_to(&mut self.egress[port].waiting) {
            self.pending |= 1 << port;
        } else if let Some(packet) = packets.next() {
            self.put_unchanged(port, packet);
        }
    }

    /// Collects a packet for a port that takes it as it is, or a copy if it may not have its buffer.
    #[inline(never)]
    pub(crate) fn put_unchanged(&mut self, port: usize, packet: Packet) {
        self.put(port, packet, Vlan { id: self.egress[port].untagged, tagged: Tagged::No });
    }

    /// Collects a packet for one port.
    #[inline(always)]
    pub(crate) fn put(&mut self, port: usize, packet: Packet, vlan: Vlan) {
        let egress_port = &mut self.egress[port];
        if egress_port.as_is(vlan) && egress_port.waiting.room() > 0 && egress_port.accepts(&packet) {
            egress_port.waiting.push(packet);
            self.pending |= 1 << port;
        } else {
            self.put_slow(port, packet, vlan);
        }
    }

    /// Handles packets that need another tag or another buffer, or that exceed a full burst.
    #[cold]
    fn put_slow(&mut self, port: usize, mut packet: Packet, vlan: Vlan) {
        let moved = self.egress[port].accepts(&packet) || self.replace_by_copy(&mut packet);
        if !moved || !self.egress[port].as_is(vlan) && !self.retag(&mut packet, vlan) {
            return self.egress[port].counters.add(Counter::NoBuffer, 1);
        }
        if self.egress[port].waiting.room() == 0 {
            self.flush_one(port);
        }
        self.egress[port].waiting.push(packet);
        self.pending |= 1 << port;
    }

    /// Adds a VLAN tag that the frame lacks, or removes the one that it has. Returns `false` if that takes a
    /// buffer and none is free.
    #[cold]
    fn retag(&mut self, packet: &mut Packet, vlan: Vlan) -> bool {
        if vlan.tagged == Tagged::Yes {
            tag::pop(packet);
            return true;
        }
        // Without headroom, the frame is copied into a buffer that has some.
        tag::push(packet, vlan.id) || self.replace_by_copy(packet) && tag::push(packet, vlan.id)
    }

    /// Replaces a packet by a copy. Returns `false` if no buffer is free.
    fn replace_by_copy(&mut self, packet: &mut Packet) -> bool {
        copy_packet(packet, &mut self.cache).map(|copy| *packet = copy).is_some()
    }

    /// Collects a packet for several ports: the last one gets the packet itself, the others copies.
    pub(crate) fn put_to_all(&mut self, mut ports: u64, packet: Packet, vlan: Vlan) {
        while ports & (ports - 1) != 0 {
            let port = ports.trailing_zeros() as usize;
            ports &= ports - 1;
            match copy_packet(&packet, &mut self.cache) {
                Some(copy) => self.put(port, copy, vlan),
                None => self.egress[port].counters.add(Counter::NoBuffer, 1),
            }
        }
        self.put(ports.trailing_zeros() as usize, packet, vlan);
    }

    /// Sends a whole burst to a port unchanged, after the packets already collected for it. Drops what does not
    /// fit into the Tx queue.
    pub(crate) fn pass(&mut self, port: usize, burst: &mut Burst) {
        self.flush_one(port);
        let Egress { tx, counters, .. } = &mut self.egress[port];
        send(tx, burst, counters);
    }

    /// Sends all collected packets.
    pub(crate) fn flush(&mut self) {
        while self.pending != 0 {
            self.flush_one(self.pending.trailing_zeros() as usize);
        }
    }

    fn flush_one(&mut self, port: usize) {
        self.pending &= !(1 << port);
        let Egress { tx, waiting, counters, .. } = &mut self.egress[port];
        if !waiting.is_empty() {
            send(tx, waiting, counters);
        }
    }
}

/// Sends a burst to a queue. Drops and counts what does not fit, as switches do.
fn send(tx: &mut Option<Box<dyn TxQueue>>, burst: &mut Burst, counters: &PortCounters) {
    if let Some(tx) = tx {
        tx.tx_burst(burst);
    }
    if !burst.is_empty() {
        counters.add(Counter::TxDrops, burst.len() as u64);
        burst.clear();
    }
}
