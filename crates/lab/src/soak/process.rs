//! Processes of the soak: starting them, and reading the output and resource usage of the long-lived ones.

use std::collections::VecDeque;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::Settings;
use crate::Program;

/// Starts the processes of the soak.
pub struct Launcher {
    ringpass: PathBuf,
    /// The server of descriptors, a netmap program.
    descriptor_server: PathBuf,
    folder: PathBuf,
    /// Seconds after which a process ends on its own in case the soak is killed: for peers, and for long-lived
    /// processes.
    limits: [u64; 2],
}

impl Launcher {
    /// Compiles the netmap program among the processes.
    pub fn new(settings: &Settings, folder: &Path) -> io::Result<Self> {
        let limits = [120, settings.time.as_secs() + 1200];
        let descriptor_server = folder.join("descriptor-server");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "-o"]).arg(&descriptor_server).arg(DESCRIPTOR_SERVER);
        if !compiler.status()?.success() {
            return Err(io::Error::other("the server of descriptors does not compile"));
        }
        Ok(Self { ringpass: settings.ringpass.clone(), descriptor_server, folder: folder.to_owned(), limits })
    }

    /// Returns the path of a socket in the soak's folder.
    pub fn socket(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Adds the program with `arguments` to a command. It gets its own process group, because Ctrl-C is meant for
    /// the soak alone. Its netmap ports are served at the socket named `netmap`.
    fn command(&self, mut command: Command, arguments: &[String], netmap: &str) -> Command {
        command.args(arguments).process_group(0);
        command.env("RINGPASS_NETMAP_SOCKET", self.folder.join(netmap)).env("RUST_LOG", "ringpass::ports=debug");
        command
    }

    /// Starts a process that will be killed. It has a low priority, so that the long-lived processes wait for peers
    /// and not for a CPU.
    pub fn peer(&self, arguments: &[String], netmap: &str) -> io::Result<Program> {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]);
        if arguments == [SERVE_DESCRIPTORS] {
            let library = self.ringpass.with_file_name("libringpass_netmap.so");
            return Program::start(
                self.command(nice, &[], netmap).arg(&self.descriptor_server).env("LD_PRELOAD", library),
            );
        }
        nice.arg(&self.ringpass);
        let mut command = self.command(nice, arguments, netmap);
        Program::start(command.args(["--json", "--time", &self.limits[0].to_string()]))
    }

    /// Starts a long-lived process and waits until it is up.
    pub fn long_lived(&self, name: &'static str, arguments: &[&str]) -> io::Result<LongLived> {
        self.starting(name, arguments)?.started()
    }

    /// Starts a long-lived process and does not wait.
    pub fn starting(&self, name: &'static str, arguments: &[&str]) -> io::Result<LongLived> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut command = self.command(Command::new(&self.ringpass), &arguments, NETMAP);
        // glibc keeps arenas and stacks of threads that have ended, for later ones. Their number is bounded, but they
        // would hide a mapping that leaks now and then.
        command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.pthread.stack_cache_size=0");
        let program = Program::start(command.args(["--json", "--time", &self.limits[1].to_string()]))?;
        Ok(LongLived { name, program, event: Value::Null, longest_ms: 0.0, said: VecDeque::new() })
    }

    /// Returns the statistics that `netmapd` reports.
    pub fn netmap_status(&self) -> Option<Value> {
        let command = Command::new(&self.ringpass);
        let output = self.command(command, &["vale".into(), "--json".into()], NETMAP).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }
}

/// Source of the server of descriptors.
const DESCRIPTOR_SERVER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../netmap/netmap-preload/tests/c/descriptor_server.c");
/// Command of the server of descriptors.
pub const SERVE_DESCRIPTORS: &str = "serve descriptors";
/// Socket name of the long-lived netmap server.
pub const NETMAP: &str = "netmap";

/// A process that runs during the whole soak.
pub struct LongLived {
    pub name: &'static str,
    pub program: Program,
    /// Last statistics event, as JSON.
    pub event: Value,
    /// Longest round trip, in milliseconds, of a generator's frames since this was last set to zero.
    pub longest_ms: f64,
    /// Last lines of standard error, at most `LINES`.
    said: VecDeque<String>,
}

impl LongLived {
    const LINES: usize = 50;

    /// Waits for the first line of output, which means that the process is up.
    pub fn started(mut self) -> io::Result<Self> {
        match self.program.line_or_eof() {
            Some(line) => self.read(&line),
            None => return Err(io::Error::other(self.report("has not started"))),
        }
        Ok(self)
    }

    fn read(&mut self, line: &str) {
        if let Ok(event @ Value::Object(_)) = serde_json::from_str(line) {
            let longest = event["round_trip_max_recent_us"].as_f64().unwrap_or(0.0) / 1000.0;
            self.longest_ms = self.longest_ms.max(longest);
            self.event = event;
        }
    }

    /// Reads the output since the last call.
    pub fn listen(&mut self) {
        for line in self.program.lines() {
            self.read(&line);
        }
        for line in self.program.said() {
            self.said.push_back(line);
            if self.said.len() > Self::LINES {
                self.said.pop_front();
            }
        }
    }

    /// Returns the last eight lines of standard error, joined by ` | `.
    pub fn said(&mut self) -> String {
        // The thread that reads the output may lag behind the process.
        std::thread::sleep(Duration::from_millis(50));
        self.listen();
        let last = self.said.len().saturating_sub(8);
        self.said.range(last..).map(String::as_str).collect::<Vec<_>>().join(" | ")
    }

    /// Returns a line with the process's name, `what` happened to it, and its last output.
    pub fn report(&mut self, what: &str) -> String {
        let said = self.said();
        format!("{} {what}: {said}", self.name)
    }

    /// Ends the process as Ctrl-C does, and waits up to a minute. Returns an error text if it does not end with
    /// status 0.
    pub fn end(&mut self) -> Result<(), String> {
        if let Some(status) = self.program.ended() {
            return Err(self.report(&format!("ended too early, with {status}")));
        }
        self.program.signal("INT");
        for _ in 0..6000 {
            std::thread::sleep(Duration::from_millis(10));
            self.listen();
            match self.program.ended() {
                Some(status) if status.success() => {
                    self.said();
                    return Ok(());
                }
                Some(status) => return Err(self.report(&format!("ended with {status}"))),
                None => {}
            }
        }
        Err(self.report("has not ended within a minute"))
    }

    /// Returns the number of packet buffers that were missing when the process ended, and the size of the pool.
    pub fn buffers(&self) -> Option<(u64, u64)> {
        let line = self.said.iter().rev().find_map(|line| Some(line.split_once("packet buffers: ")?.1))?;
        let mut words = line.split(' ');
        let missing = words.next()?.parse().ok()?;
        Some((missing, words.nth(1)?.parse().ok()?))
    }

    /// Returns the resources that the process holds now; all zero if it has ended.
    pub fn resource_usage(&self) -> ResourceUsage {
        let of = |what: &str| format!("/proc/{}/{what}", self.program.id());
        let count = |what: &str| std::fs::read_dir(of(what)).map_or(0, Iterator::count) as u64;
        let text = |what: &str| std::fs::read_to_string(of(what)).unwrap_or_default();
        let status = text("status");
        let kib = |name: &str| {
            let found =
                status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
            found.unwrap_or(0)
        };
        ResourceUsage {
            descriptors: count("fd"),
            threads: count("task"),
            maps: text("maps").lines().count() as u64,
            private_kib: kib("RssAnon:"),
            resident_kib: kib("VmRSS:"),
        }
    }
}

/// Resources of a process that a leaked peer would keep in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Open file descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
    /// Memory mappings.
    pub maps: u64,
    /// Private resident memory (`RssAnon`), KiB.
    pub private_kib: u64,
    /// Resident memory including shared pages (`VmRSS`), KiB. It grows as shared pages are touched for the
    /// first time; mappings left behind by peers that are gone show in `maps`.
    pub resident_kib: u64,
}

impl ResourceUsage {
    /// Growth that is not a leak but the allocator's: mappings, and KiB of private memory.
    const MAPS: u64 = 8;
    const KIB: u64 = 4 << 10;

    /// Returns whether this is more than `before`, beyond the allocator's tolerance. `resident_kib` is not
    /// compared.
    pub fn exceeds(&self, before: &Self) -> bool {
        self.descriptors > before.descriptors
            || self.threads > before.threads
            || self.maps > before.maps + Self::MAPS
            || self.private_kib > before.private_kib + Self::KIB
    }
}

/// Locks a mutex, even if a holder has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
