//! Sends each frame back to where it came from, on one worker for each queue, and prints statistics every second:
//! `cargo run --release -p ringpass --example echo -- model:tap:a 2`

use std::time::Duration;

use ringpass::{Burst, Config, Error, PortConfig, QueuePair, Worker, Workers, signals};

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "model:null".into());
    let queues = arguments.next().and_then(|queues| queues.parse().ok()).unwrap_or(1);
    let config = Config { port: PortConfig { queues, ..Default::default() }, ..Config::default() };
    let mut ports = ringpass::open([address], &config)?;
    let mut workers = Workers::new(&config)?;
    for queues in ports.take_queues().remove(0) {
        workers.spawn("echo", move |worker| echo(queues, worker))?;
    }
    signals::catch()?;
    let mut printed = Duration::ZERO;
    let ended = workers.run_until(&mut ports, signals::interrupted, |totals, ports| {
        if totals.elapsed >= printed + Duration::from_secs(1) {
            printed = totals.elapsed;
            println!("{:?}", ports[0].stats());
        }
        Ok(())
    });
    let closed = ports.close();
    ended.and(closed)
}

fn echo(mut queues: QueuePair, mut worker: Worker) -> Result<(), Error> {
    let mut burst = Burst::new(worker.batch);
    while worker.running() {
        let received = queues.rx.rx_burst(&mut burst);
        for packet in burst.iter_mut() {
            if let Some(mut addresses) = packet.array::<12>(0) {
                addresses.rotate_left(6);
                packet.write(0, &addresses);
            }
        }
        queues.tx.tx_burst(&mut burst);
        burst.clear();
        worker.after(received, &mut [&mut *queues.rx]);
    }
    Ok(())
}
