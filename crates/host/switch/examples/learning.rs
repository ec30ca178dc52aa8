//! Measures the cost of learning: frames from one port with a given number of source addresses in turn.
//!
//! `target/release/examples/learning STATIONS MILLIONS` prints nanoseconds of CPU time per packet. The frames
//! go to a station at the same port, so nothing is sent. The switch has three ports and a table of 8,192
//! stations.

use ringpass_host_ports::Null;
use ringpass_memory::{Burst, Cache, Mempool, MempoolConfig};
use ringpass_port::{Port, PortConfig, RxQueue, WakeSource, Wakeable};
use ringpass_switch::{Config, Counter, DatapathQueues, Forwarding, PortPolicy, Switch};

const BATCH: usize = 32;

/// An Rx queue with frames from one station after the other.
struct Rx {
    buffers: Cache,
    stations: u32,
    next: u32,
}

impl Wakeable for Rx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        for mut packet in self.buffers.take(BATCH) {
            packet.set_len(60);
            packet.write(0, &[2, 0, 0, 0, 0, 0, 2, 0]);
            packet.write(8, &self.next.to_be_bytes());
            packet.write(12, &[8, 0]);
            self.next = (self.next + 1) % self.stations;
            burst.push(packet);
        }
        BATCH
    }
}

/// Returns the CPU time of this thread, in nanoseconds.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>().expect("a number"));
    let (stations, millions) = (numbers.next().unwrap_or(100_000).max(1), numbers.next().unwrap_or(20).max(1));
    let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..Default::default() }).expect("memory");
    let mut switch =
        Switch::new(&Config { flood: 0, ..Config::default() }, &vec![PortPolicy::default(); 3]).expect("a switch");
    let mut datapath = switch.datapath(&pool, BATCH).expect("a datapath");
    for port in 0..3 {
        let null = Null::open(&PortConfig::default()).take_queues().remove(0);
        let rx = match port {
            0 => Box::new(Rx { buffers: pool.cache(), stations, next: 0 }),
            _ => null.rx,
        };
        switch.insert(port, vec![DatapathQueues { rx: vec![(rx, Forwarding::Lookup)], tx: null.tx }]);
    }
    // One pass over all stations before the measurement, so that the table is filled.
    for _ in 0..stations.div_ceil(BATCH as u32) {
        datapath.round();
    }
    let (start, mut packets) = (cpu_time(), 0);
    while packets < millions as usize * 1_000_000 {
        packets += datapath.round();
    }
    let nanoseconds = (cpu_time() - start) / packets as f64;
    let evicted = switch.counts(0).of(Counter::Evicted);
    println!("{stations} stations: {nanoseconds:.1} ns a packet; {evicted} evictions in {packets} packets");
}
