//! XDP sockets in a guest, on Linux's own drivers, whose cards read and write Ringpass's memory.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::common::guest::{Guest, Job, Wire, answered, tcp_from, up};
use crate::common::{RINGPASS, wait_until};

/// Two namespaces whose only connection is the guest: 198.18.1.1 behind the first card, 198.18.1.3 behind the second.
struct Between {
    wires: [Wire; 2],
    guest: Guest,
}

impl Between {
    fn boot(device: &str) -> Self {
        let wires = [1, 2].map(|number| Wire::new(number, &["--device", device]));
        let [a, b] = &wires;
        b.host.run(&["ip", "address", "replace", "198.18.1.3/24", "dev", &b.tap]);
        a.host.neighbour(&a.tap, "198.18.1.3", &b.host.mac(&b.tap));
        b.host.neighbour(&b.tap, "198.18.1.1", &a.host.mac(&a.tap));
        let guest = Guest::new().memory(768).cpus(2).program(Path::new(RINGPASS));
        let guest = guest.card(&a.socket()).card(&b.socket()).boot();
        (0..2).for_each(|eth| up(&guest, eth, eth + 1));
        Self { wires, guest }
    }

    /// Starts the forwarder between the two cards, and waits until packets pass.
    fn forward(&self, address: &str, options: &str) -> Job {
        let [a, b] = ["eth0", "eth1"].map(|name| address.replace("NAME", name));
        let job =
            self.guest.spawn(&format!("echo $$ >/run/forwarder; exec ringpass fwd {a} {b} --json -v {options} 2>&1"));
        wait_until("the forwarder's first line", || {
            let text = self.guest.printed(&job);
            assert!(!text.contains("ringpass: "), "{text}");
            text.contains("\"stats\"")
        });
        wait_until("the first ping", || {
            let first = self.wires[0].host.spawn(&["ping", "-c", "1", "-W", "1", "198.18.1.3"]);
            first.wait(Duration::from_secs(60)).status == Some(0)
        });
        job
    }

    fn traffic(&self, job: &Job) -> f64 {
        let [a, b] = &self.wires;
        for size in ["56", "1472"] {
            let text = a.host.run(&["ping", "-A", "-c", "100", "-s", size, "-M", "do", "-w", "60", "198.18.1.3"]);
            assert!(answered(&text, 100), "{text}\n{}", self.guest.printed(job));
        }
        tcp_from(&b.host, || a.host.run(&["iperf3", "-c", "198.18.1.3", "-t", "2", "-J"]))
    }

    /// Ends the forwarder as Ctrl-C does; returns its output and its summary.
    fn end(&self, job: &Job) -> (String, Value) {
        self.guest.run("kill -INT $(cat /run/forwarder)");
        let output = self.guest.wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        let summary = serde_json::from_str(output.text.lines().last().unwrap()).expect("a summary");
        (output.text, summary)
    }
}

#[test]
fn ixgbe_reads_and_writes_the_pools_memory() {
    let between = Between::boot("10fb");
    // Buffers of a page each, then unaligned ones on huge pages.
    for (pages, options) in [(0, "--queues 2 --hugepages off"), (64, "--queues 2 --hugepages on")] {
        between.guest.run(&format!("echo {pages} >/proc/sys/vm/nr_hugepages"));
        let job = between.forward("xdp:NAME,zerocopy", options);
        let rate = between.traffic(&job);
        let (text, summary) = between.end(&job);
        eprintln!("{options}: TCP by two XDP sockets {rate:.0} Mbit/s; {summary}\n{text}");
        for name in ["eth0", "eth1"] {
            assert!(text.contains(&format!("xdp:{name}: XDP in native mode, zero-copy")), "{text}");
        }
        assert!(!between.guest.run("ip link").contains("xdp"), "no program is left");
    }
}
