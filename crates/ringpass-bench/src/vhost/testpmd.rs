//! DPDK's testpmd as one end, controlled through its prompt. It is part of Debian's package `dpdk-dev`.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::Error;

use super::end::{Kind, Layout, Ring, Testbed, TrafficEnd, WorkDone, Workload};
use crate::cores::check_interrupted;

/// A testpmd process with one port. It ends when this is dropped, or when its standard input is closed.
pub struct Testpmd {
    child: Child,
    prompt: ChildStdin,
    lines: Receiver<String>,
    job: Workload,
}

const PROGRAM: &str = "dpdk-testpmd";

/// Returns an error of one line if there is no testpmd.
pub fn check() -> Result<(), Error> {
    match Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::NotFound(format!(
            "{PROGRAM} is missing: sudo apt install dpdk-dev (or --peer none, to measure without it)"
        ))),
        Err(source) => Err(Error::os(format!("starting {PROGRAM}"), source)),
    }
}

impl Testpmd {
    const LIMIT: Duration = Duration::from_secs(20);
    /// Largest number of huge pages of 2 MiB that one testpmd takes.
    pub const HUGE_PAGES: usize = 96;
    /// Number of packet buffers: few enough to stay in the caches.
    const BUFFERS: usize = 16_384;

    /// Starts the vhost driver, which listens.
    pub fn backend(socket: &Path, site: &Testbed) -> Result<Self, Error> {
        let device = format!("net_vhost0,iface={},queues=1", socket.display());
        let testpmd = Self::spawn(&device, site.cores[0], site)?;
        let start = Instant::now();
        while !socket.exists() {
            check_interrupted()?;
            if start.elapsed() > Self::LIMIT {
                return Err(testpmd.silent("a socket"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(testpmd)
    }

    /// Starts the virtio-user driver, which connects.
    pub fn frontend(socket: &Path, Kind { ring, layout }: Kind, site: &Testbed) -> Result<Self, Error> {
        let packed = u8::from(ring == Ring::Packed);
        let (in_order, mergeable) = (u8::from(layout == Layout::InOrder), u8::from(layout == Layout::Mergeable));
        let features = format!("packed_vq={packed},in_order={in_order},mrg_rxbuf={mergeable}");
        let (path, ring) = (socket.display(), site.descriptors);
        Self::spawn(&format!("net_virtio_user0,path={path},queues=1,queue_size={ring},{features}"), site.cores[1], site)
    }

    /// Starts testpmd without waiting for it. Both of its threads, that of the prompt and the one that moves
    /// packets, run on one core.
    fn spawn(device: &str, core: CoreId, site: &Testbed) -> Result<Self, Error> {
        let failed = |source| Error::os(format!("starting {PROGRAM}"), source);
        let (reader, writer) = io::pipe().map_err(failed)?;
        // Standard output is a pipe; without `stdbuf` it would be fully buffered.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", PROGRAM, "--lcores", &format!("0@{0},1@{0}", core.id), "--main-lcore", "0", "--no-pci"]);
        // Memory without files, so that none are left behind, but still shareable with the other end.
        command.args(["--in-memory", "--single-file-segments", "--vdev", device, "--"]);
        command.args(["--interactive", "--record-core-cycles", "--no-flush-rx"]);
        command.arg(format!("--total-num-mbufs={}", Self::BUFFERS));
        command.args([format!("--rxd={}", site.descriptors), format!("--txd={}", site.descriptors)]);
        // A process group of its own keeps Ctrl-C away from testpmd; this process then ends it.
        command.process_group(0).stdin(Stdio::piped());
        command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        let mut child = command.spawn().map_err(failed)?;
        // `command` holds copies of the pipe's write end, which would keep the reader from seeing the end of
        // file.
        drop(command);
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(reader).lines().map_while(Result::ok);
            lines.for_each(|line| _ = sender.send(line));
        });
        let prompt = child.stdin.take().expect("it was piped");
        Ok(Self { child, prompt, lines, job: Workload::Drop })
    }

    fn send_command(&mut self, command: &str) -> Result<(), Error> {
        let said = writeln!(self.prompt, "{command}");
        said.map_err(|source| Error::os(format!("telling {PROGRAM} to {command}"), source))
    }

    /// Returns the next line that contains `what`.
    fn expect(&mut self, what: &str) -> Result<String, Error> {
        let start = Instant::now();
        let mut last = String::new();
        while start.elapsed() < Self::LIMIT {
            check_interrupted()?;
            match self.lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) if line.contains(what) => return Ok(line),
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => last = line,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Fault(format!("{PROGRAM} has ended; its last words: {last}")));
                }
            }
        }
        Err(self.silent(what))
    }

    fn silent(&self, what: &str) -> Error {
        Error::Fault(format!("{PROGRAM} (process {}) gave no '{what}' in {:?}", self.child.id(), Self::LIMIT))
    }

    /// Returns the port's packets a second since the last call.
    fn rate(&mut self) -> Result<f64, Error> {
        self.send_command("show port stats 0")?;
        let [received, sent] = ["Rx-pps:", "Tx-pps:"].map(|name| Ok(value(&self.expect(name)?, name)));
        if self.job == Workload::Drop { received } else { sent }
    }
}

/// Returns the cycles of a packet from the first line of a text that has them.
pub fn cycles(text: &str) -> Option<f64> {
    const NAME: &str = "CPU cycles/packet=";
    text.lines().find(|line| line.contains(NAME)).map(|line| value(line, NAME))
}

/// Returns the number after a name.
fn value(line: &str, name: &str) -> f64 {
    let behind = line.split_once(name).map_or("", |(_, behind)| behind).trim_start();
    behind.split(|c: char| !c.is_ascii_digit() && c != '.').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

impl TrafficEnd for Testpmd {
    fn start(&mut self, job: Workload) -> Result<(), Error> {
        self.job = job;
        match job {
            Workload::Generate(size) => self.send_command(&format!("set fwd txonly\nset txpkts {size}"))?,
            Workload::Drop => self.send_command("set fwd rxonly")?,
        }
        self.send_command("start")?;
        self.expect("packet forwarding - ports=1").map(drop)
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.send_command("clear fwd stats all")?;
        self.rate().map(drop)
    }

    fn end(&mut self) -> Result<WorkDone, Error> {
        let mpps = self.rate()? / 1e6;
        self.send_command("show fwd stats all")?;
        self.expect("Accumulated forward statistics")?;
        self.expect("+++++++++++++++++++++++++++++++++++++++++++++++")?;
        // testpmd prints this line only if packets have passed.
        let cycles = if mpps > 0.0 { value(&self.expect("CPU cycles/packet=")?, "CPU cycles/packet=") } else { 0.0 };
        Ok(WorkDone { mpps, cycles })
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.send_command("stop")?;
        self.expect("Done.").map(drop)
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.send_command("stop\nquit");
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(3) {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn numbers_are_read_from_what_testpmd_prints() {
        assert_eq!(value("  Tx-pps:     10556276          Tx-bps:   5404813312", "Tx-pps:"), 10_556_276.0);
        let line = "  CPU cycles/packet=362.79 (total cycles=1 / total txonly packets=3) at 2450 MHz Clock";
        assert_eq!(value(line, "CPU cycles/packet="), 362.79);
        assert_eq!(value("Rx-pps:", "Rx-pps:"), 0.0);
    }
}
