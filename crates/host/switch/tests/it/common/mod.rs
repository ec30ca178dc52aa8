//! A switch whose ports are cables, with the test at the far ends.

#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use ringpass_host_ports::{CableEnd, cable};
use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig, Packet};
use ringpass_port::{Idle, Port, QueuePair, RxDecorator, RxQueue, TxQueue};
use ringpass_switch::{Config, Counter, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch};
use ringpass_testing::bytes_of;
pub use ringpass_testing::packet;

pub struct Rig {
    pub switch: Switch,
    pub datapath: Datapath,
    /// Far ends of the cables, by port.
    pub far: Vec<QueuePair>,
    pub pool: Mempool,
    /// Both ends of each cable: the switch's, then the far one.
    pub ends: Vec<CableEnd>,
}

pub fn pool() -> Mempool {
    Mempool::new(&MempoolConfig { buffers: 8192, ..Default::default() }).expect("memory for a test")
}

/// Returns the only queue pair of a port.
pub fn queues(port: &mut dyn Port) -> QueuePair {
    port.take_queues().pop().expect("a pair of queues")
}

/// Returns a port's queues for the only datapath.
pub fn share(queues: QueuePair, way: Forwarding) -> DatapathQueues {
    DatapathQueues { rx: vec![(queues.rx, way)], tx: queues.tx }
}

/// Returns default policies for `ports` ports.
pub fn plain(ports: usize) -> Vec<PortPolicy> {
    (0..ports).map(|port| PortPolicy { name: format!("p{port}"), ..Default::default() }).collect()
}

/// Returns a configuration without a flooding limit, and with a high limit on moves.
pub fn free() -> Config {
    Config { flood: 0, moves: 63, ..Default::default() }
}

impl Rig {
    pub fn new(config: &Config, rules: &[PortPolicy]) -> Self {
        Self::with(config, rules, 1024, |_| Forwarding::Lookup, |_, queues, _| queues)
    }

    /// Creates a rig with `slots` slots per cable; `way` gives each port's forwarding, and `wrap` can wrap its
    /// queues.
    pub fn with(
        config: &Config,
        rules: &[PortPolicy],
        slots: usize,
        way: impl Fn(usize) -> Forwarding,
        wrap: impl Fn(usize, QueuePair, &Mempool) -> QueuePair,
    ) -> Self {
        let (pool, mut switch) = (pool(), Switch::new(config, rules).expect("a switch"));
        let datapath = switch.datapath(&pool, MAX_BATCH).expect("a datapath");
        let (mut far, mut ends) = (Vec::new(), Vec::new());
        for port in 0..rules.len() {
            let (mut near, mut end) = cable(&format!("c{port}"), slots);
            let own = wrap(port, queues(&mut near), &pool);
            switch.insert(port, vec![share(own, way(port))]);
            far.push(queues(&mut end));
            ends.extend([near, end]);
        }
        Self { switch, datapath, far, pool, ends }
    }

    /// Sends frames into a port of the switch, and runs the switch.
    pub fn send(&mut self, port: usize, frames: &[Vec<u8>]) {
        let packets = frames.iter().map(|frame| packet(&self.pool, frame)).collect();
        self.send_packets(port, packets);
    }

    pub fn send_packets(&mut self, port: usize, packets: Vec<Packet>) {
        let mut burst = Burst::new(MAX_BATCH);
        packets.into_iter().for_each(|packet| burst.push(packet));
        self.far[port].tx.tx_burst(&mut burst);
        assert!(burst.is_empty(), "the cable has room");
        while self.datapath.round() > 0 {}
    }

    /// Returns the frames that have come out of a port.
    pub fn receive(&mut self, port: usize) -> Vec<Vec<u8>> {
        receive(&mut self.far[port])
    }

    /// Returns the number of frames that have come out of each port.
    pub fn received(&mut self) -> Vec<usize> {
        (0..self.far.len()).map(|port| self.receive(port).len()).collect()
    }

    pub fn count(&self, port: usize, counter: Counter) -> u64 {
        self.switch.counts(port).of(counter)
    }
}

/// Returns the sum of the counters of which each received frame is counted by exactly one.
pub fn accounted(switch: &Switch, ports: usize) -> u64 {
    let fates = Counter::ALL.iter().take_while(|&&counter| counter != Counter::Unknown);
    fates.map(|&counter| (0..ports).map(|port| switch.counts(port).of(counter)).sum::<u64>()).sum()
}

/// Returns all frames that can be received now, with tags from the metadata inserted.
pub fn receive(queues: &mut QueuePair) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut burst = Burst::new(MAX_BATCH);
    while queues.rx.rx_burst(&mut burst) > 0 {
        frames.extend(burst.iter().map(bytes));
        burst.clear();
    }
    frames
}

fn bytes(packet: &Packet) -> Vec<u8> {
    let mut frame = bytes_of(packet);
    if let Some(tag) = packet.vlan() {
        frame.splice(12..12, [&[0x81, 0][..], &tag.to_be_bytes()].concat());
    }
    frame
}

/// Returns the address of a test station.
pub fn mac(station: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, station]
}

pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns a frame that contains a number.
pub fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], &number.to_be_bytes(), &[number as u8; 42]].concat()
}

/// Returns the same frame with a tag.
pub fn tagged(to: [u8; 6], from: [u8; 6], tag: u16, number: u32) -> Vec<u8> {
    let mut frame = frame(to, from, number);
    frame.splice(12..12, [&[0x81, 0][..], &tag.to_be_bytes()].concat());
    frame
}

/// Queues that release a token when they are dropped.
struct Rx {
    queue: Box<dyn RxQueue>,
    _token: Arc<()>,
}

struct Tx {
    queue: Box<dyn TxQueue>,
    _token: Arc<()>,
}

impl RxDecorator for Rx {
    fn inner(&self) -> &dyn RxQueue {
        &*self.queue
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.queue
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.queue.tx_burst(burst)
    }
}

/// Returns a port's queues, its far end, and a reference that is dead once the queues are dropped.
pub fn port() -> (DatapathQueues, QueuePair, Weak<()>) {
    let (mut near, mut end) = cable("c", 1024);
    let (own, token) = (queues(&mut near), Arc::new(()));
    let gone = Arc::downgrade(&token);
    let (rx, tx) = (Rx { queue: own.rx, _token: token.clone() }, Tx { queue: own.tx, _token: token });
    (DatapathQueues { rx: vec![(Box::new(rx), Forwarding::Lookup)], tx: Box::new(tx) }, queues(&mut end), gone)
}

pub fn send(far: &mut QueuePair, pool: &Mempool, frame: &[u8]) {
    let mut burst = Burst::new(1);
    burst.push(packet(pool, frame));
    assert_eq!(far.tx.tx_burst(&mut burst), 1, "the cable has room");
}

pub fn work(mut datapath: Datapath, stop: &AtomicBool) {
    let mut idle = Idle::new(false);
    while !stop.load(Relaxed) {
        let moved = datapath.round();
        idle.after(moved, &mut [&mut datapath]);
    }
}
