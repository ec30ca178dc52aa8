//! The subcommand `ringpass bridge A B`: joins two netmap ports.

mod forwarder;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpass::Error;
use ringpass_netmap::client::{Port, default_socket};
use ringpass_netmap::request::{PortName, Register};
use ringpass_port::WaitPolicy;
use serde_json::json;

use forwarder::Bridge;

use crate::options::{latency_budget, seconds, within};
use crate::output::is_quiet;
use crate::signals::{begin_run, catch_first_signal};
use crate::stats::print_line;
use ringpass::signals::interrupted;

/// Join two netmap ports: forward frames between them, both ways
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The first port
    #[arg(value_name = "A")]
    first: String,
    /// The second port
    #[arg(value_name = "B")]
    second: String,
    /// Copy frames even if both ports have the same memory, where buffers could be exchanged
    #[arg(long)]
    copy: bool,
    /// Largest number of slots that are moved together
    #[arg(long, value_name = "N", default_value = "1024", value_parser = within(1..=65_536))]
    batch: usize,
    /// Slots of each ring, for pipes and ports that this creates [default: 1024]
    #[arg(long, value_name = "N", value_parser = within(2..=16_384))]
    slots: Option<usize>,
    /// Socket of the netmap server
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Latency that it may add so that frames collect while it sleeps, in microseconds, 0 to 10000; none below 30
    #[arg(long, value_name = "MICROSECONDS", default_value = "50", value_parser = latency_budget)]
    latency_budget: Duration,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Print statistics for machines, one JSON object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  two switches as one:
      ringpass bridge vale0:up vale1:down
  two pipes, without a copy:
      ringpass bridge netmap:a}1 netmap:a{2";

/// Opens a netmap port by name; `more` has what its name does not say.
pub fn open(name: &str, socket: Option<&PathBuf>, more: Register) -> Result<Port, Error> {
    let parsed: PortName = name.parse().map_err(|error| Error::Address(format!("{name}: {error}")))?;
    let socket = socket.cloned().map_or_else(default_socket, Ok)?;
    let port = Port::open(&parsed, &socket, more);
    port.map_err(|error| Error::from(error).of(name))
}

/// Longest sleep, so that signals and the time limit are noticed.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Calls of [`Bridge::forward`] between two readings of the clock.
const ROUNDS_PER_CLOCK_CHECK: usize = 64;

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    catch_first_signal()?;
    let slots = [args.slots.unwrap_or(0) as u32; 2];
    let more = || Register { slots, ..Register::default() };
    let ports = [&args.first, &args.second].map(|name| open(name, args.socket.as_ref(), more()));
    let [first, second] = ports;
    let (first, second) = (first?, second?);
    begin_run();
    let mut bridge = Bridge::new([first, second], args.copy, args.batch as u32, WaitPolicy::new(args.latency_budget));
    let how = if bridge.is_zero_copy() { "buffers are exchanged" } else { "frames are copied" };
    if !args.json && !is_quiet() {
        print_line(&format!("{} and {}: {how}", args.first, args.second));
    }
    let start = Instant::now();
    let mut second = Duration::from_secs(1);
    let mut before = [0; 2];
    while !interrupted() && args.time.is_none_or(|time| start.elapsed() < time) {
        for _ in 0..ROUNDS_PER_CLOCK_CHECK {
            if bridge.forward()? == 0 {
                bridge.wait(MAX_SLEEP)?;
                break;
            }
        }
        if start.elapsed() >= second {
            second += Duration::from_secs(1);
            if !is_quiet() {
                print(&args, start, &bridge, &before, "packets");
            }
            before = bridge.frames;
        }
    }
    print(&args, start, &bridge, &[0; 2], "total");
    Ok(())
}

fn print(args: &Args, start: Instant, bridge: &Bridge, before: &[u64; 2], what: &str) {
    let elapsed = start.elapsed().as_secs_f64();
    let [there, back] = [0, 1].map(|way| bridge.frames[way] - before[way]);
    if args.json {
        let (faulty, kicks_sent) = (bridge.faulty, bridge.kicks_sent());
        print_line(&json!({"event": what, "seconds": elapsed, "a_to_b": there, "b_to_a": back, "faulty": faulty, "rung": kicks_sent}).to_string());
    } else {
        print_line(&format!("{elapsed:7.1} s  {what}: {there} from A to B, {back} from B to A"));
    }
}
