use super::*;

/// Costs of a simulated machine, in nanoseconds: a look, a wake-up by another thread and its CPU time, a timed sleep
/// beyond what was asked and its CPU time.
const LOOK: u64 = 50;
const WAKE: u64 = 20 * US;
const WAKE_CPU: u64 = 10 * US;
const TIMER: u64 = 22 * US;
const TIMER_CPU: u64 = 17 * US;

/// A thread that waits for packets, by simulated time.
struct Waiter {
    policy: WaitPolicy,
    queued: u64,
    cpu: u64,
    blocked: bool,
    /// Looks no earlier than this.
    until: u64,
    wakeups: u64,
}

impl Waiter {
    fn new(budget: Duration) -> Self {
        let policy = WaitPolicy::new(budget);
        Self { policy, queued: 0, cpu: 0, blocked: false, until: 0, wakeups: 0 }
    }

    fn send(&mut self, now: u64) {
        self.queued += 1;
        if std::mem::take(&mut self.blocked) {
            self.wakeups += 1;
            self.cpu += WAKE_CPU;
            self.until = now + WAKE;
        }
    }

    /// Looks once, if it is awake. Returns the packets that it found.
    fn look(&mut self, now: u64) -> u64 {
        if self.blocked || now < self.until {
            return 0;
        }
        self.until = now + LOOK;
        if self.queued > 0 {
            self.cpu += LOOK;
            self.policy.packets += self.queued;
            self.policy.end_wait(|| now);
            return std::mem::take(&mut self.queued);
        }
        match self.policy.pause_at(now) {
            Pause::Spin | Pause::Yield => self.cpu += LOOK,
            Pause::Collect(asked) => {
                self.cpu += TIMER_CPU;
                self.until = now + asked.as_nanos() as u64 + TIMER;
            }
            Pause::Block => self.blocked = true,
        }
        0
    }
}

struct Seen {
    cpu: f64,
    latency: Duration,
    wakeups: u64,
}

/// One second of packets that come one by one, at intervals that `interval` returns; the first half is not looked at.
fn stream(budget: Duration, mut interval: impl FnMut() -> u64) -> Seen {
    let mut waiter = Waiter::new(budget);
    let mut due = interval();
    let mut oldest = None;
    let mut latency = 0;
    let mut before = (0, 0);
    for now in (0..1_000_000_000).step_by(LOOK as usize) {
        while due <= now {
            oldest.get_or_insert(due);
            waiter.send(now);
            due += interval();
        }
        if waiter.look(now) > 0 {
            latency = latency.max(now - oldest.take().unwrap_or(now));
        }
        if now == 500_000_000 {
            (before, latency) = ((waiter.cpu, waiter.wakeups), 0);
        }
    }
    let (cpu, wakeups) = ((waiter.cpu - before.0) as f64 / 5e8, waiter.wakeups - before.1);
    Seen { cpu, latency: Duration::from_nanos(latency), wakeups }
}

fn each(interval: u64) -> impl FnMut() -> u64 {
    move || interval
}

/// Threads that pass one packet around for a second. Returns the number of rounds.
fn rounds(threads: usize, budget: Duration, mut before: impl FnMut(&mut Waiter)) -> u64 {
    let mut waiters: Vec<_> = (0..threads).map(|_| Waiter::new(budget)).collect();
    waiters.iter_mut().for_each(&mut before);
    let mut rounds = 0;
    let mut sent = vec![None; threads];
    waiters[0].send(0);
    for now in (0..1_000_000_000).step_by(LOOK as usize) {
        for at in 0..threads {
            if waiters[at].look(now) > 0 {
                waiters[at].until = now + 5 * LOOK;
                sent[at] = Some(now + 5 * LOOK);
            }
            if sent[at].is_some_and(|due| due <= now) {
                sent[at] = None;
                waiters[(at + 1) % threads].send(now);
                rounds += u64::from(at == 0);
            }
        }
    }
    rounds
}

#[test]
fn packets_at_long_intervals_cost_a_wake_up_each() {
    for (interval, most) in [(100 * US, 0.11), (1_000 * US, 0.012)] {
        let seen = stream(DEFAULT_LATENCY_BUDGET, each(interval));
        assert!(seen.cpu < most, "{interval} ns: {}", seen.cpu);
        assert_eq!(seen.latency.as_nanos() as u64, WAKE, "the kernel's wake-up alone");
    }
}

#[test]
fn packets_at_short_intervals_collect_and_nobody_is_woken() {
    for interval in [US, 2 * US, 5 * US, 10 * US] {
        for budget in [50, 100].map(Duration::from_micros) {
            let Seen { cpu, latency, wakeups } = stream(budget, each(interval));
            let sleep = budget.as_nanos().min(u128::from(interval * WaitPolicy::MAX_PACKETS));
            let most = TIMER_CPU as f64 / sleep as f64 * 1.1;
            assert!(cpu < most && latency <= budget, "{interval} ns, {budget:?}: {cpu}, {latency:?}");
            assert!(wakeups < 500, "{interval} ns, {budget:?}: {wakeups}");
        }
    }
}

/// An interrupt that is held back makes each sleep long, and the loop would never learn that its waits are short.
#[test]
fn a_busy_loop_that_was_once_woken_late_spins_again() {
    let mut policy = WaitPolicy::default();
    let mut now = 0;
    let blocked = (0..100_000).filter(|_| {
        now += US;
        let pause = (0..5).map(|_| policy.pause_at(now)).last().unwrap_or(Pause::Spin);
        let late = pause == Pause::Block || (50_000 * US..53_000 * US).contains(&now);
        let waited = if late { 180 * US } else { US };
        now += waited;
        policy.packets += waited / 25;
        policy.end_wait(|| now);
        pause == Pause::Block
    });
    assert!(blocked.count() < 20);
}

/// Rings are not to overflow while the loop sleeps.
#[test]
fn at_high_rates_and_without_a_budget_it_spins() {
    for (interval, budget) in [(300, DEFAULT_LATENCY_BUDGET), (US, Duration::ZERO), (5 * US, Duration::ZERO)] {
        let seen = stream(budget, each(interval));
        assert!(seen.latency <= Duration::from_nanos(2 * LOOK) && seen.wakeups == 0, "{:?}", seen.latency);
    }
}

#[test]
fn bursts_are_not_waited_for_in_small_steps() {
    let mut burst = (1..=32).cycle();
    let seen = stream(DEFAULT_LATENCY_BUDGET, || if burst.next() == Some(32) { 200 * US } else { 10 });
    assert!(seen.cpu < 0.07 && seen.wakeups > 2_000, "{} {}", seen.cpu, seen.wakeups);
}

#[test]
fn those_who_wait_for_each_other_spin() {
    let before = |threads: u64| 1_000_000_000 / (threads * 6 * LOOK);
    for threads in [2, 3, 4] {
        let rounds = rounds(threads as usize, DEFAULT_LATENCY_BUDGET, |_| {});
        assert!(rounds > before(threads) / 4 * 3, "{threads} threads: {rounds} rounds");
    }
}

/// Begins as after a time of other traffic.
#[test]
fn those_who_have_begun_to_block_find_back_to_spinning() {
    for threads in [2, 3] {
        let rounds = rounds(threads as usize, DEFAULT_LATENCY_BUDGET, |waiter| waiter.policy.wait = 1_000 * US);
        assert!(rounds > 500_000_000 / (threads * 6 * LOOK), "{threads} threads: {rounds} rounds");
    }
}

#[test]
fn a_policy_that_another_thread_has_is_not_waited_for() {
    let policy = SharedWaitPolicy::default();
    assert_eq!(policy.pause(), Pause::Spin);
    let other = policy.policy.lock();
    assert_eq!(policy.pause(), Pause::Block);
    policy.found(1);
    drop(other);
    policy.found(1);
    assert_eq!(policy.pause(), Pause::Spin);
}

#[test]
fn without_spinning_it_blocks_at_once() {
    let mut policy = WaitPolicy::blocking();
    for n in 0..1_000 {
        assert_eq!(policy.pause_at(n * US), Pause::Block);
        policy.end_wait(|| n * US + 100);
    }
}

#[test]
fn time_that_others_had_does_not_count_as_spinning() {
    let mut policy = WaitPolicy::default();
    for n in 1..1_000 {
        assert_eq!(policy.pause_at(n * 100 * US), Pause::Spin);
        policy.yielded(60 * US);
        policy.end_wait(|| n * 100 * US + 61 * US);
    }
    policy.yielded(2 * WaitPolicy::LONG_YIELD);
    assert_eq!(policy.pause_at(200_000 * US), Pause::Block, "another thread wants this CPU");
}
