//! Report of the results as tables, JSON and plots.

use std::path::Path;

use ringpass::Error;
use ringpass_cli::errln;
use serde::Serialize;

use super::guests::{GuestCase, GuestLink, GuestRoute};
use super::{Args, Case, Medium, Mode, Sample, paper};
use crate::cores::{DISTANCES, heading};
use crate::machine;
use crate::plot::{self, BLUE, GREEN, GREY, ORANGE, Panel, Scale, Series, SeriesStyle};
use crate::table::{self, row};
use ringpass_cli::output::print_line;

/// Medians over the rounds.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    case: Case,
    /// `None` with guests, where the case has the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'static str>,
    /// Distance of the cores in these rounds.
    cores: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mpps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mpps_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mpps_max: Option<f64>,
    /// Kicks of programs per million frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    rung_per_million: Option<f64>,
    /// CPU time of the serving process per frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    worker_beside_sender: bool,
    /// CPUs kept busy by all processes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<f64>,
    /// CPUs kept busy without the sender, which polls the clock to keep its rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    receiving_cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_us_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_us_avg: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_us_median: Option<f64>,
    /// Round trips of two threads that wake each other by eventfds, at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    eventfd_us_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eventfd_us_avg: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kicks_per_million: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupts_per_million: Option<f64>,
    /// The paper's values: Mpps, or round trips.
    #[serde(skip_serializing_if = "Option::is_none")]
    paper: Option<[f64; 2]>,
    rounds: usize,
    machine: &'a str,
}

/// Returns minimum, median and maximum, rounded to three decimal places.
fn min_median_max(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> [f64; 3] {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| (values[index] * 1000.0).round() / 1000.0;
    [0, (values.len() - 1) / 2, values.len() - 1].map(at)
}

impl<'a> Row<'a> {
    /// Returns the results of the rounds with cores of this distance; `None` if there are none.
    fn new(case: Case, cores: &'static str, samples: &[Sample], machine: &'a str) -> Option<Self> {
        let samples: Vec<Sample> = samples.iter().filter(|sample| sample.distance == cores).copied().collect();
        let samples = &samples[..];
        if samples.is_empty() {
            return None;
        }
        let median = |of: fn(&Sample) -> f64| Some(min_median_max(samples, of)[1]);
        let possible = !samples.iter().any(|sample| sample.impossible);
        let time = |of: fn(&Sample) -> f64| median(of).filter(|_| possible);
        let rtt = matches!(case, Case::Rtt { .. });
        let sync_loop = matches!(case, Case::SyncLoop { .. });
        let idle = matches!(case, Case::Load { rate: 0.0, .. });
        let streams = !rtt && !idle;
        let guests = case.setting();
        let [least, middle, most] = min_median_max(samples, |sample| sample.mpps);
        let paper = match case {
            Case::Throughput { what, batch: 256.., .. } => Some([paper::mpps(what); 2]),
            Case::Cascade { copy: true, .. } => Some([paper::CASCADE; 2]),
            Case::Rtt { what, mode } => Some(paper::round_trip(what, mode == Mode::Busy).into()),
            Case::Guests(setting) if setting.batch >= 256 => paper::guests(setting).map(|mpps| [mpps; 2]),
            _ => None,
        };
        let served =
            matches!(case, Case::Throughput { what: Medium::Vale, .. } | Case::Load { what: Medium::Vale, .. });
        Some(Self {
            worker_beside_sender: case.worker_beside_sender(),
            case,
            cores,
            path: guests.is_none().then_some("host-host"),
            mpps: streams.then_some(middle),
            mpps_min: streams.then_some(least),
            mpps_max: streams.then_some(most),
            rung_per_million: median(|sample| sample.rung_per_million)
                .filter(|_| streams && !sync_loop && guests.is_none()),
            worker_ns_per_packet: time(|sample| sample.worker_ns).filter(|_| served && streams),
            cpu: time(|sample| sample.cpu)
                .filter(|_| !rtt && !sync_loop && !matches!(case, Case::Load { .. } | Case::Guests(_))),
            receiving_cpu: time(|sample| sample.receiving_cpu).filter(|_| matches!(case, Case::Load { .. })),
            rtt_us_min: median(|sample| sample.rtt[0]).filter(|_| rtt || sync_loop),
            rtt_us_avg: median(|sample| sample.rtt[1]).filter(|_| rtt || sync_loop),
            rtt_us_median: median(|sample| sample.rtt[2]).filter(|_| rtt || sync_loop),
            eventfd_us_min: median(|sample| sample.eventfd[0]).filter(|_| rtt),
            eventfd_us_avg: median(|sample| sample.eventfd[1]).filter(|_| rtt),
            // The kernel's virtio-net does not report its kicks.
            kicks_per_million: median(|sample| sample.kicks_per_million)
                .filter(|_| guests.is_some_and(|setting| setting.what != GuestLink::VirtioNet)),
            interrupts_per_million: median(|sample| sample.interrupts_per_million).filter(|_| guests.is_some()),
            paper,
            rounds: samples.len(),
            machine,
        })
    }
}

/// Prints the results.
pub fn print(measured: &[(Case, Vec<Sample>)], args: &Args) -> Result<(), Error> {
    let machine = machine::line();
    let by_distance = DISTANCES.map(|cores| {
        let row = |(case, samples): &(Case, Vec<Sample>)| Row::new(*case, cores, samples, &machine);
        measured.iter().filter_map(row).collect::<Vec<_>>()
    });
    if let Some(folder) = &args.svg {
        let rounds = |rows: &&Vec<Row<'_>>| rows.iter().map(|row| row.rounds).sum::<usize>();
        plots(by_distance.iter().max_by_key(rounds).expect("three"), folder)?;
    }
    if measured.iter().any(|(_, samples)| samples.iter().any(|sample| sample.impossible)) {
        errln!("processor times are left out where the system says less than a cycle a packet, which cannot be");
    }
    if args.json {
        let rows = by_distance.iter().flatten();
        rows.for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
        return Ok(());
    }
    print_line(&format!("{machine}; 60 bytes, medians of up to {} round(s)\n", args.rounds));
    for rows in &by_distance {
        if let [row, ..] = &rows[..] {
            print_line(&heading(row.cores));
            tables(rows);
        }
    }
    Ok(())
}

fn tables(rows: &[Row<'_>]) {
    throughput(
        rows,
        "Host to host (figures 6 and 7); with batches of 1, a switch's worker runs beside the sender, else alone",
        |case| match case {
            Case::Throughput { what, batch, slots } => Some(Through { what: format!("{what:?}"), batch, slots }),
            _ => None,
        },
    );
    throughput(rows, "Short queues (figure 8), of a pipe", |case| match case {
        Case::Queues { what, batch, slots } => Some(Through { what: format!("{what:?}"), batch, slots }),
        _ => None,
    });
    throughput(rows, "Bridges in a row, by pipes (figure 11), batches of 32", |case| match case {
        Case::Cascade { bridges, copy } => Some(Through {
            what: format!("{bridges}, {}", if copy { "copying" } else { "exchanging" }),
            batch: 32,
            slots: 2048,
        }),
        _ => None,
    });
    round_trips(rows);
    load(rows);
    sync_loops(rows);
    guests(rows);
}

fn cell(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") })
}

/// First columns of a row: the path of the frames, and how they took it.
struct Through {
    what: String,
    batch: u32,
    slots: usize,
}

fn throughput(rows: &[Row<'_>], title: &str, of: impl Fn(Case) -> Option<Through>) {
    let mut lines =
        vec![row(["through", "batch", "slots", "Mpps", "least", "most", "paper", "wake-ups/M", "worker ns", "CPUs"])];
    for row in rows {
        let Some(Through { what, batch, slots }) = of(row.case) else { continue };
        let paper = row.paper.map(|[mpps, _]| mpps);
        let numbers =
            [row.mpps, row.mpps_min, row.mpps_max, paper, row.rung_per_million, row.worker_ns_per_packet, row.cpu];
        lines.push([vec![what, batch.to_string(), slots.to_string()], numbers.map(cell).to_vec()].concat());
    }
    if lines.len() > 1 {
        table::print(title, &lines);
    }
}

fn round_trips(rows: &[Row<'_>]) {
    let mut lines = vec![row(["through", "least", "average", "median", "paper", "", "eventfds: least", "average"])];
    for row in rows {
        let Case::Rtt { what, mode } = row.case else { continue };
        let [least, average] = row.paper.map_or([None; 2], |paper| paper.map(Some));
        let numbers =
            [row.rtt_us_min, row.rtt_us_avg, row.rtt_us_median, least, average, row.eventfd_us_min, row.eventfd_us_avg];
        lines.push([vec![format!("{what:?}, {mode:?}").to_lowercase()], numbers.map(cell).to_vec()].concat());
    }
    if lines.len() > 1 {
        table::print("Round trips in µs (table 1)", &lines);
    }
}

fn load(rows: &[Row<'_>]) {
    let mut lines = vec![row(["through, frames a second", "seen", "CPUs but the sender's", "wake-ups a frame"])];
    for row in rows {
        let Case::Load { what, rate } = row.case else { continue };
        let seen = row.mpps.map_or("-".into(), |mpps| format!("{:.0}", mpps * 1e6));
        let rung = row.rung_per_million.map(|rung| rung / 1e6);
        let cpu = row.receiving_cpu.map_or("-".into(), |cpu| format!("{cpu:.4}"));
        lines.push(vec![format!("{what:?}, {rate}").to_lowercase(), seen, cpu, cell(rung)]);
    }
    if lines.len() > 1 {
        table::print("Processor time against load", &lines);
    }
}

fn sync_loops(rows: &[Row<'_>]) {
    let mut lines =
        vec![row(["syncs", "batch", "Mpps", "least", "most", "round trip in µs: least", "average", "median"])];
    for row in rows {
        let Case::SyncLoop { syncs, batch } = row.case else { continue };
        let numbers = [row.mpps, row.mpps_min, row.mpps_max, row.rtt_us_min, row.rtt_us_avg, row.rtt_us_median];
        let what = [format!("{syncs:?}").to_lowercase(), batch.to_string()];
        lines.push([what.to_vec(), numbers.map(cell).to_vec()].concat());
    }
    if lines.len() > 1 {
        table::print("A pipe, by the application itself and by a loop on the core of the other end", &lines);
    }
}

fn guests(rows: &[Row<'_>]) {
    let mut lines =
        vec![row(["through", "path", "batch", "Mpps", "least", "most", "paper", "kicks/M", "interrupts/M"])];
    for row in rows {
        let Case::Guests(GuestCase { what, path, batch }) = row.case else { continue };
        let what = match what {
            GuestLink::Pipe => "Pipe, trusted",
            GuestLink::Vale => "Vale",
            GuestLink::VirtioNet => "the kernel's virtio-net",
        };
        let paper = row.paper.map(|[mpps, _]| mpps);
        let numbers = [row.mpps, row.mpps_min, row.mpps_max, paper, row.kicks_per_million, row.interrupts_per_million];
        lines.push([vec![what.into(), path.name().into(), batch.to_string()], numbers.map(cell).to_vec()].concat());
    }
    if lines.len() > 1 {
        table::print("With guests under QEMU's emulator (figures 6 and 7)", &lines);
    }
}

/// Draws throughput by batch size, host to host and with guests, and by ring size.
fn plots(rows: &[Row<'_>], folder: &Path) -> Result<(), Error> {
    let mut hosts = Vec::new();
    for (what, title) in [(Medium::Vale, "VALE (figure 6)"), (Medium::Pipe, "Pipe (figure 7)")] {
        let points = rows.iter().filter_map(|row| match row.case {
            Case::Throughput { what: of, batch, .. } if of == what => Some((batch.to_string(), row.mpps?)),
            _ => None,
        });
        hosts.extend(panel(title, "batch", vec![("Ringpass", points.collect())], Some(paper::mpps(what))));
    }
    let note = "Host to host, 60 bytes. The paper's text gives its level only.";
    draw(&folder.join("netmap-throughput.svg"), &hosts, note)?;
    let mut guests = Vec::new();
    for (what, title) in [(GuestLink::Vale, "VALE (figure 6)"), (GuestLink::Pipe, "Pipe, trusted (figure 7)")] {
        let lines = [GuestRoute::GuestGuest, GuestRoute::GuestHost, GuestRoute::HostGuest].map(|path| {
            let mine = |setting: &GuestCase| setting.what == what && setting.path == path;
            let point = |row: &Row<'_>| Some((row.case.setting().filter(mine)?.batch.to_string(), row.mpps?));
            (path.name(), rows.iter().filter_map(point).collect())
        });
        guests.extend(panel(title, "batch", lines.into(), None));
    }
    draw(&folder.join("netmap-guests.svg"), &guests, "Guests under QEMU's emulator (TCG), 60 bytes.")?;
    let points = rows.iter().filter_map(|row| match row.case {
        Case::Queues { batch, slots, .. } => Some((format!("{slots}/{batch}"), row.mpps?)),
        _ => None,
    });
    let title = "Pipe, by length of its rings (figure 8)";
    let queues = panel(title, "slots/batch", vec![("Ringpass", points.collect())], None);
    draw(&folder.join("netmap-queues.svg"), queues.as_slice(), "")
}

fn draw(path: &Path, panels: &[Panel], note: &str) -> Result<(), Error> {
    if panels.is_empty() { Ok(()) } else { plot::draw(path, panels, note) }
}

/// Creates a panel of lines over the same categories; `None` if nothing was measured.
fn panel(title: &str, x: &str, lines: Vec<(&str, Vec<(String, f64)>)>, level: Option<f64>) -> Option<Panel> {
    let categories: Vec<String> = lines.first()?.1.iter().map(|(category, _)| category.clone()).collect();
    let last = categories.len().checked_sub(1)?;
    let mut series: Vec<Series> = lines
        .into_iter()
        .zip([BLUE, GREEN, GREY])
        .map(|((name, points), color)| {
            let points = points.into_iter().map(|(_, value)| value).enumerate().collect();
            Series { name: name.into(), color, look: SeriesStyle::Line, points }
        })
        .collect();
    if let Some(level) = level {
        let points = vec![(0, level), (last, level)];
        series.push(Series { name: "paper".into(), color: ORANGE, look: SeriesStyle::Level, points });
    }
    let range = 0.0..plot::top(&series) * 1.35;
    Some(Panel { title: title.into(), x: x.into(), y: "Mpps".into(), categories, scale: Scale::Linear, range, series })
}
