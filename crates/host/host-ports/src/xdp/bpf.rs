//! The system call bpf(2): maps, programs and links, as far as XDP sockets need them.
//!
//! A library that loads programs would bring their file format, its parser and maps that nobody needs.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Commands.
const MAP_CREATE: i64 = 0;
const MAP_UPDATE_ELEM: i64 = 2;
const PROG_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;

/// Type of a map from queues to sockets (`BPF_MAP_TYPE_XSKMAP`), of a program (`BPF_PROG_TYPE_XDP`), and of its attachment (`BPF_XDP`).
const XSKMAP: u32 = 17;
const XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Flag of a program (`BPF_F_XDP_HAS_FRAGS`).
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// Arguments, as 64-bit words: more than any of these commands reads.
type Arguments = [u64; 16];

/// Joins two 32-bit fields.
fn words(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn bpf(command: i64, arguments: &mut Arguments) -> io::Result<i32> {
    let (attributes, len) = (std::ptr::from_mut(arguments), size_of::<Arguments>());
    // SAFETY: the kernel reads and writes at most `len` bytes of `arguments`, which is that long and outlives the call. The addresses in it
    // are those of values that outlive the call, too, and that have the lengths which the commands of this module read and write.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attributes, len) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as i32),
    }
}

fn new_fd(command: i64, arguments: &mut Arguments) -> io::Result<OwnedFd> {
    let fd = bpf(command, arguments)?;
    // SAFETY: the command has just returned a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a map from queues, below this number, to sockets.
pub(super) fn new_socket_map(queues: u32) -> io::Result<OwnedFd> {
    let mut arguments = Arguments::default();
    // Type and size of a key; size of a value and number of entries.
    (arguments[0], arguments[1]) = (words(XSKMAP, 4), words(4, queues));
    new_fd(MAP_CREATE, &mut arguments)
}

/// Puts a socket into a map.
pub(super) fn set_socket(map: impl AsFd, queue: u32, socket: impl AsFd) -> io::Result<()> {
    let value = socket.as_fd().as_raw_fd();
    let mut arguments = Arguments::default();
    arguments[0] = words(map.as_fd().as_raw_fd() as u32, 0);
    (arguments[1], arguments[2]) = ((&raw const queue) as u64, (&raw const value) as u64);
    bpf(MAP_UPDATE_ELEM, &mut arguments).map(drop)
}

/// Loads an XDP program. With `in_pieces`, it may see only the first buffer of a frame.
///
/// # Errors
/// EPERM; EACCES and EINVAL if the kernel's verifier refuses it.
pub(super) fn load(program: &[u64], in_pieces: bool) -> io::Result<OwnedFd> {
    const LICENSE: &CStr = c"Apache-2.0";
    let mut arguments = Arguments::default();
    // Type, number of instructions; their address; that of the license.
    arguments[0] = words(XDP, program.len() as u32);
    (arguments[1], arguments[2]) = (program.as_ptr() as u64, LICENSE.as_ptr() as u64);
    // `prog_flags`, behind `kern_version`.
    arguments[5] = words(0, if in_pieces { XDP_HAS_FRAGS } else { 0 });
    // `expected_attach_type`, behind `prog_ifindex`.
    arguments[8] = words(0, ATTACH_XDP);
    new_fd(PROG_LOAD, &mut arguments)
}

/// Attaches a program to an interface. The link's last descriptor keeps it there.
///
/// # Errors
/// EPERM; EBUSY if another program is attached; EOPNOTSUPP if the driver has not what the flags want.
pub(super) fn attach(program: impl AsFd, interface: i32, flags: u32) -> io::Result<OwnedFd> {
    let mut arguments = Arguments::default();
    arguments[0] = words(program.as_fd().as_raw_fd() as u32, interface as u32);
    arguments[1] = words(ATTACH_XDP, flags);
    new_fd(LINK_CREATE, &mut arguments)
}

/// Runs a program on a frame, of 14 bytes at least, and returns what it returns.
#[cfg(test)]
pub(super) fn run(program: impl AsFd, frame: &[u8]) -> io::Result<u32> {
    const PROG_TEST_RUN: i64 = 10;
    let mut arguments = Arguments::default();
    // Program; bytes of the frame; its address. The kernel writes the result behind the program.
    arguments[0] = words(program.as_fd().as_raw_fd() as u32, 0);
    (arguments[1], arguments[2]) = (words(frame.len() as u32, 0), frame.as_ptr() as u64);
    bpf(PROG_TEST_RUN, &mut arguments)?;
    Ok((arguments[0] >> 32) as u32)
}
