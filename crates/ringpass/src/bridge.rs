//! `ringpass bridge A B`: joins two netmap ports.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringpass_netmap::bridge::Bridge;
use ringpass_netmap::client::{Port, default_socket};
use ringpass_netmap::request::Register;
use ringpass_port::Error;
use serde_json::json;

use crate::options::{seconds, within};
use crate::run::{interrupted, notice_interrupts};
use crate::stats::say;

/// Join two netmap ports: what comes from one goes to the other
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The first port
    #[arg(value_name = "A")]
    first: String,
    /// The second port
    #[arg(value_name = "B")]
    second: String,
    /// Copy frames even where both ports have the same memory, whose buffers could be exchanged
    #[arg(long)]
    copy: bool,
    /// Slots that are moved together
    #[arg(long, value_name = "N", default_value = "1024", value_parser = within(1..=65_536))]
    batch: usize,
    /// Slots of the rings of pipes and ports that are made by this [default: 1024]
    #[arg(long, value_name = "N", value_parser = within(2..=16_384))]
    slots: Option<usize>,
    /// Socket of the serving process
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// End after so many seconds
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
      ringpass bridge netmap:a}1 netmap:b{1";

/// Opens a netmap port by its name, with so many rings of so many slots if they are made by this.
pub fn open(name: &str, socket: Option<&PathBuf>, slots: Option<usize>, rings: Option<usize>) -> Result<Port, Error> {
    let other = |error: &dyn std::fmt::Display| Error::Other(format!("{name}: {error}"));
    let parsed = name.parse().map_err(|error| other(&error))?;
    let slots = [slots.unwrap_or(0) as u32; 2];
    let rings = [rings.unwrap_or(0) as u16; 2];
    let socket = socket.cloned().map_or_else(default_socket, Ok).map_err(|error| other(&error))?;
    Port::open(&parsed, &socket, Register { slots, rings, ..Register::default() }).map_err(|error| other(&error))
}

/// How long it sleeps at most, to see that it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Turns before it looks at the clock.
const TURNS: usize = 64;

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    notice_interrupts()?;
    let ports = [&args.first, &args.second].map(|name| open(name, args.socket.as_ref(), args.slots, None));
    let [first, second] = ports;
    let mut bridge = Bridge::new([first?, second?], args.copy, args.batch as u32);
    let how = if bridge.is_zero_copy() { "buffers are exchanged" } else { "frames are copied" };
    if !args.json {
        say(&format!("{} and {}: {how}", args.first, args.second));
    }
    let other = |error: ringpass_netmap::client::Error| Error::Other(error.to_string());
    let (start, mut second, mut before) = (Instant::now(), Duration::from_secs(1), [0; 2]);
    while !interrupted() && args.time.is_none_or(|time| start.elapsed() < time) {
        for _ in 0..TURNS {
            if bridge.turn().map_err(other)? == 0 {
                bridge.wait(LOOK).map_err(other)?;
                break;
            }
        }
        if start.elapsed() >= second {
            second += Duration::from_secs(1);
            print(&args, start, &bridge, &before, "packets");
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
        let (faulty, rung) = (bridge.faulty, bridge.rung());
        say(&json!({"event": what, "seconds": elapsed, "a_to_b": there, "b_to_a": back, "faulty": faulty, "rung": rung}).to_string());
    } else {
        say(&format!("{elapsed:7.1} s  {what}: {there} from A to B, {back} from B to A"));
    }
}
