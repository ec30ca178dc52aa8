//! The subcommand `ringpass loadtest A B`: throughput, latency and frame loss of a device under test (RFC 2544).

mod measure;
mod plot;
mod port_worker;
mod report;
mod results;
mod search;
mod trial;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ringpass::{Error, Port, open};

use crate::options::{Options, seconds, within};
use crate::output::note;
use crate::pktgen::frame::{MAX, MIN, random_run};
use crate::pktgen::options::StreamOptions;
use crate::pktgen::rate::{Rate, RequestedRate};
use crate::pktgen::template::Checksums;
use crate::pktgen::{on_link, own_mac};
use crate::progress::progress;
use crate::run::close;
use crate::stats::{fields, grouped, print_line};
use measure::{Frames, Measurement, Method, Test, learn};
use report::Report;
use results::SizeResult;
use trial::{Direction, Trials};

/// Measure throughput, latency and frame loss of a device (RFC 2544)
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port that sends (see 'ringpass --help' for port addresses)
    a: String,
    /// Port that receives [default: A, for a device that sends frames back]
    b: Option<String>,
    /// Send from both ports, each at the same rate
    #[arg(long, requires = "b")]
    both_ways: bool,
    /// Tests to do: throughput, latency at that rate, frame loss by load
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "throughput,latency,loss")]
    tests: Vec<Test>,
    /// Sizes of frames to test, in bytes without the checksum [default: those of RFC 2544:
    /// 60,124,252,508,1020,1276,1514; the first is longer if its headers are]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = within(MIN..=MAX),
        conflicts_with_all = ["size", "imix"]
    )]
    sizes: Vec<usize>,
    /// Highest rate to try, written as that of pktgen: 100k, 2G, 40% [default: the link's speed if known, else as
    /// fast as this machine sends]
    #[arg(long, value_name = "RATE")]
    max_rate: Option<RequestedRate>,
    /// Seconds of a trial; RFC 2544 asks for 60 in reports
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = trial_seconds)]
    trial: Duration,
    /// Longest wait for the last frames of a trial, in seconds; RFC 2544 asks for 2
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = trial_seconds)]
    wait: Duration,
    /// Resolution of the throughput in percent of it
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = resolution)]
    resolution: f64,
    /// Loss that counts as none, in percent; RFC 2544 allows 0
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    loss: f64,
    /// Further trials of a rate at which frames were lost, for machines with other work; RFC 2544 allows none
    #[arg(long, value_name = "N", default_value = "0", value_parser = within(0..=100))]
    retries: usize,
    /// Write a page with tables and plots, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    frames: StreamOptions,
    #[command(flatten)]
    options: Options,
}

/// Sizes of RFC 2544, 9.1, without the checksum.
const SIZES: [usize; 7] = [60, 124, 252, 508, 1020, 1276, 1514];

const EXAMPLES: &str = "EXAMPLES:
  a switch between two cards, in trials as long as RFC 2544 asks for:
      sudo ringpass loadtest 0000:01:00.0 0000:01:00.1 --trial 60 --wait 2
  frames of 60 and 1514 bytes at up to 100,000 a second, in five seconds each or so:
      sudo ringpass loadtest packet:veth0 packet:veth1 --sizes 60,1514 --max-rate 100k --trial 0.5 --report report.html
  a router whose address is 02:00:00:00:00:01, throughput only, 64 flows:
      sudo ringpass loadtest tap:a tap:b --dst-mac 02:00:00:00:00:01 --tests throughput --flows 64
  a peer that sends frames back ('ringpass echo'), where one in 1000 may be lost:
      sudo ringpass loadtest 0000:01:00.0 --loss 0.1 --json";

fn trial_seconds(text: &str) -> Result<Duration, String> {
    let time = seconds(text).ok().filter(|time| (0.001..=86400.0).contains(&time.as_secs_f64()));
    time.ok_or_else(|| "write a number of seconds, 0.001 to 86400".into())
}

fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..100.0).contains(value));
    value.ok_or_else(|| "write a number of percent, 0 or more and below 100".into())
}

fn resolution(text: &str) -> Result<f64, String> {
    let value = percent(text).ok().filter(|value| (0.01..=50.0).contains(value));
    value.ok_or_else(|| "write a number of percent, 0.01 to 50".into())
}

/// Results of the run.
#[derive(Default)]
struct Findings {
    /// Whether each result is printed as JSON at once.
    json: bool,
    results: Vec<SizeResult>,
    /// Whether all sizes were measured.
    complete: bool,
    error: Option<Error>,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if args.options.queues > 1 {
        return Err(Error::Config("a load test has one queue for each port; leave out --queues".into()));
    }
    if args.both_ways && args.b.as_ref() == Some(&args.a) {
        return Err(Error::Config("--both-ways is between two ports, and both are the same".into()));
    }
    if args.both_ways && args.frames.has_own_destination() {
        return Err(Error::Config(
            "--both-ways sends to the ports' own addresses, which a router does not take; leave out --dst-mac, or measure one way after the other"
                .into(),
        ));
    }
    // Known before the sandbox is entered.
    let first_run = random_run();
    let mut run = args.options.run()?;
    let other = args.b.as_ref().filter(|b| **b != args.a);
    let mut ports = open([&args.a].into_iter().chain(other), &run.config)?;
    let directions = args.directions(ports.len());
    let method = args.method(&mut ports)?;
    let sizes = args.in_sizes(&directions, &mut ports)?;
    let (json, all) = (args.options.json, sizes.len());
    let report = args.report.as_deref().map(Report::create).transpose()?;
    run.printer.live = false;
    run.enter_sandbox(ports.needs())?;
    let mut orders = Vec::new();
    for mut queues in ports.take_queues() {
        let (to, from) = mpsc::channel();
        let queues = queues.remove(0);
        orders.push(to);
        run.spawn(move |worker| port_worker::work(queues, &from, worker))?;
    }
    let findings = Arc::new(Mutex::new(Findings { json, ..Findings::default() }));
    let (found, pool) = (findings.clone(), ports.pool().clone());
    let wait = args.wait;
    run.spawn(move |worker| {
        let trials = Trials { orders, pool, wait, run: first_run, learnt: Instant::now(), worker };
        measure_all(trials, &method, &sizes, &found);
        progress("");
    })?;
    let end = run.control(&mut ports, &mut |_| fields([("complete", lock(&findings).complete.into())]));
    let overruns = directions.iter().filter_map(|direction| overrun(&mut *ports[direction.to])).collect::<Vec<_>>();
    let names: Vec<String> = ports.iter().map(|port| port.name().to_owned()).collect();
    close(ports);
    let Findings { results, complete, error, .. } = std::mem::take(&mut *lock(&findings));
    if !json {
        results::print(&results);
    }
    let overrun = (!overruns.is_empty()).then(|| {
        let lost = overruns.join(", ");
        format!("Frames that this machine lost after the device had passed them: {lost}; the device may do better; see --rxd and --cpu.")
    });
    let facts: Vec<String> = args.facts(&names, complete).into_iter().chain(overrun.clone()).collect();
    let written = report.map(|report| report.write(&results, &facts));
    if let Some(error) = error {
        return end.and(Err(error));
    }
    overrun.iter().for_each(|overrun| note(overrun));
    if !complete {
        let whole = results.iter().filter(|result| result.complete).count();
        note(&format!("ended before all was measured: {whole} of {all} sizes are complete"));
    }
    end.and(written.unwrap_or(Ok(())))
}

/// Returns a port's name and how many frames it had no room for, if there were any.
fn overrun(port: &mut dyn Port) -> Option<String> {
    let drops = port.stats().rx_drops;
    (drops > 0).then(|| format!("{} {}", port.name(), grouped(drops)))
}

fn lock(findings: &Mutex<Findings>) -> MutexGuard<'_, Findings> {
    findings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Args {
    /// Returns lines that say what was measured, and how.
    fn facts(&self, names: &[String], complete: bool) -> Vec<String> {
        let way = if self.both_ways { " in both directions" } else { "" };
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        let mut facts = vec![
            format!(
                "Between {}{way}, by ringpass loadtest {}, after RFC 2544.",
                names.join(" and "),
                env!("CARGO_PKG_VERSION")
            ),
            format!(
                "Trials of {}; last frames were waited for up to {}. The throughput is the highest rate with a loss of at most {} %, \
                to {} % of it.",
                seconds(self.trial),
                seconds(self.wait),
                self.loss,
                self.resolution
            ),
        ];
        if !complete {
            facts.push("Ended before all was measured.".into());
        }
        facts
    }

    fn directions(&self, ports: usize) -> Vec<Direction> {
        let there = Direction { from: 0, to: ports - 1 };
        if self.both_ways && ports > 1 { vec![there, Direction { from: 1, to: 0 }] } else { vec![there] }
    }

    fn method(&self, ports: &mut [Box<dyn Port>]) -> Result<Method, Error> {
        let senders = if self.both_ways { ports.len() } else { 1 };
        let speeds = ports[..senders].iter_mut().map(|port| port.link().mbps);
        let line = speeds.min().filter(|&mbps| mbps > 0).map(|mbps| f64::from(mbps) * 1e6);
        let max = match self.max_rate {
            Some(rate) => on_link(rate, &mut *ports[0])?,
            None => line.map_or(Rate::Max, Rate::Wire),
        };
        let (resolution, loss) = (self.resolution / 100.0, self.loss);
        let Self { trial: time, retries, .. } = *self;
        let learns = !self.frames.has_own_destination();
        Ok(Method { tests: self.tests.clone(), max, line, time, resolution, loss, retries, learns })
    }

    /// Returns what is sent, size by size.
    fn in_sizes(&self, directions: &[Direction], ports: &mut [Box<dyn Port>]) -> Result<Vec<Frames>, Error> {
        let own = own_mac(&*ports[0]);
        let checksums = Checksums::with(self.options.offloads);
        let mut all = Vec::new();
        let shortest = self.frames.ends(own, 0)?.shortest();
        let default = || SIZES.iter().map(|&size| size.max(shortest)).collect();
        let sizes = if self.sizes.is_empty() { default() } else { self.sizes.clone() };
        for options in self.frames.in_sizes(&sizes) {
            let ends = options.ends(own, 0)?;
            let mut plans = Vec::new();
            for &direction in directions {
                let ends = if direction.from == 0 { ends } else { ends.reversed() };
                let plan = options.plan(&ends, 1, self.options.mtu, checksums, Instant::now())?;
                plans.push((direction, plan));
            }
            let sizes = options.sizes(&ends);
            all.push(Frames { size: sizes.iter().sum::<usize>() as f64 / sizes.len() as f64, plans });
        }
        Ok(all)
    }
}

/// Measures size by size, until the run ends.
fn measure_all(mut trials: Trials, method: &Method, sizes: &[Frames], findings: &Mutex<Findings>) {
    let Some(is_connected) = connect(&mut trials, &sizes[0], method.learns) else { return };
    if !is_connected {
        let why = "no frame came back; connect both ports to the device, name --dst-mac if it is a router, and wait \
            until a switch forwards (spanning tree: 30 s)";
        lock(findings).error = Some(Error::Gone(why.into()));
        return;
    }
    for frames in sizes {
        let result = SizeResult::new(frames.size);
        let mut measurement = Measurement { method, trials: &mut trials, frames, result, has_sent_nothing: false };
        let end = measurement.run();
        // Without the first trial there is nothing to tell.
        if measurement.result.trials > 1 || end.is_some() {
            if lock(findings).json {
                print_line(&serde_json::to_string(&measurement.result).expect("strings and numbers"));
            }
            lock(findings).results.push(measurement.result);
        }
        if measurement.has_sent_nothing {
            let why = "no frame was sent in a whole trial; lengthen --trial, raise --max-rate, or look at the link";
            lock(findings).error = Some(Error::Gone(why.into()));
        }
        if end.is_none() {
            return;
        }
    }
    lock(findings).complete = true;
}

/// Sends a few frames, the other way too if switches are to learn from them where the ports are, until all directions have passed
/// some. Returns whether they have; `None` if the run is to end.
fn connect(trials: &mut Trials, frames: &Frames, learns: bool) -> Option<bool> {
    const TRIES: usize = 10;
    const RATE: Rate = Rate::Packets(100.0);
    const TIME: Duration = Duration::from_millis(100);
    for _ in 0..TRIES {
        progress("looking for the device");
        if learns {
            learn(trials, frames)?;
        }
        let mut passed = 0;
        for (direction, plan) in &frames.plans {
            let outcome = trials.run(&[(*direction, plan.clone())], RATE, TIME)?;
            passed += usize::from(outcome.numbers.returned > 0);
        }
        if passed == frames.plans.len() {
            return Some(true);
        }
    }
    Some(false)
}
