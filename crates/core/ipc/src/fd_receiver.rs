//! Receives file descriptors of peers in separate processes.
//!
//! `close` calls into the file's file system. If that is the peer's own (FUSE), it need not answer: the caller
//! then blocks forever, even after SIGKILL, and a process with one such thread keeps its listening sockets,
//! devices and huge pages. So this process never owns a descriptor that a peer has chosen. A receiving process
//! takes the descriptors from the peer's socket into a file table of its own, passes on the eventfds and files in
//! memory, and exits. If that blocks, the process is abandoned; it holds nothing of this one.
//!
//! A starter process, which never receives a descriptor itself, keeps one receiving process ready and
//! starts the next when that one has taken a request. A request is a message with the number of bytes to
//! receive, the peer's socket, and a socket for the answer, which hangs up when the receiving process has closed
//! everything.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::connection_lost::{ConnectionLost, MAX_FDS};
use crate::event_notifier::prepare_checks;
use crate::{Credentials, check_eventfd, prepare_notifiers};

/// Most bytes that one request receives.
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// Most file descriptors that the kernel passes with one message (`SCM_MAX_FD`).
const SCM_MAX_FD: usize = 253;

/// Most receiving processes of one user's peers that may be blocked: that have not ended for [`BLOCKED_AFTER`], and
/// that have not ended at all. With a limit for all peers.
const MAX_BLOCKED_PER_USER: usize = 8;
const MAX_CLOSING_PER_USER: usize = 32;
const MAX_CLOSING: usize = 256;
const BLOCKED_AFTER: Duration = Duration::from_millis(100);

/// Time that a new starter may take to report that it is restricted, in seconds.
const START_TIMEOUT: i64 = 10;

/// First byte of an answer.
mod status {
    pub(super) const RECEIVED: u8 = 0;
    pub(super) const TOO_MANY: u8 = 1;
    pub(super) const WRONG_KIND: u8 = 2;
    pub(super) const FAILED: u8 = 3;
}

struct Receiver {
    /// Connection to the starter.
    requests: Option<OwnedFd>,
    closing: Vec<Closing>,
}

/// A receiving process that closes descriptors which were not accepted.
struct Closing {
    /// User of the peer that sent them.
    user: u32,
    since: Instant,
    /// Hangs up when they are closed.
    answer: OwnedFd,
}

/// Global because a sandbox applies to the whole process.
static RECEIVER: Mutex<Receiver> = Mutex::new(Receiver { requests: None, closing: Vec::new() });

/// Starts the process that receives descriptors of peers; it replaces an earlier one. It calls `restrict` before
/// it receives anything. Without this call, the process is started when it is first needed, without restrictions.
/// Call it before the first thread starts if `restrict` allocates memory.
///
/// # Errors
/// The kernel's, or what `restrict` returned.
pub fn start_fd_receiver(restrict: impl FnOnce() -> Result<(), String>) -> io::Result<()> {
    RECEIVER.lock().unwrap_or_else(PoisonError::into_inner).start(restrict)
}

impl Receiver {
    fn start(&mut self, restrict: impl FnOnce() -> Result<(), String>) -> io::Result<()> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("the process that receives file descriptors of peers: {error}"))
        };
        self.requests = Some(start(restrict).map_err(failed)?);
        Ok(())
    }

    /// Returns whether so many processes are blocked that nothing more is received of this user's peers.
    fn is_blocked(&mut self, user: u32) -> bool {
        let mut fds: Vec<_> = self.closing.iter().map(|one| PollFd::new(&one.answer, PollFlags::empty())).collect();
        let _ = poll(&mut fds, Some(&Timespec::default()));
        let closed: Vec<bool> = fds.iter().map(|fd| fd.revents().contains(PollFlags::HUP)).collect();
        let mut closed = closed.into_iter();
        self.closing.retain(|_| !closed.next().unwrap_or(false));
        let of_user = || self.closing.iter().filter(|one| one.user == user);
        self.closing.len() >= MAX_CLOSING
            || of_user().count() >= MAX_CLOSING_PER_USER
            || of_user().filter(|one| one.since.elapsed() > BLOCKED_AFTER).count() >= MAX_BLOCKED_PER_USER
    }
}

/// Descriptors that a receiving process is taking from a peer's socket, together with a number of bytes.
pub(crate) struct Pending {
    /// `None` once all descriptors were accepted.
    answer: Option<OwnedFd>,
    user: u32,
    /// Bytes that come with the descriptors.
    pub(crate) bytes: usize,
}

impl Pending {
    /// Asks a receiving process to take `bytes` bytes from a socket, with all descriptors that come with them.
    pub(crate) fn new(socket: BorrowedFd<'_>, bytes: usize) -> Result<Self, ConnectionLost> {
        debug_assert!(bytes <= MAX_BYTES);
        let user = Credentials::of_peer(socket).map_err(ConnectionLost::Socket)?.uid;
        let mut receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if receiver.is_blocked(user) {
            return Err(ConnectionLost::Unclosed);
        }
        if receiver.requests.is_none() {
            receiver.start(|| Ok(())).map_err(ConnectionLost::Socket)?;
        }
        let (ours, theirs) = pair().map_err(|errno| ConnectionLost::Socket(errno.into()))?;
        let fds = [socket, theirs.as_fd()];
        let requests = receiver.requests.as_ref().expect("started above");
        send_fds(requests.as_fd(), &(bytes as u32).to_ne_bytes(), &fds).map_err(|errno| {
            let why = format!("the process that receives file descriptors does not run or is busy: {errno}");
            ConnectionLost::Socket(io::Error::other(why))
        })?;
        Ok(Self { answer: Some(ours), user, bytes })
    }

    /// Returns the socket that becomes readable when the descriptors have been received.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.answer.as_ref().expect("not all are accepted yet").as_fd()
    }

    /// Returns the descriptors; `None` if they have not been received yet. Not to be called again after them.
    pub(crate) fn poll(&mut self) -> Result<Option<Vec<OwnedFd>>, ConnectionLost> {
        let (mut status, mut fds) = ([0], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        match receive_fds(self.socket(), &mut status, &mut space, |fd| fds.push(fd)) {
            Ok(1) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Ok(_) => return Err(lost("the process that received file descriptors has ended")),
            Err(errno) => return Err(ConnectionLost::Socket(errno.into())),
        }
        match status[0] {
            status::RECEIVED => {
                self.answer = None;
                Ok(Some(fds))
            }
            status::TOO_MANY => Err(ConnectionLost::Descriptors),
            status::WRONG_KIND => Err(ConnectionLost::Kind),
            _ => Err(lost("file descriptors could not be received")),
        }
    }
}

impl Drop for Pending {
    /// Keeps account of a process that has descriptors to close, whether its answer was waited for or not.
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let closing = Closing { user: self.user, since: Instant::now(), answer };
            RECEIVER.lock().unwrap_or_else(PoisonError::into_inner).closing.push(closing);
        }
    }
}

fn lost(why: &str) -> ConnectionLost {
    ConnectionLost::Socket(io::Error::other(why))
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Sends as much of a message as the socket takes, with descriptors, without blocking. Returns the number of bytes.
pub(crate) fn send_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "no message has more than {MAX_FDS} descriptors");
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Sends bytes with descriptors on a connected unix socket, as many bytes as it takes, and returns their number. Waits for room if the socket waits.
///
/// # Errors
/// The kernel's; EINVAL for more than [`MAX_FDS`] descriptors.
pub fn send_descriptors(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
    if descriptors.len() > MAX_FDS {
        return Err(Errno::INVAL.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives a message without blocking and calls `take` with each descriptor. Returns the number of bytes.
fn receive_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    space: &mut [MaybeUninit<u8>],
    mut take: impl FnMut(OwnedFd),
) -> Result<usize, Errno> {
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fds.for_each(&mut take);
        }
    }
    Ok(received.bytes)
}

/// Starts the starter. Returns the socket for requests once it is restricted.
fn start(restrict: impl FnOnce() -> Result<(), String>) -> io::Result<OwnedFd> {
    // The check of eventfds uses this; prepared here, so that a receiving process need not allocate memory.
    prepare_notifiers()?;
    let (ours, theirs) = pair()?;
    let shared = shared_mappings()?;
    let signals = block_signals();
    let child = fork();
    if matches!(child, Ok(0)) {
        // Also after a panic, this process must not go on with what the other one does.
        let _end = ExitOnDrop;
        drop_inherited(&shared, &theirs);
        let _ = rustix::thread::set_name(c"ringpass-fds");
        match restrict() {
            Ok(()) => {
                let _ = send_fds(theirs.as_fd(), &[0], &[]);
                run_starter(theirs);
            }
            Err(why) => _ = send_fds(theirs.as_fd(), &[&[1], why.as_bytes()].concat(), &[]),
        }
        exit();
    }
    restore_signals(&signals);
    child?;
    drop(theirs);
    let limit = Timespec { tv_sec: START_TIMEOUT, tv_nsec: 0 };
    while poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&limit)) == Err(Errno::INTR) {}
    let mut report = [0; 1024];
    let flags = RecvFlags::DONTWAIT;
    match rustix::net::recv(&ours, &mut report, flags).map(|(bytes, _)| &report[..bytes]) {
        Ok([0]) => Ok(ours),
        Ok([1, why @ ..]) => Err(io::Error::other(String::from_utf8_lossy(why))),
        _ => Err(io::Error::other("it has not started")),
    }
}

/// Address and length of each mapping of this process that is shared with others. A process that is blocked would
/// keep such memory, which may be huge pages or a guest's, from being freed.
fn shared_mappings() -> io::Result<Vec<(usize, usize)>> {
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let shared = rest.as_bytes().get(3) == Some(&b's');
        shared.then_some((address(start)?, address(end)?.checked_sub(address(start)?)?))
    };
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().filter_map(parse).collect())
}

/// Blocks all signals of this thread. Returns those that were blocked before.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initializes `all`, and `pthread_sigmask` then reads it and initializes `before`; both
    // are locals that outlive the calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_signals(signals: &libc::sigset_t) {
    // SAFETY: `signals` is a valid set that is only read; no pointer is passed for the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, std::ptr::null_mut()) };
}

/// Forks without a signal to the parent when the child ends, so that a program that waits for its own children
/// does not see this one. The child returns 0. It must not use anything that another thread may have locked, such
/// as the allocator.
fn fork() -> io::Result<libc::c_long> {
    // SAFETY: without flags and a stack, `clone` is `fork`: the child continues here on a copy of this stack and
    // memory. Callers keep to calls that are allowed in a forked child of a process with threads.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(child),
    }
}

fn exit() -> ! {
    // SAFETY: `_exit` takes a number and does not return; it runs no code of this process.
    unsafe { libc::_exit(0) }
}

/// Ends the process when dropped.
struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        exit();
    }
}

/// Unmaps shared memory and closes all descriptors but one.
fn drop_inherited(shared: &[(usize, usize)], keep: &OwnedFd) {
    for &(start, len) in shared {
        // SAFETY: this process has only the thread that runs here, and it goes on with calls that use private
        // memory alone: its stack, `shared` and statics.
        unsafe { libc::munmap(start as *mut libc::c_void, len) };
    }
    let keep = keep.as_raw_fd() as libc::c_uint;
    let below = (keep > 0).then(|| (0, keep - 1));
    for (first, last) in below.into_iter().chain([(keep + 1, libc::c_uint::MAX)]) {
        // SAFETY: `close_range` takes numbers and no pointers. The owners of these descriptors are not dropped in
        // this process, which ends by `_exit`.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Keeps one receiving process ready until the other end of `requests` is closed.
fn run_starter(requests: OwnedFd) {
    // Readable (by hanging up) when the ready process has taken a request or has ended.
    let mut ready: Option<OwnedFd> = None;
    loop {
        if ready.is_none()
            && let Ok((ours, theirs)) = pair()
        {
            match fork() {
                Ok(0) => {
                    drop(ours);
                    receive_for(requests, theirs);
                    exit();
                }
                Ok(_) => ready = Some(ours),
                Err(_) => {}
            }
        }
        let mut fds = [
            PollFd::new(&requests, PollFlags::empty()),
            PollFd::new(ready.as_ref().unwrap_or(&requests), PollFlags::empty()),
        ];
        // Without a ready process, the next attempt to start one follows after a pause.
        let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut fds, ready.is_none().then_some(&pause));
        if fds[0].revents().contains(PollFlags::HUP) {
            return;
        }
        if fds[1].revents().contains(PollFlags::HUP) {
            ready = None;
        }
        // SAFETY: `wait4` takes numbers and null pointers, which it does not write to.
        while unsafe { libc::syscall(libc::SYS_wait4, -1, 0, libc::WNOHANG | libc::__WALL, 0) } > 0 {}
    }
}

/// Waits for one request and answers it. Memory is not allocated here: see [`fork`].
fn receive_for(requests: OwnedFd, untaken: OwnedFd) {
    let mut request = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let (mut peer, mut answer) = (None, None);
    loop {
        let _ = poll(&mut [PollFd::new(&requests, PollFlags::IN)], None);
        let taken = receive_fds(requests.as_fd(), &mut request, &mut space, |fd| {
            if peer.is_none() { peer = Some(fd) } else { answer = Some(fd) }
        });
        match taken {
            Ok(4) => break,
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => return,
        }
    }
    drop((requests, untaken));
    let (Some(peer), Some(answer)) = (peer, answer) else { return };
    let Some(answer) = move_above_received(answer) else { return };
    answer_request(peer, answer.as_fd(), u32::from_ne_bytes(request) as usize);
    // The end of the process frees its memory first and then closes descriptors in the order of their numbers.
    // What the peer has sent comes before `answer`, which therefore hangs up when all is closed.
    std::mem::forget(answer);
}

/// Moves a descriptor to a number above those that descriptors of a message can get, for its end to be last.
fn move_above_received(fd: OwnedFd) -> Option<OwnedFd> {
    const ABOVE: RawFd = 2 * (SCM_MAX_FD + 3) as RawFd;
    rustix::io::fcntl_dupfd_cloexec(&fd, ABOVE).ok()
}

fn answer_request(peer: OwnedFd, answer: BorrowedFd<'_>, bytes: usize) {
    let mut room = [0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut numbers = [-1; SCM_MAX_FD];
    let mut count = 0;
    let received = receive_fds(peer.as_fd(), &mut room[..bytes.min(MAX_BYTES)], &mut space, |fd| {
        // Not dropped: the end of the process closes it.
        numbers[count] = fd.into_raw_fd();
        count += 1;
    });
    drop(peer);
    let fds = &numbers[..count];
    let status = match received {
        Ok(got) if got == bytes && count > 0 => match fds {
            fds if fds.len() > MAX_FDS => status::TOO_MANY,
            fds => check_kinds(fds),
        },
        _ => status::FAILED,
    };
    let passed = if status == status::RECEIVED { fds } else { &[] };
    let mut borrowed = [answer; MAX_FDS];
    for (to, &fd) in borrowed.iter_mut().zip(passed) {
        // SAFETY: `fd` was received above, and nothing closes it before this process ends.
        *to = unsafe { BorrowedFd::borrow_raw(fd) };
    }
    let _ = send_fds(answer, &[status], &borrowed[..passed.len()]);
}

/// Prepares the checks of eventfds. Tries again for a second, as queues of processes that have ended are still being freed.
fn can_check() -> bool {
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    for _ in 0..100 {
        if prepare_checks().is_ok() {
            return true;
        }
        let _ = poll(&mut [], Some(&PAUSE));
    }
    false
}

/// Returns whether all descriptors are eventfds or files in memory (memfds, or files of tmpfs or hugetlbfs), which can
/// be used and closed without waiting for their file system, as the status of an answer. Asks no file system.
fn check_kinds(fds: &[RawFd]) -> u8 {
    let mut prepared = false;
    for &fd in fds {
        // SAFETY: `fd` was received by the caller and is open; it is wrapped without being dropped.
        let fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        // Only files in memory have seals.
        if rustix::fs::fcntl_get_seals(&*fd).is_ok() {
            continue;
        }
        prepared = prepared || can_check();
        if !prepared {
            return status::FAILED;
        }
        if check_eventfd(&fd).is_err() {
            return status::WRONG_KIND;
        }
    }
    status::RECEIVED
}
