//! DPDK's testpmd as a process of this machine, with ports of vhost-user (`net_virtio_user`, `net_vhost`). It
//! needs neither huge pages nor cards: its memory is one memfd.

use std::time::Duration;

use ringpass_lab::Ended;
use ringpass_lab::Program;

/// A running testpmd, killed when dropped.
pub struct Testpmd {
    program: Program,
    /// The lines that it has printed so far.
    said: Vec<String>,
}

/// Packets that all its ports have forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    pub received: u64,
    pub sent: u64,
    /// Received, but not sent.
    pub dropped: u64,
}

impl Testpmd {
    /// Starts testpmd with one port, whose packets it forwards in a mode (`macswap`, `icmpecho`, `io`). If the
    /// port connects, the other end's socket must exist.
    pub fn start(port: &str, mode: &str, options: &[&str]) -> Self {
        Self::start_by(Program::spawn, port, mode, options)
    }

    /// Like [`start`](Self::start), by what starts a command somewhere.
    pub fn start_by(spawn: impl Fn(&[&str]) -> Program, port: &str, mode: &str, options: &[&str]) -> Self {
        const TESTPMD: &str = "dpdk-testpmd";
        let (port, mode) = (format!("--vdev={port}"), format!("--forward-mode={mode}"));
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("CPUs").trim();
        // Both of its threads may run on any allowed CPU. Without these options, a telemetry socket and a
        // configuration would be left behind.
        let cores = format!("(0-1)@({cpus})");
        let eal = ["--no-huge", "-m", "128", "--no-pci", "--no-shconf", "--no-telemetry", "--lcores", &cores];
        // Otherwise it drops packets that arrived before it starts.
        let own = ["--", "--no-flush-rx", "--stats-period=1", "--total-num-mbufs=8192", &mode];
        let wide = if port.contains("vectorized=1") { &["--force-max-simd-bitwidth=512"][..] } else { &[] };
        let program = spawn(&[&[TESTPMD][..], &eal, wide, &[&port], &own, options].concat());
        Self { program, said: Vec::new() }
    }

    /// Waits until it forwards; if its port is a server, until a client has connected.
    pub fn ready(&mut self) {
        while !self.said.last().is_some_and(|line| line.contains("start packet forwarding")) {
            let line = self.program.line();
            assert!(!line.contains("No probed ethernet devices"), "testpmd without a port: {:?}", self.said);
            self.said.push(line);
        }
    }

    /// Ends it as Ctrl-C does, and returns its counters.
    pub fn end(self) -> Forwarded {
        self.program.signal("INT");
        let Ended { lines, errors, .. } = self.program.wait(Duration::from_secs(60));
        let text = lines.join("\n");
        let (_, sums) = text.split_once("for all ports").unwrap_or_else(|| panic!("no counters: {text} {errors:?}"));
        let number = |name: &str| -> u64 {
            let (_, rest) = sums.split_once(name).unwrap_or_else(|| panic!("no {name}: {sums}"));
            rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{sums}"))
        };
        Forwarded { received: number("RX-packets:"), sent: number("TX-packets:"), dropped: number("TX-dropped:") }
    }
}

/// The ring paths of DPDK's front-end, as options of `net_virtio_user`. The vectorized ones need AVX2 (split)
/// and AVX-512 (packed); without these DPDK uses the plain path with the same features.
pub const RING_PATHS: [&str; 10] = [
    "mrg_rxbuf=1,in_order=1",
    "mrg_rxbuf=0,in_order=1",
    "mrg_rxbuf=1,in_order=0",
    "mrg_rxbuf=0,in_order=0",
    "mrg_rxbuf=0,in_order=0,vectorized=1",
    "packed_vq=1,mrg_rxbuf=1,in_order=0",
    "packed_vq=1,mrg_rxbuf=0,in_order=0",
    "packed_vq=1,mrg_rxbuf=1,in_order=1",
    "packed_vq=1,mrg_rxbuf=0,in_order=1",
    "packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1",
];
