//! The worker of one port: in each trial it sends, receives, or both.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ringpass::{Burst, QueuePair, RxQueue, WakeSource, Wakeable, Worker};

use crate::pktgen::Backlog;
use crate::pktgen::generator::Generator;
use crate::pktgen::returned::ReturnTracker;

/// What a port does in a trial.
#[derive(Default)]
pub struct Order {
    /// Frames that it sends.
    pub sending: Option<Sending>,
    /// Evaluation of those that it receives.
    pub receiving: Option<ReturnTracker>,
}

/// Frames that a port sends.
pub struct Sending {
    /// The frames.
    pub generator: Generator,
    /// Counts those that were sent.
    pub tracker: ReturnTracker,
    /// When the first one is due.
    pub start: Instant,
    /// When sending ends.
    pub end: Instant,
}

/// Time within which a worker that does not send notices an order.
const NOTICE: Duration = Duration::from_millis(1);

/// Wakes a worker.
struct Timer(Instant);

impl Wakeable for Timer {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::At(self.0));
    }
}

/// Carries out orders until nobody gives any more.
pub fn work(mut queues: QueuePair, orders: &Receiver<Order>, mut worker: Worker) {
    let mut order = Order::default();
    let (mut out, mut back) = (Burst::new(worker.batch), Burst::new(worker.batch));
    while worker.running() {
        let received = queues.rx.rx_burst(&mut back);
        // After frames were received and before they are evaluated: they may be the first ones of a new trial.
        match orders.try_recv() {
            Ok(next) => order = next,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        if let Some(tracker) = &mut order.receiving {
            tracker.record_returned(&back);
        }
        back.clear();
        let now = Instant::now();
        if order.sending.as_ref().is_some_and(|sending| now >= sending.end) {
            order.sending.take().inspect(|sending| sending.tracker.finish_sending());
            out.clear();
        }
        let Some(Sending { generator, tracker, start, end }) = &mut order.sending else {
            worker.after(received, &mut [&mut *queues.rx, &mut Timer(now + NOTICE)]);
            continue;
        };
        if now < *start {
            worker.after(received, &mut [&mut *queues.rx, &mut Timer(*start)]);
            continue;
        }
        if out.is_empty() {
            tracker.announce(generator.rx_burst(&mut out));
        }
        let sent = queues.tx.tx_burst(&mut out);
        tracker.sent(sent);
        let (end, mut backlog) = (&mut Timer(*end), Backlog(out.len()));
        worker.after(sent + received, &mut [generator, &mut backlog, &mut *queues.rx, end]);
    }
}
