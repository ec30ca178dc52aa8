//! The subcommand `ringpass demo`: the driver forwards between two software cards, with traffic both ways.

use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringpass::sandbox::Needs;
use ringpass::{
    Burst, Config, Direction, Error, MacAddress, Mempool, Port, Ports, QueuePair, RingStatus, RxQueue, Totals, TxQueue,
    WakeSource, Wakeable, cycles,
};
use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::{Cache, FrameBatch, L4};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_models::{Runner, Stepper};
use ringpass_port::FrameSink;

use crate::cores::{core_to_core_cycles, distance};
use crate::fwd;
use crate::options::Options;
use crate::pktgen::frame::{Addresses, Endpoints, MIN, Mark};
use crate::pktgen::template::{Checksums, Template};
use crate::run_observer::RunObserver;
use crate::stats::{Fields, pps, print_line};
use ringpass::open::{on_any_pages, pool};

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
      ringpass demo --time 3 --batch 1
  rings that move, in a browser, until Ctrl-C; the cards can be stopped, and handle one descriptor a click:
      ringpass demo --web";

const WHAT: &str = "\
Two software 82599 cards, 60-byte UDP frames in 64 flows on the wires of both.
The driver for real cards forwards between them, through rings and DMA memory.
One thread plays the cards, one forwards: no kernel, no root. Ctrl-C ends it.
";

/// Time between two pictures of the rings on a terminal.
const PICTURE: Duration = Duration::from_millis(200);

const NEXT: &str = "
Try next:
  the kernel's own traffic through the driver:
      sudo ringpass fwd model:tap:left model:tap:right
  a generator, on one software card:
      ringpass pktgen model:null --size 1514 --time 3
  rings that move, in a browser:
      ringpass demo --web
  your network cards, and what this machine can do:
      ringpass list; ringpass doctor";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut options = args.options;
    match &mut options.web {
        // Whoever looks at the page ends the demo. Nobody is harmed if its cards stop.
        Some(place) => place.steps = true,
        None => _ = options.time.get_or_insert(Duration::from_secs(10)),
    }
    // By default the cards run on the first core and the forwarder on the second, if there are two.
    let mut cores = None;
    if let [cards, forwarder, ..] = core_affinity::get_core_ids().unwrap_or_default()[..]
        && options.cpu.is_empty()
    {
        (cores, options.cpu) = (Some([cards, forwarder]), vec![forwarder.id]);
    }
    if !options.json {
        print_line(WHAT);
    }
    if std::io::stdout().is_terminal() {
        options.interval = options.interval.min(PICTURE);
    }
    let mut run = options.run()?;
    let cost = Cost { driver: driver_alone(&run.config)?, core_to_core: cores.map(core_to_core_cycles) };
    let (mut ports, wires) = cards(&run.config)?;
    run.enter_sandbox(ports.needs())?;
    let runner = Runner::spawn(wires, cores.map(|[cards, _]| cards.id), run.config.idle());
    fwd::start(&mut run, ports.take_queue_pairs(false)?)?;
    let json = options.json;
    let mut observer = Observer { json, cost, stepper: runner.stepper(), totals: Totals::default() };
    run.control_with(&mut ports, &mut observer)?;
    drop(runner);
    if !json {
        print_line(&observer.cost.explain(&observer.totals));
        print_line(NEXT);
    }
    Ok(())
}

/// Additions of the demo to the statistics.
struct Observer {
    json: bool,
    cost: Cost,
    stepper: Stepper,
    totals: Totals,
}

impl RunObserver for Observer {
    fn fields(&mut self, totals: &Totals) -> Fields {
        self.totals = *totals;
        let mut fields = fwd::report(totals);
        if self.json {
            fields.insert("driver_cycles_per_packet".into(), self.cost.driver.into());
            fields.insert("core_to_core_cycles".into(), self.cost.core_to_core.map(f64::round).into());
        }
        fields
    }

    fn stepper(&self) -> Option<Stepper> {
        Some(self.stepper.clone())
    }

    /// Shows the rings of each card.
    fn picture(&mut self, ports: &mut [Box<dyn Port>]) -> Vec<String> {
        let bar = |descriptors: usize, posted: usize| {
            const WIDTH: usize = 24;
            let full = (posted * WIDTH).div_ceil(descriptors.max(1));
            format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full))
        };
        let line = |port: &mut Box<dyn Port>| {
            let rings = port.rings();
            let sum = |direction: Direction, number: fn(&RingStatus) -> usize| -> usize {
                rings.iter().filter(|ring| ring.direction == direction).map(number).sum()
            };
            let [rx, tx] = [Direction::Rx, Direction::Tx].map(|direction| sum(direction, |ring| ring.descriptors));
            let [free, waiting] = [Direction::Rx, Direction::Tx].map(|direction| sum(direction, |ring| ring.posted));
            let (done, sent) = (rx - free, tx - waiting);
            format!(
                "       {}  rx {} {:>4} posted {done:>4} done   tx {} {:>4} waiting {sent:>4} sent or free",
                port.name(),
                bar(rx, free),
                free,
                bar(tx, waiting),
                waiting
            )
        };
        ports.iter_mut().map(line).collect()
    }
}

/// Costs that the demo's rate depends on.
struct Cost {
    /// Cycles that driver and forwarder spend on a packet without a card on the other core.
    driver: u64,
    /// Cycles of a cache line's way between the cores of cards and forwarder, if these are pinned to two cores.
    core_to_core: Option<f64>,
}

impl Cost {
    fn explain(&self, totals: &Totals) -> String {
        let Self { driver, core_to_core } = self;
        let rate = pps(totals.moved as f64 / totals.elapsed.as_secs_f64().max(1e-9));
        let cycles = totals.cycles_per_packet();
        let way = core_to_core.map_or_else(String::new, |way| {
            format!(
                "A cache line takes {way:.0} cycles from the core that plays the cards ({} cores).\n",
                distance(way)
            )
        });
        format!(
            "Forwarded {rate}; the forwarding core spent {cycles} cycles on a packet.\n\
             Driver and forwarder by themselves take {driver}, measured before with rings that were full.\n\
             {way}On real cards, ixy takes 96 cycles and DPDK 61 (ixy paper, Table 1)."
        )
    }
}

/// Returns the cycles per packet of driver and forwarder alone: the cards fill the rings, which is not timed, before the
/// forwarder empties them. The median of some rounds, as `ringpass bench driver` measures it.
fn driver_alone(config: &Config) -> Result<u64, Error> {
    const ROUNDS: usize = 200;
    /// Steps that certainly fill the rings.
    const STEPS: usize = 1000;
    let (mut ports, mut wires) = cards(config)?;
    let mut pairs = ports.take_queue_pairs(false)?;
    let mut burst = Burst::new(config.batch);
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            let mut step = || wires.iter_mut().map(|(card, wire)| card.step(wire)).sum::<usize>();
            (0..STEPS).take_while(|_| step() > 0).for_each(drop);
            let (start, mut moved) = (cycles(), 0);
            loop {
                match forward_once(&mut pairs, &mut burst) {
                    0 => break,
                    now => moved += now,
                }
            }
            (cycles() - start) / moved.max(1) as u64
        })
        .collect();
    rounds.sort_unstable();
    Ok(rounds[ROUNDS / 2])
}

/// Forwards a burst in each direction between each two queues, and returns the number of packets.
pub fn forward_once(pairs: &mut [(QueuePair, QueuePair)], burst: &mut Burst) -> usize {
    let mut moved = 0;
    for (a, b) in pairs {
        for (rx, tx) in [(&mut a.rx, &mut b.tx), (&mut b.rx, &mut a.tx)] {
            moved += fwd::move_burst(&mut **rx, &mut **tx, burst).0;
        }
    }
    moved
}

type Wires = Vec<(Arc<Card>, QueuePair)>;

/// Creates two cards, each with its driver as a port, and the traffic on their wires.
fn cards(config: &Config) -> Result<(Ports, Wires), Error> {
    on_any_pages(config, cards_on)
}

fn cards_on(config: &Config) -> Result<(Ports, Wires), Error> {
    // Less than a ring holds, so that no frame is dropped for lack of a descriptor.
    let limit = config.port.rx_ring.min(config.port.tx_ring) / 2;
    let packets = pool(&[config.port; 2], &[], config)?;
    let cards = [0, 1].map(|n| Card::new(&CardConfig { mac: mac(n), ..Default::default() }));
    let open = |n: usize| -> Result<Box<dyn Port>, Error> {
        Ok(Box::new(Ixgbe::open(cards[n].clone(), &format!("card {}", n + 1), &config.port, &packets)?))
    };
    let ports = vec![open(0)?, open(1)?];
    let wires = cards.into_iter().zip(wires(&packets, limit)).collect();
    Ok((Ports::new(ports, packets, Needs::new(config.user)), wires))
}

/// Returns the MAC address of card 0 or 1; 2 and 3 are those of the senders on their wires.
pub fn mac(n: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, n as u8 + 1])
}

/// Returns the far ends of the wires of two cards. Frames enter each, as long as fewer than `limit` of them have not left the
/// other one yet.
pub fn wires(packets: &Mempool, limit: usize) -> [QueuePair; 2] {
    let ways = [0, 1].map(|_| Arc::new(AtomicUsize::new(0)));
    [0, 1].map(|n| {
        let address = |n: usize| Ipv4Addr::new(198, 18, n as u8, 1);
        let ip = Addresses::V4 { source: address(n), destination: address(1 - n) };
        let ends = Endpoints { mac: (mac(n + 2), mac(n)), vlan: None, ip, transport: L4::Udp, port: 9, run: 0 };
        let source = Source { flows: flows(&ends), next: 0, cache: packets.cache(), limit, in_flight: ways[n].clone() };
        QueuePair { rx: Box::new(source), tx: Box::new(Sink { in_flight: ways[1 - n].clone() }) }
    })
}

const FLOWS: u32 = 64;

/// Returns a frame of each flow.
fn flows(ends: &Endpoints) -> Vec<[u8; MIN]> {
    let template = Template::new(ends, MIN);
    let start = |flow| template.start(&Mark { flow, sequence: 0, time: 0 }, &[], Checksums::Generator);
    (0..FLOWS).map(|flow| *start(flow).first_chunk().expect("a start is longer")).collect()
}

/// The wire's input to a card: frames, as long as fewer than `limit` are on their way to the sink.
struct Source {
    flows: Vec<[u8; MIN]>,
    /// Flow of the next frame.
    next: usize,
    /// Buffers for those who want packets.
    cache: Cache,
    limit: usize,
    in_flight: Arc<AtomicUsize>,
}

impl Source {
    /// Returns how many frames may leave now, at most `room`.
    fn ready(&self, room: usize) -> usize {
        self.limit.saturating_sub(self.in_flight.load(Ordering::Relaxed)).min(room)
    }

    fn leave(&mut self, frames: usize) -> usize {
        self.next = (self.next + frames) % self.flows.len();
        self.in_flight.fetch_add(frames, Ordering::Relaxed);
        frames
    }
}

impl Wakeable for Source {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Source {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let ready = self.ready(burst.room());
        for (mut packet, frame) in self.cache.take(ready).zip(self.flows.iter().cycle().skip(self.next)) {
            packet.set_len(MIN);
            packet.write(0, frame);
            burst.push(packet);
        }
        self.leave(burst.len() - before)
    }

    fn rx_frames(&mut self, frames: &mut FrameBatch) -> usize {
        let ready = self.ready(frames.room());
        if ready == 0 {
            return 0;
        }
        // At most as many as there are flows.
        let (before, from) = self.flows.split_at(self.next);
        from.iter().chain(before).take(ready).for_each(|frame| frames.push_bytes(frame));
        self.leave(ready.min(self.flows.len()))
    }
}

/// The wire's output from a card, which drops the frames and counts them as delivered.
struct Sink {
    in_flight: Arc<AtomicUsize>,
}

impl FrameSink for Sink {
    fn send(&mut self, frames: &FrameBatch) {
        self.in_flight.fetch_sub(frames.len(), Ordering::Relaxed);
    }
}

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = burst.len();
        burst.clear();
        self.in_flight.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    fn frame_sink(&mut self) -> Option<&mut dyn FrameSink> {
        Some(self)
    }
}
