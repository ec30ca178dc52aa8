//! Credentials of the peer of a unix socket, as the kernel reports them.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Process id, user id and group id of the process that connected or that listens. (`rustix` has such a type, but its
/// process id cannot be 0.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 if the process has none in this process's PID namespace.
    pub pid: i32,
    /// Effective user id at the time of `connect` or `listen`.
    pub uid: u32,
    /// Effective group id at that time.
    pub gid: u32,
}

impl Credentials {
    /// Returns the credentials of a connected socket's peer (unix(7), `SO_PEERCRED`).
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        Ok(Self { pid: credentials.pid(), uid: credentials.uid(), gid: credentials.gid() })
    }

    /// Returns whether the peer runs as this process's effective user or as root.
    pub fn is_own_or_root(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Writes "pid 12", or the user id if the process id is unknown.
impl fmt::Display for Credentials {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(to, "a process of user {} in another PID namespace", self.uid),
            pid => write!(to, "pid {pid}"),
        }
    }
}
