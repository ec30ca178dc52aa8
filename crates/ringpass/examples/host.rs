//! Is a tiny host with one address, which answers ARP and ping:
//! `cargo run --release -p ringpass --example host -- model:tap:a 198.18.0.2`

use std::net::Ipv4Addr;

use ringpass::headers::{Arp, EtherType, Ethernet, Header, Icmp, IpProtocol, Ipv4};
use ringpass::{Burst, Config, Error, Idle, MacAddress, Packet};

fn main() -> Result<(), Error> {
    let [port, ip] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err(Error::Address("a port and an IPv4 address are needed".into()));
    };
    let ip = ip.parse().map_err(|error| Error::Address(format!("{ip}: {error}")))?;
    let mut ports = ringpass::open([port], &Config::default())?;
    let (mac, mut queues) = (ports[0].mac(), ports.take_one()?);
    let (mut burst, mut idle) = (Burst::new(32), Idle::default());
    loop {
        let received = queues.rx.rx_burst(&mut burst);
        burst.retain(|packet| answer(packet, mac, ip).is_some());
        queues.tx.tx_burst(&mut burst);
        burst.clear();
        idle.after(received, &mut [&mut *queues.rx]);
    }
}

/// Turns a request into its answer, in the same buffer. `None` for all other frames.
fn answer(packet: &mut Packet, mac: MacAddress, own: Ipv4Addr) -> Option<()> {
    let ethernet = Ethernet::read(packet, 0)?;
    if ethernet.ether_type() == EtherType::ARP {
        let request = Arp::read(packet, Ethernet::LEN)?;
        (request.operation() == Arp::REQUEST && request.target_ip() == own).then_some(())?;
        request.reply(mac).write(packet, Ethernet::LEN);
    } else {
        let mut ip = Ipv4::read(packet, Ethernet::LEN).filter(|ip| ip.destination() == own && !ip.is_fragment())?;
        let at = Ethernet::LEN + ip.header_len();
        let mut icmp = Icmp::read(packet, at).filter(|_| ip.protocol() == IpProtocol::ICMP)?;
        (icmp.kind() == Icmp::ECHO_REQUEST).then(|| icmp.set_kind(Icmp::ECHO_REPLY))?;
        icmp.write(packet, at);
        _ = ip.set_destination(ip.source());
        _ = ip.set_source(own);
        ip.write(packet, Ethernet::LEN);
    }
    Ethernet::new(ethernet.source(), mac, ethernet.ether_type()).write(packet, 0);
    Some(())
}
