//! The way out of the switch, for one worker: packets are gathered by destination and sent together.

use std::sync::Arc;

use ringpass_memory::{Burst, Cache, MAX_BATCH, Packet};
use ringpass_port::TxQueue;

use crate::counters::{Counter, PortCounters};
use crate::frame;
use crate::switch::Shared;
use crate::tag::{self, Tagged};

/// A frame's VLAN inside the switch, and whether the frame has a tag.
#[derive(Clone, Copy)]
pub(crate) struct Vlan {
    pub(crate) id: u16,
    pub(crate) tagged: Tagged,
}

struct Exit {
    /// `None` once the port is gone.
    tx: Option<Box<dyn TxQueue>>,
    waiting: Box<Burst>,
}

/// See the module.
pub(crate) struct Exits {
    exits: Vec<Exit>,
    /// Ports for which packets wait.
    pending: u64,
    cache: Cache,
    shared: Arc<Shared>,
    counters: Arc<[PortCounters]>,
}

impl Exits {
    pub(crate) fn new(
        tx: Vec<Box<dyn TxQueue>>,
        cache: Cache,
        shared: Arc<Shared>,
        counters: Arc<[PortCounters]>,
    ) -> Self {
        let exit = |tx| Exit { tx: Some(tx), waiting: Box::new(Burst::new(MAX_BATCH)) };
        Self { exits: tx.into_iter().map(exit).collect(), pending: 0, cache, shared, counters }
    }

    /// Sends a packet to one port, soon.
    #[inline]
    pub(crate) fn put(&mut self, port: usize, mut packet: Packet, vlan: Vlan) {
        let wants = if self.shared.untagged[port] == vlan.id { Tagged::No } else { Tagged::Yes };
        if wants != vlan.tagged {
            match self.retag(packet, vlan, wants) {
                Some(retagged) => packet = retagged,
                None => return self.counters[port].add(Counter::NoBuffer, 1),
            }
        }
        let waiting = &mut self.exits[port].waiting;
        if waiting.room() == 0 {
            self.flush_one(port);
        }
        self.exits[port].waiting.push(packet);
        self.pending |= 1 << port;
    }

    #[cold]
    fn retag(&mut self, mut packet: Packet, vlan: Vlan, wants: Tagged) -> Option<Packet> {
        match wants {
            Tagged::No => tag::pop(&mut packet),
            Tagged::Yes if tag::push(&mut packet, vlan.id) => {}
            // No headroom: a copy has some.
            Tagged::Yes => {
                packet = frame::copy(&packet, &mut self.cache)?;
                tag::push(&mut packet, vlan.id).then_some(())?;
            }
        }
        Some(packet)
    }

    /// Sends a packet to several ports: copies, and the packet itself to the last one.
    pub(crate) fn put_to_all(&mut self, mut ports: u64, packet: Packet, vlan: Vlan) {
        while ports & (ports - 1) != 0 {
            let port = ports.trailing_zeros() as usize;
            ports &= ports - 1;
            match frame::copy(&packet, &mut self.cache) {
                Some(copy) => self.put(port, copy, vlan),
                None => self.counters[port].add(Counter::NoBuffer, 1),
            }
        }
        self.put(ports.trailing_zeros() as usize, packet, vlan);
    }

    /// Sends a whole burst to a port, now and as it is, behind what waits for it. Drops what it has no room for.
    pub(crate) fn pass(&mut self, port: usize, burst: &mut Burst) {
        self.flush_one(port);
        send(&mut self.exits[port].tx, burst, &self.counters[port]);
    }

    /// Sends all that waits.
    pub(crate) fn flush(&mut self) {
        while self.pending != 0 {
            self.flush_one(self.pending.trailing_zeros() as usize);
        }
    }

    fn flush_one(&mut self, port: usize) {
        self.pending &= !(1 << port);
        let Exit { tx, waiting } = &mut self.exits[port];
        if !waiting.is_empty() {
            send(tx, waiting, &self.counters[port]);
        }
    }

    /// Lets go of ports that are gone.
    pub(crate) fn keep(&mut self, present: u64) {
        for (port, exit) in self.exits.iter_mut().enumerate().filter(|(port, _)| present >> port & 1 == 0) {
            exit.tx = None;
            exit.waiting.clear();
            self.pending &= !(1 << port);
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
