//! Workers: threads that move packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use probe::probe;
use ringpass_port::{Error, Idle, Wakeable};

use crate::config::Config;
use crate::sandbox;

/// Counters of one worker, written by that worker only.
#[derive(Default)]
#[repr(align(128))]
struct WorkerCounters {
    moved: AtomicU64,
    dropped: AtomicU64,
    busy_cycles: AtomicU64,
    rounds: [AtomicU64; ROUND_SIZES],
    sleeps: AtomicU64,
}

/// Number of sizes by which rounds are counted: none, 1, 2 to 3, 4 to 7 packets, and so on, 256 and more.
pub const ROUND_SIZES: usize = 10;

/// Returns the place of a round among these sizes.
#[inline]
fn round_size(packets: usize) -> usize {
    ((usize::BITS - packets.leading_zeros()) as usize).min(ROUND_SIZES - 1)
}

/// Sums over all workers.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Duration of the run so far.
    pub elapsed: Duration,
    /// Packets that were moved.
    pub moved: u64,
    /// Packets that the program dropped.
    pub dropped: u64,
    /// Time stamp counter cycles of the rounds that moved packets.
    pub busy_cycles: u64,
    /// Rounds by the number of packets that they moved: 0, 1, 2 to 3, 4 to 7, and so on, 256 and more.
    pub rounds: [u64; ROUND_SIZES],
    /// How often workers have slept.
    pub sleeps: u64,
}

impl Totals {
    /// Sums up the counters of all workers.
    fn of(worker_counters: &[Arc<WorkerCounters>], elapsed: Duration) -> Self {
        let sum = |field: fn(&WorkerCounters) -> &AtomicU64| {
            worker_counters.iter().map(|t| field(t).load(Ordering::Relaxed)).sum()
        };
        let (moved, dropped) = (sum(|t| &t.moved), sum(|t| &t.dropped));
        let mut rounds = [0; ROUND_SIZES];
        for counters in worker_counters {
            rounds.iter_mut().zip(&counters.rounds).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        }
        Self { elapsed, moved, dropped, busy_cycles: sum(|t| &t.busy_cycles), rounds, sleeps: sum(|t| &t.sleeps) }
    }

    /// Returns the cycles per packet, without idle rounds.
    pub fn cycles_per_packet(&self) -> f64 {
        (self.busy_cycles as f64 / self.moved.max(1) as f64 * 10.0).round() / 10.0
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// State that workers share.
#[derive(Default)]
struct Control {
    stop: AtomicBool,
    /// Packets moved by all workers; counted only if there is a limit.
    moved: AtomicU64,
    /// Packets that workers have moved or may move in their current round, likewise.
    allowed: AtomicU64,
}

impl Control {
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Threads that move packets. Dropping this stops them and waits until each has ended its round, which takes at most 0.1 s for
/// one that sleeps.
///
/// ```
/// use ringpass::{Burst, Config, Workers};
///
/// let config = Config { count: Some(1000), ..Config::default() };
/// let mut ports = ringpass::open(["model:null", "null"], &config)?;
/// let [mut a, mut b] = ports.take_pair()?;
/// let mut workers = Workers::new(&config)?;
/// workers.spawn("forward", move |mut worker| {
///     let mut burst = Burst::new(worker.batch);
///     while worker.running() {
///         let received = a.rx.rx_burst(&mut burst);
///         b.tx.tx_burst(&mut burst);
///         worker.dropped(burst.len());
///         burst.clear();
///         worker.after(received, &mut [&mut *a.rx]);
///     }
///     Ok(())
/// })?;
/// workers.stop();
/// workers.join()?;
/// # Ok::<(), ringpass::Error>(())
/// ```
pub struct Workers {
    config: Config,
    control: Arc<Control>,
    threads: Vec<JoinHandle<Result<(), Error>>>,
    counters: Vec<Arc<WorkerCounters>>,
}

impl Workers {
    /// Creates the set, without a thread yet.
    ///
    /// # Errors
    /// If the configuration names a CPU that this process may not run on.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        if let Some(cpu) = config.cpu.iter().find(|cpu| !cpus.contains(cpu)) {
            return Err(Error::Config(format!("--cpu {cpu}: this process may run on CPUs {cpus:?} only")));
        }
        Ok(Self { config: config.clone(), control: Arc::default(), threads: Vec::new(), counters: Vec::new() })
    }

    /// Starts a thread that runs `work`, on the next CPU of the configuration. It is called `name` with a number, cut off after 15
    /// bytes. An error that `work` returns ends the other workers too; [`join`](Self::join) returns it.
    ///
    /// # Errors
    /// If the kernel grants no thread.
    pub fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(Worker) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let Config { cpu, notices, sandbox, .. } = &self.config;
        if sandbox::is_missing(*sandbox) && self.threads.is_empty() {
            notices.send(
                "no sandbox: the configuration asks for one; call ringpass::sandbox::enter before the first worker",
            );
        }
        let index = self.threads.len();
        let (cpu, notices) = ((!cpu.is_empty()).then(|| cpu[index % cpu.len()]), notices.clone());
        let (worker, counters) = Worker::new(&self.config, &self.control);
        let control = self.control.clone();
        let body = move || {
            if let Some(id) = cpu.filter(|&id| !core_affinity::set_for_current(CoreId { id })) {
                notices.send(&format!("worker {index} could not be pinned to CPU {id}"));
            }
            let end = work(worker);
            if end.is_err() {
                control.stop();
            }
            end
        };
        let thread = std::thread::Builder::new().name(format!("{name}-{index}").chars().take(15).collect()).spawn(body);
        self.threads.push(thread.map_err(|source| Error::os(format!("a thread for {name}"), source))?);
        self.counters.push(counters);
        Ok(())
    }

    /// Returns the time after which a run ends.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.config.time
    }

    /// Tells all workers to end after their current round.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Returns whether the workers have been told to stop, by [`stop`](Self::stop) or by the count of the configuration, or have
    /// all ended.
    pub fn finished(&self) -> bool {
        self.control.stopped() || self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Returns the sums over all workers. `elapsed` is the duration of the run so far, which is passed on.
    pub fn totals(&self, elapsed: Duration) -> Totals {
        Totals::of(&self.counters, elapsed)
    }

    /// Returns the counters of each worker, in the order of their start.
    pub fn totals_of_each(&self, elapsed: Duration) -> Vec<Totals> {
        self.counters.iter().map(|counters| Totals::of(std::slice::from_ref(counters), elapsed)).collect()
    }

    /// Returns the number of rounds of each worker, in the order of their start, and `None` for those that have ended.
    pub fn rounds(&self) -> Vec<Option<u64>> {
        let sum = |counters: &WorkerCounters| counters.rounds.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let workers = self.threads.iter().zip(&self.counters);
        workers.map(|(thread, counters)| (!thread.is_finished()).then(|| sum(counters))).collect()
    }

    /// Waits until all workers have ended.
    ///
    /// # Errors
    /// That of the first worker that has failed, if one has. The message of a panic has been printed already.
    pub fn join(&mut self) -> Result<(), Error> {
        let panicked = |_| Err(Error::Fault("a worker failed; see above".into()));
        let ends: Vec<_> = self.threads.drain(..).map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        ends.into_iter().collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = self.join() {
            self.config.notices.send(&error.to_string());
        }
    }
}

/// A worker: handed to the function that runs on its thread, which calls [`running`](Self::running) before and
/// [`after`](Self::after) after each round.
pub struct Worker {
    /// Largest burst in packets.
    pub batch: usize,
    limit: Option<u64>,
    /// Packets that this worker may move in its current round, if it has asked.
    allowed: Option<u64>,
    idle: Idle,
    /// Time stamp counter at the end of the last round.
    since: u64,
    /// Time at the last reading of the clock, and the time stamp counter then.
    now: Instant,
    read_at: u64,
    counters: Arc<WorkerCounters>,
    shared: Arc<Control>,
}

impl Worker {
    /// Precision of [`now`](Self::now) in time stamp counter cycles, some 40 µs.
    pub const CLOCK_CYCLES: u64 = 100_000;

    /// Creates a worker and its counters.
    fn new(config: &Config, shared: &Arc<Control>) -> (Self, Arc<WorkerCounters>) {
        let counters = Arc::new(WorkerCounters::default());
        let batch = config.batch;
        let limit = config.count;
        let idle = config.idle();
        let own = counters.clone();
        let shared = shared.clone();
        let since = cycles();
        let now = Instant::now();
        (Self { batch, limit, allowed: None, idle, since, now, read_at: since, counters: own, shared }, counters)
    }

    /// Returns the time of this round, for the ageing of entries and for timers. It costs nothing: the clock is read between
    /// rounds, once in [`CLOCK_CYCLES`](Self::CLOCK_CYCLES) at most.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns whether the worker is to continue. To be called before each round.
    #[inline]
    pub fn running(&self) -> bool {
        !self.shared.stopped()
    }

    /// Returns how many packets the next round may move: `packets`, or fewer near the limit on the packets of all workers
    /// ([`Config::count`]), which is then kept exactly. To be called once a round, before anything is received.
    #[inline]
    pub fn allow(&mut self, packets: usize) -> usize {
        let Some(limit) = self.limit else { return packets };
        let take = |allowed: u64| Some(limit.min(allowed + packets as u64));
        let before = self.shared.allowed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(limit);
        let allowed = limit.saturating_sub(before).min(packets as u64);
        self.allowed = Some(allowed);
        allowed as usize
    }

    /// Ends a round: counts the packets that it moved, and spins or sleeps if there were none. `sources` are
    /// the queues that may bring more, the same ones each time.
    #[inline]
    pub fn after(&mut self, moved: usize, sources: &mut [&mut dyn Wakeable]) {
        if let Some(allowed) = self.allowed.take() {
            self.shared.allowed.fetch_sub(allowed.saturating_sub(moved as u64), Ordering::Relaxed);
        }
        add(&self.counters.rounds[round_size(moved)], 1);
        if moved > 0 {
            let now = cycles();
            let spent = now.wrapping_sub(self.since);
            probe!(ringpass, round, moved, spent);
            add(&self.counters.busy_cycles, spent);
            add(&self.counters.moved, moved as u64);
            self.since = now;
            if let Some(limit) = self.limit
                && self.shared.moved.fetch_add(moved as u64, Ordering::Relaxed) + moved as u64 >= limit
            {
                self.shared.stop();
            }
            self.idle.after(moved, sources);
        } else {
            self.idle.after(0, sources);
            self.counters.sleeps.store(self.idle.sleeps(), Ordering::Relaxed);
            self.since = cycles();
        }
        if self.since.wrapping_sub(self.read_at) > Self::CLOCK_CYCLES {
            (self.now, self.read_at) = (Instant::now(), self.since);
        }
    }

    /// Counts packets that had to be dropped.
    #[inline]
    pub fn dropped(&self, packets: usize) {
        if packets > 0 {
            probe!(ringpass, dropped, packets);
            add(&self.counters.dropped, packets as u64);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.stop();
        }
    }
}

/// Returns the time stamp counter.
#[allow(unsafe_code)]
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, and the instruction accesses no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stops_all_at_the_limit_and_its_packets_are_counted() {
        let config = Config { count: Some(100), poll: true, ..Default::default() };
        let shared = Arc::new(Control::default());
        let ((mut one, counters), (mut other, _)) = (Worker::new(&config, &shared), Worker::new(&config, &shared));
        one.after(64, &mut []);
        other.after(35, &mut []);
        one.after(0, &mut []);
        assert!(one.running() && other.running());
        one.after(1, &mut []);
        assert!(!one.running() && !other.running());
        one.dropped(2);
        let totals = Totals::of(&[counters.clone(), counters], Duration::ZERO);
        assert_eq!((totals.moved, totals.dropped), (130, 4));
        // An empty round, one of 1 packet, and one of 64; the counters are summed twice.
        assert_eq!(totals.rounds, [2, 2, 0, 0, 0, 0, 0, 2, 0, 0]);
    }

    #[test]
    fn a_sandbox_that_was_not_entered_is_reported_once() {
        let (sender, notices) = std::sync::mpsc::channel();
        let notices_to = crate::Notices::new(move |text| drop(sender.send(text.to_owned())));
        let config = Config { sandbox: sandbox::Sandbox::Packets, notices: notices_to, ..Default::default() };
        let mut workers = Workers::new(&config).unwrap();
        (0..2).for_each(|_| workers.spawn("worker", |_| Ok(())).unwrap());
        drop(workers);
        let notices: Vec<_> = notices.try_iter().collect();
        assert!(notices.len() == 1 && notices[0].contains("call ringpass::sandbox::enter"), "{notices:?}");
    }

    #[test]
    fn workers_that_ask_move_no_more_than_the_limit() {
        let config = Config { count: Some(100), poll: true, ..Default::default() };
        let shared = Arc::new(Control::default());
        let ((mut one, _), (mut other, _)) = (Worker::new(&config, &shared), Worker::new(&config, &shared));
        assert_eq!([one.allow(64), other.allow(64)], [64, 36]);
        other.after(6, &mut []);
        assert!(one.running(), "what the first may still move is not yet moved");
        one.after(60, &mut []);
        assert_eq!([one.allow(32), other.allow(32)], [32, 2]);
        one.after(32, &mut []);
        assert!(other.running());
        other.after(2, &mut []);
        assert!(!one.running());
        assert_eq!(one.allow(32), 0);
        assert_eq!(Worker::new(&Config::default(), &shared).0.allow(7), 7, "without a limit");
    }
}
