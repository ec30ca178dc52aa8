//! A thread that steps models.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringpass_port::{Idle, Queues};

use crate::ixgbe::Card;

/// Steps cards on a thread of its own until it is dropped.
pub struct Runner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// How long a drop waits for the thread. A wire that hangs in a system call must not hang the program.
    const LIMIT: Duration = Duration::from_secs(2);

    /// Steps each card with its wire, round robin, on the given CPU. With `poll` the thread never sleeps.
    pub fn spawn(cards: Vec<(Arc<Card>, Queues)>, cpu: Option<usize>, poll: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("models".into())
            .spawn(move || run(cards, cpu, Idle::new(poll), &stopped))
            .expect("the system has no thread left");
        Self { stop, thread: Some(thread) }
    }
}

fn run(mut cards: Vec<(Arc<Card>, Queues)>, cpu: Option<usize>, mut idle: Idle, stop: &AtomicBool) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    while !stop.load(Ordering::Relaxed) {
        let moved = cards.iter_mut().map(|(card, wire)| card.step(wire)).sum();
        idle.after(moved);
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        while !thread.is_finished() && start.elapsed() < Self::LIMIT {
            thread::sleep(Duration::from_micros(100));
        }
        if thread.is_finished() {
            // A panic of the thread has already been printed; dropping must not add a second one.
            let _ = thread.join();
        }
    }
}
