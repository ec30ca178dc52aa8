//! The table `[options]`: what the subcommands have as command-line options.

use std::time::Duration;

use clap::Parser;
use ringpass::PageSize;
use ringpass::control::WebPlace;
use ringpass::sandbox::User;
use ringpass_ipc::SocketPlace;
use schemars::JsonSchema;
use serde::Deserialize;

use super::read_from;
use crate::options::{Options, SandboxOptions, latency_budget, offloads, pages, ring_size, user, within};

/// Options of every port and worker.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct OptionsTable {
    /// Numbers of the CPUs that workers are pinned to, one after the other; the scheduler decides if there are none.
    cpu: Vec<usize>,
    /// Largest number of packets received and sent together, 1 to 256; 32 if not given.
    batch: Option<Batch>,
    /// Queues of each port, which is also the number of workers of each switch, 1 to 64; 1 if not given.
    queues: Option<Queues>,
    /// Descriptors of each Rx ring: a power of two, 64 to 4096; 512 if not given.
    rxd: Option<Ring>,
    /// Descriptors of each Tx ring, likewise.
    txd: Option<Ring>,
    /// Huge pages for packets and rings: `on` (2 MiB), `off` or `1g`; `on` if enough are free.
    hugepages: Option<Pages>,
    /// Largest payload of a frame in bytes, 68 to 9710; 1500 if not given.
    mtu: Option<Mtu>,
    /// Offloads to cards and kernel: a list of `checksum`, `hash`, `vlan`, `tso`; `all`, or `none`.
    offloads: Option<OffloadList>,
    /// Whether idle workers never sleep.
    poll: bool,
    /// Latency that each worker may add so that packets collect while it sleeps, in microseconds, 0 to 10000; 50 if not given, none below 30.
    latency_budget: Option<LatencyBudget>,
    /// Whether user, capabilities, files and all system calls are kept after start-up.
    no_sandbox: bool,
    /// User that root becomes after start-up: a name or a number; `nobody` if not given.
    user: Option<SandboxUser>,
    /// PCI addresses of cards that are taken even if their kernel interface is in use.
    take_over: Vec<String>,
}

/// Sockets by which others look at the service.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct ControlTable {
    /// Path of the socket whose clients may change things, with `,mode=0660`, `,user=NAME`, `,group=NAME`; for its owner alone without these.
    socket: Option<Place>,
    /// Path of a socket whose clients may look only, likewise.
    read_only: Option<Place>,
    /// Number of ports that may be added while the service runs, for whose packets memory is kept; 4 if not given, if there is a socket for changes.
    room: Option<Room>,
}

impl ControlTable {
    /// Returns the number of ports that may be added.
    pub(super) fn room(&self) -> usize {
        let default = if self.socket.is_some() { 4 } else { 0 };
        self.room.as_ref().map_or(default, |room| room.0)
    }
}

/// Metrics for Prometheus.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MetricsTable {
    /// Where they are served, over HTTP at `/metrics`: an address such as `127.0.0.1:9184`, or the path of a unix socket.
    listen: Option<String>,
}

/// A page on which rings move.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebTable {
    /// Where it is served, to browsers of this machine: a loopback address such as `127.0.0.1:8080`, with `,step` behind it if the page may stop software
    /// cards of the service's own process and let them handle one descriptor at a time.
    listen: Option<PagePlace>,
}

read_from! {
    PagePlace(WebPlace) from "String" as String: |text| text.parse();
    Room(usize) from "usize" as usize: |number| within(0..=1024)(&number.to_string());
    Place(SocketPlace) from "String" as String: |text| text.parse();
    Batch(usize) from "usize" as usize: |number| within(1..=256)(&number.to_string());
    Queues(usize) from "usize" as usize: |number| within(1..=64)(&number.to_string());
    Ring(usize) from "usize" as usize: |number| ring_size(&number.to_string());
    LatencyBudget(Duration) from "usize" as usize: |number| latency_budget(&number.to_string());
    Mtu(usize) from "usize" as usize: |number| within(68..=9710)(&number.to_string());
    Pages(PageSize) from "String" as String: |text| pages(&text);
    OffloadList(ringpass::Offloads) from "String" as String: |text| offloads(&text);
    SandboxUser(User) from "String" as String: |text| user(&text);
}

impl OptionsTable {
    /// Returns them with the defaults of the command line.
    pub(super) fn options(self, control: ControlTable, metrics: MetricsTable, web: WebTable) -> Options {
        #[derive(Parser)]
        struct Defaults {
            #[command(flatten)]
            options: Options,
        }
        let Defaults { options: defaults } = Defaults::parse_from(["ringpass"]);
        Options {
            cpu: self.cpu,
            batch: self.batch.map_or(defaults.batch, |batch| batch.0),
            queues: self.queues.map_or(defaults.queues, |queues| queues.0),
            rxd: self.rxd.map_or(defaults.rxd, |ring| ring.0),
            txd: self.txd.map_or(defaults.txd, |ring| ring.0),
            hugepages: self.hugepages.map(|pages| pages.0),
            mtu: self.mtu.map_or(defaults.mtu, |mtu| mtu.0),
            offloads: self.offloads.map_or(defaults.offloads, |offloads| offloads.0),
            poll: self.poll,
            latency_budget: self.latency_budget.map_or(defaults.latency_budget, |budget| budget.0),
            sandbox: SandboxOptions {
                no_sandbox: self.no_sandbox,
                user: self.user.map_or(defaults.sandbox.user, |user| user.0),
            },
            take_over: self.take_over,
            control: control.socket.map(|place| place.0),
            control_read_only: control.read_only.map(|place| place.0),
            metrics: metrics.listen,
            web: web.listen.map(|place| place.0),
            ..defaults
        }
    }
}
