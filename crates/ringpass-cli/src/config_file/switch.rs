//! Tables of the configuration file: a switch with its ports, and a pair of ports.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ringpass::MacAddress;
use ringpass_evpn::devices::Routing;
use ringpass_switch::vxlan::{self, Ends, Networks};
use ringpass_switch::{Config, PortPolicy, VlanSet, Vlans};
use schemars::JsonSchema;
use serde::Deserialize;

use super::read_from;
use crate::switch::plan::{self, EvpnPlan, Mapping, Plan, PortPlan, VlanId};

/// A learning switch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    /// Its name; `switch` if it is the only one.
    name: Option<String>,
    /// Seconds after which a silent station is forgotten, 1 to 32400; 300 if not given.
    ageing: Option<u64>,
    /// Largest number of flooded frames a second from each port, 0 for no limit; 100000 if not given.
    flood: Option<u64>,
    /// Room of the MAC table in stations, 1 to 16777216; 8192 if not given. When it is full, each port has an equal share.
    table: Option<usize>,
    /// Port changes that a station may make within a second; 5 if not given.
    moves: Option<u32>,
    /// Its ports, 2 to 64.
    #[serde(default)]
    port: Vec<Port>,
    /// Ports whose frames all go to one other port.
    #[serde(default)]
    pass: Vec<Pass>,
}

/// A port of a switch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    /// Address of the port, such as `tap:a` or `vhost:/run/vm.sock`; see `ringpass --help`.
    address: String,
    /// Its name; the address if not given.
    name: Option<String>,
    /// The only VLAN of the port, whose frames come and go without tags.
    vlan: Option<Id>,
    /// VLANs of the port whose frames have tags: a list such as `10,20-29`, or `all`.
    trunk: Option<Trunk>,
    /// The VLAN of a trunk whose frames have no tags.
    native: Option<Id>,
    /// Number of a group whose ports do not talk to each other.
    isolation: Option<u16>,
    /// MAC addresses that alone may send from this port; all if there are none.
    #[serde(default)]
    sources: Vec<Mac>,
    /// Stations that are here for good: MAC addresses, with `@VLAN` where the port has several VLANs.
    #[serde(default)]
    stations: Vec<Station>,
    /// Largest number of flooded frames a second from this port, instead of the switch's.
    flood: Option<u64>,
    /// A tunnel to other machines through this port.
    vxlan: Option<Vxlan>,
    /// Guests into whose buffers the port, a card, receives without copies.
    #[serde(default)]
    map: Vec<Map>,
}

/// A mapping from a card to a guest.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Map {
    /// Name of the guest's port.
    to: String,
    /// Address of the frames that the card receives for it; all if not given.
    mac: Option<Mac>,
    /// Whether these frames go to the guest without a lookup.
    #[serde(default)]
    pass: bool,
}

/// A tunnel (RFC 7348) to one or more other machines.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Vxlan {
    /// Number of the network, 0 to 16777215, if all frames of the port belong to one.
    vni: Option<u32>,
    /// VLANs and the numbers of their networks, as in `10=1010`. The port is a trunk of these VLANs, without tags in the tunnel.
    #[serde(default)]
    vnis: Vec<Vni>,
    /// UDP port; 4789 if not given.
    port: Option<u16>,
    /// IPv4 or IPv6 address of this end; with the length of its network's prefix, as in `10.0.0.1/24`, if others are elsewhere.
    local: Local,
    /// Router in that network through which ends elsewhere are reached.
    gateway: Option<IpAddr>,
    /// Address of the other end, if there is only one.
    remote: Option<IpAddr>,
    /// Addresses of the other ends, up to 4096, each of which should have all others: what comes from one is not sent to another.
    #[serde(default)]
    remotes: Vec<IpAddr>,
    /// Room for the stations behind several other ends, 1 to 16777216; 16384 if not given.
    table: Option<usize>,
    /// MAC address of this end; made from `local` if not given.
    mac: Option<Mac>,
    /// The other ends and the stations behind them come from FRR (EVPN). `ringpass evpn setup` makes what that takes.
    evpn: Option<Evpn>,
}

/// EVPN (RFC 7432, 8365) by FRR. The keys are for `ringpass evpn frr` alone; all or none of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Evpn {
    /// Number of the autonomous system that all hosts belong to.
    system: Option<u32>,
    /// The router's identifier, an IPv4 address; `local` if not given and that is one.
    router: Option<Ipv4Addr>,
    /// Addresses of the hosts with which it exchanges routes.
    #[serde(default)]
    neighbors: Vec<IpAddr>,
}

/// Ports of a switch whose frames go to one other port, without a lookup.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Pass {
    /// Name of the port that receives.
    from: String,
    /// Name of the port that sends.
    to: String,
}

/// Two ports; each sends what the other receives.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Pair {
    /// Its name; its ports are called `NAME.a` and `NAME.b` then.
    name: Option<String>,
    /// Address of one port.
    a: String,
    /// Address of the other.
    b: String,
}

read_from! {
    Id(u16) from "u16" as u16: |id| VlanId::try_from(id).map(|id| id.0);
    Trunk(VlanSet) from "String" as String: |text| plan::vlans(&text);
    Mac(MacAddress) from "String" as String: |text| text.parse();
    Local((IpAddr, Option<u8>)) from "String" as String: |text| plan::address_in_network(&text);
    Vni((u16, u32)) from "String" as String: |text| plan::vni(&text);
    Station((MacAddress, Option<u16>)) from "String" as String: |text| plan::station(&text);
}

impl Switch {
    /// Makes a plan of it.
    ///
    /// # Errors
    /// What is wrong with it, beginning with `: `.
    pub(super) fn plan(self) -> Result<Plan, String> {
        let defaults = Config::default();
        let config = Config {
            ageing: self.ageing.map_or(defaults.ageing, Duration::from_secs),
            table: self.table.unwrap_or(defaults.table),
            flood: self.flood.unwrap_or(defaults.flood),
            moves: self.moves.unwrap_or(defaults.moves),
            ..defaults
        };
        let mut ports: Vec<PortPlan> = Vec::new();
        let mut maps = Vec::new();
        for mut port in self.port {
            let from = ports.len();
            maps.extend(std::mem::take(&mut port.map).into_iter().map(|map| (from, map)));
            let name = port.name.clone().unwrap_or_else(|| port.address.clone());
            if ports.iter().any(|other| other.rules.name == name) {
                return Err(format!(": two ports are called '{name}'; give them names"));
            }
            ports.push(port.plan(name.clone()).map_err(|why| format!(": port '{name}': {why}"))?);
        }
        if ports.iter().filter(|port| port.evpn.is_some()).count() > 1 {
            return Err(": two ports have [port.vxlan.evpn]; put all networks into one tunnel, with 'vnis'".into());
        }
        for (from, Map { to, mac, pass }) in maps {
            let to = plan::port_index(&ports, &to).map_err(|why| format!(": [[port.map]]: {why}"))?;
            ports[from].maps.push(Mapping { to, mac: mac.map(|mac| mac.0), pass });
        }
        for Pass { from, to } in self.pass {
            let port_index = |name: &str| plan::port_index(&ports, name).map_err(|why| format!(": [[pass]]: {why}"));
            let (one, other) = (port_index(&from)?, port_index(&to)?);
            if one == other || ports[one].pass.replace(other).is_some() {
                return Err(format!(": [[pass]] from '{from}' needs one other port to go to"));
            }
        }
        Ok(Plan { name: self.name, config, ports })
    }
}

impl Pair {
    /// Makes a plan of it: a switch with two ports that pass all to each other.
    ///
    /// # Errors
    /// What is wrong with it, beginning with `: `.
    pub(super) fn plan(self) -> Result<Plan, String> {
        let Self { name, a, b } = self;
        if a == b {
            return Err(format!(": [[fwd]]: '{a}' cannot be both ports"));
        }
        let port = |address: String, end, other| {
            let name = name.as_ref().map_or_else(|| address.clone(), |name| format!("{name}.{end}"));
            let rules = PortPolicy { name, ..PortPolicy::default() };
            PortPlan { address, rules, tunnel: None, evpn: None, pass: Some(other), maps: Vec::new() }
        };
        let ports = vec![port(a, "a", 1), port(b, "b", 0)];
        Ok(Plan { name, config: Config::default(), ports })
    }
}

impl Port {
    /// Makes a plan of a port that is added alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn alone(self) -> Result<PortPlan, String> {
        if !self.map.is_empty() {
            return Err("cards are mapped to guests at the start only; leave out 'map'".into());
        }
        if self.vxlan.as_ref().is_some_and(|vxlan| vxlan.evpn.is_some()) {
            return Err("tunnels with EVPN are there from the start only; leave out 'evpn'".into());
        }
        let name = self.name.clone().unwrap_or_else(|| self.address.clone());
        self.plan(name.clone()).map_err(|why| format!("port '{name}': {why}"))
    }

    fn plan(self, name: String) -> Result<PortPlan, String> {
        let native = self.native.map(|id| id.0);
        let networks = self.vxlan.as_ref().and_then(Vxlan::vlans);
        let vlans = match (networks, self.vlan, self.trunk, native) {
            (None, Some(Id(id)), None, None) => Vlans::Access(id),
            (None, None, Some(Trunk(allowed)), native) => Vlans::Trunk { allowed, native },
            (None, None, None, None) => Vlans::default(),
            (Some(allowed), None, None, None) => Vlans::Trunk { allowed, native: None },
            (Some(_), ..) => {
                return Err("'vnis' says which VLANs the port has; leave out 'vlan', 'trunk' and 'native'".into());
            }
            (None, Some(_), _, _) => return Err("'vlan' goes with neither 'trunk' nor 'native'".into()),
            (None, None, None, Some(_)) => return Err("'native' goes with 'trunk' only".into()),
        };
        let evpn = self.vxlan.as_ref().and_then(|vxlan| vxlan.evpn(&vlans)).transpose()?;
        let tunnel = self.vxlan.map(Vxlan::tunnel).transpose()?;
        let rules = PortPolicy {
            name,
            vlans,
            isolation: self.isolation,
            sources: self.sources.into_iter().map(|mac| mac.0).collect(),
            stations: self.stations.into_iter().map(|station| station.0).collect(),
            flood: self.flood,
            lends: false,
            given: evpn.is_some(),
        };
        Ok(PortPlan { address: self.address, rules, tunnel, evpn, pass: None, maps: Vec::new() })
    }
}

impl Vxlan {
    /// Makes the end of the tunnel.
    ///
    /// # Errors
    /// If a value is wrong, or one is missing: the reason.
    fn tunnel(self) -> Result<vxlan::Tunnel, String> {
        let Self { vni, vnis, port, local: Local((local, prefix)), gateway, remote, mut remotes, table, mac, evpn } =
            self;
        let networks = match (vni, vnis) {
            (Some(vni), vnis) if vnis.is_empty() => Networks::One(vni),
            (None, vnis) if !vnis.is_empty() => Networks::Vlans(vnis.into_iter().map(|vni| vni.0).collect()),
            _ => return Err("VXLAN: give 'vni' or 'vnis', which is a list such as [\"10=1010\"]".into()),
        };
        let is_given = remote.is_some() || !remotes.is_empty();
        let ends = match evpn {
            Some(_) if is_given => {
                return Err("VXLAN: with 'evpn', FRR gives the remotes; leave out 'remote' and 'remotes'".into());
            }
            Some(_) => Ends::Given,
            None if remote.is_some() != remotes.is_empty() => {
                return Err("VXLAN: give 'remote' or 'remotes', which is a list of addresses".into());
            }
            None => {
                remotes.extend(remote);
                Ends::Fixed(remotes)
            }
        };
        let (port, mac) = (port.unwrap_or(vxlan::PORT), mac.map(|mac| mac.0));
        let stations = table.unwrap_or(1 << 14);
        let config = vxlan::Config { networks, port, local, prefix, gateway, ends, stations, mac };
        vxlan::Tunnel::new(config).map_err(|error| error.to_string())
    }

    /// Returns what EVPN does for a port with these VLANs; `None` if there is none.
    fn evpn(&self, vlans: &Vlans) -> Option<Result<EvpnPlan, String>> {
        let Evpn { system, router, neighbors } = self.evpn.as_ref()?;
        let vnis: Vec<u32> = self.vni.into_iter().chain(self.vnis.iter().map(|vni| vni.0.1)).collect();
        let local = self.local.0.0;
        let own = match local {
            IpAddr::V4(local) => Some(local),
            IpAddr::V6(_) => None,
        };
        let routing = match (system, router.or(own), neighbors.is_empty()) {
            (None, _, true) => None,
            (Some(system), Some(router), false) => {
                Some(Routing { system: *system, router, neighbors: neighbors.clone() })
            }
            (Some(_), None, _) => return Some(Err("EVPN: give 'router', an IPv4 address, as 'local' is none".into())),
            _ => return Some(Err("EVPN: give 'system' and 'neighbors', or neither".into())),
        };
        let untagged = vlans.untagged();
        if self.vni.is_some() && VlanId::try_from(untagged).is_err() && untagged != 0 {
            return Some(Err(
                "EVPN: 'vni' is the network of frames without a tag; give 'native', or 'vnis' instead".into()
            ));
        }
        Some(Ok(EvpnPlan { vnis, local, routing }))
    }

    /// Returns the VLANs that are networks of the tunnel; `None` if they are not networks of their own.
    fn vlans(&self) -> Option<VlanSet> {
        (!self.vnis.is_empty()).then(|| VlanSet::of(self.vnis.iter().map(|vni| vni.0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_switch;
    use super::*;

    #[test]
    fn a_file_says_all() {
        let plan = parse_switch(
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
            given: false,
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
            (&format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1/33x\""), [":5: ", "10.0.0.1/24"]),
            (
                &format!("{port}[port.vxlan]\nvni = 16777216\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\""),
                ["'tap:a'", "16777215"],
            ),
            (
                &format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.1\""),
                ["'tap:a'", "two stations"],
            ),
            (&format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\""), ["'remote'", "'remotes'"]),
            (
                &format!(
                    "{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\"\n[port.vxlan.evpn]"
                ),
                ["'evpn'", "leave out 'remote'"],
            ),
            (
                &format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\n[port.vxlan.evpn]\nsystem = 1"),
                ["'tap:a'", "'system' and 'neighbors', or neither"],
            ),
            (
                &format!(
                    "{port}[port.vxlan]\nvni = 1\nlocal = \"fd00::1\"\n[port.vxlan.evpn]\nsystem = 1\nneighbors = [\"fd00::2\"]"
                ),
                ["'router'", "an IPv4 address"],
            ),
            (
                &format!("{port}trunk = \"3\"\n[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\n[port.vxlan.evpn]"),
                ["'native'", "'vnis' instead"],
            ),
            (
                &format!(
                    "{evpn}{evpn}",
                    evpn = "[[port]]\naddress = \"null\"\n[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\n[port.vxlan.evpn]\n"
                )
                .replacen("null", "tap:b", 1),
                ["two ports have [port.vxlan.evpn]", "'vnis'"],
            ),
            (&format!("{port}[port.vxlan]\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\""), ["'vni'", "'vnis'"]),
            (
                &format!("{port}[port.vxlan]\nvnis = [\"10\"]\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\""),
                ["'10'", "10=1010"],
            ),
            (
                &format!("{port}vlan = 3\n[port.vxlan]\nvnis = [\"3=3\"]\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\""),
                ["'vnis'", "leave out"],
            ),
            (
                &format!(
                    "{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\"\nremotes = [\"10.0.0.3\"]"
                ),
                ["'remote'", "'remotes'"],
            ),
            (
                &format!("{port}[port.vxlan]\nvni = 1\nlocal = \"10.0.0.1\"\nremotes = [\"10.0.0.3\"]\ntable = 0"),
                ["'tap:a'", "1 to 16777216"],
            ),
        ] {
            let why = parse_switch(text).err().unwrap_or_else(|| panic!("{text}"));
            assert!(!why.contains('\n') && parts.iter().all(|part| why.contains(part)), "{text}: {why}");
        }
    }
}
