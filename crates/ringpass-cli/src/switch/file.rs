//! The switch's configuration file, in TOML.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use ringpass::{Error, MacAddress};
use ringpass_switch::{Config, PortPolicy, VlanSet, Vlans, vxlan};
use serde::Deserialize;

use super::plan::{self, Mapping, Plan, PortPlan, VlanId};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ageing: Option<u64>,
    flood: Option<u64>,
    table: Option<usize>,
    moves: Option<u32>,
    #[serde(default)]
    port: Vec<Port>,
    #[serde(default)]
    pass: Vec<Pass>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Port {
    address: String,
    name: Option<String>,
    vlan: Option<Id>,
    trunk: Option<Trunk>,
    native: Option<Id>,
    isolation: Option<u16>,
    #[serde(default)]
    sources: Vec<Mac>,
    #[serde(default)]
    stations: Vec<Station>,
    flood: Option<u64>,
    vxlan: Option<Vxlan>,
    #[serde(default)]
    map: Vec<Map>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Map {
    to: String,
    mac: Option<Mac>,
    #[serde(default)]
    pass: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vxlan {
    vni: u32,
    port: Option<u16>,
    local: Ipv4Addr,
    remote: Ipv4Addr,
    mac: Option<Mac>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pass {
    from: String,
    to: String,
}

/// Declares a type that is parsed from another one while the file is read, so that errors have a line number.
macro_rules! read_from {
    ($($name:ident($inner:ty) from $text:literal as $from:ty: $read:expr;)*) => {$(
        #[derive(Deserialize)]
        #[serde(try_from = $text)]
        struct $name($inner);

        impl TryFrom<$from> for $name {
            type Error = String;

            fn try_from(from: $from) -> Result<Self, String> {
                let read: fn($from) -> Result<$inner, String> = $read;
                read(from).map(Self)
            }
        }
    )*};
}

read_from! {
    Id(u16) from "u16" as u16: |id| VlanId::try_from(id).map(|id| id.0);
    Trunk(VlanSet) from "String" as String: |text| plan::vlans(&text);
    Mac(MacAddress) from "String" as String: |text| text.parse();
    Station((MacAddress, Option<u16>)) from "String" as String: |text| plan::station(&text);
}

/// Reads a configuration file.
pub fn read(path: &Path) -> Result<Plan, Error> {
    let name = path.display();
    let text = read_limited(path).map_err(|source| Error::file(format!("--config {name}"), source))?;
    parse(&text).map_err(|why| Error::Config(format!("{name}{why}")))
}

/// Parses the text of a file. Error texts begin with `:LINE: ` or `: `.
fn parse(text: &str) -> Result<Plan, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(String::new(), |span| {
            let before = &text.as_bytes()[..span.start.min(text.len())];
            let number = before.iter().filter(|&&byte| byte == b'\n').count();
            // The line has the key, which the parser's words do not name.
            format!(":{}: '{}'", 1 + number, text.lines().nth(number).unwrap_or_default().trim())
        });
        let range = |words: &str| words.replace("expected u16", "expected a number from 0 to 65535");
        format!("{place}: {}", range(&error.message().replace('\n', " ")))
    })?;
    let defaults = Config::default();
    let config = Config {
        ageing: file.ageing.map_or(defaults.ageing, Duration::from_secs),
        table: file.table.unwrap_or(defaults.table),
        flood: file.flood.unwrap_or(defaults.flood),
        moves: file.moves.unwrap_or(defaults.moves),
        ..defaults
    };
    let mut ports: Vec<PortPlan> = Vec::new();
    let mut maps = Vec::new();
    for mut port in file.port {
        let from = ports.len();
        maps.extend(std::mem::take(&mut port.map).into_iter().map(|map| (from, map)));
        let name = port.name.clone().unwrap_or_else(|| port.address.clone());
        if ports.iter().any(|other| other.rules.name == name) {
            return Err(format!(": two ports are called '{name}'; give them names"));
        }
        ports.push(port.plan(name.clone()).map_err(|why| format!(": port '{name}': {why}"))?);
    }
    for (from, Map { to, mac, pass }) in maps {
        let to = plan::port_index(&ports, &to).map_err(|why| format!(": [[port.map]]: {why}"))?;
        ports[from].maps.push(Mapping { to, mac: mac.map(|mac| mac.0), pass });
    }
    for Pass { from, to } in file.pass {
        let port_index = |name: &str| plan::port_index(&ports, name).map_err(|why| format!(": [[pass]]: {why}"));
        let (one, other) = (port_index(&from)?, port_index(&to)?);
        if one == other || ports[one].pass.replace(other).is_some() {
            return Err(format!(": [[pass]] from '{from}' needs one other port to go to"));
        }
    }
    Ok(Plan { config, ports })
}

impl Port {
    fn plan(self, name: String) -> Result<PortPlan, String> {
        let native = self.native.map(|id| id.0);
        let vlans = match (self.vlan, self.trunk, native) {
            (Some(Id(id)), None, None) => Vlans::Access(id),
            (None, Some(Trunk(allowed)), native) => Vlans::Trunk { allowed, native },
            (None, None, None) => Vlans::default(),
            (Some(_), _, _) => return Err("'vlan' goes with neither 'trunk' nor 'native'".into()),
            (None, None, Some(_)) => return Err("'native' goes with 'trunk' only".into()),
        };
        let tunnel = self.vxlan.map(|Vxlan { vni, port, local, remote, mac }| {
            let (port, mac) = (port.unwrap_or(vxlan::PORT), mac.map(|mac| mac.0));
            vxlan::Tunnel::new(vxlan::Config { vni, port, local, remote, mac })
        });
        let rules = PortPolicy {
            name,
            vlans,
            isolation: self.isolation,
            sources: self.sources.into_iter().map(|mac| mac.0).collect(),
            stations: self.stations.into_iter().map(|station| station.0).collect(),
            flood: self.flood,
            lends: false,
        };
        let tunnel = tunnel.transpose().map_err(|error| error.to_string())?;
        Ok(PortPlan { address: self.address, rules, tunnel, pass: None, maps: Vec::new() })
    }
}

/// Size limit of a configuration file in bytes: many times what 64 ports take.
const MAX_FILE_LEN: u64 = 1 << 20;

/// Reads at most [`MAX_FILE_LEN`] bytes, because the path may name a pipe or a device without an end.
fn read_limited(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_FILE_LEN + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_LEN {
        let why = format!("more than {MAX_FILE_LEN} bytes, which no configuration has; name a file in TOML");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_all() {
        let plan = parse(
            r#"
            ageing = 20
            flood = 7
            [[port]]
            address = "tap:a"
            name = "a"
            vlan = 10
            isolation = 1
            sources = ["02:00:00:00:00:01"]
            stations = ["02:00:00:00:00:01", "02:00:00:00:00:02@10"]
            flood = 9
            [[port]]
            address = "tap:b"
            trunk = "10,20-21"
            native = 20
            [port.vxlan]
            vni = 42
            local = "10.0.0.1"
            remote = "10.0.0.2"
            [[port]]
            address = "tap:c"
            [[port.map]]
            to = "a"
            mac = "02:00:00:00:00:09"
            [[pass]]
            from = "tap:c"
            to = "a"
            "#,
        )
        .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(plan.config, Config { ageing: Duration::from_secs(20), flood: 7, ..Config::default() });
        let [a, b, c] = &plan.ports[..] else { panic!() };
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let rules = PortPolicy {
            name: "a".into(),
            vlans: Vlans::Access(10),
            isolation: Some(1),
            sources: vec![mac(1)],
            stations: vec![(mac(1), None), (mac(2), Some(10))],
            flood: Some(9),
            lends: false,
        };
        assert_eq!((&a.rules, &a.address[..], a.pass), (&rules, "tap:a", None));
        assert_eq!(b.rules.vlans, Vlans::Trunk { allowed: VlanSet::of([10, 20, 21]), native: Some(20) });
        assert!(b.tunnel.is_some() && a.tunnel.is_none());
        assert_eq!(c.maps, [Mapping { to: 0, mac: Some(mac(9)), pass: false }]);
        assert_eq!((&c.rules, c.pass), (&PortPolicy { name: "tap:c".into(), ..Default::default() }, Some(0)));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line_with_its_number() {
        let port = "[[port]]\naddress = \"tap:a\"\n";
        for (text, parts) in [
            ("ageing = 1\nageng = 2", [":2: ", "ageng"]),
            ("ageing = \"x\"", [":1: ", "invalid type"]),
            ("flood = -1", [":1: ", "-1"]),
            ("flood = ", [":1: ", ""]),
            ("[[port]]\nname = \"a\"", [":1: ", "address"]),
            (&format!("{port}vlan = 4095"), [":3: ", "1 to 4094"]),
            (&format!("{port}trunk = \"5-1\""), [":3: ", "smaller"]),
            (&format!("{port}colour = 1"), [":3: ", "colour"]),
            (&format!("{port}\nsources = [\"02:00\"]"), [":4: ", "six bytes"]),
            (&format!("{port}stations = [\n\"02:00:00:00:00:01@x\"]"), ["", "1 to 4094"]),
            (&format!("{port}vlan = 1\ntrunk = \"all\""), ["'tap:a'", "neither"]),
            (&format!("{port}native = 1"), ["'tap:a'", "'trunk' only"]),
            (&format!("{port}{port}"), ["two ports", "'tap:a'"]),
            (&format!("{port}[[pass]]\nfrom = \"tap:a\"\nto = \"b\""), ["'b'", "not a port"]),
            (&format!("{port}[[port.map]]\nto = \"b\""), ["'b'", "not a port"]),
            (&format!("{port}[[pass]]\nfrom = \"tap:a\"\nto = \"tap:a\""), ["tap:a", "other"]),
            (&format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0\""), [":5: ", "address"]),
            (
                &format!("{port}[port.vxlan]\nvni = 16777216\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\""),
                ["'tap:a'", "16777215"],
            ),
            (
                &format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.1\""),
                ["'tap:a'", "two stations"],
            ),
        ] {
            let why = parse(text).err().unwrap_or_else(|| panic!("{text}"));
            assert!(!why.contains('\n') && parts.iter().all(|part| why.contains(part)), "{text}: {why}");
        }
    }
}
