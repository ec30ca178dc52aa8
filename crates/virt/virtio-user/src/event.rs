//! Eventfds.

use std::os::fd::OwnedFd;

use ringpass_port::Error;
use rustix::event::{EventfdFlags, eventfd};

/// Creates an eventfd to share with a back-end.
pub(crate) fn event() -> Result<OwnedFd, Error> {
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|errno| Error::os("an eventfd", errno))
}
