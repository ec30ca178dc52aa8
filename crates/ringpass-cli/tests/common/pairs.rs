//! Pairs of QEMU's own cards: one card ends in one namespace, the second in the other, and a forwarder in the
//! guest is their only connection. Pair N (from 0) carries 198.18.N.1 in `a` and 198.18.N.2 in `b`.

use std::time::Duration;

use ringpass_lab::{Builder, Guest, Job, Namespace, Program, Tap, nic_address, wait_until};
use serde_json::Value;

use super::guest::{answered, pace, tcp_from};
use super::{folder, noise, text};

/// Pings with more bytes wait for each other: when a busy machine goes on after seconds, more answers come at once than the socket of
/// ping holds.
const LARGE: u32 = 4000;

/// A guest with pairs of cards.
pub struct Pairs {
    pub a: Namespace,
    pub b: Namespace,
    pub taps: Vec<[Tap; 2]>,
    pub guest: Guest,
    /// HTTP server of `file`, in `b`.
    _server: Program,
    folder: tempfile::TempDir,
    file: Vec<u8>,
}

impl Pairs {
    /// Boots a guest with a pair of cards for each device, given as for [`Builder::nic`].
    pub fn boot<'a>(guest: Builder, devices: impl IntoIterator<Item = &'a str>) -> Self {
        let (a, b) = (Namespace::new(), Namespace::new());
        let mut taps = Vec::new();
        let guest = devices.into_iter().enumerate().fold(guest, |guest, (pair, device)| {
            let queues = if device.contains("mq=on") { 2 } else { 1 };
            let tap = |namespace, host| Tap::new(namespace, &format!("198.18.{pair}.{host}/24")).queues(queues);
            taps.push([tap(&a, 1), tap(&b, 2)]);
            let [left, right] = taps.last().unwrap();
            guest.nic(device, left).nic(device, right)
        });
        Self::over(guest.boot(), [a, b], taps)
    }

    /// Uses pairs of cards with these TAPs in two namespaces, in a running guest.
    pub fn over(guest: Guest, [a, b]: [Namespace; 2], taps: Vec<[Tap; 2]>) -> Self {
        for (pair, [left, right]) in taps.iter().enumerate() {
            a.neighbour(&left.name, &format!("198.18.{pair}.2"), &b.mac(&right.name));
            b.neighbour(&right.name, &format!("198.18.{pair}.1"), &a.mac(&left.name));
        }
        let (folder, file) = (folder(), noise(256 << 10));
        std::fs::write(folder.path().join("file"), &file).unwrap();
        let server = b.spawn(&["python3", "-u", "-m", "http.server", "8000", "--directory", text(folder.path())]);
        wait_until("the server", || server.line().contains("Serving"));
        Self { a, b, taps, guest, _server: server, folder, file }
    }

    /// Returns the PCI addresses of a pair.
    pub fn cards(pair: usize) -> [String; 2] {
        [2 * pair, 2 * pair + 1].map(nic_address)
    }

    /// Starts `ringpass fwd` between the cards of a pair, and waits until packets pass.
    pub fn forward(&self, pair: usize, user: &str, options: &str) -> Job {
        self.forward_between(&Self::cards(pair), pair, user, options)
    }

    /// Like [`forward`](Self::forward), for a pair whose cards have other PCI addresses.
    pub fn forward_between(&self, [a, b]: &[String; 2], pair: usize, user: &str, options: &str) -> Job {
        let job = self.guest.spawn(&format!(
            "echo $$ >/run/forwarder; ulimit -l 131072; exec su {user} -c 'exec ringpass fwd {a} {b} --json -v {options} 2>&1'"
        ));
        wait_until("the forwarder's first line", || {
            let text = self.guest.printed(&job);
            assert!(!text.contains("ringpass: "), "{text}");
            text.contains("\"stats\"")
        });
        self.first_ping(pair);
        job
    }

    /// Waits until packets pass between the cards of a pair.
    pub fn first_ping(&self, pair: usize) {
        wait_until("the first ping", || {
            let first = self.a.spawn(&["ping", "-c", "1", "-W", "1", &format!("198.18.{pair}.2")]);
            first.wait(Duration::from_secs(60)).status == Some(0)
        });
    }

    /// Sends a hundred pings, of which none may be lost.
    pub fn pings(&self, pair: usize) {
        self.pings_of(pair, 1000);
    }

    /// Sends a hundred pings with this many bytes of data, in one frame each; none may be lost.
    pub fn pings_of(&self, pair: usize, size: u32) {
        let far = format!("198.18.{pair}.2");
        if size > LARGE {
            let ping = format!("ping -q -c 1 -W 60 -s {size} -M do {far}");
            self.a.run(&["sh", "-c", &format!("for number in $(seq 100); do {ping} || exit 1; done")]);
            return;
        }
        let (pace, size) = (pace(size), size.to_string());
        let ping = ["ping", "-c", "100", "-s", &size, "-M", "do", "-w", "60", &far];
        let text = self.a.run(&[&ping, pace].concat());
        assert!(answered(&text, 100), "{text}");
    }

    /// Sends TCP for a second; returns the rate in Mbit/s, which must be at least 1.
    pub fn tcp(&self, pair: usize) -> f64 {
        let to = format!("198.18.{pair}.2");
        tcp_from(&self.b, || self.a.run(&["iperf3", "-c", &to, "-t", "1", "-J"]))
    }

    /// Fetches a file from one side to the other, which must arrive unchanged.
    pub fn file(&self, pair: usize) {
        let fetched = self.folder.path().join("fetched");
        let url = format!("http://198.18.{pair}.2:8000/file");
        self.a.run(&["curl", "-sS", "--max-time", "60", "-o", text(&fetched), &url]);
        assert!(std::fs::read(&fetched).unwrap() == self.file, "the file differs");
    }

    /// Ends the forwarder as Ctrl-C does; returns its output and its summary.
    pub fn end(&self, job: &Job) -> (String, Value) {
        self.guest.run("kill -INT $(cat /run/forwarder)");
        let output = self.guest.wait(job, Duration::from_secs(60));
        assert_eq!(output.status, 0, "{}", output.text);
        let summary: Value = serde_json::from_str(output.text.lines().last().unwrap()).expect("a summary");
        (output.text, summary)
    }
}
