//! The subcommand `ringpass echo PORT`: sends each frame back to its sender.

use crate::options::Options;
use crate::run::close;
use crate::stats::fields;
use ringpass::{Burst, Error, Packet, QueuePair, Worker, open};

/// Send every frame back, with its MAC addresses swapped
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port (see 'ringpass --help' for port addresses)
    port: String,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  answers 'ringpass ping' at the other end of the cable:
      sudo ringpass echo 0000:01:00.0
  the same on a kernel interface:
      sudo ringpass echo packet:veth0";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut run = args.options.run()?;
    let mut ports = open([&args.port], &run.config)?;
    run.enter_sandbox(ports.needs())?;
    for queues in ports[0].take_queues() {
        run.spawn(move |worker| echo(queues, worker))?;
    }
    let result = run.control(&mut ports, &mut |totals| fields([("echo_drops", totals.dropped.into())]));
    close(ports);
    result
}

fn echo(mut queues: QueuePair, mut worker: Worker) {
    let mut burst = Burst::new(worker.batch);
    while worker.running() {
        let size = worker.allow(worker.batch);
        // Only near the end of a run with --count.
        if burst.room() != size.max(1) {
            burst = Burst::new(size);
        }
        let received = if size == 0 { 0 } else { queues.rx.rx_burst(&mut burst) };
        if received > 0 {
            burst.iter_mut().for_each(swap_macs);
            queues.tx.tx_burst(&mut burst);
            worker.dropped(burst.len());
            burst.clear();
        }
        worker.after(received, &mut [&mut *queues.rx]);
    }
}

fn swap_macs(packet: &mut Packet) {
    if let Some(mut addresses) = packet.array::<12>(0) {
        addresses.rotate_left(6);
        packet.write(0, &addresses);
    }
}
