//! Remotes and stations that a control plane gives, while frames pass.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use ringpass_port::{Error, MacAddress};

use super::addresses::Holder;
use super::networks::Network;
use super::remotes::{Hop, Remote, Remotes};
use super::stations::RemoteId;
use super::{Ends, MAX_REMOTES, State, Tunnel};
use crate::frame::{address, is_station, number};
use crate::journal::{Journal, News};

/// A station behind another end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// VXLAN network identifier of its network.
    pub vni: u32,
    /// Its address.
    pub mac: MacAddress,
    /// Address of the end.
    pub remote: IpAddr,
}

/// An IP address of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// VXLAN network identifier of its network.
    pub vni: u32,
    /// The address.
    pub ip: IpAddr,
    /// Hardware address of the station.
    pub mac: MacAddress,
    /// Set if the station is an IPv6 router.
    pub is_router: bool,
}

/// Another end of a tunnel, as it is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndState {
    /// Its address.
    pub address: IpAddr,
    /// VXLAN network identifiers of the networks of which it gets frames for all.
    pub networks: Vec<u32>,
    /// Number of stations behind it, in all networks.
    pub stations: usize,
    /// Set if the hardware address is known of the station through which it is reached, as it is once there was something to send.
    pub is_resolved: bool,
}

/// Ends that were given, and who needs them.
pub(super) struct Given {
    /// By number. A number is free again when nothing needs its end.
    ends: Vec<Option<End>>,
    /// Numbers of ends by their addresses.
    numbers: HashMap<IpAddr, RemoteId>,
    /// The ends to which frames for all go, by place of the network.
    floods: Vec<Vec<Copies>>,
}

struct End {
    remote: Remote,
    /// Number of stations and networks that need it.
    uses: usize,
}

/// An end that gets copies of frames for all.
struct Copies {
    to: RemoteId,
    /// Set if it was given since [`Changes::begin_all`].
    fresh: bool,
}

impl Given {
    pub(super) fn new(networks: usize) -> Self {
        Self { ends: Vec::new(), numbers: HashMap::new(), floods: (0..networks).map(|_| Vec::new()).collect() }
    }

    fn number(&self, address: IpAddr) -> Option<RemoteId> {
        self.numbers.get(&address).copied()
    }
}

impl Tunnel {
    /// Changes remotes and stations. Remotes take effect when `change` returns, together; stations at once.
    ///
    /// # Errors
    /// If the tunnel's [ends](Ends) are fixed.
    pub fn change<R>(&self, change: impl FnOnce(&mut Changes) -> R) -> Result<R, Error> {
        let state = &*self.0;
        self.check_given()?;
        let mut given = state.given.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Changes { state, given: &mut given, ends_changed: false };
        let result = change(&mut changes);
        if changes.ends_changed {
            let remotes = given.ends.iter().map(|end| Some(end.as_ref()?.remote.clone())).collect();
            let floods = given.floods.iter().map(|list| list.iter().map(|copies| copies.to).collect()).collect();
            state.remotes.store(Arc::new(Remotes::new(remotes, floods)));
        }
        Ok(result)
    }

    /// Returns the stations behind other ends, given or learned, sorted by network and address. A tunnel with one fixed remote knows none.
    pub fn stations(&self) -> Vec<Station> {
        let remotes = self.0.remotes.load();
        let mut stations = Vec::new();
        for network in self.0.networks.all() {
            let known = network.stations.iter().flat_map(|stations| stations.entries());
            stations.extend(known.filter_map(|(mac, remote)| {
                Some(Station { vni: network.vni, mac: address(mac), remote: remotes.get(remote)?.address })
            }));
        }
        stations.sort_unstable_by_key(|station| (station.vni, station.mac.0));
        stations
    }

    /// Returns the addresses of stations behind other ends that were given, sorted by network and address.
    pub fn addresses(&self) -> Vec<Address> {
        let mut all = Vec::new();
        for Network { vni, addresses, .. } in self.0.networks.all() {
            let entries = addresses.iter().flat_map(|addresses| addresses.entries());
            let address = |(ip, Holder { mac, is_router, .. })| Address { vni: *vni, ip, mac, is_router };
            all.extend(entries.map(address));
        }
        all.sort_unstable_by_key(|address| (address.vni, address.ip));
        all
    }

    /// Begins to record the addresses that stations of this side say of themselves in frames for all (ARP, neighbor discovery), for one reader.
    /// Stations say what they like, and again and again.
    ///
    /// # Errors
    /// If they are recorded already, the tunnel's [ends](Ends) are fixed, or the process has no file descriptor left.
    pub fn heard(&self) -> Result<News<Address>, Error> {
        self.check_given()?;
        let (journal, news) = Journal::new()?;
        match self.0.heard.set(journal) {
            Ok(()) => Ok(news),
            Err(_) => Err(Error::Config("VXLAN: what stations say has a reader already".into())),
        }
    }

    fn check_given(&self) -> Result<(), Error> {
        match self.0.config.ends {
            Ends::Given => Ok(()),
            Ends::Fixed(_) => Err(Error::Config("VXLAN: the remotes of this tunnel are fixed".into())),
        }
    }

    /// Returns the other ends, sorted by address.
    pub fn ends(&self) -> Vec<EndState> {
        let remotes = self.0.remotes.load();
        let new = |remote: &Remote| EndState {
            address: remote.address,
            networks: Vec::new(),
            stations: 0,
            is_resolved: remote.hop.mac().is_some(),
        };
        let mut ends: Vec<Option<EndState>> = remotes.all().map(|remote| remote.map(new)).collect();
        for network in self.0.networks.all() {
            let mut at = |number: RemoteId, change: fn(&mut EndState, u32)| {
                ends.get_mut(usize::from(number)).into_iter().flatten().for_each(|end| change(end, network.vni));
            };
            remotes.floods(network.place).iter().for_each(|&number| at(number, |end, vni| end.networks.push(vni)));
            let stations = network.stations.iter().flat_map(|stations| stations.entries());
            stations.for_each(|(_, number)| at(number, |end, _| end.stations += 1));
        }
        let mut ends: Vec<_> = ends.into_iter().flatten().collect();
        ends.sort_unstable_by_key(|end| end.address);
        ends
    }

    /// Returns the VLAN of a network in the switch; the outer `None` if the tunnel does not have it, the inner one if it has all frames of the port.
    pub fn vlan(&self, vni: u32) -> Option<Option<u16>> {
        self.0.networks.with(vni).map(|network| network.vlan)
    }
}

/// Changes of the remotes and stations of a tunnel: see [`Tunnel::change`].
pub struct Changes<'a> {
    state: &'a State,
    given: &'a mut Given,
    /// Set if the set of ends must be made anew.
    ends_changed: bool,
}

impl<'a> Changes<'a> {
    fn network(&self, vni: u32) -> Result<&'a Network, Error> {
        self.state.networks.with(vni).ok_or_else(|| Error::Config(format!("VXLAN: the tunnel has no network {vni}")))
    }

    /// Returns the number of an end, which is added if need be, and counts its use.
    fn hold(&mut self, address: IpAddr) -> Result<RemoteId, Error> {
        let number = match self.given.number(address) {
            Some(number) => number,
            None => self.add(address)?,
        };
        if let Some(end) = &mut self.given.ends[usize::from(number)] {
            end.uses += 1;
        }
        Ok(number)
    }

    fn add(&mut self, address: IpAddr) -> Result<RemoteId, Error> {
        let next = self.state.config.next_hop(address)?;
        let ends = &mut self.given.ends;
        // One that is in force may have been released in this change.
        let in_force = self.state.remotes.load().hop_at(next).cloned();
        let new = || ends.iter().flatten().map(|end| &end.remote.hop).find(|hop| hop.address == next).cloned();
        let known = in_force.or_else(new);
        let hop = known.unwrap_or_else(|| Arc::new(Hop::new(next)));
        let end = Some(End { remote: Remote { address, hop }, uses: 0 });
        let number = match ends.iter().position(Option::is_none) {
            Some(free) => {
                ends[free] = end;
                free
            }
            None if ends.len() < MAX_REMOTES => {
                ends.push(end);
                ends.len() - 1
            }
            None => return Err(Error::Config(format!("VXLAN: a tunnel has 1 to {MAX_REMOTES} remotes"))),
        };
        self.given.numbers.insert(address, number as RemoteId);
        self.ends_changed = true;
        Ok(number as RemoteId)
    }

    /// Counts a use of an end less. The last one removes it.
    fn release(&mut self, number: RemoteId) {
        if let Some(place) = self.given.ends.get_mut(usize::from(number))
            && let Some(end) = place
        {
            end.uses -= 1;
            if end.uses == 0 {
                self.given.numbers.remove(&end.remote.address);
                *place = None;
                self.ends_changed = true;
            }
        }
    }

    /// Lets frames for all of a network go to an end, too.
    ///
    /// # Errors
    /// If the tunnel does not have the network, cannot reach the end, or has [`MAX_REMOTES`].
    pub fn add_remote(&mut self, vni: u32, remote: IpAddr) -> Result<(), Error> {
        let place = self.network(vni)?.place;
        let number = self.given.number(remote);
        let list = &mut self.given.floods[place];
        if let Some(copies) = list.iter_mut().find(|copies| Some(copies.to) == number) {
            copies.fresh = true;
            return Ok(());
        }
        let to = self.hold(remote)?;
        self.given.floods[place].push(Copies { to, fresh: true });
        self.ends_changed = true;
        Ok(())
    }

    /// Lets frames for all of a network go to an end no longer. Does nothing if they did not.
    pub fn remove_remote(&mut self, vni: u32, remote: IpAddr) {
        if let (Ok(&Network { place, .. }), Some(number)) = (self.network(vni), self.given.number(remote)) {
            let list = &mut self.given.floods[place];
            if let Some(at) = list.iter().position(|copies| copies.to == number) {
                list.swap_remove(at);
                self.release(number);
                self.ends_changed = true;
            }
        }
    }

    /// Adds a station, or moves it. Returns whether it was not there before.
    ///
    /// # Errors
    /// If the tunnel does not have the network, cannot reach the end, or has [`MAX_REMOTES`]; if the address is not a station's; or if another station had to
    /// make room, frames to which now go to all ends of the network.
    pub fn add_station(&mut self, Station { vni, mac, remote }: Station) -> Result<bool, Error> {
        let place = self.network(vni)?.place;
        let station = number(mac);
        if !is_station(station) {
            return Err(Error::Config(format!("VXLAN: {mac} is not the address of a station")));
        }
        let end = self.hold(remote)?;
        let Some(stations) = &self.state.networks.all()[place].stations else { return Ok(false) };
        match stations.put(station, end) {
            None => Ok(true),
            Some((before, was_at)) => {
                self.release(was_at);
                if before == station {
                    return Ok(was_at != end);
                }
                Err(Error::Config("VXLAN: more stations than there is room for; give the tunnel a larger table".into()))
            }
        }
    }

    /// Removes a station, if it is at this end. Does nothing otherwise.
    pub fn remove_station(&mut self, Station { vni, mac, remote }: Station) -> bool {
        let end = self.given.number(remote);
        let Ok(Network { stations: Some(stations), .. }) = self.network(vni) else { return false };
        let station = number(mac);
        if end.is_none() || stations.find(station) != end {
            return false;
        }
        let gone = stations.forget(station);
        gone.into_iter().for_each(|end| self.release(end));
        gone.is_some()
    }

    /// Adds an address of a station behind another end, or moves it to another station. Questions for it are then answered here while that station is known,
    /// and not sent to other ends.
    ///
    /// # Errors
    /// If the tunnel does not have the network, or more addresses than there is room for stations.
    pub fn add_address(&mut self, Address { vni, ip, mac, is_router }: Address) -> Result<(), Error> {
        let addresses = &self.network(vni)?.addresses;
        if addresses.as_ref().is_some_and(|addresses| addresses.add(ip, mac, is_router)) {
            return Ok(());
        }
        Err(Error::Config(
            "VXLAN: more addresses of stations than there is room for; give the tunnel a larger table".into(),
        ))
    }

    /// Removes an address. Does nothing if it is not there.
    pub fn remove_address(&mut self, vni: u32, ip: IpAddr) {
        if let Ok(Network { addresses: Some(addresses), .. }) = self.network(vni) {
            addresses.remove(ip);
        }
    }

    /// Begins to give all remotes, stations and addresses anew. What is not given until [`end_all`](Self::end_all) is then removed.
    pub fn begin_all(&mut self) {
        self.given.floods.iter_mut().flatten().for_each(|copies| copies.fresh = false);
        for network in self.state.networks.all() {
            network.stations.iter().for_each(|stations| stations.begin_time());
            network.addresses.iter().for_each(|addresses| addresses.begin_time());
        }
    }

    /// Removes what was not given since [`begin_all`](Self::begin_all). Passes each station to `gone`.
    pub fn end_all(&mut self, mut gone: impl FnMut(u32, MacAddress)) {
        let mut unused = Vec::new();
        for list in &mut self.given.floods {
            unused.extend(list.extract_if(.., |copies| !copies.fresh).map(|copies| copies.to));
        }
        self.ends_changed |= !unused.is_empty();
        for network in self.state.networks.all() {
            if let Some(stations) = &network.stations {
                stations.end_time(|station, end| {
                    gone(network.vni, address(station));
                    unused.push(end);
                });
            }
            network.addresses.iter().for_each(|addresses| addresses.end_time());
        }
        unused.into_iter().for_each(|end| self.release(end));
    }
}
