//! `kill -9`, a thousand times: 480 front-ends, 480 back-ends and 40 guests end at any moment of their lives, from their
//! first instruction on. Whoever is left goes on with the next one, and in the end it has as many descriptors, mappings and
//! free buffers as before.

mod back_ends;
#[path = "../common/mod.rs"]
mod common;
mod front_ends;
mod guests;

use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;

/// Kinds of rings, as options of a `virtio-user` address.
const RINGS: [&str; 4] = ["", ",features=-in_order", ",features=-packed", ",features=-packed-in_order-event_idx"];

/// A process is counted as one that was at work if it has come to its rings: this part of all at least.
const AT_WORK: u32 = 4;

/// After so many kills one process lives until it has moved packets.
const ROUND: u32 = 12;

/// Starts ringpass.
fn start(arguments: &[&str]) -> Program {
    Program::spawn(&[&[RINGPASS], arguments, &["--json", "--hugepages", "off"]].concat())
}

/// How long processes live: at most as long as the last one that ended by itself, as the machine may become slower.
struct Lives {
    longest: Duration,
    random: Random,
}

impl Lives {
    fn new(seed: u64) -> Self {
        Self { longest: Duration::ZERO, random: Random(seed) }
    }

    /// Of which the first one is timed.
    fn after(seed: u64, first: Program) -> Self {
        let mut lives = Self::new(seed);
        lives.whole(first);
        lives
    }

    /// Lets a process live until it ends by itself.
    fn whole(&mut self, program: Program) {
        let start = Instant::now();
        has_moved(program);
        self.lasted(start.elapsed());
    }

    /// So long the last one lived that ended by itself.
    fn lasted(&mut self, time: Duration) {
        self.longest = time.clamp(Duration::from_millis(100), Duration::from_millis(1500));
    }

    /// The next one's.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.random.below(self.longest.as_micros() as u64))
    }

    /// Lets a process live for a moment.
    fn end(&mut self, program: Program) {
        std::thread::sleep(self.moment());
        drop(program);
    }
}

/// A process ends by itself, as `--count` packets have passed; its summary.
fn has_moved(program: Program) -> Value {
    let (status, lines, errors) = program.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    serde_json::from_str(lines.last().expect("a summary")).expect("JSON")
}

/// What a process has, and others could make it keep.
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

    /// When the peers are gone that it has just now.
    fn without_peers(process: u32) -> Self {
        std::thread::sleep(Duration::from_secs(1));
        Self::by(process)
    }

    /// It comes to have no more than then. The allocator may have mapped some more.
    fn no_more(&self) {
        let start = Instant::now();
        loop {
            let now = Self::by(self.process);
            // Before, it may have had something of a peer's still.
            let same = now.descriptors <= self.descriptors && now.threads <= self.threads;
            if same && now.maps <= self.maps + 8 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{now:?}, and before {self:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
