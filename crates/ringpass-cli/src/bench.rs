//! The subcommand `ringpass bench`: runs the program `ringpass-bench` beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use ringpass::Error;

/// Measure drivers, vhost-user and netmap ports between software cards and processes, compared with papers and
/// DPDK
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// Arguments of ringpass-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass bench --help                   which benchmarks there are
  ringpass bench driver                   cycles per packet, by stage, batch size, ring size and page size";

/// Runs the subcommand. Does not return unless that fails.
pub fn run(args: Args) -> Result<(), Error> {
    let beside = std::env::current_exe().map(|own| own.with_file_name("ringpass-bench"));
    let program = beside.ok().filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("ringpass-bench"));
    let source = Command::new(program).args(args.arguments).exec();
    let what = "ringpass-bench, the benchmarks, is not beside ringpass nor on PATH; in the source: cargo build --release -p ringpass-bench";
    Err(Error::os(what, source))
}
