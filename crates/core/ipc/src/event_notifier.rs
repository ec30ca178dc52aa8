//! Signals eventfds that another process holds too, without ever blocking.
//!
//! A write to an eventfd blocks when its counter is at its maximum and `O_NONBLOCK` is off. The process that
//! made the eventfd can bring about both at any moment, because the flag belongs to the open file, which is
//! shared. A signal that the kernel itself raises never blocks. So this module submits an operation of Linux's
//! asynchronous I/O that completes at once and signals the eventfd on completion (`IOCB_FLAG_RESFD`). The same
//! call tells reliably whether a descriptor is an eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::ThreadUsage;

/// An asynchronous I/O operation (linux/aio_abi.h, `struct iocb`; little-endian).
#[repr(C)]
#[derive(Default)]
struct Iocb {
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
const _: () = assert!(size_of::<Iocb>() == 64 && cfg!(target_endian = "little"));

/// The process's queue of asynchronous operations. Each operation is complete when its submission returns.
struct AioContext {
    /// The kernel's number for the queue. A child does not inherit the queue over `fork` and creates another.
    context: AtomicU64,
    /// An eventfd that is always readable.
    ready: OwnedFd,
}

/// Number of completions that the queue holds before they are discarded.
const MAX_COMPLETIONS: usize = 128;

/// Creates a queue in the kernel, with room for this many completions.
fn setup(completions: usize) -> io::Result<u64> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: `io_setup` only writes the queue's number to `context`, a local that outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_io_setup, completions, &raw mut context) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(context) }
}

fn queue() -> io::Result<&'static AioContext> {
    static QUEUE: OnceLock<Result<AioContext, i32>> = OnceLock::new();
    let made = QUEUE.get_or_init(|| {
        let ready = eventfd(1, EventfdFlags::CLOEXEC).map_err(|errno| errno.raw_os_error())?;
        let context = setup(MAX_COMPLETIONS).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
        Ok(AioContext { context: context.into(), ready })
    });
    made.as_ref().map_err(|&errno| io::Error::from_raw_os_error(errno))
}

/// Creates what notifiers need, so that it exists before a sandbox forbids its creation. After that, the only
/// system calls that notifiers make are `io_submit`, `io_getevents`, `clock_gettime` and `getrusage`.
///
/// # Errors
/// The kernel's, when `io_setup` fails (for instance because `fs.aio-max-nr` is reached) or when no descriptor
/// is left.
pub fn prepare_notifiers() -> io::Result<()> {
    let why =
        "Linux's asynchronous I/O (io_setup; is fs.aio-max-nr reached?), by which eventfds of others are signalled";
    queue().map(drop).map_err(|error| io::Error::new(error.kind(), format!("{why}: {error}")))
}

/// Creates a small queue for a forked process that only [checks](check_eventfd) a few descriptors, so that many such
/// processes together stay below `fs.aio-max-nr`.
///
/// # Errors
/// The kernel's: EAGAIN if that limit is reached, for instance by queues of processes that have just ended.
pub(crate) fn prepare_checks() -> io::Result<()> {
    queue()?.context.store(setup(1)?, Ordering::Relaxed);
    Ok(())
}

impl AioContext {
    /// Submits an operation that completes, or is refused, at once.
    fn submit(&self, mut operation: Iocb) -> io::Result<()> {
        const MAX_ATTEMPTS: u32 = 1000;
        let mut list = [&raw mut operation];
        let mut renewed = false;
        for _ in 0..MAX_ATTEMPTS {
            let context = self.context.load(Ordering::Relaxed);
            // SAFETY: `list` holds one pointer, matching the count of 1, and both `list` and `operation` are
            // locals that outlive the call. The kernel copies the operation, and it is complete when the call
            // returns, so no pointer is kept.
            let result = unsafe { libc::syscall(libc::SYS_io_submit, context, 1 as libc::c_long, &raw mut list) };
            if result == 1 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => _ = self.reap_completions(context),
                // EINVAL: this process is a fork of the one that created the queue, or the operation is
                // invalid.
                Some(libc::EINVAL) if !renewed && !self.reap_completions(context) => {
                    self.recreate_after_fork(context)?;
                    renewed = true;
                }
                _ => return Err(error),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Discards completions to make room for more. Returns whether this process has the queue.
    #[cold]
    fn reap_completions(&self, context: u64) -> bool {
        let mut events = [[0u64; 4]; MAX_COMPLETIONS];
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most): (libc::c_long, libc::c_long) = (0, MAX_COMPLETIONS as libc::c_long);
        // SAFETY: `events` has room for `MAX_COMPLETIONS` events of 32 bytes, the most that are asked for;
        // `now` is only read. Both are locals that outlive the call.
        let result =
            unsafe { libc::syscall(libc::SYS_io_getevents, context, least, most, &raw mut events, &raw mut now) };
        result >= 0
    }

    /// Creates a queue for a forked process, unless another thread of that process has just done so.
    #[cold]
    fn recreate_after_fork(&self, before: u64) -> io::Result<()> {
        let context = setup(MAX_COMPLETIONS)?;
        if self.context.compare_exchange(before, context, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // SAFETY: `io_destroy` takes a number and no pointer. The queue was created above, and no operation
            // was submitted to it.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        }
        Ok(())
    }
}

/// Error: the descriptor is not an eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file descriptor that is not an eventfd, where one is wanted")]
pub struct NotEventfd;

/// Checks that a descriptor is an eventfd, without changing its counter.
pub fn check_eventfd(fd: &OwnedFd) -> Result<(), NotEventfd> {
    let queue = queue().map_err(|_| NotEventfd)?;
    // The kernel checks the eventfd before the buffer, so EFAULT means that the eventfd was accepted.
    let nowhere = Iocb {
        opcode: PREAD,
        file: fd.as_raw_fd() as u32,
        buffer: u64::MAX << 12,
        bytes: 8,
        flags: SIGNAL,
        signalled: fd.as_raw_fd() as u32,
        ..Iocb::default()
    };
    match queue.submit(nowhere) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        _ => Err(NotEventfd),
    }
}

/// An eventfd shared with another process, for signalling it.
///
/// A signal wakes all who wait for the eventfd, and its holder can have hundreds of thousands wait (by epoll). If
/// signals take too much of this thread's time [again and again](Self::is_slow), no more are sent.
#[derive(Clone, Debug)]
pub struct EventNotifier {
    eventfd: Arc<OwnedFd>,
    /// Microseconds that the slow signals in a row up to now have taken together, at least 1 each; 0 if the last one
    /// was not slow.
    slow_time: Arc<AtomicU32>,
}

/// Time from which a signal counts as slow. It usually takes less than a microsecond.
const SIGNAL_TIME: Duration = Duration::from_millis(1);

/// Microseconds that slow signals in a row may take together. Of the first, which may have been a preempted thread,
/// nothing counts; of the others the thread's own time. In an emulated CPU single ones take a few milliseconds.
const MAX_SLOW_TIME: u32 = 100_000;

/// Microseconds of one signal that count at most. A host that takes the CPU from a virtual machine may make one signal
/// take any time.
const MAX_COUNTED: u128 = MAX_SLOW_TIME as u128 / 4;

/// Time for which a server should not accept a peer again that held up its workers, by a slow eventfd or by memory that
/// it takes away: before it is known as slow, it has cost them up to a second.
pub const SLOW_PEER_PAUSE: Duration = Duration::from_secs(10);

/// Flag that is set once any notifier of this process is slow, and never cleared.
static SOME_SLOW: AtomicBool = AtomicBool::new(false);

impl EventNotifier {
    /// Takes ownership of an eventfd, after checking that it is one.
    pub fn new(eventfd: OwnedFd) -> Result<Self, NotEventfd> {
        check_eventfd(&eventfd)?;
        Ok(Self::of(Arc::new(eventfd)))
    }

    /// Wraps a descriptor that is known to be an eventfd.
    pub(crate) fn of(eventfd: Arc<OwnedFd>) -> Self {
        Self { eventfd, slow_time: Arc::default() }
    }

    /// Returns the eventfd, to be handed to the process that waits for it.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Adds one to the counter, which stays unchanged if it is at its maximum. Never blocks; one system call. Does
    /// nothing once the eventfd [is slow](Self::is_slow).
    pub fn notify(&self) {
        match self.slow_time.load(Ordering::Relaxed) {
            0 => {
                let start = Instant::now();
                self.signal();
                if start.elapsed() > SIGNAL_TIME {
                    self.slow_time.store(1, Ordering::Relaxed);
                }
            }
            MAX_SLOW_TIME.. => {}
            before => self.notify_measured(before),
        }
    }

    /// Returns whether signals longer than a millisecond, one after the other, have taken 100 ms of the signalling
    /// threads' time, of which one signal counts 25 ms at most, so that no more are sent.
    pub fn is_slow(&self) -> bool {
        self.slow_time.load(Ordering::Relaxed) >= MAX_SLOW_TIME
    }

    /// Returns whether one of these [is slow](Self::is_slow). Costs one load while no notifier of the process is.
    pub fn any_slow<'a>(mut notifiers: impl Iterator<Item = &'a Self>) -> bool {
        SOME_SLOW.load(Ordering::Relaxed) && notifiers.any(Self::is_slow)
    }

    #[cold]
    fn notify_measured(&self, before: u32) {
        let start = ThreadUsage::now().time;
        self.signal();
        let took = ThreadUsage::now().time.saturating_sub(start);
        let counted = took.as_micros().min(MAX_COUNTED) as u32;
        let slow_time = if took > SIGNAL_TIME { before.saturating_add(counted) } else { 0 };
        self.slow_time.store(slow_time, Ordering::Relaxed);
        if slow_time >= MAX_SLOW_TIME {
            SOME_SLOW.store(true, Ordering::Relaxed);
        }
    }

    fn signal(&self) {
        let Ok(queue) = queue() else { return };
        let signal = Iocb {
            opcode: POLL,
            file: queue.ready.as_raw_fd() as u32,
            buffer: libc::POLLIN as u64,
            flags: SIGNAL,
            signalled: self.eventfd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        // This cannot fail for a wrong file: the descriptor was checked to be an eventfd, and that does not
        // change.
        let _ = queue.submit(signal);
    }
}

impl AsFd for EventNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
