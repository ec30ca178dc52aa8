//! Eventfds of another process.
//!
//! A write to an eventfd waits when its counter is at its maximum and `O_NONBLOCK` is off, and the process that made the
//! eventfd can bring both about at any moment: the flag belongs to the open file, which is shared. What the kernel does
//! itself to signal an eventfd never waits, so it is asked to: an operation of Linux's asynchronous I/O that is complete
//! at once, and signals the eventfd as that (`IOCB_FLAG_RESFD`). It also says exactly whether a descriptor is an eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

/// An operation (linux/aio_abi.h, `struct iocb`; little-endian).
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

const PREAD: u16 = 0;
const POLL: u16 = 5;
const SIGNAL: u32 = 1;
const _: () = assert!(size_of::<Operation>() == 64 && cfg!(target_endian = "little"));

/// The process's queue of asynchronous operations; each is complete when it has been submitted.
struct Queue {
    /// The kernel's number for it. A child after `fork` does not inherit the queue and makes another.
    context: AtomicU64,
    /// Always readable.
    ready: OwnedFd,
}

/// Completions that fit before they are thrown away.
const ROOM: usize = 128;

/// Makes a queue in the kernel.
fn setup() -> io::Result<u64> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes a number to `context`, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_io_setup, ROOM, &raw mut context) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(context) }
}

fn queue() -> io::Result<&'static Queue> {
    static QUEUE: OnceLock<Result<Queue, i32>> = OnceLock::new();
    let made = QUEUE.get_or_init(|| {
        let ready = eventfd(1, EventfdFlags::CLOEXEC).map_err(|errno| errno.raw_os_error())?;
        let context = setup().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
        Ok(Queue { context: context.into(), ready })
    });
    made.as_ref().map_err(|&errno| io::Error::from_raw_os_error(errno))
}

/// Makes what signals need, so that none of it is missing later, when a sandbox forbids it. After that, `io_submit` and
/// `io_getevents` are the system calls they make.
pub fn prepare_signals() -> io::Result<()> {
    let why =
        "Linux's asynchronous I/O (io_setup; is fs.aio-max-nr reached?), by which eventfds of others are signalled";
    queue().map(drop).map_err(|error| io::Error::new(error.kind(), format!("{why}: {error}")))
}

impl Queue {
    /// Submits an operation that is complete, or refused, at once.
    fn submit(&self, mut operation: Operation) -> io::Result<()> {
        const TRIES: u32 = 1000;
        let mut list = [&raw mut operation];
        let mut renewed = false;
        for _ in 0..TRIES {
            let context = self.context.load(Ordering::Relaxed);
            // SAFETY: a list of one operation, both of which outlive the call. The kernel keeps no pointer to them: they
            // were copied, and the operation is complete when the call returns.
            let result = unsafe { libc::syscall(libc::SYS_io_submit, context, 1 as libc::c_long, &raw mut list) };
            if result == 1 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => _ = self.forget(context),
                // What this process has no queue for: it was forked off the one that made it. Also said of bad operations.
                Some(libc::EINVAL) if !renewed && !self.forget(context) => {
                    self.renew(context)?;
                    renewed = true;
                }
                _ => return Err(error),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Makes room for more completions. Returns whether this process has the queue.
    #[cold]
    fn forget(&self, context: u64) -> bool {
        let mut events = [[0u64; 4]; ROOM];
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most): (libc::c_long, libc::c_long) = (0, ROOM as libc::c_long);
        // SAFETY: room for as many events of 32 bytes as are asked for; the time is only read.
        let result =
            unsafe { libc::syscall(libc::SYS_io_getevents, context, least, most, &raw mut events, &raw mut now) };
        result >= 0
    }

    /// Makes a queue for a forked process, unless another thread of it just has.
    #[cold]
    fn renew(&self, before: u64) -> io::Result<()> {
        let context = setup()?;
        if self.context.compare_exchange(before, context, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // SAFETY: `io_destroy` takes a number and no pointer; nothing was submitted to this queue yet.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        }
        Ok(())
    }
}

/// A descriptor that is no eventfd, where one is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file descriptor that is no eventfd, where one is wanted")]
pub struct NoEventfd;

/// Checks that a descriptor is an eventfd, and leaves it as it is.
pub fn check_eventfd(fd: &OwnedFd) -> Result<(), NoEventfd> {
    let queue = queue().map_err(|_| NoEventfd)?;
    // The kernel looks at the eventfd first, then finds that there is no such buffer.
    let nowhere = Operation {
        opcode: PREAD,
        file: queue.ready.as_raw_fd() as u32,
        buffer: u64::MAX << 12,
        bytes: 8,
        flags: SIGNAL,
        signalled: fd.as_raw_fd() as u32,
        ..Operation::default()
    };
    match queue.submit(nowhere) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        _ => Err(NoEventfd),
    }
}

/// An eventfd of another process, to be signalled.
#[derive(Clone, Debug)]
pub struct Signal {
    eventfd: Arc<OwnedFd>,
}

impl Signal {
    /// Takes an eventfd.
    pub fn new(eventfd: OwnedFd) -> Result<Self, NoEventfd> {
        check_eventfd(&eventfd)?;
        Ok(Self { eventfd: Arc::new(eventfd) })
    }

    /// A signal for an eventfd that is known to be one.
    pub(crate) fn of(eventfd: Arc<OwnedFd>) -> Self {
        Self { eventfd }
    }

    /// Adds one to its counter, which stays where it is at its maximum. Never waits; one system call.
    pub fn raise(&self) {
        let Ok(queue) = queue() else { return };
        let signal = Operation {
            opcode: POLL,
            file: queue.ready.as_raw_fd() as u32,
            buffer: libc::POLLIN as u64,
            flags: SIGNAL,
            signalled: self.eventfd.as_raw_fd() as u32,
            ..Operation::default()
        };
        // It was an eventfd, and a descriptor stays what it is.
        let _ = queue.submit(signal);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
