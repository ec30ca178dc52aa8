//! `ringpass echo PORT`: sends each frame back to where it came from.

use ringpass_memory::{Burst, Packet};
use ringpass_port::{Error, Queues};

use crate::open::{close, open};
use crate::options::Options;
use crate::run::Run;
use crate::stats::fields;
use crate::worker::Worker;

/// Send every frame back, with its MAC addresses exchanged
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
    let mut run = Run::new(args.options)?;
    let (ports, pool) = open([&args.port], &run.options)?;
    let mut ports = Vec::from(ports);
    run.enter_sandbox()?;
    for queues in ports[0].take_queues() {
        run.spawn(move |worker| echo(queues, worker));
    }
    let result = run.control(&mut ports, &mut |totals| fields([("echo_drops", totals.dropped.into())]));
    close(ports, &pool);
    result
}

fn echo(mut queues: Queues, mut worker: Worker) {
    let mut burst = Burst::new(worker.batch);
    while worker.running() {
        let received = queues.rx.rx_burst(&mut burst);
        if received > 0 {
            burst.iter_mut().for_each(exchange_addresses);
            queues.tx.tx_burst(&mut burst);
            worker.dropped(burst.len());
            burst.clear();
        }
        worker.after(received, &mut [&mut *queues.rx]);
    }
}

fn exchange_addresses(packet: &mut Packet) {
    if let Some(mut addresses) = packet.array::<12>(0) {
        addresses.rotate_left(6);
        packet.write(0, &addresses);
    }
}
