//! The subcommand `ringpass apply FILE`: changes a running service into the one that a file describes.

use std::path::{Path, PathBuf};

use ringpass::control::{Client, DEFAULT_SOCKET, Request};
use ringpass::pass_on::can_be_passed_on;
use ringpass::{Address, Error};

use crate::config_file::{PortPlace, Step, port, read_outline, rules};
use crate::ctl::{add, plan};
use crate::output::print_line;

/// Change a running service into the one that a file describes, where it differs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file, as 'ringpass run' takes it
    file: PathBuf,
    /// Control socket of the service [default: that of the file, else /run/ringpass/control]
    #[arg(long, value_name = "PATH", env = "RINGPASS_CONTROL")]
    socket: Option<PathBuf>,
    /// Print what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  what would be changed:
      ringpass apply --dry-run /etc/ringpass/service.toml
  ports that differ, while the others pass frames:
      sudo ringpass apply /etc/ringpass/service.toml";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    apply(&args.file, args.socket.as_deref(), args.dry_run, &mut print_line)
}

/// Changes a running service into the one that a file describes; each change is told in a line. Without a socket, the service is the one at
/// that of the file.
///
/// # Errors
/// What cannot be changed, or has failed; then the service is as before.
pub fn apply(file: &Path, socket: Option<&Path>, dry_run: bool, told: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let (service, wanted) = read_outline(file)?;
    let own = service.options.control.map(|place| place.path);
    let mut client = Client::connect(socket.or(own.as_deref()).unwrap_or(Path::new(DEFAULT_SOCKET)))?;
    let refused = |why: String| Error::Config(format!("{}: {why}", file.display()));
    let steps = plan(&mut client)?.steps_to(&wanted).map_err(refused)?;
    // All that can be known to fail is known before anything is changed.
    let (mut removed, mut added) = (0, 0);
    for step in &steps {
        match step {
            Step::Remove(_) => removed += 1,
            Step::Set { place, .. } => drop(rules(&place.port).map_err(refused)?),
            Step::Add(PortPlace { port: keys, .. }) => {
                added += 1;
                let address: Address = port(keys).map_err(refused)?.address.parse()?;
                can_be_passed_on(&address)?;
            }
        }
    }
    let room = client.status()?.room + removed;
    if added > room {
        return Err(refused(format!("{added} ports are added, and there is room for {room}; restart the service")));
    }
    for (number, step) in steps.iter().enumerate().filter(|_| !dry_run) {
        if let Err(why) = take(&mut client, step) {
            let mut failed = Vec::new();
            for step in steps[..number].iter().rev() {
                if let Err(why) = take(&mut client, &step.reverse()) {
                    failed.push(format!("; '{}' could not be put back: {why}", step.place().name));
                }
            }
            let failed = if failed.is_empty() { "; nothing was changed".into() } else { failed.concat() };
            return Err(Error::Fault(format!("{}: {why}{failed}", step.place().name)));
        }
    }
    steps.iter().for_each(|step| told(&step.to_string()));
    Ok(())
}

/// Takes a step.
fn take(client: &mut Client, step: &Step) -> Result<(), Error> {
    match step {
        Step::Remove(PortPlace { name, .. }) => client.request(&Request::Remove { port: name.clone() }).map(drop),
        Step::Set { place: PortPlace { name, port, .. }, .. } => {
            client.request(&Request::Set { port: name.clone(), keys: port.clone() }).map(drop)
        }
        Step::Add(PortPlace { switch, port, .. }) => add(client, switch, port.clone()),
    }
}
