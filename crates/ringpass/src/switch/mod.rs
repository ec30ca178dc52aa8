//! `ringpass switch PORT…`: a learning switch among any number of ports.

mod file;
mod mapping;
mod plan;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpass_memory::Mempool;
use ringpass_port::{Error, Port};
use ringpass_switch::{Config, Datapath, MAX_PORTS, Share, Switch, Way};
use signal_hook::consts::SIGUSR1;

use crate::open::{close, open_all};
use crate::options::{Options, seconds, within};
use crate::run::{Run, Watch};
use crate::worker::Worker;
use mapping::Borrowed;
use plan::{Mapping, Plan, PortPlan};
use watch::Overseer;

/// Switch packets among ports, by MAC address and VLAN
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The ports, with those of --config 2 to 64 (see 'ringpass --help' for port addresses); PORT@10 is in VLAN 10 only
    #[arg(value_name = "PORT", required_unless_present = "config")]
    ports: Vec<String>,
    /// A file that says more of the switch and its ports, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Forget stations that are silent for so long, up to 32400 [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ageing: Option<Duration>,
    /// Frames a second that each port may have flooded, 0 for no limit [default: 100000]
    #[arg(long, value_name = "N")]
    flood: Option<u64>,
    /// Stations that the MAC table has room for; each port has an equal share when it is full [default: 8192]
    #[arg(long, value_name = "N", value_parser = within(1..=1 << 24))]
    table: Option<usize>,
    /// What a card receives for a guest (vhost) is written into the guest's buffers: frames to a MAC address, or all
    #[arg(long, value_name = "CARD=PORT[@MAC]")]
    map: Vec<String>,
    /// Moves that a station may make within a second [default: 5]
    #[arg(long, value_name = "N", value_parser = within(1..=100))]
    moves: Option<usize>,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  a card, a software card and a TAP interface of the kernel:
      sudo ringpass switch 0000:01:00.0 model:tap:left tap:right
  two networks on one switch, with a trunk between it and the card:
      sudo ringpass switch tap:a@10 tap:b@20 0000:01:00.0
  two virtual machines and a card, which receives for the first without copies:
      sudo ringpass switch 0000:01:00.0 vhost:/run/a.sock vhost:/run/b.sock \
          --map 0000:01:00.0=vhost:/run/a.sock@52:54:00:00:00:01
  who is where: prints the MAC table
      kill -USR1 $(pidof ringpass)
  all that there is to say, in a file:
      sudo ringpass switch --config switch.toml

CONFIGURATION FILE (all but 'address' may be left out):
  ageing = 300                  # as the options of these names
  flood = 100000
  table = 8192
  moves = 5

  [[port]]
  address = \"tap:a\"
  name = \"a\"                    # the address, if not given
  vlan = 10                     # in this VLAN only, without tags
  isolation = 1                 # ports of one group do not talk to each other
  sources = [\"02:00:00:00:00:01\"]     # nobody else may send from here
  stations = [\"02:00:00:00:00:01\"]    # these are here for good; with @VLAN
  flood = 1000

  [[port]]
  address = \"0000:01:00.0\"
  trunk = \"10,20-29\"            # these VLANs with tags; or \"all\"
  native = 10                   # but this one without
  [[port.map]]                  # frames to this address, straight into the
  to = \"vm\"                     # buffers of a guest (vhost:PATH)
  mac = \"52:54:00:00:00:01\"     # all that the card receives, if not given
  pass = true                   # without a look

  [[port]]
  address = \"packet:eth1\"
  vlan = 10
  [port.vxlan]                  # a tunnel to another machine (RFC 7348)
  vni = 42
  local = \"10.0.0.1\"
  remote = \"10.0.0.2\"
  port = 4789
  mac = \"02:00:00:00:00:99\"     # of this end; made from 'local' if not given

  [[pass]]                      # all that comes from one port goes to another,
  from = \"b\"                    # without a look
  to = \"c\"";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let Plan { config, ports: plans } = args.plan()?;
    let mut rules: Vec<_> = plans.iter().map(|port| port.rules.clone()).collect();
    plans.iter().flat_map(|plan| &plan.maps).for_each(|map| rules[map.to].lends = true);
    let mut switch = Switch::new(&config, &rules)?;
    let mut run = Run::new(args.options)?;
    let show = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR1, show.clone())
        .map_err(|source| Error::Os { what: "taking SIGUSR1".into(), source })?;
    let mut addresses = Vec::new();
    for port in &plans {
        addresses.push((&port.address[..], mapping::config(port, &run.options)?));
    }
    let (mut ports, pool) = open_all(&addresses, &run.options)?;
    let borrowed = mapping::borrowed(&mut ports, &plans, run.options.queues)?;
    run.enter_sandbox()?;
    for datapath in datapaths(&mut switch, &mut ports, (&plans, borrowed), &run.options, &pool)? {
        run.spawn(move |worker| work(datapath, worker));
    }
    let mut overseer = Overseer::new(switch, plans, show, run.options.json);
    overseer.look(&mut ports);
    let result = run.control_with(&mut ports, &mut overseer);
    drop(overseer);
    close(ports, &pool);
    result
}

impl Args {
    /// What the file says, and over that the command line.
    fn plan(&self) -> Result<Plan, Error> {
        let mut plan = self.config.as_ref().map_or_else(|| Ok(Plan::default()), |file| file::read(file))?;
        for port in &self.ports {
            plan.ports.push(PortPlan::parse(port)?);
        }
        let Config { ageing, table, flood, moves, .. } = &mut plan.config;
        *ageing = self.ageing.unwrap_or(*ageing);
        *table = self.table.unwrap_or(*table);
        *flood = self.flood.unwrap_or(*flood);
        *moves = self.moves.map_or(*moves, |moves| moves as u32);
        for map in &self.map {
            let (card, mapping) = Mapping::parse(map, &plan.ports)?;
            plan.ports[card].maps.push(mapping);
        }
        match plan.ports.len() {
            2..=MAX_PORTS => Ok(plan),
            ports => Err(Error::Other(format!("a switch has 2 to {MAX_PORTS} ports, not {ports}"))),
        }
    }
}

/// A datapath for each of `--queues`, and all ports: queue N of every port is worker N's; further Rx queues go round.
fn datapaths(
    switch: &mut Switch,
    ports: &mut [Box<dyn Port>],
    (plans, borrowed): (&[PortPlan], Vec<Vec<Borrowed>>),
    options: &Options,
    pool: &Mempool,
) -> Result<Vec<Datapath>, Error> {
    let workers = (0..options.queues).map(|_| switch.datapath(pool, options.batch)).collect::<Result<Vec<_>, _>>()?;
    for (port, ((plan, borrowed), opened)) in plans.iter().zip(borrowed).zip(ports).enumerate() {
        let queues = opened.take_queues();
        if queues.len() < workers.len() {
            let (name, has, wants) = (opened.name(), queues.len(), workers.len());
            return Err(Error::Other(format!("{name} has {has} queue(s), not {wants}; ask for --queues {has}")));
        }
        let mut shares: Vec<Share> = Vec::new();
        for (number, mut queues) in queues.into_iter().enumerate() {
            let mut way = plan.pass.map_or(Way::Lookup, Way::Pass);
            if let Some(Borrowed { lending, mapping, .. }) = borrowed.iter().find(|borrowed| borrowed.queue == number) {
                queues.rx.borrow_from(lending).map_err(|error| Error::Other(format!("{}: {error}", opened.name())))?;
                if mapping.pass {
                    way = Way::Pass(mapping.to);
                }
            }
            if let Some(tunnel) = &plan.tunnel {
                queues = tunnel.wrap(queues, pool);
            }
            match shares.get_mut(number % options.queues) {
                Some(share) => share.rx.push((queues.rx, way)),
                None => shares.push(Share { rx: vec![(queues.rx, way)], tx: queues.tx }),
            }
        }
        switch.insert(port, shares);
    }
    Ok(workers)
}

/// A worker, until told to stop.
fn work(mut datapath: Datapath, mut worker: Worker) {
    while worker.running() {
        let moved = datapath.round();
        worker.after(moved, &mut [&mut datapath]);
    }
}
