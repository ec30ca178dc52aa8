//! A wire that wakes a sleeping model, and the time for which the model's thread was awake.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{QueuePair, RxQueue, TxQueue, WakeSource, Wakeable};
use rustix::event::{EventfdFlags, eventfd};

/// A wire that becomes readable when frames arrive, and counts the frames that were sent.
#[derive(Clone)]
pub struct Readable {
    frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    sent: Arc<Mutex<usize>>,
    event: Arc<OwnedFd>,
}

struct ToCard(Readable, Mempool);
struct FromCard(Readable);

impl Readable {
    /// Creates a wire; returns its queues too.
    pub fn new() -> (Self, QueuePair) {
        let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap());
        let wire = Self { frames: Arc::default(), sent: Arc::default(), event };
        let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).unwrap();
        let queues = QueuePair { rx: Box::new(ToCard(wire.clone(), pool)), tx: Box::new(FromCard(wire.clone())) };
        (wire, queues)
    }

    /// Puts a frame on the wire.
    pub fn arrive(&self, frame: Vec<u8>) {
        let mut frames = self.frames.lock().unwrap();
        rustix::io::write(&*self.event, &1u64.to_ne_bytes()).unwrap();
        frames.push_back(frame);
    }

    /// Returns the number of frames that the model has sent.
    pub fn sent(&self) -> usize {
        *self.sent.lock().unwrap()
    }
}

impl Wakeable for ToCard {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.0.event.as_fd()));
    }
}

impl RxQueue for ToCard {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let Some(bytes) = self.0.frames.lock().unwrap().pop_front() else { return 0 };
        rustix::io::read(&self.0.event, &mut [0; 8]).expect("readable while there are frames");
        let mut packet = self.1.alloc().unwrap();
        assert!(packet.copy_from(&bytes));
        burst.push(packet);
        1
    }
}

impl TxQueue for FromCard {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        *self.0.sent.lock().unwrap() += count;
        burst.clear();
        count
    }
}

/// Checks that the models' thread sleeps for `time`, after what it still has to do.
pub fn sleeps_for(time: Duration) {
    std::thread::sleep(Duration::from_millis(50));
    let before = ticks();
    std::thread::sleep(time);
    assert!(ticks() - before <= 2, "hundredths of a second awake of {time:?}");
}

/// Returns the clock ticks that the models' thread has used.
fn ticks() -> u64 {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        if stat.contains("(models)") {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            return fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    panic!("no thread of models")
}
