//! Forwards frames between two ports, both ways, until Ctrl-C or the end of a capture file:
//! `cargo run --release -p ringpass --example forward -- 0000:01:00.0 tap:a`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpass::{Burst, Config, Error, Idle, RxQueue, TxQueue};
use signal_hook::consts::{SIGINT, SIGTERM};

fn main() -> Result<(), Error> {
    let mut ports = ringpass::open(std::env::args().skip(1), &Config::default())?;
    let [mut a, mut b] = ports.take_pair()?;
    println!("{}", ports.notes().join("\n"));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|error| Error::os("taking Ctrl-C", error))?;
    }
    let (mut burst, mut idle) = (Burst::new(32), Idle::default());
    let (mut moved, mut checked) = (0, Instant::now());
    let result = loop {
        let there = pass(&mut *a.rx, &mut *b.tx, &mut burst);
        let back = pass(&mut *b.rx, &mut *a.tx, &mut burst);
        idle.after(there + back, &mut [&mut *a.rx, &mut *b.rx]);
        moved += there + back;
        if checked.elapsed() > Duration::from_millis(200) {
            match ports.check() {
                Err(gone) => break Err(gone),
                // At the end of a capture file, what is under way still arrives.
                Ok(ended) if stop.load(Ordering::Relaxed) || ended && moved == 0 => break Ok(()),
                Ok(_) => (moved, checked) = (0, Instant::now()),
            }
        }
    };
    // Cards stop once their queues and their port are gone.
    drop((a, b));
    ports.close();
    result
}

/// Passes on a burst. The port that it goes to may have room for a part of it only; the rest is dropped, as a switch does.
fn pass(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = rx.rx_burst(burst);
    tx.tx_burst(burst);
    burst.clear();
    received
}
