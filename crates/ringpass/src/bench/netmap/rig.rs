//! The serving process of a measurement, and those that use its ports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use core_affinity::CoreId;
use ringpass_port::Error;

use super::end::Seen;
use crate::bench::process::Process;

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
        let mut served = start(&arguments, &socket)?;
        served.line(Duration::from_secs(20))?;
        Ok(Self { served, socket, cores })
    }

    /// The serving process.
    pub fn process(&self) -> u32 {
        self.served.id()
    }

    /// Starts a subcommand that uses the served ports.
    pub fn start(&self, arguments: &[&str]) -> Result<Process, Error> {
        start(arguments, &self.socket)
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

/// Starts a process that finds the serving one at a socket.
fn start(arguments: &[&str], socket: &Path) -> Result<Process, Error> {
    Process::spawn(arguments, &[("RINGPASS_NETMAP_SOCKET", socket.as_os_str())])
}
