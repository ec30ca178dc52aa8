//! Who is at the other end of a unix socket, as the kernel says.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The process that connected, or that listens. (`rustix` has this too, but with a process id that cannot be 0.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 if it has none in this process's PID namespace.
    pub pid: i32,
    /// Effective user id at the time of `connect` or `listen`.
    pub uid: u32,
}

impl Credentials {
    /// Those of a connected socket's peer (unix(7), `SO_PEERCRED`).
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        Ok(Self { pid: credentials.pid(), uid: credentials.uid() })
    }

    /// Whether it belongs to this process's user or to root.
    pub fn is_own_or_root(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// As "pid 12".
impl fmt::Display for Credentials {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(to, "a process of user {} in another PID namespace", self.uid),
            pid => write!(to, "pid {pid}"),
        }
    }
}
