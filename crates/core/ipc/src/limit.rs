//! The limit on open file descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's soft limit on open descriptors to the hard limit. Each of a server's peers takes
/// several, and the usual soft limit of 1,024 is meant for programs that use `select`.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
