//! Descriptions of the frames of a stream: options of the command line, and keys of a file of streams.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use ringpass::{Error, MacAddress};
use ringpass_memory::L4;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::frame::{Addresses, Endpoints, FLOWS, MAX, MIN};
use super::rate::RequestedRate;
use super::stream::{Flows, IMIX, Plan};
use super::template::Checksums;
use super::vary::{Field, Variation, VaryOption};
use crate::config_file::{from_toml, read_limited};
use crate::options::{ip_address, within};

/// Frames of a stream. The keys of a file have the names of the options.
#[derive(clap::Args, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StreamOptions {
    /// Bytes of a frame without its checksum, 60 to 9724; more than 1514 with --mtu [default: the least that its
    /// headers and 18 bytes for the evaluation take: 60; 72 with --tcp; 20 more for IPv6, 4 for --vlan]
    #[arg(long, value_name = "BYTES", value_parser = within(MIN..=MAX))]
    #[serde(deserialize_with = "size")]
    size: Option<usize>,
    /// Send frames of 60 bytes or the least, of 590 and of 1514 in the ratio 7:4:1 instead
    #[arg(long, conflicts_with = "size")]
    imix: bool,
    /// Flows, which differ in source port and, above 16384, in source address; 1 to 65536
    #[arg(long, value_name = "N", default_value = "1", value_parser = within(1..=FLOWS))]
    #[serde(deserialize_with = "flows")]
    flows: usize,
    /// Destination MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:ff")]
    #[serde(deserialize_with = "mac")]
    dst_mac: MacAddress,
    /// Source MAC address [default: the port's]
    #[arg(long, value_name = "MAC")]
    #[serde(deserialize_with = "some_mac")]
    src_mac: Option<MacAddress>,
    /// Destination address, IPv4 or IPv6 [default: 198.19.0.1, or 2001:2:0:1::1]
    #[arg(long, value_name = "IP", value_parser = ip_address)]
    #[serde(deserialize_with = "ip")]
    dst_ip: Option<IpAddr>,
    /// Source address, IPv4 or IPv6 [default: 198.18.0.1, or 2001:2::1]
    #[arg(long, value_name = "IP", value_parser = ip_address)]
    #[serde(deserialize_with = "ip")]
    src_ip: Option<IpAddr>,
    /// UDP or TCP destination port
    #[arg(long = "port", value_name = "PORT", default_value = "50000")]
    #[serde(rename = "port")]
    l4_port: u16,
    /// Send TCP segments, with ACK set, instead of UDP datagrams
    #[arg(long)]
    tcp: bool,
    /// VLAN id, 0 to 4094, and priority, 0 to 7, of a tag (802.1Q) in each frame [default: no tag]
    #[arg(long, value_name = "ID[:PRIO]", value_parser = tag)]
    #[serde(deserialize_with = "vlan")]
    vlan: Option<u16>,
    /// Vary a field from frame to frame: src-ip, dst-ip, src-port, dst-port, src-mac, dst-mac or vlan, counting up
    /// together or at random; can be repeated [default range: from the field's own value to the end of its last 16
    /// bits, or to VLAN 4094]
    #[arg(long, value_name = "FIELD=count|random[:FROM-TO]")]
    vary: Vec<VaryOption>,
    /// Frames of each round of the streams without a rate; only in files.
    #[arg(skip)]
    #[serde(deserialize_with = "weight")]
    pub weight: Option<usize>,
    /// Rate of the stream itself; only in files.
    #[arg(skip)]
    #[serde(rename = "rate", deserialize_with = "rate")]
    pub own_rate: Option<RequestedRate>,
}

impl StreamOptions {
    /// Returns whether a destination MAC address was given, as that of a router.
    pub fn has_own_destination(&self) -> bool {
        self.dst_mac != Self::default().dst_mac
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            size: None,
            imix: false,
            flows: 1,
            dst_mac: MacAddress([2, 0, 0, 0, 0, 0xff]),
            src_mac: None,
            dst_ip: None,
            src_ip: None,
            l4_port: 50000,
            tcp: false,
            vlan: None,
            vary: Vec::new(),
            weight: None,
            own_rate: None,
        }
    }
}

/// Parses a VLAN id with an optional priority into the tag control information.
fn tag(text: &str) -> Result<u16, String> {
    let (id, priority) = text.split_once(':').unwrap_or((text, "0"));
    match (id.parse::<u16>(), priority.parse::<u16>()) {
        (Ok(id @ 0..=4094), Ok(priority @ 0..=7)) => Ok(priority << 13 | id),
        _ => Err("write a VLAN id, 0 to 4094, and if need be a priority, 0 to 7: 100 or 100:5".into()),
    }
}

/// A value as it would be on the command line.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or text in quotes")]
enum Word {
    Number(i64),
    Text(String),
}

/// Reads a value as the command line does.
fn word<'de, D: Deserializer<'de>, T, E: Display>(
    value: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = match Word::deserialize(value)? {
        Word::Number(number) => number.to_string(),
        Word::Text(text) => text,
    };
    parse(&text).map_err(D::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(value: D) -> Result<Option<usize>, D::Error> {
    word(value, within(MIN..=MAX)).map(Some)
}

fn flows<'de, D: Deserializer<'de>>(value: D) -> Result<usize, D::Error> {
    word(value, within(1..=FLOWS))
}

fn mac<'de, D: Deserializer<'de>>(value: D) -> Result<MacAddress, D::Error> {
    word(value, str::parse)
}

fn some_mac<'de, D: Deserializer<'de>>(value: D) -> Result<Option<MacAddress>, D::Error> {
    mac(value).map(Some)
}

fn ip<'de, D: Deserializer<'de>>(value: D) -> Result<Option<IpAddr>, D::Error> {
    word(value, ip_address).map(Some)
}

fn vlan<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u16>, D::Error> {
    word(value, tag).map(Some)
}

fn weight<'de, D: Deserializer<'de>>(value: D) -> Result<Option<usize>, D::Error> {
    word(value, within(1..=1000)).map(Some)
}

fn rate<'de, D: Deserializer<'de>>(value: D) -> Result<Option<RequestedRate>, D::Error> {
    word(value, str::parse).map(Some)
}

/// A file of streams.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    stream: Vec<StreamOptions>,
}

/// Most streams of a file: each returned frame is compared with all.
const STREAMS: usize = 64;

/// Reads a file of streams.
///
/// # Errors
/// The first thing that is wrong with it, in a line, with the number of its line.
pub fn read(path: &Path) -> Result<Vec<StreamOptions>, Error> {
    let text = read_limited(path).map_err(|source| Error::file(format!("--streams {}", path.display()), source))?;
    parse(&text).map_err(|why| Error::Config(format!("{}{why}", path.display())))
}

fn parse(text: &str) -> Result<Vec<StreamOptions>, String> {
    let File { stream: streams } = from_toml(text)?;
    if !(1..=STREAMS).contains(&streams.len()) {
        return Err(format!(": {} streams; write 1 to {STREAMS} tables [[stream]]", streams.len()));
    }
    for (number, stream) in (1..).zip(&streams) {
        let both = match stream {
            StreamOptions { imix: true, size: Some(_), .. } => ["size", "imix"],
            StreamOptions { weight: Some(_), own_rate: Some(_), .. } => ["weight", "rate"],
            _ => continue,
        };
        return Err(format!(": stream {number} has both '{}' and '{}'; leave one out", both[0], both[1]));
    }
    Ok(streams)
}

impl StreamOptions {
    /// Returns sender, receiver and headers on a port with this MAC address.
    ///
    /// # Errors
    /// The addresses are of two families.
    pub fn ends(&self, own: MacAddress, run: u16) -> Result<Endpoints, Error> {
        let ip = Addresses::new(self.src_ip, self.dst_ip).ok_or_else(|| {
            Error::Config("--src-ip and --dst-ip are of two families; write both as IPv4 or both as IPv6".into())
        })?;
        Ok(Endpoints {
            mac: (self.src_mac.unwrap_or(own), self.dst_mac),
            vlan: self.vlan,
            ip,
            transport: if self.tcp { L4::Tcp } else { L4::Udp },
            port: self.l4_port,
            run,
        })
    }

    /// Returns the same frames in each of these sizes, or in the size or sizes that were chosen, if any were.
    pub fn in_sizes(&self, sizes: &[usize]) -> Vec<Self> {
        if self.imix || self.size.is_some() {
            return vec![self.clone()];
        }
        sizes.iter().map(|&size| Self { size: Some(size), ..self.clone() }).collect()
    }

    /// Returns whether fields vary.
    pub fn is_varied(&self) -> bool {
        !self.vary.is_empty()
    }

    /// Returns the number of flows of this many workers. If the source port varies, each worker sends one.
    pub fn flows(&self, workers: usize) -> usize {
        let is_varied = self.vary.iter().any(|option| option.field == Field::SrcPort);
        if is_varied { self.flows.max(workers) } else { self.flows }
    }

    /// Returns the sizes of generated frames, in bytes, which take turns.
    pub fn sizes(&self, ends: &Endpoints) -> Vec<usize> {
        let shortest = ends.shortest();
        if self.imix { IMIX.map(|size| size.max(shortest)).to_vec() } else { vec![self.size.unwrap_or(shortest)] }
    }

    /// Returns what the first of this many workers sends.
    ///
    /// # Errors
    /// Frames that do not fit, too few flows, or fields that cannot vary.
    pub fn plan(
        &self,
        ends: &Endpoints,
        workers: usize,
        mtu: usize,
        checksums: Checksums,
        epoch: Instant,
    ) -> Result<Plan, Error> {
        let (sizes, flows) = (self.sizes(ends), self.flows(workers));
        let (smallest, largest) = (sizes.iter().min().copied(), sizes.iter().max().copied());
        let (most, least) = (mtu + usize::from(ends.headers().l2), ends.shortest());
        if let Some(largest) = largest.filter(|&size| size > most) {
            let text = format!("frames of {largest} bytes, but --mtu {mtu} allows {most}; make them shorter");
            return Err(Error::Config(text));
        }
        if let Some(smallest) = smallest.filter(|&size| size < least) {
            let text = format!("frames of {smallest} bytes, but {} takes {least}; write --size {least}", kind(ends));
            return Err(Error::Config(text));
        }
        let vary = Variation::all(&self.vary, ends, self.flows)?;
        if flows < workers {
            return Err(Error::Config(format!("{workers} queues need as many flows; write --flows {workers}")));
        }
        let flows = Flows { first: 0, step: workers as u32, end: flows as u32 };
        Ok(Plan { ends: *ends, sizes, vary, flows, epoch, checksums })
    }
}

/// Returns the kind of frames.
fn kind(ends: &Endpoints) -> String {
    let transport = if ends.transport == L4::Tcp { "TCP" } else { "UDP" };
    let network = if matches!(ends.ip, Addresses::V6 { .. }) { "IPv6" } else { "IPv4" };
    let tag = if ends.vlan.is_some() { " with a VLAN tag" } else { "" };
    format!("{transport} over {network}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_words_of_the_command_line() {
        let text = "[[stream]]\nsize = 1514\nvlan = \"100:5\"\ntcp = true\nsrc-ip = \"2001:db8::1\"\nweight = 3\n\
            vary = [\"src-ip=count\", \"vlan=random:1-9\"]\n\
            [[stream]]\nimix = true\nvlan = 7\nport = 53\nflows = 16\nrate = \"1.5M\"\ndst-mac = \"02:00:00:00:00:05\"";
        let streams = parse(text).unwrap();
        let ends = streams[0].ends(MacAddress([2; 6]), 1).unwrap();
        assert_eq!((ends.vlan, ends.transport, streams[0].sizes(&ends)), (Some(5 << 13 | 100), L4::Tcp, vec![1514]));
        assert_eq!((streams[0].vary.len(), streams[0].weight, streams[0].own_rate), (2, Some(3), None));
        let ends = streams[1].ends(MacAddress([2; 6]), 2).unwrap();
        assert_eq!((ends.vlan, ends.port, ends.mac.1), (Some(7), 53, MacAddress([2, 0, 0, 0, 0, 5])));
        assert_eq!((streams[1].flows(1), streams[1].own_rate), (16, "1.5M".parse().ok()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            ("", ": missing field `stream`"),
            ("stream = []", ": 0 streams; write 1 to 64 tables [[stream]]"),
            ("[[stream]]\ntcp = true\nwieght = 3", ":3: 'wieght = 3': unknown field `wieght`"),
            ("[[stream]]\nwieght = 3", "did you mean 'weight'?"),
            ("[[stream]]\nsize = 59", ":2: 'size = 59': write a number from 60 to 9724"),
            ("[[stream]]\nsize = true", ":2: 'size = true': expected a number, or text in quotes"),
            ("[[stream]]\nvlan = 4095", ":2: 'vlan = 4095': write a VLAN id, 0 to 4094"),
            ("[[stream]]\nport = 65536", "expected a number from 0 to 65535"),
            ("[[stream]]\nweight = 0", "write a number from 1 to 1000"),
            ("[[stream]]\nrate = \"fast\"", "write frames a second (1000, 100k, 1.5M)"),
            ("[[stream]]\nvary = [\"ttl=count\"]", ":2: 'vary = [\"ttl=count\"]': unknown field 'ttl'; known: src-ip"),
            ("[[stream]]\nrate = 5\nweight = 2", ": stream 1 has both 'weight' and 'rate'; leave one out"),
            ("[[stream]]\n[[stream]]\nsize = 70\nimix = true", ": stream 2 has both 'size' and 'imix'"),
        ] {
            let Err(error) = parse(text) else { panic!("{text}") };
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
