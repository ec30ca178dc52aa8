//! Forwards frames between two ports, both ways, until Ctrl-C:
//! `cargo run --release -p ringpass --example forward -- 0000:01:00.0 tap:a`

use ringpass::{Burst, Config, Error, Idle, RxQueue, TxQueue};

fn main() -> Result<(), Error> {
    let mut ports = ringpass::open(std::env::args().skip(1), &Config::default())?;
    let [mut a, mut b] = ports.take_pair()?;
    println!("{}", ports.notes().join("\n"));
    let (mut burst, mut idle) = (Burst::new(32), Idle::default());
    loop {
        let there = pass(&mut *a.rx, &mut *b.tx, &mut burst);
        let back = pass(&mut *b.rx, &mut *a.tx, &mut burst);
        idle.after(there + back, &mut [&mut *a.rx, &mut *b.rx]);
    }
}

/// Passes on a burst. The port that it goes to may have room for a part of it only; the rest is dropped, as a switch does.
fn pass(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = rx.rx_burst(burst);
    tx.tx_burst(burst);
    burst.clear();
    received
}
