//! XDP sockets in a guest, on Linux's own drivers.

use std::path::Path;
use std::time::Duration;

use ringpass_lab::VhostUser;
use serde_json::Value;

use crate::common::guest::{Guest, Job, Wire, answered, tcp_from};
use crate::common::{Namespace, RINGPASS, folder, guest, vhost, wait_until};

/// Two namespaces whose only connection is the guest: 198.18.1.1 behind its first card, 198.18.1.3 behind the second.
struct Between<'a> {
    hosts: [&'a Namespace; 2],
    guest: &'a Guest,
    /// Names of the cards in the guest.
    cards: [&'static str; 2],
}

impl<'a> Between<'a> {
    /// Connects the namespaces, where these interfaces are the cards' wires.
    fn new(hosts: [&'a Namespace; 2], wires: [&str; 2], guest: &'a Guest, cards: [&'static str; 2]) -> Self {
        let [a, b] = hosts;
        b.run(&["ip", "address", "replace", "198.18.1.3/24", "dev", wires[1]]);
        a.neighbour(wires[0], "198.18.1.3", &b.mac(wires[1]));
        b.neighbour(wires[1], "198.18.1.1", &a.mac(wires[0]));
        Self { hosts, guest, cards }
    }

    /// Starts the forwarder between the two cards, each with these options of its address, and waits until packets pass.
    fn forward(&self, address: &str, options: &str) -> Job {
        self.forward_by(&format!("xdp:CARD{address}"), options)
    }

    /// Like [`forward`](Self::forward), with the card's name for CARD in an address.
    fn forward_by(&self, address: &str, options: &str) -> Job {
        let [a, b] = self.cards.map(|card| address.replace("CARD", card));
        let job =
            self.guest.spawn(&format!("echo $$ >/run/forwarder; exec ringpass fwd {a} {b} --json -v {options} 2>&1"));
        wait_until("the forwarder's first line", || {
            let text = self.guest.printed(&job);
            assert!(!text.contains("ringpass: "), "{text}");
            text.contains("\"stats\"")
        });
        wait_until("the first ping", || {
            let first = self.hosts[0].spawn(&["ping", "-c", "1", "-W", "1", "198.18.1.3"]);
            first.wait(Duration::from_secs(60)).status == Some(0)
        });
        job
    }

    /// Sends pings, of which none may be lost, and TCP; ends the forwarder as Ctrl-C does, and returns its output, whose last line
    /// is its summary.
    fn pass(&self, address: &str, options: &str) -> String {
        let job = self.forward(address, options);
        let [a, b] = self.hosts;
        for size in ["56", "1472"] {
            let text = a.run(&["ping", "-A", "-c", "100", "-s", size, "-M", "do", "-w", "60", "198.18.1.3"]);
            assert!(answered(&text, 100), "{text}\n{}", self.guest.printed(&job));
        }
        let rate = tcp_from(b, || a.run(&["iperf3", "-c", "198.18.1.3", "-t", "2", "-J"]));
        let text = self.end(&job);
        eprintln!("{address} {options}: TCP {rate:.0} Mbit/s\n{text}");
        assert!(!self.guest.run("ip link").contains("xdp"), "no program is left");
        text
    }

    /// Ends the forwarder as Ctrl-C does, and returns its output.
    fn end(&self, job: &Job) -> String {
        self.guest.run("kill -INT $(cat /run/forwarder)");
        let output = self.guest.wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        output.text
    }
}

#[test]
fn ixgbe_reads_and_writes_the_pools_memory() {
    // An 82599, and an X540, which counts the bytes of a buffer otherwise.
    let wires = [(1, "10fb"), (2, "1528")].map(|(number, device)| Wire::new(number, &["--device", device]));
    let [a, b] = &wires;
    let guest = Guest::new().memory(768).cpus(2).program(Path::new(RINGPASS));
    let guest = guest.card(&a.socket()).card(&b.socket()).boot();
    (0..2).for_each(|eth| guest::up(&guest, eth, eth + 1));
    let between = Between::new([&a.host, &b.host], [&a.tap, &b.tap], &guest, ["eth0", "eth1"]);
    // Buffers of a page each, then unaligned ones on huge pages; frames that come to either queue.
    for (pages, options) in [(0, "--queues 2 --hugepages off"), (64, "--queues 2 --hugepages on")] {
        guest.run(&format!("echo {pages} >/proc/sys/vm/nr_hugepages"));
        let text = between.pass(",zerocopy", options);
        for card in between.cards {
            assert!(text.contains(&format!("xdp:{card}: XDP in native mode, zero-copy")), "{text}");
        }
        let summary: Value = serde_json::from_str(text.lines().last().unwrap()).expect("a summary");
        let queues = summary["ports"][0]["queues"].as_array().expect("its queues");
        assert!(queues.iter().any(|queue| queue["rx_packets"].as_u64() > Some(100)), "{summary}");
        let count = |port: &Value, name: &str| port[name].as_u64().expect("a number");
        for port in summary["ports"].as_array().expect("two ports") {
            let packets = count(port, "rx_packets") + count(port, "tx_packets");
            let wakeups = count(&port["extended"], "wakeups");
            eprintln!("{options}: {}: {wakeups} system calls for {packets} packets", port["name"]);
        }
    }
    let text = between.pass(",copy", "--queues 2");
    assert!(text.contains("copy mode"), "{text}");
}

/// Prints how many frames of 60 bytes a second a guest with one processor forwards between two 82599.
#[test]
#[ignore = "a measurement"]
fn frames_a_second_beside_packet_sockets() {
    const TIME: Duration = Duration::from_secs(4);
    let wires = [1, 2].map(|number| Wire::new(number, &[]));
    let [a, b] = &wires;
    let guest = Guest::new().memory(768).program(Path::new(RINGPASS));
    let guest = guest.card(&a.socket()).card(&b.socket()).boot();
    (0..2).for_each(|eth| guest::up(&guest, eth, eth + 1));
    let between = Between::new([&a.host, &b.host], [&a.tap, &b.tap], &guest, ["eth0", "eth1"]);
    for round in 0..3 {
        for address in ["packet:CARD", "xdp:CARD,copy", "xdp:CARD,zerocopy"] {
            let job = between.forward_by(address, "--hugepages off");
            let port = format!("packet:{}", a.tap);
            let sender = a.host.spawn(&[RINGPASS, "pktgen", &port, "--size", "60", "--time", "8", "--json"]);
            std::thread::sleep(Duration::from_secs(2));
            let before = b.host.counter(&b.tap, "rx_packets");
            std::thread::sleep(TIME);
            let frames = b.host.counter(&b.tap, "rx_packets") - before;
            eprintln!("round {round}, {address}: {} frames a second", frames / TIME.as_secs());
            sender.wait(Duration::from_secs(60));
            between.end(&job);
        }
    }
}

#[test]
fn virtio_net_on_our_back_end() {
    let folder = folder();
    let sockets = [1, 2].map(|number| vhost::socket(&folder, number));
    let backends = [(1, &sockets[0]), (2, &sockets[1])];
    let backends = backends.map(|(number, socket)| vhost::Backend::new(number, &vhost::vhost(socket), "--queues 4"));
    let mut builder = Guest::new().memory(512).cpus(2).program(Path::new(RINGPASS));
    for socket in &sockets {
        // A queue for each processor, and as many for what a program redirects to the card.
        builder = builder.vhost_user_nic("virtio-net-pci,mq=on,vectors=10", &VhostUser::at(socket).queues(4));
    }
    let guest = builder.boot();
    guest.run("modprobe virtio_net");
    (0..2).for_each(|card| vhost::up(&guest, card, card as u8 + 1));
    let [a, b] = &backends;
    let between = Between::new([&a.host, &b.host], [&a.tap, &b.tap], &guest, ["v1", "v2"]);
    let look =
        |arguments: &str| guest.output(&format!("ringpass fwd {arguments} -v --time 1 2>&1"), Duration::from_secs(60));
    // With a program, the driver also receives on the queues for what is redirected, where the kernel does not send.
    let extra = look("xdp:v1 null --queues 2");
    assert!(extra.text.contains("the interface has 4 queues, and frames of all but the first 2 go"), "{extra:?}");
    assert!(look("xdp:v1 null --queues 4").text.contains("2 queue(s), not 4"));
    guest.run("ethtool -L v1 combined 4; ethtool -L v2 combined 4");
    for (address, says) in [("", "native mode, copy mode"), (",mode=generic", "generic mode, copy mode")] {
        let text = between.pass(address, "--queues 4");
        assert!(text.contains(&format!("xdp:v1: XDP in {says}")), "{text}");
    }
    let refused = look("xdp:v1,zerocopy null");
    assert!(refused.status == 1 && refused.text.contains("leave zerocopy out"), "{refused:?}");
}
