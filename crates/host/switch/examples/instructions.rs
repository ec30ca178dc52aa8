//! Passes packets through a datapath between ports that do nothing, so that callgrind can count instructions:
//!
//! `valgrind --tool=callgrind --toggle-collect='*Datapath*round*' target/release/examples/instructions FLOWS ROUNDS`
//!
//! The count includes the switch, and the copying of packets out of and into the ports' own bursts. `ports`
//! measures that copying without the switch, so subtract it.

use ringpass_memory::{Burst, Mempool, MempoolConfig};
use ringpass_port::{RxQueue, TxQueue, WakeSource, Wakeable};
use ringpass_switch::{Config, DatapathQueues, Forwarding, PortPolicy, Switch};
use std::sync::{Arc, Mutex};

const BATCH: usize = 32;

/// Storage for packets between rounds, so that no packet is allocated or freed within a round.
type Shelf = Arc<Mutex<Burst>>;

struct Rx(Shelf);
struct Tx(Shelf);

impl Wakeable for Rx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Rx {
    #[inline(never)]
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut shelf = self.0.lock().unwrap();
        let packets = shelf.len();
        shelf.drain().for_each(|packet| burst.push(packet));
        packets
    }
}

impl TxQueue for Tx {
    #[inline(never)]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let packets = burst.len();
        let mut shelf = self.0.lock().unwrap();
        burst.drain().for_each(|packet| shelf.push(packet));
        packets
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (flows, rounds) = (numbers.next().unwrap_or(1).max(1), numbers.next().unwrap_or(100));
    let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..Default::default() }).expect("memory");
    let rules: Vec<PortPolicy> =
        (0..4).map(|port| PortPolicy { name: port.to_string(), ..Default::default() }).collect();
    let mut switch = Switch::new(&Config::default(), &rules).expect("a switch");
    let shelves: Vec<[Shelf; 2]> = (0..4).map(|_| [(); 2].map(|()| Arc::new(Mutex::new(Burst::new(256))))).collect();
    let mut datapath = switch.datapath(&pool, BATCH).expect("a datapath");
    for (port, [rx, tx]) in shelves.iter().enumerate() {
        let rx = vec![(Box::new(Rx(rx.clone())) as _, Forwarding::Lookup)];
        switch.insert(port, vec![DatapathQueues { rx, tx: Box::new(Tx(tx.clone())) }]);
    }
    let mac = |port: usize, flow: usize| [2, 0, port as u8, 0, 0, (flow % flows) as u8];
    let send = |port: usize, to: &dyn Fn(usize) -> [u8; 6]| {
        let mut shelf = shelves[port][0].lock().unwrap();
        for flow in 0..BATCH {
            let mut packet = pool.alloc().expect("a buffer");
            packet.set_len(60);
            packet.write(0, &to(flow));
            packet.write(6, &mac(port, flow));
            packet.write(12, &[8, 0]);
            shelf.push(packet);
        }
    };
    // All stations make themselves known.
    for port in 0..4 {
        send(port, &|_| [0xff; 6]);
        while datapath.round() > 0 {}
        shelves.iter().for_each(|[_, tx]| tx.lock().unwrap().clear());
    }
    let mut packets = 0;
    for _ in 0..rounds {
        for port in 0..4 {
            send(port, &|flow| mac((port + 1 + flow % flows % 3) % 4, flow));
        }
        packets += datapath.round();
        for [_, tx] in &shelves {
            tx.lock().unwrap().clear();
        }
    }
    println!("{packets} packets");
}
