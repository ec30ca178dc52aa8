//! The host's side: network namespaces, and running programs.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
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
    assert!(output.status.success(), "{command:?}: {}: {out}{err}", output.status);
    out.into_owned()
}

/// How long somebody waits for what is there in a moment, on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so; fails after a minute.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A network namespace, removed with all its interfaces when dropped.
pub struct Namespace(pub String);

impl Namespace {
    /// Makes one, with loopback up and without IPv6.
    #[expect(clippy::new_without_default, reason = "it makes a namespace, which no default should")]
    pub fn new() -> Self {
        let namespace = Self(unique("rpe-"));
        run(&["ip", "netns", "add", &namespace.0]);
        // IPv6 would send packets of its own, at times of its own.
        let disable = "cd /proc/sys/net/ipv6/conf || exit 0; echo 1 >all/disable_ipv6 && echo 1 >default/disable_ipv6";
        namespace.run(&["sh", "-c", disable]);
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
    /// Starts a command, whose lines are collected from now on.
    pub fn spawn(command: &[&str]) -> Self {
        Self::start(Command::new(command[0]).args(&command[1..]))
            .unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]))
    }

    /// Starts a command that was prepared otherwise, whose lines are collected from now on.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Ok(Self { child, lines: lines(stdout), errors: lines(stderr) })
    }

    /// The next line of standard output, waited for at most a minute.
    pub fn line(&self) -> String {
        self.line_or_end().unwrap_or_else(|| panic!("no line before its end; errors: {:?}", self.said()))
    }

    /// Likewise; none if it ends before it has printed one.
    pub fn line_or_end(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line within {PATIENCE:?}; errors: {:?}", self.said()),
        }
    }

    /// The lines of standard output that have come and were not read yet.
    pub fn lines(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// The lines of standard error that have come and were not read yet.
    pub fn said(&self) -> Vec<String> {
        self.errors.try_iter().collect()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Kills it with SIGKILL. Returns how it ended, which may have been before.
    pub fn kill(&mut self) -> ExitStatus {
        let _ = self.child.kill();
        self.child.wait().expect("a child of this process")
    }

    /// Waits until standard error has a line with this, at most a minute.
    pub fn says(&self, what: &str) {
        let limit = Instant::now() + PATIENCE;
        let next = || self.errors.recv_timeout(limit.saturating_duration_since(Instant::now()));
        while !next().unwrap_or_else(|_| panic!("it has not said {what:?} within {PATIENCE:?}")).contains(what) {}
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, name: &str) {
        run(&["sh", "-c", &format!("kill -s {name} {}", self.id())]);
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
        let (status, lines, errors) = self.wait(PATIENCE);
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
