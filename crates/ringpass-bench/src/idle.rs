//! The benchmark `ringpass bench idle`: CPU use of a forwarder without traffic, and latency of the first packet
//! after a pause.

use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringpass::{Burst, Error, Mempool, MempoolConfig, Port, PortConfig, QueuePair};
use ringpass_cli::errln;
use ringpass_host_ports::PacketSocket;
use serde::Serialize;

use super::folder::TempDir;
use super::process::Process;
use super::progress::progress;
use super::table::{self, row};
use super::{cpu, machine};
use ringpass_cli::options::{seconds, within};
use ringpass_cli::output::print_line;

/// CPU use of a forwarder without traffic, and latency of the first packet after a pause
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How the forwarder reaches its TAP interfaces: tap, model (a software card in its process), vfio-user (in
    /// another)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tap,model,vfio-user")]
    through: Vec<Through>,
    /// Time without traffic over which CPU use is measured
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    time: Duration,
    /// Number of packets, sent one after the other
    #[arg(short = 'c', long, value_name = "PACKETS", default_value = "200", value_parser = within(1..=100_000))]
    count: usize,
    /// Pause before each packet in milliseconds
    #[arg(long, value_name = "MS", default_value = "50", value_parser = within(1..=10_000))]
    silence: usize,
    /// Print a JSON object for each forwarder
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  sudo ringpass bench idle                       all three, 5 seconds and 200 packets each
  sudo ringpass bench idle --through tap -c 1000 TAP interfaces alone, more packets";

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Through {
    Tap,
    Model,
    VfioUser,
}

#[derive(Serialize)]
struct Row {
    through: &'static str,
    /// CPU use of all processes together, in percent of one CPU.
    cpu_percent: f64,
    packets: u64,
    lost: usize,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut rows = Vec::new();
    for &through in &args.through {
        rows.push(measure(through, &args)?);
    }
    progress("");
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
        errln!("{}", machine::line());
        return Ok(());
    }
    let mut lines = vec![row(["fwd between", "CPU", "packets", "lost", "min", "median", "99 %", "max"])];
    for row in rows {
        let mut cells = vec![row.through.into(), format!("{:.2} %", row.cpu_percent)];
        cells.extend([row.packets.to_string(), row.lost.to_string()]);
        cells.extend([row.min_us, row.median_us, row.p99_us, row.max_us].map(|us| format!("{us:.1} µs")));
        lines.push(cells);
    }
    let Args { time, count, silence, .. } = args;
    let time = time.as_secs_f64();
    table::print(
        &format!(
            "A forwarder without traffic: CPU over {time} s, and the first packet after {silence} ms, {count} times"
        ),
        &lines,
    );
    print_line(
        "  From a packet socket on one TAP interface to one on the other, whose owner polls. CPU is that of all",
    );
    print_line("  processes, with the threads that play the cards, in percent of one core.\n");
    print_line(&machine::line());
    Ok(())
}

fn measure(through: Through, args: &Args) -> Result<Row, Error> {
    let (lab, name) = ForwarderRig::new(through)?;
    progress(&format!("{name}: {} s without traffic", args.time.as_secs_f64()));
    thread::sleep(ForwarderRig::SETTLE);
    let (before, start) = (lab.cpu()?, Instant::now());
    thread::sleep(args.time);
    let cpu_percent = (lab.cpu()? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    progress(&format!("{name}: {} packets", args.count));
    let (latency, lost) = lab.first_packets(args.count, Duration::from_millis(args.silence as u64))?;
    if latency.is_empty() {
        return Err(Error::Gone(format!(
            "{name}: none of {lost} packets has come through; is this machine overloaded?"
        )));
    }
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let us = |nanos: u64| round(nanos as f64 / 1000.0);
    Ok(Row {
        through: name,
        cpu_percent: round(cpu_percent),
        packets: latency.len(),
        lost,
        min_us: us(latency.min()),
        median_us: us(latency.value_at_quantile(0.5)),
        p99_us: us(latency.value_at_quantile(0.99)),
        max_us: us(latency.max()),
    })
}

/// A forwarder in a process of its own between two TAP interfaces. Its fields are dropped in their order:
/// processes first.
struct ForwarderRig {
    processes: Vec<Process>,
    taps: [String; 2],
    _directory: TempDir,
}

impl ForwarderRig {
    /// Pause before the measurement, so that start-up is not counted.
    const SETTLE: Duration = Duration::from_millis(1500);
    /// Longest time for a process to start.
    const LIMIT: Duration = Duration::from_secs(10);
    const LOST: Duration = Duration::from_millis(200);

    fn new(through: Through) -> Result<(Self, &'static str), Error> {
        let id = std::process::id();
        let taps = ["a", "b"].map(|end| format!("rpi{id:x}{end}"));
        let directory = TempDir::new("idle")?;
        let mut processes = Vec::new();
        let (name, ports) = match through {
            Through::Tap => ("tap", taps.clone().map(|tap| format!("tap:{tap}"))),
            Through::Model => ("model, in process", taps.clone().map(|tap| format!("model:tap:{tap}"))),
            Through::VfioUser => {
                let sockets = ["a", "b"].map(|end| directory.path().join(end).display().to_string());
                for (socket, tap) in sockets.iter().zip(&taps) {
                    let wire = format!("tap:{tap}");
                    let model = ["model", "82599", "--socket", socket, "--wire", &wire, "--json"];
                    processes.push(start(&model)?);
                }
                ("model, over vfio-user", sockets.map(|socket| format!("vfio-user:{socket}")))
            }
        };
        processes.push(start(&["fwd", &ports[0], &ports[1], "--json"])?);
        for tap in &taps {
            // The kernel would send IPv6 packets of its own. Fails where the kernel has no IPv6, which is fine.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{tap}/disable_ipv6"), "1");
        }
        Ok((Self { processes, taps, _directory: directory }, name))
    }

    /// Returns the CPU time that all processes have used so far.
    fn cpu(&self) -> Result<Duration, Error> {
        self.processes.iter().map(|process| cpu::used(process.id())).sum()
    }

    /// Sends packets into one interface, each after a pause of `silence`, and measures when they arrive at the
    /// other. Returns the latencies in nanoseconds and the number of lost packets.
    fn first_packets(&self, count: usize, silence: Duration) -> Result<(Histogram<u64>, usize), Error> {
        let pool = Mempool::new(&MempoolConfig::default())?;
        let open = |tap: &str| -> Result<(PacketSocket, QueuePair), Error> {
            let mut port = PacketSocket::open(tap, &PortConfig::default(), &pool)?;
            let queues = port.take_queues().remove(0);
            Ok((port, queues))
        };
        let ((_near, mut near), (_far, mut far)) = (open(&self.taps[0])?, open(&self.taps[1])?);
        let mut latency = Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("bounds that are in order");
        let (mut lost, mut burst) = (0, Burst::new(1));
        for number in 0..count as u32 {
            thread::sleep(silence);
            while far.rx.rx_burst(&mut burst) > 0 {
                burst.clear();
            }
            let frame = frame(number);
            let packet = pool.alloc().map(|mut packet| packet.copy_from(&frame).then_some(packet));
            burst.push(packet.flatten().ok_or_else(|| Error::Fault("no free packet; this is a bug".into()))?);
            let sent = Instant::now();
            near.tx.tx_burst(&mut burst);
            burst.clear();
            let arrived = loop {
                far.rx.rx_burst(&mut burst);
                if burst.iter().any(|packet| packet.to_vec() == frame) {
                    break true;
                }
                burst.clear();
                if sent.elapsed() > Self::LOST {
                    break false;
                }
                // Lets the forwarder run if it shares this CPU.
                thread::yield_now();
            };
            burst.clear();
            if arrived {
                latency.saturating_record(sent.elapsed().as_nanos() as u64);
            } else {
                lost += 1;
            }
        }
        Ok((latency, lost))
    }
}

/// Returns a numbered broadcast frame with IEEE 802 Local Experimental EtherType 1.
fn frame(number: u32) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Starts a process and waits for its first line, which means that its ports are open.
fn start(arguments: &[&str]) -> Result<Process, Error> {
    let mut process = Process::ringpass(arguments, &[])?;
    let first = process.line(ForwarderRig::LIMIT);
    first.map_err(|error| Error::Fault(format!("starting ringpass {}: {error}", arguments.join(" "))))?;
    Ok(process)
}
