//! The subcommand `ringpass apply FILE`: changes a running service into the one that a file describes.

use std::path::PathBuf;

use ringpass::control::{Client, Request};
use ringpass::pass_on::can_be_passed_on;
use ringpass::{Address, Error};
use serde_json::Value;

use crate::config_file::{Outline, Step, port, read_outline};
use crate::ctl::{DEFAULT_SOCKET, add};
use crate::output::print_line;

/// Change a running service into the one that a file describes, where it differs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file, as 'ringpass run' takes it
    file: PathBuf,
    /// Control socket of the service
    #[arg(long, value_name = "PATH", env = "RINGPASS_CONTROL", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
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
    let (_, wanted) = read_outline(&args.file)?;
    let mut client = Client::connect(&args.socket)?;
    let running = client.request(&Request::Plan)?;
    let running: Outline = serde_json::from_value(running).map_err(|error| Error::Fault(error.to_string()))?;
    let refused = |why: String| Error::Config(format!("{}: {why}", args.file.display()));
    let steps = running.steps_to(&wanted).map_err(refused)?;
    // All that can be known to fail is known before anything is changed.
    let (mut removed, mut added) = (0, 0);
    for step in &steps {
        match step {
            Step::Remove { .. } => removed += 1,
            Step::Add { port: keys, .. } => {
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
    for step in steps {
        let name = |port: &Value| {
            port.get("name").or(port.get("address")).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        match step {
            Step::Remove { port } => {
                if !args.dry_run {
                    client.request(&Request::Remove { port: port.clone() })?;
                }
                print_line(&format!("- {port}"));
            }
            Step::Add { switch, port } => {
                let line = format!("+ {} ({switch})", name(&port));
                if !args.dry_run {
                    add(&mut client, switch, port)?;
                }
                print_line(&line);
            }
        }
    }
    Ok(())
}
