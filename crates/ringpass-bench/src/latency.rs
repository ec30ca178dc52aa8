//! The benchmark `ringpass bench latency`: latency of frames through the forwarder, by ring size and load, as
//! in Table 2 of the ixy paper. Cards, generator and sink run on one core, the forwarder on another.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use hdrhistogram::Histogram;
use ringpass::{Burst, Error, PageSize, PortConfig, QueuePair, RxQueue, TxQueue, WakeSource, Wakeable, cycles};
use ringpass_cli::errln;
use ringpass_models::Model;

use super::latency_row::Row;
use super::pages::pages_name;
use super::paper::{self, Load};
use super::progress::progress;
use super::rig::{Driver, FRAME, Frames, Rig};
use super::table::{self, row};
use super::{machine, plot, tsc};
use ringpass_cli::options::{ring_size, seconds, within};
use ringpass_cli::output::print_line;

/// Latency of the forwarder by ring size, below and above saturation
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ring sizes: powers of two, 64 to 4096
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ring_size, default_value = "64,512,4096")]
    ring: Vec<usize>,
    /// Load below saturation, in percent of it
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = within(1..=90))]
    below: usize,
    /// Load above saturation, in percent of it
    #[arg(long, value_name = "PERCENT", default_value = "200", value_parser = within(110..=1000))]
    above: usize,
    /// Additional cycles that the forwarder spends on each packet, which make it slower than the cards, as the
    /// paper's was at 1.2 GHz
    #[arg(long, value_name = "CYCLES", default_value = "250", value_parser = within(0..=100_000))]
    work: usize,
    /// Packets in a burst, 1 to 256
    #[arg(long, value_name = "N", default_value = "32", value_parser = within(1..=256))]
    batch: usize,
    /// Length of each measurement
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    time: Duration,
    /// Print a JSON object for each ring size and load
    #[arg(long)]
    json: bool,
    /// Write a plot into this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench latency                         rings of 64, 512 and 4096, below and above saturation
  ringpass bench latency --ring 512 --work 0     as fast as the forwarder can
  ringpass bench latency --json --svg plots      for machines, and a plot";

/// Returns the row of a measurement.
fn row_of(ring: usize, load: Load, seen: &Measurement) -> Row {
    let us = |quantile| seen.latency.value_at_quantile(quantile) as f64 / tsc::frequency() * 1e6;
    let round = |value: f64| (value * 100.0).round() / 100.0;
    Row {
        ring,
        load,
        offered_mpps: round(seen.offered as f64 / seen.seconds / 1e6),
        forwarded_mpps: round(seen.latency.len() as f64 / seen.seconds / 1e6),
        loss: ((1.0 - seen.latency.len() as f64 / seen.offered.max(1) as f64) * 1e4).round() / 1e4,
        median_us: round(us(0.5)),
        p99_us: round(us(0.99)),
        p999_us: round(us(0.999)),
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let &[cards, forwarder, ..] = &cores[..] else {
        return Err(Error::Config(
            "bench latency needs two CPUs, one of them for the cards; give the process two".into(),
        ));
    };
    args.svg.as_deref().map_or(Ok(()), plot::make_directory)?;
    let largest = args.ring.iter().copied().max().unwrap_or(512);
    let pages = match Rig::new(Driver::Ixgbe, PageSize::Huge2M, rings(largest)) {
        Err(Error::NoHugePages(error)) => {
            errln!("on ordinary pages: {error}");
            PageSize::Ordinary
        }
        result => result.map(|_| PageSize::Huge2M)?,
    };
    let lab = LatencyRig { batch: args.batch, work: args.work as u64, time: args.time, pages, cards, forwarder };
    let mut most: f64 = 0.0;
    for &ring in &args.ring {
        progress(&format!("saturation with rings of {ring}"));
        let seen = lab.measure(ring, f64::INFINITY)?;
        let forwarded = seen.latency.len() as f64 / seen.seconds;
        if forwarded > 0.99 * seen.offered as f64 / seen.seconds {
            let more = args.work * 2 + 100;
            errln!("rings of {ring}: the cards are the limit, not the forwarder; give it more to do: --work {more}");
        }
        most = most.max(forwarded);
    }
    let (mut rows, mut preemptions) = (Vec::new(), 0);
    for (load, percent) in [(Load::Below, args.below), (Load::Above, args.above)] {
        for &ring in &args.ring {
            progress(&format!("rings of {ring}, {percent} % of {:.1} Mpps", most / 1e6));
            let seen = lab.measure(ring, most * percent as f64 / 100.0)?;
            preemptions += seen.preemptions;
            rows.push(row_of(ring, load, &seen));
        }
    }
    progress("");
    if preemptions > 10 * rows.len() as u64 {
        errln!(
            "other work took the CPUs {preemptions} times: these latencies are the scheduler's; try again on an idle machine"
        );
    }
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
        errln!("{}", machine::line());
    } else {
        print(&rows, &args, pages);
    }
    args.svg.map_or(Ok(()), |directory| plot::latency(&rows, &directory))
}

fn print(rows: &[Row], args: &Args, pages: PageSize) {
    let mut lines = vec![row([
        "ring",
        "load",
        "offered",
        "forwarded",
        "loss",
        "median",
        "99 %",
        "99.9 %",
        "paper:",
        "median",
        "99 %",
        "99.9 %",
    ])];
    for row in rows {
        let mut cells = vec![row.ring.to_string(), row.load.name().into()];
        cells.extend([row.offered_mpps, row.forwarded_mpps].map(|mpps| format!("{mpps:.2} Mpps")));
        cells.push(format!("{:.1} %", row.loss * 100.0));
        cells.extend(row.percentiles().map(|us| format!("{us:.1} µs")));
        if let Some(paper) = paper::TABLE_2.iter().find(|paper| paper.ring == row.ring && paper.load == row.load) {
            cells.push(String::new());
            cells.extend(paper.us.map(|us| format!("{us:.1} µs")));
        }
        lines.push(cells);
    }
    let (Args { batch, work, below, above, .. }, pages) = (args, pages_name(pages));
    let title = format!("Latency through the forwarder, below ({below} %) and above ({above} %) saturation");
    table::print(
        &format!("{title}\nbatch {batch}, {work} cycles of work a packet, {pages} pages; right: Table 2 of the paper"),
        &lines,
    );
    print_line(
        "  One core runs cards, generator and sink, the other the forwarder; the paper measured on hardware, at 15 and",
    );
    print_line("  29 Mpps, where cards and cables alone take some microseconds.\n");
    print_line(&machine::line());
}

/// Parameters that all measurements have in common.
struct LatencyRig {
    batch: usize,
    work: u64,
    time: Duration,
    pages: PageSize,
    cards: CoreId,
    forwarder: CoreId,
}

/// Results of a measurement.
struct Measurement {
    offered: u64,
    latency: Histogram<u64>,
    seconds: f64,
    /// Number of times that one of the two threads was preempted.
    preemptions: u64,
}

impl LatencyRig {
    /// Time at the start that is not recorded, and time for the last frames to arrive at the end.
    const WARM_UP: Duration = Duration::from_millis(100);

    /// Offers `rate` packets a second to the first card, and records what the second one sends.
    fn measure(&self, ring: usize, rate: f64) -> Result<Measurement, Error> {
        let mut rig = Rig::new(Driver::Ixgbe, self.pages, rings(ring))?;
        let record = Arc::new(Record::new());
        let wires = [
            QueuePair { rx: Box::new(Generator::new(rate, &record)?), tx: Box::new(NullWire) },
            QueuePair { rx: Box::new(NullWire), tx: Box::new(Sink(record.clone())) },
        ];
        let stop = AtomicBool::new(false);
        let threads = thread::scope(|scope| {
            let forwarder = scope.spawn(|| self.forward(&mut rig.queues, &stop));
            let cards = scope.spawn(|| self.run_cards(&rig.cards, wires, &record));
            let seconds = cards.join();
            stop.store(true, Ordering::Relaxed);
            let ((seconds, by_cards), by_forwarder) = (seconds?, forwarder.join()?);
            Ok((seconds, by_cards + by_forwarder))
        });
        let threads: thread::Result<(f64, u64)> = threads;
        let (seconds, preemptions) =
            threads.map_err(|_| Error::Fault("a thread of the bench has panicked; this is a bug".into()))?;
        let latency = std::mem::replace(&mut *record.lock(), histogram());
        Ok(Measurement { offered: record.offered.load(Ordering::Relaxed), latency, seconds, preemptions })
    }

    /// Steps the cards: first to warm up, then for the recorded time, then until no frames are in flight.
    /// Returns the recorded seconds and the number of preemptions.
    fn run_cards(&self, cards: &[Arc<dyn Model>; 2], mut wires: [QueuePair; 2], record: &Record) -> (f64, u64) {
        core_affinity::set_for_current(self.cards);
        let mut step_for = |time| {
            let start = Instant::now();
            while start.elapsed() < time {
                for _ in 0..16 {
                    cards.iter().zip(&mut wires).for_each(|(card, wire)| _ = card.step(wire));
                }
            }
            start.elapsed().as_secs_f64()
        };
        step_for(Self::WARM_UP);
        record.phase.store(cycles(), Ordering::Relaxed);
        let seconds = step_for(self.time);
        record.phase.store(Record::OVER, Ordering::Relaxed);
        step_for(Self::WARM_UP);
        (seconds, machine::preemptions())
    }

    /// Forwards both ways. Returns the number of preemptions.
    fn forward(&self, [a, b]: &mut [QueuePair; 2], stop: &AtomicBool) -> u64 {
        core_affinity::set_for_current(self.forwarder);
        let mut burst = Burst::new(self.batch);
        while !stop.load(Ordering::Relaxed) {
            self.pass(&mut *a.rx, &mut *b.tx, &mut burst);
            self.pass(&mut *b.rx, &mut *a.tx, &mut burst);
        }
        machine::preemptions()
    }

    fn pass(&self, rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) {
        let received = rx.rx_burst(burst) as u64;
        if received > 0 {
            let until = cycles() + received * self.work;
            while cycles() < until {
                std::hint::spin_loop();
            }
            tx.tx_burst(burst);
            burst.clear();
        }
    }
}

/// State shared by generator and sink.
struct Record {
    /// 0 during the warm-up; then the time from which on frames are recorded; then `OVER`, when no more are
    /// sent.
    phase: AtomicU64,
    /// Number of recorded frames.
    offered: AtomicU64,
    /// Latencies in cycles of the frames that arrived. The sink locks this once a burst, without contention.
    latency: Mutex<Histogram<u64>>,
}

impl Record {
    const OVER: u64 = u64::MAX;

    fn new() -> Self {
        Self { phase: AtomicU64::new(0), offered: AtomicU64::new(0), latency: Mutex::new(histogram()) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Histogram<u64>> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 36, 3).expect("bounds that are in order")
}

/// Offset of a frame's time stamp, which is 0 in frames that are not recorded.
const STAMP: usize = 50;

/// Generates frames at a rate, each with the time when it was put on the wire.
struct Generator {
    frames: Frames,
    record: Arc<Record>,
    /// Frames per cycle.
    pace: f64,
    start: u64,
    made: u64,
}

impl Generator {
    /// Largest number of late frames that are sent later. More are skipped, because a wire does not catch up.
    const LATE: u64 = 64;

    fn new(rate: f64, record: &Arc<Record>) -> Result<Self, Error> {
        let pace = (rate / tsc::frequency()).min(1.0);
        Ok(Self { frames: Frames::new(1024, FRAME)?, record: record.clone(), pace, start: cycles(), made: 0 })
    }
}

impl Wakeable for Generator {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Generator {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let now = cycles();
        let phase = self.record.phase.load(Ordering::Relaxed);
        if phase == Record::OVER {
            return 0;
        }
        let due = ((now - self.start) as f64 * self.pace) as u64;
        self.made = self.made.max(due.saturating_sub(Self::LATE));
        let wanted = (due - self.made).min(burst.room() as u64) as usize;
        let stamp = if phase == 0 { 0 } else { now };
        let frames = (0..wanted).map_while(|_| self.frames.next());
        let made = frames
            .map(|mut packet| {
                packet.write(STAMP, &stamp.to_le_bytes());
                burst.push(packet);
            })
            .count();
        self.made += made as u64;
        if phase != 0 {
            self.record.offered.fetch_add(made as u64, Ordering::Relaxed);
        }
        made
    }
}

/// Records the latency of frames that arrive.
struct Sink(Arc<Record>);

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let (now, count) = (cycles(), burst.len());
        let mut latency = self.0.lock();
        for packet in burst.iter() {
            let stamp = packet.array(STAMP).map_or(0, u64::from_le_bytes);
            if stamp != 0 {
                latency.saturating_record(now.saturating_sub(stamp).max(1));
            }
        }
        drop(latency);
        burst.clear();
        count
    }
}

/// A wire that delivers nothing and drops what is sent.
struct NullWire;

impl Wakeable for NullWire {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for NullWire {
    fn rx_burst(&mut self, _: &mut Burst) -> usize {
        0
    }
}

impl TxQueue for NullWire {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        burst.clear();
        count
    }
}

fn rings(size: usize) -> PortConfig {
    PortConfig { rx_ring: size, tx_ring: size, ..PortConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_stamped_and_counted_only_while_recorded() {
        let record = Arc::new(Record::new());
        let mut generator = Generator::new(f64::INFINITY, &record).unwrap();
        let mut sink = Sink(record.clone());
        for (phase, offered, recorded) in [(0, 0, 0), (1, 8, 8), (Record::OVER, 8, 8)] {
            record.phase.store(phase, Ordering::Relaxed);
            // Waits long enough for frames to be due.
            let until = cycles() + 10_000;
            while cycles() < until {}
            let mut burst = Burst::new(8);
            assert_eq!(generator.rx_burst(&mut burst), if phase == Record::OVER { 0 } else { 8 });
            sink.tx_burst(&mut burst);
            assert_eq!((record.offered.load(Ordering::Relaxed), record.lock().len()), (offered, recorded));
        }
    }

    #[test]
    fn a_slow_generator_waits() {
        let mut generator = Generator::new(0.001, &Arc::new(Record::new())).unwrap();
        assert_eq!(generator.rx_burst(&mut Burst::new(8)), 0);
    }
}
