//! The benchmark `ringpass bench switch`: what the switch costs a packet, by the number of flows, ports and stations.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ringpass::{
    Burst, Error, MacAddress, Mempool, MempoolConfig, QueuePair, RxQueue, TxQueue, WakeSource, Wakeable, cycles,
};
use ringpass_cli::errln;
use ringpass_cli::options::within;
use ringpass_cli::output::print_line;
use ringpass_switch::vxlan::{self, Changes, Ends, Networks, Station, Tunnel};
use ringpass_switch::{Config, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch};
use serde::Serialize;

use super::cores::check_interrupted;
use super::instructions::per_packet_of_rounds;
use super::machine;
use super::median::median;
use super::progress::progress;
use super::table::{self, row};

/// Cost of a packet in the switch, by flows, ports and stations
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Rounds, in each of which everything is measured
    #[arg(long, value_name = "N", value_parser = within(1..=100_000), default_value = "500")]
    rounds: usize,
    /// Count instructions too, by valgrind
    #[arg(long)]
    instructions: bool,
    /// Print a JSON object for each row
    #[arg(long)]
    json: bool,
    /// Run one case for valgrind
    #[arg(long, hide = true)]
    under_callgrind: Option<usize>,
    /// Pass packets to a fixed port
    #[arg(long, hide = true)]
    direct: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench switch                   cycles a packet
  ringpass bench switch --instructions    instructions too, counted by valgrind
  ringpass bench switch --json";

/// Packets of a burst; each port receives one in each round.
const BATCH: usize = 32;

/// Traffic through a switch.
struct Case {
    name: &'static str,
    ports: usize,
    /// Flows of each port, and the ports that they go to; `None` for packets between any two stations.
    flows: Option<[usize; 2]>,
    /// Stations that the switch knows.
    stations: u32,
    /// Ends of a tunnel at the second port, behind which the stations are that the first port sends to; 0 if there is none.
    remotes: u8,
}

const CASES: [Case; 12] = [
    Case { name: "one flow", ports: 2, flows: Some([1, 1]), stations: 2, remotes: 0 },
    Case { name: "32 flows to three ports", ports: 4, flows: Some([32, 3]), stations: 128, remotes: 0 },
    Case { name: "32 flows of each of 2 ports", ports: 2, flows: Some([32, 1]), stations: 64, remotes: 0 },
    Case { name: "32 flows of each of 64 ports", ports: 64, flows: Some([32, 1]), stations: 2048, remotes: 0 },
    Case { name: "32 flows among 1,000,000 stations", ports: 4, flows: Some([32, 3]), stations: 1_000_000, remotes: 0 },
    Case { name: "any two of 10 stations", ports: 4, flows: None, stations: 10, remotes: 0 },
    Case { name: "any two of 1,000 stations", ports: 4, flows: None, stations: 1000, remotes: 0 },
    Case { name: "any two of 100,000 stations", ports: 4, flows: None, stations: 100_000, remotes: 0 },
    Case { name: "any two of 1,000,000 stations", ports: 4, flows: None, stations: 1_000_000, remotes: 0 },
    Case { name: "one flow into a tunnel", ports: 2, flows: Some([1, 1]), stations: 2, remotes: 1 },
    Case { name: "32 flows into a tunnel to 8 ends", ports: 2, flows: Some([32, 1]), stations: 64, remotes: 8 },
    Case { name: "any of 100,000 stations, 200 ends", ports: 2, flows: None, stations: 200_000, remotes: 200 },
];

#[derive(Serialize)]
struct Row {
    case: &'static str,
    ports: usize,
    stations: u32,
    /// Cycles of a packet more than if it was passed to a fixed port.
    cycles: f64,
    /// Instructions, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<f64>,
}

/// Packets between rounds.
type Shelf = Arc<Mutex<Burst>>;

fn shelf() -> Shelf {
    Arc::new(Mutex::new(Burst::new(256)))
}

struct ShelfRx(Shelf);
struct ShelfTx(Shelf);

impl Wakeable for ShelfRx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for ShelfRx {
    #[inline(never)]
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        burst.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TxQueue for ShelfTx {
    #[inline(never)]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(burst)
    }
}

/// A switch whose ports receive from shelves and send to others.
struct Rig {
    case: &'static Case,
    switch: Switch,
    datapath: Box<Datapath>,
    shelves: Vec<[Shelf; 2]>,
    pool: Mempool,
    random: u64,
    /// Cycles of a packet in each round.
    cycles: Vec<f64>,
}

/// Ethertype, and the header of IPv4 (RFC 791) with UDP in it, up to its checksum.
const UDP: [u8; 14] = [8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0];

/// Network of the tunnel.
const VNI: u32 = 100;

/// Address of another end of the tunnel.
fn end(number: u8) -> IpAddr {
    [10, 9, 0, number].into()
}

/// Returns the end of a tunnel whose other ends and stations are given.
fn tunnel(case: &Case) -> Result<Tunnel, Error> {
    let networks = Networks::One(VNI);
    let port = vxlan::PORT;
    let local = end(250);
    let stations = case.stations as usize;
    let ends = Ends::Given;
    Tunnel::new(vxlan::Config { networks, port, local, prefix: None, gateway: None, ends, stations, mac: None })
}

/// Address of a station, which is at the port of this number modulo that of ports.
fn mac(station: u32) -> [u8; 6] {
    let [a, b, c, d] = station.to_be_bytes();
    [2, 0, a, b, c, d]
}

impl Rig {
    /// Creates a switch that looks packets up and knows all stations, or one that passes those of each port to the next.
    fn new(case: &'static Case, direct: bool) -> Result<Self, Error> {
        let pool = Mempool::new(&MempoolConfig { buffers: 8192, ..Default::default() })?;
        let rules: Vec<_> =
            (0..case.ports).map(|port| PortPolicy { name: port.to_string(), ..Default::default() }).collect();
        let table = (2 * case.stations as usize).max(8192);
        let mut switch = Switch::new(&Config { table, flood: 0, ..Default::default() }, &rules)?;
        let mut datapath = Box::new(switch.datapath(&pool, BATCH)?);
        let shelves: Vec<[Shelf; 2]> = (0..case.ports).map(|_| [shelf(), shelf()]).collect();
        let tunnel = (case.remotes > 0 && !direct).then(|| tunnel(case)).transpose()?;
        for (port, [rx, tx]) in shelves.iter().enumerate() {
            let way = if direct { Forwarding::Direct((port + 1) % case.ports) } else { Forwarding::Lookup };
            let mut queues = QueuePair { rx: Box::new(ShelfRx(rx.clone())), tx: Box::new(ShelfTx(tx.clone())) };
            if let Some(tunnel) = tunnel.as_ref().filter(|_| port == 1) {
                queues = tunnel.wrap(queues, &pool, 1500);
            }
            switch.insert(port, vec![DatapathQueues { rx: vec![(queues.rx, way)], tx: queues.tx }]);
        }
        datapath.round();
        let mut rig = Self { case, switch, datapath, shelves, pool, random: 1, cycles: Vec::new() };
        match &tunnel {
            _ if direct => {}
            None => rig.learn(),
            Some(tunnel) => rig.learn_remote(tunnel)?,
        }
        Ok(rig)
    }

    /// Makes all stations of the tunnel known, and the hardware addresses of the ends behind which they are.
    fn learn_remote(&mut self, tunnel: &Tunnel) -> Result<(), Error> {
        let placement = self.switch.placement();
        let given = |changes: &mut Changes| -> Result<(), Error> {
            for number in (1..self.case.stations).step_by(2) {
                let remote = end(1 + (number / 2 % u32::from(self.case.remotes)) as u8);
                let mac = MacAddress(mac(number));
                placement.place(mac, 0, 1);
                changes.add_station(Station { vni: VNI, mac, remote })?;
            }
            Ok(())
        };
        tunnel.change(given)??;
        for remote in 1..=self.case.remotes {
            let IpAddr::V4(address) = end(remote) else { continue };
            let mac = [2, 0x55, 0, 0, 0, remote];
            // An answer (RFC 826) to the tunnel's end.
            let parts: [&[u8]; 7] = [
                &mac,
                &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
                &mac,
                &address.octets(),
                &[2, 0x56, 10, 9, 0, 250],
                &[10, 9, 0, 250],
                &[0; 18],
            ];
            let frame = [&[2, 0x56, 10, 9, 0, 250][..], &parts.concat()].concat();
            let Some(mut packet) = self.pool.alloc() else { continue };
            assert!(packet.copy_from(&frame), "a buffer has room for it");
            self.shelves[1][0].lock().unwrap_or_else(PoisonError::into_inner).push(packet);
            self.datapath.round();
        }
        self.clear();
        Ok(())
    }

    /// Makes all stations known, by frames to the first one of their port, which go nowhere.
    fn learn(&mut self) {
        let ports = self.case.ports as u32;
        for first in (0..self.case.stations).step_by(self.case.ports * BATCH) {
            for port in 0..ports {
                let known = (0..BATCH as u32).map(|n| first + n * ports + port);
                let known: Vec<_> =
                    known.filter(|&station| station < self.case.stations).map(|station| [port, station]).collect();
                self.put(port as usize, known.into_iter());
            }
            self.datapath.round();
            self.clear();
        }
    }

    /// Puts packets on the shelf that a port receives from: numbers of the stations that they go to and come from.
    fn put(&self, port: usize, packets: impl Iterator<Item = [u32; 2]>) {
        let mut shelf = self.shelves[port][0].lock().unwrap_or_else(PoisonError::into_inner);
        for [to, from] in packets {
            let Some(mut packet) = self.pool.alloc() else { return };
            packet.set_len(60);
            packet.write(0, &mac(to));
            packet.write(6, &mac(from));
            packet.write(12, &UDP);
            packet.write(26, &[from.to_be_bytes(), to.to_be_bytes()].concat());
            shelf.push(packet);
        }
    }

    fn clear(&self) {
        self.shelves.iter().for_each(|[_, tx]| tx.lock().unwrap_or_else(PoisonError::into_inner).clear());
    }

    /// Returns a random number below a limit (splitmix64).
    fn below(&mut self, limit: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 27) >> 32) as u32 % limit
    }

    /// Passes a burst of each port through the switch. Returns the number of packets.
    fn round(&mut self) -> usize {
        self.fill();
        let start = cycles();
        let packets = measured_round(&mut self.datapath);
        self.cycles.push((cycles() - start) as f64 / packets.max(1) as f64);
        self.clear();
        packets
    }

    /// Does the same without measuring, so that flows are known.
    fn warm(&mut self) {
        self.fill();
        self.datapath.round();
        self.clear();
    }

    /// Puts a burst on the shelf of each port.
    fn fill(&mut self) {
        let (ports, stations) = (self.case.ports as u32, self.case.stations);
        // What would come out of a tunnel is not measured.
        for port in 0..if self.case.remotes > 0 { 1 } else { ports } {
            let at = |port: u32, number: u32| number * ports + port;
            let pairs: Vec<[u32; 2]> = match self.case.flows {
                Some([flows, to]) => {
                    let flow = |n: usize| (n % flows) as u32;
                    let to = |n: usize| (port + 1 + flow(n) % to as u32) % ports;
                    (0..BATCH).map(|n| [at(to(n), flow(n)), at(port, flow(n))]).collect()
                }
                None => {
                    let mut any = |port: u32| at(port, self.below((stations - port).div_ceil(ports)));
                    (0..BATCH as u32).map(|n| [any((port + 1 + n % (ports - 1)) % ports), any(port)]).collect()
                }
            };
            self.put(port as usize, pairs.into_iter());
        }
    }
}

/// Has a name by which valgrind's counts are found.
#[inline(never)]
fn measured_round(datapath: &mut Datapath) -> usize {
    datapath.round()
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Error> {
    if let Some(number) = args.under_callgrind {
        let none = || Error::Config("there is no such case".into());
        let mut rig = Rig::new(CASES.get(number).ok_or_else(none)?, args.direct)?;
        // Flows become known.
        (0..300).for_each(|_| rig.warm());
        print_line(&(0..args.rounds).map(|_| rig.round()).sum::<usize>().to_string());
        return Ok(());
    }
    let mut rows = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let mut rigs = [Rig::new(case, false)?, Rig::new(case, true)?];
        for round in 0..args.rounds {
            check_interrupted()?;
            if round % 100 == 0 {
                progress(&format!("{}, round {} of {}", case.name, round + 1, args.rounds));
            }
            rigs.iter_mut().for_each(|rig| _ = rig.round());
        }
        let [looked_up, passed] = rigs.each_ref().map(|rig| median(rig.cycles.iter().copied()));
        let counted = args.instructions.then(|| {
            progress(&format!("{}, under valgrind", case.name));
            instructions(number).map_err(|error| Error::Fault(format!("{}: {error}", case.name)))
        });
        let rounded = |value: f64| (value * 10.0).round() / 10.0;
        rows.push(Row {
            case: case.name,
            ports: case.ports,
            stations: case.stations,
            cycles: rounded(looked_up - passed),
            instructions: counted.transpose()?.map(rounded),
        });
    }
    progress("");
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers")));
        errln!("{}", machine::line());
        return Ok(());
    }
    let mut lines = vec![row(["", "ports", "stations", "cycles", "instructions"])];
    lines.extend(rows.iter().map(|Row { case, ports, stations, cycles, instructions }| {
        let instructions = instructions.map_or("-".into(), |counted| format!("{counted:.1}"));
        vec![(*case).into(), ports.to_string(), stations.to_string(), format!("{cycles:.1}"), instructions]
    }));
    table::print("A packet in the switch, more than if it was passed to a fixed port", &lines);
    print_line(&machine::line());
    Ok(())
}

/// Returns the instructions of a packet of a case, more than if it was passed to a fixed port.
fn instructions(case: usize) -> Result<f64, Error> {
    let count = |more: &[String]| {
        let arguments = [&["switch".to_owned(), format!("--under-callgrind={case}")], more].concat();
        // Each run has flows that share a place by chance, so runs of different lengths cannot be subtracted.
        per_packet_of_rounds(&arguments, "measured_round")
    };
    Ok(count(&[])? - count(&["--direct".into()])?)
}
