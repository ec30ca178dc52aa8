//! The way out of the switch, for one worker: packets are gathered by destination and sent together.

use std::sync::Arc;

use ringpass_memory::{Burst, Cache, Flags, MAX_BATCH, Packet};
use ringpass_port::TxQueue;

use crate::counters::{Counter, PortCounters};
use crate::frame;
use crate::switch::PortView;
use crate::tag::{self, Tagged};

/// A frame's VLAN inside the switch, and whether the frame has a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vlan {
    pub(crate) id: u16,
    pub(crate) tagged: Tagged,
}

struct Exit {
    /// The VLAN whose frames leave without a tag.
    untagged: u16,
    /// See [`PortView::lends`].
    lends: bool,
    /// `None` while the place is empty.
    tx: Option<Box<dyn TxQueue>>,
    waiting: Box<Burst>,
    /// Of the port.
    counters: Arc<PortCounters>,
}

impl Exit {
    /// Whether frames leave as they are.
    #[inline]
    fn as_is(&self, vlan: Vlan) -> bool {
        (self.untagged == vlan.id) == (vlan.tagged == Tagged::No)
    }

    /// Whether a packet's buffer may go this way. Those of a guest go to ports that guests have: such a port hands its
    /// own back, and copies others at once.
    #[inline]
    fn takes(&self, packet: &Packet) -> bool {
        self.lends || !packet.flags().any(Flags::LENT)
    }
}

/// See the module.
pub(crate) struct Exits {
    exits: Vec<Exit>,
    /// Places that are not empty.
    present: u64,
    /// Ports for which packets wait.
    pending: u64,
    cache: Cache,
}

impl Exits {
    /// With empty places for these ports.
    pub(crate) fn new(ports: &[PortView], cache: Cache) -> Self {
        let exit = |view: &PortView| Exit {
            untagged: view.untagged,
            lends: view.lends,
            tx: None,
            waiting: Box::new(Burst::new(MAX_BATCH)),
            counters: Arc::default(),
        };
        Self { exits: ports.iter().map(exit).collect(), present: 0, pending: 0, cache }
    }

    /// Places that are not empty.
    #[inline]
    pub(crate) fn present(&self) -> u64 {
        self.present
    }

    /// Fills a place.
    pub(crate) fn insert(&mut self, port: usize, tx: Box<dyn TxQueue>, counters: Arc<PortCounters>) {
        self.present |= 1 << port;
        (self.exits[port].tx, self.exits[port].counters) = (Some(tx), counters);
    }

    /// Empties it. Nothing waits for the port between two rounds.
    pub(crate) fn remove(&mut self, port: usize) {
        self.present &= !(1 << port);
        self.exits[port].tx = None;
    }

    /// Sends a packet to one port, soon.
    #[inline(always)]
    pub(crate) fn put(&mut self, port: usize, packet: Packet, vlan: Vlan) {
        let exit = &mut self.exits[port];
        if exit.as_is(vlan) && exit.waiting.room() > 0 && exit.takes(&packet) {
            exit.waiting.push(packet);
            self.pending |= 1 << port;
        } else {
            self.put_otherwise(port, packet, vlan);
        }
    }

    /// With another tag, in another buffer, or more than a burst of them.
    #[cold]
    fn put_otherwise(&mut self, port: usize, mut packet: Packet, vlan: Vlan) {
        let moved = self.exits[port].takes(&packet) || self.replace_by_copy(&mut packet);
        if !moved || !self.exits[port].as_is(vlan) && !self.retag(&mut packet, vlan) {
            return self.exits[port].counters.add(Counter::NoBuffer, 1);
        }
        if self.exits[port].waiting.room() == 0 {
            self.flush_one(port);
        }
        self.exits[port].waiting.push(packet);
        self.pending |= 1 << port;
    }

    /// Gives a frame the tag that it lacks, or takes it away; `false` without a buffer for that.
    #[cold]
    fn retag(&mut self, packet: &mut Packet, vlan: Vlan) -> bool {
        if vlan.tagged == Tagged::Yes {
            tag::pop(packet);
            return true;
        }
        // Without headroom: a copy has some.
        tag::push(packet, vlan.id) || self.replace_by_copy(packet) && tag::push(packet, vlan.id)
    }

    /// `false` without a buffer for that.
    fn replace_by_copy(&mut self, packet: &mut Packet) -> bool {
        frame::copy(packet, &mut self.cache).map(|copy| *packet = copy).is_some()
    }

    /// Sends a packet to several ports: copies, and the packet itself to the last one.
    pub(crate) fn put_to_all(&mut self, mut ports: u64, packet: Packet, vlan: Vlan) {
        while ports & (ports - 1) != 0 {
            let port = ports.trailing_zeros() as usize;
            ports &= ports - 1;
            match frame::copy(&packet, &mut self.cache) {
                Some(copy) => self.put(port, copy, vlan),
                None => self.exits[port].counters.add(Counter::NoBuffer, 1),
            }
        }
        self.put(ports.trailing_zeros() as usize, packet, vlan);
    }

    /// Sends a whole burst to a port, now and as it is, behind what waits for it. Drops what it has no room for.
    pub(crate) fn pass(&mut self, port: usize, burst: &mut Burst) {
        self.flush_one(port);
        let Exit { tx, counters, .. } = &mut self.exits[port];
        send(tx, burst, counters);
    }

    /// The same for frames of a VLAN, if they leave as they are; otherwise the burst stays.
    pub(crate) fn pass_as_is(&mut self, port: usize, burst: &mut Burst, vlan: Vlan) {
        let exit = &self.exits[port];
        if exit.as_is(vlan) && burst.iter().all(|packet| exit.takes(packet)) {
            self.pass(port, burst);
        }
    }

    /// Sends all that waits.
    pub(crate) fn flush(&mut self) {
        while self.pending != 0 {
            self.flush_one(self.pending.trailing_zeros() as usize);
        }
    }

    fn flush_one(&mut self, port: usize) {
        self.pending &= !(1 << port);
        let Exit { tx, waiting, counters, .. } = &mut self.exits[port];
        if !waiting.is_empty() {
            send(tx, waiting, counters);
        }
    }
}

/// One burst to one queue; what it has no room for is dropped, as switches do.
fn send(tx: &mut Option<Box<dyn TxQueue>>, burst: &mut Burst, counters: &PortCounters) {
    if let Some(tx) = tx {
        tx.tx_burst(burst);
    }
    if !burst.is_empty() {
        counters.add(Counter::TxDrops, burst.len() as u64);
        burst.clear();
    }
}
