//! The benchmark `ringpass bench vhost`: packets between a vhost-user back-end and its front-end on two cores.
//! Back-end and front-end are Ringpass's or DPDK's, in all pairings. The pairings are measured in turn, so that
//! noise of the machine affects them alike.

mod end;
mod pairing;
mod report;
mod ringpass_end;
pub mod testpmd;

use std::time::Duration;

use self::end::{Kind, Testbed};
pub use self::end::{Layout, Ring};
use self::pairing::{Direction, Pair, Pairing, Sample};
use self::ringpass_end::RingpassEnd;
pub use self::ringpass_end::features;
use self::testpmd::Testpmd;
use super::cores;
use super::folder::TempDir;
use super::huge_pages::HugePages;
use super::progress::progress;
use ringpass::Error;
use ringpass::signals::{self, interrupted};
use ringpass_cli::options::{ring_size, seconds, within};

/// Packets between a vhost-user back-end and its front-end, compared with DPDK on the same two cores
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Implementation to compare with: dpdk (testpmd of Debian's package dpdk-dev), none
    #[arg(long, value_name = "NAME", default_value = "dpdk")]
    peer: Peer,
    /// Pairings: peer (DPDK with DPDK), backend (Ringpass with DPDK's front-end), frontend (Ringpass with
    /// DPDK's back-end), both
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "peer,backend,frontend,both")]
    pair: Vec<Pair>,
    /// Rounds; each round measures every pairing once
    #[arg(long, value_name = "N", default_value = "5", value_parser = within(1..=10_000))]
    rounds: usize,
    /// Length of each measurement
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "0.4", value_parser = seconds)]
    seconds: Duration,
    /// CPUs of the back-end and of the front-end [default: the first two]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Bytes of a frame, 60 to 1514
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = within(60..=1514), default_value = "64,1514")]
    size: Vec<usize>,
    /// Kinds of rings: split, packed
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "split,packed")]
    ring: Vec<Ring>,
    /// Features of the rings, the same for all pairings: in-order, plain, mergeable
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "in-order")]
    features: Vec<Layout>,
    /// Directions: to_guest, from_guest
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "to_guest,from_guest")]
    direction: Vec<Direction>,
    /// Descriptors of a ring: a power of two, 64 to 4096
    #[arg(long, value_name = "N", default_value = "1024", value_parser = ring_size)]
    descriptors: usize,
    /// Print a JSON object for each ring, direction, size and pairing
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  sudo ringpass bench vhost                              all pairings with DPDK, two minutes
  sudo ringpass bench vhost --features in-order,mergeable --rounds 15 --json
  sudo ringpass bench vhost --peer none --size 64        ours alone";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Dpdk,
    None,
}

impl Args {
    /// Returns the pairings to measure; without the peer, only Ringpass with Ringpass.
    fn pairs(&self) -> Vec<Pair> {
        self.pair.iter().copied().filter(|&pair| self.peer == Peer::Dpdk || pair == Pair::Both).collect()
    }
}

/// A measurement, which is made for one pairing after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
struct Case {
    #[serde(flatten)]
    kind: Kind,
    direction: Direction,
    size: usize,
}

/// Samples of a case: a list for each pairing, in the order of [`Args::pairs`].
struct Series {
    case: Case,
    samples: Vec<Vec<Sample>>,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let cores = cores::pick_two(&args.cpu)?;
    if args.peer == Peer::Dpdk {
        testpmd::check()?;
    }
    signals::catch()?;
    let _pages = HugePages::reserve(4 * (Testpmd::HUGE_PAGES + RingpassEnd::HUGE_PAGES))?;
    let folder = TempDir::new("vhost")?;
    let site = Testbed { cores, descriptors: args.descriptors, folder: folder.path() };
    let mut series = Vec::new();
    let mut result = Ok(());
    for &ring in &args.ring {
        for &layout in &args.features {
            result = result.and_then(|()| measure(Kind { ring, layout }, &args, &site, &mut series));
        }
    }
    progress("");
    // After Ctrl-C the results so far are shown.
    if result.is_ok() || interrupted() {
        series.retain(|series: &Series| series.samples.iter().all(|samples| !samples.is_empty()));
        report::print(&series, &args.pairs(), &args);
    }
    result
}

/// Measures all rounds for one kind of ring. All pairings stay connected, and one at a time has traffic.
fn measure(kind: Kind, args: &Args, site: &Testbed, series: &mut Vec<Series>) -> Result<(), Error> {
    let pairs = args.pairs();
    let from = series.len();
    for &direction in &args.direction {
        let samples = vec![Vec::new(); pairs.len()];
        series.extend(
            args.size.iter().map(|&size| Series { case: Case { kind, direction, size }, samples: samples.clone() }),
        );
    }
    let mut pairings = Vec::new();
    for &pair in &pairs {
        progress(&format!("{:?}, {:?}: connecting {pair:?}", kind.ring, kind.layout).to_lowercase());
        pairings.push(Pairing::connect(pair, kind, site)?);
    }
    for round in 1..=args.rounds {
        for Series { case, samples } in &mut series[from..] {
            for ((pairing, pair), samples) in pairings.iter_mut().zip(&pairs).zip(samples) {
                let Case { kind: Kind { ring, layout }, direction, size } = case;
                let what = format!("{ring:?}, {layout:?}, {direction:?}, {size} bytes: {pair:?}");
                progress(&format!("round {round}/{}: {}", args.rounds, what.to_lowercase()));
                samples.push(pairing.measure(*direction, *size, args.seconds)?);
            }
        }
    }
    Ok(())
}
