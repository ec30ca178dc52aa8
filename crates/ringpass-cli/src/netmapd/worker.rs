//! Threads of switches and of ports in netmap mode.

use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use ringpass::{Config, Error, WakeSource, Wakeable, Workers};
use ringpass_ipc::{WakeFd, drop_elsewhere};
use ringpass_netmap_server::RequestError;
use ringpass_switch::Datapath;
use rustix::io::Errno;

/// Returns the largest number of packets moved at a time: at least 256, because programs send in long runs.
pub fn batch(config: &Config) -> usize {
    config.batch.max(256)
}

/// Starts a thread that calls `round` again and again, which moves packets and returns how many. It runs on the CPU `number`, modulo
/// their count, of the CPUs in the config, and ends when the result is dropped.
pub fn spawn<T: Wakeable + Send + 'static>(
    name: &str,
    number: usize,
    config: &Config,
    mut what: T,
    round: fn(&mut T) -> usize,
) -> Result<Workers, RequestError> {
    let failed = |error: Error| RequestError::new(Errno::AGAIN, error);
    let cpu = config.cpu.get(number % config.cpu.len().max(1)).copied().into_iter().collect();
    let mut workers = Workers::new(&Config { cpu, count: None, ..config.clone() }).map_err(failed)?;
    let run = workers.spawn(name, move |mut worker| {
        while worker.running() {
            let moved = round(&mut what);
            worker.after(moved, &mut [&mut what]);
        }
        Ok(())
    });
    run.map_err(failed)?;
    Ok(workers)
}

/// Threads that serve switches: at most one for each CPU, and none without a switch.
pub struct SwitchWorkers {
    config: Config,
    /// Threads that may run, by the number that selects the CPU.
    workers: Vec<Weak<SwitchWorker>>,
}

/// A thread that serves some switches. It ends when this is dropped.
pub struct SwitchWorker {
    orders: Sender<Order>,
    wake: Arc<WakeFd>,
    workers: Workers,
}

/// An order to a thread, carried out at the start of its next round.
enum Order {
    /// Serve a switch, which has this number.
    Serve(u64, Box<Datapath>),
    /// Serve it no more.
    Leave(u64),
    /// Say that the round before has ended.
    Settle(Sender<()>),
}

impl SwitchWorkers {
    /// Creates the set. There are as many threads as `config` names CPUs, or as this process may run on.
    pub fn new(config: Config) -> Self {
        let cpus = match config.cpu.len() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            named => named,
        };
        Self { config, workers: (0..cpus).map(|_| Weak::new()).collect() }
    }

    /// Has the thread with the fewest switches serve this one, which gets a number that no other has.
    pub fn serve(&mut self, switch: u64, datapath: Box<Datapath>) -> Result<Rc<SwitchWorker>, RequestError> {
        let number = (0..self.workers.len()).min_by_key(|&number| self.workers[number].strong_count());
        let number = number.expect("a machine has a CPU");
        let worker = match self.workers[number].upgrade() {
            Some(worker) => worker,
            None => Rc::new(SwitchWorker::new(number, &self.config)?),
        };
        self.workers[number] = Rc::downgrade(&worker);
        worker.order(Order::Serve(switch, datapath));
        Ok(worker)
    }
}

impl SwitchWorker {
    fn new(number: usize, config: &Config) -> Result<Self, RequestError> {
        let failed = |error| RequestError::new(Errno::MFILE, Error::os("an eventfd for a switch's thread", error));
        let (orders, receiver) = channel();
        let wake = Arc::new(WakeFd::new().map_err(failed)?);
        let served = ServedSwitches { datapaths: Vec::new(), orders: receiver, wake: wake.clone(), armed: false };
        let workers = spawn("vale", number, config, served, ServedSwitches::round)?;
        Ok(Self { orders, wake, workers })
    }

    /// Stops serving a switch.
    pub fn leave(&self, switch: u64) {
        self.order(Order::Leave(switch));
    }

    /// Waits for the end of a round that has begun.
    pub fn settle(&self, until: Instant) {
        let (done, waits) = channel();
        self.order(Order::Settle(done));
        let _ = waits.recv_timeout(until.saturating_duration_since(Instant::now()));
    }

    fn order(&self, order: Order) {
        // If the thread has panicked, nobody takes the order.
        let _ = self.orders.send(order);
        self.wake.wake();
    }
}

impl Drop for SwitchWorker {
    fn drop(&mut self) {
        self.workers.stop();
        self.wake.wake();
    }
}

/// The switches that one thread serves in turn.
struct ServedSwitches {
    datapaths: Vec<(u64, Box<Datapath>)>,
    orders: Receiver<Order>,
    wake: Arc<WakeFd>,
    /// Set while the datapaths are armed.
    armed: bool,
}

impl ServedSwitches {
    fn round(&mut self) -> usize {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Serve(switch, mut datapath) => {
                    // This round may be the one between arming and sleeping.
                    if self.armed {
                        datapath.arm();
                    }
                    self.datapaths.push((switch, datapath));
                }
                // Who asked may have given up.
                Order::Settle(done) => drop(done.send(())),
                Order::Leave(switch) => {
                    let left: Vec<_> = self.datapaths.extract_if(.., |(number, _)| *number == switch).collect();
                    drop_elsewhere(left);
                }
            }
        }
        self.datapaths.iter_mut().map(|(_, datapath)| datapath.round()).sum()
    }
}

impl Drop for ServedSwitches {
    /// The serving thread waits for the end of this one, and not for cards that do not stop.
    fn drop(&mut self) {
        drop_elsewhere(std::mem::take(&mut self.datapaths));
    }
}

impl Wakeable for ServedSwitches {
    fn arm(&mut self) {
        self.armed = true;
        self.datapaths.iter_mut().for_each(|(_, datapath)| datapath.arm());
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.wake.clear();
        self.datapaths.iter_mut().for_each(|(_, datapath)| datapath.disarm());
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Readable(self.wake.as_fd()));
        self.datapaths.iter().for_each(|(_, datapath)| datapath.wake_sources(each));
    }
}
