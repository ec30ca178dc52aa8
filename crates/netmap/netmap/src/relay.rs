//! Relays one ring between a guest and the port: passes the guest's positions on as a program's would be, and
//! writes the port's answer to the guest's CSB.

use ringpass_netmap::csb::{Csb, Released};
use ringpass_netmap::{PortRing, Positions, SyncError};

use crate::counters::{Counters, count};

/// A ring of the port and the positions last exchanged.
pub(crate) struct Relay {
    ring: PortRing,
    /// Index of its entry in the guest's CSB.
    entry: usize,
    /// Positions that were passed on last.
    passed: Released,
    /// Last values of the guest that were refused as invalid.
    refused: Option<Released>,
    /// `hwcur` and `hwtail` that the guest was told last.
    published: (u32, u32),
    /// Whether the positions of the port's other side are invalid.
    lost: bool,
}

/// Result of synchronizing a ring.
#[derive(Clone, Copy, Default)]
pub(crate) struct Passed {
    /// Whether either side has moved.
    pub(crate) moved: bool,
    /// Whether the guest wants an interrupt.
    pub(crate) call: bool,
}

impl Relay {
    pub(crate) fn new(ring: PortRing, entry: usize) -> Self {
        Self { ring, entry, passed: Default::default(), refused: None, published: Default::default(), lost: false }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.ring.ring().slots()
    }

    /// Initializes the CSB entry of a guest that starts: the ring's positions, and as `head` and `cur` the end of
    /// what has been passed on.
    pub(crate) fn begin(&mut self, csb: &Csb) -> Result<(), SyncError> {
        let positions = self.ring.positions()?;
        // Programs may have written to the port's own CSB before, so `passed` can exceed the ring.
        let head = self.ring.passed() % self.slots();
        csb.write_atok(self.entry, head, head, 0);
        self.passed = Released { head, cur: head, sync_flags: 0 };
        self.refused = None;
        self.lost = false;
        self.published = (positions.hwcur(), positions.hwtail());
        csb.write_ktoa(self.entry, self.published.0, self.published.1);
        csb.set_kern_need_kick(self.entry, false);
        Ok(())
    }

    /// Reads the guest's positions, passes them on if they have changed, and publishes changes of the port to the
    /// guest.
    #[inline]
    pub(crate) fn pass(&mut self, csb: &Csb, counters: &Counters) -> Passed {
        match self.forward(csb.read_atok(self.entry), counters) {
            Ok(positions) => self.publish(csb, &positions),
            Err(_) => {
                if !std::mem::replace(&mut self.lost, true) {
                    count(&counters.peer_faults);
                }
                Passed::default()
            }
        }
    }

    /// Passes on the guest's positions. Invalid ones are not passed on and are counted once; the ring stands still
    /// until the guest writes other values.
    #[inline]
    fn forward(&mut self, from_guest: Released, counters: &Counters) -> Result<Positions, SyncError> {
        if from_guest == self.passed {
            return self.ring.positions();
        }
        match self.ring.pass(from_guest.head, from_guest.cur, from_guest.sync_flags) {
            Err(SyncError::Program { .. }) => {
                if self.refused.replace(from_guest) != Some(from_guest) {
                    count(&counters.invalid_positions);
                }
                self.ring.positions()
            }
            result => result.inspect(|_| self.passed = from_guest),
        }
    }

    #[inline]
    fn publish(&mut self, csb: &Csb, positions: &Positions) -> Passed {
        let now = (positions.hwcur(), positions.hwtail());
        self.lost = false;
        if now == self.published {
            return Passed::default();
        }
        csb.write_ktoa(self.entry, now.0, now.1);
        let call = now.1 != self.published.1 && csb.appl_needs_kick(self.entry);
        self.published = now;
        Passed { moved: true, call }
    }

    /// Asks both sides to wake this one before it sleeps. What they did before that is found by the poll that
    /// follows.
    pub(crate) fn arm(&self, csb: &Csb) {
        csb.set_kern_need_kick(self.entry, true);
        // If the other side's positions are invalid, there is nothing to wait for.
        let _ = self.ring.arm_at(self.published.1);
    }

    /// Withdraws the requests of `arm` while the guest's CSB is mapped.
    pub(crate) fn disarm(&self, csb: &Csb) {
        csb.set_kern_need_kick(self.entry, false);
        self.ring.disarm();
    }

    /// Withdraws the request to the port's other side. The guest's CSB is not accessed.
    pub(crate) fn quiesce(&self) {
        self.ring.disarm();
    }
}
