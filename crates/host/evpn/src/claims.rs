//! IP addresses that this host's stations say they have.

use std::collections::HashMap;
use std::net::IpAddr;

use ringpass_port::MacAddress;
use ringpass_switch::vxlan::Address;

/// Most addresses of all stations: half of what the kernel has room for in its table of neighbours, for the whole host (`gc_thresh3`, arp(7)).
const MOST: usize = 512;
/// Most addresses of a station.
const MOST_OF_ONE: usize = 16;

/// The addresses, by network. A station that says that it has many keeps its first ones, and others theirs.
#[derive(Default)]
pub(crate) struct Claims {
    stations: HashMap<(u32, IpAddr), MacAddress>,
}

/// Outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// It is new, or another station's until now.
    New,
    /// It was there before.
    Known,
    /// No room is left for it.
    Refused,
}

impl Claims {
    /// Adds what a station says.
    pub(crate) fn add(&mut self, Address { vni, ip, mac, .. }: Address) -> Claimed {
        let before = self.stations.get(&(vni, ip));
        if before == Some(&mac) {
            return Claimed::Known;
        }
        let of_one = self.stations.iter().filter(|((network, _), station)| (*network, **station) == (vni, mac)).count();
        if of_one >= MOST_OF_ONE || before.is_none() && self.stations.len() >= MOST {
            return Claimed::Refused;
        }
        self.stations.insert((vni, ip), mac);
        Claimed::New
    }

    /// Keeps those of the stations for which `is_here` returns `true`.
    pub(crate) fn retain(&mut self, mut is_here: impl FnMut(u32, MacAddress) -> bool) {
        self.stations.retain(|&(vni, _), mac| is_here(vni, *mac));
    }

    /// Returns all of them, in no particular order.
    pub(crate) fn all(&self) -> Vec<Address> {
        let address = |(&(vni, ip), &mac)| Address { vni, ip, mac, is_router: false };
        self.stations.iter().map(address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_that_claims_all_leaves_room_for_others() {
        let mut claims = Claims::default();
        let claim = |station: u8, ip: u32| Address {
            vni: 1,
            ip: IpAddr::from(ip.to_be_bytes()),
            mac: MacAddress([2, 0, 0, 0, 0, station]),
            is_router: false,
        };
        assert_eq!([1, 1].map(|ip| claims.add(claim(1, ip))), [Claimed::New, Claimed::Known]);
        (2..1000).for_each(|ip| _ = claims.add(claim(1, ip)));
        assert_eq!(claims.all().len(), MOST_OF_ONE);
        assert_eq!(claims.add(claim(2, 2000)), Claimed::New);
        assert_eq!(claims.add(claim(2, 1)), Claimed::New, "it has moved");
        assert_eq!(claims.add(claim(1, 3000)), Claimed::New, "now there is room");
        (3..100)
            .for_each(|station| (0..100).for_each(|ip| _ = claims.add(claim(station, u32::from(station) << 16 | ip))));
        assert_eq!(claims.all().len(), MOST);
        assert_eq!(claims.add(claim(200, 9000)), Claimed::Refused);
        claims.retain(|_, mac| mac.0[5] == 2);
        assert_eq!(claims.all().len(), 2);
    }
}
