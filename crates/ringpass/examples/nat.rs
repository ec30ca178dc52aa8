//! Translates between a private network and a public one (NAPT, RFC 3022): TCP, UDP and pings leave with the program's address and
//! a port of its own, and answers find their way back. It answers ARP for its two addresses, the first of which is the private
//! network's router; the last one is the next router on the public side:
//! `cargo run --release -p ringpass --example nat -- model:tap:lan model:tap:wan 192.168.1.1 203.0.113.2 203.0.113.1`

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ringpass::headers::{Arp, EtherType, Ethernet, Header, IpProtocol, Ipv4, Transport};
use ringpass::{Burst, Cache, Config, Error, FlowTable, MacAddress, Packet, QueuePair, Timer, Worker, Workers};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |at: usize| arguments.get(at).and_then(|text| text.parse::<Ipv4Addr>().ok());
    let (Some(lan_ip), Some(wan_ip), Some(router)) = (address(2), address(3), address(4)) else {
        let usage = "name two ports and three IPv4 addresses: the private, the public, and the router's";
        return Err(Error::Config(usage.into()));
    };
    let config = Config::default();
    let mut ports = ringpass::open(&arguments[..2], &config)?;
    let (macs, packets) = ([ports[0].mac(), ports[1].mac()], ports.pool().cache());
    let [lan, wan] = ports.take_pair()?;
    let side = |queues, mac, ip| Side { queues, mac, ip, messages: Burst::new(32) };
    let (lan, wan) = (side(lan, macs[0], lan_ip), side(wan, macs[1], wan_ip));
    let free: Vec<u16> = (10_000..=u16::MAX).collect();
    let public_ports = FlowTable::new(free.len(), Duration::from_secs(120));
    let hosts = vec![None; 1 << 16];
    let nat = Nat { lan, wan, router, router_mac: None, public_ports, hosts, free, packets };
    let mut workers = Workers::new(&config)?;
    workers.spawn("nat", |worker| nat.run(worker))?;
    workers.run(ports).map(drop)
}

/// One of the two networks.
struct Side {
    queues: QueuePair,
    mac: MacAddress,
    ip: Ipv4Addr,
    /// ARP messages to be sent.
    messages: Burst,
}

/// A flow by its private address, as a number, and port.
type Private = (IpProtocol, u32, u16);

struct Nat {
    lan: Side,
    wan: Side,
    router: Ipv4Addr,
    router_mac: Option<MacAddress>,
    public_ports: FlowTable<Private, u16>,
    /// Flow and host of each public port in use.
    hosts: Vec<Option<(Private, MacAddress)>>,
    free: Vec<u16>,
    packets: Cache,
}

impl Nat {
    fn run(mut self, mut worker: Worker) -> Result<(), Error> {
        let (mut burst, mut timer) = (Burst::new(worker.batch), Timer::every(Duration::from_secs(1)));
        let request = Arp::request(self.wan.mac, self.wan.ip, self.router).frame();
        self.wan.messages.push_copy(&request, &mut self.packets);
        while worker.running() {
            let now = worker.now();
            let out = self.lan.queues.rx.rx_burst(&mut burst);
            burst.retain(|packet| self.leave(packet, now).is_some());
            self.wan.queues.tx.tx_burst(&mut burst);
            burst.clear();
            let back = self.wan.queues.rx.rx_burst(&mut burst);
            burst.retain(|packet| self.enter(packet, now).is_some());
            self.lan.queues.tx.tx_burst(&mut burst);
            burst.clear();
            if timer.is_due(now) {
                if self.router_mac.is_none() {
                    self.wan.messages.push_copy(&request, &mut self.packets);
                }
                while let Some((_, port)) = self.public_ports.expire(now) {
                    self.hosts[usize::from(port)] = None;
                    self.free.push(port);
                }
            }
            self.lan.queues.tx.tx_burst(&mut self.lan.messages);
            self.wan.queues.tx.tx_burst(&mut self.wan.messages);
            worker.after(out + back, &mut [&mut *self.lan.queues.rx, &mut *self.wan.queues.rx, &mut timer]);
        }
        Ok(())
    }

    /// Translates a packet of the private network. `None` for those that do not leave it.
    fn leave(&mut self, packet: &mut Packet, now: Instant) -> Option<()> {
        let ethernet = Ethernet::read(packet, 0)?;
        if ethernet.ether_type() == EtherType::ARP {
            answer(packet, &mut self.lan, &mut self.packets);
        }
        let mut ip = Ipv4::read(packet, Ethernet::LEN).filter(|ip| !ip.is_fragment() && ip.ttl() > 1)?;
        let at = Ethernet::LEN + ip.header_len();
        let mut transport = Transport::read(packet, at, ip.protocol())?;
        let flow = (ip.protocol(), ip.source().to_bits(), transport.source_port());
        let port = match self.public_ports.get(&flow, now) {
            Some(port) => *port,
            None => {
                let port = self.free.pop()?;
                self.hosts[usize::from(port)] = Some((flow, ethernet.source()));
                *self.public_ports.insert(flow, port, now)?
            }
        };
        transport.apply(ip.set_source(self.wan.ip));
        transport.set_source_port(port);
        ip.set_ttl(ip.ttl() - 1);
        Ethernet::new(self.router_mac?, self.wan.mac, EtherType::IPV4).write(packet, 0);
        ip.write(packet, Ethernet::LEN);
        transport.write(packet, at);
        Some(())
    }

    /// Translates an answer from the public network. `None` for all other packets.
    fn enter(&mut self, packet: &mut Packet, now: Instant) -> Option<()> {
        if Ethernet::read(packet, 0)?.ether_type() == EtherType::ARP {
            let message = answer(packet, &mut self.wan, &mut self.packets)?;
            self.router_mac = (message.sender_ip() == self.router).then(|| message.sender()).or(self.router_mac);
        }
        let mut ip = Ipv4::read(packet, Ethernet::LEN).filter(|ip| !ip.is_fragment() && ip.ttl() > 1)?;
        let at = Ethernet::LEN + ip.header_len();
        let mut transport = Transport::read(packet, at, ip.protocol())?;
        let (flow, host) = self.hosts[usize::from(transport.destination_port())]?;
        let (protocol, address, port) = flow;
        if ip.destination() != self.wan.ip || ip.protocol() != protocol {
            return None;
        }
        self.public_ports.get(&flow, now)?;
        transport.apply(ip.set_destination(address.into()));
        transport.set_destination_port(port);
        ip.set_ttl(ip.ttl() - 1);
        Ethernet::new(host, self.lan.mac, EtherType::IPV4).write(packet, 0);
        ip.write(packet, Ethernet::LEN);
        transport.write(packet, at);
        Some(())
    }
}

/// Answers an ARP request for the address of a side; returns the message.
fn answer(packet: &Packet, side: &mut Side, packets: &mut Cache) -> Option<Arp> {
    let message = Arp::read(packet, Ethernet::LEN)?;
    if message.operation() == Arp::REQUEST && message.target_ip() == side.ip {
        side.messages.push_copy(&message.reply(side.mac).frame(), packets);
    }
    Some(message)
}
