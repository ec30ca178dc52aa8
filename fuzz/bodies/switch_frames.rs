//! Fuzz body: arbitrary frames sent into a switch whose ports are in VLANs, isolated, restricted to addresses, or
//! the end of a VXLAN tunnel.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ringpass_host_ports::{CableEnd, cable};
use ringpass_ipc::wait_for_drops;
use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{MacAddress, Port, QueuePair, chain};
use ringpass_switch::vxlan::{self, Tunnel};
use ringpass_switch::{Config, Counter, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch, VlanSet, Vlans};

const PORTS: usize = 6;
/// Index of the port that is the end of a tunnel.
const TUNNEL: usize = 5;
const BUFFERS: usize = 1024;

struct Rig {
    switch: Switch,
    datapath: Datapath,
    far: Vec<QueuePair>,
    ends: Vec<CableEnd>,
    tunnel: Tunnel,
}

fn rules() -> [PortPolicy; PORTS] {
    let trunk = |allowed: &[u16], native| Vlans::Trunk { allowed: VlanSet::of(allowed.to_vec()), native };
    let station = MacAddress([2, 0, 0, 0, 0, 1]);
    let named = |name: &str, rules: PortPolicy| PortPolicy { name: name.into(), ..rules };
    [
        named("plain", PortPolicy { vlans: Vlans::Access(10), isolation: Some(1), ..PortPolicy::default() }),
        named("held", PortPolicy { vlans: Vlans::Access(10), sources: vec![station], ..PortPolicy::default() }),
        named("trunk", PortPolicy { vlans: trunk(&[10, 20], Some(10)), isolation: Some(1), ..PortPolicy::default() }),
        named(
            "tagged",
            PortPolicy { vlans: trunk(&[10, 20], None), stations: vec![(station, Some(20))], ..PortPolicy::default() },
        ),
        named("other", PortPolicy { vlans: Vlans::Access(20), ..PortPolicy::default() }),
        named("tunnel", PortPolicy { vlans: Vlans::Access(10), ..PortPolicy::default() }),
    ]
}

fn take(port: &mut dyn Port) -> QueuePair {
    port.take_queues().pop().expect("a pair of queues")
}

impl Rig {
    fn new(pool: &Mempool) -> Self {
        // A table so small that stations are evicted.
        let config = Config { flood: 0, table: 16, ..Config::default() };
        let mut switch = Switch::new(&config, &rules()).expect("a switch");
        let datapath = switch.datapath(pool, MAX_BATCH).expect("a datapath");
        let (local, remote) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let remotes = [remote, Ipv4Addr::new(10, 0, 0, 3)].map(IpAddr::from).to_vec();
        let (networks, port, local) = (vxlan::Networks::One(42), vxlan::PORT, local.into());
        let config = vxlan::Config {
            networks,
            port,
            local,
            prefix: None,
            gateway: None,
            ends: vxlan::Ends::Fixed(remotes),
            stations: 16,
            mac: None,
        };
        let tunnel = Tunnel::new(config).expect("three stations");
        let (mut far, mut ends) = (Vec::new(), Vec::new());
        for number in 0..PORTS {
            let (mut near, mut end) = cable("c", 256);
            let mut queues = take(&mut near);
            if number == TUNNEL {
                queues = tunnel.wrap(queues, pool, 1500);
            }
            switch.insert(number, vec![DatapathQueues { rx: vec![(queues.rx, Forwarding::Lookup)], tx: queues.tx }]);
            far.push(take(&mut end));
            ends.extend([near, end]);
        }
        Self { switch, datapath, far, ends, tunnel }
    }

    /// Receives all frames that have come out of a port. Returns their number.
    fn receive(&mut self, port: usize) -> usize {
        let (mut burst, mut frames) = (Burst::new(MAX_BATCH), 0);
        while self.far[port].rx.rx_burst(&mut burst) > 0 {
            for packet in burst.drain() {
                let len = packet.total_len();
                assert!(len >= 12, "a frame of {len} bytes came out of port {port}");
                frames += 1;
            }
        }
        frames
    }
}

/// Runs one case of steps: a port, a length, bytes. A frame lies in one buffer or in two, with or without a tag in
/// its metadata.
pub fn case(data: &[u8]) {
    thread_local! {
        static POOL: Mempool = Mempool::new(&MempoolConfig { buffers: BUFFERS, ..Default::default() }).expect("memory");
    }
    let pool = POOL.with(Mempool::clone);
    {
        let mut rig = Rig::new(&pool);
        let (mut data, mut sent) = (data, 0);
        while let Some((&[port, how, len], rest)) = data.split_first_chunk() {
            if sent == 200 {
                break;
            }
            let (frame, rest) = rest.split_at(rest.len().min(len.into()));
            data = rest;
            let port = usize::from(port) % PORTS;
            match how & 0xf0 {
                0xf0 => rig.switch.remove(port),
                _ => sent += u64::from(send(&mut rig, &pool, port, frame, how)),
            }
            while rig.datapath.round() > 0 {}
            // No frame returns to its ingress port, except for the tunnel end's replies.
            let back = rig.receive(port);
            assert!(back == 0 || port == TUNNEL, "{back} frames came back out of port {port}");
            (0..PORTS).for_each(|port| _ = rig.receive(port));
        }
        let Rig { switch, datapath, far, ends, tunnel } = rig;
        let stations = switch.table().len();
        assert!(stations <= 16, "{stations} stations");
        // Each received frame is counted under one fate.
        let fates = Counter::ALL.iter().take_while(|&&counter| counter != Counter::Unknown);
        let judged: u64 = fates.map(|&fate| (0..PORTS).map(|port| switch.counts(port).of(fate)).sum::<u64>()).sum();
        assert!(judged <= sent, "{judged} of {sent} frames were judged");
        drop((datapath, far, ends, tunnel, switch));
    }
    // Queues of removed ports are dropped on another thread. References held: this thread's two.
    wait_for_drops(Duration::from_secs(10));
    assert_eq!(pool.outstanding(2), 0, "buffers are missing");
}

fn send(rig: &mut Rig, pool: &Mempool, port: usize, frame: &[u8], how: u8) -> bool {
    let (first, second) = frame.split_at(frame.len() * usize::from(4 - (how & 3)) / 4);
    let made = |piece| chain([piece], || pool.alloc());
    let Some(mut packet) = made(first) else { return false };
    if !second.is_empty() {
        let Some(rest) = made(second) else { return false };
        packet.append(rest);
    }
    if how & 4 != 0 {
        packet.set_vlan(u16::from(how) << 8 | u16::from(how));
    }
    let mut burst = Burst::new(1);
    burst.push(packet);
    rig.far[port].tx.tx_burst(&mut burst) == 1
}
