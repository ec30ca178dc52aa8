//! The subcommand `ringpass check FILE`: reads the file of a service without running it.

use std::path::PathBuf;

use ringpass::Error;
use serde_json::json;

use crate::config_file::{Service, page, read, schema};
use crate::output::print_line;

/// Check the configuration file of a service, without opening anything
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file, as 'ringpass run' takes it
    #[arg(required_unless_present_any = ["schema", "reference"])]
    file: Option<PathBuf>,
    /// Print the JSON Schema of such files instead
    #[arg(long, conflicts_with = "file")]
    schema: bool,
    /// Print the reference of all keys instead, in Markdown
    #[arg(long, conflicts_with_all = ["file", "schema"])]
    reference: bool,
    /// Print what the file describes for machines, as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  before the service gets the file:
      ringpass check /etc/ringpass/service.toml
  for an editor that completes keys:
      ringpass check --schema >service.schema.json";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let Some(file) = &args.file else {
        let schema = || serde_json::to_string_pretty(&schema()).expect("a schema is JSON");
        print_line(if args.reference { page() } else { schema() }.trim_end());
        return Ok(());
    };
    let Service { switches, programs, .. } = read(file)?;
    if args.json {
        let port = |port: &crate::switch::plan::PortPlan| json!({ "name": port.rules.name, "address": port.address });
        let switch = |plan: &crate::switch::plan::Plan| json!({ "name": plan.name, "ports": plan.ports.iter().map(port).collect::<Vec<_>>() });
        let programs: Vec<_> = programs.iter().map(|line| &line.0).collect();
        print_line(
            &json!({ "switches": switches.iter().map(switch).collect::<Vec<_>>(), "programs": programs }).to_string(),
        );
        return Ok(());
    }
    for plan in &switches {
        let names: Vec<_> = plan.ports.iter().map(|port| &port.rules.name[..]).collect();
        print_line(&format!("{}: {}", plan.name.as_deref().unwrap_or_default(), names.join(", ")));
    }
    programs.iter().for_each(|line| print_line(&format!("ringpass {}", line.0.join(" "))));
    Ok(())
}
