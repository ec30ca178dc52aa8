//! What a polling loop does while nothing comes.

use std::time::Duration;

/// Spins while packets come, then sleeps in short turns, so that an idle worker leaves its core to others.
pub struct Idle {
    poll: bool,
    empty_rounds: u32,
}

impl Idle {
    /// Rounds without a packet before the first sleep.
    const PATIENCE: u32 = 2000;
    const TURN: Duration = Duration::from_micros(50);

    /// With `poll`, never sleeps.
    pub fn new(poll: bool) -> Self {
        Self { poll, empty_rounds: 0 }
    }

    /// To be called once a round, with the packets that it moved.
    #[inline]
    pub fn after(&mut self, packets: usize) {
        self.empty_rounds = if packets > 0 { 0 } else { self.empty_rounds.saturating_add(1) };
        match self.empty_rounds {
            0 => {}
            rounds if self.poll || rounds < Self::PATIENCE => std::hint::spin_loop(),
            _ => std::thread::sleep(Self::TURN),
        }
    }
}
