//! What a polling loop does while nothing comes: it polls on for a while, then arms, looks once more, and sleeps.
//!
//! Order matters: whoever sends to a sleeper looks whether it is armed after it has put a packet there, and the sleeper
//! looks for packets after it has armed. So one of the two sees the other.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Patience;

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug)]
pub enum Wake<'a> {
    /// The descriptor becomes readable when there is something to do.
    Readable(BorrowedFd<'a>),
    /// Nothing will ever come from here.
    Never,
    /// Something is due at that time, and nothing before.
    At(Instant),
    /// There is nothing to wait on: look again in short turns.
    Turns,
}

impl<'a> Wake<'a> {
    /// All that a source waits for.
    pub fn all(source: &'a (impl Wakeable + ?Sized)) -> Vec<Self> {
        let mut all = Vec::new();
        source.wakes(&mut |wake| all.push(wake));
        all
    }
}

/// Something that a polling loop may sleep on.
pub trait Wakeable {
    /// Asks to be woken from now on. What came before may not wake: look once more before sleeping.
    fn arm(&mut self) {}

    /// Takes that back, and takes away what woke.
    fn disarm(&mut self) {}

    /// Names everything to wait for while armed. Nothing named is the same as [`Wake::Never`].
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>));
}

/// Polls while packets come and for a while after; then sleeps until one of its sources wakes it.
///
/// The while adapts: wake-ups that come soon after falling asleep lengthen it, long sleeps shorten it.
pub struct Idle {
    poll: bool,
    patience: Patience,
    empty_rounds: u32,
    armed: bool,
}

impl Idle {
    /// Rounds without a packet before the loop sleeps: least, first and most.
    const PATIENCE: [u32; 3] = [64, 2048, 32 << 10];
    /// A sleep that was shorter was not worth it; one that was longer was.
    const SOON: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_micros(500);
    /// A sleeper looks around so often, to see that it is to end.
    const LIMIT: Duration = Duration::from_millis(100);
    /// How long to sleep where there is nothing to wait on.
    const TURN: Duration = Duration::from_micros(50);

    /// With `poll`, never sleeps.
    pub fn new(poll: bool) -> Self {
        let patience = Patience::new(Self::PATIENCE, [Self::SOON, Self::LONG]);
        Self { poll, patience, empty_rounds: 0, armed: false }
    }

    /// To be called once a round, with the packets that it moved and everything that may bring more; always the same.
    #[inline]
    pub fn after(&mut self, packets: usize, sources: &mut [&mut dyn Wakeable]) {
        if packets > 0 {
            self.empty_rounds = 0;
            if self.armed {
                self.disarm(sources);
            }
        } else if self.poll {
            std::hint::spin_loop();
        } else if self.empty_rounds < self.patience.rounds() {
            self.empty_rounds += 1;
            Patience::pass(self.empty_rounds);
        } else {
            self.rest(sources);
        }
    }

    #[cold]
    fn disarm(&mut self, sources: &mut [&mut dyn Wakeable]) {
        self.armed = false;
        sources.iter_mut().for_each(|source| source.disarm());
    }

    /// Arms the first time, sleeps from the second on. Stays armed until something wakes or packets have come.
    #[cold]
    fn rest(&mut self, sources: &mut [&mut dyn Wakeable]) {
        if !std::mem::replace(&mut self.armed, true) {
            return sources.iter_mut().for_each(|source| source.arm());
        }
        let start = Instant::now();
        let woken = sleep(sources, start);
        let slept = start.elapsed();
        if woken {
            self.disarm(sources);
        }
        // A short one that ended by itself says nothing.
        if woken || slept > Self::LONG {
            self.patience.slept(slept);
        }
    }
}

/// Sleeps until a source wakes, or for as long as the limits allow. Returns whether one did.
fn sleep(sources: &[&mut dyn Wakeable], now: Instant) -> bool {
    let mut limit = Idle::LIMIT;
    let mut descriptors = Vec::with_capacity(sources.len());
    for source in sources {
        source.wakes(&mut |wake| match wake {
            Wake::Readable(fd) => descriptors.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            Wake::Never => {}
            Wake::At(time) => limit = limit.min(time.saturating_duration_since(now)),
            Wake::Turns => limit = limit.min(Idle::TURN),
        });
    }
    let limit = Timespec::try_from(limit).expect("a short time");
    // An error is a signal, after which the caller looks around anyway.
    poll(&mut descriptors, Some(&limit)).unwrap_or(0) > 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    struct Source {
        event: OwnedFd,
        armed: u32,
        disarmed: u32,
    }

    impl Source {
        fn new() -> Self {
            let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
            Self { event, armed: 0, disarmed: 0 }
        }

        fn fire(&self) {
            rustix::io::write(&self.event, &1u64.to_ne_bytes()).expect("room in the eventfd");
        }
    }

    impl Wakeable for Source {
        fn arm(&mut self) {
            self.armed += 1;
        }

        fn disarm(&mut self) {
            self.disarmed += 1;
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }

        fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
            each(Wake::Readable(self.event.as_fd()));
        }
    }

    #[test]
    fn a_loop_arms_looks_once_more_and_sleeps() {
        let (mut idle, mut source) = (Idle::new(false), Source::new());
        for _ in 0..Idle::PATIENCE[1] {
            idle.after(0, &mut [&mut source]);
        }
        assert_eq!((source.armed, source.disarmed), (0, 0), "patience");
        idle.after(0, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (1, 0), "armed, and back for another look");
        idle.after(3, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (1, 1), "that look found packets");
        for _ in 0..=Idle::PATIENCE[1] {
            idle.after(0, &mut [&mut source]);
        }
        source.fire();
        idle.after(0, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (2, 2), "the event wakes, not the limit");
    }

    #[test]
    fn sleeps_end_at_their_limits() {
        let (mut idle, mut source) = (Idle::new(false), Source::new());
        struct Deaf;
        impl Wakeable for Deaf {
            fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
                each(Wake::Turns);
            }
        }
        let mut until_slept = |sources: &mut [&mut dyn Wakeable]| {
            (0..=Idle::PATIENCE[1]).for_each(|_| idle.after(0, sources));
            let start = Instant::now();
            idle.after(0, sources);
            idle.after(1, sources);
            start.elapsed()
        };
        assert!(until_slept(&mut [&mut source]) >= Idle::LIMIT);
        // The shortest, as this thread may be kept from its processor.
        let shortest = (0..10).map(|_| until_slept(&mut [&mut source, &mut Deaf])).min();
        assert!(shortest.is_some_and(|slept| slept < Idle::LIMIT), "{shortest:?}");
    }

    #[test]
    fn a_time_ends_a_sleep_and_those_who_have_nothing_do_not() {
        struct Timer(Wake<'static>);
        impl Wakeable for Timer {
            fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
                each(match self.0 {
                    Wake::At(time) => Wake::At(time),
                    _ => Wake::Never,
                });
            }
        }
        let until_slept = |timer: &mut Timer| {
            let mut idle = Idle::new(false);
            (0..=Idle::PATIENCE[1]).for_each(|_| idle.after(0, &mut [timer]));
            let start = Instant::now();
            idle.after(0, &mut [timer]);
            start.elapsed()
        };
        let until_due = || {
            let due = Instant::now() + Duration::from_millis(20);
            let slept = until_slept(&mut Timer(Wake::At(due)));
            assert!(Instant::now() >= due);
            slept
        };
        // The shortest, as above.
        let shortest = (0..10).map(|_| until_due()).min();
        assert!(shortest.is_some_and(|slept| slept < Idle::LIMIT), "{shortest:?}");
        assert!(until_slept(&mut Timer(Wake::Never)) >= Idle::LIMIT);
    }

    #[test]
    fn a_sleeper_that_nobody_woke_sleeps_on_at_once() {
        let (mut idle, mut source) = (Idle::new(false), Source::new());
        (0..=Idle::PATIENCE[1]).for_each(|_| idle.after(0, &mut [&mut source]));
        let start = Instant::now();
        (0..2).for_each(|_| idle.after(0, &mut [&mut source]));
        assert!(start.elapsed() >= 2 * Idle::LIMIT, "two sleeps without rounds between them");
        assert_eq!((source.armed, source.disarmed), (1, 0));
    }

    #[test]
    fn a_poller_never_sleeps() {
        let (mut idle, mut source) = (Idle::new(true), Source::new());
        (0..3 * Idle::PATIENCE[2]).for_each(|_| idle.after(0, &mut [&mut source]));
        assert_eq!(source.armed, 0);
    }
}
