//! Programs that wait for ports in every possible way, with the library preloaded.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::netmap::{self as nm, Port};
use crate::support::{Lab, Program};
use libc::{POLLERR, POLLIN, POLLOUT, c_int, pollfd};

/// Not a test of its own: what this binary runs when a test starts it to play a part.
#[test]
fn program() {
    crate::support::play(&[
        ("send", send),
        ("readiness", readiness),
        ("timeouts", timeouts),
        ("sleep", sleep),
        ("lost", lost),
        ("others", others),
        ("epoll", epoll),
    ]);
}

/// Sends one frame.
fn send(words: &[String]) {
    Port::new(&words[0]).send(0..1, 1);
    // A pipe lasts as long as one of its ends.
    std::thread::sleep(Duration::from_millis(500));
}

/// When `poll` reports which events, and what it sends and receives.
fn readiness(_: &[String]) {
    const NO_TX_POLL: u64 = 0x20000;
    const DO_RX_POLL: u64 = 0x10000;
    let (a, b) = (Port::new("x{1"), Port::new("x}1"));
    assert_eq!(a.bound(), [true, false, true, false]);
    assert_eq!(Port::with_flags("x{1", 0x2000).bound(), [false, false, true, false]);
    assert_eq!([a.poll(POLLIN, 0), a.poll(POLLOUT, 0), a.poll(POLLIN | POLLOUT, 0)], [0, POLLOUT, POLLOUT]);
    // A frame is sent by a poll that asks for frames only.
    a.tx().write(1);
    assert_eq!((a.poll(POLLIN, 0), b.poll(POLLIN, 0)), (0, POLLIN));
    assert_eq!(b.poll(libc::POLLRDNORM, 0), libc::POLLRDNORM);
    assert_eq!(b.poll(POLLOUT, 0), POLLOUT, "what was not asked for is not told");
    // Readiness depends on `cur`: slots before it are not reported again, though they were not released.
    b.rx().want_more();
    assert_eq!((b.poll(POLLIN, 0), b.rx().space()), (0, 1));
    a.tx().write(2);
    assert_eq!(a.tx_sync(), 0);
    assert_eq!((b.poll(POLLIN, 0), b.rx().space()), (POLLIN, 2));
    assert_eq!([b.rx().read(), b.rx().read()], [1, 2]);
    assert_eq!(b.poll(POLLIN, 0), 0);
    // A full ring has no room until the other end has released slots.
    assert_eq!(a.tx_sync(), 0);
    (0..u64::from(a.tx().space())).for_each(|number| a.tx().write(number));
    assert_eq!((a.tx().space(), a.poll(POLLOUT, 0), b.poll(POLLIN, 0)), (0, 0, POLLIN));
    assert_eq!(b.rx().space(), 1023);
    b.rx().read();
    assert_eq!((b.rx_sync(), a.poll(POLLOUT, 0), a.tx().space()), (0, POLLOUT, 1));
    // A sender that wants more slots than there are.
    a.tx().want_more();
    assert_eq!(a.poll(POLLOUT, 0), 0);
    // An invalid `head` reinitialises the ring, which `poll` reports once.
    b.rx().set_head(99_999);
    assert_eq!(b.poll(POLLIN, 0), POLLERR);
    assert_eq!((b.poll(POLLIN, 0), b.rx().read()), (POLLIN, 1));
    b.rx().set_head(99_999);
    assert_eq!((b.rx_sync(), b.rx().read()), (0, 1));
    // Registrations that send, or receive, at other times.
    let (c, d) = (Port::with_flags("y{1", NO_TX_POLL), Port::with_flags("y}1", DO_RX_POLL));
    c.tx().write(7);
    assert_eq!((c.poll(POLLIN, 0), d.poll(POLLIN, 0)), (0, 0));
    assert_eq!((c.poll(POLLOUT, 0), d.rx().space()), (POLLOUT, 0));
    assert_eq!((d.poll(POLLOUT, 0), d.rx().space()), (POLLOUT, 1));
    assert_eq!(d.rx().read(), 7);
    d.tx().write(8);
    assert_eq!((d.tx_sync(), c.poll(POLLOUT, 0), c.rx().space()), (0, POLLOUT, 0));
    // Two ports at a time, with descriptors that are not netmap's.
    let mut fds = [a.fd, c.fd, 0x7fff, -1].map(|fd| pollfd { fd, events: POLLIN, revents: 0x55 });
    assert_eq!(nm::poll(&mut fds, -1), [0, POLLIN, libc::POLLNVAL, 0]);
    // Rings that have received show the time.
    // SAFETY: a mapped ring.
    assert!(unsafe { (*c.rx().0).ts.tv_sec } > 1_600_000_000);
}

#[test]
fn poll_syncs_and_tells_as_netmap_does() {
    let lab = Lab::new(module_path!());
    lab.play(&["readiness"]);
    lab.all_free();
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    // SAFETY: a struct of integers, for which zeros are valid, and which is then written.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Each way to wait, until it times out.
fn timeouts(_: &[String]) {
    let port = Port::new("x{1");
    let (cpu, start) = (cpu_time(), Instant::now());
    let limit = Duration::from_millis(130);
    let exact = |what: &str, wait: &dyn Fn() -> c_int| {
        // Not each time, as this thread may be delayed.
        let in_time = (0..10).any(|_| {
            let start = Instant::now();
            assert_eq!(wait(), 0, "{what}: {}", Error::last_os_error());
            assert!(start.elapsed() >= limit, "{what}: {:?}", start.elapsed());
            start.elapsed() < limit + Duration::from_millis(200)
        });
        assert!(in_time, "{what} takes longer");
    };
    let time = libc::timespec { tv_sec: 0, tv_nsec: 130_000_000 };
    let fds = || [pollfd { fd: port.fd, events: POLLIN, revents: 0 }];
    let set = || {
        // SAFETY: zeros are an empty set, and the descriptor is below its size.
        unsafe {
            let mut set = std::mem::zeroed::<libc::fd_set>();
            libc::FD_SET(port.fd, &mut set);
            set
        }
    };
    // SAFETY: the descriptor is new and nobody else's.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(0)) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: `event` is a local that lives as long as the call.
    assert_eq!(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, port.fd, &mut event) }, 0);
    // SAFETY: all pointers are to locals that live as long as each call.
    unsafe {
        exact("poll", &|| libc::poll(fds().as_mut_ptr(), 1, 130));
        exact("ppoll", &|| libc::ppoll(fds().as_mut_ptr(), 1, &time, std::ptr::null()));
        exact("select", &|| {
            let mut left = libc::timeval { tv_sec: 0, tv_usec: 130_000 };
            let (mut set, fd) = (set(), port.fd);
            let count = libc::select(fd + 1, &mut set, null_mut(), null_mut(), &mut left);
            assert!(!libc::FD_ISSET(fd, &set) && (left.tv_sec, left.tv_usec) == (0, 0));
            count
        });
        exact("pselect", &|| libc::pselect(port.fd + 1, &mut set(), null_mut(), null_mut(), &time, std::ptr::null()));
        let events = || [libc::epoll_event { events: 0, u64: 0 }; 2];
        exact("epoll_wait", &|| libc::epoll_wait(epoll.as_raw_fd(), events().as_mut_ptr(), 2, 130));
        exact("epoll_pwait", &|| libc::epoll_pwait(epoll.as_raw_fd(), events().as_mut_ptr(), 2, 130, std::ptr::null()));
    }
    assert_eq!(port.poll(POLLIN, 1000), 0, "longer than a look around");
    assert!(cpu_time() - cpu < start.elapsed() / 8, "{:?} of {:?}", cpu_time() - cpu, start.elapsed());
}

#[test]
fn limits_are_kept() {
    Lab::new(module_path!()).play(&["timeouts"]);
}

const READY: &str = "RINGPASS_TEST_READY";

/// Signals that this process is about to wait.
fn ready() {
    std::fs::write(std::env::var_os(READY).expect("a path"), "").unwrap();
}

/// Starts a program, and waits until it is ready.
fn when_ready(mut program: Command) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let (ready, start) = (folder.path().join("ready"), Instant::now());
    let program = Program(program.env(READY, &ready).spawn().unwrap());
    while !ready.exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "a program is not ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    program
}

/// Waits for a frame without a limit, which must take no CPU time.
fn sleep(words: &[String]) {
    let port = Port::new(&words[0]);
    ready();
    let cpu = cpu_time();
    assert_eq!(port.poll(POLLIN, -1), POLLIN);
    assert!(cpu_time() - cpu < Duration::from_millis(50), "{:?}", cpu_time() - cpu);
    assert_eq!(port.rx().read(), 0);
}

#[test]
fn who_waits_sleeps_until_a_frame_comes() {
    let lab = Lab::new(module_path!());
    let mut sleeper = when_ready(lab.part("sleep x}1"));
    std::thread::sleep(Duration::from_secs(2));
    lab.play(&["send x{1"]);
    assert!(sleeper.ends_within(Duration::from_secs(30)).success());
}

/// Waits for ever, and gets an error when the server is gone.
fn lost(_: &[String]) {
    let port = Port::new("x{1");
    ready();
    assert_eq!(port.poll(POLLIN, -1), POLLERR);
    assert_eq!(port.poll(POLLOUT, 0), POLLERR);
}

#[test]
fn who_waits_hears_that_the_server_is_gone() {
    let mut lab = Lab::new(module_path!());
    let mut waiting = when_ready(lab.part("lost"));
    std::thread::sleep(Duration::from_millis(100));
    lab.stop();
    assert!(waiting.ends_within(Duration::from_secs(30)).success());
}

fn pipe() -> [OwnedFd; 2] {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for two descriptors, which are new and nobody else's.
    unsafe {
        assert_eq!(libc::pipe(fds.as_mut_ptr()), 0);
        fds.map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

fn write_one(fd: &OwnedFd) {
    // SAFETY: one readable byte.
    assert_eq!(unsafe { libc::write(fd.as_raw_fd(), b"x".as_ptr().cast(), 1) }, 1);
}

/// Ports and ordinary descriptors together: whichever is ready first ends the wait.
fn others(_: &[String]) {
    let (a, b) = (Port::new("x{1"), Port::new("x}1"));
    let [read, write] = pipe();
    let wait = |limit| {
        let mut fds = [read.as_raw_fd(), a.fd].map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
        nm::poll(&mut fds, limit)
    };
    assert_eq!(wait(50), [0, 0]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(-1));
        std::thread::sleep(Duration::from_millis(50));
        write_one(&write);
        assert_eq!(waiting.join().unwrap(), [POLLIN, 0]);
    });
    let mut byte = [0_u8];
    // SAFETY: `byte` has room for one byte.
    assert_eq!(unsafe { libc::read(read.as_raw_fd(), byte.as_mut_ptr().cast(), 1) }, 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(-1));
        std::thread::sleep(Duration::from_millis(50));
        b.tx().write(0);
        assert_eq!(b.tx_sync(), 0);
        assert_eq!(waiting.join().unwrap(), [0, POLLIN]);
    });
    write_one(&write);
    assert_eq!(wait(-1), [POLLIN; 2]);
    // The same by `select`: both for reading, and for writing the one that has room.
    let ready = |limit: Option<i64>| {
        let mut left = limit.map(|micros| libc::timeval { tv_sec: 0, tv_usec: micros });
        let left = left.as_mut().map_or(null_mut(), |left| left as *mut _);
        // SAFETY: zeros are an empty set, the descriptors are below its size, and all pointers are to locals.
        unsafe {
            let mut sets = [std::mem::zeroed::<libc::fd_set>(); 2];
            [read.as_raw_fd(), a.fd].into_iter().for_each(|fd| libc::FD_SET(fd, &mut sets[0]));
            libc::FD_SET(a.fd, &mut sets[1]);
            let highest = read.as_raw_fd().max(a.fd) + 1;
            let [to_read, to_write] = &mut sets;
            let count = libc::select(highest, to_read, to_write, null_mut(), left);
            let is_in = |fd, set| libc::FD_ISSET(fd, set);
            (count, [is_in(read.as_raw_fd(), &sets[0]), is_in(a.fd, &sets[0]), is_in(a.fd, &sets[1])])
        }
    };
    assert_eq!(ready(None), (3, [true; 3]));
    a.rx().read();
    assert_eq!(ready(Some(0)), (2, [true, false, true]));
    // A signal ends the wait.
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: the handler does nothing, so it is async-signal-safe.
    let this = unsafe {
        libc::signal(libc::SIGALRM, nothing as *const () as usize);
        libc::pthread_self()
    };
    let mut fds = [pollfd { fd: a.fd, events: POLLIN, revents: 0 }];
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Repeatedly, as a signal may arrive before the wait begins.
            while !ended.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                // SAFETY: the thread `this` joins the calling one, so it still exists.
                unsafe { libc::pthread_kill(this, libc::SIGALRM) };
            }
        });
        // SAFETY: pointer and length of a mutable array.
        let error = nm::errno(unsafe { libc::poll(fds.as_mut_ptr(), 1, 60_000) });
        ended.store(true, Relaxed);
        assert_eq!(error, libc::EINTR);
    });
}

#[test]
fn ports_and_other_descriptors_are_waited_for_together() {
    Lab::new(module_path!()).play(&["others"]);
}

/// An epoll instance with ports and other descriptors.
fn epoll(_: &[String]) {
    let (a, b) = (Port::new("x{1"), Port::new("x}1"));
    let [read, write] = pipe();
    // SAFETY: the descriptor is new and nobody else's.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(0)) };
    let change = |op, fd, events: c_int, data| {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: `event` is a local that lives as long as the call.
        nm::errno(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), op, fd, &mut event) })
    };
    let wait = |limit, most| {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: `events` has room for four events, and `most` is at most 4.
        let count = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), most, limit) };
        let mut told: Vec<_> =
            events[..count as usize].iter().map(|event| (event.u64, { event.events } as c_int)).collect();
        told.sort_unstable();
        told
    };
    use libc::{
        EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT,
    };
    assert_eq!(change(ADD, read.as_raw_fd(), EPOLLIN, 1), 0);
    assert_eq!([change(DEL, a.fd, 0, 0), change(MOD, a.fd, EPOLLIN, 2)], [libc::ENOENT; 2]);
    assert_eq!((change(ADD, a.fd, EPOLLIN, 2), change(ADD, a.fd, EPOLLIN, 2)), (0, libc::EEXIST));
    assert_eq!(wait(0, 4), []);
    let send = |number| {
        b.tx().write(number);
        assert_eq!(b.tx_sync(), 0);
    };
    let later = |what: &(dyn Fn() + Sync), expected: &[(u64, c_int)]| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                what();
            });
            assert_eq!(wait(60_000, 4), expected);
        });
    };
    later(&|| write_one(&write), &[(1, EPOLLIN)]);
    // SAFETY: the array has room for one byte.
    assert_eq!(unsafe { libc::read(read.as_raw_fd(), [0_u8].as_mut_ptr().cast(), 1) }, 1);
    later(&|| send(0), &[(2, EPOLLIN)]);
    assert_eq!(wait(-1, 4), [(2, EPOLLIN)], "as long as it is so");
    write_one(&write);
    assert_eq!(wait(-1, 4), [(1, EPOLLIN), (2, EPOLLIN)]);
    let first = [wait(-1, 1), wait(-1, 1)].concat();
    assert_ne!(first[0].0, first[1].0, "nobody starves");
    assert_eq!(change(MOD, a.fd, EPOLLIN | EPOLLOUT, 3), 0);
    assert_eq!(wait(-1, 4), [(1, EPOLLIN), (3, EPOLLIN | EPOLLOUT)]);
    // Edge-triggered: changes only.
    assert_eq!((change(DEL, read.as_raw_fd(), 0, 0), change(MOD, a.fd, EPOLLIN | EPOLLET, 4)), (0, 0));
    assert_eq!((wait(60_000, 4), wait(50, 4)), (vec![(4, EPOLLIN)], vec![]));
    later(&|| send(1), &[(4, EPOLLIN)]);
    assert_eq!(wait(50, 4), []);
    // One-shot: reported once.
    assert_eq!(change(MOD, a.fd, EPOLLIN | EPOLLONESHOT, 5), 0);
    assert_eq!((wait(60_000, 4), wait(50, 4)), (vec![(5, EPOLLIN)], vec![]));
    assert_eq!(change(MOD, a.fd, EPOLLIN | EPOLLONESHOT, 6), 0);
    assert_eq!(wait(60_000, 4), [(6, EPOLLIN)]);
    assert_eq!((change(DEL, a.fd, 0, 0), wait(50, 4)), (0, vec![]));
    // A closed descriptor is not watched any more.
    let closed = Port::new("y{1");
    assert_eq!((change(ADD, closed.fd, EPOLLOUT, 9), wait(0, 4)), (0, vec![(9, EPOLLOUT)]));
    drop(closed);
    assert_eq!(wait(0, 4), []);
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut event = libc::epoll_event { events: 1, u64: 0 };
    // SAFETY: `event` is a local that lives as long as the call.
    assert_eq!(nm::errno(unsafe { libc::epoll_ctl(file.as_raw_fd(), ADD, a.fd, &mut event) }), libc::EINVAL);
}

#[test]
fn epoll_watches_ports_and_others() {
    Lab::new(module_path!()).play(&["epoll"]);
}
