//! The configuration file of `ringpass run`, and of `ringpass switch --config`, in TOML. Its types make the JSON Schema and the reference page
//! too.

mod error;
mod options;
mod outline;
mod programs;
mod reference;
mod switch;

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use ringpass::{Address, Error};
use ringpass_switch::PortPolicy;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::options::Options;
use crate::switch::plan::{Plan, PortPlan};
use options::{ControlTable, MetricsTable, OptionsTable, WebTable};
pub use outline::{Outline, PortPlace, RULES, Step, SwitchOutline, rules_alone_differ};
pub use programs::CommandLine;
use programs::{Model, Netmap};
pub use reference::{manual_page, page, schema};
use switch::{Pair, Switch};

/// A service: switches and pairs of ports, with the options of all.
///
/// A file with the keys of one `[[switch]]` alone, at its top, describes a service with that switch.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// Options of every port and worker.
    options: OptionsTable,
    /// Sockets by which `ringpass ctl` and `ringpass top` look at the service and change it.
    control: ControlTable,
    /// Metrics for Prometheus and others that understand OpenMetrics.
    metrics: MetricsTable,
    /// A page to look at, on which rings move.
    web: WebTable,
    /// A learning switch.
    switch: Vec<Switch>,
    /// Two ports; each sends what the other receives.
    fwd: Vec<Pair>,
    /// A software card, played by a process of its own.
    model: Vec<Model>,
    /// Netmap ports for programs, served by a process of its own.
    netmap: Vec<Netmap>,
}

/// Keys of [`File`]. A file without any of them is that of one switch.
const SECTIONS: [&str; 8] = ["options", "control", "metrics", "web", "switch", "fwd", "model", "netmap"];

/// A service that a file describes.
pub struct Service {
    /// Options of every port and worker.
    pub options: Options,
    /// Number of ports that may be added while it runs.
    pub room: usize,
    /// Its switches, in the order of the file; pairs are switches too, of ports that pass all to each other.
    pub switches: Vec<Plan>,
    /// Its other programs: software cards and netmap ports.
    pub programs: Vec<CommandLine>,
}

/// Reads the file of a service.
///
/// # Errors
/// The first thing that is wrong with it, in a line, with the number of its line.
pub fn read(path: &Path) -> Result<Service, Error> {
    let text = read_limited(path).map_err(|source| Error::file(path.display().to_string(), source))?;
    parse(&text).map_err(|why| Error::Config(format!("{}{why}", path.display())))
}

/// Reads the file of a service, and what it consists of.
///
/// # Errors
/// The same as those of [`read`].
pub fn read_outline(path: &Path) -> Result<(Service, Outline), Error> {
    let text = read_limited(path).map_err(|source| Error::file(path.display().to_string(), source))?;
    outline::outline(&text).map_err(|why| Error::Config(format!("{}{why}", path.display())))
}

/// Reads the text of a service's file.
///
/// # Errors
/// The first thing that is wrong with it, in a line that begins with `:`, and the line's number if it is known.
pub fn check_text(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

/// Reads the file of one switch.
///
/// # Errors
/// As [`read`]; if the file describes more than that.
pub fn read_switch(path: &Path) -> Result<Plan, Error> {
    let name = path.display();
    let text = read_limited(path).map_err(|source| Error::file(format!("--config {name}"), source))?;
    let wrong = |why| Error::Config(format!("{name}{why}"));
    if is_service(&text) {
        return Err(wrong(format!(": this is the file of a service; run it: ringpass run {name}")));
    }
    parse_switch(&text).map_err(wrong)
}

/// Reads a port that is added to a switch: the keys of `[[switch.port]]`, as JSON.
///
/// # Errors
/// What is wrong with it, in a line.
pub fn port(keys: &serde_json::Value) -> Result<PortPlan, String> {
    switch::Port::deserialize(keys).map_err(|error| format!("the port: {error}"))?.alone()
}

/// Reads the rules of a port that is there already, from all of its keys.
///
/// # Errors
/// What is wrong with them, in a line.
pub fn rules(keys: &serde_json::Value) -> Result<PortPolicy, String> {
    let mut keys = keys.clone();
    // What they say is in force.
    if let Some(keys) = keys.as_object_mut() {
        ["map", "vxlan"].iter().for_each(|key| drop(keys.remove(*key)));
    }
    port(&keys).map(|plan| plan.rules)
}

/// Returns whether a text has a key of a service's file. What is not TOML has none.
fn is_service(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| SECTIONS.iter().any(|key| table.contains_key(*key)))
}

/// Parses the text of a file. Error texts begin with `:LINE: ` or `: `.
fn parse(text: &str) -> Result<Service, String> {
    let Service { options, room, mut switches, programs } = match is_service(text) {
        true => {
            let File { options, control, metrics, web, switch, fwd, model, netmap } = from_toml(text)?;
            let switches = switch.into_iter().map(Switch::plan).chain(fwd.into_iter().map(Pair::plan));
            let programs = model.into_iter().map(Model::line).chain(netmap.into_iter().map(Netmap::line));
            Service {
                room: control.room(),
                options: options.options(control, metrics, web),
                switches: switches.collect::<Result<_, _>>()?,
                programs: programs.collect::<Result<_, _>>()?,
            }
        }
        false => {
            let none =
                OptionsTable::default().options(ControlTable::default(), MetricsTable::default(), WebTable::default());
            Service { options: none, room: 0, switches: vec![parse_switch(text)?], programs: Vec::new() }
        }
    };
    if switches.is_empty() {
        return Err(
            ": there is nothing to run; describe a [[switch]] or a [[fwd]] ('ringpass model' and 'netmapd' run alone)"
                .into(),
        );
    }
    let only = switches.len() == 1;
    for number in 0..switches.len() {
        let plan = &switches[number];
        let name = plan.name.clone().or_else(|| only.then(|| "switch".into()));
        let Some(name) = name else {
            return Err(": of several switches each needs a 'name'".into());
        };
        if switches[..number].iter().any(|other| other.name.as_ref() == Some(&name)) {
            return Err(format!(": two switches are called '{name}'"));
        }
        switches[number].name = Some(name);
        check_ports(&switches, number)?;
    }
    Ok(Service { options, room, switches, programs })
}

/// Checks the ports of a switch, and their names against those of the switches before.
fn check_ports(switches: &[Plan], number: usize) -> Result<(), String> {
    let plan = &switches[number];
    let switch = plan.name.as_deref().unwrap_or_default();
    plan.check_size().map_err(|why| format!(": switch '{switch}': {why}"))?;
    for port in &plan.ports {
        let name = &port.rules.name;
        port.address.parse::<Address>().map_err(|error| format!(": port '{name}': {error}"))?;
        let others = switches[..number].iter().flat_map(|plan| &plan.ports);
        if others.into_iter().any(|other| other.rules.name == *name) {
            return Err(format!(": two ports are called '{name}'; give them names"));
        }
    }
    Ok(())
}

fn parse_switch(text: &str) -> Result<Plan, String> {
    from_toml::<Switch>(text)?.plan()
}

/// Reads a value from a text in TOML.
///
/// # Errors
/// The first thing that is wrong with it, in a line that begins with `:`, and the line's number if it is known.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| error::describe(text, &error))
}

/// Size limit of a configuration file in bytes: many times what 64 ports take.
const MAX_FILE_LEN: u64 = 1 << 20;

/// Reads a file of at most a mebibyte, because the path may name a pipe or a device without an end.
///
/// # Errors
/// The file cannot be read, or is longer.
pub fn read_limited(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_FILE_LEN + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_LEN {
        let why = format!("more than {MAX_FILE_LEN} bytes, which no configuration has; name a file in TOML");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Declares a type that is parsed from another one while the file is read, so that errors have a line number.
macro_rules! read_from {
    ($($(#[$more:meta])* $name:ident($inner:ty) from $text:literal as $from:ty: $read:expr;)*) => {$(
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[serde(try_from = $text)]
        $(#[$more])*
        pub(super) struct $name(#[schemars(with = $text)] pub(super) $inner);

        impl TryFrom<$from> for $name {
            type Error = String;

            fn try_from(from: $from) -> Result<Self, String> {
                let read: fn($from) -> Result<$inner, String> = $read;
                read(from).map(Self)
            }
        }
    )*};
}
use read_from;
