//! A driver on a software card, step by step: nothing happens between two steps, so each can be looked at.
//! `cargo run -p ringpass --example stepped_model`

use ringpass::models::ixgbe::{Card, CardConfig};
use ringpass::{Burst, Config, Error, Mempool, MempoolConfig, PortConfig, drivers};

fn main() -> Result<(), Error> {
    let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() })?;
    let card = Card::new(&CardConfig::default());
    let mut port =
        drivers::open(card.clone(), "card", &PortConfig { rx_ring: 64, tx_ring: 64, ..Default::default() }, &pool)?;
    let mut driver = port.take_queues().remove(0);
    // The wire: what it receives, the card sends.
    let mut wire = ringpass::open(["null"], &Config::default())?.take_one()?;

    let mut burst = Burst::new(1);
    let mut packet = pool.alloc().expect("a buffer");
    assert!(packet.copy_from(&[0xff; 60]));
    burst.push(packet);
    println!("the driver takes {} packet(s) and rings the doorbell", driver.tx.tx_burst(&mut burst));
    println!("the card has sent {} so far", card.counters().tx_packets);
    println!("the card moves {} packet(s) in a step", card.step(&mut wire));
    println!("the card has sent {} now", card.counters().tx_packets);
    println!("the driver counts {:?}", port.stats());
    Ok(())
}
