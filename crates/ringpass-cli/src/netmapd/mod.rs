//! The subcommand `ringpass netmapd`: serves netmap ports to programs, without a kernel module.

mod control;
mod native;
mod vale;
mod worker;

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Group, User, geteuid};
use ringpass::{Address, Config, Error, Mempool, MempoolConfig, Ports};
use ringpass_ipc::{Listener, SocketPlace, prepare_notifiers};
use ringpass_netmap::Pools;
use ringpass_netmap::client::default_socket;
use ringpass_netmap_server::{Administrators, Budget, Server};
use serde_json::json;

use crate::log;
use crate::options::{Options, bytes, seconds, within};
use crate::output::{is_quiet, note, print_notices};
use crate::run::{Run, close};
use crate::signals::{be_impatient, begin_run, report_requested};
use crate::systemd;
use native::{NamedPort, NativeConfig, PacketPools};
use ringpass::sandbox::{Needs, Sandbox};
use ringpass::signals::interrupted;
use vale::{SwitchesHandle, ValeSwitches};

/// Serve netmap ports to programs: VALE switches and pipes, without a kernel module
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Socket to serve at [default: $RINGPASS_NETMAP_SOCKET, or ringpass-netmap.sock in $XDG_RUNTIME_DIR or, for root,
    /// /run; else netmap.sock in /tmp/ringpass-UID]; with mode=, user=, group= for others who may connect
    #[arg(long, value_name = "PATH[,mode=0660…]")]
    socket: Option<SocketPlace>,
    /// Port for programs as netmap:NAME, with a ring each way for each of its queues: eth0=0000:01:00.0; repeat
    /// for more
    #[arg(long, value_name = "NAME=ADDRESS")]
    port: Vec<NamedPort>,
    /// The host's stack behind a port of --port, for programs as netmap:NAME^: eth0=tap:host0. Without a program, the
    /// two are connected; repeat for more
    #[arg(long, value_name = "NAME=ADDRESS")]
    host: Vec<NamedPort>,
    /// Port that is attached to a switch from the start: vale0:tap:x or vale0:0000:01:00.0; repeat for more
    #[arg(long, value_name = "SWITCH:PORT")]
    attach: Vec<String>,
    /// Port that programs may attach to a switch later: tap:x or 0000:01:00.0; repeat for more. Ports of
    /// --attach may always be attached again. Needs --no-sandbox, because ports are opened later
    #[arg(long, value_name = "ADDRESS", requires = "no_sandbox")]
    allow: Vec<Address>,
    /// Group whose members control the persistent and native ports of all users, as root and the user who runs this do:
    /// attach, detach and delete them. Read when this starts; the socket must let them connect, too
    #[arg(long, value_name = "GROUP", value_parser = group)]
    admin_group: Option<Group>,
    /// Buffers of 2 KiB in the memory of native ports, and of ports and pipes whose programs ask for it; cards that exchange
    /// buffers have as many for programs in their memory
    #[arg(long, value_name = "N", default_value = "16384", value_parser = within(256..=1 << 20))]
    buffers: usize,
    /// Further memory for ports of programs, all together; one program may have a quarter of it: 512M, 2G
    /// [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<usize>,
    /// Packet buffers of all switches
    #[arg(long, value_name = "N", default_value = "16384", value_parser = within(1024..=1 << 20))]
    packets: usize,
    /// End when no program has been connected and no port has lasted without one for this many seconds
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
  the same card with the kernel's stack behind it, and a bridge between both:
      sudo ringpass netmapd --port eth0=0000:01:00.0 --host eth0=tap:host0
      sudo LD_PRELOAD=libringpass_netmap.so bridge -i netmap:eth0 -i netmap:eth0^
  what there is, and who is where:
      ringpass vale
  rates, live, and metrics for Prometheus:
      ringpass netmapd --control /run/netmapd --metrics 127.0.0.1:9184
      ringpass top --socket /run/netmapd
  the same from its own output:
      kill -USR1 $(pidof ringpass)";

/// Largest number of queues of a port.
const MAX_QUEUES: usize = 8;

/// Interval at which switches and attached ports are checked.
const TICK: Duration = Duration::from_millis(50);

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    if args.options.queues != 1 && args.port.is_empty() {
        return Err(Error::Config("--queues: a VALE switch has one worker, and its ports one queue".into()));
    }
    if args.options.queues > MAX_QUEUES {
        return Err(Error::Config(format!("--queues: a netmap port has at most {MAX_QUEUES}")));
    }
    let sandbox = args.options.sandbox.sandbox(Sandbox::Server);
    let mut run = Run::new(Config { sandbox, ..args.options.config() }, args.options.json, args.options.interval)?;
    let Options { control, control_read_only, metrics, web, .. } = &args.options;
    run.listen(control.as_ref(), control_read_only.as_ref())?;
    run.show(metrics.as_deref(), web.as_ref())?;
    let mut control = run.take_control();
    let default = || default_socket().map(|path| SocketPlace { path, ..SocketPlace::default() });
    let SocketPlace { path, access } = args.socket.map_or_else(default, Ok)?;
    let listener = Listener::bind_for(&path, &access)?;
    prepare_notifiers().map_err(|error| Error::Fault(error.to_string()))?;
    // The default memory limit is read now, because `sysinfo` is not allowed in the sandbox.
    let memory = args.memory.unwrap_or_else(half_of_memory);
    let pool = Mempool::new(&MempoolConfig { buffers: args.packets, ..Default::default() })?;
    let mut vale_config = run.config.clone();
    vale_config.port.queues = 1;
    let budget = Budget::new(memory);
    let vales = Rc::new(RefCell::new(ValeSwitches::new(pool.clone(), vale_config, args.allow, budget.clone())));
    let mut needs = Needs::new(run.config.user);
    let open = |name: &String| vales.borrow_mut().open_configured(name, &mut needs);
    let attach = args.attach.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let pools = common_memory(args.buffers);
    let ports = native::with_hosts(args.port, args.host)?;
    let mut packets = PacketPools::new(&ports, pools, &run.config)?;
    let open = |named: &NativeConfig| named.open(&packets, &run.config, &mut needs);
    let natives = ports.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    // The sandbox changes the user of a process of root.
    let administrators = administrators(args.admin_group.as_ref());
    run.enter_sandbox(&needs)?;
    // Threads start only after the sandbox has been entered.
    attach.into_iter().try_for_each(|port| vales.borrow_mut().attach(port).map(drop))?;
    vales.borrow_mut().opened(sandbox);
    let switches = Box::new(SwitchesHandle::new(vales.clone()));
    let mut server = Server::new(listener, pools, switches)?;
    server.limit_memory(budget);
    server.set_administrators(administrators);
    packets.exchanged.take().into_iter().for_each(|region| server.exchange(region));
    // Programs of the run before this one, if a service manager has kept what belongs to them.
    let taken_over = server.take_over(systemd::take_stored()).unwrap_or_else(|error| {
        errln!("{}; its programs are disconnected", error.why);
        0
    });
    let json = args.options.json;
    let place = format!("netmap ports at {}", path.display());
    let mut notes = if json { Vec::new() } else { vec![place] };
    notes.extend((taken_over > 0).then(|| format!("goes on with {taken_over} programs of the process before")));
    notes.extend(run.sandbox_notes().iter().cloned());
    notes.extend(vales.borrow_mut().notes());
    notes.extend(natives.iter().flat_map(native::OpenedNative::notes));
    for (number, opened) in natives.into_iter().enumerate() {
        let name = opened.name.clone();
        // Thread 0 is a switch's worker.
        let native = opened.start(1 + number, &run.config)?;
        server.serve(&name, native)?;
    }
    // Errors are ignored: standard output may be closed.
    let say = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
    print_notices();
    if json {
        notes.iter().for_each(|line| note(line));
        say(&json!({"event": "start", "socket": path, "taken_over": taken_over}).to_string());
    } else if !is_quiet() {
        notes.iter().for_each(|line| say(line));
    }
    begin_run();
    let start = Instant::now();
    let mut busy = start;
    while !interrupted() && run.config.time.is_none_or(|time| start.elapsed() < time) {
        server.poll_once(TICK).map_err(|source| Error::os("waiting for programs", source))?;
        vales.borrow_mut().tick(start.elapsed());
        systemd::show_life(None);
        let gone = server.tick();
        if let Some(control) = &mut control {
            control.serve(&mut |request, _| control::answer(&request, &server.status(), start.elapsed()));
            let events =
                gone.iter().map(|(name, why)| json!({"event": "gone", "port": format!("netmap:{name}"), "why": why}));
            events.chain(log::taken()).for_each(|event| control.publish(&event));
        }
        for (name, why) in gone {
            errln!("netmap:{name} is gone: {why}");
            if json {
                say(&json!({"event": "gone", "port": name, "why": why}).to_string());
            }
        }
        if report_requested() {
            let mut status = server.status();
            if json {
                status["event"] = "stats".into();
                say(&status.to_string());
            } else {
                crate::vale::list(&status);
            }
        }
        if server.programs() > 0 || server.has_lasting_ports() {
            busy = Instant::now();
        }
        if args.until_idle.is_some_and(|idle| busy.elapsed() > idle) {
            break;
        }
    }
    be_impatient();
    // Ports and switches, which hold packets, are dropped before missing buffers are counted.
    if interrupted() && systemd::has_store() {
        hand_over(server);
    } else {
        drop(server);
    }
    drop(vales);
    close(Ports::new(Vec::new(), pool, needs));
    Ok(())
}

/// Leaves the programs to the next run of the service, which the service manager may be about to start.
fn hand_over(server: Server) {
    let mut number = 0;
    let put = &mut |name: &str, descriptor: BorrowedFd<'_>| {
        number += 1;
        systemd::store(number, name, descriptor)
    };
    match server.hand_over(put) {
        Ok(programs) => note(&format!("leaves {programs} programs to the next run")),
        Err(error) => errln!("{error}; its programs are disconnected"),
    }
    if let Err(error) = systemd::settle() {
        errln!("leaving the programs to the next run: {error}");
    }
}

/// Parses the name or number of a group.
fn group(text: &str) -> Result<Group, String> {
    let named = |found: nix::Result<Option<Group>>| found.ok().flatten();
    let numbered = text.parse().ok().and_then(|number| named(Group::from_gid(Gid::from_raw(number))));
    let group = numbered.or_else(|| named(Group::from_name(text)));
    group.ok_or_else(|| format!("there is no group '{text}'; write a name or a number"))
}

/// Returns who controls the ports of all users: who runs this, and the members of a group.
fn administrators(group: Option<&Group>) -> Administrators {
    let members = group.into_iter().flat_map(|group| &group.mem);
    let members = members.filter_map(|name| Some(User::from_name(name).ok()??.uid.as_raw()));
    let users = std::iter::once(geteuid().as_raw()).chain(members).collect();
    Administrators { users, group: group.map(|group| group.gid.as_raw()) }
}

/// Returns half of the machine's memory in bytes.
fn half_of_memory() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize) / 2
}

/// Returns the sizes of the common memory. It has rings for as many pipes as there are buffers for. Each buffer
/// counts 128 bytes of rings: four slots of 16 bytes, in the Tx and Rx rings of both ends and in host rings,
/// and room for headers.
fn common_memory(buffers: usize) -> Pools {
    Pools { interfaces: buffers as u32 / 16, ring_bytes: buffers * 128, buffers: buffers as u32, ..Pools::default() }
}
