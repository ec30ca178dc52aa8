//! `ringpass bench`: what the driver costs, and how long packets wait, as the ixy paper measures them; what vhost-user
//! costs, beside DPDK's; and netmap ports, as the ptnetmap paper measures them.

mod cores;
mod cpu;
mod driver;
mod folder;
mod heat;
mod huge_pages;
mod idle;
mod instructions;
mod latency;
mod machine;
mod measure;
mod netmap;
mod paper;
mod plot;
mod process;
mod pvp;
mod rig;
mod table;
mod tsc;
mod vhost;

use ringpass_port::Error;

/// Measure drivers, vhost-user and netmap ports between software cards and processes, beside papers and DPDK
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Driver(driver::Args),
    Latency(latency::Args),
    Idle(idle::Args),
    Vhost(vhost::Args),
    Pvp(pvp::Args),
    Netmap(netmap::Args),
    #[command(hide = true)]
    NetmapEnd(netmap::end::Args),
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench driver                   cycles per packet, by stage, batch size, ring size and page size
  ringpass bench driver --instructions    instructions per packet too, counted by valgrind
  ringpass bench latency --svg plots      latency by ring size and load, as a table and a plot
  sudo ringpass bench idle                CPU of a forwarder without traffic, and its first packet after a silence
  sudo ringpass bench vhost               packets to and from a guest, beside DPDK on the same cores
  sudo ringpass bench pvp                 card, switch, network function, switch, card: the experiments of IOVTee
  ringpass bench netmap                   pipes and VALE switches: the experiments of ptnetmap";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    match args.what {
        What::Driver(args) => driver::run(args),
        What::Latency(args) => latency::run(args),
        What::Idle(args) => idle::run(args),
        What::Vhost(args) => vhost::run(args),
        What::Pvp(args) => pvp::run(args),
        What::Netmap(args) => netmap::run(args),
        What::NetmapEnd(args) => netmap::end::run(args),
    }
}
