//! `ringpass fwd A B`: what one port receives, the other sends.

use ringpass_memory::Burst;
use ringpass_port::{Error, Queues, RxQueue, TxQueue};

use crate::map::take_pairs;
use crate::open::open;
use crate::options::Options;
use crate::run::Run;
use crate::stats::{Fields, fields};
use crate::worker::{Totals, Worker};

/// Forward packets between two ports, both ways
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One port (see 'ringpass --help' for port addresses)
    a: String,
    /// The other port
    b: String,
    /// What the card receives is written into the buffers of the guest that it goes to (vhost-user)
    #[arg(long)]
    map: bool,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  two cards, driven by Ringpass:
      sudo ringpass fwd 0000:01:00.0 0000:01:00.1
  the same driver on two software 82599s, with TAP interfaces on their wires:
      sudo ringpass fwd model:tap:left model:tap:right
  a card and a virtual machine, received frames without copies:
      sudo ringpass fwd --map 0000:01:00.0 vhost:/run/vm1.sock";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut run = Run::new(args.options)?;
    let (mut ports, _pool) = open([&args.a, &args.b], &run.options)?;
    run.enter_sandbox()?;
    start(&mut run, take_pairs(&mut ports, args.map)?);
    run.control(&mut ports, &mut report)
}

/// One worker for each pair of queues.
pub fn start(run: &mut Run, queues: Vec<(Queues, Queues)>) {
    for (a, b) in queues {
        run.spawn(move |worker| forward(a, b, worker));
    }
}

/// A worker: both directions, until told to stop.
fn forward(mut a: Queues, mut b: Queues, mut worker: Worker) {
    let mut burst = Burst::new(worker.batch);
    while worker.running() {
        let there = pass(&mut *a.rx, &mut *b.tx, &mut burst, &worker);
        let back = pass(&mut *b.rx, &mut *a.tx, &mut burst, &worker);
        worker.after(there + back, &mut [&mut *a.rx, &mut *b.rx]);
    }
}

/// Receives a burst and sends it. What the other side has no room for is dropped, as a switch does.
#[inline]
fn pass(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, worker: &Worker) -> usize {
    let received = rx.rx_burst(burst);
    if received > 0 {
        tx.tx_burst(burst);
        worker.dropped(burst.len());
        burst.clear();
    }
    received
}

/// What the forwarder adds to the ports' statistics.
pub fn report(totals: &Totals) -> Fields {
    fields([("forwarder_drops", totals.dropped.into()), ("cycles_per_packet", totals.cycles_per_packet().into())])
}
