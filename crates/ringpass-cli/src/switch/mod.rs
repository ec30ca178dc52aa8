//! The subcommand `ringpass switch PORT…`: a learning switch between any number of ports.

pub(crate) mod evpn;
mod guest_workers;
pub(crate) mod mapping;
pub(crate) mod observer;
pub(crate) mod plan;

use std::path::PathBuf;
use std::time::Duration;

use ringpass::{Config, Error, Mempool, Port, QueuePair, Worker, open_all};
use ringpass_switch::{Config as SwitchConfig, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch};

use crate::config_file;
use crate::options::{Options, seconds, within};
use crate::run::close;
use crate::run_observer::RunObserver;
use evpn::Opened;
use guest_workers::{GuestWorkers, is_guest};
use mapping::MappedQueue;
use observer::SwitchObserver;
use plan::{Mapping, Plan, PortPlan};

/// Switch packets between ports, by MAC address and VLAN
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ports, 2 to 64 with those of --config (see 'ringpass --help' for port addresses); PORT@10 is in VLAN 10
    /// only
    #[arg(value_name = "PORT", required_unless_present = "config")]
    ports: Vec<String>,
    /// Configuration file of the switch and its ports, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Forget stations that have been silent for this long, up to 32400 [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ageing: Option<Duration>,
    /// Largest rate of flooded frames from each port, frames a second, 0 for no limit [default: 100000]
    #[arg(long, value_name = "N")]
    flood: Option<u64>,
    /// Size of the MAC table in stations; when it is full, each port has an equal share [default: 8192]
    #[arg(long, value_name = "N", value_parser = within(1..=1 << 24))]
    table: Option<usize>,
    /// Let a card receive for a guest (vhost) directly into the guest's buffers: frames to a MAC address, or
    /// all
    #[arg(long, value_name = "CARD=PORT[@MAC]")]
    map: Vec<String>,
    /// Port changes that a station may make within a second [default: 5]
    #[arg(long, value_name = "N", value_parser = within(1..=100))]
    moves: Option<usize>,
    /// Give each guest (vhost) a worker of its own, so that its memory cannot hold up other ports; each frame is handed
    /// from worker to worker then. With --cpu, their CPUs come after those of the switch's workers
    #[arg(long, conflicts_with = "map")]
    worker_per_guest: bool,
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
  who is where: prints statistics and the MAC table
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
  [port.vxlan]                  # tunnels to other machines (RFC 7348)
  vni = 42                      # or VLANs with their networks: vnis = [\"10=1010\"]
  local = \"10.0.0.1/24\"         # IPv4 or IPv6
  gateway = \"10.0.0.254\"        # for remotes outside of that network
  remote = \"10.0.0.2\"           # or several: remotes = [\"10.0.0.2\", \"10.1.0.3\"]
  port = 4789
  mac = \"02:00:00:00:00:99\"     # of this end; made from 'local' if not given

  [[pass]]                      # all that comes from one port goes to another,
  from = \"b\"                    # without a look
  to = \"c\"";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let plan = args.plan()?;
    let mut switch = create(&plan, plan.ports.len())?;
    let plans = plan.ports;
    let mut guest_workers = args.worker_per_guest.then(|| GuestWorkers::new(&plans)).transpose()?;
    let mut run = args.options.run()?;
    let mut addresses = Vec::new();
    for port in &plans {
        addresses.push((&port.address[..], mapping::config(port, &run.config)?));
    }
    let mut ports = open_all(addresses, &run.config)?;
    let mapped_queues = mapping::mapped_queues(&mut ports, &plans, run.config.port.queues)?;
    let evpn = Opened::of(&plans)?;
    run.enter_sandbox(ports.needs())?;
    let pool = ports.pool().clone();
    let queues = (mapped_queues, guest_workers.as_mut());
    for datapath in datapaths(&mut switch, &mut ports, &plans, queues, &run.config, &pool)? {
        run.spawn(move |mut worker| work(datapath, &mut worker))?;
    }
    guest_workers.map_or(Ok(()), |workers| workers.start(&mut run))?;
    let evpn = evpn.map(|evpn| evpn.start(&switch, &plans)).transpose()?;
    let observer = SwitchObserver::new("switch".into(), switch, plans, 0, run.config.port.mtu).with_evpn(evpn);
    let mut observer = observer.with_json(args.options.json);
    observer.check_ports(&mut ports);
    let result = run.control_with(&mut ports, &mut observer);
    drop((observer, pool));
    close(ports);
    result
}

/// Creates the switch of a plan, without ports, with this many slots for them at least.
///
/// # Errors
/// What is wrong with the plan.
pub(crate) fn create(plan: &Plan, slots: usize) -> Result<Switch, Error> {
    let mut rules: Vec<_> = plan.ports.iter().map(|port| port.rules.clone()).collect();
    rules.resize(slots.max(rules.len()), PortPolicy::default());
    plan.ports.iter().flat_map(|port| &port.maps).for_each(|map| rules[map.to].lends = true);
    Switch::new(&plan.config, &rules)
}

impl Args {
    /// Builds the plan from the configuration file and the command line, which takes precedence.
    fn plan(&self) -> Result<Plan, Error> {
        let mut plan =
            self.config.as_ref().map_or_else(|| Ok(Plan::default()), |file| config_file::read_switch(file))?;
        for port in &self.ports {
            let port = PortPlan::parse(port)?;
            if let Some(other) = plan.ports.iter().find(|other| other.rules.name == port.rules.name) {
                let name = &other.rules.name;
                return Err(Error::Config(format!(
                    "two ports are called '{name}'; give them names, in a file (--config)"
                )));
            }
            plan.ports.push(port);
        }
        let SwitchConfig { ageing, table, flood, moves, .. } = &mut plan.config;
        *ageing = self.ageing.unwrap_or(*ageing);
        *table = self.table.unwrap_or(*table);
        *flood = self.flood.unwrap_or(*flood);
        *moves = self.moves.map_or(*moves, |moves| moves as u32);
        for map in &self.map {
            let (card, mapping) = Mapping::parse(map, &plan.ports)?;
            plan.ports[card].maps.push(mapping);
        }
        plan.check_size().map_err(Error::Config)?;
        Ok(plan)
    }
}

/// Creates a datapath, over all ports, for each of `--queues`.
pub(crate) fn datapaths(
    switch: &mut Switch,
    ports: &mut [Box<dyn Port>],
    plans: &[PortPlan],
    (mapped_queues, mut guest_workers): (Vec<Vec<MappedQueue>>, Option<&mut GuestWorkers>),
    config: &Config,
    pool: &Mempool,
) -> Result<Vec<Datapath>, Error> {
    let workers =
        (0..config.port.queues).map(|_| switch.datapath(pool, config.batch)).collect::<Result<Vec<_>, _>>()?;
    for (port, ((plan, mapped_queues), opened)) in plans.iter().zip(mapped_queues).zip(ports).enumerate() {
        let mut own = guest_workers.as_mut().filter(|_| is_guest(plan));
        let mut queues_and_ways = Vec::new();
        for (number, mut queues) in take_queues(&mut **opened, workers.len())?.into_iter().enumerate() {
            let mut way = plan.pass.map_or(Forwarding::Lookup, Forwarding::Direct);
            if let Some(MappedQueue { lending, mapping, .. }) =
                mapped_queues.iter().find(|mapped| mapped.queue == number)
            {
                queues.rx.borrow_from(lending).map_err(|error| error.of(opened.name()))?;
                if mapping.pass {
                    way = Forwarding::Direct(mapping.to);
                }
            }
            if let Some(workers) = &mut own {
                queues = workers.take(queues)?;
            }
            if let Some(tunnel) = &plan.tunnel {
                queues = tunnel.wrap(queues, pool, config.port.mtu);
            }
            queues_and_ways.push((queues, way));
        }
        switch.insert(port, shares(queues_and_ways, workers.len()));
    }
    Ok(workers)
}

/// Takes the queues of a port, at least one for each worker.
///
/// # Errors
/// It has fewer.
pub(crate) fn take_queues(port: &mut dyn Port, workers: usize) -> Result<Vec<QueuePair>, Error> {
    let queues = port.take_queues();
    if queues.len() < workers {
        let (name, has) = (port.name(), queues.len());
        return Err(Error::Config(format!("{name} has {has} queue(s), not {workers}; ask for --queues {has}")));
    }
    Ok(queues)
}

/// Distributes the queues of a port over datapaths: queue N to datapath N, and further Rx queues round robin.
pub(crate) fn shares(queues: Vec<(QueuePair, Forwarding)>, datapaths: usize) -> Vec<DatapathQueues> {
    let mut shares: Vec<DatapathQueues> = Vec::new();
    for (number, (QueuePair { rx, tx }, way)) in queues.into_iter().enumerate() {
        match shares.get_mut(number % datapaths) {
            Some(share) => share.rx.push((rx, way)),
            None => shares.push(DatapathQueues { rx: vec![(rx, way)], tx }),
        }
    }
    shares
}

/// Runs a datapath until the worker is told to stop.
pub(crate) fn work(mut datapath: Datapath, worker: &mut Worker) {
    while worker.running() {
        let moved = datapath.round();
        worker.after(moved, &mut [&mut datapath]);
    }
}
