//! Report of the results, as a table or as JSON.

use serde::Serialize;

use super::end::Layout;
use super::pairing::{Direction, Pair, Sample};
use super::{Args, Case, Series};
use crate::cores::{DISTANCES, at_distance};
use crate::machine;
use crate::table::{self, row};
use ringpass_cli::output::print_line;

/// Results of a case with one pairing, in rounds with cores of one distance.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    case: Case,
    pair: Pair,
    /// Distance of the cores in these rounds.
    cores: &'static str,
    /// Medians over the rounds.
    mpps: f64,
    peer_mpps: Option<f64>,
    /// Median over the rounds of the ratio to the peer in the same round.
    ratio: Option<f64>,
    /// Busy cycles of the back-end's thread.
    cycles_per_packet: f64,
    peer_cycles_per_packet: Option<f64>,
    cycles_ratio: Option<f64>,
    frontend_cycles_per_packet: f64,
    mpps_min: f64,
    mpps_max: f64,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    rounds: usize,
    /// Targets: least `ratio` and largest `cycles_ratio`.
    target_ratio: Option<f64>,
    target_cycles_ratio: Option<f64>,
    met: Option<bool>,
    /// Cycles for a cache line to move from core to core, measured before and after each sample.
    core_to_core_min: f64,
    core_to_core_max: f64,
    machine: &'a str,
}

/// Returns the targets of a pairing: the least ratio of packets, and the largest ratio of the back-end's
/// cycles.
fn target(pair: Pair, case: Case) -> [Option<f64>; 2] {
    match (pair, case.direction, case.size) {
        (Pair::Backend, Direction::ToGuest, 64 | 1514) => [Some(1.2), None],
        (Pair::Backend, Direction::FromGuest, 64 | 1514) => [Some(1.0), Some(0.8)],
        (Pair::Both, _, 64) => [Some(1.5), None],
        (Pair::Both, _, 1514) => [Some(1.2), None],
        _ => [None, None],
    }
}

/// Returns minimum, median and maximum, rounded to two decimal places.
fn min_median_max(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| (values[index] * 100.0).round() / 100.0;
    [0, (values.len() - 1) / 2, values.len() - 1].map(at)
}

impl<'a> Row<'a> {
    /// Returns the results of the rounds with cores of this distance; `None` if there are none.
    fn new(
        case: Case,
        pair: Pair,
        cores: &'static str,
        samples: &[Sample],
        peer: Option<&[Sample]>,
        machine: &'a str,
    ) -> Option<Self> {
        let (samples, peer) = at_distance(cores, samples, peer, |sample| sample.core_to_core_cycles);
        let (samples, peer) = (&samples[..], peer.as_deref());
        if samples.is_empty() {
            return None;
        }
        let [mpps_min, mpps, mpps_max] = min_median_max(samples.iter().map(|sample| sample.mpps));
        let cycles = |sample: &Sample| sample.backend_cycles;
        let ratios = |of: fn(&Sample) -> f64| {
            let pairs =
                move |peer: &[Sample]| min_median_max(samples.iter().zip(peer).map(|(ours, peer)| of(ours) / of(peer)));
            peer.map(pairs)
        };
        let ratio = ratios(|sample| sample.mpps);
        let cycles_ratio = ratios(cycles).map(|[_, median, _]| median);
        let [target_ratio, target_cycles_ratio] = target(pair, case);
        let met = |asked: Option<f64>, value: Option<f64>, holds: fn(f64, f64) -> bool| {
            asked.zip(value).map(|(asked, value)| holds(value, asked))
        };
        let packets = met(target_ratio, ratio.map(|[_, median, _]| median), |value, asked| value >= asked);
        let busy = met(target_cycles_ratio, cycles_ratio, |value, asked| value <= asked);
        let median = |samples: &[Sample], of: fn(&Sample) -> f64| min_median_max(samples.iter().map(of))[1];
        let [core_to_core_min, _, core_to_core_max] =
            min_median_max(samples.iter().flat_map(|sample| sample.core_to_core_cycles));
        Some(Self {
            case,
            pair,
            cores,
            mpps,
            peer_mpps: peer.map(|peer| median(peer, |sample| sample.mpps)),
            ratio: ratio.map(|[_, median, _]| median),
            cycles_per_packet: median(samples, cycles),
            peer_cycles_per_packet: peer.map(|peer| median(peer, cycles)),
            cycles_ratio,
            frontend_cycles_per_packet: median(samples, |sample| sample.frontend_cycles),
            mpps_min,
            mpps_max,
            ratio_min: ratio.map(|[min, ..]| min),
            ratio_max: ratio.map(|[.., max]| max),
            rounds: samples.len(),
            target_ratio,
            target_cycles_ratio,
            met: packets.map(|packets| packets && busy.unwrap_or(true)),
            core_to_core_min,
            core_to_core_max,
            machine,
        })
    }
}

/// Prints all results.
pub fn print(series: &[Series], pairs: &[Pair], args: &Args) {
    let machine = machine::line();
    let rows: Vec<Row> = series
        .iter()
        .flat_map(|Series { case, samples }| {
            let peer = pairs.iter().position(|&pair| pair == Pair::Peer).map(|index| &samples[index][..]);
            pairs
                .iter()
                .zip(samples)
                .flat_map(|(&pair, samples)| {
                    DISTANCES.map(|cores| Row::new(*case, pair, cores, samples, peer, &machine))
                })
                .flatten()
                .collect::<Vec<_>>()
        })
        .collect();
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
        return;
    }
    for layout in &args.features {
        let of_layout = rows.iter().filter(|row| row.case.kind.layout == *layout);
        let lines: Vec<_> = of_layout.map(line).collect();
        if !lines.is_empty() {
            let head = [
                "",
                "pair",
                "cores, rounds",
                "Mpps",
                "",
                "ratio",
                "asked",
                "cycles",
                "ratio",
                "asked",
                "front-end",
                "",
            ];
            let features = match layout {
                Layout::InOrder => "in order, not mergeable",
                Layout::Plain => "not mergeable",
                Layout::Mergeable => "mergeable",
            };
            let (rounds, seconds) = (series[0].samples[0].len(), args.seconds.as_secs_f64());
            let title = format!("vhost-user on two cores, {features}, rings of {}", args.descriptors);
            let title = format!("{title}, {rounds} rounds of {seconds} s");
            table::print(&title, &[vec![row(head)], lines].concat());
        }
    }
    print_line(
        "  Peer: DPDK with DPDK; backend, frontend: ours that, the other DPDK's; both: ours. Packets came to or from the guest,",
    );
    print_line("  which has the front-end. Each end is a thread on a core of its own, bursts of 32.");
    print_line(
        "  Mpps: median of the rounds, in brackets the least and the most. Ratio: to DPDK with DPDK in the same round, median.",
    );
    print_line(
        "  Cycles: of the back-end's thread a packet, counted as testpmd does: all of a sender's, and of a receiver's those of",
    );
    print_line("  rounds that brought packets.");
    let samples = || series.iter().flat_map(|s| s.samples.iter().flatten());
    if samples().next().is_some() {
        let [min, median, max] = min_median_max(samples().flat_map(|sample| sample.core_to_core_cycles));
        print_line(&format!(
            "  A cache line took {min:.0} to {max:.0} cycles from core to core, {median:.0} in the median. Rounds with near cores, with"
        ));
        print_line(
            "  far ones and those during which that changed by more than a half are apart; the last are not to be compared.",
        );
    }
    print_line("");
    print_line(&machine);
}

fn line(row: &Row) -> Vec<String> {
    let Case { kind, direction, size } = row.case;
    let way = if direction == Direction::ToGuest { "to the guest" } else { "from the guest" };
    let case = format!("{}, {way}, {size} B", kind.ring.name());
    let asked = |sign: &str, value: Option<f64>| value.map_or(String::new(), |value| format!("{sign} {value}"));
    let ratio = |value: Option<f64>| value.filter(|_| row.pair != Pair::Peer).map_or("-".into(), |v| format!("{v:.2}"));
    let verdict = row.met.map_or("", |met| if met { "met" } else { "MISSED" });
    vec![
        case,
        format!("{:?}", row.pair).to_lowercase(),
        format!("{}, {}", row.cores, row.rounds),
        format!("{:.2}", row.mpps),
        format!("({:.1} to {:.1})", row.mpps_min, row.mpps_max),
        ratio(row.ratio),
        asked("\u{2265}", row.target_ratio),
        format!("{:.0}", row.cycles_per_packet),
        ratio(row.cycles_ratio),
        asked("\u{2264}", row.target_cycles_ratio),
        format!("{:.0}", row.frontend_cycles_per_packet),
        verdict.into(),
    ]
}
