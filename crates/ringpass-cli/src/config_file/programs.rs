//! Tables of the configuration file that describe other programs of the service: software cards, and netmap ports.

use clap::{Args, Parser};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{model_server, netmapd};

/// A software card, played by a process of its own as `ringpass model` does it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Model {
    /// Which card: `82599` or `virtio-net`.
    card: String,
    /// Path of the socket that it is served at, with `,mode=0660`, `,user=NAME`, `,group=NAME`; a port's address is `vfio-user:PATH` then.
    socket: String,
    /// Address of the port at the far end of its wire.
    wire: String,
    /// Its MAC address; 02:82:59:90:00:01 if not given.
    mac: Option<String>,
    /// Its PCI device ID, four hexadecimal digits.
    device: Option<String>,
    /// Features of a virtio card, as in `ringpass model`.
    features: Option<String>,
    /// Largest number of queue pairs of a virtio card; 1 if not given.
    queues: Option<usize>,
    /// Largest payload of a frame in bytes; 1500 if not given.
    mtu: Option<usize>,
}

/// Netmap ports for programs, served by a process of its own as `ringpass netmapd` does it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Netmap {
    /// Path of the socket that they are served at, likewise; that of `ringpass netmapd` if not given.
    socket: Option<String>,
    /// Ports for programs as `netmap:NAME`, such as `eth0=0000:01:00.0`.
    #[serde(default)]
    port: Vec<String>,
    /// The host's stack behind them, such as `eth0=tap:host0`.
    #[serde(default)]
    host: Vec<String>,
    /// Ports that are attached to VALE switches, such as `vale0:tap:x`.
    #[serde(default)]
    attach: Vec<String>,
    /// Further memory for ports of programs, such as `512M`; half of the machine's if not given.
    memory: Option<String>,
    /// Path of its own control socket, likewise.
    control: Option<String>,
    /// Where its own metrics are served.
    metrics: Option<String>,
}

/// The command line of a program, without that of Ringpass itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine(pub Vec<String>);

impl CommandLine {
    fn new(words: &[&str]) -> Self {
        Self(words.iter().map(|&word| word.to_owned()).collect())
    }

    fn add<'a>(&mut self, option: &str, values: impl IntoIterator<Item = &'a String>) {
        values.into_iter().for_each(|value| self.0.extend([option.to_owned(), value.clone()]));
    }

    /// Returns it if the program understands it.
    fn checked<T: Args>(self) -> Result<Self, String> {
        #[derive(Parser)]
        struct Line<T: Args> {
            #[command(flatten)]
            _args: T,
        }
        // The first word is the program's name.
        let wrong = |error: clap::Error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!(
                ": [[{}]]: {}",
                if self.0[0] == "netmapd" { "netmap" } else { &self.0[0] },
                first.trim_start_matches("error: ")
            )
        };
        Line::<T>::try_parse_from(&self.0).map_err(wrong)?;
        Ok(self)
    }
}

impl Model {
    /// Returns its command line.
    ///
    /// # Errors
    /// What is wrong with it, beginning with `: `.
    pub(super) fn line(self) -> Result<CommandLine, String> {
        let Self { card, socket, wire, mac, device, features, queues, mtu } = self;
        let mut line = CommandLine::new(&["model", &card, "--socket", &socket, "--wire", &wire]);
        line.add("--mac", &mac);
        line.add("--device", &device);
        line.add("--features", &features);
        line.add("--queues", &queues.map(|number| number.to_string()));
        line.add("--mtu", &mtu.map(|number| number.to_string()));
        line.checked::<model_server::Args>()
    }
}

impl Netmap {
    /// Returns its command line.
    ///
    /// # Errors
    /// What is wrong with it, beginning with `: `.
    pub(super) fn line(self) -> Result<CommandLine, String> {
        let Self { socket, port, host, attach, memory, control, metrics } = self;
        let mut line = CommandLine::new(&["netmapd"]);
        line.add("--socket", &socket);
        line.add("--port", &port);
        line.add("--host", &host);
        line.add("--attach", &attach);
        line.add("--memory", &memory);
        line.add("--control", &control);
        line.add("--metrics", &metrics);
        line.checked::<netmapd::Args>()
    }
}
