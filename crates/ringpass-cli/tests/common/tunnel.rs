//! A switch of two ports, of which one is the end of a tunnel; the other end is the kernel's own vxlan device.

use ringpass_lab::{Namespace, Program, wait_until};
use serde_json::Value;

use super::guest::answered;
use super::{RINGPASS, folder, text, unique};

const PORT: &str = "4789";

/// The switch, in the namespace `middle`; and `far`, where the vxlan device is.
pub struct Tunnel {
    pub middle: Namespace,
    pub far: Namespace,
    switch: Program,
}

/// Variations of the tunnel.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Prefix of the tunnel's TAP in its port's address.
    pub card: &'a str,
    /// Whether the tunnel's card receives into the buffers of a guest at the other port.
    pub mapped: bool,
    /// Options of `ringpass switch`.
    pub switch: &'a [&'a str],
    /// Options of the vxlan device.
    pub device: &'a [&'a str],
}

impl Tunnel {
    /// Creates a tunnel to the port `other`; the vxlan device gets this address.
    pub fn new(other: &str, address: &str, Options { card, mapped, switch, device }: Options) -> Self {
        let (middle, far, folder) = (Namespace::new(), Namespace::new(), folder());
        let (outer, file) = (unique("to"), folder.path().join("switch.toml"));
        let map = if mapped { format!("[[port.map]]\nto = \"{other}\"\n") } else { String::new() };
        let config = format!(
            "[[port]]\naddress = \"{card}tap:{outer}\"\nvlan = 7\n{map}\
             [port.vxlan]\nvni = 42\nport = {PORT}\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.2\"\n\
             [[port]]\naddress = \"{other}\"\nvlan = 7\n"
        );
        std::fs::write(&file, config).expect("room for a file");
        let command = [RINGPASS, "switch", "--config", text(&file), "--json", "--hugepages", "off"];
        let switch = middle.spawn(&[&command, switch].concat());
        wait_until("the switch's first line", || !switch.line().is_empty());
        far.take(&middle, &outer, "10.0.0.2/24");
        let kind = ["ip", "link", "add", "vx", "type", "vxlan", "id", "42"];
        let ends = ["remote", "10.0.0.1", "dev", &outer, "dstport", PORT];
        far.run(&[&kind[..], &ends, device].concat());
        far.run(&["ip", "address", "add", address, "dev", "vx"]);
        far.run(&["ip", "link", "set", "vx", "up"]);
        Self { middle, far, switch }
    }

    /// Ends the switch and returns its summary, which must count more than a hundred packets in each direction.
    pub fn end(self) -> Value {
        let summary = self.switch.summary();
        let counters = &summary["ports"][0]["extended"];
        let count = |name: &str| counters[name].as_u64().unwrap_or_else(|| panic!("no {name}: {summary}"));
        assert!(count("vxlan_received") > 100 && count("vxlan_sent") > 100, "{summary}");
        assert_eq!(count("vxlan_malformed"), 0, "{summary}");
        summary
    }
}

/// Returns whether nearly all packets out of the tunnel were received into the buffers of the guest behind the
/// other port.
pub fn mapped(summary: &Value) -> bool {
    let [tunnel, guest] = [0, 1].map(|port| &summary["ports"][port]["extended"]);
    let received = tunnel["vxlan_received"].as_u64().expect("a count");
    guest["mapped_packets"].as_u64().unwrap_or(0) > received * 9 / 10
}

/// Sends pings of all sizes that a tunnel over IPv4 takes, of which none may be lost. Waits until the first one passes.
pub fn pings(from: &Namespace, to: &str) {
    pings_up_to(1422, from, to);
}

/// Sends pings of up to so many bytes, of which none may be lost. Waits until the first one passes.
pub fn pings_up_to(most: usize, from: &Namespace, to: &str) {
    wait_until("the first ping", || {
        let ping = from.spawn(&["ping", "-c", "1", "-W", "1", to]);
        ping.wait(std::time::Duration::from_secs(60)).status == Some(0)
    });
    for size in [0, 17, most].map(|size| size.to_string()) {
        let text = from.run(&["ping", "-n", "-c", "50", "-i", "0.005", "-s", &size, "-M", "do", "-w", "60", to]);
        assert!(answered(&text, 50), "{text}");
    }
}
