//! The subcommand `ringpass passthrough PORT --socket PATH`: passes a netmap port into a virtual machine.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringpass::{Config, Error, MacAddress};
use ringpass_ipc::{Listener, SocketPlace};
use ringpass_netmap::client::{Client, default_socket};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, Register, register};
use ringpass_netmap_server::{COMMON_MEMORY, ZERO_COPY_MEMORY};
use ringpass_ptnet::{Counts, Device, GuestPort, Passthrough, SetHeaderLen, SharedRegion};
use ringpass_vfio_user::Event;
use serde_json::json;

use crate::bridge::open;
use crate::options::{SandboxOptions, base_config, latency_budget, seconds, within};
use crate::output::{is_quiet, print_notices};
use crate::run::Run;
use crate::stats::print_line;
use ringpass::sandbox::{Needs, Sandbox};
use ringpass::signals::interrupted;

/// Pass a netmap port into a virtual machine
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The port: a port of a VALE switch, an end of a pipe, or a port of the machine
    #[arg(value_name = "PORT")]
    port: String,
    /// Socket to serve the port at, with mode=, user=, group= for others who may connect; its memory is served at
    /// PATH.mem
    #[arg(long, value_name = "PATH[,mode=0660…]")]
    socket: SocketPlace,
    /// Give the guest access to the memory that other programs and trusted guests have, so that pipes to them
    /// need no copy. Needed for pipes and ports of the machine, which always use that memory. Without this, the
    /// guest has a memory of its own
    #[arg(long)]
    trusted: bool,
    /// MAC address of the guest's card [default: derived from the port's name]
    #[arg(long)]
    mac: Option<MacAddress>,
    /// Slots of each ring, if this creates the rings. The default is larger than a program's, as a guest takes
    /// longer to wake
    #[arg(long, value_name = "N", value_parser = within(2..=16_384), default_value = "2048")]
    slots: usize,
    /// Tx rings, and as many Rx rings, if this creates them [default: 1]
    #[arg(long, value_name = "N", value_parser = within(1..=16))]
    rings: Option<usize>,
    /// Socket of the netmap server
    #[arg(long, value_name = "PATH")]
    netmap_socket: Option<PathBuf>,
    /// Latency that it may add so that frames collect while it sleeps, in microseconds, 0 to 10000; none below 30
    #[arg(long, value_name = "MICROSECONDS", default_value = "50", value_parser = latency_budget)]
    latency_budget: Duration,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Print events for machines, one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
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

/// Reason why pipes and ports of the machine are refused without `--trusted`.
const SHARED: &str = "it lies in memory that others have too; say --trusted if the guest may see it";

/// Returns what changes the length of the header in front of the port's frames, by a request of its own.
fn set_header_len(args: &Args) -> Result<SetHeaderLen, Error> {
    let socket = args.netmap_socket.clone().map_or_else(default_socket, Ok)?;
    let mut client = Client::connect(&socket)?;
    let name = args.port.clone();
    Ok(Box::new(move |len| client.ask(&Request::new(Kind::PortHdrSet, &name, &len.to_le_bytes())).is_ok()))
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let is_pipe = args.port.contains(['{', '}']);
    let shared = || Error::Config(format!("{}: {SHARED}", args.port));
    if is_pipe && !args.trusted {
        return Err(shared());
    }
    let (sandbox, user) = (args.sandbox.sandbox(Sandbox::Server), args.sandbox.user);
    let config = Config { sandbox, user, ..base_config() };
    let mut run = Run::new(config, args.json, STATS_INTERVAL)?;
    let is_vale = args.port.starts_with("vale");
    let name = if args.trusted && is_vale { format!("{}@1", args.port) } else { args.port.clone() };
    let (slots, rings) = ([args.slots as u32; 2], [args.rings.unwrap_or(0) as u16; 2]);
    let flags = if is_vale { register::ACCEPTS_VNET_HEADER } else { 0 };
    let more = Register { slots, rings, flags, ..Register::default() };
    let mut port = open(&name, args.netmap_socket.as_ref(), more)?;
    if !args.trusted && [COMMON_MEMORY, ZERO_COPY_MEMORY].contains(&port.granted().memory_id) {
        return Err(shared());
    }
    let SocketPlace { path: socket, access } = &args.socket;
    let memory_socket = PathBuf::from(format!("{}.mem", socket.display()));
    let listen = |path: &Path| Listener::bind_for(path, access).map_err(Error::from);
    let listeners = [listen(&memory_socket)?, listen(socket)?];
    let rings = port.take_rings();
    let register = port.granted();
    let file = port.memory().try_clone_to_owned().map_err(|error| Error::os(&args.port, error))?;
    let call_event = port.new_waiter().map_err(|error| Error::os(&args.port, error))?;
    let memory = port.buffers().memory().clone();
    let shared = SharedRegion { file, memory, pools: *port.pools(), id: register.memory_id };
    let mac = args.mac.unwrap_or_else(|| address(&args.port));
    let counts = rings.each_ref().map(Vec::len);
    let interface = register.offset as u32;
    let set_header_len = is_vale.then(|| set_header_len(&args)).transpose()?;
    let guest_port = GuestPort { interface, rings, mac, memory_id: register.memory_id, set_header_len };
    let mut passthrough = Passthrough::new(shared, guest_port, call_event, listeners)?;
    passthrough.set_latency_budget(args.latency_budget);
    run.enter_sandbox(&Needs::new(run.config.user))?;
    let mut notes = vec![
        format!("{} at {}, its memory at {}", args.port, socket.display(), memory_socket.display()),
        format!("{mac}, {} ring(s) to send, {} to receive, memory {}", counts[0], counts[1], register.memory_id),
    ];
    notes.extend(run.sandbox_notes().iter().cloned());
    print_notices();
    if args.json || !is_quiet() {
        print_event(&args, "start", &notes.join("\n"));
    }
    let counters = passthrough.counters().clone();
    let start = Instant::now();
    let lost = std::cell::Cell::new(false);
    let next = std::cell::Cell::new(STATS_INTERVAL);
    let keep_running = || {
        lost.set(port.is_lost());
        if args.json && start.elapsed() >= next.get() {
            next.set(start.elapsed() + STATS_INTERVAL);
            print_line(&event("stats", start.elapsed(), &counters.get()));
        }
        !interrupted() && !lost.get() && args.time.is_none_or(|time| start.elapsed() < time)
    };
    passthrough.serve(keep_running, &mut |device, event| {
        let what = if device == Device::Memory { "memory" } else { "port" };
        match event {
            Event::Connected => print_event(&args, "guest", &format!("{what}: a guest has come")),
            Event::Ended(why) => print_event(&args, "guest", &format!("{what}: the guest is gone: {why}")),
            Event::Refused(why) => print_event(&args, "refused", &format!("{what}: {why}")),
            Event::Busy => print_event(&args, "refused", &format!("{what}: a second guest was turned away")),
            Event::Failed(error) => print_event(&args, "refused", &format!("{what}: {error}")),
        }
    });
    passthrough.end();
    let counts = counters.get();
    if args.json {
        print_line(&event("total", start.elapsed(), &counts));
    } else {
        let Counts { kicks, interrupts, creates, invalid_positions, peer_faults } = counts;
        print_line(&format!(
            "{creates} start(s) by guests, {kicks} kicks, {interrupts} interrupts, {invalid_positions} invalid ring positions, {peer_faults} faults of the other side"
        ));
    }
    if lost.get() {
        return Err(Error::Gone("the process that serves netmap ports is gone".into()));
    }
    Ok(())
}

/// Interval between two statistics events with `--json`.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

fn event(event: &str, elapsed: Duration, counts: &Counts) -> String {
    let Counts { kicks, interrupts, creates, invalid_positions, peer_faults } = counts;
    json!({
        "event": event, "seconds": elapsed.as_secs_f64(), "kicks": kicks, "interrupts": interrupts, "creates": creates,
        "wild": invalid_positions, "peer_faults": peer_faults,
    })
    .to_string()
}

fn print_event(args: &Args, event: &str, text: &str) {
    if args.json {
        print_line(&json!({"event": event, "text": text}).to_string());
    } else {
        print_line(text);
    }
}

/// Derives a locally administered address from a name: 40 bits of its FNV-1a hash.
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
