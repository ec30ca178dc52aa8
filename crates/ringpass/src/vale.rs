//! `ringpass vale`: what ports and switches the serving process of netmap ports has, and changes to them.

use std::path::PathBuf;

use ringpass_netmap::client::{Client, default_socket};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::Kind;
use ringpass_port::Error;
use serde_json::Value;

use crate::options::within;
use crate::stats::say;

/// List, make and attach ports of VALE switches
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Socket of the serving process
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print what there is as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Ports, switches and who is where, with their counters (default)
    List,
    /// Open a port by its address and attach it to a switch: vale0:tap:x. The serving process must have been started with
    /// --no-sandbox --allow tap:x, or --attach
    Attach {
        /// Switch and port address
        name: String,
    },
    /// Take an attached port away again
    Detach {
        /// Switch and port address
        name: String,
    },
    /// Make a port that stays without a program
    New {
        /// Switch and port, as vale0:a
        name: String,
        /// Slots of its rings
        #[arg(long, default_value = "1024", value_parser = within(2..=16_384))]
        slots: usize,
        /// Rings to send, and as many to receive
        #[arg(long, default_value = "1", value_parser = within(1..=8))]
        rings: usize,
        /// Put it into the memory of pipes, which all of its programs share
        #[arg(long)]
        shared: bool,
    },
    /// Let such a port go, when no program has it
    Delete {
        /// Switch and port
        name: String,
    },
}

const EXAMPLES: &str = "EXAMPLES:
  what there is:
      ringpass vale
  a port for two programs that come and go:
      ringpass vale new vale0:a --rings 2
  a TAP interface as a port of a switch, and gone again:
      ringpass vale attach vale0:tap:x
      ringpass vale detach vale0:tap:x";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let other = |error: ringpass_netmap::client::Error| Error::Other(error.to_string());
    let mut client = Client::connect(&args.socket.map_or_else(default_socket, Ok).map_err(other)?).map_err(other)?;
    let mut ask =
        |kind: Kind, name: &str, body: &[u8]| client.ask(&Request::new(kind, name, body)).map(drop).map_err(other);
    match args.what.unwrap_or(What::List) {
        What::List => {
            let text = client.status().map_err(other)?;
            let status: Value =
                serde_json::from_str(&text).map_err(|error| Error::Other(format!("a status: {error}")))?;
            if args.json {
                say(&status.to_string())
            } else {
                list(&status)
            }
            Ok(())
        }
        What::Attach { name } => ask(Kind::ValeAttach, &name, &[]),
        What::Detach { name } => ask(Kind::ValeDetach, &name, &[]),
        What::New { name, slots, rings, shared } => {
            let (slots, rings) = ((slots as u32).to_le_bytes(), (rings as u16).to_le_bytes());
            let memory = u16::from(shared).to_le_bytes();
            ask(Kind::ValeNewif, &name, &[&slots[..], &slots, &rings, &rings, &memory].concat())
        }
        What::Delete { name } => ask(Kind::ValeDelif, &name, &[]),
    }
}

/// For people.
fn list(status: &Value) {
    let items = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let counters = |value: &Value| {
        let counters = value.as_object().into_iter().flatten();
        let counters = counters.filter(|(_, value)| value.as_u64() != Some(0));
        counters.map(|(name, value)| format!("{name} {}", text(value))).collect::<Vec<_>>().join(", ")
    };
    for switch in items("switches") {
        say(&text(&switch["switch"]));
        for attached in switch["attached"].as_array().into_iter().flatten() {
            say(&format!("  {} (attached): {}", text(&attached["port"]), counters(&attached["stats"])));
        }
        for port in items("vale")
            .iter()
            .filter(|port| text(&port["port"]).starts_with(&format!("{}:", text(&switch["switch"]))))
        {
            say(&format!(
                "  {}: memory {}, {} program(s); {}",
                text(&port["port"]),
                port["memory"],
                port["registrations"],
                counters(&port["counters"])
            ));
        }
        for (port, counts) in switch["counts"].as_object().into_iter().flatten() {
            say(&format!("  of what came from {port}: {}", counters(counts)));
        }
        for station in switch["stations"].as_array().into_iter().flatten() {
            say(&format!("  {} is at {}", text(&station["mac"]), text(&station["port"])));
        }
    }
    for port in items("ports") {
        let (status, programs) = (&port["status"], &port["programs"]);
        let link = if status["link"] == true { "up" } else { "down" };
        say(&format!(
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
            say(&format!("  {} program(s); {queues}", programs["registrations"]));
        }
    }
    for monitor in items("monitors") {
        say(&format!("monitor of {}: {}", text(&monitor["port"]), counters(&monitor["counters"])));
    }
    for pipe in items("pipes") {
        let ends = &pipe["registrations"];
        let (parent, name) = (text(&pipe["parent"]), text(&pipe["pipe"]));
        say(&format!(
            "pipe {parent}{{{name}: {} slots, programs at its ends: {} and {}",
            pipe["slots"], ends[0], ends[1]
        ));
    }
    let [common, exchanged] = [&status["common"], &status["exchanged"]];
    say(&format!("memory 1: {} of {} buffers free", common["free"], common["buffers"]));
    if !exchanged.is_null() {
        let [free, all, pool] = ["free", "buffers", "pool"].map(|of| &exchanged[of]);
        say(&format!("memory 2: {free} of {all} buffers free, {pool} exchanged with programs'"));
    }
}
