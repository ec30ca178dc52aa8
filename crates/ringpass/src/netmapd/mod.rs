//! `ringpass netmapd`: serves netmap ports to programs, without a kernel module.

mod native;
mod vale;
mod worker;

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringpass_memory::{Mempool, MempoolConfig};
use ringpass_netmap::Pools;
use ringpass_netmap::client::default_socket;
use ringpass_netmap::server::{Refusal, Server};
use ringpass_peer::{Listener, prepare_signals};
use ringpass_port::{Address, Error};

use crate::open::close;
use crate::options::{Options, bytes, seconds, within};
use crate::run::{Run, interrupted};
use crate::sandbox::Sandbox;
use native::{Named, Packets};
use vale::{Attached, Vales};

/// Serve netmap ports to programs: VALE switches and pipes, without a kernel module
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Socket to serve at [default: $RINGPASS_NETMAP_SOCKET, or ringpass-netmap.sock in $XDG_RUNTIME_DIR or, for root,
    /// /run; else netmap.sock in /tmp/ringpass-UID]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// A port that programs have as netmap:NAME, with a ring each way for each of its queues: eth0=0000:01:00.0; again for
    /// another
    #[arg(long, value_name = "NAME=ADDRESS")]
    port: Vec<Named>,
    /// A port that belongs to a switch from the start, as vale0:tap:x or vale0:0000:01:00.0; again for another
    #[arg(long, value_name = "SWITCH:PORT")]
    attach: Vec<String>,
    /// A port that programs may attach to a switch while this runs: tap:x or 0000:01:00.0; again for another. Those of --attach may
    /// be attached again anyway. Opening ports takes --no-sandbox
    #[arg(long, value_name = "ADDRESS", requires = "no_sandbox")]
    allow: Vec<Address>,
    /// Buffers of 2 KiB in the memory that pipes lie in, and ports whose programs ask for it; as many for programs in that of cards
    /// that exchange buffers
    #[arg(long, value_name = "N", default_value = "16384", value_parser = within(256..=1 << 20))]
    buffers: usize,
    /// Memory that ports of programs may have together beside that, of which one program may have a quarter: 512M, 2G
    /// [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<usize>,
    /// Packets that may be under way in all switches
    #[arg(long, value_name = "N", default_value = "16384", value_parser = within(1024..=1 << 20))]
    packets: usize,
    /// End when no program has been there for so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10", value_parser = seconds)]
    until_idle: Option<Duration>,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "EXAMPLES:
  serve at the default socket, until Ctrl-C:
      ringpass netmapd
  netmap's own programs, unmodified, on a switch (any number of ports, made when they are opened):
      LD_PRELOAD=libringpass_netmap.so pkt-gen -i vale0:a -f tx
      LD_PRELOAD=libringpass_netmap.so pkt-gen -i vale0:b -f rx
  a switch with the kernel's network behind one of its ports:
      sudo ringpass netmapd --attach vale0:tap:left
  a card for netmap's own programs:
      sudo ringpass netmapd --port eth0=0000:01:00.0
      sudo LD_PRELOAD=libringpass_netmap.so pkt-gen -i netmap:eth0 -f rx
  what there is, and who is where:
      ringpass vale";

/// Queues of a port.
const MOST_QUEUES: usize = 8;

/// How often switches and attached ports are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if args.options.queues != 1 && args.port.is_empty() {
        return Err(Error::Other("--queues: a VALE switch has one worker, and its ports one queue".into()));
    }
    if args.options.queues > MOST_QUEUES {
        return Err(Error::Other(format!("--queues: a netmap port has at most {MOST_QUEUES}")));
    }
    let mut run = Run::new(args.options)?;
    let path = args.socket.map_or_else(default_socket, Ok).map_err(|error| Error::Other(error.to_string()))?;
    let listener = Listener::bind(&path).map_err(|error| Error::Other(error.to_string()))?;
    prepare_signals().map_err(|error| Error::Other(error.to_string()))?;
    // In the sandbox nobody can ask.
    let memory = args.memory.unwrap_or_else(half_of_memory);
    let pool = Mempool::new(&MempoolConfig { buffers: args.packets, ..Default::default() })?;
    let vale_options = Options { queues: 1, ..run.options.clone() };
    let vales = Rc::new(RefCell::new(Vales::new(pool.clone(), vale_options, args.allow)));
    let other = |refusal: Refusal| Error::Other(refusal.why);
    let open = |name: &String| vales.borrow_mut().open_own(name).map_err(other);
    let attach = args.attach.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let pools = common_memory(args.buffers);
    let mut packets = Packets::new(&args.port, pools, &run.options)?;
    let open = |named: &Named| named.open(&packets, &run.options);
    let natives = args.port.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let sandbox = if run.options.no_sandbox { Sandbox::Off } else { Sandbox::Server };
    run.enter_sandbox_as(sandbox)?;
    // Threads begin now.
    attach.into_iter().try_for_each(|port| vales.borrow_mut().attach(port)).map_err(other)?;
    vales.borrow_mut().opened(sandbox);
    let switches = Box::new(Attached::new(vales.clone()));
    let mut server = Server::new(listener, pools, switches).map_err(other)?;
    server.limit_memory(memory);
    packets.exchanged.take().into_iter().for_each(|region| server.exchange(region));
    let mut out = std::io::stdout();
    let mut notes = vec![format!("netmap ports at {}", path.display())];
    notes.extend(run.sandbox_notes().iter().cloned());
    notes.extend(vales.borrow_mut().notes());
    notes.extend(natives.iter().flat_map(native::Opened::notes));
    for (number, opened) in natives.into_iter().enumerate() {
        let name = opened.name.clone();
        // The first thread is a switch's.
        let native = opened.start(1 + number, &run.options).map_err(other)?;
        server.serve(&name, native).map_err(other)?;
    }
    // Nobody may read it.
    let _ = notes.into_iter().try_for_each(|note| writeln!(out, "{note}"));
    let _ = out.flush();
    let start = Instant::now();
    let mut busy = start;
    while !interrupted() && run.options.time.is_none_or(|time| start.elapsed() < time) {
        server.turn(TICK).map_err(|source| Error::Os { what: "waiting for programs".into(), source })?;
        vales.borrow_mut().tick(start.elapsed());
        for (name, why) in server.tick() {
            errln!("netmap:{name} is gone: {why}");
        }
        if server.programs() > 0 {
            busy = Instant::now();
        }
        if args.until_idle.is_some_and(|idle| busy.elapsed() > idle) {
            break;
        }
    }
    // Ports and switches end, and with them all that have packets.
    drop((server, vales));
    close(Vec::new(), &pool);
    Ok(())
}

/// Half of the machine's memory.
fn half_of_memory() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize) / 2
}

/// Rings for as many pipes as the buffers are for: four slots of 16 bytes, in rings to send and to receive of both ends and
/// of the host, for each buffer, and room for headers.
fn common_memory(buffers: usize) -> Pools {
    Pools { interfaces: buffers as u32 / 16, ring_bytes: buffers * 128, buffers: buffers as u32, ..Pools::default() }
}
