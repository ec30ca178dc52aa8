//! The loop that synchronises a port's rings for an application whose positions are in a CSB of its own (netmap's
//! `NETMAP_REQ_SYNC_KLOOP_START`), such as the back-end of a hypervisor. The thread that runs it decides when to sleep.

use crate::csb::Csb;
use crate::{Direction, PortRing, Relay, Relayed};

/// The rings of a loop, by their entries in the application's CSB: Tx rings, then Rx rings.
pub struct SyncLoop<'a> {
    relays: Vec<Relay<&'a PortRing>>,
    /// Number of Tx rings.
    tx: usize,
    csb: &'a Csb,
}

impl<'a> SyncLoop<'a> {
    /// Creates the loop of a port's Tx rings and Rx rings, each of which has an entry in the CSB that was
    /// [initialised](Relay::begin).
    pub fn new(tx: &'a [PortRing], rx: &'a [PortRing], csb: &'a Csb) -> Self {
        let relays = tx.iter().chain(rx).enumerate().map(|(entry, ring)| Relay::new(ring, entry)).collect();
        Self { relays, tx: tx.len(), csb }
    }

    fn direction(&self, entry: usize) -> Direction {
        if entry < self.tx { Direction::Tx } else { Direction::Rx }
    }

    /// Synchronises each ring once. `before_tx` is called before with each Tx ring and the application's `head` there, `call` after with the
    /// entry of each ring whose application wants to be woken. Returns by how many slots rings have moved.
    #[inline]
    pub fn round(&mut self, mut before_tx: impl FnMut(&PortRing, u32), mut call: impl FnMut(usize)) -> u32 {
        let mut moved = 0;
        for (entry, relay) in self.relays.iter_mut().enumerate() {
            if entry < self.tx {
                before_tx(relay.ring(), self.csb.read_atok(entry).head);
            }
            let Relayed { moved: has_moved, call: wants_call, .. } = relay.pass(self.csb);
            moved += has_moved;
            if wants_call {
                call(entry);
            }
        }
        moved
    }

    /// Stores in the CSB of each ring whether the loop is to be kicked; in `direct` directions it always is.
    pub fn request_kicks(&self, wanted: bool, direct: impl Fn(Direction) -> bool) {
        for entry in 0..self.relays.len() {
            self.csb.set_kern_need_kick(entry, wanted || direct(self.direction(entry)));
        }
    }
}
