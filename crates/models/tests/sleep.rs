//! A model without work sleeps, and is woken by all that brings some. Alone in its process, for its thread's name.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringpass_bus::{Bus, Waiter};
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_models::Runner;
use ringpass_port::{Queues, RxQueue, TxQueue, Wake, Wakeable};
use ringpass_registers::ixgbe::bits::*;
use ringpass_registers::ixgbe::*;
use rustix::event::{EventfdFlags, eventfd};

use driver::{Driver, frame, own_mac};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "ixgbe/driver.rs"]
mod driver;

/// A wire that becomes readable when frames come.
struct Wire {
    frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    event: Arc<OwnedFd>,
    pool: Mempool,
}

impl Wakeable for Wire {
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Readable(self.event.as_fd()));
    }
}

impl RxQueue for Wire {
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

/// Clock ticks that the model's thread has used, by its name.
fn ticks(thread: &str) -> u64 {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        if stat.contains(&format!("({thread})")) {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            return fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    panic!("no thread {thread}")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_model_sleeps_until_something_wakes_it() {
    let mut driver = Driver::started();
    let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap());
    let (frames, sent) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(Mutex::new(0)));
    let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).unwrap();
    let rx = Box::new(Wire { frames: frames.clone(), event: event.clone(), pool });
    let wire = Queues { rx, tx: Box::new(Sent(sent.clone())) };
    let [heard] = <[Waiter; 1]>::try_from(driver.card.interrupts(1).unwrap()).unwrap();
    driver.window.write(GPIE, GPIE_MSIX_MODE | GPIE_EIAME);
    driver.window.write(EIAC, 0xffff);
    driver.window.write(EITR.at(0), 0x1f8);
    driver.window.write(IVAR.at(0), 0x8080);
    let runner = Runner::spawn(vec![(driver.card.clone(), wire)], None, false);
    let arrive = || {
        let mut frames = frames.lock().unwrap();
        rustix::io::write(&*event, &1u64.to_ne_bytes()).unwrap();
        frames.push_back(frame(own_mac(), 60));
    };
    for i in 1..=20usize {
        std::thread::sleep(Duration::from_millis(if i % 5 == 0 { 20 } else { 1 }));
        driver.window.write(EIMS, 1);
        // The wire.
        arrive();
        until("a frame from the wire", || driver.receive(0).is_some());
        // A doorbell.
        driver.put(0, &frame(own_mac(), 60), descriptor::TX_EOP | descriptor::TX_IFCS | descriptor::TX_RS, 60);
        driver.window.doorbell(TDT.at(0)).ring(i as u32 % 64);
        until("a frame from the driver", || *sent.lock().unwrap() == i);
        // A throttled interrupt, after its interval.
        driver.window.write(EIMS, 1);
        until("an interrupt", || rustix::io::read(heard.event(), &mut [0; 8]).is_ok());
    }
    // A wire that nobody listens to does not wake either.
    driver.window.write(RXCTRL, 0);
    arrive();
    std::thread::sleep(Duration::from_millis(50));
    let before = ticks("models");
    std::thread::sleep(Duration::from_millis(500));
    assert!(ticks("models") - before <= 2, "hundredths of a second awake of fifty");
    // The register that turns the receiver on wakes.
    driver.window.write(RXCTRL, RXCTRL_RXEN);
    until("the frame that waited", || driver.receive(0).is_some());
    drop(runner);
}
