//! The plan of a switch and its ports, from the configuration file or the command line.

use std::net::IpAddr;
use std::str::FromStr;

use ringpass::{Error, MacAddress};
use ringpass_evpn::devices::Routing;
use ringpass_switch::vxlan::Tunnel;
use ringpass_switch::{Config, MAX_PORTS, PortPolicy, VlanSet, Vlans};

/// Plan of a switch.
#[derive(Default)]
pub struct Plan {
    /// Name among several switches.
    pub name: Option<String>,
    pub config: Config,
    pub ports: Vec<PortPlan>,
}

impl Plan {
    /// Checks the number of ports.
    ///
    /// # Errors
    /// How many there may be.
    pub fn check_size(&self) -> Result<(), String> {
        match self.ports.len() {
            2..=MAX_PORTS => Ok(()),
            ports => Err(format!("a switch has 2 to {MAX_PORTS} ports, not {ports}")),
        }
    }
}

/// EVPN of a tunnel's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvpnPlan {
    /// Its networks.
    pub vnis: Vec<u32>,
    /// Address of this end.
    pub local: IpAddr,
    /// This host's part of FRR's configuration, if the file has it.
    pub routing: Option<Routing>,
}

/// Plan of one port.
pub struct PortPlan {
    pub address: String,
    pub rules: PortPolicy,
    pub tunnel: Option<Tunnel>,
    /// Present if FRR gives the tunnel's ends and stations.
    pub evpn: Option<EvpnPlan>,
    /// Number of the port to which its packets go directly, without a lookup.
    pub pass: Option<usize>,
    /// Mappings to guests for which the port receives without copies.
    pub maps: Vec<Mapping>,
}

/// A mapping from a card to a guest's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Number of the guest's port.
    pub to: usize,
    /// Destination MAC address of the frames; if there is none, all frames that the card receives.
    pub mac: Option<MacAddress>,
    /// Whether frames go to the guest directly, without a lookup.
    pub pass: bool,
}

/// Returns the number of the port with this name.
pub fn port_index(ports: &[PortPlan], name: &str) -> Result<usize, String> {
    let index = ports.iter().position(|port| port.rules.name == name);
    index.ok_or_else(|| format!("'{name}' is not a port of this switch"))
}

impl Mapping {
    /// Parses `CARD=PORT` or `CARD=PORT@MAC`. Returns the card's number among `ports`, and the mapping.
    pub fn parse(text: &str, ports: &[PortPlan]) -> Result<(usize, Self), Error> {
        let wrong = |why: String| Error::Address(format!("--map {text}: {why}"));
        // Port addresses may contain `=` and `@`, too.
        let mut cards = text.match_indices('=').filter_map(|(at, _)| Some((port_index(ports, &text[..at]).ok()?, at)));
        let names = || ports.iter().map(|port| &port.rules.name[..]).collect::<Vec<_>>().join(", ");
        let none = || wrong(format!("write CARD=PORT or CARD=PORT@MAC, of the ports {}", names()));
        let (card, at) = cards.next().ok_or_else(none)?;
        let guest = &text[at + 1..];
        let (to, mac) = match (port_index(ports, guest), guest.rsplit_once('@')) {
            (Ok(to), _) => (to, None),
            (Err(_), Some((guest, mac))) => {
                (port_index(ports, guest).map_err(wrong)?, Some(mac.parse().map_err(wrong)?))
            }
            (Err(why), None) => return Err(wrong(why)),
        };
        Ok((card, Self { to, mac, pass: false }))
    }
}

impl PortPlan {
    /// Parses `PORT` or `PORT@VLAN`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (address, vlans) = match text.rsplit_once('@') {
            Some((address, vlan)) if !vlan.is_empty() && vlan.bytes().all(|byte| byte.is_ascii_digit()) => {
                let id: VlanId = vlan.parse().map_err(|why| Error::Address(format!("port '{text}': {why}")))?;
                (address, Vlans::Access(id.0))
            }
            _ => (text, Vlans::default()),
        };
        let rules = PortPolicy { name: address.into(), vlans, ..Default::default() };
        Ok(Self { address: address.into(), rules, tunnel: None, evpn: None, pass: None, maps: Vec::new() })
    }
}

/// A VLAN ID, 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanId(pub u16);

impl TryFrom<u16> for VlanId {
    type Error = String;

    fn try_from(id: u16) -> Result<Self, String> {
        match id {
            1..=4094 => Ok(Self(id)),
            _ => Err(format!("{id} is not a VLAN; those go from 1 to 4094")),
        }
    }
}

impl FromStr for VlanId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id: Result<u16, _> = text.trim().parse();
        id.map_err(|_| format!("'{text}' is not a VLAN; those go from 1 to 4094"))?.try_into()
    }
}

/// Parses `all`, or a list of VLAN IDs and ranges such as `10,20-29`.
pub fn vlans(text: &str) -> Result<VlanSet, String> {
    if text == "all" {
        return Ok(VlanSet::all());
    }
    let mut ids = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (VlanId(first), VlanId(last)) = (first.parse()?, last.parse()?);
        if first > last {
            return Err(format!("'{part}' is not a range of VLANs; write the smaller one first"));
        }
        ids.extend(first..=last);
    }
    Ok(VlanSet::of(ids))
}

/// Parses an IP address, with the length of its network's prefix or without.
pub fn address_in_network(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let wrong = || format!("'{text}' is no IP address; write it as in 10.0.0.1 or, with its network, 10.0.0.1/24");
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    Ok((address.parse().map_err(|_| wrong())?, prefix))
}

/// Parses a VLAN and the number of its VXLAN network, `VLAN=VNI`.
pub fn vni(text: &str) -> Result<(u16, u32), String> {
    let wrong = || format!("'{text}' is no VLAN with its VNI; write them as in 10=1010");
    let (vlan, vni) = text.split_once('=').ok_or_else(wrong)?;
    Ok((vlan.trim().parse::<VlanId>()?.0, vni.trim().parse().map_err(|_| wrong())?))
}

/// Parses a station: a MAC address, with `@VLAN` if the port has more than one VLAN.
pub fn station(text: &str) -> Result<(MacAddress, Option<u16>), String> {
    match text.split_once('@') {
        Some((mac, vlan)) => Ok((mac.parse()?, Some(vlan.parse::<VlanId>()?.0))),
        None => Ok((text.parse()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_syntax_names_a_vlan() {
        let plan = |text| PortPlan::parse(text).map(|plan| (plan.address, plan.rules.vlans));
        assert_eq!(plan("tap:a").unwrap(), ("tap:a".into(), Vlans::default()));
        assert_eq!(plan("tap:a@10").unwrap(), ("tap:a".into(), Vlans::Access(10)));
        assert_eq!(plan("pcap:me@home").unwrap(), ("pcap:me@home".into(), Vlans::default()));
        for wrong in ["tap:a@0", "tap:a@4095", "tap:a@99999"] {
            assert!(plan(wrong).unwrap_err().to_string().contains("1 to 4094"), "{wrong}");
        }
    }

    #[test]
    fn a_mapping_names_two_ports_and_perhaps_an_address() {
        let addresses = ["model,mac=02-00-00-00-00-01:tap:a", "vhost:/a@b,queues=1", "vhost:/c"];
        let ports: Vec<_> = addresses.iter().map(|address| PortPlan::parse(address).unwrap()).collect();
        let parse = |text: &str| Mapping::parse(text, &ports).map_err(|error| error.to_string());
        let mac = Some(MacAddress([2, 0, 0, 0, 0, 9]));
        for (guest, to) in [(addresses[1], 1), (addresses[2], 2)] {
            let text = format!("{}={guest}", addresses[0]);
            assert_eq!(parse(&text), Ok((0, Mapping { to, mac: None, pass: false })));
            assert_eq!(parse(&format!("{text}@02:00:00:00:00:09")), Ok((0, Mapping { to, mac, pass: false })));
        }
        let wrong = format!("{}=vhost:/d", addresses[0]);
        for (text, part) in
            [(&wrong[..], "'vhost:/d' is not a port"), ("x", "CARD=PORT"), ("tap:a=vhost:/c", "vhost:/c")]
        {
            assert!(parse(text).unwrap_err().contains(part), "{text}");
        }
        assert!(parse(&format!("{}={}@02:00", addresses[0], addresses[2])).unwrap_err().contains("six bytes"));
    }

    #[test]
    fn lists_of_vlans_and_stations() {
        assert_eq!(vlans("10,20-22").unwrap(), VlanSet::of([10, 20, 21, 22]));
        assert_eq!(vlans("all").unwrap(), VlanSet::of(1..=4094));
        for wrong in ["", "0", "1-", "9-5", "1,,2", "4095", "x"] {
            assert!(vlans(wrong).is_err(), "{wrong}");
        }
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        assert_eq!(station("02:00:00:00:00:01"), Ok((mac, None)));
        assert_eq!(station("02:00:00:00:00:01@7"), Ok((mac, Some(7))));
        assert!(station("02:00:00:00:00:01@0").is_err() && station("@1").is_err());
    }
}
