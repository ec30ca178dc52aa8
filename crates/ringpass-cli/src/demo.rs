//! The subcommand `ringpass demo`: the driver forwards between two software cards, with traffic both ways.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringpass::sandbox::Needs;
use ringpass::{
    Burst, Config, Error, MacAddress, Mempool, MempoolConfig, Port, Ports, Queues, RxQueue, Totals, TxQueue,
    WakeSource, Wakeable,
};
use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::{Cache, MAGAZINE};
use ringpass_models::Runner;
use ringpass_models::ixgbe::{Card, CardConfig};

use crate::fwd;
use crate::options::Options;
use crate::pktgen::frame::{Endpoints, MIN, Mark, Template};
use crate::stats::{pps, print_line};
use ringpass::open::pool;

/// Watch the driver forward packets between two software cards, without root or a network card
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  ten seconds:
      ringpass demo
  what it costs to handle packets one by one:
      ringpass demo --time 3 --batch 1";

const WHAT: &str = "\
Two software 82599 cards, 60-byte UDP frames in 64 flows on the wires of both.
The driver for real cards forwards between them, through rings and DMA memory.
One thread plays the cards, one forwards: no kernel, no root. Ctrl-C ends it.
";

const NEXT: &str = "
Try next:
  the kernel's own traffic through the driver:
      sudo ringpass fwd model:tap:left model:tap:right
  a generator, on one software card:
      ringpass pktgen model:null --size 1514 --time 3
  your network cards, and what this machine can do:
      ringpass list; ringpass doctor";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut options = args.options;
    options.time.get_or_insert(Duration::from_secs(10));
    // By default the cards run on the first core and the forwarder on the second, if there are two.
    let mut cards_cpu = None;
    if let [cards, forwarder, ..] = core_affinity::get_core_ids().unwrap_or_default()[..]
        && options.cpu.is_empty()
    {
        (cards_cpu, options.cpu) = (Some(cards.id), vec![forwarder.id]);
    }
    if !options.json {
        print_line(WHAT);
    }
    let mut run = options.run()?;
    let (mut ports, wires) = cards(&run.config)?;
    run.enter_sandbox(ports.needs())?;
    let runner = Runner::spawn(wires, cards_cpu, run.config.poll);
    fwd::start(&mut run, ports.take_queue_pairs(false)?)?;
    let json = options.json;
    let mut totals = Totals::default();
    run.control(&mut ports, &mut |now| {
        totals = *now;
        fwd::report(now)
    })?;
    drop(runner);
    if !json {
        let seconds = totals.elapsed.as_secs_f64().max(1e-9);
        let (rate, cycles) = (pps(totals.moved as f64 / seconds), totals.cycles_per_packet());
        print_line(&format!("Forwarded {rate}; the forwarding core spent {cycles} cycles on a packet."));
        print_line(NEXT);
    }
    Ok(())
}

type Wires = Vec<(Arc<Card>, Queues)>;

/// Creates two cards, each with its driver as a port, and the traffic on their wires.
fn cards(config: &Config) -> Result<(Ports, Wires), Error> {
    // Less than a ring holds, so that no frame is dropped for lack of a descriptor.
    let limit = config.port.rx_ring.min(config.port.tx_ring) / 2;
    let ways = [0, 1].map(|_| Arc::new(AtomicUsize::new(0)));
    let mut wires = Wires::new();
    let packets = pool(2, None, config)?;
    let mut open = |n: usize| -> Result<Box<dyn Port>, Error> {
        let mac = |n: usize| MacAddress([2, 0, 0, 0, 0, n as u8 + 1]);
        let card = Card::new(&CardConfig { mac: mac(n), ..Default::default() });
        let name = format!("card {}", n + 1);
        let port = Ixgbe::open(card.clone(), &name, &config.port, &packets)?;
        let address = |n: usize| Ipv4Addr::new(198, 18, n as u8, 1);
        let ends = Endpoints { mac: (mac(n + 2), mac(n)), ip: (address(n), address(1 - n)), port: 9, run: 0 };
        let source = Source { cache: frames(&ends, limit)?, limit, in_flight: ways[n].clone() };
        let sink = Sink { in_flight: ways[1 - n].clone() };
        wires.push((card, Queues { rx: Box::new(source), tx: Box::new(sink) }));
        Ok(Box::new(port))
    };
    let ports = vec![open(0)?, open(1)?];
    Ok((Ports::new(ports, packets, Needs::new(config)), wires))
}

const FLOWS: u32 = 64;

/// Creates a pool whose every buffer already holds a frame.
fn frames(ends: &Endpoints, limit: usize) -> Result<Cache, Error> {
    let pool = Mempool::new(&MempoolConfig { buffers: limit + 4 * MAGAZINE, ..Default::default() })?;
    let template = Template::new(ends, MIN);
    let mut all = Vec::new();
    while let Some(mut packet) = pool.alloc() {
        packet.set_len(MIN);
        template.write(&mut packet, &Mark { flow: all.len() as u32 % FLOWS, sequence: 0, time: 0 });
        all.push(packet);
    }
    Ok(pool.cache())
}

/// The wire's input to a card: frames, as long as fewer than `limit` are on their way to the sink.
struct Source {
    cache: Cache,
    limit: usize,
    in_flight: Arc<AtomicUsize>,
}

impl Wakeable for Source {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Source {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let room = self.limit.saturating_sub(self.in_flight.load(Ordering::Relaxed));
        for mut packet in self.cache.take(room.min(burst.room())) {
            packet.set_len(MIN);
            burst.push(packet);
        }
        self.in_flight.fetch_add(burst.len() - before, Ordering::Relaxed);
        burst.len() - before
    }
}

/// The wire's output from a card, which drops the frames and counts them as delivered.
struct Sink {
    in_flight: Arc<AtomicUsize>,
}

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        burst.clear();
        self.in_flight.fetch_sub(taken, Ordering::Relaxed);
        taken
    }
}
