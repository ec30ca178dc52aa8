//! What subcommands that move packets share: workers on their cores, and the loop that watches over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_port::{Error, Port, State, Stats};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::options::Options;
use crate::sandbox::{self, Sandbox};
use crate::stats::{Fields, Printer};
use crate::worker::{Shared, Tally, Totals, Worker};

/// Ctrl-C or SIGTERM has come, or nobody reads the output any more.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends the run as Ctrl-C does.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Workers, and the loop on the main thread that watches over them and the ports.
pub struct Run {
    /// Options of this run.
    pub options: Options,
    /// Where statistics are printed.
    pub printer: Printer,
    /// What the sandbox has to say.
    sandbox: Vec<String>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    tallies: Vec<Arc<Tally>>,
}

impl Run {
    /// How often ports are asked for their state.
    const TICK: Duration = Duration::from_millis(50);
    /// After the end of an input, how long nothing must move for all in flight to have arrived.
    const QUIET: Duration = Duration::from_millis(200);

    /// Checks the options and takes Ctrl-C.
    pub fn new(options: Options) -> Result<Self, Error> {
        let cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        if let Some(cpu) = options.cpu.iter().find(|cpu| !cpus.contains(cpu)) {
            return Err(Error::Other(format!("--cpu {cpu}: this process may run on CPUs {cpus:?} only")));
        }
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the second one ends at once. Without a thread, which would miss the sandbox.
            let taken = flag::register_conditional_shutdown(signal, 130, &INTERRUPTED);
            taken
                .and_then(|_| flag::register(signal, &INTERRUPTED))
                .map_err(|source| Error::Os { what: "taking Ctrl-C".into(), source })?;
        }
        let printer = Printer::new(options.json);
        let (sandbox, shared, threads, tallies) = Default::default();
        Ok(Self { options, printer, sandbox, shared, threads, tallies })
    }

    /// To be called when all is open, before queues are taken: what runs then runs without privileges.
    pub fn enter_sandbox(&mut self) -> Result<(), Error> {
        self.enter_sandbox_as(self.options.sandbox())
    }

    /// As [`enter_sandbox`](Self::enter_sandbox), with another sandbox than the options'.
    pub fn enter_sandbox_as(&mut self, sandbox: Sandbox) -> Result<(), Error> {
        self.sandbox = sandbox::enter(sandbox)?;
        Ok(())
    }

    /// Starts a worker, on the next CPU of `--cpu`.
    pub fn spawn(&mut self, work: impl FnOnce(Worker) + Send + 'static) {
        let options = &self.options;
        let index = self.threads.len();
        let cpu = (!options.cpu.is_empty()).then(|| options.cpu[index % options.cpu.len()]);
        let (worker, tally) = Worker::new(options, &self.shared);
        let body = move || {
            if let Some(id) = cpu.filter(|&id| !core_affinity::set_for_current(core_affinity::CoreId { id })) {
                eprintln!("worker {index} could not be pinned to CPU {id}");
            }
            work(worker);
        };
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(body);
        self.threads.push(thread.expect("the system has a thread for each worker"));
        self.tallies.push(tally);
    }

    /// Prints statistics every second until the run ends: by Ctrl-C, `--time`, `--count`, workers that have finished,
    /// an input that has ended, or a port that is gone, which is an error. `more` gives what the subcommand adds.
    pub fn control(
        mut self,
        ports: &mut [Box<dyn Port>],
        more: &mut dyn FnMut(&Totals) -> Fields,
    ) -> Result<(), Error> {
        self.printer.start(ports, &self.sandbox);
        let start = Instant::now();
        let gone = self.watch(start, ports, more);
        self.shared.stop();
        let elapsed = start.elapsed();
        let ends: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        let mut stats: Vec<Stats> = ports.iter_mut().map(|port| port.stats()).collect();
        // What was handed to a card still leaves it; what arrives now is nobody's any more.
        std::thread::sleep(Self::TICK);
        for (stats, port) in stats.iter_mut().zip(ports.iter_mut()) {
            let Stats { tx_packets, tx_bytes, tx_drops, .. } = port.stats();
            *stats = Stats { tx_packets, tx_bytes, tx_drops, ..*stats };
        }
        self.printer.summary(elapsed, ports, &stats, more(&Totals::of(&self.tallies)));
        // A capture file is written to the end by its worker's last act, which may have failed.
        match gone.or_else(|| ports.iter_mut().find_map(|port| fault(&mut **port, &mut false))) {
            Some(error) => Err(error),
            None if ends.iter().any(|end| end.is_err()) => Err(Error::Other("a worker failed; see above".into())),
            None => Ok(()),
        }
    }

    /// Returns when the run is to end, with the reason if that is a port's fault.
    fn watch(
        &mut self,
        start: Instant,
        ports: &mut [Box<dyn Port>],
        more: &mut dyn FnMut(&Totals) -> Fields,
    ) -> Option<Error> {
        let (mut second, mut moved, mut quiet_since) = (Duration::from_secs(1), 0, start);
        loop {
            let elapsed = start.elapsed();
            let left = self.options.time.map_or(Self::TICK, |time| time.saturating_sub(elapsed));
            let stopped = INTERRUPTED.load(Ordering::Relaxed) || self.shared.stopped();
            if left.is_zero() || stopped || self.threads.iter().all(JoinHandle::is_finished) {
                return None;
            }
            let totals = Totals::of(&self.tallies);
            if std::mem::replace(&mut moved, totals.moved) != totals.moved {
                quiet_since = Instant::now();
            }
            if elapsed >= second {
                second += Duration::from_secs(1);
                self.printer.live(elapsed, ports, more(&totals));
            }
            let mut finished = false;
            let fault = ports.iter_mut().find_map(|port| fault(&mut **port, &mut finished));
            if fault.is_some() {
                return fault;
            }
            if finished && quiet_since.elapsed() > Self::QUIET {
                return None;
            }
            std::thread::sleep(left.min(Self::TICK));
        }
    }
}

/// Why a port has failed, if it has. Notes whether its input has ended.
fn fault(port: &mut dyn Port, finished: &mut bool) -> Option<Error> {
    match port.state() {
        State::Running => None,
        State::Finished => {
            *finished = true;
            None
        }
        State::Gone(why) if why.starts_with(port.name()) => Some(Error::Other(why)),
        State::Gone(why) => Some(Error::Other(format!("{}: {why}", port.name()))),
    }
}
