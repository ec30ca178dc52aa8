//! The program `ringpass-bench`, which `ringpass bench` runs: cost and latency of the driver, as in the ixy paper; cost of
//! vhost-user, compared with DPDK; netmap ports, as in the ptnetmap paper.

#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr)]

mod all;
mod capture;
mod cores;
mod cpu;
mod driven;
mod driver;
mod driver_peer;
mod driver_results;
mod folder;
mod heatmap;
mod huge_pages;
mod idle;
mod instructions;
mod latency;
mod latency_row;
mod machine;
mod measure;
mod median;
mod model;
mod netmap;
mod page;
mod pages;
mod paper;
mod plot;
mod process;
mod pvp;
mod rig;
mod switch;
mod tsc;
mod two_workers;
mod vhost;
mod xdp;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use ringpass::Error;
use ringpass_cli::output::{self, Verbosity};
use ringpass_cli::{generate, log, progress, table};

/// Measure drivers, vhost-user and netmap ports between software cards and processes, compared with papers and
/// DPDK
#[derive(Parser)]
#[command(name = "ringpass bench", bin_name = "ringpass bench", version, after_help = EXAMPLES, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    what: Benchmark,
}

#[derive(clap::Subcommand)]
enum Benchmark {
    All(all::Args),
    Driver(driver::Args),
    Model(model::Args),
    Capture(capture::Args),
    Page(page::Args),
    Switch(switch::Args),
    Latency(latency::Args),
    Idle(idle::Args),
    Vhost(vhost::Args),
    Pvp(pvp::Args),
    Netmap(netmap::Args),
    Xdp(xdp::Args),
    #[command(hide = true)]
    NetmapEnd(netmap::end::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench driver                   cycles per packet, by stage, batch size, ring size and page size
  ringpass bench driver --instructions    instructions per packet too, counted by valgrind
  ringpass bench model                    2, 8 and 32 software cards on one thread with their drivers
  ringpass bench capture                  what 'ringpass ctl capture' costs its port
  ringpass bench switch --instructions    what the switch costs a packet, by flows, ports and stations
  ringpass bench page                     what browsers and scrapers cost the demo
  ringpass bench latency --svg plots      latency by ring size and load, as a table and a plot
  sudo ringpass bench idle                CPU of a forwarder without traffic, and its first packet after a silence
  sudo ringpass bench vhost               packets to and from a guest, beside DPDK on the same cores
  sudo ringpass bench pvp                 card, switch, network function, switch, card: the experiments of IOVTee
  sudo ringpass bench xdp                 XDP sockets beside packet sockets on a veth pair
  ringpass bench netmap                   pipes and VALE switches: the experiments of ptnetmap
  sudo ringpass bench all --report performance.md    all of these, and a page with tables and plots";

fn main() -> ExitCode {
    log::start(Verbosity::QUIET);
    output::exit_code(run(Cli::parse().what))
}

fn run(what: Benchmark) -> Result<(), Error> {
    match what {
        Benchmark::All(args) => all::run(&args),
        Benchmark::Driver(args) => driver::run(args),
        Benchmark::Model(args) => model::run(&args),
        Benchmark::Capture(args) => capture::run(&args),
        Benchmark::Page(args) => page::run(&args),
        Benchmark::Switch(args) => switch::run(&args),
        Benchmark::Latency(args) => latency::run(args),
        Benchmark::Idle(args) => idle::run(args),
        Benchmark::Vhost(args) => vhost::run(args),
        Benchmark::Pvp(args) => pvp::run(args),
        Benchmark::Netmap(args) => netmap::run(args),
        Benchmark::Xdp(args) => xdp::run(args),
        Benchmark::NetmapEnd(args) => netmap::end::run(args),
        Benchmark::Generate(args) => generate::manual_pages(Cli::command(), &args.folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bench all` calls most of them so, and values of a list that was renamed are found only by parsing.
    #[test]
    fn every_benchmark_takes_its_defaults() {
        let cli = Cli::command();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let required = match command.get_name() {
                "all" => vec!["--report", "page.md"],
                _ => vec![],
            };
            let parsed = Cli::try_parse_from([vec!["bench", command.get_name()], required].concat());
            assert!(
                parsed.is_ok(),
                "{}: {}",
                command.get_name(),
                parsed.err().map(|e| e.to_string()).unwrap_or_default()
            );
        }
    }

    #[test]
    fn every_benchmark_has_an_example() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
            let help = command.clone().render_help().to_string();
            assert!(help.contains("EXAMPLES:"), "{}", command.get_name());
        }
    }
}
