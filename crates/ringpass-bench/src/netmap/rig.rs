//! The serving process of a measurement, and the processes that use its ports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use core_affinity::CoreId;
use ringpass::Error;

use super::end::EndReport;
use crate::process::Process;

/// The serving process, at a socket of its own.
pub struct Rig {
    served: Process,
    socket: PathBuf,
    pub cores: [CoreId; 2],
}

impl Rig {
    /// Starts the process, whose workers have this latency budget. The switches' run on the core with the index `worker`, or on any core.
    pub fn new(folder: &Path, cores: [CoreId; 2], worker: Option<usize>, budget: Duration) -> Result<Self, Error> {
        let socket = folder.join("netmap.sock");
        let cpu = worker.map(|worker| cores[worker].id.to_string());
        let budget = budget.as_micros().to_string();
        let mut arguments = vec!["netmapd", "--buffers", "65536", "--latency-budget", &budget];
        arguments.extend(cpu.iter().flat_map(|cpu| ["--cpu", cpu]));
        let mut served = start(&arguments, &socket)?;
        served.line(Duration::from_secs(20))?;
        Ok(Self { served, socket, cores })
    }

    /// Returns the socket at which its ports are served.
    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    /// Returns the process ID of the serving process.
    pub fn process(&self) -> u32 {
        self.served.id()
    }

    /// Starts a subcommand that uses the served ports.
    pub fn start(&self, arguments: &[&str]) -> Result<Process, Error> {
        start(arguments, &self.socket)
    }

    /// Starts an end on one of the cores and waits until its port is open.
    pub fn end(&self, role: &str, port: &str, core: usize, more: &[&str]) -> Result<Process, Error> {
        let cpu = self.cores[core].id.to_string();
        let arguments = [&["netmap-end", role, port, "--cpu", &cpu], more].concat();
        let mut end = Process::own(&arguments, &[(SOCKET, self.socket.as_os_str())])?;
        end.line(Duration::from_secs(20))?;
        Ok(end)
    }

    /// Starts a bridge and waits until its ports are open.
    pub fn bridge(&self, ports: [&str; 2], more: &[&str]) -> Result<Process, Error> {
        let mut bridge = self.start(&[&["bridge", ports[0], ports[1]], more].concat())?;
        bridge.line(Duration::from_secs(20))?;
        Ok(bridge)
    }

    /// Runs both ends, the second one first, and returns their results.
    pub fn run(&self, mut ends: [Process; 2], time: Duration) -> Result<[EndReport; 2], Error> {
        ends[1].begin()?;
        // Waits until the second end listens: it drops frames that arrive earlier.
        ends[1].line(Duration::from_secs(20))?;
        ends[0].begin()?;
        let mut seen = [EndReport::default(); 2];
        for (end, seen) in ends.iter_mut().zip(&mut seen) {
            let line = end.line(time + Duration::from_secs(20))?;
            *seen = serde_json::from_str(&line).map_err(|error| Error::Fault(format!("'{line}': {error}")))?;
        }
        Ok(seen)
    }
}

/// Environment variable with the socket of the netmap server.
const SOCKET: &str = "RINGPASS_NETMAP_SOCKET";

/// Starts a process whose netmap server is at this socket.
fn start(arguments: &[&str], socket: &Path) -> Result<Process, Error> {
    Process::ringpass(arguments, &[(SOCKET, socket.as_os_str())])
}
