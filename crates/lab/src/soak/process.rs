//! Processes of the soak: how they are started, and what the long-lived ones hold and say.

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

/// Starts processes of the soak.
pub struct Launcher {
    ringpass: PathBuf,
    folder: PathBuf,
    /// Seconds after which a process ends by itself, should the soak be killed: peers, and those that they are peers of.
    limits: [u64; 2],
}

impl Launcher {
    pub fn new(settings: &Settings, folder: &Path) -> Self {
        let limits = [120, settings.time.as_secs() + 1200];
        Self { ringpass: settings.ringpass.clone(), folder: folder.to_owned(), limits }
    }

    /// The path of a socket.
    pub fn socket(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The program with some arguments. In a process group of its own, as Ctrl-C is for the soak alone. Its netmap ports are
    /// those of the socket with this name.
    fn command(&self, arguments: &[String], netmap: &str) -> Command {
        let mut command = Command::new(&self.ringpass);
        command.args(arguments).process_group(0);
        command.env("RINGPASS_NETMAP_SOCKET", self.folder.join(netmap)).env("RUST_LOG", "ringpass::open=info");
        command
    }

    /// A process that is to be killed.
    pub fn peer(&self, arguments: &[String], netmap: &str) -> io::Result<Program> {
        let mut command = self.command(arguments, netmap);
        Program::start(command.args(["--json", "--time", &self.limits[0].to_string()]))
    }

    /// A process that is to live on, when it has started.
    pub fn resident(&self, name: &'static str, arguments: &[&str]) -> io::Result<Resident> {
        self.starting(name, arguments)?.started()
    }

    /// The same, while it starts.
    pub fn starting(&self, name: &'static str, arguments: &[&str]) -> io::Result<Resident> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut command = self.command(&arguments, NETMAP);
        let program = Program::start(command.args(["--json", "--time", &self.limits[1].to_string()]))?;
        Ok(Resident { name, program, event: Value::Null, said: VecDeque::new() })
    }

    /// Returns the statistics that `netmapd` reports.
    pub fn netmap_status(&self) -> Option<Value> {
        let output = self.command(&["vale".into(), "--json".into()], NETMAP).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }
}

/// The name of the socket of the serving process that lives on.
pub const NETMAP: &str = "netmap";

/// A process that lives on.
pub struct Resident {
    pub name: &'static str,
    pub program: Program,
    /// The last statistics.
    pub event: Value,
    /// The last lines of standard error.
    said: VecDeque<String>,
}

impl Resident {
    const LINES: usize = 50;

    /// Waits until it has started, which its first line says.
    pub fn started(mut self) -> io::Result<Self> {
        match self.program.line_or_end() {
            Some(line) => self.read(&line),
            None => return Err(io::Error::other(self.report("has not started"))),
        }
        Ok(self)
    }

    fn read(&mut self, line: &str) {
        if let Ok(event @ Value::Object(_)) = serde_json::from_str(line) {
            self.event = event;
        }
    }

    /// Takes what it has printed since.
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

    /// Returns the last lines of its standard error.
    pub fn said(&mut self) -> String {
        // The thread that reads may be a moment behind the process.
        std::thread::sleep(Duration::from_millis(50));
        self.listen();
        let last = self.said.len().saturating_sub(8);
        self.said.range(last..).map(String::as_str).collect::<Vec<_>>().join(" | ")
    }

    /// Returns a line with its name, `what` happened to it, and its last words.
    pub fn report(&mut self, what: &str) -> String {
        let said = self.said();
        format!("{} {what}: {said}", self.name)
    }

    /// Ends it as Ctrl-C does, waits for it, and keeps its summary. Why, if it has not ended as it should.
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

    /// How many packet buffers were missing when it ended, and of how many.
    pub fn buffers(&self) -> Option<(u64, u64)> {
        let line = self.said.iter().rev().find_map(|line| Some(line.split_once("packet buffers: ")?.1))?;
        let mut words = line.split(' ');
        let missing = words.next()?.parse().ok()?;
        Some((missing, words.nth(1)?.parse().ok()?))
    }

    /// Returns the resources that it holds now; none if it has ended.
    pub fn holds(&self) -> Holding {
        let of = |what: &str| format!("/proc/{}/{what}", self.program.id());
        let count = |what: &str| std::fs::read_dir(of(what)).map_or(0, Iterator::count) as u64;
        let text = |what: &str| std::fs::read_to_string(of(what)).unwrap_or_default();
        let status = text("status");
        let kib = |name: &str| {
            let found =
                status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
            found.unwrap_or(0)
        };
        Holding {
            descriptors: count("fd"),
            threads: count("task"),
            maps: text("maps").lines().count() as u64,
            private_kib: kib("RssAnon:"),
            resident_kib: kib("VmRSS:"),
        }
    }
}

/// Resources of a process that a peer could make it keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
    /// Mappings.
    pub maps: u64,
    /// Resident memory of its own, KiB.
    pub private_kib: u64,
    /// Resident memory with what is shared with others, KiB. It grows as pages of theirs are used for the first time; what
    /// would be kept of peers that are gone is in `maps`.
    pub resident_kib: u64,
}

impl Holding {
    /// More mappings and memory than before that are no leak: the allocator's.
    const MAPS: u64 = 8;
    const KIB: u64 = 4 << 10;

    /// Returns whether this is more than was held before, beyond what the allocator keeps.
    pub fn exceeds(&self, before: &Self) -> bool {
        self.descriptors > before.descriptors
            || self.threads > before.threads
            || self.maps > before.maps + Self::MAPS
            || self.private_kib > before.private_kib + Self::KIB
    }
}

/// Locks, whoever has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
