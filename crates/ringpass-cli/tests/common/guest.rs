//! Cards that `ringpass model` serves to guests, and the checks that the guest tests share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use ringpass_lab::{Builder, Guest, Iommu, Job, Machine, Output};
use serde_json::{Value, json};

use super::{Namespace, Program, RINGPASS, folder, text, unique, wait_until};

/// A card for a guest. Its wire ends in a namespace, with the address 198.18.N.1 for card N.
pub struct Wire {
    kind: &'static str,
    number: u8,
    options: Vec<String>,
    folder: tempfile::TempDir,
    middle: Namespace,
    pub model: Program,
    pub host: Namespace,
    pub tap: String,
}

impl Wire {
    /// Serves an 82599 as card `number`, with `options` of `ringpass model`.
    pub fn new(number: u8, options: &[&str]) -> Self {
        Self::of("82599", number, options)
    }

    /// Serves a card of this kind as card `number`.
    pub fn of(kind: &'static str, number: u8, options: &[&str]) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Self::start((kind, number), options, folder(), Namespace::new(), Namespace::new())
    }

    fn start(
        (kind, number): (&'static str, u8),
        options: Vec<String>,
        folder: tempfile::TempDir,
        middle: Namespace,
        host: Namespace,
    ) -> Self {
        let tap = unique("tg");
        let (mac, wire, socket) = (mac(number), format!("tap:{tap}"), folder.path().join("card"));
        let mut command = vec![RINGPASS, "model", kind, "--socket", text(&socket), "--wire", &wire];
        command.extend(["--mac", &mac, "--json"]);
        command.extend(options.iter().map(String::as_str));
        let model = middle.spawn(&command);
        wait_until("the model's first line", || model.line().contains("cards"));
        host.take(&middle, &tap, &format!("198.18.{number}.1/24"));
        Self { kind, number, options, folder, middle, model, host, tap }
    }

    /// Returns the socket of the card.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("card")
    }

    /// Returns the address of the far end.
    pub fn address(&self) -> String {
        format!("198.18.{}.1", self.number)
    }

    /// Kills the model and restarts it on the same socket.
    pub fn restart(self) -> Self {
        let Self { kind, number, options, folder, middle, model, host, .. } = self;
        drop(model);
        Self::start((kind, number), options, folder, middle, host)
    }

    /// Returns where a frame may have been lost, for a test that failed: the counters of the far end and of the model.
    pub fn look(&self) -> String {
        self.model.signal("USR1");
        let far = self.host.run(&["sh", "-c", "ip -s -s link; ip neighbour; nstat -a; tc -s qdisc"]);
        // The model answers the signal within a round of its statistics.
        std::thread::sleep(Duration::from_secs(1));
        let Self { kind, number, .. } = self;
        let model = self.model.lines().pop().unwrap_or_default();
        format!("{kind} {number}: far end:\n{far}\nmodel: {model}\n{}", self.model.said().join("\n"))
    }

    /// Ends the model, which prints its counters.
    pub fn counters(self) -> Value {
        let mut summary = self.model.summary();
        summary["cards"][0].take()
    }
}

/// Returns the MAC address of card `number`.
pub fn mac(number: u8) -> String {
    format!("02:00:00:00:01:{number:02x}")
}

/// In the guest: brings up the interface of card `number`, which is eth`eth` in the guest, as 198.18.N.2, with
/// Linux's driver, and waits for the link.
pub fn up(guest: &Guest, eth: u8, number: u8) {
    let start = Instant::now();
    guest.run_within(
        Duration::from_secs(180),
        &format!(
            "modprobe ixgbe || exit
             tries=0
             until ip link show eth{eth} >/dev/null 2>&1; do
                 [ $((tries += 1)) -lt 300 ] || {{ echo no eth{eth}; exit 1; }}
                 sleep 0.1
             done
             ip address replace 198.18.{number}.2/24 dev eth{eth}
             ip link set eth{eth} up || exit
             {}",
            carrier(eth)
        ),
    );
    eprintln!("eth{eth} up after {:.1} s", start.elapsed().as_secs_f64());
}

/// Returns a script that waits for the link.
pub fn carrier(eth: u8) -> String {
    format!(
        "tries=0
         until [ \"$(cat /sys/class/net/eth{eth}/carrier)\" = 1 ]; do
             [ $((tries += 1)) -lt 600 ] || {{ echo eth{eth} has no link; exit 1; }}
             sleep 0.1
         done"
    )
}

/// Returns how ping paces itself. Where its payload has room for a time it adapts to the answers: otherwise more of
/// them than its socket holds would wait for it on a busy machine.
pub fn pace(size: u32) -> &'static [&'static str] {
    if size < 16 { &["-i", "0.005"] } else { &["-A"] }
}

/// Returns whether each of the first `count` pings was answered. With a deadline (`-w`) ping waits for late
/// answers and continues sending meanwhile; without one it counts them as lost after two round trips.
pub fn answered(text: &str, count: usize) -> bool {
    let missing: Vec<_> = (1..=count).filter(|number| !text.contains(&format!("icmp_seq={number} "))).collect();
    if !missing.is_empty() {
        eprintln!("not answered: {missing:?}; {}", text.lines().rev().take(3).collect::<Vec<_>>().join("; "));
    }
    missing.is_empty()
}

/// Sends TCP to a server that stays up, as [`tcp_by`] does, for a second at a time; returns the rate in Mbit/s.
pub fn tcp_to(from: &Namespace, to: &str, options: &[&str]) -> f64 {
    tcp_by(|| from.run(&[&["iperf3", "-c", to, "-t", "1", "-J"], options].concat()))
}

/// Time limit of repeated runs of iperf3, for each of which a loaded machine may stand still.
const TRAFFIC_TIMEOUT: Duration = Duration::from_secs(600);

/// Sends TCP by an iperf3 that `client` runs with `-J`, to a server that stays up, until a megabyte has arrived or it flows at
/// 1 Mbit/s; returns the last rate in Mbit/s.
pub fn tcp_by(client: impl Fn() -> String) -> f64 {
    let (start, mut result, mut received) = (Instant::now(), Value::Null, 0);
    while start.elapsed() < TRAFFIC_TIMEOUT {
        // The server refuses clients for a moment after the previous one.
        wait_until("the iperf3 server", || {
            let text = client();
            result = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            result["start"]["connected"] != json!([])
        });
        let sum = &result["end"]["sum_received"];
        let bits = sum["bits_per_second"].as_f64().unwrap_or(0.0);
        received += sum["bytes"].as_u64().unwrap_or(0);
        if bits > 1e6 || received > 1 << 20 {
            return bits / 1e6;
        }
    }
    panic!("{received} bytes in all: {result}");
}

/// Like [`tcp_by`], with a server in `host` for this client alone.
pub fn tcp_from(host: &Namespace, client: impl Fn() -> String) -> f64 {
    tcp_by(|| served(host, &client))
}

/// Runs an iperf3 client while there is a server for it in `host`.
fn served(host: &Namespace, client: impl Fn() -> String) -> String {
    let server = host.spawn(&["iperf3", "-s", "-1", "--forceflush"]);
    wait_until("the iperf3 server", || server.line().contains("listening"));
    client()
}

/// Prints the state of the guest's drivers, and where they lost frames.
pub const LOOK: &str = "grep eth /proc/interrupts
    for name in $(ls /sys/class/net | grep eth); do
        ip -s -s link show $name
        ethtool -S $name | grep -v ': 0$'
        ethtool -d $name | grep -E 'EI[CMA]|(RD|TD)[HT]0[0:]'
    done
    cat /proc/net/softnet_stat
    tail -n 99 /sys/kernel/tracing/trace";

/// In the guest: has the kernel note each frame that it drops, with the place and the reason, for [`LOOK`].
pub const NOTE_DROPS: &str = "mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
    echo 1 >/sys/kernel/tracing/options/stacktrace
    echo 1 >/sys/kernel/tracing/events/skb/kfree_skb/enable";

/// Sends pings from the guest, of which none may be lost.
pub fn ping(guest: &Guest, address: &str, options: &str) {
    let Output { text, .. } =
        guest.output(&format!("ping -D -c 20 -w 60 -i 0.02 {options} {address}"), Duration::from_secs(120));
    if !answered(&text, 20) {
        // Also whether pings pass again without intervention.
        let again = format!("{LOOK}; ip neighbour; ping -D -c 3 {address}; {LOOK}");
        panic!("{text}\n{}", guest.output(&again, Duration::from_secs(60)).text);
    }
}

/// The sender of a TCP test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The guest.
    Guest,
    /// The namespace at the far end of the wire.
    Host,
}

/// Returns the command line of iperf3 in the guest.
fn iperf3(address: &str, sender: Sender, options: &str) -> String {
    let reverse = if sender == Sender::Host { "-R" } else { "" };
    format!("iperf3 -c {address} -J {reverse} {options}")
}

/// Sends TCP between the guest and the far end, as [`tcp_by`] does, for two seconds at a time.
pub fn tcp(guest: &Guest, host: &Namespace, address: &str, sender: Sender) {
    let rate = tcp_from(host, || guest.run(&iperf3(address, sender, "-t 2")));
    eprintln!("TCP, {sender:?} sends: {rate:.1} Mbit/s");
}

/// Sends a hundred datagrams a second for a second, again and again until nine of ten arrive.
pub fn udp(guest: &Guest, host: &Namespace, address: &str, sender: Sender) {
    let mut result = String::new();
    let start = Instant::now();
    let arrive = std::iter::from_fn(|| (start.elapsed() < TRAFFIC_TIMEOUT).then_some(())).any(|()| {
        result = served(host, || guest.run(&iperf3(address, sender, "-u -b 1M -l 1250 -t 1")));
        let value: Value = serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}: {result}"));
        let sum = &value["end"]["sum"];
        let (sent, lost) = (sum["packets"].as_u64().unwrap_or(0), sum["lost_packets"].as_u64().unwrap_or(u64::MAX));
        eprintln!("UDP, {sender:?} sends: {sent} datagrams, {lost} lost");
        sent >= 90 && lost < 10
    });
    assert!(arrive, "{result}");
}

/// Returns the driver's counters as `ethtool -S` shows them.
pub fn counters(guest: &Guest, eth: u8) -> BTreeMap<String, u64> {
    let text = guest.run(&format!("ethtool -S eth{eth}"));
    let pair = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}
