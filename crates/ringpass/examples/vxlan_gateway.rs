//! Carries the Ethernet network of one port through an IP network at another, in VXLAN (RFC 7348), to and from one remote end:
//! `cargo run --release -p ringpass --example vxlan_gateway -- model:tap:inside model:tap:outside 198.18.0.1 198.18.0.2 42`

use std::hash::BuildHasher;
use std::net::Ipv4Addr;
use std::time::Duration;

use foldhash::fast::FixedState;
use ringpass::headers::{Arp, EtherType, Ethernet, Flow, Header, IpProtocol, Ipv4, Udp};
use ringpass::{Burst, Cache, Config, Error, MacAddress, Packet, PortConfig, QueuePair, Timer, Worker, Workers};

/// UDP port of VXLAN.
const PORT: u16 = 4789;
/// Length of what is put in front of a frame.
const OUTER: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN + 8;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [inside, outside, local, remote, vni] = &arguments[..] else {
        return Err(Error::Config("name two ports, the local and the remote address, and the network's number".into()));
    };
    let parsed = (local.parse(), remote.parse(), vni.parse());
    let (Ok(local), Ok(remote), Ok(vni @ 0..0x100_0000)) = parsed else {
        return Err(Error::Config("name two IPv4 addresses and a number below 2^24".into()));
    };
    let config = Config::default();
    let carrier = PortConfig { mtu: config.port.mtu + OUTER, ..config.port };
    let mut ports = ringpass::open_all([(inside, config.port), (outside, carrier)], &config)?;
    // Frames of the inner network are for whoever is at the other end.
    ports[0].set_promiscuous(true)?;
    let (mac, packets) = (ports[1].mac(), ports.pool().cache());
    let [inside, outside] = ports.take_pair()?;
    let mut gateway = Gateway { local, remote, vni, mac, remote_mac: None, packets };
    let mut workers = Workers::new(&config)?;
    workers.spawn("vxlan", move |worker| gateway.run(inside, outside, worker))?;
    workers.run(ports).map(drop)
}

struct Gateway {
    local: Ipv4Addr,
    remote: Ipv4Addr,
    vni: u32,
    mac: MacAddress,
    remote_mac: Option<MacAddress>,
    packets: Cache,
}

impl Gateway {
    fn run(&mut self, mut inside: QueuePair, mut outside: QueuePair, mut worker: Worker) -> Result<(), Error> {
        let (mut burst, mut messages) = (Burst::new(worker.batch), Burst::new(worker.batch));
        let mut timer = Timer::every(Duration::from_secs(1));
        let request = Arp::request(self.mac, self.local, self.remote).frame();
        messages.push_copy(&request, &mut self.packets);
        while worker.running() {
            let out = inside.rx.rx_burst(&mut burst);
            burst.retain(|packet| self.wrap(packet).is_some());
            outside.tx.tx_burst(&mut burst);
            burst.clear();
            let back = outside.rx.rx_burst(&mut burst);
            burst.retain(|packet| self.unwrap(packet, &mut messages).is_some());
            inside.tx.tx_burst(&mut burst);
            burst.clear();
            if timer.is_due(worker.now()) && self.remote_mac.is_none() {
                messages.push_copy(&request, &mut self.packets);
            }
            outside.tx.tx_burst(&mut messages);
            messages.clear();
            worker.after(out + back, &mut [&mut *inside.rx, &mut *outside.rx, &mut timer]);
        }
        Ok(())
    }

    /// Puts the outer headers in front of a frame.
    fn wrap(&mut self, packet: &mut Packet) -> Option<()> {
        // The outer source port tells the flows apart for those who spread them (RFC 7348, section 5).
        let port = 0xc000 | FixedState::default().hash_one(Flow::of(packet)) as u16 & 0x3fff;
        let (remote_mac, inner) = (self.remote_mac?, u16::try_from(packet.total_len()).ok()?);
        if !packet.prepend(OUTER) {
            return None;
        }
        let [_, a, b, c] = self.vni.to_be_bytes();
        Ethernet::new(remote_mac, self.mac, EtherType::IPV4).write(packet, 0);
        let udp = Udp::new(port, PORT, inner + 8);
        Ipv4::new(self.local, self.remote, IpProtocol::UDP, udp.total_len() as u16).write(packet, Ethernet::LEN);
        udp.write(packet, Ethernet::LEN + Ipv4::LEN);
        packet.write(OUTER - 8, &[8, 0, 0, 0, a, b, c, 0]);
        Some(())
    }

    /// Takes the outer headers off a frame from the remote end. `None` for all others; ARP is answered.
    fn unwrap(&mut self, packet: &mut Packet, messages: &mut Burst) -> Option<()> {
        if Ethernet::read(packet, 0)?.ether_type() == EtherType::ARP {
            let message = Arp::read(packet, Ethernet::LEN)?;
            if message.sender_ip() == self.remote {
                self.remote_mac = Some(message.sender());
            }
            if message.operation() == Arp::REQUEST && message.target_ip() == self.local {
                messages.push_copy(&message.reply(self.mac).frame(), &mut self.packets);
            }
            return None;
        }
        let ip = Ipv4::read(packet, Ethernet::LEN)?;
        let is_ours = ip.source() == self.remote && ip.destination() == self.local && !ip.is_fragment();
        let at = Ethernet::LEN + ip.header_len();
        let udp = Udp::read(packet, at)
            .filter(|udp| is_ours && ip.protocol() == IpProtocol::UDP && udp.destination_port() == PORT)?;
        let [flags, _, _, _, vni @ .., _] = packet.array::<8>(at + Udp::LEN)?;
        let is_network = flags & 8 != 0 && u32::from_be_bytes([0, vni[0], vni[1], vni[2]]) == self.vni;
        // Behind the inner frame there may be padding of the outer one.
        let inner = udp.total_len().checked_sub(Udp::LEN + 8).filter(|_| is_network)?;
        (packet.trim_front(at + Udp::LEN + 8) && packet.total_len() >= inner).then(|| packet.truncate(inner))
    }
}
