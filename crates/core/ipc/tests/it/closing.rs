//! Descriptors that peers send: which are received, and that none of them blocks this process.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ringpass_ipc::{ConnectionLost, Descriptors, ReadStatus, Stream, start_fd_receiver};
use ringpass_lab::SilentFile;
use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const LIMIT: Duration = Duration::from_secs(30);

fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

fn pair(accepts: Descriptors) -> (UnixStream, Stream) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (theirs, Stream::new(ours.into(), 4096, accepts))
}

/// Returns a pair whose peer is another user.
fn pair_of(user: u32) -> (UnixStream, Stream) {
    let made = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).expect("another user (as root)");
        pair(Descriptors::Checked)
    });
    made.join().unwrap()
}

/// Waits until something is received or the connection is lost.
fn receive(stream: &mut Stream) -> Result<(), ConnectionLost> {
    let start = Instant::now();
    while stream.receive()? == ReadStatus::WouldBlock {
        assert!(start.elapsed() < LIMIT, "nothing is received");
        let (fd, flags) = stream.wait_on();
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
    }
    Ok(())
}

fn good() -> [OwnedFd; 2] {
    [
        eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap(),
    ]
}

/// Sends two descriptors that are accepted, and checks that they arrive.
fn exchange_good((theirs, mut stream): (UnixStream, Stream)) {
    let good = good();
    send(&theirs, b"message", &[good[0].as_fd(), good[1].as_fd()]);
    receive(&mut stream).unwrap();
    assert_eq!(stream.take(7).1.len(), 2);
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

#[test]
fn descriptors_belong_to_the_message_that_they_came_with() {
    let (theirs, mut stream) = pair(Descriptors::Checked);
    let fds: Vec<OwnedFd> = (0..9).flat_map(|_| good()).collect();
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    send(&theirs, b"one", &[]);
    send(&theirs, b"two", &fds[..1]);
    send(&theirs, b"three", &fds[..16]);
    send(&theirs, b"four", &[]);
    for (message, count) in [(&b"one"[..], 0), (b"two", 1), (b"three", 16), (b"four", 0)] {
        while stream.arrived().len() < message.len() {
            receive(&mut stream).unwrap();
        }
        let (range, fds) = stream.take(message.len());
        assert_eq!((stream.bytes(range), fds.len()), (message, count));
    }
    // Part of a message, and descriptors in the rest of it.
    send(&theirs, b"mess", &[]);
    receive(&mut stream).unwrap();
    assert!(stream.has_partial_message());
    send(&theirs, b"age", &fds[..2]);
    receive(&mut stream).unwrap();
    assert_eq!(stream.arrived(), b"message");
    assert_eq!(stream.take(7).1.len(), 2);
    send(&theirs, b"message", &fds[..17]);
    assert!(matches!(receive(&mut stream), Err(ConnectionLost::Descriptors)));
}

#[test]
fn other_descriptors_end_the_connection() {
    let (null, good) = (std::fs::File::open("/dev/null").unwrap(), good());
    for fds in [&[null.as_fd()][..], &[good[0].as_fd(), null.as_fd()], &[good[1].as_fd(), null.as_fd()]] {
        let (theirs, mut stream) = pair(Descriptors::Checked);
        send(&theirs, b"message", fds);
        assert!(matches!(receive(&mut stream), Err(ConnectionLost::Kind)));
    }
    let (theirs, mut stream) = pair(Descriptors::Refused);
    send(&theirs, b"first", &[]);
    send(&theirs, b"message", &[good[0].as_fd()]);
    let lost = std::iter::repeat_with(|| receive(&mut stream)).take(2).find_map(Result::err);
    assert!(matches!(lost, Some(ConnectionLost::Descriptors)));
    let (theirs, mut stream) = pair(Descriptors::Trusted);
    send(&theirs, b"message", &[null.as_fd()]);
    receive(&mut stream).unwrap();
    assert_eq!(stream.take(7).1.len(), 1);
}

#[test]
fn a_file_that_is_never_closed_keeps_no_session_waiting() {
    // Before this process has the file, which the starter would otherwise inherit and close.
    start_fd_receiver(|| Ok(())).unwrap();
    let silent = SilentFile::new();
    // Check that the file system works as intended: closing a descriptor blocks.
    let ours = silent.as_fd().try_clone_to_owned().unwrap();
    let closed = elsewhere(move || drop(ours));
    until("no FLUSH", || silent.flushes() == 1);
    assert!(closed.recv_timeout(Duration::from_millis(50)).is_err(), "it is closed without an answer");

    // One user sends it, alone and many times in a message; 253 is the most that the kernel passes.
    for count in [1, 4, 17, 253, 1, 16, 1, 253] {
        let (theirs, mut stream) = pair_of(12_345);
        send(&theirs, b"message", &vec![silent.as_fd(); count]);
        let lost = elsewhere(move || receive(&mut stream).unwrap_err()).recv_timeout(LIMIT);
        let lost = lost.expect("the session ends without waiting for the file system");
        assert!(matches!(lost, ConnectionLost::Descriptors) == (count > 16), "{count}: {lost}");
        assert!(matches!(lost, ConnectionLost::Kind) == (count <= 16), "{count}: {lost}");
    }
    // Then nothing more is received of that user, whatever it is, but for messages without descriptors.
    std::thread::sleep(Duration::from_millis(200));
    let (theirs, mut stream) = pair_of(12_345);
    let good = good();
    send(&theirs, b"message", &[]);
    receive(&mut stream).unwrap();
    send(&theirs, b"message", &[good[0].as_fd()]);
    assert!(matches!(receive(&mut stream), Err(ConnectionLost::Unclosed)));
    // So it is for a user whose sessions end before it is known what they have sent.
    for _ in 0..40 {
        let (theirs, mut stream) = pair_of(12_347);
        send(&theirs, b"message", &[silent.as_fd()]);
        let _ = stream.receive();
    }
    let (theirs, mut stream) = pair_of(12_347);
    send(&theirs, b"message", &[good[0].as_fd()]);
    assert!(matches!(receive(&mut stream), Err(ConnectionLost::Unclosed)));
    // Others are served, and streams that refuse descriptors or are dropped with unread ones do not block.
    exchange_good(pair_of(12_346));
    exchange_good(pair(Descriptors::Checked));
    let (theirs, mut stream) = pair(Descriptors::Refused);
    send(&theirs, b"message", &[silent.as_fd()]);
    assert!(elsewhere(move || _ = receive(&mut stream).unwrap_err()).recv_timeout(LIMIT).is_ok());
    let (theirs, stream) = pair(Descriptors::Checked);
    send(&theirs, b"message", &[silent.as_fd()]);
    assert!(elsewhere(move || drop(stream)).recv_timeout(LIMIT).is_ok());

    // When the file system is gone, the pending requests are aborted, and the user is served again.
    drop(silent);
    closed.recv_timeout(LIMIT).expect("its requests are aborted");
    until("descriptors are received again", || {
        let (theirs, mut stream) = pair_of(12_345);
        send(&theirs, b"message", &[good[0].as_fd()]);
        receive(&mut stream).is_ok()
    });
}

/// The peer gives away the last descriptors of much memory: in a message that is taken, and in one that is not.
#[test]
fn much_memory_in_a_message_is_freed_elsewhere() {
    const LEN: u64 = 256 << 20;
    let filled = || {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEN).unwrap();
        file
    };
    // The best of some rounds, as this thread may be preempted.
    let mut best = [Duration::MAX; 3];
    for _ in 0..5 {
        let (theirs, mut stream) = pair(Descriptors::Checked);
        send(&theirs, b"message", &[filled().as_fd()]);
        receive(&mut stream).unwrap();
        let (_, fds) = stream.take(7);
        // The process that has received it has it, too, until it ends.
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        drop((fds, stream));
        best[0] = best[0].min(start.elapsed());
        let (theirs, stream) = pair(Descriptors::Checked);
        send(&theirs, b"message", &[filled().as_fd()]);
        let start = Instant::now();
        drop(stream);
        best[1] = best[1].min(start.elapsed());
        let file = filled();
        let start = Instant::now();
        drop(file);
        best[2] = best[2].min(start.elapsed());
    }
    println!("256 MiB: {:?} taken, {:?} unread, {:?} closed here", best[0], best[1], best[2]);
    assert!(best[0] < best[2] / 5 && best[1] < best[2] / 5, "{best:?}");
}
