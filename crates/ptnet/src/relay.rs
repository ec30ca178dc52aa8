//! One ring between a guest and the port: the guest's word is passed on as a program's would be, and the port's answer is told
//! to the guest.

use ringpass_netmap::csb::{FromApplication, FromServer};
use ringpass_netmap::{PortRing, Positions, SyncError};

use crate::counters::{Counters, count};

/// A ring of the port's, and what was last heard and told of it.
pub(crate) struct Relay {
    ring: PortRing,
    /// `head`, `cur` and flags that were passed on last.
    passed: (u32, u32, u32),
    /// What cannot be, if the guest says that.
    refused: Option<(u32, u32, u32)>,
    /// `hwcur` and `hwtail` that it was told.
    told: (u32, u32),
    /// The port's other side was where nobody can be.
    lost: bool,
}

/// What a look at a ring has come to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Passed {
    /// Either side has moved.
    pub(crate) moved: bool,
    /// The guest wants an interrupt.
    pub(crate) call: bool,
}

impl Relay {
    pub(crate) fn new(ring: PortRing) -> Self {
        Self { ring, passed: Default::default(), refused: None, told: Default::default(), lost: false }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.ring.ring().slots()
    }

    /// Tells a guest that begins where the ring stands, and what has been passed on: of that its `head` and `cur` are the end.
    pub(crate) fn begin(&mut self, guest: &FromApplication, host: &FromServer) -> Result<(), SyncError> {
        let positions = self.ring.positions()?;
        // The port's own CSB has been in the hands of programs before.
        let head = self.ring.passed() % self.slots();
        guest.write(head, head, 0);
        (self.passed, self.refused, self.lost) = ((head, head, 0), None, false);
        self.told = (positions.hwcur(), positions.hwtail());
        host.write(self.told.0, self.told.1);
        host.want(false);
        Ok(())
    }

    /// Hears what the guest says, passes it on if it is news, and tells the guest what is.
    #[inline]
    pub(crate) fn pass(&mut self, guest: &FromApplication, host: &FromServer, counters: &Counters) -> Passed {
        match self.hear(guest.read(), counters) {
            Ok(positions) => self.tell(guest, host, &positions),
            Err(_) => {
                if !std::mem::replace(&mut self.lost, true) {
                    count(&counters.peer_faults);
                }
                Passed::default()
            }
        }
    }

    /// What cannot be is not passed on, and counted once; the ring stands where it is until the guest says something else.
    #[inline]
    fn hear(&mut self, said: (u32, u32, u32), counters: &Counters) -> Result<Positions, SyncError> {
        if said == self.passed {
            return self.ring.positions();
        }
        match self.ring.pass(said.0, said.1, said.2) {
            Err(SyncError::Program(_)) => {
                if self.refused.replace(said) != Some(said) {
                    count(&counters.wild);
                }
                self.ring.positions()
            }
            result => result.inspect(|_| self.passed = said),
        }
    }

    #[inline]
    fn tell(&mut self, guest: &FromApplication, host: &FromServer, positions: &Positions) -> Passed {
        let now = (positions.hwcur(), positions.hwtail());
        self.lost = false;
        if now == self.told {
            return Passed::default();
        }
        host.write(now.0, now.1);
        let call = now.1 != self.told.1 && guest.wants_a_call();
        self.told = now;
        Passed { moved: true, call }
    }

    /// Before a sleep: both sides are to wake this one. What they do before is seen by the look that follows.
    pub(crate) fn arm(&self, host: &FromServer) {
        host.want(true);
        // Where nobody can be, nobody wakes.
        let _ = self.ring.arm_at(self.told.1);
    }

    /// Behind it, in a guest's sight.
    pub(crate) fn disarm(&self, host: &FromServer) {
        host.want(false);
        self.ring.disarm();
    }

    /// Nobody is to wake for this ring.
    pub(crate) fn rest(&self) {
        self.ring.disarm();
    }
}
