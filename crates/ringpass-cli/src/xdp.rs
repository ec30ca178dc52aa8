//! The subcommand `ringpass xdp attach NAME --socket PATH`: lets processes without privileges have an interface's frames.

use std::time::{Duration, Instant};

use ringpass::sandbox::{Needs, Sandbox, User};
use ringpass::signals::interrupted;
use ringpass::{Address, Config, Error};
use ringpass_host_ports::{XdpServer, XdpServerEvent};
use ringpass_ipc::{Listener, SocketPlace};
use serde_json::json;

use crate::options::{SandboxOptions, base_config, bytes, seconds, within};
use crate::output::{is_quiet, note, print_notices};
use crate::run::Run;
use crate::stats::print_line;

/// Attach an XDP program to an interface, for ports of processes that may not do it themselves
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Attach(Attach),
}

/// Attach an XDP program to an interface, and give its frames to one process at a time that connects
///
/// The process needs no privileges: it opens xdp:NAME,socket=PATH. The kernel has all frames again when it ends, and the interface is as it was
/// when this ends.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct Attach {
    /// The interface, with the options of a port xdp:NAME: zerocopy or copy, mode=native or mode=generic, filter=…
    #[arg(value_name = "NAME[,OPTION…]")]
    interface: String,
    /// Socket to serve it at, with mode=, user=, group= for others who may connect
    #[arg(long, value_name = "PATH[,mode=0660…]")]
    socket: SocketPlace,
    /// Most queues of a process
    #[arg(long, value_name = "N", value_parser = within(1..=16), default_value = "1")]
    queues: usize,
    /// Most memory of a process for packets, which the kernel keeps present meanwhile: 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "256M")]
    memory: usize,
    /// End after this many seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Print events for machines, one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

const EXAMPLES: &str = "EXAMPLES:
  sudo ringpass xdp attach eth1 --socket /run/eth1,group=netdev
  ringpass echo xdp:eth1,socket=/run/eth1
  only what is meant for a tunnel, without a copy:
      sudo ringpass xdp attach eth1,zerocopy,filter=udp:4789 --queues 2 --socket /run/eth1,mode=0666";

/// Interval at which signals and the interface are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let Command::Attach(args) = args.command;
    let name = args.interface.strip_prefix("xdp:").unwrap_or(&args.interface);
    let Address::Xdp(config) = format!("xdp:{name}").parse()? else { unreachable!("it begins with its kind") };
    if args.sandbox.user != User::default() {
        return Err(Error::Config("--user: this keeps its user, who has the capabilities that it needs".into()));
    }
    let (sandbox, user) = (args.sandbox.sandbox(Sandbox::XdpServer), args.sandbox.user);
    let mut run = Run::new(Config { sandbox, user, ..base_config() }, args.json, TICK)?;
    let SocketPlace { path, access } = &args.socket;
    let listener = Listener::bind_for(path, access)?;
    let mut server = XdpServer::new(&config, args.queues, args.memory as u64, listener)?;
    run.enter_sandbox(&Needs::new(run.config.user))?;
    print_notices();
    let say = |event: &str, text: &str| {
        if args.json {
            print_line(&json!({"event": event, "text": text}).to_string());
        } else if !is_quiet() {
            print_line(text);
        }
    };
    say("start", &format!("{}: its frames are for who opens xdp:{0},socket={}", config.interface, path.display()));
    run.sandbox_notes().iter().for_each(|line| note(line));
    let start = Instant::now();
    while !interrupted() && args.time.is_none_or(|time| start.elapsed() < time) {
        let polled = server.poll_once(TICK, &mut |event| match event {
            XdpServerEvent::Granted(who) => say("granted", &format!("{who} has the interface's frames")),
            XdpServerEvent::Refused(why) => say("refused", &why),
            XdpServerEvent::Ended(why) => say("ended", &format!("{why}; the kernel has the interface's frames")),
        });
        polled.map_err(|errno| Error::os("waiting for processes", errno))?;
        if let Some(why) = server.gone() {
            return Err(Error::Gone(format!("xdp:{}: {why}", config.interface)));
        }
    }
    Ok(())
}
