//! The benchmark `ringpass bench model`: software 82599 cards that share a thread with each other and with their drivers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass::{Burst, Error, Mempool, MempoolConfig, PageSize, Port, PortConfig, QueuePair, Stats, cycles, drivers};
use ringpass_cli::demo::{self, forward_once};
use ringpass_cli::errln;
use ringpass_cli::options::{seconds, within};
use ringpass_cli::output::print_line;
use ringpass_memory::RegionConfig;
use ringpass_models::ixgbe::{Card, CardConfig, Counters};
use serde::Serialize;

use super::machine;
use super::median::median;
use super::progress::progress;
use super::table::{self, row};

/// Rate of software cards that share a thread with their drivers, and the cost of a card with nothing to do
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Numbers of cards, 2 to 64, rounded up to pairs: the driver forwards between two
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = within(2..=64), default_value = "2,8,32")]
    cards: Vec<usize>,
    /// Rounds, in each of which every number of cards is measured
    #[arg(long, value_name = "N", value_parser = within(1..=1000), default_value = "5")]
    rounds: usize,
    /// Length of each measurement
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    time: Duration,
    /// Packets in a burst, 1 to 256
    #[arg(long, value_name = "N", default_value = "32", value_parser = within(1..=256))]
    batch: usize,
    /// Print a JSON object for each number of cards
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench model                               2, 8 and 32 cards
  ringpass bench model --cards 2 --rounds 1 -t 10    two cards, some hundred million frames";

/// Descriptors in each ring.
const RING: usize = 512;
/// Steps without work that are timed together, for each card.
const EMPTY_STEPS: u32 = 10_000;

#[derive(Serialize)]
struct Row {
    cards: usize,
    /// Frames that all cards together forwarded, in millions a second.
    mpps: f64,
    /// Cycles of a forwarded frame: of both cards, the wire, the driver and the forwarder.
    cycles_per_packet: f64,
    /// Cycles of a card's step with nothing to do, with a look at the wire.
    empty_step_cycles: f64,
    /// Frames forwarded in all rounds, of which none was lost, by the counters of cards and drivers.
    packets: u64,
}

/// One measurement.
#[derive(Clone, Copy)]
struct Sample {
    packets: u64,
    mpps: f64,
    cycles_per_packet: f64,
    empty_step_cycles: f64,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Error> {
    let mut samples: Vec<(usize, Vec<Sample>)> =
        args.cards.iter().map(|cards| (cards.next_multiple_of(2), Vec::new())).collect();
    samples.sort_by_key(|(cards, _)| *cards);
    samples.dedup_by_key(|(cards, _)| *cards);
    for round in 1..=args.rounds {
        for (cards, samples) in &mut samples {
            progress(&format!("round {round} of {}: {cards} cards", args.rounds));
            samples.push(Testbed::new(*cards, args.batch)?.measure(args.time)?);
        }
    }
    progress("");
    let rows: Vec<Row> = samples.iter().map(|(cards, samples)| summary(*cards, samples)).collect();
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers")));
        errln!("{}", machine::line());
        return Ok(());
    }
    let mut lines = vec![row(["cards", "Mpps", "cycles a frame", "cycles of an empty step", "frames, all counted"])];
    lines.extend(rows.iter().map(|row| {
        let Row { cards, mpps, cycles_per_packet, empty_step_cycles, packets } = row;
        vec![
            cards.to_string(),
            format!("{mpps:.1}"),
            format!("{cycles_per_packet:.0}"),
            format!("{empty_step_cycles:.0}"),
            packets.to_string(),
        ]
    }));
    table::print("Software 82599 cards in pairs, and the driver that forwards between them, on one thread", &lines);
    print_line(&machine::line());
    Ok(())
}

fn summary(cards: usize, samples: &[Sample]) -> Row {
    let of = |what: fn(&Sample) -> f64| (median(samples.iter().map(what)) * 10.0).round() / 10.0;
    Row {
        cards,
        mpps: of(|sample| sample.mpps),
        cycles_per_packet: of(|sample| sample.cycles_per_packet),
        empty_step_cycles: of(|sample| sample.empty_step_cycles),
        packets: samples.iter().map(|sample| sample.packets).sum(),
    }
}

/// Cards in pairs, each with its driver and traffic on its wire. Dropping the queues stops the cards, so they are the first
/// field.
struct Testbed {
    pairs: Vec<(QueuePair, QueuePair)>,
    ports: Vec<Box<dyn Port>>,
    wires: Vec<(Arc<Card>, QueuePair)>,
    burst: Burst,
}

/// Result of forwarding for a while.
struct Forwarded {
    packets: u64,
    elapsed: Duration,
    cycles: u64,
}

impl Testbed {
    fn new(cards: usize, batch: usize) -> Result<Self, Error> {
        let config = PortConfig { rx_ring: RING, tx_ring: RING, ..Default::default() };
        let region = RegionConfig { pages: PageSize::Ordinary, ..Default::default() };
        let mut pairs = Vec::new();
        let mut ports = Vec::new();
        let mut wires = Vec::new();
        for _ in 0..cards / 2 {
            let pool = Mempool::new(&MempoolConfig { buffers: 4 * RING + 2048, region, ..Default::default() })?;
            let mut open = |n: usize| -> Result<(Arc<Card>, QueuePair), Error> {
                let card = Card::new(&CardConfig { mac: demo::mac(n), ..Default::default() });
                let mut port = drivers::open(card.clone(), "bench", &config, &pool)?;
                let queues = port.take_queues().remove(0);
                ports.push(port);
                Ok((card, queues))
            };
            let ((card_a, a), (card_b, b)) = (open(0)?, open(1)?);
            pairs.push((a, b));
            // Less than a ring holds, so that no frame is dropped for lack of a descriptor.
            wires.extend([card_a, card_b].into_iter().zip(demo::wires(&pool, RING / 2)));
        }
        Ok(Self { pairs, ports, wires, burst: Burst::new(batch) })
    }

    fn step(&mut self) -> usize {
        self.wires.iter_mut().map(|(card, wire)| card.step(wire)).sum()
    }

    fn measure(mut self, time: Duration) -> Result<Sample, Error> {
        // A second of warm-up at most: rings, caches and the classes that the cards remember.
        let warm_up = self.forward(time.min(Duration::from_secs(1)) / 5);
        let Forwarded { packets: measured, elapsed, cycles: spent } = self.forward(time);
        let packets = warm_up.packets + measured;
        while self.step() > 0 {}
        let start = cycles();
        (0..EMPTY_STEPS).for_each(|_| _ = self.step());
        let empty = (cycles() - start) as f64;
        self.compare_counters(packets)?;
        Ok(Sample {
            packets,
            mpps: measured as f64 / elapsed.as_secs_f64() / 1e6,
            cycles_per_packet: spent as f64 / measured.max(1) as f64,
            empty_step_cycles: empty / f64::from(EMPTY_STEPS) / self.wires.len() as f64,
        })
    }

    /// Plays cards and forwarders in turn.
    fn forward(&mut self, time: Duration) -> Forwarded {
        const ROUNDS: usize = 1000;
        let start = Instant::now();
        let from = cycles();
        let mut packets = 0;
        while start.elapsed() < time {
            for _ in 0..ROUNDS.div_ceil(self.wires.len()) {
                self.step();
                packets += forward_once(&mut self.pairs, &mut self.burst) as u64;
            }
        }
        Forwarded { packets, elapsed: start.elapsed(), cycles: cycles() - from }
    }

    /// Fails if cards and drivers have not counted the same frames, or not the `forwarded` ones.
    fn compare_counters(&mut self, forwarded: u64) -> Result<(), Error> {
        let mut received = forwarded;
        for queues in self.pairs.iter_mut().flat_map(|(a, b)| [a, b]) {
            while queues.rx.rx_burst(&mut self.burst) > 0 {
                received += self.burst.len() as u64;
                self.burst.clear();
            }
        }
        let cards: Vec<_> = self.wires.iter().map(|(card, _)| card.counters()).collect();
        let drivers: Vec<_> = self.ports.iter_mut().map(|port| port.stats()).collect();
        let sums = |of_card: fn(&Counters) -> u64, of_driver: fn(&Stats) -> u64| -> (u64, u64) {
            (cards.iter().map(of_card).sum(), drivers.iter().map(of_driver).sum())
        };
        let counts = [
            ("received", received, sums(|card| card.rx_packets, |driver| driver.rx_packets)),
            ("sent", forwarded, sums(|card| card.tx_packets, |driver| driver.tx_packets)),
        ];
        for (what, program, (cards, drivers)) in counts {
            if program != cards || cards != drivers {
                return Err(Error::Fault(format!(
                    "frames {what}: the forwarder counted {program}, the cards {cards}, the drivers {drivers}"
                )));
            }
        }
        Ok(())
    }
}
