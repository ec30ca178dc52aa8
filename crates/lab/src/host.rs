//! The host's side: network namespaces and running programs.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// Returns a name of at most 15 bytes that no other test uses.
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}{:x}{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs a command and returns its standard output. Panics if it fails.
pub fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}: {out}{err}", output.status);
    out.into_owned()
}

/// Returns the path of a file in Cargo's output folder, which `cargo build --workspace --all-targets` has built.
///
/// # Panics
///
/// If it is missing, or older than one of its sources: no test runs Cargo, which would wait for its lock.
pub fn built(file: &str) -> PathBuf {
    let binary = std::env::current_exe().expect("this binary");
    // Test binaries are in `deps`, examples in `examples`.
    let folder = binary.ancestors().nth(2).expect("Cargo's output folder");
    let path = folder.join(file);
    let build = "build it first: cargo build --workspace --all-targets";
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let time = modified(&path).unwrap_or_else(|error| panic!("{}: {error}; {build}", path.display()));
    // Cargo lists a file's sources beside it, as a rule of make.
    let rule = std::fs::read_to_string(path.with_extension("d")).unwrap_or_default();
    let sources = rule.split_once(": ").map_or("", |(_, sources)| sources).split_whitespace();
    if let Some(newer) = sources.map(Path::new).find(|source| modified(source).is_ok_and(|source| source > time)) {
        panic!("{} is older than {}; {build}", path.display(), newer.display());
    }
    path
}

/// Timeout for events that take a moment on an idle machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls `so` until it returns true. Panics after a minute.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < WAIT_TIMEOUT, "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A network namespace, removed with all its interfaces when dropped.
pub struct Namespace(pub String);

impl Namespace {
    /// Creates a namespace with loopback up and without IPv6.
    #[expect(clippy::new_without_default, reason = "it makes a namespace, which no default should")]
    pub fn new() -> Self {
        let namespace = Self(unique("rpe-"));
        run(&["ip", "netns", "add", &namespace.0]);
        // IPv6 would send packets of its own at arbitrary times.
        let disable = "cd /proc/sys/net/ipv6/conf || exit 0; echo 1 >all/disable_ipv6 && echo 1 >default/disable_ipv6";
        namespace.run(&["sh", "-c", disable]);
        namespace.run(&["ip", "link", "set", "lo", "up"]);
        namespace
    }

    fn inside<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        [&["ip", "netns", "exec", &self.0], command].concat()
    }

    /// Runs a command inside the namespace and returns its standard output. Panics if it fails.
    pub fn run(&self, command: &[&str]) -> String {
        run(&self.inside(command))
    }

    /// Starts a command inside the namespace.
    pub fn spawn(&self, command: &[&str]) -> Program {
        Program::spawn(&self.inside(command))
    }

    /// Runs `ip` for the namespace, from outside, and returns its standard output. Panics if it fails.
    pub fn ip(&self, arguments: &[&str]) -> String {
        run(&[&["ip", "-n", &self.0], arguments].concat())
    }

    /// Runs a closure on a thread in the namespace. Sockets opened there stay there.
    pub fn enter<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> R {
        let file = File::open(Path::new("/run/netns").join(&self.0)).expect("the namespace has a file");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("entering a network namespace needs CAP_SYS_ADMIN");
                inside()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves an interface here from another namespace, gives it an address and brings it up.
    pub fn take(&self, from: &Namespace, interface: &str, address: &str) {
        from.run(&["ip", "link", "set", interface, "netns", &self.0]);
        self.run(&["ip", "address", "add", address, "dev", interface]);
        self.run(&["ip", "link", "set", interface, "up"]);
    }

    fn link(&self, interface: &str) -> Value {
        let links: Value = serde_json::from_str(&self.run(&["ip", "-s", "-j", "link", "show", interface])).unwrap();
        links[0].clone()
    }

    /// Returns the MAC address of an interface.
    pub fn mac(&self, interface: &str) -> String {
        self.link(interface)["address"].as_str().expect("an address").to_owned()
    }

    /// Adds a permanent neighbour entry.
    pub fn neighbour(&self, interface: &str, address: &str, mac: &str) {
        self.run(&["ip", "neighbour", "replace", address, "lladdr", mac, "dev", interface, "nud", "permanent"]);
    }

    /// Returns one of the kernel's counters of an interface, such as `rx_packets`.
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

/// How a program has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` after a signal.
    pub status: Option<i32>,
    /// Unread lines of standard output.
    pub lines: Vec<String>,
    /// Unread lines of standard error.
    pub errors: Vec<String>,
}

impl Program {
    /// Starts a command and begins to collect its output. Panics if it cannot be started.
    pub fn spawn(command: &[&str]) -> Self {
        Self::start(Command::new(command[0]).args(&command[1..]))
            .unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]))
    }

    /// Starts a prepared command and begins to collect its output.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Ok(Self { child, lines: lines(stdout), errors: lines(stderr) })
    }

    /// Returns the next line of standard output. Panics after a minute, or if the program ends first.
    pub fn line(&self) -> String {
        self.line_or_eof().unwrap_or_else(|| panic!("no line before its end; errors: {:?}", self.said()))
    }

    /// Returns the next line of standard output, or `None` if the program ends first. Panics after a minute.
    pub fn line_or_eof(&self) -> Option<String> {
        match self.lines.recv_timeout(WAIT_TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line within {WAIT_TIMEOUT:?}; errors: {:?}", self.said()),
        }
    }

    /// Returns the lines of standard output that have arrived and were not read yet.
    pub fn lines(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Returns the lines of standard error that have arrived and were not read yet.
    pub fn said(&self) -> Vec<String> {
        self.errors.try_iter().collect()
    }

    /// Returns the exit status if the program has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Kills the program with SIGKILL and returns its exit status; it may have ended before.
    pub fn kill(&mut self) -> ExitStatus {
        let _ = self.child.kill();
        self.child.wait().expect("a child of this process")
    }

    /// Waits until a line of standard error contains `what`, and returns that line. Panics after a minute.
    pub fn wait_for_stderr(&self, what: &str) -> String {
        let limit = Instant::now() + WAIT_TIMEOUT;
        let mut said = Vec::new();
        loop {
            match self.errors.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(what) => return line,
                Ok(line) => said.push(line),
                Err(why) => panic!("it has not said {what:?} within {WAIT_TIMEOUT:?}, but {said:?} ({why})"),
            }
        }
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, given by name, such as `INT`.
    pub fn signal(&self, name: &str) {
        run(&["sh", "-c", &format!("kill -s {name} {}", self.id())]);
    }

    /// Waits until the program ends. Panics after `limit`.
    pub fn wait(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < limit, "the program still runs after {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        Ended { status: status.code(), lines: self.lines.iter().collect(), errors: self.errors.iter().collect() }
    }

    /// Ends the program as Ctrl-C does and returns its last line, which must be the summary.
    pub fn summary(self) -> Value {
        self.signal("INT");
        let Ended { status, lines, errors } = self.wait(WAIT_TIMEOUT);
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
