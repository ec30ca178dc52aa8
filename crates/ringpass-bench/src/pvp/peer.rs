//! `ringpass bench pvp --peer dpdk`: the path with DPDK's testpmd as the switch, beside Ringpass's, copying and mapped. One core has
//! the switch; the other one plays the card and runs the network function, in turn.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ringpass::signals::{self, interrupted};
use ringpass::{
    Burst, Error, Mempool, MempoolConfig, PageSize, Port, PortConfig, QueuePair, RxQueue, TxQueue, WakeSource,
    Wakeable, cycles, drivers,
};
use ringpass_cli::output::print_line;
use ringpass_memory::{FrameBatch, RegionConfig};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_port::{FrameSink, Role, VhostConfig, VirtioUserConfig};
use ringpass_vhost::{CopyModes, Vhost};
use ringpass_virtio_user::VirtioUser;
use serde::Serialize;

use super::path::forward;
use crate::cores::{self, DISTANCES, check_interrupted, core_to_core_cycles, distance_during};
use crate::driven::{Site, last_words, rate, under};
use crate::folder::TempDir;
use crate::huge_pages::HugePages;
use crate::machine;
use crate::median::median;
use crate::progress::progress;
use crate::rig;
use crate::table::{self, row};
use crate::vhost::testpmd;
use crate::vhost::{Layout, Ring, features};

/// A comparison.
pub struct Comparison<'a> {
    pub rounds: usize,
    /// Length of each measurement.
    pub seconds: Duration,
    pub cpu: &'a [usize],
    pub sizes: &'a [usize],
    pub ring: Ring,
    pub json: bool,
}

/// The switch between the card and the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Switch {
    Dpdk,
    Copying,
    Mapped,
}

const SWITCHES: [Switch; 3] = [Switch::Dpdk, Switch::Copying, Switch::Mapped];

/// Result of one measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Packets a second that have come through the guest, in millions.
    mpps: f64,
    /// Cycles of the switch's core on a packet that it received, of rounds that brought some.
    cycles: f64,
}

/// Measurements of all switches, one after the other.
struct Round {
    size: usize,
    samples: [Sample; SWITCHES.len()],
    /// Distance of the cores meanwhile.
    distance: &'static str,
}

/// Results of a switch in rounds of one distance.
#[derive(Serialize)]
struct Row<'a> {
    switch: Switch,
    size: usize,
    ring: Ring,
    cores: &'static str,
    rounds: usize,
    /// Medians over the rounds.
    mpps: f64,
    switch_cycles: f64,
    /// Median of the ratio to DPDK in the same round.
    ratio: f64,
    /// Least `ratio` that is asked of mapped queues.
    target_ratio: Option<f64>,
    met: Option<bool>,
    machine: &'a str,
}

const TESTPMD: &str = "dpdk-testpmd";
const CARD: &str = "0000:f0:00.0";
/// Huge pages of 2 MiB for all parts together.
const HUGE_PAGES: usize = 256;
const LIMIT: Duration = Duration::from_secs(30);
const BURST: usize = 32;
/// Descriptors of the card's rings and of the guest's, as in the paper's Table III with mapped queues.
const CARD_RING: usize = 1024;
const GUEST_RING: usize = 256;

/// Far end of the card's wire: as many frames as the card has descriptors for enter, and those that leave are counted.
struct Wire {
    frame: Vec<u8>,
    /// Frames that may enter now.
    ordered: Arc<AtomicUsize>,
}

impl Wakeable for Wire {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Wire {
    /// Brings nothing: a model takes frames without packets.
    fn rx_burst(&mut self, _: &mut Burst) -> usize {
        0
    }

    fn rx_frames(&mut self, frames: &mut FrameBatch) -> usize {
        let count = frames.room().min(self.ordered.load(Ordering::Relaxed));
        (0..count).for_each(|_| frames.push_bytes(&self.frame));
        self.ordered.fetch_sub(count, Ordering::Relaxed);
        count
    }
}

struct Sink(Arc<AtomicU64>);

impl FrameSink for Sink {
    fn send(&mut self, frames: &FrameBatch) {
        self.0.fetch_add(frames.len() as u64, Ordering::Relaxed);
    }
}

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        self.0.fetch_add(count as u64, Ordering::Relaxed);
        burst.clear();
        count
    }

    fn frame_sink(&mut self) -> Option<&mut dyn FrameSink> {
        Some(self)
    }
}

/// Parts on the other core: the card with its wire, and the network function once it is there.
struct Far {
    card: Arc<Card>,
    sent: Arc<AtomicU64>,
    function: Sender<QueuePair>,
}

/// Parts that were made, and what their thread needs.
struct Started<F> {
    far: Far,
    /// The far end of the card's wire.
    wire: QueuePair,
    /// What is to be done beside each step of the card.
    beside: F,
}

impl Far {
    fn start(device: u16, size: usize) -> Started<impl FnMut() -> usize + Send + 'static> {
        let card = Card::new(&CardConfig { device, ..CardConfig::default() });
        let (ordered, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let mut frame = rig::frame().to_vec();
        frame.resize(size, 0);
        let wire =
            QueuePair { rx: Box::new(Wire { frame, ordered: ordered.clone() }), tx: Box::new(Sink(sent.clone())) };
        let (function, inbox) = channel();
        let beside = beside(card.clone(), ordered, inbox);
        Started { far: Self { card, sent, function }, wire, beside }
    }

    /// Connects a network function to a back-end.
    fn connect(&self, socket: &Path, layout: Layout, ring: Ring, pages: PageSize) -> Result<Box<dyn Port>, Error> {
        let start = Instant::now();
        while !socket.exists() {
            check_interrupted()?;
            if start.elapsed() > LIMIT {
                return Err(Error::Gone("the switch has made no socket".into()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let region = RegionConfig { pages, ..Default::default() };
        let memory = Mempool::new(&MempoolConfig { buffers: 4 * GUEST_RING + 4096, region, ..Default::default() })?;
        let front_end = VirtioUserConfig {
            features: Some(features(ring, layout)),
            inflight: false,
            ..VirtioUserConfig::new(socket.to_owned(), Role::Connect)
        };
        let config = PortConfig { rx_ring: GUEST_RING, tx_ring: GUEST_RING, ..Default::default() };
        let mut port = VirtioUser::open("network function", &front_end, &config, &memory)?;
        let queues = port.take_queues().remove(0);
        self.function.send(queues).map_err(|_| Error::Fault("the other core's thread has ended".into()))?;
        Ok(Box::new(port))
    }

    /// Returns the rate at which frames leave the card, in millions a second, once they do.
    fn rate(&self, time: Duration, ended: &dyn Fn() -> bool) -> Result<f64, Error> {
        rate(&|| self.sent.load(Ordering::Relaxed), time, ended)
    }
}

/// Lets as many frames enter as the card has descriptors for, and forwards a burst of the network function.
fn beside(card: Arc<Card>, ordered: Arc<AtomicUsize>, inbox: Receiver<QueuePair>) -> impl FnMut() -> usize + Send {
    let (mut function, mut burst) = (None::<QueuePair>, Burst::new(BURST));
    move || {
        ordered.store(card.rx_posted(), Ordering::Relaxed);
        if function.is_none() {
            function = inbox.try_recv().ok();
        }
        function.as_mut().map_or(0, |function| forward(&mut *function.rx, &mut *function.tx, &mut burst))
    }
}

/// Measures the path with testpmd as the switch.
fn dpdk(comparison: &Comparison, size: usize, cores: [CoreId; 2], folder: &Path) -> Result<Sample, Error> {
    let (socket, output) = (folder.join("guest"), folder.join("output"));
    let Started { far, wire, beside } = Far::start(0x10f7, size);
    // Standard output is a file; without `stdbuf` it would be fully buffered.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", TESTPMD, "--lcores", &format!("0@{0},1@{0}", cores[0].id), "--main-lcore", "0"]);
    command.args(["--in-memory", "--single-file-segments", "--no-telemetry", "-m", "256", "-a", CARD]);
    command.arg(format!("--vdev=net_vhost0,iface={},queues=1", socket.display()));
    command.args(["--", "--record-core-cycles", "--no-flush-rx", "--stats-period=3600", "--forward-mode=io"]);
    command.args(["--disable-link-check", "--total-num-mbufs=8192", &format!("--burst={BURST}")]);
    command.args([format!("--rxd={CARD_RING}"), format!("--txd={CARD_RING}")]);
    let site = Site { cards: std::slice::from_ref(&far.card), wires: [wire], core: cores[1], output: &output };
    let measured = under(command, site, beside, |ended| {
        let _port = far.connect(&socket, Layout::InOrder, comparison.ring, PageSize::Huge2M)?;
        far.rate(comparison.seconds, ended)
    });
    let _ = std::fs::remove_file(&socket);
    let (mpps, printed) = measured?;
    let cycles = testpmd::cycles(&printed);
    let cycles =
        cycles.ok_or_else(|| Error::Fault(format!("testpmd has not said its cycles: {}", last_words(&printed))))?;
    Ok(Sample { mpps, cycles })
}

/// Measures the path with Ringpass as the switch.
fn ours(
    mapped: bool,
    comparison: &Comparison,
    size: usize,
    cores: [CoreId; 2],
    folder: &Path,
) -> Result<Sample, Error> {
    let socket = folder.join("guest");
    let Started { far, mut wire, mut beside } = Far::start(0x10fb, size);
    let region = RegionConfig { pages: PageSize::Huge2M, ..Default::default() };
    let host = Mempool::new(&MempoolConfig { buffers: 4 * CARD_RING + 4096, region, ..Default::default() })?;
    let config = PortConfig { rx_ring: CARD_RING, tx_ring: CARD_RING, ..Default::default() };
    let mut card_port = drivers::open(far.card.clone(), "bench", &config, &host)?;
    let mut card = card_port.take_queues().remove(0);
    // A card returns buffers in any order, so the rings cannot be in order.
    let layout = if mapped { Layout::Plain } else { Layout::InOrder };
    let back_end = VhostConfig {
        features: Some(features(comparison.ring, layout)),
        ..VhostConfig::new(socket.clone(), Role::Listen)
    };
    let mut guest_port = Vhost::open(&back_end, &PortConfig::default(), &host, CopyModes::default())?;
    // Lending must be requested before a guest can connect.
    let lending = if mapped { guest_port.lending(0) } else { None };
    let mut guest = guest_port.take_queues().remove(0);
    lending.map_or(Ok(()), |lending| card.rx.borrow_from(&lending))?;

    let stop = AtomicBool::new(false);
    let [received, busy] = [AtomicU64::new(0), AtomicU64::new(0)];
    let measured = thread::scope(|scope| {
        scope.spawn(|| {
            core_affinity::set_for_current(cores[1]);
            while !stop.load(Ordering::Relaxed) {
                far.card.step(&mut wire);
                beside();
            }
        });
        scope.spawn(|| {
            core_affinity::set_for_current(cores[0]);
            let mut burst = Burst::new(BURST);
            while !stop.load(Ordering::Relaxed) {
                for (from, to) in [(&mut card.rx, &mut guest.tx), (&mut guest.rx, &mut card.tx)] {
                    let start = cycles();
                    let moved = forward(&mut **from, &mut **to, &mut burst);
                    if moved > 0 {
                        busy.fetch_add(cycles() - start, Ordering::Relaxed);
                        received.fetch_add(moved as u64, Ordering::Relaxed);
                    }
                }
            }
        });
        let measured = far.connect(&socket, layout, comparison.ring, PageSize::Huge2M).and_then(|port| {
            let mpps = far.rate(comparison.seconds, &|| false)?;
            let cycles = busy.load(Ordering::Relaxed) as f64 / received.load(Ordering::Relaxed) as f64;
            Ok((port, Sample { mpps, cycles }))
        });
        stop.store(true, Ordering::Relaxed);
        measured
    });
    // The card returns the guest's buffers first, and the guest leaves before its back-end.
    drop((card, beside));
    measured.map(|(port, sample)| {
        drop(port);
        sample
    })
}

/// Runs the comparison.
pub fn run(comparison: &Comparison) -> Result<(), Error> {
    let cores = cores::pick_two(comparison.cpu)?;
    testpmd::check()?;
    signals::catch()?;
    let _pages = HugePages::reserve(HUGE_PAGES)?;
    let folder = TempDir::new("pvp")?;
    let mut rounds = Vec::new();
    let mut result = Ok(());
    for number in 1..=comparison.rounds {
        for &size in comparison.sizes {
            result = result.and_then(|()| {
                rounds.push(round(comparison, number, size, cores, folder.path())?);
                Ok(())
            });
        }
    }
    progress("");
    // After Ctrl-C the results so far are shown.
    if result.is_ok() || interrupted() {
        report(comparison, &rounds);
    }
    result
}

fn round(
    comparison: &Comparison,
    number: usize,
    size: usize,
    cores: [CoreId; 2],
    folder: &Path,
) -> Result<Round, Error> {
    let mut distances = vec![core_to_core_cycles(cores)];
    let mut samples = [Sample::default(); SWITCHES.len()];
    for (sample, switch) in samples.iter_mut().zip(SWITCHES) {
        progress(&format!("round {number}/{}: {size} bytes, {}", comparison.rounds, switch.name()));
        *sample = match switch {
            Switch::Dpdk => dpdk(comparison, size, cores, folder)?,
            Switch::Copying => ours(false, comparison, size, cores, folder)?,
            Switch::Mapped => ours(true, comparison, size, cores, folder)?,
        };
        distances.push(core_to_core_cycles(cores));
    }
    Ok(Round { size, samples, distance: distance_during(&distances) })
}

impl Switch {
    fn name(self) -> &'static str {
        match self {
            Self::Dpdk => "DPDK (testpmd)",
            Self::Copying => "Ringpass, copying",
            Self::Mapped => "Ringpass, mapped",
        }
    }
}

/// Returns the median, rounded to two decimal places.
fn hundredths_of_median(values: impl Iterator<Item = f64>) -> f64 {
    (median(values) * 100.0).round() / 100.0
}

fn report(comparison: &Comparison, rounds: &[Round]) {
    let machine = machine::line();
    let mut rows = Vec::new();
    for cores in DISTANCES {
        for &size in comparison.sizes {
            let of: Vec<&Round> = rounds.iter().filter(|r| (r.distance, r.size) == (cores, size)).collect();
            if of.is_empty() {
                continue;
            }
            for (number, switch) in SWITCHES.into_iter().enumerate() {
                let own = |round: &&Round| round.samples[number];
                let switch_cycles = hundredths_of_median(of.iter().map(|round| own(round).cycles));
                let ratio = hundredths_of_median(of.iter().map(|round| own(round).mpps / round.samples[0].mpps));
                let asked = [(64, 1.5), (1514, 3.0)].into_iter().find(|(of, _)| *of == size);
                let target_ratio = asked.filter(|_| switch == Switch::Mapped).map(|(_, ratio)| ratio);
                rows.push(Row {
                    switch,
                    size,
                    ring: comparison.ring,
                    cores,
                    rounds: of.len(),
                    mpps: hundredths_of_median(of.iter().map(|round| own(round).mpps)),
                    switch_cycles,
                    ratio,
                    target_ratio,
                    met: target_ratio.map(|asked| ratio >= asked),
                    machine: &machine,
                });
            }
        }
    }
    if comparison.json {
        return rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
    }
    let head = ["switch", "bytes", "cores, rounds", "Mpps", "ratio", "asked", "", "cycles"];
    let lines = rows.iter().map(|of| {
        vec![
            of.switch.name().into(),
            of.size.to_string(),
            format!("{}, {}", of.cores, of.rounds),
            format!("{:.2}", of.mpps),
            format!("{:.2}", of.ratio),
            of.target_ratio.map_or(String::new(), |asked| format!("\u{2265} {asked}")),
            of.met.map_or("", |met| if met { "met" } else { "MISSED" }).into(),
            format!("{:.1}", of.switch_cycles),
        ]
    });
    let title = format!(
        "Card, switch, network function, switch, card; {} rings; {} s each",
        comparison.ring.name(),
        comparison.seconds.as_secs_f64()
    );
    table::print(&title, &[vec![row(head)], lines.collect()].concat());
    print_line(
        "  The switch has a core. Card and network function share the other one, which limits the rate of long frames: the model",
    );
    print_line(
        "  copies each three times. Ratio: to DPDK in the same round. Cycles: of the switch on a packet that it receives, in rounds",
    );
    print_line("  that bring some; where it waits for the other core, rounds bring few, which makes them dear.");
    print_line(&format!(
        "  Bursts of {BURST}, rings of {CARD_RING} and {GUEST_RING}, huge pages; not mergeable, in order but for mapped queues."
    ));
    print_line(&machine);
}
