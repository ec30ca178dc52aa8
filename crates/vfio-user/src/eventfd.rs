//! What another process has sent as an eventfd.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::Refusal;

/// Checks that a descriptor is an eventfd, and makes it one that does not keep its writer waiting.
///
/// Others of the kernel's files without a name have no type either; what they are can be read where /proc is.
pub fn check_eventfd(fd: &OwnedFd) -> Result<(), Refusal> {
    let wrong = || Refusal::invalid("a file descriptor that is no eventfd, where one is wanted");
    let stat = rustix::fs::fstat(fd).map_err(|_| wrong())?;
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok();
    let nameless = stat.st_mode & 0o170000 == 0;
    if !nameless || name.is_some_and(|name| name.as_os_str() != OsStr::new("anon_inode:[eventfd]")) {
        return Err(wrong());
    }
    rustix::io::ioctl_fionbio(fd, true).map_err(|_| wrong())
}
