//! The program `ringpass`: one file for each subcommand. Start reading with `fwd.rs`.
//!
//! Public are the pieces that `ringpass-bench` shares with it: options, output, signals, the cost of two cores, the
//! demo's traffic, commands that drive software cards, tables and progress.

#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;
mod own_program;

mod apply;
mod bench;
pub mod bridge;
mod check;
pub mod config_file;
mod connector;
mod control;
pub mod cores;
mod ctl;
pub mod demo;
#[cfg(test)]
mod docs_page;
mod doctor;
mod dump;
mod echo;
mod evpn;
mod extcap;
mod fwd;
pub mod generate;
mod list;
mod loadtest;
pub mod log;
mod metrics;
mod model_server;
pub mod native_driver;
mod netmapd;
pub mod options;
mod passthrough;
mod ping;
mod pktgen;
pub mod progress;
mod run;
mod run_observer;
#[cfg(debug_assertions)]
mod sandbox_check;
mod schema_keys;
mod service;
pub mod signals;
mod stats;
mod switch;
mod systemd;
pub mod table;
mod top;
mod vale;
mod xdp;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::CompleteEnv;

use output::Verbosity;

/// Moves Ethernet frames between network cards and programs from user space. Without a subcommand: demo.
#[derive(Parser)]
#[command(name = "ringpass", version, after_help = ADDRESSES, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    verbosity: Verbosity,
    /// Run as a part of the service at the other end of standard input
    #[arg(long, global = true, hide = true)]
    part_of_service: bool,
}

const ADDRESSES: &str = "\
PORT ADDRESSES:
  0000:01:00.0            a network card by its PCI address, as in 'ringpass list'
  model:PORT              a software 82599, driven as a card is, with PORT at the
                          far end of its wire [,mac=MAC] [,device=10fb]
  vfio-user:PATH          a device of another process, as 'ringpass model' serves
  vhost:PATH              a virtual machine (QEMU, vhost-user) [,client]
                          [,queues=N] [,mode=0660] [,user=NAME] [,group=NAME]
  virtio-user:PATH        a back-end of vhost-user in another process [,server]
                          [,queues=N] [,mac=MAC]
  vale0:a                 a port of a VALE switch of 'ringpass netmapd'
  netmap:x{1, netmap:x}1  the two ends of a pipe, likewise
  tap:NAME                a TAP interface of the kernel, made if need be
  packet:NAME             a kernel interface, through a packet socket
  xdp:NAME                a kernel interface, through an XDP socket
                          [,mode=native|generic] [,copy]
  pcap:FILE               a capture file to receive from
                          [,loop=N] [,speed=recorded|max|FACTOR] [,out=FILE]
  pcap:,out=FILE          a capture file to send to
  null                    receives nothing, drops all
  capture,file=FILE:PORT  writes what passes a port to a capture file
  faults,drop=0.01:PORT   spoils what passes a port
                          [,duplicate=P] [,reorder=P] [,corrupt=P] [,seed=N]

EXAMPLES:
  the driver between two software cards, no root needed:
      ringpass
  the kernel's own traffic through the driver:
      sudo ringpass fwd model:tap:left model:tap:right
  what this machine can do, and what would mend the rest:
      ringpass doctor";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Fwd(fwd::Args),
    Run(service::Args),
    Check(check::Args),
    Ctl(ctl::Args),
    Apply(apply::Args),
    Top(top::Args),
    Switch(switch::Args),
    Pktgen(Box<pktgen::Args>),
    Loadtest(Box<loadtest::Args>),
    Dump(dump::Args),
    Echo(echo::Args),
    Ping(ping::Args),
    Model(Box<model_server::Args>),
    List(list::Args),
    Doctor(doctor::Args),
    Netmapd(Box<netmapd::Args>),
    Vale(vale::Args),
    Bridge(bridge::Args),
    Passthrough(passthrough::Args),
    Xdp(xdp::Args),
    Evpn(evpn::Args),
    Extcap(extcap::Args),
    Bench(bench::Args),
    #[command(hide = true)]
    Connector(connector::Args),
    #[command(hide = true)]
    Generate(generate::Args),
    #[command(hide = true)]
    Reload(service::reload::Args),
    #[cfg(debug_assertions)]
    #[command(hide = true)]
    SandboxCheck(sandbox_check::Args),
}

/// Runs the program: parses its command line, runs the subcommand, and returns the exit status.
pub fn main() -> ExitCode {
    // Answers the shell and ends, if that asks for completions.
    CompleteEnv::with_factory(Cli::command).complete();
    let matches = Cli::command().get_matches();
    output::set_subcommand(matches.subcommand_name().unwrap_or("demo"));
    let Cli { command, verbosity, part_of_service } =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log::start(verbosity);
    if part_of_service {
        signals::be_part_of_service();
    }
    let demo = || Cli::parse_from(["ringpass", "demo"]).command.expect("a subcommand was named");
    let command = command.unwrap_or_else(demo);
    output::exit_code(signals::catch_report_requests().and_then(|()| systemd::start()).and_then(|()| run(command)))
}

fn run(command: Command) -> Result<(), ringpass::Error> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Fwd(args) => fwd::run(args),
        Command::Run(args) => service::run(args),
        Command::Check(args) => check::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Top(args) => top::run(args),
        Command::Switch(args) => switch::run(args),
        Command::Pktgen(args) => pktgen::run(*args),
        Command::Loadtest(args) => loadtest::run(*args),
        Command::Dump(args) => dump::run(args),
        Command::Echo(args) => echo::run(args),
        Command::Ping(args) => ping::run(args),
        Command::Model(args) => model_server::run(*args),
        Command::List(args) => list::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Netmapd(args) => netmapd::run(*args),
        Command::Vale(args) => vale::run(args),
        Command::Bridge(args) => bridge::run(args),
        Command::Passthrough(args) => passthrough::run(args),
        Command::Xdp(args) => xdp::run(args),
        Command::Evpn(args) => evpn::run(args),
        Command::Extcap(args) => extcap::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Connector(args) => connector::run(args),
        Command::Generate(args) => generate::run(args, Cli::command()),
        Command::Reload(args) => service::reload::run(args),
        #[cfg(debug_assertions)]
        Command::SandboxCheck(args) => sandbox_check::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_an_example() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
            let help = command.clone().render_help().to_string();
            assert!(help.contains("EXAMPLES:"), "{}", command.get_name());
        }
    }
}
