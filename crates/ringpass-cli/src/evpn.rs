//! The subcommand `ringpass evpn`: devices and configuration by which FRR and a switch know of each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringpass::Error;
use ringpass_evpn::devices::{self, Device};

use crate::config_file;
use crate::output::print_line;
use crate::switch::evpn::port_of;
use crate::switch::plan::EvpnPlan;

/// Prepare a host for EVPN by FRR: its devices, and FRR's configuration
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "EXAMPLES:
  the devices by which FRR and the switch know of each other, made once:
      sudo ringpass evpn setup /etc/ringpass/service.toml --user ringpass
  only the commands, for another tool:
      ringpass evpn setup /etc/ringpass/service.toml --print
  this host's part of FRR's configuration:
      ringpass evpn frr /etc/ringpass/service.toml >>/etc/frr/frr.conf

CONFIGURATION FILE:
  [[switch.port]]
  address = \"packet:eth1\"
  [switch.port.vxlan]
  vnis = [\"10=1010\", \"20=1020\"]
  local = \"10.0.0.1/24\"
  [switch.port.vxlan.evpn]      # instead of 'remote' and 'remotes'
  system = 65000                # these two only for 'evpn frr'
  neighbors = [\"10.0.0.2\", \"10.0.0.3\"]";

#[derive(clap::Subcommand)]
enum Action {
    /// Make the devices of all networks
    Setup {
        /// Configuration file of the service
        file: PathBuf,
        /// User who may run the switch; the administrator if not given
        #[arg(long)]
        user: Option<String>,
        /// Print the commands instead
        #[arg(long)]
        print: bool,
    },
    /// Remove the devices of all networks
    Remove {
        /// Configuration file of the service
        file: PathBuf,
        /// Print the commands instead
        #[arg(long)]
        print: bool,
    },
    /// Print this host's part of FRR's configuration
    Frr {
        /// Configuration file of the service
        file: PathBuf,
    },
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    match args.action {
        Action::Setup { file, user, print } => setup(&plan(&file)?, user.as_deref(), print),
        Action::Remove { file, print } => remove(&plan(&file)?, print),
        Action::Frr { file } => {
            let missing =
                || Error::Config("the file has no 'system' and 'neighbors' in its [switch.port.vxlan.evpn]".into());
            print_line(plan(&file)?.routing.ok_or_else(missing)?.configuration().trim_end());
            Ok(())
        }
    }
}

/// Reads what a service's only switch with EVPN needs.
fn plan(file: &Path) -> Result<EvpnPlan, Error> {
    let service = config_file::read(file)?;
    let mut plans = service.switches.iter().filter_map(|switch| port_of(&switch.ports));
    match (plans.next(), plans.next()) {
        (Some((_, plan)), None) => Ok(plan.clone()),
        (None, _) => Err(Error::Config(format!("{}: no port has [switch.port.vxlan.evpn]", file.display()))),
        (Some(_), Some(_)) => Err(Error::Config(format!("{}: two switches have EVPN; one may", file.display()))),
    }
}

fn is_there(device: &str) -> bool {
    fs::exists(Path::new("/sys/class/net").join(device)).unwrap_or(false)
}

/// Makes the devices, all or none.
fn setup(plan: &EvpnPlan, user: Option<&str>, print: bool) -> Result<(), Error> {
    let commands = devices::make(&plan.vnis, plan.local, user);
    if print {
        commands.iter().for_each(|command| print_line(command));
        return Ok(());
    }
    let names = |vni: &u32| Device::ALL.map(|device| device.name(*vni));
    if let Some(device) = plan.vnis.iter().flat_map(names).find(|device| is_there(device)) {
        return Err(Error::Config(format!("there is a device {device} already; 'ringpass evpn remove' removes them")));
    }
    let made = commands.iter().try_for_each(|command| execute(command));
    if made.is_err() {
        let _ = remove(plan, false);
    }
    made
}

/// Removes the devices that are there. One that cannot be removed keeps no other.
fn remove(plan: &EvpnPlan, print: bool) -> Result<(), Error> {
    let commands = devices::remove(&plan.vnis);
    if print {
        commands.iter().for_each(|command| print_line(command));
        return Ok(());
    }
    let own = |command: &&String| command.rsplit(' ').next().is_some_and(is_there);
    commands.iter().filter(own).map(|command| execute(command)).fold(Ok(()), Result::and)
}

/// Runs a command of iproute2.
fn execute(command: &str) -> Result<(), Error> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|source| Error::os(format!("{program} (of the package iproute2)"), source))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Config(format!("'{command}' failed: {}", said.lines().next().unwrap_or("it said nothing"))))
}
