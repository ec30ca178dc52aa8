//! The subcommand `ringpass run FILE`: a service, as its file describes it.

mod observer;
mod programs;
pub mod reload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringpass::pass_on::prepare_to_adopt;
use ringpass::{Config, Error, PortConfig, Worker, open_all};
use ringpass_switch::MAX_PORTS;

use crate::config_file;
use crate::options::{Options, seconds};
use crate::run::close;
use crate::switch::evpn::Opened;
use crate::switch::observer::SwitchObserver;
use crate::switch::plan::Plan;
use crate::switch::{create, datapaths, mapping, work};
use observer::{Part, ServiceObserver};
use programs::Programs;
use reload::Reloader;

/// Run a service: the switches and pairs of ports that a file describes
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file, in TOML
    file: PathBuf,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Print statistics for machines, one JSON object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  what a file describes, until Ctrl-C or SIGTERM:
      sudo ringpass run /etc/ringpass/service.toml
  is the file right?
      ringpass check /etc/ringpass/service.toml
  statistics now:
      kill -USR1 $(pidof ringpass)

CONFIGURATION FILE (docs/configuration.md has all keys):
  [options]
  cpu = [2, 3]                  # as the command-line options of these names

  [[switch]]
  name = \"lan\"
  [[switch.port]]
  address = \"tap:a\"
  vlan = 10
  [[switch.port]]
  address = \"0000:01:00.0\"
  trunk = \"all\"

  [[fwd]]                       # all that one port receives, the other sends
  name = \"uplink\"
  a = \"0000:01:00.1\"
  b = \"vhost:/run/vm.sock\"";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let (service, outline) = config_file::read_outline(&args.file)?;
    let config_file::Service { options, room, switches: plans, programs } = service;
    let program_options = program_options(&options, args.json);
    // Whoever may change things may add ports, so switches wait for them.
    let control = options.control.as_ref().map(|place| place.path.clone());
    let is_changed = control.is_some();
    let slots = if is_changed { MAX_PORTS } else { 0 };
    if is_changed {
        prepare_to_adopt()?;
    }
    let mut switches = plans.iter().map(|plan| create(plan, slots)).collect::<Result<Vec<_>, _>>()?;
    let mut run = Options { time: args.time, json: args.json, ..options }.run()?;
    run.printer.live = false;
    run.config.room = room;
    // Ports may be theirs.
    let programs = Programs::start(&programs, &program_options)?;
    let mut ports = open_all(addresses(&plans, &run.config)?, &run.config)?;
    let mut mapped = Vec::new();
    let mut end = 0;
    for plan in &plans {
        let own = end..end + plan.ports.len();
        end = own.end;
        mapped.push(mapping::mapped_queues(&mut ports[own], &plan.ports, run.config.port.queues)?);
    }
    let evpn = plans.iter().map(|plan| Opened::of(&plan.ports)).collect::<Result<Vec<_>, _>>()?;
    let reloader = control.map(|socket| Reloader::start(&args.file, &socket)).transpose()?;
    run.enter_sandbox(ports.needs())?;
    let pool = ports.pool().clone();
    let mut failures = Vec::new();
    let mut end = 0;
    for ((switch, plan), mapped) in switches.iter_mut().zip(&plans).zip(mapped) {
        let own = end..end + plan.ports.len();
        end = own.end;
        let failed = Arc::new(AtomicBool::new(false));
        for datapath in datapaths(switch, &mut ports[own], &plan.ports, (mapped, None), &run.config, &pool)? {
            let failed = failed.clone();
            run.spawn(move |worker| guarded(worker, &failed, |worker| work(datapath, worker)))?;
        }
        failures.push(failed);
    }
    let mut parts = Vec::new();
    let mut first = 0;
    for (((switch, plan), failed), evpn) in switches.into_iter().zip(plans).zip(failures).zip(evpn) {
        let name = plan.name.unwrap_or_default();
        let ports = plan.ports.len();
        let evpn = evpn.map(|evpn| evpn.start(&switch, &plan.ports)).transpose()?;
        let observer =
            SwitchObserver::new(name.clone(), switch, plan.ports, first, run.config.port.mtu).with_evpn(evpn);
        parts.push(Part::new(name, observer.with_json(args.json).lasting(is_changed), failed));
        first += ports;
    }
    let mut observer = ServiceObserver::new(parts, outline, &run.config, (reloader, programs));
    let result = run.control_with(&mut ports, &mut observer);
    let programs = observer.into_programs();
    drop(pool);
    close(ports);
    programs.end();
    result
}

/// Returns the options of the service's other programs.
fn program_options(options: &Options, json: bool) -> Vec<String> {
    let mut words = Vec::new();
    if options.sandbox.no_sandbox {
        words.push("--no-sandbox".to_owned());
    }
    if json {
        words.push("--json".to_owned());
    }
    words
}

/// Returns the addresses of all ports, each with its configuration.
fn addresses<'a>(plans: &'a [Plan], config: &Config) -> Result<Vec<(&'a str, PortConfig)>, Error> {
    let ports = plans.iter().flat_map(|plan| &plan.ports);
    ports.map(|port| Ok((&port.address[..], mapping::config(port, config)?))).collect()
}

/// Does a worker's work, whose failure ends neither the other workers nor the run.
fn guarded(mut worker: Worker, failed: &AtomicBool, work: impl FnOnce(&mut Worker)) {
    // Whatever the work has left half done is dropped with it. The message of the panic has been printed.
    if catch_unwind(AssertUnwindSafe(|| work(&mut worker))).is_err() {
        failed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use ringpass::Workers;

    use super::*;

    #[test]
    fn a_worker_that_fails_leaves_the_others_alone() {
        let mut workers = Workers::new(&Config::default()).expect("workers");
        let failed = Arc::new(AtomicBool::new(false));
        let failing = failed.clone();
        let fails = move |worker| {
            guarded(worker, &failing, |_| panic!("as this test wants it"));
            Ok(())
        };
        workers.spawn("fails", fails).expect("a thread");
        let goes_on = |mut worker: Worker| {
            while worker.running() {
                worker.after(1, &mut []);
            }
            Ok(())
        };
        workers.spawn("goes on", goes_on).expect("a thread");
        ringpass_testing::poll_until("the failure", || failed.load(Ordering::Relaxed));
        let moved = workers.totals(Duration::ZERO).moved;
        ringpass_testing::poll_until("the other", || workers.totals(Duration::ZERO).moved > moved);
        assert!(!workers.finished());
        workers.stop();
        workers.join().expect("neither has failed as far as the run is concerned");
    }
}
