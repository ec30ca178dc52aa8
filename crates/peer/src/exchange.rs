//! Messages from a peer that may stop at any point, and what it may leave undone for how long.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::{Arrived, Lost, Stream};

/// A stream of messages, of which some are answered. It never waits for the peer.
pub struct Exchange {
    stream: Stream,
    /// Since when the peer owes something.
    owing: Option<Instant>,
    greeted: bool,
    patience: Duration,
}

/// What a peer has owed for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// Its first message, or the rest of one.
    Message,
    /// A look at its replies.
    Replies,
}

impl Exchange {
    /// On a stream whose peer is given so much time for whatever it has to do.
    pub fn new(stream: Stream, patience: Duration) -> Self {
        Self { stream, owing: Some(Instant::now()), greeted: false, patience }
    }

    /// How long a turn takes, but for its last message: a peer that sends without end leaves time for others.
    const TURN: Duration = Duration::from_millis(1);

    /// Handles what has arrived, without waiting, up to `most` messages, for a millisecond at most. `one` handles the first
    /// message and sends the answer; it says whether all of that message was there. Returns how many were handled.
    pub fn handle<E: From<Lost> + From<Overdue>>(
        &mut self,
        most: usize,
        mut one: impl FnMut(&mut Stream) -> Result<bool, E>,
    ) -> Result<usize, E> {
        let (mut handled, start) = (0, Instant::now());
        while handled < most && (handled == 0 || start.elapsed() < Self::TURN) {
            self.stream.flush()?;
            if self.stream.blocked() {
                self.owes(handled > 0, Overdue::Replies)?;
                return Ok(handled);
            }
            if one(&mut self.stream)? {
                (handled, self.greeted) = (handled + 1, true);
            } else if self.stream.receive()? == Arrived::Nothing {
                if self.stream.torn() || !self.greeted {
                    self.owes(handled > 0, Overdue::Message)?;
                } else {
                    self.owing = None;
                }
                return Ok(handled);
            }
        }
        self.owing = None;
        Ok(handled)
    }

    /// The peer has to do something next. That it has not for too long is the end.
    fn owes(&mut self, moved: bool, what: Overdue) -> Result<(), Overdue> {
        match self.owing {
            Some(since) if !moved && since.elapsed() > self.patience => return Err(what),
            Some(_) if !moved => {}
            _ => self.owing = Some(Instant::now()),
        }
        Ok(())
    }

    /// What to wait on before handling more, and for what; and how long at most, if the peer owes something.
    pub fn wait_on(&self) -> (BorrowedFd<'_>, PollFlags, Option<Duration>) {
        let flags = if self.stream.blocked() { PollFlags::OUT } else { PollFlags::IN };
        (self.stream.socket(), flags, self.owing.map(|since| self.patience.saturating_sub(since.elapsed())))
    }
}
