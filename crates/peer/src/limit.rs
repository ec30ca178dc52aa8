//! The limit of descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's soft limit of descriptors to the hard one: a server's peers have several each, and the usual soft
/// limit of 1,024 is for programs that use `select`.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
