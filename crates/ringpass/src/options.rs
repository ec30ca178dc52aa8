//! Options that the subcommands share.

use std::ops::RangeInclusive;
use std::time::Duration;

use ringpass_memory::PageSize;
use ringpass_port::{Offloads, PortConfig};

use crate::sandbox::Sandbox;

/// Options of every subcommand that moves packets.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Options of every port and worker")]
pub struct Options {
    /// CPUs that the workers are pinned to, one after the other: 2,3
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpu: Vec<usize>,
    /// Packets that are received and sent together, 1 to 256
    #[arg(long, value_name = "N", default_value = "32", value_parser = within(1..=256))]
    pub batch: usize,
    /// Queues of each port, and so workers, 1 to 64
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=64))]
    pub queues: usize,
    /// Descriptors of an Rx ring: a power of two, 64 to 4096
    #[arg(long, value_name = "N", default_value = "512", value_parser = ring_size)]
    pub rxd: usize,
    /// Descriptors of a Tx ring: a power of two, 64 to 4096
    #[arg(long, value_name = "N", default_value = "512", value_parser = ring_size)]
    pub txd: usize,
    /// Let cards report sent frames by writing their head to memory rather than in descriptors
    #[arg(long)]
    pub head_write_back: bool,
    /// Huge pages under packets and rings: of 2 MiB, none, or of 1 GiB [default: on if enough of 2 MiB are free]
    #[arg(long, value_name = "on|off|1g", value_parser = pages)]
    pub hugepages: Option<PageSize>,
    /// Largest payload of a frame in bytes, 68 to 9710
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = within(68..=9710))]
    pub mtu: usize,
    /// What cards and kernel do for packets: checksum, hash, vlan, tso, of these a list; all, or none
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = offloads)]
    pub offloads: Offloads,
    /// End after so many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    pub time: Option<Duration>,
    /// End after so many packets
    #[arg(short = 'c', long, value_name = "PACKETS")]
    pub count: Option<u64>,
    /// Print statistics for machines, one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Never sleep: an idle worker polls on
    #[arg(long)]
    pub poll: bool,
    /// Keep user, capabilities, files and all system calls after start-up
    #[arg(long)]
    pub no_sandbox: bool,
    /// Take this card even if its kernel interface is in use
    #[arg(long, value_name = "ADDRESS")]
    pub take_over: Vec<String>,
}

/// A parser of numbers in a range.
pub fn within(range: RangeInclusive<usize>) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("write a number from {} to {}", range.start(), range.end())),
    }
}

/// Parses the size of a ring.
pub fn ring_size(text: &str) -> Result<usize, String> {
    let size = within(64..=4096)(text).ok().filter(|size| size.is_power_of_two());
    size.ok_or_else(|| "write a power of two from 64 to 4096".into())
}

fn pages(text: &str) -> Result<PageSize, String> {
    match text {
        "on" => Ok(PageSize::Huge2M),
        "off" => Ok(PageSize::Ordinary),
        "1g" => Ok(PageSize::Huge1G),
        _ => Err("write on, off or 1g".into()),
    }
}

fn offloads(text: &str) -> Result<Offloads, String> {
    let mut offloads = Offloads::default();
    for name in text.split(',') {
        match name {
            "checksum" => offloads.checksum = true,
            "hash" => offloads.hash = true,
            "vlan" => offloads.vlan = true,
            "tso" => (offloads.tso, offloads.checksum) = (true, true),
            "all" if text == "all" => offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true },
            "none" if text == "none" => {}
            _ => return Err("write all, none, or a list of checksum, hash, vlan, tso".into()),
        }
    }
    Ok(offloads)
}

/// Parses bytes: a number with K, M, G or T behind it, or nothing.
pub fn bytes(text: &str) -> Result<usize, String> {
    const UNITS: &str = "KMGT";
    let unit = text.chars().last().and_then(|last| UNITS.find(last.to_ascii_uppercase()));
    let (number, shift) = unit.map_or((text, 0), |unit| (&text[..text.len() - 1], 10 * (unit as u32 + 1)));
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "write a number of bytes above 0, as 512M or 2G".into())
}

/// Parses seconds, above 0.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write a number of seconds above 0, as 2.5".into())
}

impl Options {
    /// What is left to the process once its ports are open.
    pub fn sandbox(&self) -> Sandbox {
        if self.no_sandbox { Sandbox::Off } else { Sandbox::Packets }
    }

    /// How ports are opened with these options.
    pub fn port(&self) -> PortConfig {
        let &Self { queues, rxd: rx_ring, txd: tx_ring, mtu, offloads, head_write_back, .. } = self;
        PortConfig { queues, rx_ring, tx_ring, mtu, offloads, head_write_back, ..Default::default() }
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
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e300", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
