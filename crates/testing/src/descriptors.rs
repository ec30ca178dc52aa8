//! File descriptors that peers send each other.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Creates a memory file of `len` bytes.
pub fn memfd(len: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, len).expect("memory");
    file
}

/// Creates an eventfd whose reader does not wait.
pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// Sends bytes and descriptors. Returns how many bytes were taken; fails if the peer has hung up.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); 4096];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Waits until a descriptor is ready, for a second at most.
pub fn wait_for(fd: BorrowedFd<'_>, flags: PollFlags) {
    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
}

/// Returns the numbers of file descriptors and of mappings of this process.
pub fn resources() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
    (descriptors, std::fs::read_to_string("/proc/self/maps").expect("procfs").lines().count())
}
