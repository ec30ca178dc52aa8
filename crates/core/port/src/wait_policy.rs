//! How a loop that has run dry waits: it looks again at once, sleeps for a while while packets collect, or asks to be
//! woken.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use nix::time::ClockId;
use rustix::thread::set_current_timer_slack;

/// Bound on the latency that a waiting loop adds so that packets collect, unless the user sets another: 50 µs.
pub const DEFAULT_LATENCY_BUDGET: Duration = Duration::from_micros(50);

/// Action of a loop that found nothing, before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Looks again at once.
    Spin,
    /// Lets another thread of this CPU run, as that may be the one whose work is awaited. See
    /// [`WaitPolicy::let_others_run`].
    Yield,
    /// Sleeps for this long, without asking to be woken. See [`sleep_precisely`].
    Collect(Duration),
    /// Asks to be woken, looks once more, and sleeps until somebody does. Stays the answer until packets are found.
    Block,
}

/// Chooses between spinning, collecting and blocking, by the time that waits take and by the packets that end them.
///
/// A wait begins when a loop runs dry, and ends when it finds packets. Spinning costs the whole wait, and a sleep and a wake-up a
/// fixed time: some 10 µs of CPU time on either side. So a loop spins if its waits are shorter than that, and blocks if they
/// are longer. Where packets come so often that it would be woken all the time, it sleeps for the latency budget and takes what
/// has collected by then; this costs the sender no wake-ups either. It stops doing so when little collects, as the sender
/// then waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    budget: u64,
    /// Set if it spins at all.
    spins: bool,
    /// Averages, in nanoseconds: of waits; from the end of a wait to the end of the next; and that for each packet.
    wait: u64,
    interval: u64,
    gap: u64,
    /// How much longer sleeps take than asked for, in nanoseconds.
    overshoot: u64,
    /// Waits until collecting is tried again, and how many that will be after the next failure.
    collects_in: u32,
    backoff: u32,
    /// Sleeps since waits were measured, and waits that are still to be.
    collected: u32,
    to_measure: u32,
    /// Waits without spinning, as another thread wants this CPU.
    crowded: u32,
    current: Option<Wait>,
    /// Waits and packets since the end of the last wait that was measured, and the time of that.
    waits: u32,
    packets: u64,
    ended: Option<u64>,
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began: u64,
    way: Way,
    rounds: u32,
    /// How long it waits before the next yield.
    yields_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Spins for this many nanoseconds.
    Spin(u64),
    /// Sleeps for this many nanoseconds in all.
    Collect(u64),
    Block,
}

const US: u64 = 1_000;

impl WaitPolicy {
    /// Shorter waits are spun away: the CPU time of a sleep and a wake-up, of which a part is the waker's.
    const SPIN_WORTH: u64 = 12 * US;
    /// Longest spinning of a wait that was expected to be short.
    const MAX_SPIN: u64 = 24 * US;
    /// Waits of less than this may only be that long because the other side sleeps as well, and several others in a row.
    const MAYBE_SHORT: u64 = 90 * US;
    /// To find that out, all that wait on a machine spin at the same time: in the first of every 64 parts of 0.25 ms.
    const PROBE: [u64; 2] = [250 * US, 64];
    /// Shortest time to collect in: a timed sleep costs up to 20 µs of CPU time on virtual machines.
    const MIN_COLLECT: u64 = 30 * US;
    /// Most packets that are to collect: a quarter of a ring of 256.
    const MAX_PACKETS: u64 = 64;
    /// Where packets come in shorter intervals on average, waits are short, and only seem long if the other side, or an
    /// interrupt that is held back, lets this one sleep.
    const DENSE: u64 = Self::MIN_COLLECT / Self::MAX_PACKETS;
    /// Waits before collecting is tried again after a failure: at least, and at most.
    const BACKOFF: [u32; 2] = [64, 16 << 10];
    /// After so many sleeps, some waits are measured instead.
    const MEASURE_INTERVAL: u32 = 64;
    const MEASURED: u32 = 4;
    /// A yield that takes longer means that another thread wants this CPU, and not just for the work that is awaited.
    const LONG_YIELD: u64 = 1000 * US;
    /// Waits without spinning after that.
    const CROWDED_WAITS: u32 = 1024;
    /// After a longer wait, nothing that was learned before holds.
    const FORGET: u64 = 100_000 * US;
    /// Waits of at most so many rounds are not measured, but for one in so many.
    const SHORT_ROUNDS: u32 = 4;
    const UNMEASURED: u32 = 8;
    /// One in so many rounds of spinning reads the clock, which takes as long as a look.
    const CLOCK_INTERVAL: u32 = 8;
    /// Spins so long before it yields, each time: most waits of busy loops are shorter, and where two hardware threads share a
    /// core, system calls of the one that waits slow the other one.
    const YIELD_INTERVAL: u64 = 2 * US;

    /// Creates a policy that adds at most `budget` of latency so that packets collect; none if it is below 30 µs. The latency of
    /// a wake-up after a longer silence is the kernel's.
    pub fn new(budget: Duration) -> Self {
        Self {
            budget: nanos(budget),
            spins: true,
            wait: 0,
            interval: 0,
            gap: 0,
            overshoot: 20 * US,
            collects_in: Self::BACKOFF[0],
            backoff: Self::BACKOFF[0],
            collected: 0,
            to_measure: 0,
            crowded: 0,
            current: None,
            waits: 0,
            packets: 0,
            ended: None,
        }
    }

    /// Creates a policy that always blocks at once.
    pub fn blocking() -> Self {
        Self { spins: false, ..Self::new(Duration::ZERO) }
    }

    /// Returns what to do now that nothing was found. The first call begins a wait.
    pub fn pause(&mut self) -> Pause {
        if self.crowded == 0
            && let Some(Wait { way: Way::Spin(_), rounds, .. }) = &mut self.current
            && !(*rounds + 1).is_multiple_of(Self::CLOCK_INTERVAL)
        {
            *rounds += 1;
            return Pause::Spin;
        }
        self.pause_at(now())
    }

    fn pause_at(&mut self, now: u64) -> Pause {
        let mut wait = match self.current {
            Some(wait) => wait,
            None => Wait { began: now, way: self.begin(now), rounds: 0, yields_at: Self::YIELD_INTERVAL },
        };
        wait.rounds += 1;
        let waited = now.saturating_sub(wait.began);
        let pause = match wait.way {
            Way::Spin(limit) if waited < limit && self.crowded == 0 => {
                if waited < wait.yields_at {
                    Pause::Spin
                } else {
                    wait.yields_at = waited + Self::YIELD_INTERVAL;
                    Pause::Yield
                }
            }
            Way::Collect(time) if wait.rounds == 1 => Pause::Collect(Duration::from_nanos(time - self.overshoot)),
            Way::Spin(_) | Way::Block => {
                wait.way = Way::Block;
                Pause::Block
            }
            Way::Collect(time) => {
                self.collecting_failed();
                self.slept(time, waited);
                wait.way = Way::Block;
                Pause::Block
            }
        };
        self.current = Some(wait);
        pause
    }

    /// Carries out a [`Pause::Yield`]: yields the CPU, and learns whether another thread wants it for long.
    pub fn let_others_run(&mut self) {
        self.yielded(timed_yield());
    }

    fn yielded(&mut self, time: u64) {
        if time > Self::LONG_YIELD {
            self.crowded = Self::CROWDED_WAITS;
        }
        // What others did meanwhile was not spent by waiting.
        if let Some(wait) = &mut self.current {
            wait.began += time;
        }
    }

    /// Counts packets that were found, and ends a wait if one has begun.
    #[inline]
    pub fn found(&mut self, packets: u64) {
        self.packets += packets;
        if self.current.is_some() {
            self.end_wait(now);
        }
    }

    #[cold]
    fn end_wait(&mut self, clock: impl FnOnce() -> u64) {
        let Some(wait) = self.current.take() else { return };
        self.crowded = self.crowded.saturating_sub(1);
        self.waits += 1;
        // Reading the clock costs as much as such a wait.
        if let Way::Spin(_) = wait.way
            && wait.rounds <= Self::SHORT_ROUNDS
            && self.waits < Self::UNMEASURED
        {
            average(&mut self.wait, 0);
            return;
        }
        let now = clock();
        let waits = std::mem::take(&mut self.waits);
        let packets = std::mem::take(&mut self.packets).max(1);
        let waited = now.saturating_sub(wait.began);
        let before = self.ended.replace(now);
        if waited > Self::FORGET {
            let Self { spins, overshoot, ended, .. } = *self;
            *self = Self { spins, overshoot, ended, ..Self::new(Duration::from_nanos(self.budget)) };
            return;
        }
        let interval = before.map_or(waited, |before| now.saturating_sub(before));
        match wait.way {
            Way::Collect(time) => {
                self.slept(time, waited);
                // Half of what was to be expected: else the sender waits for answers, or is gone.
                if waited < 2 * time && packets >= 2 && packets.saturating_mul(2 * self.gap) >= interval {
                    average(&mut self.gap, interval / packets);
                    self.collected += 1;
                    self.backoff = Self::BACKOFF[0];
                } else {
                    self.collecting_failed();
                }
            }
            Way::Spin(_) | Way::Block => {
                if let Way::Spin(Self::MAYBE_SHORT) = wait.way
                    && waited < Self::SPIN_WORTH
                {
                    self.wait = waited;
                }
                // A limit, so that one long wait says no more than that it was long.
                average(&mut self.wait, waited.min(2 * Self::SPIN_WORTH));
                // The interval after a sleep began when that ended, at no packet.
                if self.to_measure < Self::MEASURED {
                    average(&mut self.interval, interval / u64::from(waits));
                    average(&mut self.gap, interval / packets);
                }
                self.to_measure = self.to_measure.saturating_sub(1);
                self.collects_in = self.collects_in.saturating_sub(1);
            }
        }
    }

    /// Chooses the way of a wait that begins.
    fn begin(&mut self, now: u64) -> Way {
        if self.collected == Self::MEASURE_INTERVAL {
            (self.collected, self.to_measure) = (0, Self::MEASURED);
        }
        if self.collects_in == 0 && self.to_measure == 0 {
            let time = self.budget.min(self.gap.saturating_mul(Self::MAX_PACKETS));
            if time >= Self::MIN_COLLECT && time >= 2 * self.interval {
                return Way::Collect(time);
            }
        }
        if !self.spins {
            Way::Block
        } else if self.wait < Self::SPIN_WORTH || self.gap < Self::DENSE {
            Way::Spin(Self::MAX_SPIN)
        } else if self.interval < Self::MAYBE_SHORT && (now / Self::PROBE[0]).is_multiple_of(Self::PROBE[1]) {
            Way::Spin(Self::MAYBE_SHORT)
        } else {
            Way::Block
        }
    }

    fn collecting_failed(&mut self) {
        self.collected = 0;
        self.collects_in = self.backoff;
        self.backoff = (self.backoff * 2).min(Self::BACKOFF[1]);
    }

    /// Learns how much longer a sleep took than asked for.
    fn slept(&mut self, time: u64, waited: u64) {
        let asked = time - self.overshoot;
        // A limit, because a single sleep beside other threads may take milliseconds.
        average(&mut self.overshoot, waited.saturating_sub(asked).min(Self::MIN_COLLECT - 5 * US));
    }
}

impl Default for WaitPolicy {
    /// Creates a policy with the [default budget](DEFAULT_LATENCY_BUDGET).
    fn default() -> Self {
        Self::new(DEFAULT_LATENCY_BUDGET)
    }
}

/// Returns the time for a [`WaitPolicy`]: nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[inline]
fn now() -> u64 {
    // By the C library: rustix looks for the vDSO at the first call, which sandboxes do not allow.
    ClockId::CLOCK_MONOTONIC.now().map_or(0, |now| nanos(now.into()))
}

/// Yields, and returns how long that took.
fn timed_yield() -> u64 {
    let before = now();
    std::thread::yield_now();
    now() - before
}

/// A [`WaitPolicy`] of several threads, which wait for the same rings. None of them waits for another, and a process that was forked meanwhile
/// does not either: who finds it in use blocks without it.
#[derive(Debug, Default)]
pub struct SharedWaitPolicy {
    policy: Mutex<WaitPolicy>,
    is_waiting: AtomicBool,
    /// Packets since the last wait. Threads may lose each other's.
    packets: AtomicU64,
}

impl SharedWaitPolicy {
    fn policy(&self) -> Option<MutexGuard<'_, WaitPolicy>> {
        match self.policy.try_lock() {
            Ok(policy) => Some(policy),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns what to do now that nothing was found. The first call begins a wait.
    pub fn pause(&self) -> Pause {
        self.is_waiting.store(true, Relaxed);
        self.policy().map_or(Pause::Block, |mut policy| policy.pause())
    }

    /// Carries out a [`Pause::Yield`].
    pub fn let_others_run(&self) {
        let time = timed_yield();
        if let Some(mut policy) = self.policy() {
            policy.yielded(time);
        }
    }

    /// Counts packets that were found, and ends a wait if one has begun. Without packets it goes on in the next call of
    /// [`pause`](Self::pause).
    #[inline]
    pub fn found(&self, packets: u32) {
        let sum = self.packets.load(Relaxed).wrapping_add(packets.into());
        self.packets.store(sum, Relaxed);
        if packets > 0 && self.is_waiting.load(Relaxed) {
            self.is_waiting.store(false, Relaxed);
            self.packets.store(0, Relaxed);
            if let Some(mut policy) = self.policy() {
                policy.found(sum);
            }
        }
    }
}

impl From<WaitPolicy> for SharedWaitPolicy {
    fn from(policy: WaitPolicy) -> Self {
        Self { policy: policy.into(), is_waiting: false.into(), packets: 0.into() }
    }
}

/// Sleeps for a time of microseconds. Sets the timer slack of the calling thread to 1 ns, without which Linux makes such sleeps
/// 50 µs longer (`PR_SET_TIMERSLACK`, prctl(2)).
pub fn sleep_precisely(time: Duration) {
    thread_local! {
        static PRECISE: Cell<bool> = const { Cell::new(false) };
    }
    if !PRECISE.replace(true) {
        // The only error is a kernel without it; sleeps are longer then.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
    std::thread::sleep(time);
}

/// Adds a value to a moving average over eight.
fn average(average: &mut u64, value: u64) {
    *average = (*average * 7 + value) / 8;
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
