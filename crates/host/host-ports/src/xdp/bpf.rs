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
const MAP_DELETE_ELEM: i64 = 3;
const PROG_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;

/// Type of a map from queues to sockets (`BPF_MAP_TYPE_XSKMAP`), of a program (`BPF_PROG_TYPE_XDP`), and of its attachment (`BPF_XDP`).
const XSKMAP: u32 = 17;
const XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Flags of a program (`BPF_F_XDP_HAS_FRAGS`, `BPF_F_XDP_DEV_BOUND_ONLY`).
const XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

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

/// Takes the socket of a queue out of a map.
pub(super) fn remove_socket(map: impl AsFd, queue: u32) -> io::Result<()> {
    let mut arguments = Arguments::default();
    arguments[0] = words(map.as_fd().as_raw_fd() as u32, 0);
    arguments[1] = (&raw const queue) as u64;
    bpf(MAP_DELETE_ELEM, &mut arguments).map(drop)
}

/// Use that a program is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Frames in one buffer each.
    Plain,
    /// Frames of which it may see only the first buffer.
    InPieces,
    /// Those, on the interface with this index alone, whose driver it asks.
    Bound(i32),
}

/// Loads an XDP program.
///
/// # Errors
/// EPERM; EACCES and EINVAL if the kernel's verifier refuses it.
pub(super) fn load(program: &[u64], way: Load) -> io::Result<OwnedFd> {
    // The kernel's own functions are for programs that may be used under the GPL, too.
    const LICENSE: &CStr = c"Dual MIT/GPL";
    let mut arguments = Arguments::default();
    // Type, number of instructions; their address; that of the license.
    arguments[0] = words(XDP, program.len() as u32);
    (arguments[1], arguments[2]) = (program.as_ptr() as u64, LICENSE.as_ptr() as u64);
    // `prog_flags`, behind `kern_version`.
    let (flags, interface) = match way {
        Load::Plain => (0, 0),
        Load::InPieces => (XDP_HAS_FRAGS, 0),
        Load::Bound(interface) => (XDP_HAS_FRAGS | XDP_DEV_BOUND_ONLY, interface),
    };
    arguments[5] = words(0, flags);
    // `expected_attach_type`, behind `prog_ifindex`.
    arguments[8] = words(interface as u32, ATTACH_XDP);
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

/// Attaches a program of the traffic control (`BPF_PROG_TYPE_SCHED_CLS`) to what an interface sends (`BPF_TCX_EGRESS`), Linux 6.6.
#[cfg(test)]
pub(super) fn attach_to_sending(program: &[u64], interface: i32) -> io::Result<OwnedFd> {
    const SCHED_CLS: u32 = 3;
    const TCX_EGRESS: u32 = 47;
    let mut arguments = Arguments::default();
    arguments[0] = words(SCHED_CLS, program.len() as u32);
    (arguments[1], arguments[2]) = (program.as_ptr() as u64, c"Dual MIT/GPL".as_ptr() as u64);
    let program = new_fd(PROG_LOAD, &mut arguments)?;
    let mut arguments = Arguments::default();
    arguments[0] = words(program.as_raw_fd() as u32, interface as u32);
    arguments[1] = words(TCX_EGRESS, 0);
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
