//! The XDP program that redirects an interface's frames to sockets, attached by a link that the kernel removes with its last descriptor,
//! also when the process is killed (Linux, bpf(2), networking/af_xdp).
//!
//! It is six instructions, so it is written here; a library to load programs would bring their file format, its parser and maps
//! that nobody needs.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// In the driver, before the kernel has made a packet of its own (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// In the kernel's stack, with any driver (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

impl Attachment {
    /// The word that users know.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::Generic => 1 << 1,
            Self::Native => 1 << 2,
        }
    }
}

/// A program on an interface, until it is dropped.
pub(super) struct Program {
    map: OwnedFd,
    _link: OwnedFd,
}

/// Commands of bpf(2).
const MAP_CREATE: i64 = 0;
const MAP_UPDATE_ELEM: i64 = 2;
const PROG_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;

/// Type of a map from queues to sockets (`BPF_MAP_TYPE_XSKMAP`), of a program (`BPF_PROG_TYPE_XDP`), and of its attachment (`BPF_XDP`).
const XSKMAP: u32 = 17;
const XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Result of a program: the frame goes to the kernel's stack.
const XDP_PASS: i32 = 2;
/// Helper function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Offset of the queue in `struct xdp_md`.
const RX_QUEUE_INDEX: u64 = 16;

/// Arguments of bpf(2), as 64-bit words: more than any of these commands reads.
type Arguments = [u64; 16];

/// Joins two 32-bit fields.
fn words(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn bpf(command: i64, arguments: &Arguments) -> io::Result<i32> {
    let (attributes, len) = (std::ptr::from_ref(arguments), size_of::<Arguments>());
    // SAFETY: the kernel reads `len` bytes of `arguments`, which is that long and outlives the call. The addresses in it are those of
    // values that outlive the call, too, and that have the lengths which the commands of this module read and write.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attributes, len) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as i32),
    }
}

fn new_fd(command: i64, arguments: &Arguments) -> io::Result<OwnedFd> {
    let fd = bpf(command, arguments)?;
    // SAFETY: the command has just returned a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Encodes an instruction: operation, destination and source register, offset and immediate value.
const fn instruction(operation: u64, destination: u64, source: u64, offset: u64, value: i32) -> u64 {
    operation | destination << 8 | source << 12 | offset << 16 | (value as u32 as u64) << 32
}

/// Returns `bpf_redirect_map(map, rx_queue_index, XDP_PASS)`: frames of queues without a socket go to the kernel.
fn redirect_all(map: i32) -> [u64; 6] {
    const LOAD_WORD: u64 = 0x61;
    const LOAD_MAP: u64 = 0x18;
    const MOVE: u64 = 0xb7;
    const CALL: u64 = 0x85;
    const EXIT: u64 = 0x95;
    // The context is in register 1; arguments are in registers 1 to 3. A map's address takes two instructions, the first with 1
    // as its source register.
    [
        instruction(LOAD_WORD, 2, 1, RX_QUEUE_INDEX, 0),
        instruction(LOAD_MAP, 1, 1, 0, map),
        0,
        instruction(MOVE, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

impl Program {
    /// Attaches the program to an interface, for sockets on this many of its queues. As long as no queue has a [socket](Self::redirect), the kernel gets all frames.
    ///
    /// # Errors
    /// Those of bpf(2): EPERM, EBUSY if another program is attached, EOPNOTSUPP if the driver has no native mode.
    pub(super) fn attach(interface: i32, queues: u32, attachment: Attachment) -> io::Result<Self> {
        const LICENSE: &CStr = c"Apache-2.0";
        let mut arguments = Arguments::default();
        // Type and size of a key; size of a value and number of entries.
        (arguments[0], arguments[1]) = (words(XSKMAP, 4), words(4, queues));
        let map = new_fd(MAP_CREATE, &arguments)?;
        let program = redirect_all(map.as_raw_fd());
        let mut arguments = Arguments::default();
        // Type, number of instructions; their address; that of the license.
        arguments[0] = words(XDP, program.len() as u32);
        (arguments[1], arguments[2]) = (program.as_ptr() as u64, LICENSE.as_ptr() as u64);
        // `expected_attach_type`, behind `prog_ifindex`.
        arguments[8] = words(0, ATTACH_XDP);
        let program = new_fd(PROG_LOAD, &arguments)?;
        let mut arguments = Arguments::default();
        arguments[0] = words(program.as_raw_fd() as u32, interface as u32);
        arguments[1] = words(ATTACH_XDP, attachment.flags());
        Ok(Self { map, _link: new_fd(LINK_CREATE, &arguments)? })
    }

    /// Redirects the frames of a queue to a socket.
    pub(super) fn redirect(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        let value = socket.as_fd().as_raw_fd();
        let mut arguments = Arguments::default();
        arguments[0] = words(self.map.as_raw_fd() as u32, 0);
        (arguments[1], arguments[2]) = ((&raw const queue) as u64, (&raw const value) as u64);
        bpf(MAP_UPDATE_ELEM, &arguments).map(drop)
    }
}

/// Attaches the program in one of these ways, the first that works.
pub(super) fn attach_any(interface: i32, queues: u32, ways: &[Attachment]) -> io::Result<(Program, Attachment)> {
    let mut refused = Errno::OPNOTSUPP.into();
    for &attachment in ways {
        match Program::attach(interface, queues, attachment) {
            Ok(program) => return Ok((program, attachment)),
            Err(error) => refused = error,
        }
        // Others are the same for every way.
        if [Errno::PERM, Errno::BUSY, Errno::NODEV]
            .map(io::Error::from)
            .iter()
            .any(|all| all.raw_os_error() == refused.raw_os_error())
        {
            break;
        }
    }
    Err(refused)
}
