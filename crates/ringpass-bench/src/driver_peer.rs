//! `ringpass bench driver --peer dpdk`: forwarding between two modelled cards by Ringpass and by DPDK's testpmd, in alternation.
//! One core plays the cards, the other one has the driver, which finds them as PCI devices.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use core_affinity::CoreId;
use ringpass::signals::{self, interrupted};
use ringpass::{Error, Mempool, MempoolConfig};
use ringpass_cli::demo;
use ringpass_cli::output::print_line;
use ringpass_models::ixgbe::{Card, CardConfig};
use serde::Serialize;
use serde_json::Value;

use crate::cores::{self, DISTANCES, core_to_core_cycles, distance_during};
use crate::driven::{Site, last_words, rate, under};
use crate::folder::TempDir;
use crate::huge_pages::HugePages;
use crate::machine;
use crate::median::median;
use crate::process::ringpass;
use crate::progress::progress;
use crate::table::{self, row};
use crate::vhost::testpmd;

/// A comparison.
pub struct Comparison<'a> {
    pub rounds: usize,
    /// Length of each measurement.
    pub seconds: Duration,
    pub cpu: &'a [usize],
    pub batch: usize,
    pub ring: usize,
    pub json: bool,
}

/// A driver with or without offloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Subject {
    driver: Driver,
    /// Checksums by the card.
    offloads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Driver {
    /// DPDK with vector instructions, which it takes where it can: not with all offloads.
    DpdkVector,
    DpdkScalar,
    Ringpass,
}

const SUBJECTS: [Subject; 6] = {
    const fn subject(driver: Driver, offloads: bool) -> Subject {
        Subject { driver, offloads }
    }
    [
        subject(Driver::DpdkVector, false),
        subject(Driver::DpdkScalar, false),
        subject(Driver::Ringpass, false),
        subject(Driver::DpdkVector, true),
        subject(Driver::DpdkScalar, true),
        subject(Driver::Ringpass, true),
    ]
};

/// Result of one measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Packets a second in both directions together.
    mpps: f64,
    /// Cycles of the driver's core on a packet, of rounds that moved some.
    cycles: f64,
}

/// Measurements of all subjects, one after the other.
struct Round {
    samples: [Sample; SUBJECTS.len()],
    /// Distance of the cores meanwhile.
    distance: &'static str,
}

/// Results of a subject in rounds of one distance.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    subject: Subject,
    cores: &'static str,
    rounds: usize,
    /// Medians over the rounds.
    mpps: f64,
    mpps_min: f64,
    mpps_max: f64,
    cycles_per_packet: f64,
    /// Median of the ratio to DPDK with vector instructions and the same offloads, in the same round.
    ratio: f64,
    batch: usize,
    ring: usize,
    machine: &'a str,
}

const TESTPMD: &str = "dpdk-testpmd";
/// Huge pages of 2 MiB for one driver.
const HUGE_PAGES: usize = 96;

impl Subject {
    fn name(self) -> &'static str {
        match self.driver {
            Driver::DpdkVector => "DPDK, vector",
            Driver::DpdkScalar => "DPDK, scalar",
            Driver::Ringpass => "Ringpass",
        }
    }

    /// Returns the command that forwards between the cards on a core.
    fn command(self, comparison: &Comparison, core: CoreId) -> Result<Command, Error> {
        let [near, far] = ["0000:f0:00.0", "0000:f0:01.0"];
        let Comparison { batch, ring, .. } = comparison;
        if self.driver == Driver::Ringpass {
            let mut command = Command::new(ringpass()?);
            command.args(["fwd", near, far, "--json", "--hugepages", "on", "--poll", "--no-sandbox"]);
            command.args([format!("--cpu={}", core.id), format!("--batch={batch}")]);
            command.args([format!("--rxd={ring}"), format!("--txd={ring}")]);
            command.args(["--offloads", if self.offloads { "checksum" } else { "none" }]);
            return Ok(command);
        }
        // Standard output is a file; without `stdbuf` it would be fully buffered.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", TESTPMD, "--lcores", &format!("0@{0},1@{0}", core.id), "--main-lcore", "0"]);
        command.args(["--in-memory", "--no-telemetry", "-m", "128", "-a", near, "-a", far]);
        command.args(if self.driver == Driver::DpdkScalar { &["--force-max-simd-bitwidth=64"][..] } else { &[] });
        command.args(["--", "--record-core-cycles", "--no-flush-rx", "--stats-period=3600", "--forward-mode=io"]);
        command.args([format!("--burst={batch}"), format!("--rxd={ring}"), format!("--txd={ring}")]);
        command.args(["--total-num-mbufs=8192"]);
        // Checksums of IPv4, UDP and TCP, in RTE_ETH_RX_OFFLOAD and RTE_ETH_TX_OFFLOAD.
        command.args(if self.offloads { &["--rx-offloads=0xe", "--tx-offloads=0xe"][..] } else { &[] });
        Ok(command)
    }

    /// Returns the cycles per packet from what the command has printed.
    fn cycles(self, printed: &str) -> Option<f64> {
        if self.driver == Driver::Ringpass {
            let summary: Value = serde_json::from_str(printed.lines().last()?).ok()?;
            return summary["cycles_per_packet"].as_f64();
        }
        testpmd::cycles(printed)
    }
}

/// Runs the comparison.
pub fn run(comparison: &Comparison) -> Result<(), Error> {
    let cores = cores::pick_two(comparison.cpu)?;
    testpmd::check()?;
    signals::catch()?;
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let folder = TempDir::new("driver")?;
    let mut rounds = Vec::new();
    let mut result = Ok(());
    for number in 1..=comparison.rounds {
        result = result.and_then(|()| {
            rounds.push(round(comparison, number, cores, folder.path())?);
            Ok(())
        });
    }
    progress("");
    // After Ctrl-C the results so far are shown.
    if result.is_ok() || interrupted() {
        report(comparison, &rounds);
    }
    result
}

fn round(comparison: &Comparison, number: usize, cores: [CoreId; 2], folder: &Path) -> Result<Round, Error> {
    let mut distances = vec![core_to_core_cycles(cores)];
    let mut samples = [Sample { mpps: 0.0, cycles: 0.0 }; SUBJECTS.len()];
    for (sample, subject) in samples.iter_mut().zip(SUBJECTS) {
        let offloads = if subject.offloads { ", with checksums" } else { "" };
        progress(&format!("round {number}/{}: {}{offloads}", comparison.rounds, subject.name()));
        *sample = measure(subject, comparison, cores, &folder.join("output"))?;
        distances.push(core_to_core_cycles(cores));
    }
    Ok(Round { samples, distance: distance_during(&distances) })
}

fn measure(subject: Subject, comparison: &Comparison, cores: [CoreId; 2], output: &Path) -> Result<Sample, Error> {
    let cards = [0, 1].map(|n| Card::new(&CardConfig { device: 0x10f7, mac: demo::mac(n), ..CardConfig::default() }));
    let packets = Mempool::new(&MempoolConfig { buffers: 4 * comparison.ring, ..MempoolConfig::default() })?;
    let wires = demo::wires(&packets, comparison.ring / 2);
    let sent = || cards.iter().map(|card| card.counters().tx_packets).sum();
    let command = subject.command(comparison, cores[1])?;
    let site = Site { cards: &cards, wires, core: cores[0], output };
    let (mpps, printed) = under(command, site, || 0, |ended| rate(&sent, comparison.seconds, ended))?;
    let cycles = subject
        .cycles(&printed)
        .ok_or_else(|| Error::Fault(format!("{} has not said its cycles: {}", subject.name(), last_words(&printed))))?;
    Ok(Sample { mpps, cycles })
}

fn report(comparison: &Comparison, rounds: &[Round]) {
    let machine = machine::line();
    let mut rows = Vec::new();
    for cores in DISTANCES {
        let of: Vec<&Round> = rounds.iter().filter(|round| round.distance == cores).collect();
        if of.is_empty() {
            continue;
        }
        for (number, subject) in SUBJECTS.into_iter().enumerate() {
            let peer = number / 3 * 3;
            let hundredths = |value: f64| (value * 100.0).round() / 100.0;
            let mpps = || of.iter().map(|round| round.samples[number].mpps);
            rows.push(Row {
                subject,
                cores,
                rounds: of.len(),
                mpps: hundredths(median(mpps())),
                mpps_min: hundredths(mpps().fold(f64::MAX, f64::min)),
                mpps_max: hundredths(mpps().fold(0.0, f64::max)),
                cycles_per_packet: hundredths(median(of.iter().map(|round| round.samples[number].cycles))),
                ratio: hundredths(median(of.iter().map(|r| r.samples[number].mpps / r.samples[peer].mpps))),
                batch: comparison.batch,
                ring: comparison.ring,
                machine: &machine,
            });
        }
    }
    if comparison.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
    } else {
        let head = ["driver", "checksums", "cores", "rounds", "Mpps", "", "ratio", "cycles"];
        let lines = rows.iter().map(|of| {
            vec![
                of.subject.name().into(),
                if of.subject.offloads { "by the card" } else { "none" }.into(),
                of.cores.into(),
                of.rounds.to_string(),
                format!("{:.2}", of.mpps),
                format!("({:.1} to {:.1})", of.mpps_min, of.mpps_max),
                format!("{:.2}", of.ratio),
                format!("{:.1}", of.cycles_per_packet),
            ]
        });
        let Comparison { batch, ring, seconds, .. } = comparison;
        let title = "Forwarding 60-byte frames between two modelled cards, both directions";
        let title = format!(
            "{title}\nbatch {batch}, rings of {ring}, {} s each; one core plays the cards",
            seconds.as_secs_f64()
        );
        table::print(&title, &[vec![row(head)], lines.collect()].concat());
        print_line(
            "  Mpps: median of the rounds, in brackets the least and the most. Ratio: to DPDK with vector instructions in the same round.",
        );
        print_line("  Rounds in which the cores' distance changed by more than a half are not to be compared.");
        print_line(
            "  Cycles: of the driver's core a packet, of rounds that brought packets. DPDK: testpmd, forward mode io.",
        );
        print_line(&machine);
    }
}
