//! Waiting in a polling loop: it spins for a while when no packets come, then arms its sources, polls once more
//! and sleeps.
//!
//! The order matters. A sender checks whether the sleeper is armed after it has queued a packet, and the
//! sleeper polls for packets after it has armed. So at least one of the two sees the other.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Pause, WaitPolicy, sleep_precisely};

/// A source of wake-ups for a sleeping loop.
#[derive(Clone, Copy, Debug)]
pub enum WakeSource<'a> {
    /// The descriptor becomes readable when there is something to do.
    Readable(BorrowedFd<'a>),
    /// This source never has anything to do.
    Never,
    /// Nothing to do until this time.
    At(Instant),
    /// There is no event to wait for: the source must be polled at short intervals.
    Polled,
}

impl<'a> WakeSource<'a> {
    /// Returns everything that `source` waits for.
    pub fn all(source: &'a (impl Wakeable + ?Sized)) -> Vec<Self> {
        let mut all = Vec::new();
        source.wake_sources(&mut |wake| all.push(wake));
        all
    }
}

/// A source of work that a polling loop can sleep on.
pub trait Wakeable {
    /// Requests wake-ups from now on. Work that arrived before may not cause one, so poll once more before sleeping.
    fn arm(&mut self) {}

    /// Ends the request for wake-ups, and clears the event that caused one.
    fn disarm(&mut self) {}

    /// Calls `each` for every event to wait for while armed. No call is the same as [`WakeSource::Never`].
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>));
}

/// The waiting half of a polling loop: polls while packets come and for a while after, then sleeps until one of its sources wakes
/// it.
///
/// ```
/// use ringpass_port::{Idle, WakeSource, Wakeable};
///
/// struct Never;
///
/// impl Wakeable for Never {
///     fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
///         each(WakeSource::Never);
///     }
/// }
///
/// let (mut idle, mut queue) = (Idle::default(), Never);
/// for received in [32, 7, 0, 0] {
///     idle.after(received, &mut [&mut queue]);
/// }
/// ```
///
/// How long it polls, and whether it sleeps for a while so that packets collect, is up to a [`WaitPolicy`].
#[derive(Clone, Debug)]
pub struct Idle {
    poll: bool,
    policy: WaitPolicy,
    armed: bool,
    sleeps: u64,
}

impl Idle {
    /// Longest sleep, after which the caller's loop runs, for instance to check whether it is to end.
    const MAX_SLEEP: Duration = Duration::from_millis(100);
    /// Time to sleep between polls of a source that has no event to wait for.
    const POLL_INTERVAL: Duration = Duration::from_micros(50);

    /// Creates the state of a loop, with the default latency budget of 50 µs. With `poll`, the loop never sleeps.
    pub fn new(poll: bool) -> Self {
        Self { poll, policy: WaitPolicy::default(), armed: false, sleeps: 0 }
    }

    /// Sets how much latency sleeps may add so that packets collect; see [`WaitPolicy::new`].
    pub fn with_latency_budget(self, budget: Duration) -> Self {
        Self { policy: WaitPolicy::new(budget), ..self }
    }

    /// Returns how often the loop has slept.
    #[inline]
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Must be called after each round, with the number of packets that it moved and all sources that may bring
    /// more. The sources must be the same in every call.
    #[inline]
    pub fn after(&mut self, packets: usize, sources: &mut [&mut dyn Wakeable]) {
        if packets > 0 {
            self.policy.found(packets as u64);
            if self.armed {
                self.disarm(sources);
            }
        } else if self.poll {
            std::hint::spin_loop();
        } else {
            self.wait(sources);
        }
    }

    #[cold]
    fn wait(&mut self, sources: &mut [&mut dyn Wakeable]) {
        match self.policy.pause() {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => self.policy.let_others_run(),
            Pause::Collect(time) => {
                sleep_precisely(time.min(limit(sources, Instant::now())));
                self.sleeps += 1;
            }
            Pause::Block => self.arm_or_sleep(sources),
        }
    }

    #[cold]
    fn disarm(&mut self, sources: &mut [&mut dyn Wakeable]) {
        self.armed = false;
        sources.iter_mut().for_each(|source| source.disarm());
    }

    /// Arms on the first call and sleeps on later ones. Stays armed until a source wakes the loop or packets
    /// have come.
    fn arm_or_sleep(&mut self, sources: &mut [&mut dyn Wakeable]) {
        if !std::mem::replace(&mut self.armed, true) {
            return sources.iter_mut().for_each(|source| source.arm());
        }
        let woken = sleep(sources, Instant::now());
        self.sleeps += 1;
        if woken {
            self.disarm(sources);
        }
    }
}

impl Default for Idle {
    /// Creates the state of a loop that sleeps when idle.
    fn default() -> Self {
        Self::new(false)
    }
}

/// Sleeps until a source wakes the loop, or for as long as the limits allow. Returns whether a source did.
fn sleep(sources: &[&mut dyn Wakeable], now: Instant) -> bool {
    let mut descriptors = Vec::with_capacity(sources.len());
    for source in sources {
        source.wake_sources(&mut |wake| {
            if let WakeSource::Readable(fd) = wake {
                descriptors.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            }
        });
    }
    let limit = Timespec::try_from(limit(sources, now)).expect("a short time");
    // The only error is a signal (EINTR), after which the caller's loop runs anyway.
    poll(&mut descriptors, Some(&limit)).unwrap_or(0) > 0
}

/// Returns how long the loop may sleep at most.
fn limit(sources: &[&mut dyn Wakeable], now: Instant) -> Duration {
    let mut limit = Idle::MAX_SLEEP;
    for source in sources {
        source.wake_sources(&mut |wake| match wake {
            WakeSource::Readable(_) | WakeSource::Never => {}
            WakeSource::At(time) => limit = limit.min(time.saturating_duration_since(now)),
            WakeSource::Polled => limit = limit.min(Idle::POLL_INTERVAL),
        });
    }
    limit
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

        fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
            each(WakeSource::Readable(self.event.as_fd()));
        }
    }

    /// Runs rounds without packets until the loop has armed its sources.
    fn run_dry(idle: &mut Idle, sources: &mut [&mut dyn Wakeable]) {
        while !idle.armed {
            idle.after(0, sources);
        }
    }

    #[test]
    fn a_loop_arms_looks_once_more_and_sleeps() {
        let (mut idle, mut source) = (Idle::new(false), Source::new());
        idle.after(0, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (0, 0), "it spins first");
        run_dry(&mut idle, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (1, 0), "armed, and back for another look");
        idle.after(3, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (1, 1), "that look found packets");
        run_dry(&mut idle, &mut [&mut source]);
        source.fire();
        idle.after(0, &mut [&mut source]);
        assert_eq!((source.armed, source.disarmed), (2, 2), "the event wakes, not the limit");
    }

    #[test]
    fn sleeps_end_at_their_limits() {
        let (mut idle, mut source) = (Idle::new(false), Source::new());
        struct Deaf;
        impl Wakeable for Deaf {
            fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
                each(WakeSource::Polled);
            }
        }
        let mut until_slept = |sources: &mut [&mut dyn Wakeable]| {
            run_dry(&mut idle, sources);
            let start = Instant::now();
            idle.after(0, sources);
            idle.after(1, sources);
            start.elapsed()
        };
        assert!(until_slept(&mut [&mut source]) >= Idle::MAX_SLEEP);
        // Takes the shortest of ten, as this thread may be kept from its CPU.
        let shortest = (0..10).map(|_| until_slept(&mut [&mut source, &mut Deaf])).min();
        assert!(shortest.is_some_and(|slept| slept < Idle::MAX_SLEEP), "{shortest:?}");
    }

    #[test]
    fn a_timeout_ends_a_sleep_and_silent_queues_do_not() {
        struct Timer(WakeSource<'static>);
        impl Wakeable for Timer {
            fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
                each(match self.0 {
                    WakeSource::At(time) => WakeSource::At(time),
                    _ => WakeSource::Never,
                });
            }
        }
        let until_slept = |timer: &mut Timer| {
            let mut idle = Idle::new(false);
            run_dry(&mut idle, &mut [timer]);
            let start = Instant::now();
            idle.after(0, &mut [timer]);
            start.elapsed()
        };
        let until_due = || {
            let due = Instant::now() + Duration::from_millis(20);
            let slept = until_slept(&mut Timer(WakeSource::At(due)));
            assert!(Instant::now() >= due);
            slept
        };
        // Takes the shortest of ten, as this thread may be kept from its CPU.
        let shortest = (0..10).map(|_| until_due()).min();
        assert!(shortest.is_some_and(|slept| slept < Idle::MAX_SLEEP), "{shortest:?}");
        assert!(until_slept(&mut Timer(WakeSource::Never)) >= Idle::MAX_SLEEP);
    }

    #[test]
    fn a_sleeper_that_nobody_woke_sleeps_on_at_once() {
        let (mut idle, mut source) = (Idle::new(false), Source::new());
        run_dry(&mut idle, &mut [&mut source]);
        let start = Instant::now();
        (0..2).for_each(|_| idle.after(0, &mut [&mut source]));
        assert!(start.elapsed() >= 2 * Idle::MAX_SLEEP, "two sleeps without rounds between them");
        assert_eq!((source.armed, source.disarmed), (1, 0));
    }

    #[test]
    fn a_poller_never_sleeps() {
        let (mut idle, mut source) = (Idle::new(true), Source::new());
        (0..100_000).for_each(|_| idle.after(0, &mut [&mut source]));
        assert_eq!(source.armed, 0);
    }
}
