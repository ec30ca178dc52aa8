//! The subcommand `ringpass fwd A B`: forwards what one port receives to the other, both ways.

use crate::options::Options;
use crate::run::Run;
use crate::stats::{Fields, fields};
use ringpass::{Burst, Error, QueuePair, RxQueue, Totals, TxQueue, Worker, open};

/// Forward packets between two ports, both ways
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One port (see 'ringpass --help' for port addresses)
    a: String,
    /// The other port
    b: String,
    /// Let a card receive directly into the buffers of the guest that frames go to (vhost-user)
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
    let mut run = args.options.run()?;
    let mut ports = open([&args.a, &args.b], &run.config)?;
    run.enter_sandbox(ports.needs())?;
    start(&mut run, ports.take_queue_pairs(args.map)?)?;
    run.control(&mut ports, &mut report)
}

/// Starts one worker for each pair of queues.
pub fn start(run: &mut Run, queues: Vec<(QueuePair, QueuePair)>) -> Result<(), Error> {
    queues.into_iter().try_for_each(|(a, b)| run.spawn(move |worker| forward(a, b, worker)))
}

/// Forwards in both directions until the worker is told to stop.
fn forward(mut a: QueuePair, mut b: QueuePair, mut worker: Worker) {
    let mut burst = Burst::new(worker.batch);
    while worker.running() {
        let most = worker.allow(2 * worker.batch);
        let there = pass(&mut *a.rx, &mut *b.tx, &mut burst, &worker, most);
        let back = pass(&mut *b.rx, &mut *a.tx, &mut burst, &worker, most - there);
        worker.after(there + back, &mut [&mut *a.rx, &mut *b.rx]);
    }
}

/// Receives a burst of at most `most` packets and sends it. Frames for which the other port has no room are dropped, as a
/// switch does.
#[inline]
fn pass(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, worker: &Worker, most: usize) -> usize {
    let size = most.min(worker.batch);
    if size == 0 {
        return 0;
    }
    // Only near the end of a run with --count.
    if burst.room() != size {
        *burst = Burst::new(size);
    }
    let (received, dropped) = move_burst(rx, tx, burst);
    worker.dropped(dropped);
    received
}

/// Receives a burst and sends it; returns the number of packets received, and of those dropped for lack of room.
#[inline]
pub fn move_burst(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) -> (usize, usize) {
    let received = rx.rx_burst(burst);
    if received == 0 {
        return (0, 0);
    }
    tx.tx_burst(burst);
    let dropped = burst.len();
    burst.clear();
    (received, dropped)
}

/// Returns the forwarder's additions to the ports' statistics.
pub fn report(totals: &Totals) -> Fields {
    fields([("forwarder_drops", totals.dropped.into()), ("cycles_per_packet", totals.cycles_per_packet().into())])
}
