//! Forwards frames between two ports, both ways, until Ctrl-C or the end of a capture file:
//! `cargo run --release -p ringpass --example forward -- 0000:01:00.0 tap:a`

use ringpass::{Burst, Config, Error, QueuePair, RxQueue, TxQueue, Worker, Workers};

fn main() -> Result<(), Error> {
    let config = Config::default();
    let mut ports = ringpass::open(std::env::args().skip(1), &config)?;
    let [a, b] = ports.take_pair()?;
    println!("{}", ports.notes().join("\n"));
    let mut workers = Workers::new(&config)?;
    workers.spawn("forward", |worker| forward(a, b, worker))?;
    println!("{} packets moved", workers.run(ports)?.moved);
    Ok(())
}

fn forward(mut a: QueuePair, mut b: QueuePair, mut worker: Worker) -> Result<(), Error> {
    let mut burst = Burst::new(worker.batch);
    while worker.running() {
        let there = pass(&mut *a.rx, &mut *b.tx, &mut burst);
        let back = pass(&mut *b.rx, &mut *a.tx, &mut burst);
        worker.after(there + back, &mut [&mut *a.rx, &mut *b.rx]);
    }
    Ok(())
}

/// Passes on a burst. The port that it goes to may have room for a part of it only; the rest is dropped, as a switch does.
fn pass(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = rx.rx_burst(burst);
    tx.tx_burst(burst);
    burst.clear();
    received
}
