//! Network namespaces, running programs and JSON lines for the end-to-end tests.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A name of at most 15 bytes that no other test has.
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}{:x}{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs a command that must succeed and returns what it prints.
pub fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}(namespaces need root)");
    out.into_owned()
}

/// Waits until something is so; fails after 20 seconds.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A network namespace, removed with all its interfaces when dropped.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new() -> Self {
        let namespace = Self(unique("rpe-"));
        run(&["ip", "netns", "add", &namespace.0]);
        // IPv6 would send packets of its own, at times of its own.
        for which in ["all", "default"] {
            namespace.run(&["sysctl", "-q", "-w", &format!("net.ipv6.conf.{which}.disable_ipv6=1")]);
        }
        namespace.run(&["ip", "link", "set", "lo", "up"]);
        namespace
    }

    fn inside<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        [&["ip", "netns", "exec", &self.0], command].concat()
    }

    /// Runs a command inside, to its end.
    pub fn run(&self, command: &[&str]) -> String {
        run(&self.inside(command))
    }

    /// Starts a command inside.
    pub fn spawn(&self, command: &[&str]) -> Program {
        Program::spawn(&self.inside(command))
    }

    /// Moves an interface here from another namespace, and gives it an address.
    pub fn take(&self, from: &Namespace, interface: &str, address: &str) {
        from.run(&["ip", "link", "set", interface, "netns", &self.0]);
        self.run(&["ip", "address", "add", address, "dev", interface]);
        self.run(&["ip", "link", "set", interface, "up"]);
    }

    fn link(&self, interface: &str) -> Value {
        let links: Value = serde_json::from_str(&self.run(&["ip", "-s", "-j", "link", "show", interface])).unwrap();
        links[0].clone()
    }

    /// The hardware address of an interface.
    pub fn mac(&self, interface: &str) -> String {
        self.link(interface)["address"].as_str().expect("an address").to_owned()
    }

    /// Tells the kernel who has an address, for good.
    pub fn neighbour(&self, interface: &str, address: &str, mac: &str) {
        self.run(&["ip", "neighbour", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent"]);
    }

    /// One of the kernel's counters of an interface.
    pub fn counter(&self, interface: &str, counter: &str) -> u64 {
        let link = self.link(interface);
        let (direction, what) = counter.split_once('_').unwrap();
        link["stats64"][direction][what].as_u64().unwrap_or_else(|| panic!("no counter {counter}: {link}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A running program, killed when dropped.
pub struct Program {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

impl Program {
    pub fn spawn(command: &[&str]) -> Self {
        let child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]));
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self { child, lines: lines(stdout), errors: lines(stderr) }
    }

    /// The next line of standard output, waited for at most 20 seconds.
    pub fn line(&self) -> String {
        let line = self.lines.recv_timeout(Duration::from_secs(20));
        line.unwrap_or_else(|_| panic!("no line within 20 s; errors: {:?}", self.errors.try_iter().collect::<Vec<_>>()))
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, name: &str) {
        run(&["kill", "-s", name, &self.id().to_string()]);
    }

    /// Waits for the end, at most `limit`; the exit status and all lines of standard output and error that were not
    /// read yet.
    pub fn wait(mut self, limit: Duration) -> (Option<i32>, Vec<String>, Vec<String>) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < limit, "the program still runs after {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        (status.code(), self.lines.iter().collect(), self.errors.iter().collect())
    }

    /// Ends it as Ctrl-C does and returns its last line, which must be the summary.
    pub fn summary(self) -> Value {
        self.signal("INT");
        let (status, lines, errors) = self.wait(Duration::from_secs(10));
        assert_eq!(status, Some(0), "{errors:?}");
        let summary: Value = serde_json::from_str(lines.last().expect("a summary")).unwrap();
        assert_eq!(summary["event"], "summary");
        summary
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program under test. A namespace's `ip netns exec` replaces itself by it, so that signals reach it.
pub const RINGPASS: &str = env!("CARGO_BIN_EXE_ringpass");

/// Runs ringpass to its end: exit status, standard output, standard error.
pub fn ringpass(arguments: &[&str]) -> (Option<i32>, String, String) {
    let (status, lines, errors) = Program::spawn(&[&[RINGPASS], arguments].concat()).wait(Duration::from_secs(60));
    (status, lines.join("\n"), errors.join("\n"))
}

/// A folder of the test's own, removed when dropped.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Bytes that do not repeat soon.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

/// Two namespaces, `a` with 198.18.0.1 and `b` with 198.18.0.2, whose only connection is ringpass in `middle`: TAP, wire of
/// a software card, driver, forwarder, driver, wire, TAP.
pub struct Lab {
    pub a: Namespace,
    pub b: Namespace,
    pub middle: Namespace,
    pub left: String,
    pub right: String,
    pub forwarder: Program,
}

impl Lab {
    /// `wrap` makes a port's address from that of its card; `options` are added to the command line.
    pub fn new(wrap: impl Fn(&str, &str) -> String, options: &[&str]) -> Self {
        let (a, b, middle) = (Namespace::new(), Namespace::new(), Namespace::new());
        let (left, right) = (unique("tl"), unique("tr"));
        let ports = [wrap("left", &format!("model:tap:{left}")), wrap("right", &format!("model:tap:{right}"))];
        let command = [&[RINGPASS, "fwd", &ports[0], &ports[1], "--json"], options].concat();
        let forwarder = middle.spawn(&command);
        until("the forwarder's first line", || !forwarder.line().is_empty());
        a.take(&middle, &left, "198.18.0.1/24");
        b.take(&middle, &right, "198.18.0.2/24");
        // No ARP: its frames are shorter than Ethernet's shortest, and grow on the wire where the kernel does not count.
        a.neighbour(&left, "198.18.0.2", &b.mac(&right));
        b.neighbour(&right, "198.18.0.1", &a.mac(&left));
        let lab = Self { a, b, middle, left, right, forwarder };
        until("the first ping", || {
            let ping =
                Command::new("ip").args(["netns", "exec", &lab.a.0, "ping", "-c1", "-W1", "198.18.0.2"]).output();
            ping.is_ok_and(|output| output.status.success())
        });
        lab
    }
}
