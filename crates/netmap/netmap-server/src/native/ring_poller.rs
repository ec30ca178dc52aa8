//! Threads that poll single queues of an attached native port, each on a CPU of its own.
//!
//! The forwarder lends the receiving side of a queue to such a thread, and takes it back when the thread is to end.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, yield_now};

use ringpass_ipc::WakeFd;
use ringpass_memory::Burst;
use ringpass_port::RxQueue;

use super::polling::run_on;
use super::switch_links::ToSwitch;

/// A thread that polls one queue. Dropping it ends the thread, which then has put the queue back.
pub(super) struct RingPoller {
    loan: Arc<Loan>,
    thread: Option<JoinHandle<()>>,
    kick: Arc<WakeFd>,
}

/// The place through which a queue is lent.
pub(super) struct Loan {
    /// Number of the queue, and of the CPU.
    pub(super) queue: usize,
    lent: Mutex<Option<Lent>>,
    ends: AtomicBool,
    dropped: Arc<AtomicU64>,
}

/// What a poller is lent.
pub(super) struct Lent {
    pub(super) rx: Box<dyn RxQueue>,
    pub(super) switch: ToSwitch,
    pub(super) received: Box<Burst>,
}

impl RingPoller {
    /// Starts a thread for each of these queues, on the CPU with the same number. The threads wait for their queues.
    pub(super) fn start(
        queues: Range<usize>,
        dropped: &Arc<AtomicU64>,
        kick: &Arc<WakeFd>,
    ) -> Result<Vec<Self>, io::Error> {
        let start = |queue| {
            let (ends, dropped) = (AtomicBool::new(false), dropped.clone());
            let loan = Arc::new(Loan { queue, lent: Mutex::new(None), ends, dropped });
            let poller = loan.clone();
            let thread = Builder::new().name(format!("poll-{queue}")).spawn(move || poller.poll())?;
            Ok(Self { loan, thread: Some(thread), kick: kick.clone() })
        };
        queues.map(start).collect()
    }

    /// Returns the place through which the forwarder lends the queue.
    pub(super) fn loan(&self) -> Arc<Loan> {
        self.loan.clone()
    }
}

impl Drop for RingPoller {
    fn drop(&mut self) {
        self.loan.ends.store(true, Relaxed);
        // It ends within a round, as receiving and sending never wait.
        let _ = self.thread.take().map(JoinHandle::join);
        // Wakes the forwarder, which takes the queue back.
        self.kick.wake();
    }
}

impl Loan {
    fn place(&self) -> MutexGuard<'_, Option<Lent>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a queue.
    pub(super) fn lend(&self, lent: Lent) {
        *self.place() = Some(lent);
    }

    /// Returns the queue that was lent, once its thread has ended.
    pub(super) fn take_back(&self) -> Option<Lent> {
        if self.ends.load(Relaxed) { self.place().take() } else { None }
    }

    /// Takes the queue that is lent, and polls it until the thread is to end.
    fn poll(&self) {
        run_on(self.queue as u32);
        let mut lent = None;
        while !self.ends.load(Relaxed) {
            match &mut lent {
                None => {
                    yield_now();
                    lent = self.place().take();
                }
                Some(lent) => self.round(lent),
            }
        }
        if lent.is_some() {
            *self.place() = lent;
        }
    }

    fn round(&self, Lent { rx, switch, received }: &mut Lent) {
        if rx.rx_burst(received) == 0 {
            std::hint::spin_loop();
            return;
        }
        switch.pass(received);
        if !received.is_empty() {
            self.dropped.fetch_add(received.len() as u64, Relaxed);
            received.clear();
        }
    }
}
