//! Limits how long a guest's memory may hold up the thread that works on its queue.
//!
//! An access to memory that the guest is just taking away (punching holes into gigabytes of a file) waits in the kernel
//! until that is done, and with it all other ports of the thread. The wait cannot be cut short, but its guest can be
//! made to go.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use ringpass_ipc::ThreadUsage;

use crate::fault::Fault;

/// Longest time of a turn, which is one burst.
const LIMIT: Duration = Duration::from_millis(100);

/// Time after a turn that took longer, in which turns are measured. A single one is forgiven: the thread may have
/// had no CPU.
const SUSPICION: Duration = Duration::from_secs(10);

/// Watches the turns of one queue.
#[derive(Default)]
pub(crate) struct TurnWatch {
    /// Turns are measured until this moment.
    until: Option<Duration>,
}

/// A turn that has begun.
pub(crate) struct Turn {
    start: Duration,
    /// Counters of this thread at the start, if the turn is measured. Nothing in a turn waits but an access to memory.
    usage: Option<ThreadUsage>,
}

/// Returns a time in steps of some milliseconds, which costs few nanoseconds.
#[inline]
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("every kernel has this clock").into()
}

impl TurnWatch {
    /// Begins a turn.
    #[inline]
    pub(crate) fn begin(&self) -> Turn {
        Turn { start: now(), usage: if self.until.is_some() { Some(ThreadUsage::now()) } else { None } }
    }

    /// Ends a turn.
    ///
    /// # Errors
    /// If turns have taken too long again and again, for accesses to memory and not for lack of a CPU.
    #[inline]
    pub(crate) fn end(&mut self, turn: Turn) -> Result<(), Fault> {
        let now = now();
        if self.until.is_none() && now - turn.start < LIMIT { Ok(()) } else { self.judge(turn, now) }
    }

    #[cold]
    fn judge(&mut self, turn: Turn, now: Duration) -> Result<(), Fault> {
        let took = now - turn.start;
        if took < LIMIT {
            self.until = self.until.filter(|&until| now < until);
            return Ok(());
        }
        self.until = Some(now + SUSPICION);
        let Some(before) = turn.usage else { return Ok(()) };
        let after = ThreadUsage::now();
        // Memory that is taken away causes page faults. Without them, the host took the CPU of a virtual machine, whose
        // kernel counts that as time of this thread.
        let memory = after.faults > before.faults;
        let busy = after.waits > before.waits || after.time.saturating_sub(before.time) >= LIMIT;
        if memory && busy { Err(Fault::LongTurn(took)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(watch: &mut TurnWatch, what: impl Fn()) -> Result<(), Fault> {
        let turn = watch.begin();
        what();
        watch.end(turn)
    }

    /// Touches memory that is not there.
    fn fault() {
        let before = ThreadUsage::now().faults;
        std::hint::black_box(vec![1_u8; 1 << 20].leak());
        assert!(ThreadUsage::now().faults > before);
    }

    fn wait() {
        std::thread::sleep(3 * LIMIT / 2);
    }

    fn work() {
        let before = ThreadUsage::now().time;
        while ThreadUsage::now().time - before < 3 * LIMIT / 2 {}
    }

    #[test]
    fn the_second_long_turn_is_a_fault() {
        // Like accesses to memory that is being taken away.
        let (wait, work) = (|| (fault(), wait()).1, || (fault(), work()).1);
        for what in [&wait as &dyn Fn(), &work] {
            let mut watch = TurnWatch::default();
            assert_eq!(turn(&mut watch, || ()), Ok(()));
            assert_eq!(turn(&mut watch, what), Ok(()));
            assert_eq!(turn(&mut watch, || ()), Ok(()));
            assert!(matches!(turn(&mut watch, what), Err(Fault::LongTurn(took)) if took > LIMIT));
        }
    }

    /// A thread that has no CPU neither works nor waits for anything else.
    #[test]
    fn turns_that_are_long_for_lack_of_a_cpu_are_none() {
        let mut watch = TurnWatch::default();
        let start = now();
        assert_eq!(watch.judge(Turn { start, usage: None }, start + 2 * LIMIT), Ok(()));
        let usage = Some(ThreadUsage::now());
        assert_eq!(watch.judge(Turn { start, usage }, start + 2 * LIMIT), Ok(()));
        assert_eq!(watch.until, Some(start + 2 * LIMIT + SUSPICION));
        let later = start + 4 * LIMIT + SUSPICION;
        assert_eq!(watch.judge(Turn { start: later, usage }, later), Ok(()));
        assert_eq!(watch.until, None, "forgotten");
    }

    /// Checks turns that are long because a virtual CPU was stopped.
    #[test]
    fn turns_without_page_faults_are_none() {
        for what in [wait, work] {
            let mut watch = TurnWatch::default();
            for _ in 0..3 {
                assert_eq!(turn(&mut watch, what), Ok(()));
            }
        }
    }
}
