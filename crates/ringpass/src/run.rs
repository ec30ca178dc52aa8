//! What subcommands that move packets share: workers on their cores, and the loop that watches over them.

use std::io;
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

/// Whether Ctrl-C or the like has come.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// From now on Ctrl-C and the like do not end the process, but are noticed.
pub fn notice_interrupts() -> Result<(), Error> {
    SIGNALS.iter().try_for_each(|&signal| flag::register(signal, &INTERRUPTED).map(drop)).map_err(taking)
}

fn taking(source: io::Error) -> Error {
    Error::Os { what: "taking Ctrl-C".into(), source }
}

/// What a subcommand has a say in while its run goes on.
pub trait Watch {
    /// What it adds to the statistics of all ports.
    fn fields(&mut self, totals: &Totals) -> Fields;

    /// What it adds to those of one port in the summary.
    fn extended(&self, port: usize) -> Vec<(&'static str, u64)> {
        let _ = port;
        Vec::new()
    }

    /// Looks at the ports, some times a second: whether the run goes on.
    fn look(&mut self, ports: &mut [Box<dyn Port>]) -> Verdict {
        let mut finished = false;
        match ports.iter_mut().find_map(|port| fault(&mut **port, &mut finished)) {
            Some(error) => Verdict::Failed(error),
            None if finished => Verdict::EndWhenQuiet,
            None => Verdict::GoOn,
        }
    }
}

/// Whether a run goes on.
pub enum Verdict {
    /// It does.
    GoOn,
    /// An input has ended: until all that is in flight has arrived.
    EndWhenQuiet,
    /// It cannot.
    Failed(Error),
}

/// A run that ends with any of its ports.
struct Plain<'a>(&'a mut dyn FnMut(&Totals) -> Fields);

impl Watch for Plain<'_> {
    fn fields(&mut self, totals: &Totals) -> Fields {
        self.0(totals)
    }
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
    /// After the end of an input, at how many looks in a row nothing must have moved for all in flight to have arrived.
    /// Looks, as all may stand still for a while on a busy machine, this thread too.
    const QUIET: u32 = 6;

    /// Checks the options and takes Ctrl-C.
    pub fn new(options: Options) -> Result<Self, Error> {
        let cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        if let Some(cpu) = options.cpu.iter().find(|cpu| !cpus.contains(cpu)) {
            return Err(Error::Other(format!("--cpu {cpu}: this process may run on CPUs {cpus:?} only")));
        }
        // In this order: the second one ends at once. Without a thread, which would miss the sandbox.
        for signal in SIGNALS {
            flag::register_conditional_shutdown(signal, 130, &INTERRUPTED).map_err(taking)?;
        }
        notice_interrupts()?;
        let limit = ringpass_peer::raise_descriptor_limit();
        limit.map_err(|source| Error::Os { what: "raising the limit of file descriptors".into(), source })?;
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

    /// What the sandbox has to say.
    pub fn sandbox_notes(&self) -> &[String] {
        &self.sandbox
    }

    /// Starts a worker, on the next CPU of `--cpu`.
    pub fn spawn(&mut self, work: impl FnOnce(Worker) + Send + 'static) {
        let options = &self.options;
        let index = self.threads.len();
        let cpu = (!options.cpu.is_empty()).then(|| options.cpu[index % options.cpu.len()]);
        let (worker, tally) = Worker::new(options, &self.shared);
        let body = move || {
            if let Some(id) = cpu.filter(|&id| !core_affinity::set_for_current(core_affinity::CoreId { id })) {
                errln!("worker {index} could not be pinned to CPU {id}");
            }
            work(worker);
        };
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(body);
        self.threads.push(thread.expect("the system has a thread for each worker"));
        self.tallies.push(tally);
    }

    /// Prints statistics every second until the run ends: by Ctrl-C, `--time`, `--count`, workers that have finished,
    /// an input that has ended, or a port that is gone, which is an error. `more` gives what the subcommand adds.
    pub fn control(self, ports: &mut [Box<dyn Port>], more: &mut dyn FnMut(&Totals) -> Fields) -> Result<(), Error> {
        self.control_with(ports, &mut Plain(more))
    }

    /// As [`control`](Self::control), for a subcommand that judges its ports itself.
    pub fn control_with(mut self, ports: &mut [Box<dyn Port>], watch: &mut dyn Watch) -> Result<(), Error> {
        self.printer.start(ports, &self.sandbox);
        let start = Instant::now();
        let failed = self.until_end(start, ports, watch);
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
        // All of them, whatever the first one says.
        let unfinished = ports.iter_mut().filter_map(|port| port.finish().err()).collect::<Vec<_>>().into_iter().next();
        let extended =
            ports.iter_mut().enumerate().map(|(index, port)| [port.extended(), watch.extended(index)].concat());
        let extended = extended.collect();
        let fields = watch.fields(&Totals::of(&self.tallies, elapsed));
        self.printer.summary(elapsed, ports, &stats, extended, fields);
        // A capture file is written to the end by its worker's last act, which may have failed.
        let failed = failed.or_else(|| match watch.look(ports) {
            Verdict::Failed(error) => Some(error),
            Verdict::GoOn | Verdict::EndWhenQuiet => None,
        });
        match failed.or(unfinished) {
            Some(error) => Err(error),
            None if ends.iter().any(|end| end.is_err()) => Err(Error::Other("a worker failed; see above".into())),
            None => Ok(()),
        }
    }

    /// Returns when the run is to end, with the reason if it has failed.
    fn until_end(&mut self, start: Instant, ports: &mut [Box<dyn Port>], watch: &mut dyn Watch) -> Option<Error> {
        let (mut second, mut moved, mut quiet) = (Duration::from_secs(1), 0, 0);
        loop {
            let elapsed = start.elapsed();
            let left = self.options.time.map_or(Self::TICK, |time| time.saturating_sub(elapsed));
            let stopped = INTERRUPTED.load(Ordering::Relaxed) || self.shared.stopped();
            if left.is_zero() || stopped || self.threads.iter().all(JoinHandle::is_finished) {
                return None;
            }
            let totals = Totals::of(&self.tallies, elapsed);
            quiet = if std::mem::replace(&mut moved, totals.moved) == totals.moved { quiet + 1 } else { 0 };
            if elapsed >= second {
                second += Duration::from_secs(1);
                self.printer.live(elapsed, ports, watch.fields(&totals));
            }
            match watch.look(ports) {
                Verdict::Failed(error) => return Some(error),
                Verdict::EndWhenQuiet if quiet > Self::QUIET => return None,
                Verdict::EndWhenQuiet | Verdict::GoOn => {}
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
