//! The subcommand `ringpass vale`: lists the ports and switches of a netmap server, and changes them.

use std::path::PathBuf;

use ringpass::Error;
use ringpass_netmap::client::{Client, default_socket};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, NewPort};
use serde_json::Value;

use crate::options::within;
use crate::stats::print_line;

/// List, create and attach ports of VALE switches
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: Option<ValeAction>,
    /// Socket of the netmap server
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print the list as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum ValeAction {
    /// List ports, switches and stations, with their counters (default)
    List,
    /// Attach a port to a switch: a port of 'vale new' or of 'netmapd --port' by its name, vale0:a, or a port that is opened
    /// by its address, vale0:tap:x. For an address the netmap server must have been started with --no-sandbox --allow
    /// tap:x, or --attach
    Attach {
        /// Switch, and the port's name or address
        name: String,
    },
    /// Detach a port from its switch. One that was attached by its address is closed, others stay
    Detach {
        /// Switch, and the port's name or address
        name: String,
    },
    /// Create a port that stays when no program uses it. No two such ports have the same name, also on different switches
    New {
        /// Name, such as a, or switch and name, such as vale0:a, which also attaches the port
        name: String,
        /// Slots of each ring
        #[arg(long, default_value = "1024", value_parser = within(2..=16_384))]
        slots: usize,
        /// Tx rings, and as many Rx rings
        #[arg(long, default_value = "1", value_parser = within(1..=16))]
        rings: usize,
        /// Put the port into the memory of pipes, which is shared by all of its programs
        #[arg(long)]
        shared: bool,
    },
    /// Delete such a port, if no program uses it
    Delete {
        /// Name, or switch and name, which detaches the port first
        name: String,
    },
}

const EXAMPLES: &str = "EXAMPLES:
  what there is:
      ringpass vale
  a port for two programs that come and go:
      ringpass vale new vale0:a --rings 2
  the same in two steps; without a switch, the port is netmap:a, and what programs send there is dropped:
      ringpass vale new a --rings 2
      ringpass vale attach vale0:a
  a TAP interface as a port of a switch, and gone again:
      ringpass vale attach vale0:tap:x
      ringpass vale detach vale0:tap:x";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut client = Client::connect(&args.socket.map_or_else(default_socket, Ok)?)?;
    let mut ask = |kind: Kind, name: &str, body: &[u8]| client.ask(&Request::new(kind, name, body)).map(drop);
    match args.what.unwrap_or(ValeAction::List) {
        ValeAction::List => {
            let text = client.status()?;
            let status: Value =
                serde_json::from_str(&text).map_err(|error| Error::Fault(format!("a status: {error}")))?;
            if args.json { print_line(&status.to_string()) } else { list(&status) }
        }
        ValeAction::Attach { name } => ask(Kind::ValeAttach, &name, &[])?,
        ValeAction::Detach { name } => ask(Kind::ValeDetach, &name, &[])?,
        ValeAction::New { name, slots, rings, shared } => {
            let port = port_of(&name);
            let new = NewPort { slots: [slots as u32; 2], rings: [rings as u16; 2], memory_id: u16::from(shared) };
            ask(Kind::ValeNewif, port, &new.bytes())?;
            if port != name {
                let attached = ask(Kind::ValeAttach, &name, &[]);
                attached.inspect_err(|_| drop(ask(Kind::ValeDelif, port, &[])))?;
            }
        }
        ValeAction::Delete { name } => {
            let port = port_of(&name);
            if port != name {
                ask(Kind::ValeDetach, &name, &[])?;
            }
            ask(Kind::ValeDelif, port, &[])?
        }
    }
    Ok(())
}

/// Returns the name of the persistent port behind that of a switch, if there is one: `a` of `vale0:a`.
fn port_of(name: &str) -> &str {
    name.split_once(':').filter(|(switch, _)| switch.starts_with("vale")).map_or(name, |(_, port)| port)
}

/// Prints the status in readable form.
pub fn list(status: &Value) {
    let items = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let counters = |value: &Value| {
        let counters = value.as_object().into_iter().flatten();
        let counters = counters.filter(|(_, value)| value.as_u64() != Some(0));
        counters.map(|(name, value)| format!("{name} {}", text(value))).collect::<Vec<_>>().join(", ")
    };
    for switch in items("switches") {
        print_line(&text(&switch["switch"]));
        for attached in switch["attached"].as_array().into_iter().flatten() {
            print_line(&format!("  {} (attached): {}", text(&attached["port"]), counters(&attached["stats"])));
        }
        for port in items("vale")
            .iter()
            .filter(|port| text(&port["port"]).starts_with(&format!("{}:", text(&switch["switch"]))))
        {
            print_line(&format!(
                "  {}: memory {}, {} program(s); {}",
                text(&port["port"]),
                port["memory"],
                port["registrations"],
                counters(&port["counters"])
            ));
        }
        for (port, counts) in switch["counts"].as_object().into_iter().flatten() {
            print_line(&format!("  of what came from {port}: {}", counters(counts)));
        }
        for station in switch["stations"].as_array().into_iter().flatten() {
            print_line(&format!("  {} is at {}", text(&station["mac"]), text(&station["port"])));
        }
    }
    for port in items("persistent").iter().filter(|port| port["switch"].is_null()) {
        print_line(&format!(
            "netmap:{} (no switch): memory {}, {} program(s)",
            text(&port["port"]),
            port["memory"],
            port["registrations"],
        ));
    }
    for port in items("ports") {
        let (status, programs) = (&port["status"], &port["programs"]);
        let link = if status["link"] == true { "up" } else { "down" };
        print_line(&format!(
            "netmap:{} ({}), {}, link {link}: {}; {} received for nobody",
            text(&port["port"]),
            text(&status["address"]),
            text(&status["mac"]),
            counters(&status["stats"]),
            status["dropped"],
        ));
        if !programs.is_null() {
            let all = programs["counters"].as_array().map_or(std::slice::from_ref(&programs["counters"]), |all| all);
            let queues = all.iter().map(counters).collect::<Vec<_>>().join("; ");
            print_line(&format!("  {} program(s); {queues}", programs["registrations"]));
        }
    }
    for monitor in items("monitors") {
        print_line(&format!("monitor of {}: {}", text(&monitor["port"]), counters(&monitor["counters"])));
    }
    for pipe in items("pipes") {
        let ends = &pipe["registrations"];
        let (parent, name) = (text(&pipe["parent"]), text(&pipe["pipe"]));
        print_line(&format!(
            "pipe {parent}{{{name}: {} ring(s) of {} slots there and {} of {} back, programs at its ends: {} and {}",
            pipe["rings"][0], pipe["slots"][0], pipe["rings"][1], pipe["slots"][1], ends[0], ends[1]
        ));
    }
    let [common, exchanged] = [&status["common"], &status["exchanged"]];
    print_line(&format!("memory 1: {} of {} buffers free", common["free"], common["buffers"]));
    if !exchanged.is_null() {
        let [free, all, pool] = ["free", "buffers", "pool"].map(|of| &exchanged[of]);
        print_line(&format!("memory 2: {free} of {all} buffers free, {pool} exchanged with programs'"));
    }
}
