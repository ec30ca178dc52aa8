//! `ringpass model 82599 … -- COMMAND`: software cards under a driver in user space that drives PCI cards itself, such as
//! DPDK's.

mod memory;
mod namespace;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringpass::{Error, QueuePair, WakeSource, Wakeable, Worker};
use ringpass_models::ixgbe::{Card, PolledFunction};

use crate::output::note;
use memory::DriverMemory;
use namespace::{Presented, Started};

/// A command in whose view the cards are PCI devices.
pub struct NativeDriver {
    functions: Vec<Function>,
    shared: Arc<Shared>,
    watcher: JoinHandle<Result<ExitStatus, Error>>,
}

/// State shared by the worker and the watcher.
struct Shared {
    memory: Mutex<DriverMemory>,
    /// The command is to end.
    stop: AtomicBool,
    /// It is to be interrupted at once, as nobody has pressed Ctrl-C.
    interrupt: AtomicBool,
    /// The command has ended.
    ended: AtomicBool,
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, DriverMemory> {
        // The table of mappings is valid at any time.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A card, its files and its wire.
struct Function {
    card: Arc<Card>,
    function: PolledFunction,
    /// Set when its driver has gone.
    gone: Arc<AtomicBool>,
    wire: Option<QueuePair>,
}

/// Times from the end of the run until the command is told to end (SIGTERM), which Ctrl-C may have done already, until it is
/// killed, and until it is no longer waited for.
const GRACE: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(7), Duration::from_secs(12)];
/// Time between two looks at the command and its memory.
const LOOK: Duration = Duration::from_millis(100);

impl NativeDriver {
    /// Starts a command. Its driver finds the cards at PCI addresses that no other device has, which are printed.
    ///
    /// # Errors
    /// Without root, without the kernel's list of PCI devices, or if there is no such command.
    pub fn start(cards: &[Arc<Card>], command: Command) -> Result<Self, Error> {
        let Started { child, cards: presented, namespace } = namespace::start(cards, command)?;
        for (number, card) in presented.iter().enumerate() {
            note(&format!("card {number} is the PCI device {} for the command", card.address));
        }
        let memory =
            DriverMemory::new(namespace, presented.iter().map(|card| card.registers).zip(cards.iter().cloned()));
        let gone = memory.gone();
        let function = |((card, presented), gone): ((&Arc<Card>, Presented), _)| Function {
            card: card.clone(),
            function: presented.function,
            gone,
            wire: None,
        };
        let functions = cards.iter().zip(presented).zip(gone).map(function).collect();
        let shared = Arc::new(Shared {
            memory: Mutex::new(memory),
            stop: AtomicBool::new(false),
            interrupt: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let its = shared.clone();
        let watcher = std::thread::Builder::new().name("command".into()).spawn(move || {
            let status = watch(child, &its);
            its.ended.store(true, Ordering::Release);
            status
        });
        let watcher = watcher.map_err(|source| Error::os("a thread that waits for the command", source))?;
        Ok(Self { functions, shared, watcher })
    }

    /// Attaches the far ends of the cards' wires.
    pub fn attach(&mut self, wires: impl Iterator<Item = Option<QueuePair>>) {
        for (function, wire) in self.functions.iter_mut().zip(wires) {
            function.wire = wire;
        }
    }

    /// Splits this into the cards' work, for a worker, and what waits for the command's end. The worker calls `beside` in each
    /// of its rounds, which returns how many packets it has moved.
    pub fn split(
        self,
        beside: impl FnMut() -> usize + Send + 'static,
    ) -> (impl FnOnce(Worker) + Send + 'static, Running) {
        let Self { functions, shared, watcher } = self;
        let running = Running { shared: shared.clone(), watcher };
        (move |worker| serve(functions, &shared, worker, beside), running)
    }
}

/// A command that has been started.
pub struct Running {
    shared: Arc<Shared>,
    watcher: JoinHandle<Result<ExitStatus, Error>>,
}

impl Running {
    /// Returns whether the command has ended.
    pub fn ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Interrupts the command, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.shared.interrupt.store(true, Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the command's end, which it is told to come to, if it has not.
    ///
    /// # Errors
    /// If it failed by itself.
    pub fn finish(self) -> Result<(), Error> {
        let told = self.shared.stop.swap(true, Ordering::Relaxed);
        let status =
            self.watcher.join().map_err(|_| Error::Fault("waiting for the command failed; see above".into()))??;
        match status.signal() {
            _ if told || status.success() => Ok(()),
            Some(signal) => Err(Error::Fault(format!("the command was ended by signal {signal}"))),
            None => Err(Error::Fault(format!("the command failed, with exit status {}", status.code().unwrap_or(-1)))),
        }
    }
}

/// Watches a command, its memory, and the time that it has left, until it has ended.
fn watch(mut child: Child, shared: &Shared) -> Result<ExitStatus, Error> {
    let (mut told, mut stage) = (None, 0);
    let pid = Pid::from_raw(child.id() as i32);
    loop {
        let waited = child.try_wait().map_err(|source| Error::os("waiting for the command", source))?;
        if let Some(status) = waited {
            // What the command has left behind would drive cards that nobody plays.
            for driver in shared.memory().drivers() {
                let _ = kill(Pid::from_raw(driver as i32), Signal::SIGKILL);
            }
            shared.memory().clear();
            return Ok(status);
        }
        if shared.stop.load(Ordering::Relaxed) {
            let passed = told.get_or_insert_with(Instant::now).elapsed();
            // Nobody else waits for the child, so its number is not used again.
            if shared.interrupt.swap(false, Ordering::Relaxed) {
                let _ = kill(pid, Signal::SIGINT);
            }
            match GRACE.iter().filter(|&&time| passed >= time).count() {
                now if now == std::mem::replace(&mut stage, now) => {}
                1 => _ = kill(pid, Signal::SIGTERM),
                2 => _ = kill(pid, Signal::SIGKILL),
                _ => {
                    return Err(Error::Gone(format!(
                        "the command (process {pid}) does not end, although it was killed"
                    )));
                }
            }
        }
        shared.memory().refresh();
        std::thread::sleep(LOOK);
    }
}

/// Runs the cards until the command has ended. When the worker is told to stop, so is the command, which still needs its cards
/// to end.
fn serve(functions: Vec<Function>, shared: &Shared, mut worker: Worker, mut beside: impl FnMut() -> usize) {
    let mut cards = Cards { functions };
    while !shared.ended.load(Ordering::Acquire) {
        if !worker.running() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let moved: usize = cards.functions.iter_mut().map(|function| function.turn(shared)).sum();
        worker.after(moved + beside(), &mut [&mut cards]);
    }
}

impl Function {
    fn turn(&mut self, shared: &Shared) -> usize {
        if self.gone.swap(false, Ordering::Acquire) {
            self.function.restart();
        }
        self.function.poll(&mut |_| shared.memory().refresh());
        self.wire.as_mut().map_or(0, |wire| self.card.step(wire))
    }
}

/// The cards, which are polled: a driver's writes wake nobody.
struct Cards {
    functions: Vec<Function>,
}

impl Wakeable for Cards {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}
