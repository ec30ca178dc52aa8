//! Passes frames between two ports as far as a file of rules allows, and the answers to them. The first rule that matches a packet
//! decides; what none matches is dropped, and ARP passes. A rule is a line such as `allow tcp 198.18.0.0/24 any 80`: action,
//! protocol, source, destination, and destination port (or nothing for any):
//! `cargo run --release -p ringpass --example firewall -- model:tap:inside model:tap:outside rules.txt`

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use ringpass::headers::{EtherType, Ethernet, Flow, Header, IpProtocol};
use ringpass::{Burst, Config, Error, FlowTable, Packet, QueuePair, RxQueue, Timer, TxQueue, Worker, Workers};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [a, b, file] = &arguments[..] else {
        return Err(Error::Config("name two ports and a file of rules".into()));
    };
    let text = std::fs::read_to_string(file).map_err(|error| Error::file(file, error))?;
    let rules = parse(&text).map_err(|(line, why)| Error::Config(format!("{file}:{line}: {why}")))?;
    let config = Config::default();
    let mut ports = ringpass::open([a, b], &config)?;
    // Frames for hosts on the other side carry their addresses.
    ports.iter_mut().try_for_each(|port| port.set_promiscuous(true))?;
    let [a, b] = ports.take_pair()?;
    let allowed = FlowTable::new(1 << 16, Duration::from_secs(300));
    let mut firewall = Firewall { rules, allowed, dropped: 0 };
    let mut workers = Workers::new(&config)?;
    workers.spawn("firewall", move |worker| firewall.run(a, b, worker))?;
    let ended = workers.run(ports);
    println!("{} packets dropped", workers.totals(Duration::ZERO).dropped);
    ended.map(drop)
}

struct Firewall {
    rules: Vec<Rule>,
    /// Flows that a rule allows, each by the lesser one of its two directions.
    allowed: FlowTable<Flow, ()>,
    dropped: usize,
}

impl Firewall {
    fn run(&mut self, mut a: QueuePair, mut b: QueuePair, mut worker: Worker) -> Result<(), Error> {
        let (mut burst, mut timer) = (Burst::new(worker.batch), Timer::every(Duration::from_secs(1)));
        while worker.running() {
            let now = worker.now();
            let there = self.pass(&mut *a.rx, &mut *b.tx, &mut burst, now);
            let back = self.pass(&mut *b.rx, &mut *a.tx, &mut burst, now);
            worker.dropped(std::mem::take(&mut self.dropped));
            if timer.is_due(now) {
                while self.allowed.expire(now).is_some() {}
            }
            worker.after(there + back, &mut [&mut *a.rx, &mut *b.rx, &mut timer]);
        }
        Ok(())
    }

    fn pass(&mut self, rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, now: Instant) -> usize {
        let received = rx.rx_burst(burst);
        burst.retain(|packet| self.is_allowed(packet, now));
        self.dropped += received - burst.len();
        tx.tx_burst(burst);
        burst.clear();
        received
    }

    fn is_allowed(&mut self, packet: &Packet, now: Instant) -> bool {
        let Some(flow) = Flow::of(packet) else {
            return Ethernet::read(packet, 0).is_some_and(|ethernet| ethernet.ether_type() == EtherType::ARP);
        };
        let key = flow.min(flow.reversed());
        if self.allowed.get(&key, now).is_some() {
            return true;
        }
        let allowed = self.rules.iter().find(|rule| rule.matches(&flow)).is_some_and(|rule| rule.allows);
        // Where the table is full, the answers are not known and dropped.
        allowed && self.allowed.insert(key, (), now).is_some()
    }
}

/// A line of the file. `None` stands for any.
struct Rule {
    allows: bool,
    protocol: Option<IpProtocol>,
    source: Option<IpNet>,
    destination: Option<IpNet>,
    port: Option<u16>,
}

impl Rule {
    fn matches(&self, flow: &Flow) -> bool {
        self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.source.as_ref().is_none_or(|network| network.contains(&flow.source))
            && self.destination.as_ref().is_none_or(|network| network.contains(&flow.destination))
            && self.port.is_none_or(|port| port == flow.destination_port)
    }
}

/// Parses the file; an error comes with the number of its line.
fn parse(text: &str) -> Result<Vec<Rule>, (usize, String)> {
    let lines = (1..).zip(text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()));
    lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| rule(line).map_err(|why| (number, why))).collect()
}

fn rule(line: &str) -> Result<Rule, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ([action @ ("allow" | "deny"), protocol, source, destination]
    | [action @ ("allow" | "deny"), protocol, source, destination, _]) = words[..]
    else {
        return Err("write allow or deny, a protocol, a source, a destination, and a port or nothing".into());
    };
    let protocol = match protocol {
        "any" => None,
        "tcp" => Some(IpProtocol::TCP),
        "udp" => Some(IpProtocol::UDP),
        "icmp" => Some(IpProtocol::ICMP),
        "icmp6" => Some(IpProtocol::ICMPV6),
        other => Some(IpProtocol(
            other.parse().map_err(|_| format!("{other}: write tcp, udp, icmp, icmp6, a number, or any"))?,
        )),
    };
    let port = words
        .get(4)
        .filter(|port| **port != "any")
        .map(|port| port.parse().map_err(|_| format!("{port}: write a port, 0 to 65535")));
    Ok(Rule {
        allows: action == "allow",
        protocol,
        source: network(source)?,
        destination: network(destination)?,
        port: port.transpose()?,
    })
}

fn network(text: &str) -> Result<Option<IpNet>, String> {
    if text == "any" {
        return Ok(None);
    }
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map(Some).map_err(|_| format!("{text}: write an address, a network such as 198.18.0.0/24, or any"))
}
