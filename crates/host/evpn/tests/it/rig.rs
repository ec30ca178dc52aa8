//! A switch whose second port is the end of a tunnel, with a follower in a namespace.

use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::sync::Mutex;

use ringpass_evpn::devices::{self, Device};
use ringpass_evpn::{Files, Follower, Site};
use ringpass_host_ports::{CableEnd, cable};
use ringpass_lab::Namespace;
use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{MacAddress, Port, QueuePair};
use ringpass_switch::vxlan::{self, Ends, Networks, Tunnel};
use ringpass_switch::{Config, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch};
use ringpass_testing::packet;
use tempfile::NamedTempFile;

pub const VNI: u32 = 100;
const OURS: usize = 0;
/// The tunnel's port.
pub const TUNNEL: usize = 1;

pub struct Rig {
    pub namespace: Namespace,
    pub switch: Mutex<Switch>,
    pub tunnel: Tunnel,
    /// Dropped before the namespace.
    pub follower: Option<Follower>,
    datapath: Datapath,
    far: Vec<QueuePair>,
    pool: Mempool,
    _ends: Vec<CableEnd>,
}

impl Rig {
    /// Creates the devices, and a switch with room for this many stations, and lets it follow.
    pub fn new(stations: usize) -> Self {
        let namespace = Namespace::new();
        let local: IpAddr = "10.9.0.1".parse().expect("an address");
        for command in devices::make(&[VNI], local, None) {
            namespace.run(&command.split(' ').collect::<Vec<_>>());
        }
        let config = vxlan::Config {
            networks: Networks::One(VNI),
            port: vxlan::PORT,
            local,
            prefix: Some(16),
            gateway: None,
            ends: Ends::Given,
            stations,
            mac: None,
        };
        let tunnel = Tunnel::new(config).expect("a tunnel");
        let rules = [false, true].map(|given| PortPolicy { given, ..Default::default() });
        let config = Config { table: stations * 3 / 2, ..Default::default() };
        let mut switch = Switch::new(&config, &rules).expect("a switch");
        let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..Default::default() }).expect("memory");
        let datapath = switch.datapath(&pool, 32).expect("a datapath");
        let (mut far, mut ends) = (Vec::new(), Vec::new());
        for port in [OURS, TUNNEL] {
            let (mut near, mut end) = cable(&format!("c{port}"), 64);
            let queues = near.take_queues().remove(0);
            let QueuePair { rx, tx } = if port == TUNNEL { tunnel.wrap(queues, &pool, 1500) } else { queues };
            switch.insert(port, vec![DatapathQueues { rx: vec![(rx, Forwarding::Lookup)], tx }]);
            far.push(end.take_queues().remove(0));
            ends.extend([near, end]);
        }
        let mut rig =
            Self { namespace, switch: switch.into(), tunnel, follower: None, datapath, far, pool, _ends: ends };
        rig.follow();
        rig
    }

    /// Lets a follower begin, in the namespace. There may be one in a rig's life that hears of new stations.
    fn follow(&mut self) {
        let files = self.namespace.enter(|| Files::open(&[VNI])).expect("devices");
        let switch = self.switch.get_mut().expect("no test has panicked here");
        let (placement, arrivals) = (switch.placement(), switch.arrivals().expect("the first"));
        let site = Site { tunnel: self.tunnel.clone(), placement, arrivals, port: TUNNEL, untagged: 0 };
        self.follower = Some(Follower::start(files, site).expect("a thread"));
    }

    /// A station of ours sends a frame.
    pub fn send(&mut self, from: MacAddress) {
        let mut frame = vec![0xff; 60];
        frame[6..12].copy_from_slice(&from.0);
        self.send_frame(&frame);
    }

    /// A station of ours sends this frame.
    pub fn send_frame(&mut self, frame: &[u8]) {
        let mut burst = Burst::new(1);
        burst.push(packet(&self.pool, frame));
        self.far[OURS].tx.tx_burst(&mut burst);
        while self.datapath.round() > 0 {}
    }

    /// Runs commands of `bridge`, all in one process.
    pub fn bridge(&self, commands: impl IntoIterator<Item = String>) {
        self.run_batch(&batch(commands));
    }

    /// Runs commands of `bridge` that are in a file.
    pub fn run_batch(&self, file: &NamedTempFile) {
        self.namespace.run(&["bridge", "-batch", file.path().to_str().expect("UTF-8")]);
    }

    pub fn count(&self, counter: &str) -> u64 {
        let counts = self.follower.as_ref().expect("it runs").counts();
        counts.iter().find(|(name, _)| *name == counter).expect("a counter").1
    }

    /// Returns the port at which the switch has a station.
    pub fn port(&self, station: MacAddress) -> Option<usize> {
        let table = self.switch.lock().expect("no test has panicked here").table();
        table.iter().find(|entry| entry.mac == station).map(|entry| entry.port)
    }
}

/// Returns a file with commands of `bridge`.
pub fn batch(commands: impl IntoIterator<Item = String>) -> NamedTempFile {
    let mut file = BufWriter::new(NamedTempFile::new().expect("a file"));
    commands.into_iter().for_each(|command| writeln!(file, "{command}").expect("our file"));
    file.into_inner().expect("our file")
}

pub fn mac(number: u32) -> MacAddress {
    let [_, a, b, c] = number.to_be_bytes();
    MacAddress([2, 0, 0, a, b, c])
}

/// The command by which FRR's entry of a station comes into being, or moves.
pub fn entry(station: MacAddress, end: u8) -> String {
    format!("fdb replace {station} dev {} dst 10.9.0.{end} self extern_learn", Device::Vxlan.name(VNI))
}
