//! Polling without pause, on CPUs that a program has named.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How a native port is polled, as netmap's `VALE_POLLING_ENABLE` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollingMode {
    /// All queues on this CPU.
    OneCpu(u32),
    /// Each of these queues on the CPU with its number.
    CpuPerQueue(Range<u32>),
}

/// The CPU on which the forwarder polls, as the control side has set it.
pub(super) struct PollingCpu(AtomicU32);

const NONE: u32 = u32::MAX;

impl Default for PollingCpu {
    fn default() -> Self {
        Self(AtomicU32::new(NONE))
    }
}

impl PollingCpu {
    pub(super) fn set(&self, cpu: Option<u32>) {
        self.0.store(cpu.unwrap_or(NONE), Relaxed);
    }

    fn get(&self) -> Option<u32> {
        Some(self.0.load(Relaxed)).filter(|&cpu| cpu != NONE)
    }
}

/// State of the forwarder's thread, which follows that CPU.
#[derive(Default)]
pub(super) struct Polling {
    cpu: Option<u32>,
    /// CPUs that the thread could run on before.
    before: Option<CpuSet>,
}

impl Polling {
    /// Moves this thread to the CPU on which it polls, or back to those that it had before. Returns whether it polls.
    #[inline]
    pub(super) fn update(&mut self, wanted: &PollingCpu) -> bool {
        let wanted = wanted.get();
        if wanted != self.cpu {
            self.change(wanted);
        }
        self.cpu.is_some()
    }

    #[cold]
    fn change(&mut self, wanted: Option<u32>) {
        if self.before.is_none() {
            self.before = sched_getaffinity(None).ok();
        }
        match wanted {
            Some(cpu) => run_on(cpu),
            None => drop(self.before.take().map(|cpus| sched_setaffinity(None, &cpus))),
        }
        self.cpu = wanted;
    }
}

/// Moves this thread to a CPU. The control side has checked that this process may run there; if it may not any more, the thread
/// stays where it is.
pub(super) fn run_on(cpu: u32) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu as usize);
    let _ = sched_setaffinity(None, &cpus);
}

/// Returns whether this process may run on a CPU.
pub fn may_run_on(cpu: u32) -> bool {
    let cpu = cpu as usize;
    cpu < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|cpus| cpus.is_set(cpu))
}
