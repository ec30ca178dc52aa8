//! DPDK's testpmd as a process of this machine, with ports of vhost-user (`net_virtio_user`, `net_vhost`). It needs neither
//! huge pages nor cards: its memory is one memfd.

use std::time::Duration;

use ringpass_lab::Program;

/// A running testpmd, killed when dropped.
pub struct Testpmd {
    program: Program,
    /// What it has said so far.
    said: Vec<String>,
}

/// What all its ports have forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    pub received: u64,
    pub sent: u64,
    /// Received, and not sent.
    pub dropped: u64,
}

impl Testpmd {
    /// Starts it with one port, whose packets it forwards in some mode (`macswap`, `icmpecho`, `io`); one that connects
    /// finds the other end's socket there.
    pub fn start(port: &str, mode: &str, options: &[&str]) -> Self {
        const TESTPMD: &str = "dpdk-testpmd";
        let (port, mode) = (format!("--vdev={port}"), format!("--forward-mode={mode}"));
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("CPUs").trim();
        // Both of its threads wherever there is room; a telemetry socket and a configuration would be left behind.
        let cores = format!("(0-1)@({cpus})");
        let eal = ["--no-huge", "-m", "128", "--no-pci", "--no-shconf", "--no-telemetry", "--lcores", &cores];
        // Otherwise it drops what has come before it begins.
        let own = ["--", "--no-flush-rx", "--stats-period=1", "--total-num-mbufs=8192", &mode];
        let wide = if port.contains("vectorized=1") { &["--force-max-simd-bitwidth=512"][..] } else { &[] };
        let program = Program::spawn(&[&[TESTPMD][..], &eal, wide, &[&port], &own, options].concat());
        Self { program, said: Vec::new() }
    }

    /// Waits until it forwards: with a server's port, until a client has come.
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
        let (_, lines, errors) = self.program.wait(Duration::from_secs(60));
        let text = lines.join("\n");
        let (_, sums) = text.split_once("for all ports").unwrap_or_else(|| panic!("no counters: {text} {errors:?}"));
        let number = |name: &str| -> u64 {
            let (_, rest) = sums.split_once(name).unwrap_or_else(|| panic!("no {name}: {sums}"));
            rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{sums}"))
        };
        Forwarded { received: number("RX-packets:"), sent: number("TX-packets:"), dropped: number("TX-dropped:") }
    }
}

/// The ring paths of DPDK's front-end, as options of `net_virtio_user`. Those that are vectorized take AVX2 (split) and
/// AVX-512 (packed); without it DPDK takes the plain one of the same features.
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
