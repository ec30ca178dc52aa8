//! Report of the results, as tables with the paper's values or as JSON.

use ringpass::PageSize;
use serde::Serialize;

use super::path::{Cell, Sample};
use super::pattern::{Pattern, Transfer};
use super::{Args, Experiment, Series, paper};
use crate::cores::{DISTANCES, at_distance, distance_during, heading};
use crate::median::median;
use crate::pages::pages_name;
use crate::table::{self, number, row};
use crate::vhost::Ring;
use crate::{machine, tsc};
use ringpass_cli::output::print_line;

/// Results of a configuration; all values are medians over the rounds.
#[derive(Serialize)]
pub struct Row<'a> {
    pub experiment: Experiment,
    #[serde(serialize_with = "name")]
    pub pattern: Pattern,
    rx: Transfer,
    tx: Transfer,
    pub mapped: bool,
    pub ring: Ring,
    pub size: usize,
    pub physical_rx: usize,
    physical_tx: usize,
    pub virtual_rx: usize,
    pub virtual_tx: usize,
    /// Distance of the cores in these rounds.
    cores: &'static str,
    /// Rate with both threads of the switch on one core, without the card's time.
    pub mpps: f64,
    mpps_min: f64,
    mpps_max: f64,
    /// Ratio to the pattern that copies everything, in the same round.
    pub ratio: Option<f64>,
    /// Rate as limited by the slowest of the three threads, if each has a core of its own.
    pub own_cores_mpps: f64,
    pub own_cores_ratio: Option<f64>,
    /// Busy cycles per packet, and instructions if they were counted.
    switch_rx_cycles: f64,
    switch_tx_cycles: f64,
    function_cycles: f64,
    switch_rx_instructions: Option<f64>,
    switch_tx_instructions: Option<f64>,
    function_instructions: Option<f64>,
    /// Share of the packets that the switch took from the card but that did not come out.
    lost: f64,
    /// Share of the packets for which a guest that lends buffers had none free.
    host_buffers: f64,
    rounds: usize,
    /// Targets of mapped queues: least `ratio`, and largest ratio of their `switch_rx_cycles` to those of
    /// copying.
    target_ratio: Option<f64>,
    target_cycles_ratio: Option<f64>,
    switch_rx_cycles_ratio: Option<f64>,
    met: Option<bool>,
    machine: &'a str,
}

/// Returns the targets: the paper's gain, and half the cycles for long frames.
fn target(pattern: Pattern, size: usize) -> [Option<f64>; 2] {
    let real = pattern.mapped() && pattern.is_real();
    let gain = paper::GAINS.iter().find(|(of, _)| real && *of == size).map(|(_, percent)| 1.0 + percent / 100.0);
    [gain, gain.filter(|_| size == 1514).map(|_| 0.5)]
}

fn name<S: serde::Serializer>(pattern: &Pattern, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_char(pattern.name)
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Returns the rate as limited by the slowest thread, in Mpps.
fn own_cores(sample: &Sample) -> f64 {
    tsc::frequency() / sample.cycles.into_iter().fold(1.0, f64::max) / 1e6
}

/// Returns the distance of the cores in most measurements.
pub fn usual_distance(all: &[Series]) -> &'static str {
    let of = |cores: &&str| {
        let samples = all.iter().flat_map(|series| &series.samples);
        samples.filter(|sample| distance_during(&sample.core_to_core_cycles) == *cores).count()
    };
    DISTANCES.into_iter().max_by_key(of).expect("three")
}

/// Returns all rows for rounds with cores of one distance, in the order of measurement.
pub fn rows<'a>(all: &[Series], cores: &'static str, machine: &'a str) -> Vec<Row<'a>> {
    // In Table III the copying pattern has other ring sizes than the mapped ones; in the sweep they are the
    // same.
    let is_base = |base: &Series, of: &Series| {
        let same_rings = Cell { pattern: of.cell.pattern, ..base.cell } == of.cell;
        let experiment = base.experiment == of.experiment;
        let of_cell = of.cell;
        let cell = base.cell;
        experiment
            && cell.pattern.name == Pattern::BASE
            && (cell.ring, cell.size) == (of_cell.ring, of_cell.size)
            && (same_rings || of.experiment != Experiment::Rings)
    };
    let row = |series: &Series| {
        let Series { experiment, cell, samples, instructions } = series;
        let Cell { pattern, ring, size, physical_rx, physical_tx, virtual_rx, virtual_tx } = *cell;
        let base = all.iter().find(|base| is_base(base, series)).map(|base| &base.samples);
        let of = |sample: &Sample| sample.core_to_core_cycles;
        let (samples, base) = at_distance(cores, samples, base.map(|base| &base[..]), of);
        if samples.is_empty() {
            return None;
        }
        let ratio = |of: fn(&Sample) -> f64| {
            base.as_ref()
                .map(|base| round(median(samples.iter().zip(base).map(|(sample, base)| of(sample) / of(base)))))
        };
        let middle = |of: &dyn Fn(&Sample) -> f64| round(median(samples.iter().map(of)));
        let rates = || samples.iter().map(|sample| sample.mpps);
        let ratio_measured = ratio(|sample| sample.mpps);
        let cycles_ratio = ratio(|sample| sample.cycles[0]);
        let [target_ratio, target_cycles_ratio] = target(pattern, size);
        let packets = target_ratio.zip(ratio_measured).map(|(asked, value)| value >= asked);
        let busy = target_cycles_ratio.zip(cycles_ratio).is_none_or(|(asked, value)| value <= asked);
        let counted = |thread: usize| instructions.map(|counts| round(counts[thread]));
        Some(Row {
            experiment: *experiment,
            cores,
            pattern,
            rx: pattern.rx,
            tx: pattern.tx,
            mapped: pattern.mapped(),
            ring,
            size,
            physical_rx,
            physical_tx,
            virtual_rx,
            virtual_tx,
            mpps: middle(&|sample| sample.mpps),
            mpps_min: round(rates().fold(f64::MAX, f64::min)),
            mpps_max: round(rates().fold(0.0, f64::max)),
            ratio: ratio_measured,
            own_cores_mpps: middle(&own_cores),
            own_cores_ratio: ratio(own_cores),
            switch_rx_cycles: middle(&|sample| sample.cycles[0]),
            switch_tx_cycles: middle(&|sample| sample.cycles[1]),
            function_cycles: middle(&|sample| sample.cycles[2]),
            switch_rx_instructions: counted(0),
            switch_tx_instructions: counted(1),
            function_instructions: counted(2),
            lost: round(median(samples.iter().map(|sample| sample.lost))),
            host_buffers: round(median(samples.iter().map(|sample| sample.host_buffers))),
            rounds: samples.len(),
            target_ratio,
            target_cycles_ratio,
            switch_rx_cycles_ratio: cycles_ratio,
            met: packets.map(|packets| packets && busy),
            machine,
        })
    };
    all.iter().filter_map(row).collect()
}

/// Prints all results.
pub fn print(series: &[Series], args: &Args, pages: PageSize) {
    let machine = machine::line();
    for cores in DISTANCES {
        let rows = rows(series, cores, &machine);
        if args.json {
            rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
            continue;
        }
        if rows.is_empty() {
            continue;
        }
        print_line(&heading(cores));
        let of = |experiment| rows.iter().filter(move |row: &&Row| row.experiment == experiment).collect::<Vec<_>>();
        print_patterns(&of(Experiment::Patterns));
        print_sizes(&of(Experiment::Sizes));
        print_rings(&of(Experiment::Rings));
    }
    if args.json {
        return;
    }
    print_line(
        "  The switch's two threads share a core, the network function has another one. The card is played by the switch's",
    );
    print_line(
        "  core, and its time is not counted: so frames are in that core's cache when they arrive. Own cores: what the slowest",
    );
    print_line("  of the three threads allows, as on the paper's machine, where each has a core.");
    let pages = pages_name(pages);
    print_line(&format!(
        "  Bursts of 32, {pages} pages; not mergeable, in order but for mapped queues, no inflight region.\n"
    ));
    print_line(&machine);
}

fn print_patterns(rows: &[&Row]) {
    if rows.is_empty() {
        return;
    }
    let mut lines = vec![row([
        "",
        "to the guest",
        "from the guest",
        "Mpps",
        "",
        "ratio",
        "asked",
        "own cores",
        "ratio",
        "cycles:",
        "SW_R",
        "SW_T",
        "NF",
    ])];
    let counted = rows.iter().any(|row| row.switch_rx_instructions.is_some());
    if counted {
        lines[0].extend(["instructions:", "SW_R", "SW_T", "NF"].map(String::from));
    }
    lines[0].push("lost".into());
    for row in rows {
        let ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let mut cells = vec![
            format!("{}, {} B, ({})", row.ring.name(), row.size, row.pattern.name),
            row.rx.name().into(),
            row.tx.name().into(),
            format!("{:.2}", row.mpps),
            format!("({:.1} to {:.1})", row.mpps_min, row.mpps_max),
            ratio(row.ratio),
            row.target_ratio.map_or(String::new(), |asked| format!("\u{2265} {asked:.2}")),
            format!("{:.2}", row.own_cores_mpps),
            ratio(row.own_cores_ratio),
            String::new(),
        ];
        let cycles = [row.switch_rx_cycles, row.switch_tx_cycles, row.function_cycles];
        cells.extend(cycles.map(|cycles| format!("{cycles:.0}")));
        if counted {
            cells.push(String::new());
            let counts = [row.switch_rx_instructions, row.switch_tx_instructions, row.function_instructions];
            cells.extend(counts.map(number));
        }
        cells.push(format!("{:.0} %", row.lost * 100.0));
        cells.push(row.met.map_or("", |met| if met { "met" } else { "MISSED" }).into());
        lines.push(cells);
    }
    table::print("Copy patterns (Table III, figure 11; threads in place of Table IV), medians", &lines);
    let gains = paper::GAINS.map(|(size, gain)| format!("{gain} % at {size} B"));
    print_line(&format!(
        "  Paper: mapped queues (e) gain {} over copying (a). Asked of ours: the",
        gains.join(" and ")
    ));
    print_line("  same, and at 1514 B half the cycles of SW_R, the switch's thread to the guest.\n");
}

fn print_sizes(rows: &[&Row]) {
    let Some(first) = rows.first() else { return };
    let columns: Vec<_> = rows.iter().filter(|row| row.size == first.size).map(|row| (row.ring, row.pattern)).collect();
    let mut lines = vec![vec!["bytes".to_owned()]];
    for (ring, pattern) in &columns {
        lines[0].extend([format!("{} ({})", ring.name(), pattern.name), "own cores".into(), "Gbit/s".into()]);
    }
    let mut sizes: Vec<usize> = rows.iter().map(|row| row.size).collect();
    sizes.dedup();
    for size in sizes {
        let mut cells = vec![size.to_string()];
        for column in &columns {
            match rows.iter().find(|row| row.size == size && (row.ring, row.pattern) == *column) {
                Some(row) => cells.extend([
                    format!("{:.2}", row.mpps),
                    format!("{:.2}", row.own_cores_mpps),
                    format!("{:.1}", row.mpps * size as f64 * 8.0 / 1000.0),
                ]),
                None => cells.extend(["-", "-", "-"].map(String::from)),
            }
        }
        lines.push(cells);
    }
    table::print("Frame sizes (figure 12), Mpps", &lines);
    print_line(&format!(
        "  Paper, 64 B, packed: {} Mpps copying, {} mapped; {} without a guest.\n",
        paper::PACKED_COPIED,
        paper::PACKED_MAPPED,
        paper::BARE_METAL
    ));
}

/// Prints a table for each frame size, virtual Tx ring and pattern, with virtual Rx rings as columns and
/// physical ones as rows.
fn print_rings(rows: &[&Row]) {
    let mut maps: Vec<_> = rows.iter().map(|row| (row.size, row.virtual_tx, row.pattern)).collect();
    maps.sort_by_key(|(size, tx, pattern)| (*size, pattern.name, *tx));
    maps.dedup();
    for map in maps {
        let (size, virtual_tx, pattern) = map;
        let cells: Vec<&&Row> = rows.iter().filter(|row| (row.size, row.virtual_tx, row.pattern) == map).collect();
        let axis = |of: fn(&Row) -> usize| {
            let mut values: Vec<usize> = cells.iter().map(|row| of(row)).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let (physical, virtual_rx) = (axis(|row| row.physical_rx), axis(|row| row.virtual_rx));
        let mut lines = vec![vec!["physical \\ virtual".to_owned()]];
        lines[0].extend(virtual_rx.iter().map(usize::to_string));
        for physical_rx in physical {
            let mut line = vec![physical_rx.to_string()];
            line.extend(virtual_rx.iter().map(|&virtual_rx| {
                let cell = cells.iter().find(|row| (row.physical_rx, row.virtual_rx) == (physical_rx, virtual_rx));
                cell.map_or("-".into(), |row| format!("{:.2}", row.mpps))
            }));
            lines.push(line);
        }
        let figure = if size == 64 { "figure 9" } else { "figure 10" };
        let title =
            format!("Rx ring sizes ({figure}), Mpps: {size} B, pattern ({}), virtual Tx {virtual_tx}", pattern.name);
        table::print(&title, &lines);
        let rates = || cells.iter().map(|row| row.mpps);
        let (least, most) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
        let said = paper::MAPS.iter().find(|map| (map.size, map.virtual_tx) == (size, virtual_tx));
        let range = said.and_then(|map| if pattern.mapped() { map.mapped } else { map.copied });
        let paper = range.map_or(String::new(), |(from, to)| format!("; paper: {from} to {to}"));
        print_line(&format!("  {least:.2} to {most:.2} Mpps{paper}\n"));
    }
    if !rows.is_empty() {
        paper::RING_SIZES.iter().for_each(|line| print_line(&format!("  Paper: {line}.")));
        print_line("");
    }
}
