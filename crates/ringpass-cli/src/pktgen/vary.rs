//! Fields that differ from frame to frame (`--vary`): where they are, and which values they take.

use std::net::IpAddr;
use std::ops::Range;
use std::str::FromStr;

use ringpass::{Error, MacAddress};
use ringpass_memory::Headers;

use super::frame::{Addresses, Endpoints, SOURCE_PORTS, source_port};

/// A field of the headers that can vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Source address of IP.
    SrcIp,
    /// Destination address of IP.
    DstIp,
    /// Source port of UDP or TCP.
    SrcPort,
    /// Destination port of UDP or TCP.
    DstPort,
    /// Source MAC address.
    SrcMac,
    /// Destination MAC address.
    DstMac,
    /// VLAN id of the tag.
    Vlan,
}

impl Field {
    /// All fields with their names.
    const NAMES: [(&str, Self); 7] = [
        ("src-ip", Self::SrcIp),
        ("dst-ip", Self::DstIp),
        ("src-port", Self::SrcPort),
        ("dst-port", Self::DstPort),
        ("src-mac", Self::SrcMac),
        ("dst-mac", Self::DstMac),
        ("vlan", Self::Vlan),
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }

    /// Returns where the field is in a frame. The place of the VLAN id is that of the whole tag control information.
    pub fn place(self, headers: &Headers) -> Range<usize> {
        let (l3, l4) = (usize::from(headers.l2), headers.l4_start());
        let is_v6 = headers.l3 == 40;
        match self {
            Self::DstMac => 0..6,
            Self::SrcMac => 6..12,
            Self::Vlan => 14..16,
            Self::SrcIp if is_v6 => l3 + 8..l3 + 24,
            Self::DstIp if is_v6 => l3 + 24..l3 + 40,
            Self::SrcIp => l3 + 12..l3 + 16,
            Self::DstIp => l3 + 16..l3 + 20,
            Self::SrcPort => l4..l4 + 2,
            Self::DstPort => l4 + 2..l4 + 4,
        }
    }

    /// Returns the range from the value without variation to the end of its last 16 bits, or to the last VLAN id.
    fn default_range(self, ends: &Endpoints) -> Bounds {
        let first = match (self, ends.ip) {
            (Self::SrcIp, Addresses::V4 { source, .. }) => source.to_bits().into(),
            (Self::SrcIp, Addresses::V6 { source, .. }) => source.to_bits(),
            (Self::DstIp, Addresses::V4 { destination, .. }) => destination.to_bits().into(),
            (Self::DstIp, Addresses::V6 { destination, .. }) => destination.to_bits(),
            (Self::SrcPort, _) => source_port(0).into(),
            (Self::DstPort, _) => ends.port.into(),
            (Self::SrcMac, _) => mac_bits(ends.mac.0),
            (Self::DstMac, _) => mac_bits(ends.mac.1),
            (Self::Vlan, _) => u128::from(ends.vlan.unwrap_or_default() & 0xfff),
        };
        let last = if self == Self::Vlan { LAST_VLAN.into() } else { first | 0xffff };
        Bounds { first, last, is_v6: None }
    }

    /// Parses one end of a range.
    fn bound(self, text: &str) -> Option<Bounds> {
        let (value, is_v6) = match self {
            Self::SrcIp | Self::DstIp => match text.parse().ok()? {
                IpAddr::V4(address) => (address.to_bits().into(), Some(false)),
                IpAddr::V6(address) => (address.to_bits(), Some(true)),
            },
            Self::SrcPort | Self::DstPort => (text.parse::<u16>().ok()?.into(), None),
            Self::SrcMac | Self::DstMac => (mac_bits(text.parse().ok()?), None),
            Self::Vlan => (text.parse().ok().filter(|id: &u16| *id <= LAST_VLAN)?.into(), None),
        };
        Some(Bounds { first: value, last: value, is_v6 })
    }

    /// Returns a range as an example of how to write one.
    fn example(self) -> &'static str {
        match self {
            Self::SrcIp | Self::DstIp => "10.0.0.1-10.0.0.9 or 2001:db8::1-2001:db8::ff",
            Self::SrcPort | Self::DstPort => "1024-65535",
            Self::SrcMac | Self::DstMac => "02:00:00:00:00:01-02:00:00:00:00:ff",
            Self::Vlan => "100-199, of 0 to 4094",
        }
    }
}

const LAST_VLAN: u16 = 4094;

fn mac_bits(MacAddress(bytes): MacAddress) -> u128 {
    bytes.iter().fold(0, |bits, &byte| bits << 8 | u128::from(byte))
}

/// First and last value of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    first: u128,
    last: u128,
    /// Whether the values are addresses of IPv6, if they are IP addresses of a certain family.
    is_v6: Option<bool>,
}

/// How a value follows the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Count,
    Random,
}

/// An option `--vary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct VaryOption {
    /// The field.
    pub field: Field,
    order: Order,
    /// The values, unless they are those that follow the field's own.
    bounds: Option<Bounds>,
}

impl FromStr for VaryOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, how) = text.split_once('=').unwrap_or((text, ""));
        let Some(&(_, field)) = Field::NAMES.iter().find(|known| known.0 == name) else {
            let known: Vec<&str> = Field::NAMES.iter().map(|known| known.0).collect();
            return Err(format!("unknown field '{name}'; known: {}", known.join(", ")));
        };
        let (order, range) = how.split_once(':').map_or((how, None), |(order, range)| (order, Some(range)));
        let order = match order {
            "count" => Order::Count,
            "random" => Order::Random,
            _ => return Err(format!("write {name}=count or {name}=random, and if need be :FROM-TO")),
        };
        let bounds = |range: &str| {
            let (from, to) = range.split_once('-')?;
            let (from, to) = (field.bound(from)?, field.bound(to)?);
            let is_range = from.first <= to.last && from.is_v6 == to.is_v6;
            is_range.then_some(Bounds { last: to.last, ..from })
        };
        let wrong = |range| format!("'{range}' is not a range of {name}; write FROM-TO, such as {}", field.example());
        let bounds = range.map(|range| bounds(range).ok_or_else(|| wrong(range))).transpose()?;
        Ok(Self { field, order, bounds })
    }
}

impl TryFrom<String> for VaryOption {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A field that varies, and the range of its values.
#[derive(Clone, Copy, Debug)]
pub struct Variation {
    /// The field.
    pub field: Field,
    order: Order,
    /// First value, as it is in the frame.
    first: u128,
    /// Number of values.
    len: u64,
}

impl Variation {
    /// Completes the options for frames with these ends, in `flows` flows.
    ///
    /// # Errors
    /// Fields that these frames do not have, that tell the flows apart, or that vary twice.
    pub fn all(options: &[VaryOption], ends: &Endpoints, flows: usize) -> Result<Vec<Self>, Error> {
        let refuse = |text: String| Err(Error::Config(text));
        let mut all: Vec<Self> = Vec::new();
        for option in options {
            let (field, name) = (option.field, option.field.name());
            let bounds = option.bounds.unwrap_or_else(|| field.default_range(ends));
            let frames_are_v6 = matches!(ends.ip, Addresses::V6 { .. });
            if all.iter().any(|other| other.field == field) {
                return refuse(format!("--vary {name} is there twice; leave one out"));
            }
            if field == Field::Vlan && ends.vlan.is_none() {
                return refuse("--vary vlan needs frames with a tag; write --vlan ID, too".into());
            }
            if field == Field::SrcPort && flows > 1 {
                return refuse("--flows and --vary src-port both set the source port; leave one out".into());
            }
            let most = SOURCE_PORTS.1;
            if field == Field::SrcIp && flows > most as usize {
                return refuse(format!("--vary src-ip leaves source ports for {most} flows; write --flows {most}"));
            }
            if bounds.is_v6.is_some_and(|is_v6| is_v6 != frames_are_v6) {
                let [range, frames] = if frames_are_v6 { ["IPv4", "IPv6"] } else { ["IPv6", "IPv4"] };
                let other = if field == Field::SrcIp { "--src-ip" } else { "--dst-ip" };
                return refuse(format!("--vary {name} has a range of {range}, but frames are {frames}; see {other}"));
            }
            let Some(len) = u64::try_from(bounds.last - bounds.first).ok().and_then(|last| last.checked_add(1)) else {
                return refuse(format!("--vary {name} has a range of 2^64 values or more; write a smaller one"));
            };
            // The priority of a tag stays.
            let priority = if field == Field::Vlan { ends.vlan.unwrap_or_default() & 0xf000 } else { 0 };
            all.push(Self { field, order: option.order, first: bounds.first | u128::from(priority), len });
        }
        Ok(all)
    }
}

/// A random number generator (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA
/// 2014).
struct SplitMix(u64);

impl SplitMix {
    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// The values of one field, as one worker sends them.
struct Sequence {
    variation: Variation,
    /// Number of the next value, if it counts.
    next: u64,
    /// Distance to the one after it, below the number of values.
    step: u64,
    random: SplitMix,
}

impl Sequence {
    #[inline]
    fn next(&mut self) -> u128 {
        let Variation { order, first, len, .. } = self.variation;
        let number = match order {
            Order::Count => {
                let number = self.next;
                // Neither sum overflows, however many values there are.
                let rest = len - number;
                self.next = if rest > self.step { number + self.step } else { self.step - rest };
                number
            }
            // As many values as there are, to 1 in 2^64 (Lemire, *Fast random integer generation in an interval*, 2019).
            Order::Random => ((u128::from(self.random.next()) * u128::from(len)) >> 64) as u64,
        };
        first + u128::from(number)
    }
}

/// The values of all fields that vary, as one worker sends them.
#[derive(Default)]
pub struct Values {
    sequences: Vec<Sequence>,
    values: Vec<u128>,
}

impl Values {
    /// Creates the values of one of `workers` workers, which take turns in counting.
    pub fn new(variations: &[Variation], worker: usize, workers: usize) -> Self {
        let (first, step) = (worker as u64, workers as u64);
        let sequence = |(n, &variation): (u64, &Variation)| {
            let len = variation.len;
            let random = SplitMix(SplitMix(first).next() ^ SplitMix(!n).next());
            Sequence { variation, next: first % len, step: step % len, random }
        };
        Self { sequences: (0..).zip(variations).map(sequence).collect(), values: vec![0; variations.len()] }
    }

    /// Returns the values for the next frame, in the order of the variations.
    #[inline]
    pub fn next(&mut self) -> &[u128] {
        for (value, sequence) in self.values.iter_mut().zip(&mut self.sequences) {
            *value = sequence.next();
        }
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ringpass_memory::L4;

    use super::*;

    fn ends(vlan: Option<u16>) -> Endpoints {
        let ip = Addresses::new(Some([10, 0, 255, 254].into()), None).unwrap();
        let mac = |n| MacAddress([2, 0, 0, 0, 0, n]);
        Endpoints { mac: (mac(1), mac(2)), vlan, ip, transport: L4::Udp, port: 65000, run: 7 }
    }

    fn variations(options: &[&str], ends: &Endpoints, flows: usize) -> Result<Vec<Variation>, String> {
        let options: Vec<VaryOption> = options.iter().map(|option| option.parse()).collect::<Result<_, _>>()?;
        Variation::all(&options, ends, flows).map_err(|error| error.to_string())
    }

    fn values(options: &[&str], worker: usize, workers: usize, frames: usize) -> Vec<Vec<u128>> {
        let mut values = Values::new(&variations(options, &ends(Some(5 << 13 | 4093)), 1).unwrap(), worker, workers);
        (0..frames).map(|_| values.next().to_vec()).collect()
    }

    #[test]
    fn workers_take_turns_in_counting() {
        let two = values(&["dst-port=count:10-14", "vlan=count"], 0, 2, 6);
        assert_eq!(two.iter().map(|both| both[0]).collect::<Vec<_>>(), [10, 12, 14, 11, 13, 10]);
        assert!(two.iter().all(|both| both[1] == (5 << 13 | 4093)), "{two:?}");
        assert_eq!(values(&["src-mac=count"], 1, 2, 2), [[0x0200_0000_0002], [0x0200_0000_0004]]);
        assert_eq!(values(&["src-ip=count"], 0, 1, 3), [[0x0a00_fffe], [0x0a00_ffff], [0x0a00_fffe]]);
        assert_eq!(values(&["src-port=count:7-7"], 2, 3, 2), [[7], [7]]);
    }

    #[test]
    fn random_values_are_all_of_their_range() {
        let drawn = |worker| values(&["src-ip=random:10.0.0.1-10.0.0.100", "dst-port=random"], worker, 2, 10_000);
        let hosts: HashSet<u128> = drawn(0).iter().map(|both| both[0]).collect();
        assert_eq!(hosts, (0x0a00_0001..=0x0a00_0064).collect());
        let ports: HashSet<u128> = drawn(0).iter().map(|both| both[1]).collect();
        assert_eq!(ports, (65000..=65535).collect());
        assert_ne!(drawn(0), drawn(1), "each worker has its own");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        for (options, flows, expected) in [
            (&["ttl=count"][..], 1, "unknown field 'ttl'; known: src-ip, dst-ip"),
            (&["src-ip"], 1, "write src-ip=count or src-ip=random"),
            (&["src-ip=up"], 1, "write src-ip=count or src-ip=random"),
            (&["src-ip=count:9.0.0.2-9.0.0.1"], 1, "is not a range of src-ip; write FROM-TO, such as 10.0.0.1-"),
            (&["src-ip=count:9.0.0.2-::1"], 1, "is not a range of src-ip"),
            (&["vlan=random:1-4095"], 1, "is not a range of vlan; write FROM-TO, such as 100-199, of 0 to 4094"),
            (&["dst-port=random:1-65536"], 1, "is not a range of dst-port"),
            (&["dst-port=random:"], 1, "'' is not a range of dst-port"),
            (&["vlan=count"], 1, "write --vlan ID, too"),
            (&["src-port=count"], 2, "--flows and --vary src-port both set the source port; leave one out"),
            (&["src-ip=count"], 16385, "write --flows 16384"),
            (&["dst-ip=count:::1-::2"], 1, "range of IPv6, but frames are IPv4; see --dst-ip"),
            (&["dst-ip=count", "dst-ip=random"], 1, "twice; leave one out"),
        ] {
            let error = variations(options, &ends(None), flows).unwrap_err();
            assert!(error.contains(expected), "{options:?}: {error}");
        }
        let v6 = Endpoints { ip: Addresses::new(None, Some("2001:db8::1".parse().unwrap())).unwrap(), ..ends(None) };
        let whole = variations(&["dst-ip=random:::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], &v6, 1).unwrap_err();
        assert!(whole.contains("write a smaller one"), "{whole}");
    }
}
