//! Descriptors of a file system that the peer serves itself (FUSE) and that never answers when a file is
//! closed.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_ipc::{ConnectionLost, ReadStatus, Stream};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const LIMIT: Duration = Duration::from_secs(30);

/// A file system with one file that answers requests to open the file and none to close or stat it
/// (linux/fuse.h). When it is dropped, the kernel aborts all requests that still wait.
struct Silent {
    file: Option<OwnedFd>,
    stop: Arc<AtomicBool>,
    /// Number of FLUSH requests, none of which is ever answered.
    flushes: Arc<AtomicU32>,
    server: Option<JoinHandle<()>>,
}

impl Silent {
    fn new() -> Self {
        let fuse = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        rustix::io::ioctl_fionbio(&fuse, true).unwrap();
        let (stop, flushes) = <(Arc<AtomicBool>, Arc<AtomicU32>)>::default();
        let (raw, shared) = (fuse.as_raw_fd(), (stop.clone(), flushes.clone()));
        // Mounted on a thread in a mount namespace of its own. The namespace ends with the thread; the open
        // file outlives it.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mounted = std::thread::spawn(move || {
            // SAFETY: only the working directory and the mount namespace are unshared. The descriptor table
            // stays shared, so every descriptor remains valid in all threads.
            unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }.expect("a mount namespace (as root)");
            mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
            let options = std::ffi::CString::new(format!("fd={raw},rootmode=40000,user_id=0,group_id=0")).unwrap();
            mount("silent", &path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*options).expect("a FUSE mount");
            OwnedFd::from(File::open(path.join("file")).expect("the file"))
        });
        let server = std::thread::spawn(move || serve(fuse, &shared));
        let file = mounted.join().expect("mounted");
        Self { file: Some(file), stop, flushes, server: Some(server) }
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_ref().unwrap().as_fd()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // The server ends first, which aborts all requests, so that closing the file does not block.
        self.stop.store(true, Ordering::Relaxed);
        self.server.take().into_iter().for_each(|server| _ = server.join());
        self.file = None;
    }
}

/// Serves until told to stop. The device is then closed, which aborts all requests.
fn serve(mut fuse: File, (stop, flushes): &(Arc<AtomicBool>, Arc<AtomicU32>)) {
    let mut request = vec![0; 1 << 17];
    while !stop.load(Ordering::Relaxed) {
        let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::new(&fuse, PollFlags::IN)], Some(&limit));
        let Ok(len) = fuse.read(&mut request) else { continue };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        assert!(len >= 40);
        let attributes = |directory: bool| {
            let mode: u32 = if directory { 0o040_755 } else { 0o100_644 };
            let mut bytes = vec![0; 88];
            bytes[0] = if directory { 1 } else { 2 };
            bytes[60..64].copy_from_slice(&mode.to_ne_bytes());
            bytes[64] = 1;
            bytes
        };
        let body = match word(4) {
            // INIT: version 7.31, writes of one page.
            26 => {
                let mut body = vec![0; 64];
                (body[0], body[4]) = (7, 31);
                body[20..24].copy_from_slice(&4096u32.to_ne_bytes());
                Ok(body)
            }
            // LOOKUP: node 2.
            1 => Ok([&[2, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32], &attributes(false)].concat()),
            // GETATTR of the root. For the file it is never answered, see below.
            3 if word(16) == 1 => Ok([&[0; 16][..], &attributes(true)].concat()),
            // OPEN.
            14 => Ok(vec![0; 16]),
            // FLUSH.
            25 => {
                flushes.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // STATFS, RELEASE, GETATTR of the file.
            17 | 18 | 3 => continue,
            _ => Err(-libc::ENOSYS),
        };
        let (error, body) = body.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let size = 16 + body.len() as u32;
        let head = [&size.to_ne_bytes()[..], &error.to_ne_bytes(), &request[8..16]].concat();
        let _ = fuse.write(&[head, body].concat());
    }
}

fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

fn pair() -> (UnixStream, Stream) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (theirs, Stream::new(ours.into(), 4096))
}

/// Runs `what`, which must not block, on a thread of its own.
fn elsewhere<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, finished) = channel();
    std::thread::spawn(move || done.send(what()));
    finished
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A single test, because the process has one closing thread: a first descriptor blocks it, then more arrive
/// than it accepts.
#[test]
fn a_file_that_is_never_closed_keeps_no_session_waiting() {
    let silent = Silent::new();
    // Check that the file system works as intended: closing a descriptor blocks.
    let ours = silent.file().try_clone_to_owned().unwrap();
    let closed = elsewhere(move || drop(ours));
    until("no FLUSH", || silent.flushes.load(Ordering::Relaxed) == 1);
    assert!(closed.recv_timeout(Duration::from_millis(50)).is_err(), "it is closed without an answer");

    let mut kinds = Vec::new();
    // 20 peers, which send 1 to 253 descriptors each; 253 is the most that the kernel passes with one message.
    for count in [1, 4, 16, 253].repeat(5) {
        let (theirs, mut stream) = pair();
        send(&theirs, b"message", &vec![silent.file(); count]);
        let received = elsewhere(move || stream.receive().unwrap_err());
        let lost = received.recv_timeout(LIMIT).expect("the session ends without waiting for the file system");
        kinds.push(matches!(lost, ConnectionLost::Kind));
        assert!(matches!(lost, ConnectionLost::Kind | ConnectionLost::Descriptors), "{lost}");
    }
    assert!(kinds[0], "the first is told what is wrong");
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 450, "{open} descriptors are open: 20 peers have left 1,370");

    // Other sessions continue, except that they receive no descriptors. Dropping a stream with a descriptor
    // that was never received does not block either.
    let (theirs, mut stream) = pair();
    send(&theirs, b"message", &[]);
    assert_eq!(stream.receive().unwrap(), ReadStatus::Data);
    send(&theirs, b"message", &[silent.file()]);
    assert!(elsewhere(move || drop(stream)).recv_timeout(LIMIT).is_ok());

    // The peer is gone, and the pending requests are aborted.
    drop(silent);
    closed.recv_timeout(LIMIT).expect("its requests are aborted");
    until("descriptors are received again", || {
        let (theirs, mut stream) = pair();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        send(&theirs, b"message", &[event.as_fd(), memory.as_fd()]);
        stream.receive().is_ok() && stream.take(7).1.len() == 2
    });
}
