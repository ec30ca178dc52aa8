//! The benchmark `ringpass bench driver`: cycles and instructions per packet, by stage, batch size, ring size
//! and page size, as in Table 1 and figures 4, 5 and 6 of the ixy paper.

use std::path::PathBuf;
use std::time::Duration;

use ringpass::{Error, PageSize};
use ringpass_cli::errln;

use super::driver_peer::{self, Comparison};
use super::driver_results::{Results, Row, mpps};
use super::measure::{Bench, Cell, Samples, Stage};
use super::pages::pages_name;
use super::progress::progress;
use super::rig::Driver;
use super::table::{self, number, row};
use super::two_workers::TwoWorkers;
use super::{instructions, machine, paper, plot, two_workers};
use ringpass_cli::options::{ring_size, seconds, within};
use ringpass_cli::output::print_line;

/// Cycles per packet of the driver, by stage, batch size, ring size and page size
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Driver to measure: ixgbe, or virtio with each kind of its rings
    #[arg(long, value_name = "NAME", default_value = "ixgbe")]
    driver: Family,
    /// Batch sizes, 1 to 256
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = within(1..=256),
        default_value = "1,2,4,8,16,32,64,128,256")]
    batch: Vec<usize>,
    /// Ring sizes: powers of two, 64 to 4096
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ring_size,
        default_value = "64,128,256,512,1024,2048,4096")]
    ring: Vec<usize>,
    /// Pages for packets and rings: ordinary, huge2m
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = pages, default_value = "ordinary,huge2m")]
    pages: Vec<PageSize>,
    /// Rounds for each configuration; a round fills the rings and uses them up [default: 400, or 5 with a peer]
    #[arg(long, value_name = "N", value_parser = within(1..=1_000_000))]
    rounds: Option<usize>,
    /// Compare with DPDK (testpmd of Debian's package dpdk-dev, as root): on two cores, the cards on one and the driver on the
    /// other, with one batch and one ring size
    #[arg(long, value_name = "NAME")]
    peer: Option<Peer>,
    /// Length of each measurement with a peer
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds, requires = "peer")]
    seconds: Duration,
    /// CPUs of cards and driver with a peer [default: the first two]
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "peer")]
    cpu: Vec<usize>,
    /// Count instructions per packet too, which takes about a minute (needs valgrind)
    #[arg(long)]
    instructions: bool,
    /// Print a JSON object for each configuration and stage
    #[arg(long)]
    json: bool,
    /// Write plots into this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = kind)]
    kind: Option<Driver>,
    #[arg(long, hide = true)]
    under_callgrind: bool,
    #[arg(long, hide = true)]
    offloads: bool,
    #[arg(long, hide = true)]
    without_vector: bool,
}

/// Driver families of `--driver`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Family {
    Ixgbe,
    Virtio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Dpdk,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench driver                               all of it, in some seconds
  ringpass bench driver --instructions --svg plots    instructions too, and plots
  ringpass bench driver --driver virtio --instructions    each kind of ring of virtio
  sudo ringpass bench driver --peer dpdk              beside DPDK on the same cards, two minutes
  ringpass bench driver --batch 32 --ring 512 --pages ordinary --rounds 5000 --json";

fn pages(text: &str) -> Result<PageSize, String> {
    let known = [PageSize::Ordinary, PageSize::Huge2M].into_iter().find(|&pages| pages_name(pages) == text);
    known.ok_or_else(|| "write ordinary or huge2m".into())
}

fn kind(text: &str) -> Result<Driver, String> {
    let known = Driver::ALL.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, driver)| driver).ok_or_else(|| format!("no driver is called '{text}'"))
}

/// Number of passes over all configurations, each with a part of the rounds. So a machine whose speed varies
/// over time does not favour some of them.
const PASSES: usize = 4;

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let driver = args.kind.unwrap_or(Driver::Ixgbe);
    let batch = prefer(&args.batch, 32);
    let ring = prefer(&args.ring, 512);
    let offloads = args.offloads;
    let vector = !args.without_vector;
    let base = |pages| Cell { driver, batch, ring, pages, offloads, vector };
    if let Some(Peer::Dpdk) = args.peer {
        let rounds = args.rounds.unwrap_or(5);
        let seconds = args.seconds;
        let cpu = &args.cpu[..];
        let json = args.json;
        return driver_peer::run(&Comparison { rounds, seconds, cpu, batch, ring, json });
    }
    let rounds = args.rounds.unwrap_or(400);
    if args.under_callgrind {
        return instructions::run_rounds(&base(args.pages[0]), rounds as u64);
    }
    args.svg.as_deref().map_or(Ok(()), plot::make_directory)?;
    let pages = usable(&args)?;
    let base = base(prefer(&pages, PageSize::Huge2M));
    let mut cells = match args.driver {
        Family::Ixgbe => ixgbe(&args, base, &pages),
        Family::Virtio => virtio(base),
    };
    cells.dedup();
    let mut samples: Vec<Samples> = cells.iter().map(|_| Samples::default()).collect();
    for pass in 0..PASSES {
        for (done, (cell, samples)) in cells.iter().zip(&mut samples).enumerate() {
            progress(&format!("{}/{}: {}", pass * cells.len() + done, PASSES * cells.len(), describe(cell)));
            Bench::new(cell)?.run(rounds.div_ceil(PASSES), samples)?;
        }
    }
    let two_workers = match args.driver {
        Family::Ixgbe => {
            progress("one worker and two");
            two_workers::measure(&base, rounds.div_ceil(PASSES))?
        }
        Family::Virtio => None,
    };
    let mut results = Results { base, rows: Vec::new(), two_workers };
    for (cell, samples) in cells.iter().zip(&samples) {
        // Instructions depend on the batch size, hardly on the ring size, and not on the pages.
        let counted = args.instructions && cell.ring == base.ring && cell.pages == base.pages;
        if counted {
            progress(&format!("instructions: {}", describe(cell)));
        }
        let instructions = counted.then(|| instructions::count(cell)).transpose()?;
        results.rows.extend(Stage::ALL.map(|stage| {
            let [cycles_per_packet, cycles_min, cycles_p90] = samples.summary(stage).map(tenths);
            let instructions_per_packet = instructions.map(|counts| tenths(counts[stage as usize]));
            Row { cell: *cell, stage, cycles_per_packet, cycles_min, cycles_p90, instructions_per_packet }
        }));
    }
    progress("");
    if args.json {
        results.rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
        results.two_workers.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers")));
        errln!("{}", machine::line());
    } else if args.driver == Family::Virtio {
        print_virtio(&results);
    } else {
        print(&results, &pages);
    }
    match args.svg {
        Some(directory) if args.driver == Family::Ixgbe => plot::driver(&results, &pages, &directory),
        _ => Ok(()),
    }
}

/// Returns all configurations of the ixgbe driver.
fn ixgbe(args: &Args, base: Cell, pages: &[PageSize]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = args.batch.iter().map(|&batch| Cell { batch, ..base }).collect();
    cells.extend(args.ring.iter().flat_map(|&ring| pages.iter().map(move |&pages| Cell { ring, pages, ..base })));
    cells.extend([Cell { offloads: true, ..base }, Cell { vector: false, ..base }]);
    cells.sort_by_key(|cell| (cell.offloads, !cell.vector, cell.batch, cell.ring, cell.pages.bytes()));
    cells
}

/// Returns a configuration for each kind of virtio ring, without and with offloads.
fn virtio(base: Cell) -> Vec<Cell> {
    let kinds = Driver::ALL.into_iter().map(|(_, driver)| driver).filter(|driver| *driver != Driver::Ixgbe);
    kinds.flat_map(|driver| [false, true].map(|offloads| Cell { driver, offloads, ..base })).collect()
}

fn describe(cell: &Cell) -> String {
    let offloads = if cell.offloads { ", with offloads" } else { "" };
    let vector = if cell.vector { "" } else { ", without vector instructions" };
    let Cell { driver, batch, ring, pages, .. } = *cell;
    format!("{}, batch {batch}, rings of {ring}, {} pages{offloads}{vector}", driver.name(), pages_name(pages))
}

fn print_virtio(results: &Results) {
    let mut rows = vec![row(["ring", "offloads", "rx", "tx", "forward", "total", "min", "instructions", "rx", "tx"])];
    for total in results.totals() {
        let cell = |stage| results.row(total.cell, stage);
        let cycles = [Stage::Rx, Stage::Tx, Stage::Forward, Stage::Total]
            .map(|stage| cell(stage).map(|row| row.cycles_per_packet));
        let instructions = [Stage::Total, Stage::Rx, Stage::Tx].map(|stage| cell(stage)?.instructions_per_packet);
        let mut cells = vec![total.cell.driver.name().to_owned()];
        cells.push(if total.cell.offloads { "on" } else { "off" }.into());
        cells.extend(cycles.into_iter().chain([Some(total.cycles_min)]).chain(instructions).map(number));
        rows.push(cells);
    }
    let Cell { batch, ring, pages, .. } = results.base;
    let title = "Cycles per packet, forwarding 60-byte frames between two virtio cards, one thread";
    table::print(&format!("{title}\nbatch {batch}, rings of {ring}, {} pages", pages_name(pages)), &rows);
    print_line("  The last three columns are instructions per packet: in total, of rx and of tx.");
    print_line(&machine::line());
}

/// Returns `value`, the papers' choice, if it is in the list, else the first of the list.
fn prefer<T: Copy + PartialEq>(list: &[T], value: T) -> T {
    if list.contains(&value) { value } else { list[0] }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Returns the kinds of pages of which enough are free for the largest ring.
fn usable(args: &Args) -> Result<Vec<PageSize>, Error> {
    let ring = args.ring.iter().copied().max().unwrap_or(512);
    let mut usable = Vec::new();
    let mut missing = None;
    for &pages in &args.pages {
        match Bench::new(&Cell { driver: Driver::Ixgbe, batch: 32, ring, pages, offloads: false, vector: true }) {
            Ok(_) => usable.push(pages),
            Err(error @ Error::NoHugePages(_)) => {
                errln!("left out {} pages: {error}", pages_name(pages));
                missing = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    if usable.is_empty() { Err(missing.expect("a list has at least one value")) } else { Ok(usable) }
}

fn print(results: &Results, pages: &[PageSize]) {
    print_stages(results);
    print_peers();
    print_vectors(results);
    print_offloads(results);
    print_two_workers(results);
    print_batches(results);
    print_rings(results, pages);
    print_line(&machine::line());
}

fn print_stages(results: &Results) {
    let mut rows = vec![row(["", "median", "min", "p90", "instructions"])];
    rows[0].extend(paper::TABLE_1.iter().map(|forwarder| forwarder.name.to_owned()));
    for line in Stage::ALL.into_iter().filter_map(|stage| results.row(results.base, stage)) {
        let cycles = [line.cycles_per_packet, line.cycles_min, line.cycles_p90].map(Some);
        let mut cells = vec![line.stage.name().to_owned()];
        cells.extend(cycles.into_iter().chain([line.instructions_per_packet]).map(number));
        cells.extend(paper::TABLE_1.iter().map(|forwarder| number(forwarder.cycles(line.stage))));
        rows.push(cells);
    }
    let title = "Cycles per packet, forwarding 60-byte frames between two ports, one thread";
    table::print(&format!("{title}\n{}; right: Table 1 of the paper", describe(&results.base)), &rows);
    print_line(
        "  rx posts new buffers and tx reclaims sent ones; memory is their allocation and release alone, and in rx and tx",
    );
    print_line(
        "  already. Stages are fenced off from each other, so their sum may be above total, which is one piece.",
    );
    print_line(&format!("  DPDK's total is {} in the paper without its vector path.", paper::DPDK_SCALAR));
    print_line("");
}

fn print_peers() {
    let mut rows = vec![row(["", "cycles", "instructions"])];
    for peer in &paper::PEERS {
        let (from, to) = peer.cycles;
        let cycles = if from == to { format!("{from}") } else { format!("{from} to {to}") };
        rows.push(vec![peer.name.into(), cycles, format!("{}", peer.instructions)]);
    }
    table::print(
        "Other drivers, total, measured in the same way on another virtual machine (2 cores at 2.7 GHz)",
        &rows,
    );
}

/// Prints the base and what differs from it.
fn print_variants(results: &Results, title: &str, variants: [(&str, Cell); 2]) {
    let mut rows = vec![row([&title.to_lowercase(), "rx", "tx", "forward", "total", "Mpps", "instructions"])];
    for (name, cell) in variants {
        let Some(total) = results.row(cell, Stage::Total) else { continue };
        let mut cells = vec![name.to_owned()];
        let stages = [Stage::Rx, Stage::Tx, Stage::Forward, Stage::Total].map(|stage| results.row(cell, stage));
        cells.extend(stages.map(|row| number(row.map(|row| row.cycles_per_packet))));
        cells.extend([Some(mpps(total.cycles_per_packet)), total.instructions_per_packet].map(number));
        rows.push(cells);
    }
    table::print(&format!("{title}, cycles per packet"), &rows);
}

fn print_offloads(results: &Results) {
    let base = results.base;
    let variants = [("off", base), ("on", Cell { offloads: true, ..base })];
    print_variants(results, "Offloads", variants);
    print_line(
        "  On: each packet comes with its checksum's verdict and its hash, and asks for a checksum when it is sent.\n",
    );
}

/// Prints what vector instructions save.
fn print_vectors(results: &Results) {
    let base = results.base;
    let variants = [("AVX2", base), ("none", Cell { vector: false, ..base })];
    print_variants(results, "Vector instructions", variants);
    print_line("  Chosen when a port is opened. Without, the driver takes one descriptor at a time.\n");
}

fn print_two_workers(results: &Results) {
    let Some(TwoWorkers { one_worker, two_workers, ratio }) = results.two_workers else { return };
    let rows = vec![
        row(["workers", "cycles"]),
        vec!["1".into(), number(Some(one_worker))],
        vec!["2".into(), number(Some(two_workers))],
    ];
    table::print("Workers with a pair of ports each, cycles per packet of each", &rows);
    print_line(&format!("  Median ratio of runs that follow each other: {ratio:.2}. CPUs may share a core.\n"));
}

fn print_batches(results: &Results) {
    let mut rows = vec![row(["batch", "rx", "tx", "forward", "memory", "total", "Mpps", "instructions"])];
    for total in results.by_batch() {
        let mut cells = vec![total.cell.batch.to_string()];
        let stages = Stage::ALL.into_iter().map(|stage| results.row(total.cell, stage));
        cells.extend(stages.map(|row| number(row.map(|row| row.cycles_per_packet))));
        cells.push(number(Some(mpps(total.cycles_per_packet))));
        cells.push(number(total.instructions_per_packet));
        rows.push(cells);
    }
    table::print("Batch size (figure 4), cycles per packet", &rows);
    let (saved, ixy) = (paper::SAVED_BY_BATCHING, paper::TABLE_1[0].cycles(Stage::Total).unwrap_or_default());
    print_line(&format!(
        "  Paper: a batch of 32 saves ixy {saved} cycles per packet against none, and leaves {ixy}.\n"
    ));
}

fn print_rings(results: &Results, pages: &[PageSize]) {
    let mut rows = vec![row(["ring"])];
    for &pages in pages {
        rows[0].extend([pages_name(pages).to_owned(), "Mpps".into()]);
    }
    let both = pages.contains(&PageSize::Ordinary) && pages.contains(&PageSize::Huge2M);
    if both {
        rows[0].extend(["huge pages gain".into(), "in the paper".into()]);
    }
    for first in results.by_ring(pages[0]) {
        let total = |pages| results.row(Cell { pages, ..first.cell }, Stage::Total).map(|row| row.cycles_per_packet);
        let mut cells = vec![first.cell.ring.to_string()];
        for &pages in pages {
            cells.extend([number(total(pages)), number(total(pages).map(mpps))]);
        }
        if let (true, Some(ordinary), Some(huge)) = (both, total(PageSize::Ordinary), total(PageSize::Huge2M)) {
            let (from, to) = paper::HUGE_PAGES;
            let said = if first.cell.ring == 4096 {
                format!("{} %", paper::HUGE_PAGES_AT_4096)
            } else {
                format!("{from} to {to} %")
            };
            cells.extend([format!("{:.1} %", (ordinary / huge - 1.0) * 100.0), said]);
        }
        rows.push(cells);
    }
    table::print("Ring size and pages (figures 5 and 6), cycles per packet", &rows);
    print_line(&format!("  Paper: {}.\n", paper::RING_SIZES));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_an_object() {
        let cell = Cell {
            driver: Driver::Ixgbe,
            batch: 32,
            ring: 512,
            pages: PageSize::Huge2M,
            offloads: false,
            vector: true,
        };
        let stage = Stage::Total;
        let cycles_per_packet = 31.4;
        let cycles_min = 17.5;
        let cycles_p90 = 37.3;
        let row = Row { cell, stage, cycles_per_packet, cycles_min, cycles_p90, instructions_per_packet: None };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"driver":"ixgbe","batch":32,"ring":512,"pages":"huge2m","offloads":false,"vector":true,"stage":"total","cycles_per_packet":31.4,"#
                .to_owned()
                + r#""cycles_min":17.5,"cycles_p90":37.3,"instructions_per_packet":null}"#
        );
    }
}
