//! The subcommand `ringpass ctl`: looks at a running program, and changes it, over its control socket.

pub mod capture;
#[cfg(test)]
mod reference;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Subcommand;
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use ringpass::Error;
use ringpass::control::{Client, DEFAULT_SOCKET, PortStatus, Request, Status};
use ringpass::signals::interrupted;
use serde_json::{Value, json};

use crate::config_file::{self, Outline};
use crate::options::seconds;
use crate::output::print_line;
use crate::signals::{begin_run, catch_first_signal};
use crate::stats::{bps, grouped, pps};

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
        #[arg(add = ArgValueCandidates::new(|| names(port_names)))]
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
        #[arg(add = ArgValueCandidates::new(|| names(switch_names)))]
        switch: Option<String>,
    },
    /// Open a port and add it to a switch
    #[command(
        after_help = "EXAMPLES:\n  in VLAN 10 alone:\n      sudo ringpass ctl add lan tap:c --vlan 10\n  a virtual machine, which may \
                            belong to the group kvm:\n      sudo ringpass ctl add lan vhost:/run/vm.sock,mode=0660,group=kvm\n  all keys of [[switch.port]]:\n      \
                            sudo ringpass ctl add lan tap:c --set 'trunk=\"10,20\"' --set native=10"
    )]
    Add {
        /// Name of the switch
        #[arg(add = ArgValueCandidates::new(|| names(switch_names)))]
        switch: String,
        /// Address of the port: tap:NAME, vhost:PATH, vfio-user:PATH, a port of netmapd, xdp:NAME,socket=PATH, or null
        address: String,
        /// Name of the port [default: its address]
        #[arg(long)]
        name: Option<String>,
        /// The only VLAN of the port, whose frames come and go without tags
        #[arg(long, value_name = "ID")]
        vlan: Option<u16>,
        /// Another key of [[switch.port]], as in the configuration file
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Give a port of a switch other rules, while it passes frames
    #[command(
        after_help = "EXAMPLES:\n  another VLAN:\n      ringpass ctl set tap:c vlan=20\n  a trunk instead:\n      ringpass ctl set tap:c \
                            'trunk=\"10,20\"' native=10 --unset vlan\n  a station that is there for good:\n      ringpass ctl set tap:c \
                            'stations=[\"02:00:00:00:00:01\"]'"
    )]
    Set {
        /// Name of the port
        #[arg(add = ArgValueCandidates::new(|| names(port_names)))]
        port: String,
        /// vlan, trunk, native, isolation, sources, stations, flood, as in the configuration file
        #[arg(value_name = "KEY=VALUE", required_unless_present = "unset")]
        keys: Vec<String>,
        /// A key that it is to have no longer
        #[arg(long, value_name = "KEY")]
        unset: Vec<String>,
    },
    /// Take a port out of its switch and close it
    #[command(after_help = "EXAMPLES:\n      ringpass ctl remove tap:a")]
    Remove {
        /// Name of the port
        #[arg(add = ArgValueCandidates::new(|| names(port_names)))]
        port: String,
    },
    Capture(capture::Args),
    /// Print events as they happen, until Ctrl-C or the program's end
    #[command(after_help = "EXAMPLES:\n      ringpass ctl events --json")]
    Events {
        /// End after this many seconds
        #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
        time: Option<Duration>,
    },
}

/// Returns names that the shell completes: those of the program at the socket that the line names so far.
fn names(of: fn(Status) -> Vec<String>) -> Vec<CompletionCandidate> {
    let words: Vec<_> = std::env::args_os().collect();
    let named = words.iter().position(|word| word == "--socket").and_then(|place| words.get(place + 1)).cloned();
    let socket = named.or_else(|| std::env::var_os("RINGPASS_CONTROL")).unwrap_or_else(|| DEFAULT_SOCKET.into());
    let status = Client::connect(socket.as_ref()).and_then(|mut client| client.status());
    status.map_or_else(|_| Vec::new(), |status| of(status).into_iter().map(CompletionCandidate::new).collect())
}

fn port_names(status: Status) -> Vec<String> {
    status.ports.into_iter().map(|port| port.name).collect()
}

fn switch_names(status: Status) -> Vec<String> {
    status.switches.into_iter().map(|switch| switch.name).collect()
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut client = Client::connect(&args.socket)?;
    match args.command {
        Command::List => list(&client.status()?, args.json),
        Command::Show { port } => show(&client.status()?, &port, args.json)?,
        Command::Stats { interval } => stats(&mut client, interval, args.json)?,
        Command::Stations { switch } => stations(&client.request(&Request::Stations { switch })?, args.json),
        Command::Add { switch, address, name, vlan, set } => {
            add(&mut client, &switch, port_keys(address, name, vlan, &set)?)?
        }
        Command::Set { port, keys, unset } => set(&mut client, port, &keys, &unset)?,
        Command::Remove { port } => drop(client.request(&Request::Remove { port })?),
        Command::Capture(capture) => capture::run(&mut client, capture, args.json)?,
        Command::Events { time } => events(&mut client, time, args.json)?,
    }
    Ok(())
}

type Keys = serde_json::Map<String, Value>;

/// Parses `KEY=VALUE`, in TOML.
fn parsed(words: &[String]) -> Result<Keys, Error> {
    let text = words.join("\n");
    toml::from_str(&text).map_err(|error| Error::Config(format!("{text}: {}", error.message().replace('\n', " "))))
}

/// Gives a port other rules: those that it has, with these in place of some and without others.
fn set(client: &mut Client, port: String, words: &[String], unset: &[String]) -> Result<(), Error> {
    let changed = parsed(words)?;
    let plan = plan(client)?;
    let there = plan.switches.values().find_map(|switch| switch.ports.get(&port)?.as_object());
    let none =
        || Error::NotFound(format!("there is no port '{port}' with rules; 'ringpass ctl list' shows those there are"));
    let mut keys = there.ok_or_else(none)?.clone();
    keys.extend(changed);
    keys.retain(|key, _| !unset.contains(key));
    client.request(&Request::Set { port, keys: Value::Object(keys) }).map(drop)
}

/// Returns the keys of a port, as in a file.
fn port_keys(address: String, name: Option<String>, vlan: Option<u16>, set: &[String]) -> Result<Value, Error> {
    let mut keys = parsed(set)?;
    keys.insert("address".into(), address.into());
    if let Some(name) = name {
        keys.insert("name".into(), name.into());
    }
    if let Some(vlan) = vlan {
        keys.insert("vlan".into(), vlan.into());
    }
    Ok(Value::Object(keys))
}

/// Asks a service what it consists of.
pub fn plan(client: &mut Client) -> Result<Outline, Error> {
    let plan = client.request(&Request::Plan)?;
    serde_json::from_value(plan).map_err(|error| Error::Fault(error.to_string()))
}

/// Opens a port for the program, which is in its sandbox, and passes it on.
pub fn add(client: &mut Client, switch: &str, port: Value) -> Result<(), Error> {
    // What is wrong with it is found before anything is opened.
    config_file::port(&port).map_err(Error::Config)?;
    client.add(switch, port)
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

/// Prints a ring or an end, of which the text is `NAME: …`.
fn print_named(thing: &impl ToString) {
    let line = thing.to_string();
    let (name, what) = line.split_once(": ").unwrap_or((&line, ""));
    print_line(&format!("{name:<20}  {what}"));
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
            Value::Array(_) if key == "rings" => port.rings.iter().for_each(print_named),
            Value::Array(_) if key == "ends" => port.ends.iter().for_each(print_named),
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
        let remote = station["remote"].as_str().map(|remote| format!(", at {remote}")).unwrap_or_default();
        print_line(&format!("{mac}  {vlan:>4}  {seen:>7}  {switch:<10}  {}{remote}", text("port")));
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
