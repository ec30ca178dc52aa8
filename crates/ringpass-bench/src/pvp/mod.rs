//! The benchmark `ringpass bench pvp`: from a card through a network function and back (physical, virtual,
//! physical). It has every experiment of the IOVTee paper: ring sizes (figures 9 and 10), copy patterns (Table
//! III, figure 11), frame sizes (figure 12), and the cost of each thread (in place of Table IV).

mod paper;
mod path;
mod pattern;
mod peer;
mod plots;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use core_affinity::CoreId;
use ringpass::{Error, PageSize};
use ringpass_cli::errln;

use self::path::{Cell, FUNCTIONS, Path, Sample};
use self::pattern::Pattern;
use self::peer::Comparison;
use super::folder::TempDir;
use super::huge_pages::HugePages;
use super::pages::pages_name;
use super::progress::progress;
use super::vhost::Ring;
use super::{cores, instructions, plot};
use ringpass::signals::{self, interrupted};
use ringpass_cli::options::{seconds, within};
use ringpass_cli::output::print_line;

/// From a card through a network function and back, as in the IOVTee paper
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Experiments: patterns (figure 11), sizes (figure 12), rings (figures 9 and 10)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "patterns,sizes,rings")]
    experiment: Vec<Experiment>,
    /// Copy patterns of the paper's Table III
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "a,b,c,d,e,f")]
    pattern: Vec<Pattern>,
    /// Kinds of rings: split, packed; ring sizes are varied with the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "split,packed")]
    ring: Vec<Ring>,
    /// Bytes of a frame for patterns and ring sizes, 60 to 1514
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = within(60..=1514), default_value = "64,1514")]
    size: Vec<usize>,
    /// Rounds; ring sizes are measured in a third of them
    #[arg(long, value_name = "N", default_value = "5", value_parser = within(1..=10_000))]
    rounds: usize,
    /// Length of each measurement, in the switch's time
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    seconds: Duration,
    /// Measure only a part of the ring and frame sizes, in fewer rounds
    #[arg(long)]
    quick: bool,
    /// CPUs of the switch and of the network function [default: the first two]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Count instructions per packet of the patterns too (needs valgrind)
    #[arg(long)]
    instructions: bool,
    /// Print a JSON object for each configuration
    #[arg(long)]
    json: bool,
    /// Write plots into this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
    /// Compare with DPDK (testpmd of Debian's package dpdk-dev, as root) as the switch, on the same path: all parts at once, on
    /// two cores, with the first kind of ring
    #[arg(long, value_name = "NAME")]
    peer: Option<Peer>,
    #[arg(long, hide = true)]
    under_callgrind: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Dpdk,
}

const EXAMPLES: &str = "EXAMPLES:
  sudo ringpass bench pvp --svg plots                      every experiment, some minutes
  sudo ringpass bench pvp --quick                          a part of each, in a minute
  sudo ringpass bench pvp --peer dpdk -t 0.5               beside DPDK as the switch, in a minute
  sudo ringpass bench pvp --experiment patterns --instructions --json";

/// An experiment of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Experiment {
    Patterns,
    Sizes,
    Rings,
}

/// A configuration with the samples of each round.
struct Series {
    experiment: Experiment,
    cell: Cell,
    samples: Vec<Sample>,
    /// Instructions per packet of each thread, if they were counted.
    instructions: Option<[f64; 3]>,
}

const FRAMES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1514];
const PHYSICAL_RX: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
const VIRTUAL_RX: [usize; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
const VIRTUAL_TX: [usize; 2] = [256, 1024];

/// Returns every `step`th value of a list, including the first and the last.
fn part<T: Copy>(list: &[T], step: usize) -> Vec<T> {
    let last = list.len() - 1;
    list.iter().enumerate().filter(|(i, _)| i % step == 0 || *i == last).map(|(_, &value)| value).collect()
}

impl Args {
    /// Tx ring sizes, physical and virtual, where these are not varied; as in the paper.
    const TX: (usize, usize) = (1024, 256);

    fn rounds(&self, experiment: Experiment) -> usize {
        let rounds = if self.quick { self.rounds.min(2) } else { self.rounds };
        if experiment == Experiment::Rings { rounds.div_ceil(3) } else { rounds }
    }

    /// Returns a configuration with the ring sizes of Table III.
    fn cell(&self, pattern: Pattern, ring: Ring, size: usize) -> Cell {
        let ((physical_rx, virtual_rx), (physical_tx, virtual_tx)) = (pattern.rings, Self::TX);
        Cell { pattern, ring, size, physical_rx, physical_tx, virtual_rx, virtual_tx }
    }

    /// Returns the patterns that omit no copy, and so could be used in practice.
    fn real(&self) -> impl Iterator<Item = Pattern> {
        self.pattern.iter().copied().filter(|pattern| pattern.is_real())
    }

    fn cells(&self, experiment: Experiment) -> Vec<Cell> {
        let step = if self.quick { 3 } else { 1 };
        let rings = || self.ring.iter().copied();
        match experiment {
            Experiment::Patterns => rings()
                .flat_map(|ring| self.size.iter().map(move |&size| (ring, size)))
                .flat_map(|(ring, size)| self.pattern.iter().map(move |&pattern| self.cell(pattern, ring, size)))
                .collect(),
            Experiment::Sizes => part(&FRAMES, step)
                .into_iter()
                .flat_map(|size| rings().map(move |ring| (ring, size)))
                .flat_map(|(ring, size)| self.real().map(move |pattern| self.cell(pattern, ring, size)))
                .collect(),
            Experiment::Rings => {
                let mut cells = Vec::new();
                for &size in &self.size {
                    for virtual_tx in VIRTUAL_TX {
                        for physical_rx in part(&PHYSICAL_RX, step) {
                            for virtual_rx in part(&VIRTUAL_RX, step + usize::from(self.quick)) {
                                cells.extend(self.real().map(|pattern| Cell {
                                    physical_rx,
                                    physical_tx: 256,
                                    virtual_rx,
                                    virtual_tx,
                                    ..self.cell(pattern, self.ring[0], size)
                                }));
                            }
                        }
                    }
                }
                cells
            }
        }
    }
}

/// Environment of all measurements.
struct Testbed {
    cores: [CoreId; 2],
    pages: PageSize,
    folder: TempDir,
    _huge: HugePages,
}

impl Testbed {
    /// Number of huge pages of 2 MiB, enough for the largest rings.
    const HUGE_PAGES: usize = 192;

    fn new(args: &Args) -> Result<Self, Error> {
        let (huge, pages) = match HugePages::reserve(Self::HUGE_PAGES) {
            Ok(huge) => (huge, PageSize::Huge2M),
            Err(error) => {
                errln!("on {} pages: {error}", pages_name(PageSize::Ordinary));
                (HugePages::default(), PageSize::Ordinary)
            }
        };
        Ok(Self { cores: cores::pick_two(&args.cpu)?, pages, folder: TempDir::new("pvp")?, _huge: huge })
    }

    fn path(&self, cell: &Cell) -> Result<Path, Error> {
        Path::new(cell, self.pages, self.folder.path())
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if let Some(Peer::Dpdk) = args.peer {
        let rounds = args.rounds;
        let seconds = args.seconds;
        let cpu = &args.cpu[..];
        let sizes = &args.size[..];
        return peer::run(&Comparison { rounds, seconds, cpu, sizes, ring: args.ring[0], json: args.json });
    }
    signals::catch()?;
    if args.under_callgrind {
        return run_rounds(&args);
    }
    args.svg.as_deref().map_or(Ok(()), plot::make_directory)?;
    let site = Testbed::new(&args)?;
    let new = |experiment| {
        let cells = args.cells(experiment).into_iter();
        cells.map(move |cell| Series { experiment, cell, samples: Vec::new(), instructions: None })
    };
    let mut series: Vec<Series> = args.experiment.iter().copied().flat_map(new).collect();
    let result = measure(&args, &site, &mut series);
    progress("");
    // After Ctrl-C the results so far are shown.
    if result.is_ok() || interrupted() {
        series.retain(|series| !series.samples.is_empty());
        report::print(&series, &args, site.pages);
        args.svg.as_deref().map_or(Ok(()), |directory| plots::draw(&series, directory))?;
    }
    result
}

/// Measures all rounds. Each round goes through all configurations, so that noise of the machine affects them
/// alike.
fn measure(args: &Args, site: &Testbed, series: &mut [Series]) -> Result<(), Error> {
    let total: usize = series.iter().map(|series| args.rounds(series.experiment)).sum();
    let mut done = 0;
    for round in 0..args.rounds {
        for Series { cell, samples, .. } in series.iter_mut().filter(|s| round < args.rounds(s.experiment)) {
            done += 1;
            progress(&format!("{done}/{total}: {}", describe(cell)));
            samples.push(site.path(cell)?.measure(site.cores, args.seconds)?);
        }
    }
    if args.instructions {
        for Series { cell, instructions, .. } in series.iter_mut().filter(|s| s.experiment == Experiment::Patterns) {
            progress(&format!("instructions: {}", describe(cell)));
            *instructions = Some(count_instructions(cell)?);
        }
    }
    Ok(())
}

fn describe(cell: &Cell) -> String {
    let Cell { pattern, ring, size, physical_rx, virtual_rx, virtual_tx, .. } = cell;
    let rings = format!("rings of {physical_rx}, {virtual_rx} and {virtual_tx}");
    format!("pattern {}, {}, {size} bytes, {rings}", pattern.name, ring.name())
}

/// Counts the instructions per packet of each thread with callgrind.
fn count_instructions(cell: &Cell) -> Result<[f64; 3], Error> {
    let arguments = [
        "pvp".to_owned(),
        format!("--pattern={}", cell.pattern.name),
        format!("--ring={}", cell.ring.name()),
        format!("--size={}", cell.size),
        "--under-callgrind".into(),
    ];
    let counts = instructions::per_packet(&arguments, &FUNCTIONS)?;
    Ok([counts[0], counts[1], counts[2]])
}

/// Runs `--rounds` rounds under callgrind, and prints the number of packets.
fn run_rounds(args: &Args) -> Result<(), Error> {
    let folder = TempDir::new("pvp")?;
    let cell = args.cell(args.pattern[0], args.ring[0], args.size[0]);
    let mut path = Path::new(&cell, PageSize::Ordinary, folder.path())?;
    print_line(&path.pass_in_turn(args.rounds).to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::pattern::PATTERNS;
    use super::*;

    #[test]
    fn packets_come_out_again() {
        let folder = TempDir::new("pvp-test").unwrap();
        let cores = cores::pick_two(&[]);
        assert_eq!(cores.is_ok(), std::thread::available_parallelism().unwrap().get() > 1);
        for (pattern, ring) in PATTERNS.into_iter().zip([Ring::Split, Ring::Packed].into_iter().cycle()) {
            let (physical_rx, virtual_rx) = (64, 256);
            let cell = Cell { pattern, ring, size: 64, physical_rx, physical_tx: 256, virtual_rx, virtual_tx: 256 };
            let mut path = Path::new(&cell, PageSize::Ordinary, folder.path()).unwrap();
            assert_eq!(path.pass_in_turn(10), 320, "{pattern:?}, {ring:?}");
            // With one CPU nothing can be measured.
            if let Ok(cores) = cores {
                let sample = path.measure(cores, Duration::from_millis(10)).unwrap();
                assert!(sample.mpps > 0.0 && sample.cycles.iter().all(|&cycles| cycles > 0.0), "{sample:?}");
            }
        }
    }
}
