//! The subcommand `ringpass sandbox-check`, in debug builds only: enters the sandbox and tries what should not
//! be possible in it.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use libc::c_long;
use ringpass::Error;
use ringpass::sandbox::{Needs, Sandbox, enter};

/// Enter the sandbox and try what it forbids
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Open this file for reading
    #[arg(long)]
    open: Option<PathBuf>,
    /// Make this system call
    #[arg(long, value_parser = call_names(), conflicts_with = "no_sandbox")]
    call: Option<String>,
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
  ringpass sandbox-check --open /etc/shadow
  ringpass sandbox-check --call socket-inet";

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
    if let Some(name) = &args.call {
        outln!("call: {}", call(name));
    }
    if args.panic {
        let thread = std::thread::spawn(|| panic!("as it was told to"));
        outln!("panic: {:?}", thread.join().map_err(|_| "caught"));
    }
    outln!("alive");
    Ok(())
}

const HERE: c_long = libc::AT_FDCWD as c_long;
const READ_EXECUTE: c_long = (libc::PROT_READ | libc::PROT_EXEC) as c_long;
const ALL: c_long = READ_EXECUTE | libc::PROT_WRITE as c_long;
const ANONYMOUS: c_long = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as c_long;

/// The system calls that can be made, by name: each with its number and arguments. None of the arguments is an
/// address in this process. Those that the caller leaves out are 0.
const CALLS: &[(&str, &[c_long])] = &[
    // Access to the network, other programs and other processes.
    ("socket-inet", &[libc::SYS_socket, libc::AF_INET as c_long, libc::SOCK_STREAM as c_long]),
    ("socket-packet", &[libc::SYS_socket, libc::AF_PACKET as c_long, libc::SOCK_RAW as c_long]),
    ("socket-unix", &[libc::SYS_socket, libc::AF_UNIX as c_long, libc::SOCK_STREAM as c_long]),
    ("connect", &[libc::SYS_connect]),
    ("bind", &[libc::SYS_bind]),
    ("accept4", &[libc::SYS_accept4]),
    ("sendto-address", &[libc::SYS_sendto, 0, 0, 0, 0, 1]),
    ("setsockopt", &[libc::SYS_setsockopt]),
    ("execve", &[libc::SYS_execve]),
    ("execveat", &[libc::SYS_execveat]),
    ("fork", &[libc::SYS_fork]),
    ("vfork", &[libc::SYS_vfork]),
    ("clone-process", &[libc::SYS_clone, libc::SIGCHLD as c_long]),
    ("clone3", &[libc::SYS_clone3]),
    ("kill", &[libc::SYS_kill, 1, 0]),
    ("tgkill", &[libc::SYS_tgkill, 1, 1, 0]),
    ("ptrace", &[libc::SYS_ptrace]),
    ("process_vm_readv", &[libc::SYS_process_vm_readv, 1]),
    ("pidfd_open", &[libc::SYS_pidfd_open, 1]),
    // Files.
    ("open", &[libc::SYS_open]),
    ("openat-write", &[libc::SYS_openat, HERE, 0, libc::O_RDWR as c_long]),
    ("openat-create", &[libc::SYS_openat, HERE, 0, libc::O_CREAT as c_long]),
    ("openat2", &[libc::SYS_openat2]),
    ("unlink", &[libc::SYS_unlink]),
    ("unlinkat", &[libc::SYS_unlinkat, HERE]),
    ("chmod", &[libc::SYS_chmod]),
    // Privileges and the system.
    ("setuid", &[libc::SYS_setuid]),
    ("capset", &[libc::SYS_capset]),
    ("prctl-dumpable", &[libc::SYS_prctl, libc::PR_SET_DUMPABLE as c_long, 1]),
    ("mount", &[libc::SYS_mount]),
    ("unshare", &[libc::SYS_unshare]),
    ("bpf", &[libc::SYS_bpf]),
    ("keyctl", &[libc::SYS_keyctl]),
    ("init_module", &[libc::SYS_init_module]),
    ("io_uring_setup", &[libc::SYS_io_uring_setup]),
    ("perf_event_open", &[libc::SYS_perf_event_open]),
    ("userfaultfd", &[libc::SYS_userfaultfd]),
    ("ioctl-tcgets", &[libc::SYS_ioctl, 0, libc::TCGETS as c_long]),
    ("ioctl-tiocsti", &[libc::SYS_ioctl, 0, libc::TIOCSTI as c_long]),
    ("ioctl-tunsetiff", &[libc::SYS_ioctl, 0, libc::TUNSETIFF as u32 as c_long]),
    // Executable memory, new and made from writable memory.
    ("mmap-execute", &[libc::SYS_mmap, 0, 4096, READ_EXECUTE, ANONYMOUS, -1]),
    ("mprotect-execute", &[libc::SYS_mprotect, 0, 0, ALL]),
    // Others.
    ("getpid", &[libc::SYS_getpid]),
    ("io_getevents", &[libc::SYS_io_getevents]),
    ("unassigned", &[100_000]),
];

fn call_names() -> PossibleValuesParser {
    CALLS.iter().map(|(name, _)| *name).collect::<Vec<_>>().into()
}

/// Makes a system call of [`CALLS`], to test whether the sandbox denies it.
#[allow(unsafe_code)]
fn call(name: &str) -> String {
    let (_, call) = CALLS.iter().find(|(known, _)| *known == name).expect("the parser knows the same names");
    let mut all = [0; 7];
    all[..call.len()].copy_from_slice(call);
    let [number, a, b, c, d, e, f] = all;
    // SAFETY: no argument in `CALLS` is an address in this process, so the kernel writes to none of its memory, and
    // fails with EFAULT where it needs an address. `mmap` would add a page, and `mprotect` changes 0 bytes. The
    // child of `vfork`, which would share this stack, is denied by the sandbox that this process has entered.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { std::io::Error::last_os_error().to_string() } else { result.to_string() }
}
