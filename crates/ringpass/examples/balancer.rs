//! Balances a service over servers, here on four workers: what clients on the first port send to the service's address goes to one of
//! the servers behind the second port, the same one for each flow, and the answers carry the service's address. All other frames
//! pass; servers are reached by the service's address only. One that does not answer ARP for three seconds gets no flows:
//! `cargo run --release -p ringpass --example balancer -- model:tap:clients model:tap:servers 4 198.18.0.100 198.18.0.11 198.18.0.12`

use std::hash::BuildHasher;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use ringpass::headers::{Arp, EtherType, Ethernet, Header, Ipv4, Transport};
use ringpass::{Burst, Cache, Config, Error, MacAddress, Packet, PortConfig, QueuePair, Timer, Worker, Workers};

/// Milliseconds after which a server that does not answer gets no more flows.
const PATIENCE: u64 = 3000;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [clients, servers, workers, addresses @ ..] = &arguments[..] else {
        return Err(Error::Config("name two ports, a number of workers, and IPv4 addresses".into()));
    };
    let queues = workers.parse().map_err(|_| Error::Config(format!("{workers}: write a number of workers")))?;
    let addresses: Vec<Ipv4Addr> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
    let [service, server_ips @ ..] = &addresses[..] else {
        return Err(Error::Config("name IPv4 addresses: the service's, and those of servers".into()));
    };
    let config = Config { port: PortConfig { queues, ..Default::default() }, ..Config::default() };
    let mut ports = ringpass::open([clients, servers], &config)?;
    // Frames between clients and servers carry the addresses of those.
    ports.iter_mut().try_for_each(|port| port.set_promiscuous(true))?;
    let server = |&ip| Server { ip, mac: AtomicU64::new(0), seen: AtomicU64::new(0) };
    let servers: Arc<[Server]> = server_ips.iter().map(server).collect();
    let (mac, start) = (ports[0].mac(), Instant::now());
    let mut workers = Workers::new(&config)?;
    for queues in ports.take_queues_by_worker()? {
        let Ok([front, back]) = <[QueuePair; 2]>::try_from(queues) else { unreachable!("there are two ports") };
        let (servers, packets) = (servers.clone(), ports.pool().cache());
        let mut balancer = Balancer { service: *service, servers, mac, packets, start };
        workers.spawn("balancer", move |worker| balancer.run(front, back, worker))?;
    }
    let ended = workers.run(ports);
    workers.totals_of_each(start.elapsed()).iter().for_each(|worker| println!("{} packets", worker.moved));
    ended.map(drop)
}

/// A server, of which the workers tell each other.
struct Server {
    ip: Ipv4Addr,
    /// Its MAC address, as a number.
    mac: AtomicU64,
    /// When it last answered, in milliseconds since the start.
    seen: AtomicU64,
}

struct Balancer {
    service: Ipv4Addr,
    servers: Arc<[Server]>,
    mac: MacAddress,
    packets: Cache,
    start: Instant,
}

impl Balancer {
    fn run(&mut self, mut front: QueuePair, mut back: QueuePair, mut worker: Worker) -> Result<(), Error> {
        let (mut burst, mut answers) = (Burst::new(worker.batch), Burst::new(worker.batch));
        let mut timer = Timer::every(Duration::from_secs(1));
        self.ask_servers(&mut answers);
        back.tx.tx_burst(&mut answers);
        while worker.running() {
            let millis = worker.now().duration_since(self.start).as_millis() as u64;
            let there = front.rx.rx_burst(&mut burst);
            burst.retain(|packet| self.balance(packet, millis, &mut answers).is_some());
            back.tx.tx_burst(&mut burst);
            burst.clear();
            let here = back.rx.rx_burst(&mut burst);
            burst.retain(|packet| self.return_answer(packet, millis));
            front.tx.tx_burst(&mut burst);
            burst.clear();
            front.tx.tx_burst(&mut answers);
            answers.clear();
            if timer.is_due(worker.now()) {
                self.ask_servers(&mut answers);
                back.tx.tx_burst(&mut answers);
                answers.clear();
            }
            worker.after(there + here, &mut [&mut *front.rx, &mut *back.rx, &mut timer]);
        }
        Ok(())
    }

    /// Gives a client's packet for the service to a server. `None` for those that are not to be sent.
    fn balance(&mut self, packet: &mut Packet, millis: u64, answers: &mut Burst) -> Option<()> {
        let mut ethernet = Ethernet::read(packet, 0)?;
        if let Some(question) = Arp::read(packet, Ethernet::LEN).filter(|_| ethernet.ether_type() == EtherType::ARP) {
            let is_for_service = question.target_ip() == self.service;
            if is_for_service && question.operation() == Arp::REQUEST {
                answers.push_copy(&question.reply(self.mac).frame(), &mut self.packets);
            }
            return (!is_for_service).then_some(());
        }
        let Some(mut ip) = Ipv4::read(packet, Ethernet::LEN).filter(|ip| ip.destination() == self.service) else {
            return Some(());
        };
        let at = Ethernet::LEN + ip.header_len();
        let mut transport = Transport::read(packet, at, ip.protocol()).filter(|_| !ip.is_fragment())?;
        // The server with the highest number for this flow: if one is lost, only its own flows move (rendezvous hashing).
        let flow = (ip.source().to_bits(), transport.source_port());
        let rank = |server: &&Server| FixedState::default().hash_one((flow, server.ip.to_bits()));
        let answers_arp = |server: &&Server| millis < server.seen.load(Relaxed) + PATIENCE;
        let server = self.servers.iter().filter(answers_arp).max_by_key(rank)?;
        let [_, _, mac @ ..] = server.mac.load(Relaxed).to_be_bytes();
        ethernet.set_destination(MacAddress(mac));
        transport.apply(ip.set_destination(server.ip));
        ethernet.write(packet, 0);
        ip.write(packet, Ethernet::LEN);
        transport.write(packet, at);
        Some(())
    }

    /// Gives a server's answer the address of the service. Returns whether it is to be sent.
    fn return_answer(&mut self, packet: &mut Packet, millis: u64) -> bool {
        let Some(ethernet) = Ethernet::read(packet, 0) else { return false };
        if let Some(message) = Arp::read(packet, Ethernet::LEN).filter(|_| ethernet.ether_type() == EtherType::ARP) {
            if let Some(server) = self.servers.iter().find(|server| server.ip == message.sender_ip()) {
                let [a, b, c, d, e, f] = message.sender().0;
                server.mac.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Relaxed);
                server.seen.store(millis, Relaxed);
            }
            return ethernet.destination() != self.mac;
        }
        let is_server = |ip: &Ipv4| self.servers.iter().any(|server| server.ip == ip.source());
        if let Some(mut ip) = Ipv4::read(packet, Ethernet::LEN).filter(is_server) {
            let at = Ethernet::LEN + ip.header_len();
            let Some(mut transport) = Transport::read(packet, at, ip.protocol()) else { return false };
            transport.apply(ip.set_source(self.service));
            ip.write(packet, Ethernet::LEN);
            transport.write(packet, at);
        }
        true
    }

    /// Adds a probe for each server (RFC 5227).
    fn ask_servers(&mut self, burst: &mut Burst) {
        for server in self.servers.iter() {
            burst.push_copy(&Arp::request(self.mac, Ipv4Addr::UNSPECIFIED, server.ip).frame(), &mut self.packets);
        }
    }
}
