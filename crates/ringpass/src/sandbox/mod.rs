//! Privileges after start-up: all that a run needs is open by then, so the process gives up its user and capabilities,
//! the file system and all system calls but a few. Whoever takes over a worker through a hostile frame has the packets,
//! and nothing else.

#[cfg(debug_assertions)]
pub mod check;
pub mod connector;
mod files;
mod privileges;
mod syscalls;

use std::sync::atomic::{AtomicBool, Ordering};

use ringpass_port::Error;

/// What is left to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Everything: `--no-sandbox`.
    Off,
    /// What moving packets between open ports takes, and printing statistics.
    Packets,
    /// The same, and taking connections on sockets that listen.
    Server,
    /// The same, and what sessions of vhost-user take at either end. Connecting is a [`connector`]'s.
    Sessions,
    /// What a connector needs: packets' calls, and connecting on unix sockets.
    Connector,
}

/// A port that is open has such sessions, whatever the subcommand.
static SESSIONS: AtomicBool = AtomicBool::new(false);

/// A port that is open takes its interface again when that was deleted and made anew.
static REJOINING: AtomicBool = AtomicBool::new(false);

/// What open ports need beyond what the subcommand does.
#[derive(Clone, Copy, Default)]
struct Ports {
    rejoin: bool,
}

/// To be called when a port is opened that has sessions of vhost-user.
pub fn allow_sessions() {
    SESSIONS.store(true, Ordering::Relaxed);
}

/// To be called when a port is opened with [`rejoin`](ringpass_port::PortConfig::rejoin).
pub fn allow_rejoining() {
    REJOINING.store(true, Ordering::Relaxed);
}

/// Enters the sandbox for good: before the first thread, after the last port was opened. Returns what was applied, a
/// line each.
pub fn enter(sandbox: Sandbox) -> Result<Vec<String>, Error> {
    if sandbox == Sandbox::Off {
        return Ok(vec!["sandbox: none; user, capabilities and system calls stay (--no-sandbox)".into()]);
    }
    let steps = || -> Result<Vec<String>, String> {
        // Capabilities and Landlock belong to a thread, and pass to those that it starts.
        match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
            Ok(1) => {}
            Ok(threads) => return Err(format!("{threads} threads run already")),
            Err(error) => return Err(format!("/proc/self/task: {error}")),
        }
        let privileges = privileges::drop_all()?;
        let files = files::deny_all()?;
        let sandbox = if SESSIONS.load(Ordering::Relaxed) { Sandbox::Sessions } else { sandbox };
        let calls = syscalls::restrict(sandbox, Ports { rejoin: REJOINING.load(Ordering::Relaxed) })?;
        Ok(connector::notes().into_iter().chain([privileges, files, calls]).collect())
    };
    match steps() {
        Ok(lines) => Ok(lines.into_iter().map(|line| format!("sandbox: {line}")).collect()),
        Err(why) => Err(Error::Other(format!("sandbox: {why}; to run without one: --no-sandbox"))),
    }
}
