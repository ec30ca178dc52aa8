//! Privileges after start-up. All that a run needs is open by then, so the process gives up its user, its
//! capabilities, the file system and most system calls. An attacker who takes over a worker by a hostile frame
//! has the packets and nothing else.

pub(crate) mod connector;
mod files;
mod privileges;
mod syscalls;

use std::sync::atomic::{AtomicBool, Ordering};

pub use connector::run as run_connector;
pub use privileges::User;
use ringpass_port::Error;

/// Privileges that the process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Everything: there is no sandbox.
    Off,
    /// Calls for moving packets between open ports and for printing statistics.
    Packets,
    /// Calls of `Packets`, and those for accepting connections on listening sockets.
    Server,
    /// Calls of `Server`, and those of vhost-user sessions on either side. A connector makes outgoing connections.
    Sessions,
    /// Calls of `Server`, and those for XDP sockets that are bound for others. Three capabilities stay for it.
    XdpServer,
    /// Calls that a connector needs: those of `Packets`, and connecting on Unix sockets.
    Connector,
    /// Calls of the processes that receive file descriptors of peers: those of `Packets`, and starting such
    /// processes.
    FdReceiver,
}

/// Permissions that open ports need of a sandbox beyond the calls of their program.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Calls of vhost-user sessions.
    pub(crate) sessions: bool,
    /// Calls for opening an interface again that was deleted and created again.
    pub(crate) rejoin: bool,
    /// Notes on the connectors that were started.
    pub(crate) connectors: Vec<String>,
    /// User that a process of root becomes.
    user: User,
}

impl Needs {
    /// Creates what a program without ports needs: a process of root becomes this user.
    pub fn new(user: User) -> Self {
        Self { user, ..Self::default() }
    }
}

/// Set once this process is in its sandbox.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Returns whether a process with this configuration should be in the sandbox, and is not.
pub(crate) fn is_missing(sandbox: Sandbox) -> bool {
    sandbox != Sandbox::Off && !ENTERED.load(Ordering::Relaxed)
}

/// Enters the sandbox, which cannot be left again. To be called after the last port was opened and before the
/// first thread starts; `needs` is what the open ports need. Returns what it does, in a line or a few.
///
/// ```no_run
/// use ringpass::{Config, sandbox};
///
/// let config = Config { sandbox: sandbox::Sandbox::Packets, ..Config::default() };
/// let mut ports = ringpass::open(["model:tap:a", "tap:b"], &config)?;
/// for line in sandbox::enter(config.sandbox, ports.needs())? {
///     println!("{line}");
/// }
/// # Ok::<(), ringpass::Error>(())
/// ```
///
/// # Errors
/// If the process has several threads already, or the kernel refuses a restriction.
pub fn enter(sandbox: Sandbox, needs: &Needs) -> Result<Vec<String>, Error> {
    if sandbox == Sandbox::Off {
        return Ok(vec!["sandbox: none; user, capabilities and system calls stay (--no-sandbox)".into()]);
    }
    let steps = || -> Result<Vec<String>, String> {
        // Capabilities and Landlock belong to a thread and are inherited by the threads that it starts.
        match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
            Ok(1) => {}
            Ok(threads) => return Err(format!("{threads} threads run already")),
            Err(error) => return Err(format!("/proc/self/task: {error}")),
        }
        // Descriptors of peers are received by processes with even fewer privileges.
        let restrict = || {
            privileges::drop_all(needs.user)?;
            files::deny_all()?;
            syscalls::restrict(Sandbox::FdReceiver, false).map(drop)
        };
        ringpass_ipc::start_fd_receiver(restrict).map_err(|error| error.to_string())?;
        let user = match sandbox {
            Sandbox::XdpServer => privileges::keep_for_xdp()?,
            _ => format!("{}; no capabilities", privileges::drop_all(needs.user)?),
        };
        let (no_files, missing) = files::deny_all()?;
        let sandbox = if needs.sessions { Sandbox::Sessions } else { sandbox };
        let calls = syscalls::restrict(sandbox, needs.rejoin)?;
        ENTERED.store(true, Ordering::Relaxed);
        let files = if no_files { "no files" } else { "files as before" };
        let summary = format!("{user}, {files}, {calls} system calls");
        Ok(needs.connectors.iter().cloned().chain(missing).chain([summary]).collect())
    };
    match steps() {
        Ok(lines) => Ok(lines.into_iter().map(|line| format!("sandbox: {line}")).collect()),
        Err(why) => Err(Error::Permission(format!("sandbox: {why}; to run without one: --no-sandbox"))),
    }
}
