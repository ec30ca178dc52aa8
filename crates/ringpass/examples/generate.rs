//! Generates numbered UDP frames as fast as the port takes them, and prints the rate:
//! `cargo run --release -p ringpass --example generate -- model:null 10000000`

use std::time::Instant;

use etherparse::PacketBuilder;
use ringpass::{Burst, Config, Error};

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "model:null".into());
    let count: u32 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(10_000_000);
    let mut ports = ringpass::open([address], &Config::default())?;
    let mut queues = ports.take_one()?;
    let mut packets = ports.pool().cache();

    let udp =
        PacketBuilder::ethernet2(ports[0].mac().0, [0xff; 6]).ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64).udp(9, 9);
    let mut frame = Vec::new();
    udp.write(&mut frame, &[0; 18]).expect("a buffer that grows");

    let (mut burst, mut sent, start) = (Burst::new(32), 0, Instant::now());
    while sent < count {
        for mut packet in packets.take(burst.room().min((count - sent) as usize)) {
            let number = sent + burst.len() as u32;
            assert!(packet.copy_from(&frame), "room for a short frame");
            packet.write(frame.len() - 4, &number.to_be_bytes());
            burst.push(packet);
        }
        // What the port has no room for stays in the burst, and its packets are not filled again.
        sent += queues.tx.tx_burst(&mut burst) as u32;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{count} frames in {seconds:.3} s: {:.2} Mpps", f64::from(count) / seconds / 1e6);
    Ok(())
}
