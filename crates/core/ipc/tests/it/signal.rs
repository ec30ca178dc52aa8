//! Eventfds of other processes: how they are recognised, and that nothing their holders do makes the notifier
//! block.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use ringpass_ipc::{EventNotifier, NotEventfd, check_eventfd, prepare_notifiers};
use ringpass_lab::SlowEventfd;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Returns the counter and resets it to zero; `None` if it is zero.
fn counter(eventfd: &OwnedFd) -> Option<u64> {
    let mut counter = [0; 8];
    rustix::io::read(eventfd, &mut counter).ok().map(|_| u64::from_ne_bytes(counter))
}

/// Fails the test if the closure blocks.
fn within_ten_seconds(what: impl FnOnce() + Send + 'static) {
    let (done, waiting) = mpsc::channel();
    std::thread::spawn(move || {
        what();
        done.send(()).unwrap();
    });
    waiting.recv_timeout(Duration::from_secs(10)).expect("it waits");
}

#[test]
fn signals_arrive_one_by_one() {
    prepare_notifiers().unwrap();
    let event = event();
    let signal = EventNotifier::new(event.try_clone().unwrap()).unwrap();
    assert_eq!(counter(&event), None, "to look at it is no signal");
    signal.notify();
    assert_eq!(counter(&event), Some(1));
    // More notifications than there is room for completions.
    (0..10_000).for_each(|_| signal.clone().notify());
    assert_eq!(counter(&event), Some(10_000));
}

#[test]
fn several_threads_lose_none() {
    let event = event();
    let signal = EventNotifier::new(event.try_clone().unwrap()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5_000).for_each(|_| signal.notify()));
        }
    });
    assert_eq!(counter(&event), Some(20_000));
}

#[test]
fn a_counter_at_its_maximum_keeps_nobody_waiting() {
    within_ten_seconds(|| {
        // Created without `O_NONBLOCK`, so reads and writes could block.
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let signal = EventNotifier::new(event.try_clone().unwrap()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..1_000).for_each(|_| signal.notify());
        check_eventfd(&event).unwrap();
    });
}

#[test]
fn others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kinds: Vec<(&str, OwnedFd)> = vec![
        ("a directory", File::open(folder.path()).unwrap().into()),
        ("an end of a pipe", rustix::pipe::pipe().unwrap().1),
        ("the other end of one", rustix::pipe::pipe().unwrap().0),
        ("a socket", UnixStream::pair().unwrap().0.into()),
        ("memory", memfd_create("test", MemfdFlags::CLOEXEC).unwrap()),
        ("a device", File::options().read(true).write(true).open("/dev/zero").unwrap().into()),
        ("an epoll", epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()),
        ("only a path", rustix::fs::open("/dev/shm", OFlags::PATH, Mode::empty()).unwrap()),
    ];
    for (what, fd) in kinds {
        assert_eq!(check_eventfd(&fd), Err(NotEventfd), "{what}");
        assert!(fd.as_fd().try_clone_to_owned().is_ok_and(|fd| EventNotifier::new(fd).is_err()), "{what}");
    }
}

/// The holder of an eventfd has tens of thousands wait for it, each of which a signal wakes.
#[test]
fn signals_that_take_long_are_given_up() {
    let (waiters, quick) = (SlowEventfd::new(), event());
    let slow = waiters.as_fd().try_clone_to_owned().unwrap();
    let notifier = |event: &OwnedFd| EventNotifier::new(event.try_clone().unwrap()).unwrap();
    let (to_slow, to_quick) = (notifier(&slow), notifier(&quick));
    let mut signals = 0;
    while !to_slow.is_slow() {
        to_slow.notify();
        to_quick.notify();
        signals += 1;
        assert!(signals < 100, "90,000 waiters take no time");
    }
    let start = std::time::Instant::now();
    (0..1_000).for_each(|_| to_slow.clone().notify());
    assert!(start.elapsed() < Duration::from_secs(1), "signals are sent on");
    assert_eq!(counter(&slow), Some(signals));
    to_quick.notify();
    assert!(!to_quick.is_slow());
    assert_eq!(counter(&quick), Some(signals + 1));
}

/// Asynchronous I/O is not inherited over `fork`, and netmap programs do fork after opening a port.
#[test]
fn a_forked_process_signals_too() {
    let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let signal = EventNotifier::new(event.try_clone().unwrap()).unwrap();
    // SAFETY: the child only makes system calls and touches atomics, both of which are allowed after a fork of
    // a process with several threads, and it ends by `_exit`, without running destructors.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            signal.notify();
            signal.notify();
            libc::_exit(0);
        }
        child
    };
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `child` is the process just forked; the kernel only writes to `status`, a local that outlives the
    // call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    signal.notify();
    let mut count = [0; 8];
    rustix::io::read(&event, &mut count).unwrap();
    assert_eq!((status, u64::from_ne_bytes(count)), (0, 3));
}
