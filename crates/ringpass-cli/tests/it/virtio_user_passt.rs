//! `virtio-user:` with passt as its back-end: TCP between a TAP of one namespace and the sockets of another.
//!
//! passt does not offer GUEST_CSUM, and leaves out the checksums of frames that it marks as verified.

use crate::common::*;
use ringpass_lab::passt;
use serde_json::Value;
use tempfile::TempDir;

/// Namespace `inner` – TAP – `fwd` – `virtio-user:` – passt – sockets of namespace `outer`.
struct Rig {
    inner: Namespace,
    outer: Namespace,
    forwarder: Program,
    _passt: Program,
    _folder: TempDir,
}

/// Address of the TAP, which is the address of `outer` as passt assigns it; and address of passt, which stands
/// for the loopback of `outer`.
const INNER: &str = "198.18.7.2";
const GATEWAY: &str = "198.18.7.1";

impl Rig {
    fn new(options: &[&str]) -> Self {
        let (inner, outer, folder) = (Namespace::new(), Namespace::new(), folder());
        // passt takes its addresses from this interface.
        outer.run(&["ip", "link", "add", "outer0", "type", "veth", "peer", "name", "outer1"]);
        outer.run(&["ip", "address", "add", &format!("{INNER}/24"), "dev", "outer0"]);
        ["outer0", "outer1"].iter().for_each(|end| _ = outer.run(&["ip", "link", "set", end, "up"]));
        outer.run(&["ip", "route", "add", "default", "via", GATEWAY]);
        // Needed for passt's pings.
        outer.run(&["sysctl", "-q", "-w", "net.ipv4.ping_group_range=0 2147483647"]);
        let socket = folder.path().join("passt");
        let path = text(&socket);
        let command = passt(&["--foreground", "--vhost-user", "--socket", path, "--runas", "0", "-4", "-t", "8001"]);
        let serving = outer.spawn(&command.iter().map(String::as_str).collect::<Vec<_>>());
        // Sockets are listed by namespace: number, references, protocol, flags (this one is SO_ACCEPTCON), …,
        // path.
        let listens = |line: &str| line.ends_with(path) && line.split(' ').nth(3) == Some("00010000");
        wait_until("passt's socket", || outer.run(&["cat", "/proc/net/unix"]).lines().any(listens));
        let tap = unique("tp");
        let ports = [format!("virtio-user:{path}"), format!("tap:{tap}")];
        let forwarder = inner.spawn(&[&[RINGPASS, "fwd", &ports[0], &ports[1], "--json"], options].concat());
        wait_until("the forwarder's first line", || !forwarder.line().is_empty());
        inner.run(&["ip", "address", "add", &format!("{INNER}/24"), "dev", &tap]);
        inner.run(&["ip", "link", "set", &tap, "up"]);
        inner.run(&["ip", "route", "add", "default", "via", GATEWAY]);
        Self { inner, outer, forwarder, _passt: serving, _folder: folder }
    }

    /// Fetches a file from a server in one namespace in another; returns the rate in bits per second.
    fn fetch(server: &Namespace, bind: &str, port: &str, client: &Namespace, from: &str, len: usize) -> f64 {
        let (served, fetched) = (folder(), folder());
        let (content, file) = (noise(len), fetched.path().join("file"));
        std::fs::write(served.path().join("file"), &content).unwrap();
        let python = ["python3", "-u", "-m", "http.server", port, "--bind", bind, "--directory", text(served.path())];
        let http = server.spawn(&python);
        wait_until("the server", || http.line().contains("Serving"));
        let url = format!("http://{from}:{port}/file");
        let speed =
            client.run(&["curl", "-sS", "--max-time", "120", "-o", text(&file), "-w", "%{speed_download}", &url]);
        assert!(std::fs::read(&file).unwrap() == content, "the file differs");
        8.0 * speed.parse::<f64>().expect("a speed")
    }
}

/// In both directions, with and without offloads on our side: frames received from passt have checksums when
/// they leave.
#[test]
fn tcp_passes_through_passt_both_ways() {
    for options in [&[][..], &["--offloads", "checksum,tso"]] {
        let rig = Rig::new(options);
        rig.inner.run(&["ping", "-c1", "-W10", GATEWAY]);
        let inwards = Rig::fetch(&rig.outer, "127.0.0.1", "8000", &rig.inner, GATEWAY, 4 << 20);
        let outwards = Rig::fetch(&rig.inner, INNER, "8001", &rig.outer, "127.0.0.1", 1 << 20);
        println!("{options:?}: {:.0} Mbit/s from passt, {:.0} to it", inwards / 1e6, outwards / 1e6);
        let summary = rig.forwarder.summary();
        let drops = |port: usize, what: &str| summary["ports"][port][what].as_u64();
        assert_eq!((drops(0, "rx_drops"), drops(0, "tx_drops")), (Some(0), Some(0)), "{summary}");
        assert_ne!(summary["ports"][0]["rx_packets"], Value::from(0));
    }
}
