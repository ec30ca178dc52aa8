//! The benchmark `ringpass bench netmap`: pipes and VALE switches between processes and guests, as in the
//! ptnetmap paper.

pub mod end;
mod eventfd;
mod guests;
mod paper;
mod report;
mod rig;
mod sync_loop;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpass::Error;
use serde::Serialize;

use self::end::EndReport;
use self::guests::GuestCase;
use self::rig::Rig;
use self::sync_loop::Syncs;
use super::cores::{core_to_core_cycles, distance_during};
use super::folder::TempDir;
use super::process::Process;
use super::progress::progress;
use super::{cores, cpu};
use ringpass::signals::{self, interrupted};
use ringpass_cli::options::{latency_budget, seconds, within};

/// Pipes and VALE switches between processes and guests: throughput, round trips, wake-ups, compared with the
/// ptnetmap paper
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Experiments: throughput (figures 6, 7), queues (8), cascade (11), rtt (table 1), load, sync-loop (a loop that
    /// synchronises the rings, beside none); and guests (6, 7), which needs root and 'make lab'
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "throughput,queues,cascade,rtt,load,sync-loop"
    )]
    only: Vec<Experiment>,
    /// Connections: pipe, vale
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "pipe,vale")]
    what: Vec<Medium>,
    /// Slots released together
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64,256,1024")]
    batch: Vec<u32>,
    /// Rounds; each round measures every case once
    #[arg(long, value_name = "N", default_value = "5", value_parser = within(1..=1000))]
    rounds: usize,
    /// Length of each measurement; four times as long with guests
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    seconds: Duration,
    /// Latency that each side may add so that frames collect, in microseconds, where the CPU time is measured against load
    #[arg(long, value_name = "MICROSECONDS", default_value = "50", value_parser = latency_budget)]
    latency_budget: Duration,
    /// The two CPUs [default: the first two]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Write plots as SVG into this folder
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// Print a JSON object for each row
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench netmap                                 all of it from host to host, some five minutes
  ringpass bench netmap --only rtt                      round trips, beside this machine's own eventfds
  ringpass bench netmap --only throughput --svg plots --json
  ringpass bench netmap --only guests --batch 1,32,256  guests under QEMU, beside the kernel's virtio-net";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    Throughput,
    Queues,
    Cascade,
    Rtt,
    Load,
    SyncLoop,
    Guests,
}

/// Connection between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    Pipe,
    Vale,
}

impl Medium {
    /// Returns the ports of both ends.
    fn ports(self) -> [&'static str; 2] {
        match self {
            Self::Pipe => ["netmap:bench{1", "netmap:bench}1"],
            Self::Vale => ["vale0:first", "vale0:second"],
        }
    }
}

/// A measurement. A row of the results has the medians over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "experiment", rename_all = "lowercase")]
pub enum Case {
    Throughput { what: Medium, batch: u32, slots: usize },
    Queues { what: Medium, batch: u32, slots: usize },
    Cascade { bridges: usize, copy: bool },
    Rtt { what: Medium, mode: Mode },
    Load { what: Medium, rate: f64 },
    SyncLoop { syncs: Syncs, batch: u32 },
    Guests(GuestCase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Both ends poll and never sleep.
    Busy,
    /// Both ends sleep at once.
    Blocking,
    /// Both ends spin for a while before they sleep, which is the default.
    Adaptive,
}

/// Results of one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Millions of received frames a second.
    pub mpps: f64,
    /// Kicks of a program or a switch per million frames.
    pub rung_per_million: f64,
    /// CPU time of the serving process per frame, in ns.
    pub worker_ns: f64,
    /// Whether a process reports less CPU time than its frames take at the very least. The CPU times of such a
    /// sample are not used.
    pub impossible: bool,
    /// CPUs kept busy by the sender, the receiver and the serving process together.
    pub cpu: f64,
    /// CPUs kept busy without the sender.
    pub receiving_cpu: f64,
    /// Shortest, average and median round trip in µs.
    pub rtt: [f64; 3],
    /// Shortest and average round trip by eventfds at the same time, in µs.
    pub eventfd: [f64; 2],
    /// Kicks per million packets, of the guest that has most.
    pub kicks_per_million: f64,
    pub interrupts_per_million: f64,
    /// Distance of the cores meanwhile.
    pub distance: &'static str,
}

impl Case {
    /// Returns whether a switch's worker shares a core with the sender, as in netmap, and does not have one to
    /// itself. A sender that is slower than the worker never waits. If the worker shared the receiver's core,
    /// it would take CPU time from it while frames are dropped.
    fn worker_beside_sender(&self) -> bool {
        matches!(self, Self::Throughput { what: Medium::Vale, batch: 1, .. })
    }

    /// Returns the core of the receiving end; 0 is the sender's.
    fn receiver(&self) -> usize {
        match self {
            Self::Throughput { what: Medium::Vale, .. } if !self.worker_beside_sender() => 0,
            _ => 1,
        }
    }

    /// Returns the core of a switch's worker, which is the other one. `None` with guests, which run on any
    /// core.
    fn worker(&self) -> Option<usize> {
        match self {
            Self::Guests(_) => None,
            Self::Throughput { .. } => Some(1 - self.receiver()),
            _ => Some(1),
        }
    }

    /// Returns whether two cases are measured with the same guests.
    fn is_beside(&self, other: &Self) -> bool {
        matches!((self.setting(), other.setting()), (Some(one), Some(other)) if one.what == other.what)
    }

    fn setting(&self) -> Option<GuestCase> {
        if let Self::Guests(setting) = self { Some(*setting) } else { None }
    }
}

impl Args {
    /// Returns all measurements.
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for experiment in &self.only {
            match experiment {
                Experiment::Throughput => {
                    // Ring sizes of the paper.
                    let slots = |what| if what == Medium::Pipe { 2048 } else { 1024 };
                    let all = self.what.iter().flat_map(|&what| self.batch.iter().map(move |&batch| (what, batch)));
                    cases.extend(all.map(|(what, batch)| Case::Throughput { what, batch, slots: slots(what) }));
                }
                Experiment::Queues => {
                    let all = [64, 256, 1024, 4096].into_iter().flat_map(|slots| [16, 256].map(|batch| (slots, batch)));
                    cases.extend(all.map(|(slots, batch)| Case::Queues { what: Medium::Pipe, batch, slots }));
                }
                Experiment::Cascade => {
                    let all = [true, false].into_iter().flat_map(|copy| (1..=4).map(move |bridges| (bridges, copy)));
                    cases.extend(all.map(|(bridges, copy)| Case::Cascade { bridges, copy }));
                }
                Experiment::Rtt => {
                    let modes = [Mode::Busy, Mode::Blocking, Mode::Adaptive];
                    let all = self.what.iter().flat_map(|&what| modes.map(|mode| (what, mode)));
                    // Two ends and a switch that never sleep would need three CPUs.
                    let all = all.filter(|&pair| pair != (Medium::Vale, Mode::Busy));
                    cases.extend(all.map(|(what, mode)| Case::Rtt { what, mode }));
                }
                Experiment::Load => {
                    let rates = [0.0, 1e3, 1e4, 1e5, 1e6];
                    cases.extend(self.what.iter().flat_map(|&what| rates.map(|rate| Case::Load { what, rate })));
                }
                Experiment::SyncLoop => {
                    let all = [Syncs::Direct, Syncs::Loop].into_iter();
                    let all = all.flat_map(|syncs| self.batch.iter().map(move |&batch| (syncs, batch)));
                    cases.extend(all.map(|(syncs, batch)| Case::SyncLoop { syncs, batch }));
                }
                Experiment::Guests => {
                    cases.extend(guests::settings(&self.what, &self.batch).into_iter().map(Case::Guests))
                }
            }
        }
        cases
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let cores = cores::pick_two(&args.cpu)?;
    if let Some(folder) = &args.svg {
        super::plot::make_directory(folder)?;
    }
    if args.only.contains(&Experiment::Guests) {
        guests::check()?;
    }
    signals::catch()?;
    let folder = TempDir::new("netmap")?;
    let cases = args.cases();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cases.len()];
    let mut result = Ok(());
    'rounds: for round in 0..args.rounds {
        let mut rest = &mut samples[..];
        for cases in cases.chunk_by(Case::is_beside) {
            progress(&format!("round {} of {}: {:?}", round + 1, args.rounds, cases[0]));
            let rig = Rig::new(folder.path(), cores, cases[0].worker(), args.latency_budget);
            let before = core_to_core_cycles(cores);
            match rig.and_then(|rig| measure(&rig, folder.path(), cases, &args)) {
                Ok(measured) => {
                    // Guests under an emulator run for a minute, and depend little on the cores.
                    let guests = matches!(cases[0], Case::Guests(_));
                    let after = if guests { before } else { core_to_core_cycles(cores) };
                    let distance = distance_during(&[before, after]);
                    for (samples, sample) in rest.iter_mut().zip(measured) {
                        samples.push(Sample { distance, ..sample });
                    }
                }
                Err(error) => {
                    result = Err(error);
                    break 'rounds;
                }
            }
            rest = &mut rest[cases.len()..];
        }
    }
    progress("");
    // After Ctrl-C the results so far are shown.
    if result.is_ok() || interrupted() {
        let rows = cases.into_iter().zip(samples).filter(|(_, samples)| !samples.is_empty());
        report::print(&rows.collect::<Vec<_>>(), &args)?;
    }
    result
}

/// Runs cases that share guests, or a single one.
fn measure(rig: &Rig, folder: &Path, cases: &[Case], args: &Args) -> Result<Vec<Sample>, Error> {
    let (case, time) = (&cases[0], args.seconds);
    let budget = args.latency_budget.as_micros().to_string();
    let seconds = time.as_secs_f64().to_string();
    let sample = match *case {
        Case::Throughput { what, batch, slots } | Case::Queues { what, batch, slots } => {
            let (batch, slots) = (batch.to_string(), slots.to_string());
            stream(rig, what, case.receiver(), time, &["--batch", &batch, "--slots", &slots, "-t", &seconds])
        }
        Case::Load { what, rate } if rate > 0.0 => {
            // A sender with a rate polls the clock, and needs a core to itself.
            stream(
                rig,
                what,
                1,
                time,
                &["--batch", "256", "--rate", &rate.to_string(), "--latency-budget", &budget, "-t", &seconds],
            )
        }
        Case::Load { what, .. } => idle(rig, what, time),
        Case::Cascade { bridges, copy } => {
            // In one memory, so that they can exchange buffers.
            let name = |pipe: usize, end: char| format!("netmap:bench{end}{pipe}@1");
            let mut more = vec!["--batch", "32", "--slots", "2048"];
            let ends = more.clone();
            more.extend(copy.then_some("--copy"));
            more.push("--json");
            let last = name(bridges, '}');
            let receiver = rig.end("receive", &last, 1, &[&ends[..], &["-t", &seconds]].concat())?;
            let start = |n: usize| rig.bridge([&name(n, '}'), &name(n + 1, '{')], &more);
            let _bridges = (0..bridges).map(start).collect::<Result<Vec<_>, _>>()?;
            let sender = rig.end("send", &name(0, '{'), 0, &[&ends[..], &["-t", &seconds]].concat())?;
            Ok(sample(&rig.run([sender, receiver], time)?))
        }
        Case::Rtt { what, mode } => {
            let [first, second] = what.ports();
            let mut more = vec!["-t", &seconds];
            more.extend(match mode {
                Mode::Busy => Some("--busy"),
                Mode::Blocking => Some("--blocking"),
                Mode::Adaptive => None,
            });
            let pong = rig.end("pong", second, 1, &more)?;
            let ping = rig.end("ping", first, 0, &more)?;
            let [EndReport { rtt_us_min, rtt_us_avg, rtt_us_median, .. }, _] = rig.run([ping, pong], time)?;
            let eventfd = eventfd::round_trips(rig.cores, time / 4)?;
            Ok(Sample { rtt: [rtt_us_min, rtt_us_avg, rtt_us_median], eventfd, ..Sample::default() })
        }
        Case::SyncLoop { syncs, batch } => sync_loop::measure(rig, syncs, batch, time),
        Case::Guests(_) => {
            let settings: Vec<GuestCase> = cases.iter().filter_map(Case::setting).collect();
            return guests::measure(rig, folder, &settings, 4 * time);
        }
    };
    Ok(vec![sample?])
}

fn stream(rig: &Rig, what: Medium, core: usize, time: Duration, more: &[&str]) -> Result<Sample, Error> {
    let [first, second] = what.ports();
    let receiver = rig.end("receive", second, core, more)?;
    let sender = rig.end("send", first, 0, more)?;
    let before = cpu::used(rig.process())?;
    let seen = rig.run([sender, receiver], time)?;
    let served = cpu::used(rig.process())? - before;
    let used = served.as_secs_f64();
    let mut sample = sample(&seen);
    // The serving process does not handle the frames of pipes.
    sample.impossible |= what == Medium::Vale && !cpu::is_possible(served, seen[1].packets);
    let packets = (seen[1].packets as f64).max(1.0);
    sample.worker_ns = used * 1e9 / packets;
    sample.cpu += used / seen[0].seconds;
    sample.receiving_cpu = (used + seen[1].cpu_seconds) / seen[0].seconds;
    Ok(sample)
}

fn sample(seen: &[EndReport; 2]) -> Sample {
    let [sent, received] = seen;
    let packets = (received.packets as f64).max(1.0);
    Sample {
        mpps: received.packets as f64 / received.seconds.max(1e-9) / 1e6,
        rung_per_million: (sent.kicks_sent + received.kicks_sent) as f64 * 1e6 / packets,
        cpu: (sent.cpu_seconds + received.cpu_seconds) / sent.seconds.max(1e-9),
        impossible: seen.iter().any(|end| !cpu::is_possible(Duration::from_secs_f64(end.cpu_seconds), end.packets)),
        ..Sample::default()
    }
}

/// Measures the CPU use of two ends without traffic.
fn idle(rig: &Rig, what: Medium, time: Duration) -> Result<Sample, Error> {
    let [first, second] = what.ports();
    let seconds = (time.as_secs_f64() + 5.0).to_string();
    let mut ends = [rig.end("pong", first, 0, &["-t", &seconds])?, rig.end("pong", second, 1, &["-t", &seconds])?];
    ends.iter_mut().try_for_each(Process::begin)?;
    // Waits until both ends have stopped spinning and sleep.
    cores::pause(Duration::from_millis(200))?;
    let processes = [rig.process(), ends[0].id(), ends[1].id()];
    let used = || processes.into_iter().map(cpu::used).sum::<Result<Duration, _>>();
    let (before, start) = (used()?, std::time::Instant::now());
    cores::pause(time.max(Duration::from_secs(1)))?;
    let cpu = (used()? - before).as_secs_f64() / start.elapsed().as_secs_f64();
    Ok(Sample { cpu, receiving_cpu: cpu, ..Sample::default() })
}
