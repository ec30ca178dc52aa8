//! The subcommand `ringpass sandbox-check`, in debug builds only: enters the sandbox and tries what should not
//! be possible in it.

use std::path::PathBuf;

use ringpass::Error;
use ringpass::sandbox::{Needs, Sandbox, enter};

/// Enter the sandbox and try what it forbids
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Open this file for reading
    #[arg(long)]
    open: Option<PathBuf>,
    /// Make a system call: its number, then its arguments
    #[arg(long, num_args = 1..=7, value_name = "NUMBER", allow_hyphen_values = true)]
    call: Vec<i64>,
    /// Act as a program with vhost-user sessions
    #[arg(long)]
    sessions: bool,
    /// Panic
    #[arg(long)]
    panic: bool,
    /// Stay outside the sandbox
    #[arg(long)]
    no_sandbox: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass sandbox-check --open /etc/shadow";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let sandbox = match args {
        Args { no_sandbox: true, .. } => Sandbox::Off,
        Args { sessions: true, .. } => Sandbox::Sessions,
        _ => Sandbox::Packets,
    };
    enter(sandbox, &Needs::default())?.iter().for_each(|line| outln!("{line}"));
    if let Some(path) = &args.open {
        outln!("open: {:?}", std::fs::File::open(path).map(drop));
    }
    if let [number, arguments @ ..] = &args.call[..] {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        outln!("call: {}", call(*number, all));
    }
    if args.panic {
        let thread = std::thread::spawn(|| panic!("as it was told to"));
        outln!("panic: {:?}", thread.join().map_err(|_| "caught"));
    }
    outln!("alive");
    Ok(())
}

/// Makes any system call, to test that the sandbox denies it.
#[allow(unsafe_code)]
fn call(number: i64, [a, b, c, d, e, f]: [i64; 6]) -> String {
    // SAFETY: this subcommand exists in debug builds only, and its tests pass small numbers, none of which is
    // an address in this process. So a call that takes one as a pointer fails with EFAULT, and the kernel
    // writes to no memory of the process. Of the calls that change mappings, tests make only `mmap` and
    // `mprotect` of executable memory, at which the sandbox ends the process.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { std::io::Error::last_os_error().to_string() } else { result.to_string() }
}
