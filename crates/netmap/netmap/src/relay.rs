//! Relays one ring of a port for an application whose positions are in a CSB of its own, such as a guest: passes them on as a
//! program's would be, and writes the port's answer to that CSB.

use std::borrow::Borrow;

use crate::csb::{Csb, Released};
use crate::{PortRing, Positions, SyncError};

/// A ring of a port, and the positions that were exchanged last. The ring is owned or borrowed.
pub struct Relay<R: Borrow<PortRing>> {
    ring: R,
    /// Index of its entry in the application's CSB.
    entry: usize,
    /// Positions that were passed on last.
    passed: Option<Released>,
    /// Last values of the application that were refused as invalid.
    refused: Option<Released>,
    /// `hwcur` and `hwtail` that the application was told last.
    published: Option<(u32, u32)>,
    /// Whether the positions of the port's other side are invalid.
    lost: bool,
}

/// Result of synchronizing a ring.
#[derive(Clone, Copy, Default)]
pub struct Relayed {
    /// Slots by which the port's side has moved; at least one if it has.
    pub moved: u32,
    /// Whether the application wants to be woken.
    pub call: bool,
    /// Whether the application has written invalid positions. Reported once for the same positions; the ring stands still until
    /// it writes others.
    pub refused: bool,
    /// Whether the positions of the port's other side are invalid. Reported once, until they are valid again.
    pub lost: bool,
}

impl<R: Borrow<PortRing>> Relay<R> {
    /// Creates the relay of a ring, which has this entry in the application's CSB.
    pub fn new(ring: R, entry: usize) -> Self {
        Self { ring, entry, passed: None, refused: None, published: None, lost: false }
    }

    /// The ring.
    pub fn ring(&self) -> &PortRing {
        self.ring.borrow()
    }

    /// Initializes the entry of an application that starts: the ring's positions, and as `head` and `cur` the end of
    /// what has been passed on.
    ///
    /// # Errors
    /// The positions of the port's other side are invalid.
    pub fn begin(&mut self, csb: &Csb) -> Result<(), SyncError> {
        let positions = self.ring().positions()?;
        // Programs may have written to the port's own CSB before, so `passed` can exceed the ring.
        let head = self.ring().passed() % self.ring().ring().slots();
        csb.write_atok(self.entry, head, head, 0);
        let (hwcur, hwtail) = (positions.hwcur(), positions.hwtail());
        csb.write_ktoa(self.entry, hwcur, hwtail);
        csb.set_kern_need_kick(self.entry, false);
        self.passed = Some(Released { head, cur: head, sync_flags: 0 });
        (self.refused, self.published, self.lost) = (None, Some((hwcur, hwtail)), false);
        Ok(())
    }

    /// Reads the application's positions, passes them on if they have changed, and publishes changes of the port to the
    /// application.
    #[inline]
    pub fn pass(&mut self, csb: &Csb) -> Relayed {
        let (result, refused) = self.forward(csb.read_atok(self.entry));
        match result {
            Ok(positions) => Relayed { refused, ..self.publish(csb, &positions) },
            Err(_) => Relayed { refused, lost: !std::mem::replace(&mut self.lost, true), ..Relayed::default() },
        }
    }

    /// Passes on the application's positions. Invalid ones are not passed on; says whether they are, and were not before.
    #[inline]
    fn forward(&mut self, released: Released) -> (Result<Positions, SyncError>, bool) {
        if self.passed == Some(released) {
            return (self.ring().positions(), false);
        }
        let ring = self.ring.borrow();
        // If another process has the ring, the positions are passed on in the next round.
        let result = match ring.lock() {
            Some(_locked) => ring.pass(released.head, released.cur, released.sync_flags),
            None => return (ring.positions(), false),
        };
        match result {
            Err(SyncError::Program { .. }) => {
                let is_new = self.refused.replace(released) != Some(released);
                (self.ring().positions(), is_new)
            }
            result => (result.inspect(|_| self.passed = Some(released)), false),
        }
    }

    #[inline]
    fn publish(&mut self, csb: &Csb, positions: &Positions) -> Relayed {
        let now = (positions.hwcur(), positions.hwtail());
        self.lost = false;
        if self.published == Some(now) {
            return Relayed::default();
        }
        csb.write_ktoa(self.entry, now.0, now.1);
        let tail = self.published.map(|(_, tail)| tail);
        let call = tail != Some(now.1) && csb.appl_needs_kick(self.entry);
        let moved = tail.map_or(1, |tail| positions.distance(tail, now.1).max(1));
        self.published = Some(now);
        Relayed { moved, call, ..Relayed::default() }
    }

    /// Requests both sides to wake this one before it sleeps. What they did before that is found by the poll that
    /// follows.
    pub fn arm(&self, csb: &Csb) {
        csb.set_kern_need_kick(self.entry, true);
        // If the other side's positions are invalid, there is nothing to wait for.
        let _ = self.ring().arm_at(self.published.map_or(0, |(_, tail)| tail));
    }

    /// Withdraws the requests of `arm` while the application's CSB is mapped.
    pub fn disarm(&self, csb: &Csb) {
        csb.set_kern_need_kick(self.entry, false);
        self.ring().disarm();
    }

    /// Withdraws the request to the port's other side. The application's CSB is not accessed.
    pub fn quiesce(&self) {
        self.ring().disarm();
    }
}
