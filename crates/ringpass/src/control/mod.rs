//! Control of a running program over a unix socket: what it does, and how well.
//!
//! Each side sends lines of JSON. The program begins with a greeting:
//!
//! ```json
//! {"protocol":1,"program":"ringpass run","version":"0.1.0","changes":true}
//! ```
//!
//! A client sends requests, such as `{"id":1,"request":"status"}`, and gets an answer to each, in order, with the same `id`:
//! `{"id":1,"ok":…}`, or `{"id":1,"error":"…"}` with the cause in a line. [`Request`] has all of them. After the request `events`, lines with what
//! happens come in between, as `{"event":…}`. A line has at most [`MAX_LINE`] bytes.
//!
//! [`Server::listen_for_scrapers`] serves metrics to Prometheus over HTTP, at a TCP or unix socket, and [`Server::listen_for_browsers`] a page on
//! which rings move.
//!
//! A socket's file says who may connect; of two sockets that a program serves, one may be for reading only. A client that sends no request, or
//! half a line, or does not read its answers, loses its connection after [`PATIENCE`]; one that does not read events loses those
//! for which there is no room, and is told how many.

mod client;
mod http;
mod server;
mod status;
mod web;

use std::time::Duration;

pub use client::Client;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use server::Server;
pub use status::{CardsState, EndStatus, PortStatus, Status, SwitchStatus, WorkerStatus};
pub use web::WebPlace;

/// Version of this protocol. A program answers those of its own version only.
pub const PROTOCOL: u32 = 1;
/// Where `ringpass ctl` looks for a service unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ringpass/control";
/// Longest line of a client, in bytes.
pub const MAX_LINE: usize = 64 << 10;
/// How long a client may leave undone what it has begun.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A request of a client.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Asks for a [`Status`].
    Status,
    /// Asks for the stations of a switch, or of all: a list of objects with `mac`, `vlan`, `port`, `switch` and `seconds` since the station was
    /// heard, `null` for one that is there for good.
    Stations {
        /// Name of the switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<String>,
    },
    /// Asks for metrics: a text.
    Metrics {
        /// Its format.
        #[serde(default)]
        format: MetricsFormat,
    },
    /// Asks for what a service consists of, for those who compare it with a file.
    Plan,
    /// Adds a port to a switch. The descriptors of [`open_for`](crate::pass_on::open_for) come with this line, in the first byte. Only for clients that may
    /// change things.
    Add {
        /// Name of the switch.
        switch: String,
        /// The port: the keys of `[[switch.port]]` in the configuration file.
        port: Value,
    },
    /// Gives a port of a switch other rules (`vlan`, `trunk`, `native`, `isolation`, `sources`, `stations`, `flood`), while it passes frames. Only for clients that may
    /// change things.
    Set {
        /// Name of the port.
        port: String,
        /// All of its keys in the configuration file, of which only those may differ.
        keys: Value,
    },
    /// Takes a port out of its switch and closes it. Only for clients that may change things.
    Remove {
        /// Name of the port.
        port: String,
    },
    /// Begins a capture of a port, in pcapng, to the socket whose descriptor comes with this line, in the first byte: a stream socket of the unix domain,
    /// of whose two ends the client keeps the other one. It ends when the client closes that. Only for clients that may change things, as frames are nobody else's business.
    Capture {
        /// Name of the port.
        port: String,
        /// Which frames: those that one of these takes, as `udp:PORT`, `vlan:ID`, `dst-mac:MAC` or `ethertype:0xN`; all if there is none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        filters: Vec<String>,
    },
    /// Stops the software cards of the program, lets one of them handle one descriptor, or lets them run. The answer has `cards`, which is their state
    /// now, and `steps`, a list of what was done. Only for clients that may change things.
    Step {
        /// Which of these.
        order: StepOrder,
    },
    /// Asks for events from now on.
    Events,
}

/// An order to software cards.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOrder {
    /// Stop.
    Stop,
    /// Handle one descriptor. Cards that run stop first.
    Step,
    /// Go on.
    Run,
}

impl Request {
    /// Returns whether this changes anything.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Add { .. } | Self::Set { .. } | Self::Remove { .. } | Self::Capture { .. } | Self::Step { .. }
        )
    }
}

/// Format of metrics.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// Prometheus' own, version 0.0.4.
    Prometheus,
}

/// The first line of a program.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Version of the protocol.
    pub protocol: u32,
    /// What runs, such as `ringpass switch`.
    pub program: String,
    /// Its version.
    pub version: String,
    /// Whether this client may change anything.
    pub changes: bool,
}
