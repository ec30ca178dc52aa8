//! Options that the subcommands share.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::connector;
use crate::output::notice;
use crate::run::Run;
use ringpass::control::WebPlace;
use ringpass::sandbox::{Sandbox, User};
use ringpass::{Address, Config, Error, Notices, Offloads, PageSize, PortConfig};
use ringpass_ipc::SocketPlace;

/// Options of every subcommand that moves packets.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Options of every port and worker")]
pub struct Options {
    /// CPUs that the workers are pinned to, in this order: 2,3
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cpu)]
    pub cpu: Vec<usize>,
    /// Largest number of packets received and sent together, 1 to 256
    #[arg(long, value_name = "N", default_value = "32", value_parser = within(1..=256))]
    pub batch: usize,
    /// Queues of each port, which is also the number of workers, 1 to 64
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=64))]
    pub queues: usize,
    /// Descriptors of each Rx ring: a power of two, 64 to 4096
    #[arg(long, value_name = "N", default_value = "512", value_parser = ring_size)]
    pub rxd: usize,
    /// Descriptors of each Tx ring: a power of two, 64 to 4096
    #[arg(long, value_name = "N", default_value = "512", value_parser = ring_size)]
    pub txd: usize,
    /// Let cards report sent frames by writing the ring's head to memory instead of to descriptors
    #[arg(long)]
    pub head_write_back: bool,
    /// Huge pages for packets and rings: of 2 MiB, none, or of 1 GiB [default: on if enough of 2 MiB are free]
    #[arg(long, value_name = "on|off|1g", value_parser = pages)]
    pub hugepages: Option<PageSize>,
    /// Largest payload of a frame in bytes, 68 to 9710
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = within(68..=9710))]
    pub mtu: usize,
    /// Offloads to cards and kernel: a list of checksum, hash, vlan, tso; all, or none
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = offloads)]
    pub offloads: Offloads,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    pub time: Option<Duration>,
    /// End after this many packets
    #[arg(short = 'c', long, value_name = "PACKETS")]
    pub count: Option<u64>,
    /// Seconds between lines of statistics, or between probes of 'ringpass ping' (0: the next as soon as one is back)
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Print statistics for machines, one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Never sleep: idle workers poll all the time
    #[arg(long)]
    pub poll: bool,
    /// Latency that each worker may add so that packets collect while it sleeps, in microseconds, 0 to 10000; none below 30
    #[arg(long, value_name = "MICROSECONDS", default_value = "50", value_parser = latency_budget)]
    pub latency_budget: Duration,
    /// Socket by which 'ringpass ctl' and 'ringpass top' look at this run and change it: PATH, and ',group=NAME', ',mode=0660'
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<SocketPlace>,
    /// Socket by which they look at this run alone
    #[arg(long, value_name = "SOCKET")]
    pub control_read_only: Option<SocketPlace>,
    /// Serve metrics in the OpenMetrics format: ADDRESS:PORT, or the path of a unix socket
    #[arg(long, value_name = "PLACE")]
    pub metrics: Option<String>,
    /// Serve a page on which rings move, to browsers of this machine: ADDRESS:PORT [default: 127.0.0.1:8080], with ',step'
    /// if it may stop software cards and let them handle one descriptor at a time
    #[arg(long, value_name = "PLACE", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8080")]
    pub web: Option<WebPlace>,
    /// Sandbox.
    #[command(flatten)]
    pub sandbox: SandboxOptions,
    /// Take this card even if its kernel interface is in use
    #[arg(long, value_name = "ADDRESS", value_parser = card)]
    pub take_over: Vec<String>,
}

/// Returns a parser of numbers in a range.
pub fn within(range: RangeInclusive<usize>) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("write a number from {} to {}", range.start(), range.end())),
    }
}

fn cpu(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "write numbers of CPUs, such as 2,3".into())
}

/// Parses an IPv4 address.
pub fn ipv4(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "write an IPv4 address, such as 198.18.0.1".into())
}

/// Parses an IP address.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "write an IP address, such as 198.18.0.1 or 2001:2::1".into())
}

/// Parses the address of a card, which may have a port's address around it.
fn card(text: &str) -> Result<String, String> {
    match text.parse() {
        Ok(Address::Pci(card)) => Ok(card),
        _ => Err("write the PCI address of a card, such as 0000:01:00.0; 'ringpass list' shows them".into()),
    }
}

/// Parses the size of a ring: a power of two from 64 to 4096.
pub fn ring_size(text: &str) -> Result<usize, String> {
    let size = within(64..=4096)(text).ok().filter(|size| size.is_power_of_two());
    size.ok_or_else(|| "write a power of two from 64 to 4096".into())
}

pub(crate) fn pages(text: &str) -> Result<PageSize, String> {
    match text {
        "on" => Ok(PageSize::Huge2M),
        "off" => Ok(PageSize::Ordinary),
        "1g" => Ok(PageSize::Huge1G),
        _ => Err("write on, off or 1g".into()),
    }
}

pub(crate) fn offloads(text: &str) -> Result<Offloads, String> {
    text.parse()
}

/// Parses a number of bytes above 0, with an optional suffix K, M, G or T (powers of 1024).
pub fn bytes(text: &str) -> Result<usize, String> {
    const UNITS: &str = "KMGT";
    let unit = text.chars().last().and_then(|last| UNITS.find(last.to_ascii_uppercase()));
    let (number, shift) = unit.map_or((text, 0), |unit| (&text[..text.len() - 1], 10 * (unit as u32 + 1)));
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "write a number of bytes above 0, such as 512M or 2G".into())
}

/// Parses a latency budget, in microseconds.
pub fn latency_budget(text: &str) -> Result<Duration, String> {
    within(0..=10_000)(text).map(|micros| Duration::from_micros(micros as u64))
}

/// Parses a number of seconds above 0.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write a number of seconds above 0, such as 2.5".into())
}

/// Parses a number of seconds, or 0.
fn interval(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { seconds(text) }
}

/// Options of the sandbox, which all subcommands have that move packets.
#[derive(clap::Args, Clone, Debug)]
pub struct SandboxOptions {
    /// Keep user, capabilities, files and all system calls after start-up
    #[arg(long)]
    pub no_sandbox: bool,
    /// User that root becomes after start-up: a name or a number; one for each instance keeps them apart
    #[arg(long, value_name = "USER", default_value = "nobody", value_parser = user)]
    pub user: User,
}

impl SandboxOptions {
    /// Returns this sandbox, or none with `--no-sandbox`.
    pub fn sandbox(&self, sandbox: Sandbox) -> Sandbox {
        if self.no_sandbox { Sandbox::Off } else { sandbox }
    }
}

/// Parses a user of the sandbox. `nobody` need not be in the user database.
pub(crate) fn user(text: &str) -> Result<User, String> {
    if text == "nobody" { Ok(User::NOBODY) } else { text.parse() }
}

/// Returns the default configuration of this program: notices go to standard error, and connectors are this program.
pub fn base_config() -> Config {
    Config { connector: connector::command(), notices: Notices::new(notice), ..Config::default() }
}

impl Options {
    /// Starts a run with these options.
    pub fn run(&self) -> Result<Run, Error> {
        let mut run = Run::new(self.config(), self.json, self.interval)?;
        run.listen(self.control.as_ref(), self.control_read_only.as_ref())?;
        run.show(self.metrics.as_deref(), self.web.as_ref())?;
        Ok(run)
    }

    /// Returns the configuration that these options describe.
    pub fn config(&self) -> Config {
        let &Self { queues, rxd: rx_ring, txd: tx_ring, mtu, offloads, head_write_back, .. } = self;
        let &Self { batch, hugepages, poll, latency_budget, time, count, .. } = self;
        let (cpu, take_over) = (self.cpu.clone(), self.take_over.clone());
        let port = PortConfig { queues, rx_ring, tx_ring, mtu, offloads, head_write_back, ..Default::default() };
        let (sandbox, user) = (self.sandbox.sandbox(Sandbox::Packets), self.sandbox.user);
        Config {
            port,
            batch,
            hugepages,
            poll,
            latency_budget,
            take_over,
            cpu,
            time,
            count,
            sandbox,
            user,
            ..base_config()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        assert_eq!(ring_size("64"), Ok(64));
        for wrong in ["63", "100", "8192", "x"] {
            assert!(ring_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pages("on"), Ok(PageSize::Huge2M));
        assert!(pages("yes").is_err());
        assert_eq!(offloads("none"), Ok(Offloads::default()));
        assert_eq!(offloads("vlan,tso"), Ok(Offloads { checksum: true, vlan: true, tso: true, hash: false }));
        assert!(offloads("all").is_ok_and(|all| all.hash && all.tso));
        for wrong in ["", "tso,", "all,vlan", "gro"] {
            assert!(offloads(wrong).is_err(), "{wrong}");
        }
        assert_eq!(["7", "3k", "512M", "2G"].map(bytes), [7, 3 << 10, 512 << 20, 2 << 30].map(Ok));
        for wrong in ["", "0", "G", "-1M", "2GB", "1.5G", "99999999T", "é"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(["0", "75"].map(latency_budget), [0, 75].map(|micros| Ok(Duration::from_micros(micros))));
        assert!(["", "-1", "10001", "1.5"].iter().all(|wrong| latency_budget(wrong).is_err()));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e300", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
