//! A virtio card without work sleeps on its thread, and is woken by all that brings some.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_models::Runner;
use ringpass_port::{Queues, RxQueue, TxQueue, Wake, Wakeable};
use ringpass_virtio::features::*;
use rustix::event::{EventfdFlags, eventfd};

use driver::Driver;
use wire::any_frame;

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "virtio/driver.rs"]
mod driver;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "virtio/wire.rs"]
mod wire;

/// A wire that becomes readable when frames come.
struct Readable {
    frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    event: Arc<OwnedFd>,
    pool: Mempool,
}

impl Wakeable for Readable {
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Readable(self.event.as_fd()));
    }
}

impl RxQueue for Readable {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let Some(bytes) = self.frames.lock().unwrap().pop_front() else { return 0 };
        rustix::io::read(&self.event, &mut [0; 8]).expect("readable while there are frames");
        let mut packet = self.pool.alloc().unwrap();
        assert!(packet.copy_from(&bytes));
        burst.push(packet);
        1
    }
}

struct Sent(Arc<Mutex<usize>>);

impl TxQueue for Sent {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        *self.0.lock().unwrap() += count;
        burst.clear();
        count
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Clock ticks that the model's thread has used.
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

#[test]
fn wires_and_notifications_wake() {
    for ring in [0, EVENT_IDX, RING_PACKED, RING_PACKED | EVENT_IDX] {
        let mut driver = Driver::started(ring);
        let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap());
        let (frames, sent) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(Mutex::new(0)));
        let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).unwrap();
        let rx = Box::new(Readable { frames: frames.clone(), event: event.clone(), pool });
        let wire = Queues { rx, tx: Box::new(Sent(sent.clone())) };
        let runner = Runner::spawn(vec![(driver.card.clone(), wire)], None, false);
        let arrive = || {
            let mut frames = frames.lock().unwrap();
            rustix::io::write(&*event, &1u64.to_ne_bytes()).unwrap();
            frames.push_back(any_frame(60));
        };
        // More than there are buffers: from the 33rd on each frame waits for one.
        for i in 1..=60usize {
            std::thread::sleep(Duration::from_millis(if i % 10 == 0 { 20 } else { 1 }));
            arrive();
            if i > 32 {
                std::thread::sleep(Duration::from_millis(1));
                assert_eq!(driver.receive(), None);
                driver.fill(0, 1);
            }
            until("a frame from the wire", || driver.receive().is_some());
            driver.put(1, &[], &any_frame(60));
            driver.notify(1);
            until("a frame from the driver", || *sent.lock().unwrap() == i);
        }
        std::thread::sleep(Duration::from_millis(50));
        let before = ticks();
        std::thread::sleep(Duration::from_millis(300));
        assert!(ticks() - before <= 2, "hundredths of a second awake of thirty");
        drop(runner);
    }
}
