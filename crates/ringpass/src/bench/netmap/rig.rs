//! Processes of a measurement: the serving one, ends, and other subcommands that use its ports.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass_port::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::end::Seen;
use crate::run::interrupted;

/// A process of this program that is ended when dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it says for people; shown only if it fails.
    errors: ChildStderr,
}

fn os(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Os { what: what.into(), source }
}

impl Process {
    /// Starts one, which finds the serving process at a socket.
    fn new(arguments: &[&str], socket: &Path) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(os("this program"))?;
        let mut command = Command::new(program);
        command.args(arguments).env("RINGPASS_NETMAP_SOCKET", socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(os("a process of this bench"))?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (input, output) = (input.expect("piped"), BufReader::new(output.expect("piped")));
        Ok(Self { child, input, output, errors: errors.expect("piped") })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints, within a time.
    pub fn line(&mut self, limit: Duration) -> Result<String, Error> {
        let start = Instant::now();
        let mut line = String::new();
        loop {
            if self.output.buffer().is_empty() {
                let turn = Timespec::try_from(Duration::from_millis(100)).expect("a short time");
                let ready = poll(&mut [PollFd::new(self.output.get_ref(), PollFlags::IN)], Some(&turn)).unwrap_or(0);
                if interrupted() {
                    return Err(Error::Other("interrupted".into()));
                }
                if start.elapsed() > limit {
                    return Err(Error::Other(format!("a process of this bench was silent for {limit:?}")));
                }
                if ready == 0 {
                    continue;
                }
            }
            if self.output.read_line(&mut line).map_err(os("a process of this bench"))? == 0 {
                let mut errors = String::new();
                let _ = self.errors.read_to_string(&mut errors);
                let last = errors.lines().last().unwrap_or("a process of this bench has ended");
                return Err(Error::Other(last.trim_start_matches("ringpass: ").into()));
            }
            return Ok(line.trim_end().into());
        }
    }

    /// The next of its events of a name, as `--json` prints them, within a time.
    pub fn event(&mut self, name: &str, limit: Duration) -> Result<Value, Error> {
        let end = Instant::now() + limit;
        loop {
            let line = self.line(end.saturating_duration_since(Instant::now()))?;
            let event: Value =
                serde_json::from_str(&line).map_err(|error| Error::Other(format!("'{line}': {error}")))?;
            if event["event"] == name {
                return Ok(event);
            }
        }
    }

    /// Ends it as Ctrl-C does. Returns its summary.
    pub fn summary(mut self) -> Result<Value, Error> {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        self.event("summary", Duration::from_secs(20))
    }

    /// Lets it begin.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.input.write_all(b"\n").map_err(os("a process of this bench"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The serving process, at a socket of its own.
pub struct Rig {
    served: Process,
    socket: PathBuf,
    pub cores: [CoreId; 2],
}

impl Rig {
    /// Starts it, with switches' workers on one of the cores, or on any.
    pub fn new(folder: &Path, cores: [CoreId; 2], worker: Option<usize>) -> Result<Self, Error> {
        let socket = folder.join("netmap.sock");
        let cpu = worker.map(|worker| cores[worker].id.to_string());
        let mut arguments = vec!["netmapd", "--buffers", "65536"];
        arguments.extend(cpu.iter().flat_map(|cpu| ["--cpu", cpu]));
        let mut served = Process::new(&arguments, &socket)?;
        served.line(Duration::from_secs(20))?;
        Ok(Self { served, socket, cores })
    }

    /// The serving process.
    pub fn process(&self) -> u32 {
        self.served.id()
    }

    /// Starts a subcommand that uses the served ports.
    pub fn start(&self, arguments: &[&str]) -> Result<Process, Error> {
        Process::new(arguments, &self.socket)
    }

    /// Starts an end on one of the cores and waits until it has its port.
    pub fn end(&self, role: &str, port: &str, core: usize, more: &[&str]) -> Result<Process, Error> {
        let cpu = self.cores[core].id.to_string();
        let mut end = self.start(&[&["bench", "netmap-end", role, port, "--cpu", &cpu], more].concat())?;
        end.line(Duration::from_secs(20))?;
        Ok(end)
    }

    /// Starts a bridge.
    pub fn bridge(&self, ports: [&str; 2], more: &[&str]) -> Result<Process, Error> {
        let mut bridge = self.start(&[&["bridge", ports[0], ports[1]], more].concat())?;
        bridge.line(Duration::from_secs(20))?;
        Ok(bridge)
    }

    /// Has two ends run, the second one first. Returns what they have seen.
    pub fn run(&self, mut ends: [Process; 2], time: Duration) -> Result<[Seen; 2], Error> {
        ends[1].begin()?;
        // What it still drops when it begins would be missed.
        ends[1].line(Duration::from_secs(20))?;
        ends[0].begin()?;
        let mut seen = [Seen::default(); 2];
        for (end, seen) in ends.iter_mut().zip(&mut seen) {
            let line = end.line(time + Duration::from_secs(20))?;
            *seen = serde_json::from_str(&line).map_err(|error| Error::Other(format!("'{line}': {error}")))?;
        }
        Ok(seen)
    }
}
