//! Rings of the host's stack: the kernel's own traffic through programs between a port and its host rings.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::guest::{answered, tcp_from};
use crate::common::netmap::{Netmapd, frame, put, receive};
use crate::common::{Namespace, Program, flood, unique, wait_until};
use ringpass_netmap::client::{Client, Port};
use ringpass_netmap::layout::FORWARD;
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, Register, register};
use ringpass_netmap::{Flags, Slot};
use serde_json::Value;

/// Kernel of another machine – TAP – port `x` of netmapd – TAP – kernel of this machine.
struct HostLab {
    netmapd: Netmapd,
    far: Namespace,
    host: Namespace,
    taps: [String; 2],
}

impl HostLab {
    /// `port` is the prefix of the address of the port: the TAP of the other machine is behind it.
    fn new(port: &str) -> Self {
        let taps = [unique("nh"), unique("nh")];
        let [port, to_host] = [format!("x={port}tap:{}", taps[0]), format!("x=tap:{}", taps[1])];
        let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &port, "--host", &to_host]);
        let (far, host) = (Namespace::new(), Namespace::new());
        far.take(&netmapd.namespace, &taps[0], "198.18.0.1/24");
        host.take(&netmapd.namespace, &taps[1], "198.18.0.2/24");
        let lab = Self { netmapd, far, host, taps };
        lab.wait_for_ping();
        lab
    }

    fn wait_for_ping(&self) {
        wait_until("a ping", || {
            let ping = self.host.spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.1"]);
            ping.wait(Duration::from_secs(10)).status == Some(0)
        });
    }

    fn ping(&self, count: u32) {
        flood(&self.host, &self.taps[1], "198.18.0.1", count, &[]);
    }

    fn bridge(&self, ports: [&str; 2]) -> Program {
        let bridge = self.netmapd.spawn(&["bridge", ports[0], ports[1]]);
        let registrations = || self.netmapd.native()["programs"]["registrations"] == 2;
        wait_until("the bridge", registrations);
        bridge
    }

    fn tcp(&self) {
        for direction in [&[][..], &["-R"]] {
            let client = [&["iperf3", "-c", "198.18.0.1", "-t", "2", "-J"], direction].concat();
            let rate = tcp_from(&self.far, || self.host.run(&client));
            println!("iperf3 {direction:?}: {rate:.0} Mbit/s");
        }
    }

    fn end(self) {
        wait_until("all buffers", || self.netmapd.all_free());
        self.netmapd.end();
    }
}

/// Returns whether a program's frames were counted at the rings of the queue, and at those of the host.
fn programs_frames(lab: &HostLab) -> [Option<u64>; 2] {
    let counters = &lab.netmapd.native()["programs"]["counters"];
    [0, 1].map(|rings| counters[rings]["rx_packets"].as_u64())
}

fn a_bridge_carries_the_machines_traffic(port: &str, exchanges: bool) {
    let lab = HostLab::new(port);
    assert_eq!(lab.netmapd.native()["status"]["exchanges"], exchanges);
    assert_eq!(lab.netmapd.native()["programs"], Value::Null, "port and host are connected without a program");
    let bridge = lab.bridge(["netmap:x", "netmap:x^"]);
    lab.ping(10_000);
    let passed = programs_frames(&lab);
    assert!(passed.iter().all(|frames| *frames >= Some(10_000)), "{passed:?}");
    lab.tcp();
    assert_eq!(lab.netmapd.native()["status"]["host"]["link"], true);
    bridge.signal("KILL");
    drop(bridge);
    wait_until("the bridge's end", || lab.netmapd.native()["programs"].is_null());
    lab.wait_for_ping();
    lab.end();
}

#[test]
fn a_bridge_to_the_host_exchanges_buffers_with_a_card() {
    a_bridge_carries_the_machines_traffic("model:", true);
}

#[test]
fn a_bridge_to_the_host_of_any_other_port() {
    a_bridge_carries_the_machines_traffic("", false);
}

/// A program that has the port's rings keeps the host out of the network; one that has the host's rings only gets what the host
/// sends, while the host receives what the port does.
#[test]
fn rings_that_programs_have_decide_where_frames_go() {
    let lab = HostLab::new("model:");
    let ping = || {
        let ping = lab.host.spawn(&["ping", "-c", "2", "-i", "0.2", "-W", "1", "198.18.0.1"]);
        ping.wait(Duration::from_secs(10)).status == Some(0)
    };
    let own = lab.netmapd.open("netmap:x");
    assert!(!ping(), "the program has the port");
    drop(own);
    lab.wait_for_ping();
    let host = lab.netmapd.open("netmap:x^/R");
    assert_eq!((host.tx().len(), host.rx().len(), host.granted().host_rings), (0, 1, [1; 2]));
    assert!(!ping(), "the program has the host's rings");
    let frames = receive(&host, Duration::from_secs(1));
    assert!(frames.iter().any(|frame| frame.len() >= 42), "it gets what the host sends");
    let received = || lab.host.counter(&lab.taps[1], "rx_packets");
    let before = received();
    lab.far.spawn(&["ping", "-c", "3", "-i", "0.2", "-W", "1", "198.18.0.2"]).wait(Duration::from_secs(10));
    assert!(received() >= before + 3, "the host receives what the port does");
    drop(host);
    lab.wait_for_ping();
    lab.end();
}

/// Frames that a program passes on (NR_FORWARD, NS_FORWARD) reach the other side without being sent by it.
#[test]
fn frames_are_passed_on() {
    for port in ["model:", ""] {
        let lab = HostLab::new(port);
        let both = lab.netmapd.open("netmap:x*");
        assert_eq!((both.tx().len(), both.rx().len()), (2, 2));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.rx().iter().for_each(|ring| ring.ring().header().flags.store(FORWARD, Relaxed));
                while !stop.load(Relaxed) {
                    both.wait(both.rx().iter(), Duration::from_millis(50)).expect("a server");
                    for ring in both.rx() {
                        let own = ring.own();
                        for position in ring.first(own) {
                            let slot = ring.ring().slot(position);
                            ring.ring().set(position, Slot { flags: Flags::FORWARD, ..slot });
                        }
                        ring.release_slots(own);
                        ring.sync().expect("a ring");
                    }
                }
            });
            let pings = lab.host.run(&["ping", "-A", "-n", "-c", "200", "-s", "1400", "-w", "60", "198.18.0.1"]);
            stop.store(true, Relaxed);
            assert!(answered(&pings, 200), "{pings}");
        });
        drop(both);
        lab.end();
    }
}

/// As many host rings as a program requests, of which each takes part.
#[test]
fn several_host_rings() {
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", "x=null", "--host", "x=model:null"]);
    let name = "netmap:x*".parse().expect("a name");
    let more = Register { host_rings: [3, 2], ..Default::default() };
    let port = Port::open(&name, &netmapd.socket, more).expect("a port");
    assert_eq!((port.granted().host_rings, port.tx().len(), port.rx().len()), ([3, 2], 4, 3));
    let second = netmapd.open("netmap:x^2");
    assert_eq!((second.tx().len(), second.rx().len()), (1, 1));
    // A wire that returns what is sent stands for the host's stack.
    for (ring, sent) in port.tx()[1..].iter().zip(1..) {
        put(&port, ring, &frame(1, 2, sent));
        ring.sync().expect("a ring");
    }
    let counters = || netmapd.native()["programs"]["counters"][1].clone();
    wait_until("frames of all rings", || counters()["rx_packets"] == 3);
    drop((port, second));
    netmapd.end();
}

/// A program whose frames have headers, such as a guest, requests segmentation, which a native port on the same switch lacks: the
/// kernel behind it receives whole segments with the right checksums.
#[test]
fn segmentation_for_a_native_port_on_a_switch() {
    let tap = unique("nh");
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &format!("x=model:tap:{tap}")]);
    let far = Namespace::new();
    far.take(&netmapd.namespace, &tap, "198.18.0.1/24");
    assert_eq!(netmapd.vale(&["attach", "vale0:x"]).0, Some(0));
    let name = "vale0:vm".parse().expect("a name");
    let more = Register { flags: register::ACCEPTS_VNET_HEADER, ..Default::default() };
    let port = Port::open(&name, &netmapd.socket, more).expect("a port");
    let set = Request::new(Kind::PortHdrSet, "vale0:vm", &12u32.to_le_bytes());
    Client::connect(&netmapd.socket).expect("a server").ask(&set).expect("headers");
    let segments = || {
        let counters = far.run(&["cat", "/proc/net/snmp"]);
        let mut tcp = counters.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let names: Vec<String> = tcp.next().expect("names").split(' ').map(str::to_owned).collect();
        let values: Vec<u64> = tcp.next().expect("values").split(' ').map(|value| value.parse().unwrap_or(0)).collect();
        ["InSegs", "InErrs"].map(|name| values[names.iter().position(|other| other == name).expect("a counter")])
    };
    let to: Vec<u8> = far.mac(&tap).split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    let frame = tcp(&to, 20_000);
    let header = [1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0, 0, 0];
    let before = segments();
    let bytes = [&header[..], &frame].concat();
    let pieces = bytes.chunks(2048);
    let last = pieces.len() - 1;
    let ring = &port.tx()[0];
    for (n, piece) in pieces.enumerate() {
        let (position, _) = put(&port, ring, piece);
        let slot = ring.ring().slot(position);
        let flags = if n < last { Flags::MORE_FRAGMENTS } else { Flags::default() };
        ring.ring().set(position, Slot { flags, ..slot });
    }
    ring.sync().expect("a ring");
    wait_until("twenty segments", || segments()[0] - before[0] == 20);
    assert_eq!(segments()[1], before[1], "no segment has errors");
    drop(port);
    netmapd.end();
}

/// A TCP segment from 198.18.0.2 to 198.18.0.1 with this many bytes, and the checksum of its pseudo header only.
fn tcp(to: &[u8], payload: usize) -> Vec<u8> {
    let len = (20 + payload) as u16;
    let total = (20 + len).to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 2, 198, 18, 0, 1];
    let fold = |bytes: &[u8]| {
        let sum: u32 = bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let checksum = !fold(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let pseudo = fold(&[&ip[12..20], &[0, 6], &len.to_be_bytes()].concat());
    let mut tcp = vec![0x10, 0, 0x10, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 4, 0, 0, 0, 0, 0];
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    [to, &[2, 0, 0, 0, 0, 9, 8, 0], &ip, &tcp, &vec![7; payload]].concat()
}
