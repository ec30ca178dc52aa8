//! Hosts with FRR of Debian's package, in namespaces: the switch carries the frames of some, the kernel's vxlan devices those of the third.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringpass::control::{Client, PortStatus, Request};
use ringpass_lab::{Ended, Namespace, Program, unique, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use super::{RINGPASS, folder, text};

/// FRR's daemons in a namespace.
pub struct Frr {
    name: String,
    pub zebra: Program,
    pub bgpd: Program,
}

impl Frr {
    /// Starts them with this configuration.
    pub fn start(namespace: &Namespace, configuration: &Path) -> Self {
        let name = unique("rpe-");
        let daemon = |program: &str| {
            let path = format!("/usr/lib/frr/{program}");
            // Without sockets for a terminal; the log tells what went wrong.
            namespace.spawn(&[&path, "-N", &name, "-f", text(configuration), "--log", "stdout", "-P", "0"])
        };
        let zebra = daemon("zebra");
        wait_until("zebra", || Path::new("/var/run/frr").join(&name).join("zserv.api").exists());
        Self { bgpd: daemon("bgpd"), zebra, name }
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        self.bgpd.kill();
        self.zebra.kill();
        let _ = std::fs::remove_dir_all(Path::new("/var/run/frr").join(&self.name));
    }
}

/// The network between the hosts: a bridge.
pub struct Underlay(pub Namespace);

impl Underlay {
    pub fn new() -> Self {
        let namespace = Namespace::new();
        namespace.run(&["ip", "link", "add", "outer", "type", "bridge"]);
        namespace.run(&["ip", "link", "set", "outer", "up"]);
        Self(namespace)
    }

    /// Connects a host.
    fn connect(&self, host: &Namespace, number: u8) {
        let [here, there] = ["ua", "ub"].map(unique);
        self.0.run(&["ip", "link", "add", &here, "type", "veth", "peer", "name", &there]);
        self.0.run(&["ip", "link", "set", &here, "master", "outer", "up"]);
        // As on a wire, there are no segments that are still to be cut.
        self.0.run(&["ethtool", "-K", &here, "tso", "off", "gso", "off", "tx-udp_tnl-segmentation", "off"]);
        self.0.run(&["ip", "link", "set", &there, "netns", &host.0]);
        host.run(&["ip", "link", "set", &there, "name", "eth0"]);
        host.run(&["ip", "address", "add", &format!("10.9.0.{number}/24"), "dev", "eth0"]);
        host.run(&["ip", "link", "set", "eth0", "up"]);
    }
}

/// Numbers of the hosts, of which the last has the kernel's data plane.
pub const HOSTS: [u8; 3] = [1, 2, 3];

/// A host whose switch is ours, with a station behind it.
pub struct Ours {
    pub host: Namespace,
    pub station: Namespace,
    pub interface: String,
    pub folder: TempDir,
    pub number: u8,
    pub frr: Option<Frr>,
    pub switch: Option<Program>,
}

impl Ours {
    /// Prepares a host of one network, 100, which is VLAN 7 in the switch.
    pub fn new(underlay: &Underlay, number: u8) -> Self {
        Self::with(underlay, number, &["7=100"], |_| String::new())
    }

    /// Prepares a host of these networks, and with these parts of the file, given its folder. The last port is the station's, in VLAN 7.
    pub fn with(underlay: &Underlay, number: u8, vnis: &[&str], ports: impl FnOnce(&Path) -> String) -> Self {
        let (host, station, folder, interface) = (Namespace::new(), Namespace::new(), folder(), unique("ti"));
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our folder");
        underlay.connect(&host, number);
        let mac = host.mac("eth0");
        let others: Vec<String> = HOSTS.iter().filter(|&&other| other != number).map(neighbor).collect();
        let file = format!(
            "[options]\nhugepages = \"off\"\n[control]\nsocket = {control:?}\n[[switch]]\nname = \"lan\"\n\
             [[switch.port]]\nname = \"fabric\"\naddress = \"packet:eth0\"\n\
             [switch.port.vxlan]\nvnis = {vnis:?}\nlocal = \"10.9.0.{number}/24\"\nmac = \"{mac}\"\n\
             [switch.port.vxlan.evpn]\nsystem = 65000\nneighbors = [{others}]\n\
             {ports}[[switch.port]]\nname = \"inside\"\naddress = \"tap:{interface}\"\nvlan = 7\n",
            control = folder.path().join("control"),
            others = others.join(", "),
            ports = ports(folder.path())
        );
        let ours = Self { host, station, interface, folder, number, frr: None, switch: None };
        std::fs::write(ours.file(), file).expect("a file");
        ours.host.run(&[RINGPASS, "evpn", "setup", text(&ours.file())]);
        ours
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("service.toml")
    }

    pub fn start_frr(&mut self) {
        let configuration = self.folder.path().join("frr.conf");
        std::fs::write(&configuration, self.host.run(&[RINGPASS, "evpn", "frr", text(&self.file())])).expect("a file");
        std::fs::set_permissions(&configuration, Permissions::from_mode(0o644)).expect("our file");
        self.frr = Some(Frr::start(&self.host, &configuration));
    }

    pub fn start_switch(&mut self) {
        let switch = self.host.spawn(&[RINGPASS, "run", text(&self.file()), "--json"]);
        switch.wait_for_stderr("sandbox: ");
        self.switch = Some(switch);
        let station = if self.interface.is_empty() { return } else { format!("198.18.0.{}/24", self.number) };
        self.station.take(&self.host, &self.interface, &station);
    }

    pub fn stop_switch(&mut self) -> Ended {
        let switch = self.switch.take().expect("it runs");
        switch.signal("TERM");
        switch.wait(Duration::from_secs(20))
    }

    /// Returns the stations that the switch knows, with the ends behind which they are (`mac`, `vlan`, `remote`).
    pub fn stations(&self) -> Vec<Value> {
        let mut client = Client::connect(&self.folder.path().join("control")).expect("it runs");
        let told: Value = client.request(&Request::Stations { switch: None }).expect("stations");
        told.as_array().unwrap_or_else(|| panic!("{told}")).clone()
    }

    /// Returns the end behind which a station of VLAN 7 is.
    pub fn remote_of(&self, mac: &str) -> Option<String> {
        self.remote_of_in(mac, 7)
    }

    pub fn remote_of_in(&self, mac: &str, vlan: u16) -> Option<String> {
        let station = self.stations().into_iter().find(|station| station["mac"] == mac && station["vlan"] == vlan);
        station.and_then(|station| station["remote"].as_str().map(str::to_owned))
    }

    pub fn tunnel(&self) -> PortStatus {
        let mut client = Client::connect(&self.folder.path().join("control")).expect("it runs");
        let ports = client.status().expect("a status").ports;
        ports.into_iter().find(|port| port.name == "fabric").expect("the tunnel's port")
    }

    /// Returns how many stations are behind another host.
    pub fn stations_at(&self, host: &str) -> usize {
        self.tunnel().ends.iter().find(|end| end.address == host).map_or(0, |end| end.stations as usize)
    }

    pub fn count(&self, counter: &str) -> u64 {
        let port = self.tunnel();
        port.extended.iter().find(|(name, _)| *name == counter).map_or(0, |(_, count)| *count)
    }
}

fn neighbor(number: &u8) -> String {
    format!("\"10.9.0.{number}\"")
}

/// The host whose kernel carries its own frames, with a station in each network.
pub struct Kernel {
    pub host: Namespace,
    /// Each has an interface `st`, in the order of the networks.
    pub stations: Vec<Namespace>,
    configuration: PathBuf,
    pub frr: Option<Frr>,
}

impl Kernel {
    /// Starts a host of these networks. Its stations have the same address.
    pub fn start(underlay: &Underlay, folder: &Path, vnis: &[u32]) -> Self {
        let host = Namespace::new();
        underlay.connect(&host, 3);
        let station = |vni: &u32| {
            let (vx, bridge, inner) = (format!("vx{vni}"), format!("bridge{vni}"), format!("inner{vni}"));
            for command in [
                format!("ip link add name {bridge} type bridge"),
                format!("ip link add {vx} type vxlan id {vni} local 10.9.0.3 dstport 4789 nolearning"),
                format!("ip link set {vx} master {bridge} up"),
                format!("bridge link set dev {vx} learning off"),
                format!("ip link set {bridge} up"),
                format!("ip link add {inner} type veth peer name st"),
                format!("ip link set {inner} master {bridge} up"),
            ] {
                host.run(&command.split(' ').collect::<Vec<_>>());
            }
            let station = Namespace::new();
            station.take(&host, "st", "198.18.0.3/24");
            station.ip(&["link", "set", "st", "mtu", "1450"]);
            station
        };
        let stations = vnis.iter().map(station).collect();
        let mut configuration =
            String::from("router bgp 65000\n bgp router-id 10.9.0.3\n no bgp default ipv4-unicast\n");
        for other in [1, 2] {
            let neighbor = format!(" neighbor 10.9.0.{other}");
            configuration +=
                &format!("{neighbor} remote-as 65000\n{neighbor} timers 1 3\n{neighbor} timers connect 1\n");
        }
        configuration += " address-family l2vpn evpn\n  neighbor 10.9.0.1 activate\n  neighbor 10.9.0.2 activate\n";
        configuration += "  advertise-all-vni\n exit-address-family\n";
        let path = folder.join("frr.conf");
        std::fs::write(&path, configuration).expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("our file");
        let mut kernel = Self { host, stations, configuration: path, frr: None };
        kernel.start_frr();
        kernel
    }

    /// Starts FRR, also again after an end.
    pub fn start_frr(&mut self) {
        self.frr = None;
        self.frr = Some(Frr::start(&self.host, &self.configuration));
    }

    /// Kills BGP.
    pub fn kill_bgp(&mut self) {
        self.frr.as_mut().expect("it runs").bgpd.kill();
    }
}

/// Returns whether a ping is answered within a second.
pub fn pings(from: &Namespace, to: &str) -> bool {
    from.spawn(&["ping", "-c", "1", "-W", "1", to]).wait(Duration::from_secs(60)).status == Some(0)
}

/// Sends pings, of which none may be lost, once the first one has passed.
pub fn reaches(from: &Namespace, to: &str) {
    wait_until("the first ping", || pings(from, to));
    let said = from.run(&["ping", "-n", "-q", "-c", "100", "-i", "0.01", "-s", "1400", "-w", "60", to]);
    assert!(said.contains(" 0% packet loss"), "{said}");
}
