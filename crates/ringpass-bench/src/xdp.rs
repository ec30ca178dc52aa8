//! The benchmark `ringpass bench xdp`: what a processor receives by XDP sockets, beside packet sockets, on a veth pair; and the instructions
//! of the part in user space.

use std::time::Duration;

use ringpass::{Burst, Error, Mempool, MempoolConfig, Port, PortConfig, QueuePair, RxQueue, TxQueue};
use ringpass_cli::errln;
use ringpass_cli::options::{seconds, within};
use ringpass_cli::output::print_line;
use ringpass_host_ports::{PacketSocket, Xdp};
use ringpass_lab::{Namespace, Program, wait_until};
use ringpass_port::{XdpConfig, XdpMode};
use serde::Serialize;
use serde_json::Value;

use super::cores::{check_interrupted, pick_two};
use super::median::median;
use super::process;
use super::progress::progress;
use super::table::{self, row};
use super::{instructions, machine};

/// Packets that a processor receives by XDP sockets and by packet sockets
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Rounds, in each of which every kind of port is measured once
    #[arg(long, value_name = "N", default_value = "5", value_parser = within(1..=1000))]
    rounds: usize,
    /// Time of each measurement
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    time: Duration,
    /// The two CPUs: of the sender, and of the receiver with the kernel's receiving for it
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Count the instructions of user space for each forwarded packet, too (needs valgrind)
    #[arg(long)]
    instructions: bool,
    /// Print a JSON object for each kind of port
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    under_callgrind: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  sudo ringpass bench xdp                     five rounds of two seconds for each kind of port
  sudo ringpass bench xdp --instructions      and the instructions of user space";

/// Ports that receive; each sample is compared with that of the first in its round.
const PORTS: [&str; 3] = ["packet:vb", "xdp:vb,mode=generic", "xdp:vb,mode=native"];
/// Bytes of a frame.
const SIZE: &str = "60";

#[derive(Clone, Copy)]
struct Sample {
    sent: f64,
    received: f64,
}

#[derive(Serialize)]
struct Row {
    port: &'static str,
    /// Packets a second, in millions: medians of the rounds.
    sent_mpps: f64,
    received_mpps: f64,
    /// Median of the ratios to the packet socket of the same round.
    times_packet: f64,
    /// Instructions of user space for a packet that is received by one XDP socket and sent by another.
    instructions: Option<f64>,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if args.under_callgrind {
        return run_rounds(args.rounds as u64);
    }
    let cores = pick_two(&args.cpu)?.map(|core| core.id);
    let mut samples = PORTS.map(|_| Vec::new());
    for round in 1..=args.rounds {
        for (port, samples) in PORTS.iter().zip(&mut samples) {
            check_interrupted()?;
            progress(&format!("round {round} of {}: {port}", args.rounds));
            samples.push(measure(port, cores, args.time)?);
        }
    }
    let count = |port: &str| -> Result<Option<f64>, Error> {
        if !args.instructions || !port.contains("generic") {
            return Ok(None);
        }
        progress("instructions of user space");
        let arguments = ["xdp", "--under-callgrind"].map(String::from);
        Ok(instructions::per_packet(&arguments, &[FORWARD])?.first().copied())
    };
    let mut rows = Vec::new();
    for (port, own) in PORTS.into_iter().zip(&samples) {
        let ratios = own.iter().zip(&samples[0]).map(|(own, packet)| own.received / packet.received);
        rows.push(Row {
            port,
            sent_mpps: median(own.iter().map(|sample| sample.sent)),
            received_mpps: median(own.iter().map(|sample| sample.received)),
            times_packet: median(ratios),
            instructions: count(port)?,
        });
    }
    progress("");
    if args.json {
        rows.iter().for_each(|row| print_line(&serde_json::to_string(row).expect("numbers and texts")));
        errln!("{}", machine::line());
        return Ok(());
    }
    let mut lines = vec![row(["received by", "sent", "received", "times packet:", "instructions"])];
    for Row { port, sent_mpps, received_mpps, times_packet, instructions } in rows {
        let mut cells = vec![port.into(), format!("{sent_mpps:.2} M/s"), format!("{received_mpps:.2} M/s")];
        cells.extend([format!("{times_packet:.2}"), table::number(instructions)]);
        lines.push(cells);
    }
    table::print("Frames of 60 bytes over a veth pair: what one processor receives, with the kernel's part", &lines);
    print_line(
        "  A packet socket sends on the other processor as fast as it can. Where all is received, the sender is the limit.\n",
    );
    print_line(&machine::line());
    Ok(())
}

/// A veth pair, with its ends `va` and `vb` in a namespace of its own.
fn veth() -> Namespace {
    let namespace = Namespace::new();
    namespace.ip(&["link", "add", "va", "type", "veth", "peer", "name", "vb"]);
    for end in ["va", "vb"] {
        // The kernel would send IPv6 packets of its own.
        namespace.run(&["sh", "-c", &format!("echo 1 >/proc/sys/net/ipv6/conf/{end}/disable_ipv6 || true")]);
        namespace.ip(&["link", "set", end, "up"]);
    }
    namespace
}

/// Sends to a port for some time, from one CPU to the other.
fn measure(port: &str, [near, far]: [usize; 2], time: Duration) -> Result<Sample, Error> {
    let (namespace, ringpass) = (veth(), process::ringpass()?.display().to_string());
    // What the kernel does for received frames, it does on the receiver's CPU: by steering (rps_cpus), or in a thread where the
    // interface has an XDP program (veth's NAPI).
    let mask = format!("{:x}", 1u128 << far);
    namespace.run(&["sh", "-c", &format!("echo {mask} >/sys/class/net/vb/queues/rx-0/rps_cpus")]);
    let [near, far, limit] = [near.to_string(), far.to_string(), (time.as_secs_f64() * 3.0 + 10.0).to_string()];
    let program =
        |arguments: &[&str]| -> Program { namespace.spawn(&[&[&ringpass[..]], arguments, &["--json"]].concat()) };
    let receiver = program(&["fwd", port, "null", "--cpu", &far, "--rxd", "4096", "--time", &limit]);
    wait_until("the receiver", || !receiver.line().is_empty());
    if port.contains("native") {
        let pin = format!(
            "echo 1 >/sys/class/net/vb/threaded; for process in $(pgrep napi/vb); do taskset -pc {far} $process; done"
        );
        namespace.run(&["sh", "-c", &pin]);
    }
    let time = time.as_secs_f64().to_string();
    let sender = program(&["pktgen", "packet:va", "--size", SIZE, "--cpu", &near, "--time", &time]);
    let sent = sender.wait(Duration::from_secs(120));
    let [sent, received] = [sent.lines, {
        receiver.signal("INT");
        receiver.wait(Duration::from_secs(20)).lines
    }];
    let per_second = |lines: &[String], direction: &str| -> Option<f64> {
        let summary: Value = serde_json::from_str(lines.last()?).ok()?;
        summary["ports"][0][direction].as_f64()
    };
    let seconds: f64 = time.parse().unwrap_or(1.0);
    match (per_second(&sent, "tx_packets"), per_second(&received, "rx_packets")) {
        (Some(sent), Some(received)) => Ok(Sample { sent: sent / seconds / 1e6, received: received / seconds / 1e6 }),
        _ => Err(Error::Fault(format!("{port}: no summary: {sent:?} {received:?}"))),
    }
}

/// Name of the function whose instructions are counted.
const FORWARD: &str = "forward_by_xdp";

/// Receives a burst by one XDP socket and sends it by another.
#[inline(never)]
fn forward_by_xdp(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst) -> usize {
    let received = rx.rx_burst(burst);
    tx.tx_burst(burst);
    received
}

/// Forwards bursts of 32 frames that a packet socket sends, and prints how many there were.
fn run_rounds(rounds: u64) -> Result<(), Error> {
    const BURST: usize = 32;
    let (namespace, far) = (veth(), veth());
    let pool = Mempool::new(&MempoolConfig::default())?;
    let open = |namespace: &Namespace, name: &str| -> Result<(Box<dyn Port>, QueuePair), Error> {
        let config = PortConfig::default();
        let mut port: Box<dyn Port> = namespace.enter(|| -> Result<Box<dyn Port>, Error> {
            if name == "va" {
                return Ok(Box::new(PacketSocket::open(name, &config, &pool)?));
            }
            let address = XdpConfig { interface: name.into(), mode: Some(XdpMode::Generic), ..XdpConfig::default() };
            Ok(Box::new(Xdp::open(&address, &config, &pool)?))
        })?;
        let queues = port.take_queues().remove(0);
        Ok((port, queues))
    };
    let (_sender, mut sender) = open(&namespace, "va")?;
    let (_near, mut near) = open(&namespace, "vb")?;
    let (_far, mut far) = open(&far, "vb")?;
    let mut frame = [7; 60];
    frame[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    let (mut burst, mut forwarded) = (Burst::new(BURST), 0);
    for _ in 0..rounds * 64 {
        while burst.room() > 0 {
            let mut packet = pool.alloc().ok_or_else(|| Error::Fault("no free packet; this is a bug".into()))?;
            assert!(packet.copy_from(&frame), "a buffer holds a frame");
            burst.push(packet);
        }
        sender.tx.tx_burst(&mut burst);
        burst.clear();
        let end = forwarded + BURST;
        // The kernel delivers them as they are sent.
        for _ in 0..1000 {
            forwarded += forward_by_xdp(&mut *near.rx, &mut *far.tx, &mut burst);
            burst.clear();
            if forwarded >= end {
                break;
            }
        }
    }
    print_line(&forwarded.to_string());
    Ok(())
}
