//! The networks of a tunnel.

use std::net::IpAddr;
use std::time::Duration;

use ringpass_memory::Packet;
use ringpass_port::{Error, MacAddress};

use super::MAX_STATIONS;
use super::addresses::Addresses;
use super::neighbours::Said;
use super::stations::{self, RemoteId, Stations};
use crate::frame::{RawHeader, is_station, number};
use crate::tag;

/// The networks that go through a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Networks {
    /// All frames of the port belong to one, with this VXLAN network identifier (VNI, 24 bits). Tags stay in them.
    One(u32),
    /// Each of these VLANs is one, with this VNI. The tunnel has no tags.
    Vlans(Vec<(u16, u32)>),
}

/// Addresses of a station that there is room for, on average.
const ADDRESSES: usize = 4;
/// Largest VNI.
const MAX_VNI: u32 = (1 << 24) - 1;

impl Networks {
    fn list(&self) -> Vec<(Option<u16>, u32)> {
        match self {
            Self::One(vni) => vec![(None, *vni)],
            Self::Vlans(vlans) => vlans.iter().map(|&(vlan, vni)| (Some(vlan), vni)).collect(),
        }
    }
}

/// A network of the tunnel.
pub(super) struct Network {
    pub(super) vni: u32,
    /// Its place in the table.
    pub(super) place: usize,
    /// Its VLAN in the switch; `None` if it has all frames of the port.
    pub(super) vlan: Option<u16>,
    /// Present if there may be more than one remote.
    pub(super) stations: Option<Stations>,
    /// Present if stations are given, not learned.
    pub(super) addresses: Option<Addresses>,
}

impl Network {
    /// Returns the remote behind which a frame's destination is; `None` if it is a group or not known.
    #[inline]
    pub(super) fn destination(&self, packet: &Packet) -> Option<RemoteId> {
        self.end_of(RawHeader::of(packet)?)
    }

    /// Returns the remote behind which the destination of a frame with this header is, likewise.
    #[inline]
    pub(super) fn end_of(&self, header: RawHeader) -> Option<RemoteId> {
        let station = header.header().destination;
        if is_station(station) { self.stations.as_ref()?.find(station) } else { None }
    }

    /// Receives a frame from a remote: learns where its sender is, and puts it into its VLAN. Returns `false` if it has a tag where
    /// the tunnel has none (RFC 7348, 6.1).
    #[inline]
    pub(super) fn receive(&self, packet: &mut Packet, remote: RemoteId) -> bool {
        if let Some(vlan) = self.vlan {
            if tag::is_tagged(packet) {
                return false;
            }
            packet.set_vlan(vlan);
        }
        if self.addresses.is_none()
            && let Some(stations) = &self.stations
            && let Some(header) = RawHeader::of(&*packet).map(RawHeader::header)
            && header.has_source()
        {
            stations.learn(header.source, remote);
        }
        true
    }

    /// Returns the answer to a question in a frame for all, if it is one, and the station that is asked for is behind another end. Passes what
    /// the sender says of itself to `heard`.
    pub(super) fn answer(&self, packet: &Packet, heard: impl FnOnce(MacAddress, IpAddr)) -> Option<Vec<u8>> {
        let addresses = self.addresses.as_ref()?;
        let source = RawHeader::of(packet)?.header().source;
        let said = Said::parse(packet)?;
        if let Some((mac, ip)) = said.sender.map(|(mac, ip)| (MacAddress(mac), ip))
            && number(mac) == source
        {
            heard(mac, ip);
        }
        let holder = addresses.find(said.asked()?)?;
        let station = number(holder.mac);
        // One that has moved to this host asks whether somebody else has its address. Nobody else is to say so.
        let is_elsewhere = station != source && self.stations.as_ref()?.find(station).is_some();
        if is_elsewhere { said.answer(holder.mac.0, holder.is_router) } else { None }
    }
}

/// The networks of a tunnel, by VNI and by VLAN.
pub(super) struct Table {
    /// By VNI.
    networks: Box<[Network]>,
    /// VLANs and the places of their networks, by VLAN.
    vlans: Box<[(u16, u16)]>,
}

impl Table {
    /// Creates the table of these networks, each with room for this many stations if there may be more than one remote. `learns` is set if those are
    /// learned from frames.
    ///
    /// # Errors
    /// If a VNI or VLAN is none, or is there twice, or there is room for too many stations.
    pub(super) fn new(networks: &Networks, stations: Option<usize>, learns: bool) -> Result<Self, Error> {
        let wrong = |why: String| Err(Error::Config(format!("VXLAN: {why}")));
        let mut list = networks.list();
        list.sort_unstable_by_key(|&(_, vni)| vni);
        let mut vlans: Vec<(u16, u16)> =
            list.iter().enumerate().filter_map(|(place, (vlan, _))| Some(((*vlan)?, place as u16))).collect();
        vlans.sort_unstable();
        if list.is_empty() {
            return wrong("a tunnel has at least one network".into());
        }
        if let Some((_, vni)) = list.iter().find(|(_, vni)| *vni > MAX_VNI) {
            return wrong(format!("{vni} is not a VNI; those go from 0 to {MAX_VNI}"));
        }
        if let Some((vlan, _)) = vlans.iter().find(|(vlan, _)| !(1..=4094).contains(vlan)) {
            return wrong(format!("{vlan} is not a VLAN; those go from 1 to 4094"));
        }
        if let Some(pair) = list.windows(2).find(|pair| pair[0].1 == pair[1].1) {
            return wrong(format!("VNI {} is there twice; each VLAN needs its own", pair[0].1));
        }
        if let Some(pair) = vlans.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return wrong(format!("VLAN {} is there twice; it has one VNI", pair[0].0));
        }
        // What is learned may be forgotten, what is given may not.
        let room = stations.map(|stations| if learns { stations } else { stations::room(stations) });
        if room.unwrap_or(0).saturating_mul(list.len()) > MAX_STATIONS {
            return wrong(format!(
                "there is room for {MAX_STATIONS} stations in all networks together; say how many, with less for each"
            ));
        }
        let addresses = || stations.filter(|_| !learns).map(|stations| Addresses::new(ADDRESSES * stations));
        let network = |(place, (vlan, vni))| Network {
            vni,
            place,
            vlan,
            stations: room.map(Stations::new),
            addresses: addresses(),
        };
        Ok(Self { networks: list.into_iter().enumerate().map(network).collect(), vlans: vlans.into() })
    }

    /// Returns the network with this VNI.
    #[inline]
    pub(super) fn with(&self, vni: u32) -> Option<&Network> {
        let place = self.networks.binary_search_by_key(&vni, |network| network.vni).ok()?;
        self.networks.get(place)
    }

    /// Returns the network of a frame on its way into the tunnel, and takes the tag of its VLAN off. `None` if that has no network.
    #[inline]
    pub(super) fn of(&self, packet: &mut Packet) -> Option<&Network> {
        if self.vlans.is_empty() {
            return self.networks.first();
        }
        let vlan = tag::id(packet).filter(|_| tag::is_tagged(packet))?;
        let place = self.vlans.binary_search_by_key(&vlan, |&(vlan, _)| vlan).ok()?;
        tag::pop(packet);
        self.networks.get(usize::from(self.vlans[place].1))
    }

    /// Returns the network of a frame on its way into the tunnel, if all frames belong to one; `None` if tags say which.
    #[inline]
    pub(super) fn of_all(&self) -> Option<&Network> {
        self.networks.first().filter(|_| self.vlans.is_empty())
    }

    /// Returns whether networks are VLANs.
    pub(super) fn is_tagged(&self) -> bool {
        !self.vlans.is_empty()
    }

    /// Returns all networks, by their places.
    pub(super) fn all(&self) -> &[Network] {
        &self.networks
    }

    /// Forgets silent stations of one of the networks, if they were learned; `turn` counts the calls.
    pub(super) fn age(&self, turn: usize, now: Duration) {
        if let Network { stations: Some(stations), addresses: None, .. } = &self.networks[turn % self.networks.len()] {
            stations.age(now);
        }
    }
}
