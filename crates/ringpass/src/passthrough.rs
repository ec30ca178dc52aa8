//! `ringpass passthrough PORT --socket PATH`: a netmap port inside a virtual machine.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use ringpass_netmap::client::Parts;
use ringpass_netmap::server::{COMMON, EXCHANGED};
use ringpass_peer::Listener;
use ringpass_port::{Error, MacAddress};
use ringpass_ptnet::{Counts, Device, GuestPort, Passthrough, Shared};
use ringpass_vfio_user::Event;
use serde_json::json;

use crate::bridge::open;
use crate::options::{seconds, within};
use crate::run::{Run, interrupted};
use crate::sandbox::Sandbox;
use crate::stats::say;

/// Pass a netmap port into a virtual machine
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port: one of a VALE switch, an end of a pipe, or a port of the machine
    #[arg(value_name = "PORT")]
    port: String,
    /// Socket to serve the port at; its memory is served beside it, at PATH.mem
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Give the guest the memory that other programs and trusted guests have too, so that pipes to them need no copy. (A pipe or
    /// a port of the machine always lies there. Without this, a guest has memory of its own.)
    #[arg(long)]
    trusted: bool,
    /// Address of the guest's card [default: made from the port's name]
    #[arg(long)]
    mac: Option<MacAddress>,
    /// Slots of its rings, if they are made by this. A guest takes longer to wake than a program, so it gets more of them
    #[arg(long, value_name = "N", value_parser = within(2..=16_384), default_value = "2048")]
    slots: usize,
    /// Rings to send, and as many to receive, likewise [default: 1]
    #[arg(long, value_name = "N", value_parser = within(1..=8))]
    rings: Option<usize>,
    /// Socket of the process that serves netmap ports
    #[arg(long, value_name = "PATH")]
    netmap_socket: Option<PathBuf>,
    /// End after so many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Print what happens for machines, one JSON object a line
    #[arg(long)]
    json: bool,
    /// Keep user, capabilities, files and all system calls after start-up
    #[arg(long)]
    no_sandbox: bool,
}

const EXAMPLES: &str = r#"EXAMPLES:
  a port of a switch for a guest, which sees no memory but its own:
      ringpass passthrough vale0:vm1 --socket /run/vm1
      qemu-system-x86_64 -m 1G -machine q35,memory-backend=m0 \
          -object memory-backend-memfd,id=m0,size=1G,share=on \
          -device '{"driver":"vfio-user-pci","socket":{"path":"/run/vm1.mem","type":"unix"}}' \
          -device '{"driver":"vfio-user-pci","socket":{"path":"/run/vm1","type":"unix"}}' …
      (QEMU 10.1 or newer, as the user that the sockets belong to; the guest loads netmap's module, or runs
      'ringpass pktgen 0000:00:03.0' and the like)
  two guests that trust each other, without a copy:
      ringpass passthrough netmap:x{1 --trusted --socket /run/vm1
      ringpass passthrough netmap:x}1 --trusted --socket /run/vm2"#;

/// Of pipes and ports of the machine.
const SHARED: &str = "it lies in memory that others have too; say --trusted if the guest may see it";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let is_pipe = args.port.contains(['{', '}']);
    let shared = || Error::Other(format!("{}: {SHARED}", args.port));
    if is_pipe && !args.trusted {
        return Err(shared());
    }
    let mut run = Run::new(crate::Defaults::parse_from(["ringpass"]).options)?;
    let is_vale = args.port.starts_with("vale");
    let name = if args.trusted && is_vale { format!("{}@1", args.port) } else { args.port.clone() };
    let port = open(&name, args.netmap_socket.as_ref(), Some(args.slots), args.rings)?;
    if !args.trusted && [COMMON, EXCHANGED].contains(&port.granted().memory_id) {
        return Err(shared());
    }
    let memory_socket = PathBuf::from(format!("{}.mem", args.socket.display()));
    let listen = |path: &Path| Listener::bind(path).map_err(|error| Error::Other(error.to_string()));
    let listeners = [listen(&memory_socket)?, listen(&args.socket)?];
    let Parts { register, rings, buffers, memory, bell, granted, client, .. } = port.into();
    let shared =
        Shared { file: memory, memory: buffers.memory().clone(), pools: granted.pools, id: register.memory_id };
    let mac = args.mac.unwrap_or_else(|| address(&args.port));
    let counts = rings.each_ref().map(Vec::len);
    let interface = register.offset as u32;
    let guest_port = GuestPort { interface, rings, mac, memory_id: register.memory_id };
    let mut passthrough = Passthrough::new(shared, guest_port, bell, listeners)?;
    run.enter_sandbox_as(if args.no_sandbox { Sandbox::Off } else { Sandbox::Server })?;
    let mut notes = vec![
        format!("{} at {}, its memory at {}", args.port, args.socket.display(), memory_socket.display()),
        format!("{mac}, {} ring(s) to send, {} to receive, memory {}", counts[0], counts[1], register.memory_id),
    ];
    notes.extend(run.sandbox_notes().iter().cloned());
    tell(&args, "start", &notes.join("\n"));
    let counters = passthrough.counters().clone();
    let start = Instant::now();
    let lost = std::cell::Cell::new(false);
    let next = std::cell::Cell::new(STATS);
    let go_on = || {
        lost.set(client.is_lost());
        if args.json && start.elapsed() >= next.get() {
            next.set(start.elapsed() + STATS);
            say(&event("stats", start.elapsed(), &counters.get()));
        }
        !interrupted() && !lost.get() && args.time.is_none_or(|time| start.elapsed() < time)
    };
    passthrough.serve(go_on, &mut |device, event| {
        let what = if device == Device::Memory { "memory" } else { "port" };
        match event {
            Event::Connected => tell(&args, "guest", &format!("{what}: a guest has come")),
            Event::Ended(why) => tell(&args, "guest", &format!("{what}: the guest is gone: {why}")),
            Event::Refused(why) => tell(&args, "refused", &format!("{what}: {why}")),
            Event::Busy => tell(&args, "refused", &format!("{what}: a second guest was turned away")),
            Event::Failed(error) => tell(&args, "refused", &format!("{what}: {error}")),
        }
    });
    passthrough.end();
    let counts = counters.get();
    if args.json {
        say(&event("total", start.elapsed(), &counts));
    } else {
        let Counts { kicks, interrupts, creates, wild, peer_faults } = counts;
        say(&format!(
            "{creates} start(s) by guests, {kicks} kicks, {interrupts} interrupts, {wild} wild positions, {peer_faults} faults of the other side"
        ));
    }
    if lost.get() {
        return Err(Error::Other("the process that serves netmap ports is gone".into()));
    }
    Ok(())
}

/// How often counters are printed, for machines.
const STATS: Duration = Duration::from_secs(1);

fn event(event: &str, elapsed: Duration, counts: &Counts) -> String {
    let Counts { kicks, interrupts, creates, wild, peer_faults } = counts;
    json!({
        "event": event, "seconds": elapsed.as_secs_f64(), "kicks": kicks, "interrupts": interrupts, "creates": creates,
        "wild": wild, "peer_faults": peer_faults,
    })
    .to_string()
}

fn tell(args: &Args, event: &str, text: &str) {
    if args.json {
        say(&json!({"event": event, "text": text}).to_string());
    } else {
        say(text);
    }
}

/// A locally administered address that a name always has (FNV-1a, of which 40 bits are taken).
fn address(name: &str) -> MacAddress {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    MacAddress([2, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn names_have_addresses_of_their_own() {
        assert_eq!(address("vale0:a"), address("vale0:a"));
        assert_ne!(address("vale0:a"), address("vale0:b"));
        assert_eq!(address("vale0:a").0[0] & 3, 2, "no group, locally administered");
    }
}
