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
    /// All devices of a network.
    pub const ALL: [Self; 3] = [Self::Vxlan, Self::Bridge, Self::Tap];

    fn kind(self) -> &'static str {
        match self {
            Self::Vxlan => "vx",
            Self::Bridge => "br",
            Self::Tap => "ta",
        }
    }

    /// Returns the device's name, of at most 15 bytes, for a network identifier of 24 bits.
    pub fn name(self, vni: u32) -> String {
        format!("rp-{}{vni}", self.kind())
    }

    /// Returns the device that has a name, and its network; `None` if that is another program's.
    pub fn named(name: &str) -> Option<(Self, u32)> {
        let (kind, vni) = name.strip_prefix("rp-")?.split_at_checked(2)?;
        let device = Self::ALL.into_iter().find(|device| device.kind() == kind)?;
        let vni = vni.parse().ok()?;
        (device.name(vni) == name).then_some((device, vni))
    }
}

/// Returns the commands, of the packages iproute2 and procps, that make the devices of some networks. Only `user` may open the TAPs; if `None`, the
/// administrator.
pub fn make(vnis: &[u32], local: IpAddr, user: Option<&str>) -> Vec<String> {
    let mut commands = Vec::new();
    for &vni in vnis {
        let [vxlan, bridge, tap] = Device::ALL.map(|device| device.name(vni));
        let owner = user.map(|user| format!(" user {user}")).unwrap_or_default();
        let ageing = 100 * AGEING;
        commands.extend([
            format!("ip link add {bridge} type bridge ageing_time {ageing} mcast_snooping 0"),
            format!("ip link set {bridge} addrgenmode none"),
            // So that the bridge notes stations' addresses, of which FRR reads there (Linux, networking/ip-sysctl). Those of IPv6 since Linux 5.19.
            format!("sysctl -q -w net.ipv4.conf.{bridge}.arp_accept=1"),
            format!(
                "sysctl -q -e -w net.ipv6.conf.{bridge}.disable_ipv6=0 net.ipv6.conf.{bridge}.forwarding=1 \
                 net.ipv6.conf.{bridge}.accept_untracked_na=1"
            ),
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
        for device in Device::ALL {
            let name = device.name((1 << 24) - 1);
            assert!(name.len() <= 15);
            assert_eq!(Device::named(&name), Some((device, (1 << 24) - 1)));
        }
        for other in ["rp-vx", "rp-br07", "rp-ta+7", "rp-xx7", "rp-é", "eth0", "rp-vx99999999999"] {
            assert_eq!(Device::named(other), None, "{other}");
        }
    }
}
