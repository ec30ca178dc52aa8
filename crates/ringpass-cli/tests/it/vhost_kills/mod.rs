//! `kill -9`, a thousand times: 480 front-ends, 480 back-ends and 40 guests end at any moment of their lives,
//! from their first instruction on. The side that is left continues with the next one, and in the end it has as
//! many descriptors, mappings and free buffers as before.

mod back_ends;
mod front_ends;
mod guests;

use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_lab::Ended;
use serde_json::Value;

/// Kinds of rings, as options of a `virtio-user` address.
const RINGS: [&str; 4] = ["", ",features=-in_order", ",features=-packed", ",features=-packed-in_order-event_idx"];

/// At least one in this many processes must have started its rings before it was killed.
const AT_WORK: u32 = 4;

/// After this many kills, one process lives until it has moved packets.
const ROUND: u32 = 12;

/// Starts ringpass.
fn start(arguments: &[&str]) -> Program {
    Program::spawn(&[&[RINGPASS], arguments, &["--json", "--hugepages", "off"]].concat())
}

/// Lifetimes of processes: at most that of the last one that ended on its own, because the machine may become
/// slower.
struct Lives {
    longest: Duration,
    random: Random,
}

impl Lives {
    fn new(seed: u64) -> Self {
        Self { longest: Duration::ZERO, random: Random::new(seed) }
    }

    /// Creates lifetimes from that of a first process, which ends on its own.
    fn after(seed: u64, first: Program) -> Self {
        let mut lives = Self::new(seed);
        lives.whole(first);
        lives
    }

    /// Lets a process live until it ends on its own.
    fn whole(&mut self, program: Program) {
        let start = Instant::now();
        has_moved(program);
        self.lasted(start.elapsed());
    }

    /// Records the lifetime of the last process that ended on its own.
    fn lasted(&mut self, time: Duration) {
        self.longest = time.clamp(Duration::from_millis(100), Duration::from_millis(1500));
    }

    /// Returns the lifetime of the next process.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.random.below(self.longest.as_micros() as u64))
    }

    /// Lets a process live for a random time, then kills it.
    fn end(&mut self, program: Program) {
        std::thread::sleep(self.moment());
        drop(program);
    }
}

/// Waits until a process has moved `--count` packets and ended; returns its summary.
fn has_moved(program: Program) -> Value {
    let Ended { status, lines, errors } = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    serde_json::from_str(lines.last().expect("a summary")).expect("JSON")
}

/// Resources of a process that its peers could make it leak.
#[derive(Clone, Copy, Debug)]
struct Held {
    process: u32,
    descriptors: usize,
    threads: usize,
    maps: usize,
}

impl Held {
    fn by(process: u32) -> Self {
        let count = |what: &str| std::fs::read_dir(format!("/proc/{process}/{what}")).expect("it runs").count();
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs").lines().count();
        Self { process, descriptors: count("fd"), threads: count("task"), maps }
    }

    /// Counts them when the peers that it has just now are gone.
    fn without_peers(process: u32) -> Self {
        std::thread::sleep(Duration::from_secs(1));
        Self::by(process)
    }

    /// Asserts that the process holds no more than it did then. The allocator may have mapped some more.
    fn no_more(&self) {
        let start = Instant::now();
        loop {
            let now = Self::by(self.process);
            // Until then, it may still hold resources of a peer.
            let same = now.descriptors <= self.descriptors && now.threads <= self.threads;
            if same && now.maps <= self.maps + 8 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{now:?}, and before {self:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
