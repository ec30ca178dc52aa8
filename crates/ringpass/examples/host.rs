//! Is a tiny host with one address, which answers ARP and ping:
//! `cargo run --release -p ringpass --example host -- model:tap:a 198.18.0.2`

use ringpass::{Burst, Config, Error, Idle, Packet};

fn main() -> Result<(), Error> {
    let [port, ip] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err(Error::Address("a port and an IPv4 address are needed".into()));
    };
    let ip: std::net::Ipv4Addr = ip.parse().map_err(|error| Error::Address(format!("{ip}: {error}")))?;
    let mut ports = ringpass::open([port], &Config::default())?;
    let (mac, mut queues) = (ports[0].mac(), ports.take_one()?);
    let (mut requests, mut answers, mut idle) = (Burst::new(32), Burst::new(32), Idle::default());
    loop {
        let received = queues.rx.rx_burst(&mut requests);
        requests
            .drain()
            .filter_map(|packet| answer(packet, mac.0, ip.octets()))
            .for_each(|packet| answers.push(packet));
        queues.tx.tx_burst(&mut answers);
        answers.clear();
        idle.after(received, &mut [&mut *queues.rx]);
    }
}

/// Turns a request into its answer, in the same buffer. `None` for all other frames, which are dropped.
fn answer(mut packet: Packet, mac: [u8; 6], ip: [u8; 4]) -> Option<Packet> {
    let mut frame = packet.to_vec();
    match frame.get(12..24)? {
        [8, 6, .., 0, 1, _, _] if *frame.get(38..42)? == ip => {
            frame.copy_within(22..32, 32); // ARP (RFC 826): the request's sender is the reply's target
            frame[20..32].copy_from_slice(&[&[0, 2], &mac[..], &ip].concat());
        }
        [8, 0, 0x45, .., 1] if *frame.get(30..34)? == ip && frame.get(34..42)?[0] == 8 => {
            frame.copy_within(26..30, 30); // an echo request without IP options (RFC 792)
            frame[26..30].copy_from_slice(&ip);
            // Type 8 becomes 0, so the checksum gains 8 in its upper byte, with the carry around (RFC 1624).
            let (sum, carry) = u16::from_be_bytes([frame[36], frame[37]]).overflowing_add(0x0800);
            frame[34..38].copy_from_slice(&[&[0, 0], &(sum + u16::from(carry)).to_be_bytes()[..]].concat());
        }
        _ => return None,
    }
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&mac);
    packet.copy_from(&frame).then_some(packet)
}
