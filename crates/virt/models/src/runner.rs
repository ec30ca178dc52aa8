//! A thread that steps models.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringpass_port::{Idle, QueuePair};

use crate::model::Model;
use crate::model_set::ModelSet;
use crate::stepper::{Shared, Stepper};

/// Steps models on a thread of its own until it is dropped.
pub struct Runner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// Longest time that drop waits for the thread, 2 s. A wire that hangs in a system call must not hang the
    /// program.
    const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

    /// Starts a thread, on the given CPU, that steps each device with its wire in turn. If `idle` sleeps,
    /// a doorbell, a register write or a wire wakes it.
    pub fn spawn<M: Model + 'static>(cards: Vec<(Arc<M>, QueuePair)>, cpu: Option<usize>, idle: Idle) -> Self {
        let cards = cards.into_iter().map(|(card, wire)| (card as Arc<dyn Model>, wire)).collect();
        let shared = Arc::new(Shared::new(cards));
        let its = shared.clone();
        let thread = thread::Builder::new()
            .name("models".into())
            .spawn(move || run(&its, cpu, idle))
            .expect("the system has no thread left");
        Self { shared, thread: Some(thread) }
    }

    /// Adds a device with its wire.
    pub fn add(&self, card: Arc<dyn Model>, wire: QueuePair) {
        self.shared.order(|orders| orders.added.push((card, wire)));
    }

    /// Returns what stops the models and lets them handle one descriptor at a time.
    pub fn stepper(&self) -> Stepper {
        Stepper(Arc::downgrade(&self.shared))
    }
}

fn run(shared: &Shared, cpu: Option<usize>, mut idle: Idle) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let mut models = ModelSet::new();
    models.add(shared.event()).expect("the kernel has memory left");
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.has_orders.load(Ordering::Relaxed) {
            shared.follow(&mut models);
        }
        let moved = models.step();
        idle.after(moved, &mut [&mut models]);
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        while !thread.is_finished() && start.elapsed() < Self::JOIN_TIMEOUT {
            thread::sleep(Duration::from_micros(100));
        }
        if thread.is_finished() {
            // The panic of the thread has been printed already; drop must not panic again.
            let _ = thread.join();
        }
    }
}
