//! The subcommand `ringpass ctl`: looks at a running program, and changes it, over its control socket.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Subcommand;
use ringpass::Error;
use ringpass::control::{Client, PortStatus, Request, Status};
use ringpass::signals::interrupted;
use serde_json::{Value, json};

use crate::options::seconds;
use crate::output::print_line;
use crate::signals::{begin_run, catch_first_signal};
use crate::stats::{bps, grouped, pps};

/// Where `ringpass run` is controlled unless its file says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ringpass/control";

/// Look at a running program, and change it, over its control socket
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Control socket of the program, as in its --control or its file
    #[arg(long, global = true, value_name = "PATH", env = "RINGPASS_CONTROL", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Print for machines, one JSON object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "EXAMPLES:
  which ports and switches there are:
      ringpass ctl list
  of a program that was started with '--control /run/fwd':
      ringpass ctl --socket /run/fwd stats
  what happens from now on:
      ringpass ctl events";

#[derive(Subcommand)]
enum Command {
    /// List ports and switches
    #[command(after_help = "EXAMPLES:\n      ringpass ctl list")]
    List,
    /// Show all that is known of a port
    #[command(after_help = "EXAMPLES:\n      ringpass ctl show tap:a")]
    Show {
        /// Name of the port
        port: String,
    },
    /// Show what passes each port, over an interval
    #[command(after_help = "EXAMPLES:\n  rates over ten seconds:\n      ringpass ctl stats --interval 10")]
    Stats {
        /// Seconds to measure
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,
    },
    /// List the stations of all switches, or of one
    #[command(after_help = "EXAMPLES:\n      ringpass ctl stations lan")]
    Stations {
        /// Name of the switch
        switch: Option<String>,
    },
    /// Take a port out of its switch and close it
    #[command(after_help = "EXAMPLES:\n      ringpass ctl remove tap:a")]
    Remove {
        /// Name of the port
        port: String,
    },
    /// Print events as they happen, until Ctrl-C or the program's end
    #[command(after_help = "EXAMPLES:\n      ringpass ctl events --json")]
    Events {
        /// End after this many seconds
        #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
        time: Option<Duration>,
    },
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut client = Client::connect(&args.socket)?;
    match args.command {
        Command::List => list(&client.status()?, args.json),
        Command::Show { port } => show(&client.status()?, &port, args.json)?,
        Command::Stats { interval } => stats(&mut client, interval, args.json)?,
        Command::Stations { switch } => stations(&client.request(&Request::Stations { switch })?, args.json),
        Command::Remove { port } => drop(client.request(&Request::Remove { port })?),
        Command::Events { time } => events(&mut client, time, args.json)?,
    }
    Ok(())
}

/// Returns a value of the protocol as JSON.
fn value(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("strings and numbers")
}

fn list(status: &Status, json: bool) {
    if json {
        let port = |port: &PortStatus| json!({ "port": port.name, "address": port.address, "switch": port.switch, "state": port.state, "link": port.link });
        status.ports.iter().for_each(|one| print_line(&port(one).to_string()));
        return;
    }
    let width = status.ports.iter().map(|port| port.name.chars().count()).max().unwrap_or_default().max(4);
    print_line(&format!("{:<width$}  {:<10}  {:<4}  {:<10}  address", "port", "state", "link", "switch"));
    for PortStatus { name, address, switch, state, link, .. } in &status.ports {
        let (link, switch) = (if *link { "up" } else { "down" }, switch.as_deref().unwrap_or("-"));
        print_line(&format!("{name:<width$}  {state:<10}  {link:<4}  {switch:<10}  {address}"));
    }
}

fn show(status: &Status, name: &str, json: bool) -> Result<(), Error> {
    let port = status.ports.iter().find(|port| port.name == name).ok_or_else(|| {
        let names: Vec<_> = status.ports.iter().map(|port| &port.name[..]).collect();
        Error::NotFound(format!("there is no port '{name}', but {}", names.join(", ")))
    })?;
    let fields = value(port);
    if json {
        print_line(&fields.to_string());
        return Ok(());
    }
    for (key, value) in fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        match value {
            Value::Object(counters) => {
                for (key, count) in counters.iter().filter(|(_, count)| **count != 0) {
                    print_line(&format!("{:<20}  {}", key, count.as_u64().map_or(count.to_string(), grouped)));
                }
            }
            Value::Array(queues) if queues.len() > 1 => {
                for (number, queue) in queues.iter().enumerate() {
                    let count = |key: &str| grouped(queue[key].as_u64().unwrap_or_default());
                    let (received, sent) = (count("rx_packets"), count("tx_packets"));
                    print_line(&format!("queue {number:<14}  received {received}, sent {sent}"));
                }
            }
            Value::Array(_) => {}
            Value::String(text) => print_line(&format!("{key:<20}  {text}")),
            value => print_line(&format!("{key:<20}  {}", value.as_u64().map_or(value.to_string(), grouped))),
        }
    }
    Ok(())
}

fn stats(client: &mut Client, interval: Duration, json: bool) -> Result<(), Error> {
    let before = client.status()?;
    if json {
        print_line(&value(&before).to_string());
        return Ok(());
    }
    std::thread::sleep(interval);
    let now = client.status()?;
    let seconds = (now.seconds - before.seconds).max(1e-9);
    let width = now.ports.iter().map(|port| port.name.chars().count()).max().unwrap_or_default().max(4);
    for port in &now.ports {
        // A port that was not there before has begun at zero.
        let old = before.ports.iter().find(|old| old.name == port.name).map(|old| old.stats).unwrap_or_default();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let side = |packets, bytes: f64| format!("{:>10} {:>12}", pps(packets), bps(bytes * 8.0));
        let new = port.stats;
        let rx = side(rate(new.rx_packets, old.rx_packets), rate(new.rx_bytes, old.rx_bytes));
        let tx = side(rate(new.tx_packets, old.tx_packets), rate(new.tx_bytes, old.tx_bytes));
        let drops = [new.rx_drops - old.rx_drops.min(new.rx_drops), new.tx_drops - old.tx_drops.min(new.tx_drops)];
        let [rx_drops, tx_drops] = drops.map(grouped);
        print_line(&format!("{:<width$}  rx {rx}  tx {tx}  drops {rx_drops}/{tx_drops}", port.name));
    }
    Ok(())
}

fn stations(stations: &Value, json: bool) {
    let stations = stations.as_array().into_iter().flatten();
    if json {
        return stations.for_each(|station| print_line(&station.to_string()));
    }
    print_line(&format!("{:<17}  vlan  {:>7}  {:<10}  port", "station", "seen", "switch"));
    for station in stations {
        let text = |key: &str| station[key].as_str().unwrap_or_default();
        let seen = station["seconds"].as_u64().map_or("fixed".into(), |age| format!("{age} s"));
        let vlan = station["vlan"].as_u64().filter(|vlan| *vlan != 0).map_or("-".into(), |vlan| vlan.to_string());
        let (mac, switch) = (text("mac"), text("switch"));
        print_line(&format!("{mac}  {vlan:>4}  {seen:>7}  {switch:<10}  {}", text("port")));
    }
}

fn events(client: &mut Client, time: Option<Duration>, json: bool) -> Result<(), Error> {
    /// Time after which a signal is noticed.
    const LOOK: Duration = Duration::from_millis(200);
    catch_first_signal()?;
    begin_run();
    client.request(&Request::Events)?;
    let start = Instant::now();
    while !interrupted() && time.is_none_or(|time| start.elapsed() < time) {
        let Some(event) = client.event(LOOK)? else { continue };
        if json {
            print_line(&event.to_string());
            continue;
        }
        let kind = event["event"].as_str().unwrap_or_default();
        let word = |(key, value): (&String, &Value)| match value {
            Value::String(text) => format!("{key} {text}"),
            value => format!("{key} {value}"),
        };
        let rest = event.as_object().into_iter().flatten().filter(|(key, _)| *key != "event").map(word);
        print_line(&format!("{kind}: {}", rest.collect::<Vec<_>>().join(", ")));
    }
    Ok(())
}
