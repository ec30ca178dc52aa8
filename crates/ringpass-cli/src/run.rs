//! Common parts of subcommands that move packets: workers pinned to CPUs, and the control loop on the main
//! thread.

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass::control::{DEFAULT_SOCKET, Request, Server, WebPlace};
use ringpass::sandbox::{self, Needs, Sandbox};
use ringpass::signals::interrupted;
use ringpass::{Config, Error, Ports, Stats, Totals, Worker, Workers};
use ringpass_ipc::SocketPlace;

use crate::control::{Engine, Watch, answer, event};
use crate::log;
use crate::output::{notice, subcommand};
use crate::run_observer::{Decision, RunObserver};
use crate::signals::{be_impatient, begin_run, catch_first_signal, report_requested};
use crate::stats::{Fields, PortSummary, Printer};
use crate::systemd;

/// Observer of a run that ends with any of its ports.
struct PlainRun<'a>(&'a mut dyn FnMut(&Totals) -> Fields);

impl RunObserver for PlainRun<'_> {
    fn fields(&mut self, totals: &Totals) -> Fields {
        self.0(totals)
    }
}

/// Creates the folder of the default control socket, which exists only since the machine's start, if at all.
fn create_default_folder(socket: &Path) -> Result<(), Error> {
    match Path::new(DEFAULT_SOCKET).parent().filter(|folder| socket.parent() == Some(*folder) && !folder.exists()) {
        Some(folder) => DirBuilder::new()
            .mode(0o755)
            .create(folder)
            .map_err(|source| Error::file(folder.display().to_string(), source)),
        None => Ok(()),
    }
}

/// Closes the ports of a run that has ended, which has finished them and reported what failed.
pub fn close(ports: Ports) {
    let _ = ports.close_and_count();
}

/// A run: its workers, and the loop on the main thread that supervises them and the ports.
pub struct Run {
    /// Configuration of this run.
    pub config: Config,
    /// Printer of the statistics.
    pub printer: Printer,
    /// Lines that describe the sandbox, once it is entered.
    notes: Vec<String>,
    /// Time between lines of statistics.
    interval: Duration,
    workers: Workers,
    /// Sockets by which others look at this run.
    control: Option<Server>,
}

impl Run {
    /// Checks the options, installs signal handlers and raises the limit of file descriptors.
    pub fn new(config: Config, json: bool, interval: Duration) -> Result<Self, Error> {
        if interval.is_zero() {
            return Err(Error::Config("--interval: write a number of seconds above 0".into()));
        }
        let workers = Workers::new(&config)?;
        catch_first_signal()?;
        let limit = ringpass_ipc::raise_descriptor_limit();
        limit.map_err(|source| Error::os("raising the limit of file descriptors", source))?;
        Ok(Self { config, printer: Printer::new(json), notes: Vec::new(), interval, workers, control: None })
    }

    /// Serves these control sockets during the run, one whose clients may change things and one whose clients may not.
    pub fn listen(&mut self, changes: Option<&SocketPlace>, reading: Option<&SocketPlace>) -> Result<(), Error> {
        for (place, changes) in [(changes, true), (reading, false)] {
            if let Some(place) = place {
                create_default_folder(&place.path)?;
                self.server().listen(place, changes)?;
            }
        }
        Ok(())
    }

    /// Serves metrics and the page during the run.
    pub fn show(&mut self, metrics: Option<&str>, web: Option<&WebPlace>) -> Result<(), Error> {
        if let Some(place) = metrics {
            self.server().listen_for_scrapers(place)?;
        }
        if let Some(place) = web {
            let address = self.server().listen_for_browsers(place)?;
            notice(&format!("the page is at http://{address}/"));
        }
        Ok(())
    }

    fn server(&mut self) -> &mut Server {
        self.control.get_or_insert_with(|| Server::new(&format!("ringpass {}", subcommand())))
    }

    /// Takes the sockets of [`listen`](Self::listen), for a program that has its own main loop.
    pub fn take_control(&mut self) -> Option<Server> {
        self.control.take()
    }

    /// Enters the sandbox for good. To be called when all ports are open and before queues are taken, so that
    /// threads start without privileges.
    pub fn enter_sandbox(&mut self, needs: &Needs) -> Result<(), Error> {
        let sandbox = match (self.config.sandbox, &self.control) {
            (Sandbox::Packets, Some(_)) => Sandbox::Server,
            (sandbox, _) => sandbox,
        };
        self.notes = sandbox::enter(sandbox, needs)?;
        Ok(())
    }

    /// Returns lines that describe the sandbox.
    pub fn sandbox_notes(&self) -> &[String] {
        &self.notes
    }

    /// Starts a worker on the next CPU of `--cpu`.
    pub fn spawn(&mut self, work: impl FnOnce(Worker) + Send + 'static) -> Result<(), Error> {
        self.workers.spawn("worker", |worker| {
            work(worker);
            Ok(())
        })
    }

    /// Prints statistics at every interval, and when SIGUSR1 asks for them, until the run ends: by Ctrl-C, `--time`,
    /// `--count`, workers that have finished, an input that has ended, or a port that is gone, which is an error. `more` returns the
    /// subcommand's additions.
    pub fn control(self, ports: &mut Ports, more: &mut dyn FnMut(&Totals) -> Fields) -> Result<(), Error> {
        self.control_with(ports, &mut PlainRun(more))
    }

    /// Runs as [`control`](Self::control) does, with an observer that decides on the ports itself.
    pub fn control_with(mut self, ports: &mut Ports, observer: &mut dyn RunObserver) -> Result<(), Error> {
        begin_run();
        self.printer.start(ports, &self.notes);
        let start = Instant::now();
        let failed = self.until_end(ports, observer).err();
        be_impatient();
        self.workers.stop();
        let elapsed = start.elapsed();
        let joined = self.workers.join();
        let elapsed = observer.duration(elapsed);
        let mut stats: Vec<Stats> = ports.iter_mut().map(|port| port.stats()).collect();
        // Frames handed to a card are still being sent, so Tx counters are read again. Frames that arrive from
        // now on are not counted.
        std::thread::sleep(Workers::TICK);
        for (stats, port) in stats.iter_mut().zip(ports.iter_mut()) {
            let Stats { tx_packets, tx_bytes, tx_drops, .. } = port.stats();
            *stats = Stats { tx_packets, tx_bytes, tx_drops, ..*stats };
        }
        // Finishes every port, even if an earlier one fails.
        let unfinished = ports.iter_mut().filter_map(|port| port.finish().err()).collect::<Vec<_>>().into_iter().next();
        let mut summaries = Vec::new();
        for (index, (port, stats)) in ports.iter_mut().zip(stats).enumerate() {
            let extended = [port.extended(), observer.extended(index)].concat();
            summaries.push(PortSummary { stats, queues: port.queue_stats(), extended });
        }
        let fields = observer.fields(&self.workers.totals(elapsed));
        self.printer.summary(elapsed, ports, summaries, fields);
        // The last write to a capture file is made by its worker as it ends, and may have failed.
        let failed = failed.or_else(|| match observer.check_ports(ports) {
            Decision::Failed(error) => Some(error),
            Decision::Continue | Decision::StopWhenIdle => None,
        });
        failed.or(unfinished).map_or(joined, Err)
    }

    /// Waits until the run is to end. Fails if a port has.
    fn until_end(&mut self, ports: &mut Ports, observer: &mut dyn RunObserver) -> Result<(), Error> {
        let Self { config, workers, printer, interval, control, .. } = self;
        let pool = ports.pool().clone();
        let engine = Engine { config, workers, pool: &pool };
        let mut next = *interval;
        let start = Instant::now();
        let watched = RefCell::new((ports, observer));
        let on_tick = |totals: &Totals| {
            let (ports, observer) = &mut *watched.borrow_mut();
            let elapsed = totals.elapsed;
            log::tell_missing();
            systemd::show_life(Some(engine.workers));
            if elapsed >= next {
                next = next.saturating_add(*interval);
                if next <= elapsed {
                    next = elapsed.saturating_add(*interval);
                }
                let picture = observer.picture(ports);
                printer.live(elapsed, ports, observer.fields(totals), picture);
            }
            if report_requested() {
                let picture = observer.picture(ports);
                printer.report(elapsed, ports, observer.fields(totals), picture);
                observer.report();
                printer.keep_lines();
            }
            match observer.check_ports(ports) {
                Decision::Failed(error) => Err(error),
                Decision::StopWhenIdle => Ok(true),
                Decision::Continue => Ok(false),
            }
        };
        let mut watch = Watch::default();
        engine.workers.supervise_and(interrupted, on_tick, |limit| {
            let Some(control) = control else { return std::thread::sleep(limit) };
            let (ports, observer) = &mut *watched.borrow_mut();
            if control.has_listeners() {
                watch.changes(ports, *observer).iter().for_each(|event| control.publish(event));
            } else {
                // Whoever asks for events gets those from then on.
                watch = Watch::default();
                log::taken();
            }
            let until = Instant::now() + limit;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                let mut changes = Vec::new();
                control.serve(&mut |request, descriptors| {
                    // Orders to software cards are no change of the ports.
                    if !request.is_change() || matches!(request, Request::Step { .. }) {
                        return answer(&request, ports, *observer, engine, start.elapsed());
                    }
                    let changed = observer.change(&request, descriptors, ports)?;
                    changes.push(event(&request));
                    Ok(changed)
                });
                changes.iter().for_each(|change| control.publish(change));
                control.wait(left);
            }
        })
    }
}
