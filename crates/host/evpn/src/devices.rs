//! The devices by which FRR and a switch know of each other, and the commands that make them.

use std::fmt::Write;
use std::net::IpAddr;

/// UDP port of the VXLAN devices. It is not that of the tunnel: what arrives there is the switch's.
pub const SHADOW_PORT: u16 = 14789;

/// Seconds after which the bridge, and so FRR, forgets a station that is not announced again.
pub const AGEING: u64 = 60;

/// A device of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The VXLAN device, to which FRR adds other hosts' stations.
    Vxlan,
    /// The bridge, in which FRR looks for this host's stations.
    Bridge,
    /// The TAP in the bridge, at which this host's stations are.
    Tap,
}

impl Device {
    /// Returns the device's name, of at most 15 bytes, for a network identifier of 24 bits.
    pub fn name(self, vni: u32) -> String {
        let kind = match self {
            Self::Vxlan => "vx",
            Self::Bridge => "br",
            Self::Tap => "ta",
        };
        format!("rp-{kind}{vni}")
    }
}

/// Returns the arguments of the commands, of the package iproute2, that make the devices of some networks. Only `user` may open the TAPs; if `None`, the
/// administrator.
pub fn make(vnis: &[u32], local: IpAddr, user: Option<&str>) -> Vec<String> {
    let mut commands = Vec::new();
    for &vni in vnis {
        let [vxlan, bridge, tap] = [Device::Vxlan, Device::Bridge, Device::Tap].map(|device| device.name(vni));
        let owner = user.map(|user| format!(" user {user}")).unwrap_or_default();
        let ageing = 100 * AGEING;
        commands.extend([
            format!("ip link add {bridge} type bridge ageing_time {ageing} mcast_snooping 0"),
            format!("ip link set {bridge} addrgenmode none"),
            format!("ip link add {vxlan} type vxlan id {vni} local {local} dstport {SHADOW_PORT} nolearning"),
            format!("ip link set {vxlan} addrgenmode none master {bridge}"),
            format!("ip tuntap add {tap} mode tap{owner}"),
            format!("ip link set {tap} addrgenmode none master {bridge}"),
            // Nothing goes through these devices: the bridge only learns at the TAP.
            format!("bridge link set dev {vxlan} learning off flood off mcast_flood off bcast_flood off"),
            format!("bridge link set dev {tap} flood off mcast_flood off bcast_flood off"),
        ]);
        commands.extend([bridge, vxlan, tap].map(|device| format!("ip link set {device} up")));
    }
    commands
}

/// Returns the commands that remove the devices of some networks.
pub fn remove(vnis: &[u32]) -> Vec<String> {
    let devices = [Device::Tap, Device::Vxlan, Device::Bridge];
    vnis.iter().flat_map(|&vni| devices.map(|device| format!("ip link del {}", device.name(vni)))).collect()
}

/// A host's part of FRR's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Number of the autonomous system that all hosts belong to.
    pub system: u32,
    /// The router's identifier: an IPv4 address of its own.
    pub router: std::net::Ipv4Addr,
    /// Addresses of the hosts with which it exchanges routes: all others, or route reflectors.
    pub neighbors: Vec<IpAddr>,
}

impl Routing {
    /// Returns the configuration.
    pub fn configuration(&self) -> String {
        let Self { system, router, neighbors } = self;
        let mut text = format!("router bgp {system}\n bgp router-id {router}\n no bgp default ipv4-unicast\n");
        for neighbor in neighbors {
            // So that a host that is gone is noticed within seconds.
            let _ = write!(
                text,
                " neighbor {neighbor} remote-as {system}\n neighbor {neighbor} timers 1 3\n neighbor {neighbor} timers connect 1\n"
            );
        }
        text.push_str(" address-family l2vpn evpn\n");
        for neighbor in neighbors {
            let _ = writeln!(text, "  neighbor {neighbor} activate");
        }
        text.push_str("  advertise-all-vni\n exit-address-family\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit() {
        for device in [Device::Vxlan, Device::Bridge, Device::Tap] {
            assert!(device.name((1 << 24) - 1).len() <= 15);
        }
    }
}
