//! Programs written for netmap with the library preloaded, each a process of its own.

use std::io::Error;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::support::netmap::{self as nm, Port, Ring};
use crate::support::{Lab, Program};
use libc::{POLLERR, POLLIN, POLLOUT, c_char, c_int, c_void, pollfd};

/// Not a test of its own: what this binary runs when a test starts it to play a part.
#[test]
fn program() {
    crate::support::play(&[
        ("send", send),
        ("receive", receive),
        ("errors", errors),
        ("threads", threads),
        ("shared", shared),
        ("fork", fork),
        ("legacy", legacy),
        ("dup", dup),
        ("replace", replace),
        ("exclusive", exclusive),
        ("exchange", exchange),
    ]);
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn send(words: &[String]) {
    Port::new(&words[0]).send(0..number(&words[1]), number(&words[2]) as u32);
    // A pipe lasts as long as one of its ends.
    std::thread::sleep(Duration::from_millis(words.get(3).map_or(0, |word| number(word))));
}

fn receive(words: &[String]) {
    Port::new(&words[0]).receive(0..number(&words[1]));
}

#[test]
fn frames_go_through_a_pipe() {
    let lab = Lab::new(module_path!());
    for batch in [1, 37, 1023] {
        lab.play(&[&format!("send x{{1 300000 {batch} 1000"), "receive x}1 300000"]);
        lab.all_free();
    }
}

/// netmap's answers to invalid requests.
fn errors(_: &[String]) {
    let fd = nm::open();
    let register = |version, kind, name: &str| {
        let mut body = nm::registration(nm::ALL_NIC, 0, 0, 0);
        nm::control(fd, version, kind, name, null_mut(), &mut body)
    };
    let sync = |request: u64| nm::errno(nm::ioctl(fd, request, null_mut()));
    assert_eq!([sync(0x6994), sync(0x6995)], [libc::ENXIO; 2]);
    let map = |len, offset| {
        // SAFETY: a new mapping, which is not accessed.
        let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, offset) };
        if at == libc::MAP_FAILED { Error::last_os_error().raw_os_error().unwrap() } else { 0 }
    };
    assert_eq!(map(4096, 0), libc::EINVAL, "not registered");
    for events in [POLLIN, POLLOUT, 0] {
        assert_eq!(nm::poll(&mut [pollfd { fd, events, revents: 0 }], -1), [POLLERR]);
    }
    assert_eq!([13, 16].map(|version| register(version, nm::REGISTER, "x{1")), [libc::EINVAL; 2]);
    assert_eq!([0, 99].map(|kind| register(14, kind, "x{1")), [libc::EINVAL; 2]);
    assert_eq!(register(14, nm::REGISTER, "nothing"), libc::ENXIO);
    assert_eq!(nm::control(fd, 14, nm::REGISTER, "x{1", null_mut(), &mut []), libc::EINVAL, "no body");
    assert_eq!(nm::errno(nm::ioctl(fd, nm::NIOCCTRL, null_mut())), libc::EFAULT);
    let mut option = [0_u8; 32];
    option[8] = 77;
    let mut body = nm::registration(nm::ALL_NIC, 0, 0, 0);
    let error = nm::control(fd, 14, nm::REGISTER, "x{1", option.as_mut_ptr().cast(), &mut body);
    assert_eq!((error, i32::from(option[12])), (libc::EOPNOTSUPP, libc::EOPNOTSUPP));
    assert_eq!(sync(0x6994), libc::ENXIO, "nothing was registered");
    // After all these errors it works, once.
    assert_eq!(register(15, nm::REGISTER, "x{1"), 0);
    assert_eq!(register(15, nm::REGISTER, "x{1"), libc::EBUSY);
    assert_eq!([sync(0x6994), sync(0xffff_ffff_0000_6995)], [0; 2]);
    assert_eq!([map(4096, 0), map(1 << 40, 0), map(4096, 1 << 40)], [0, libc::EINVAL, libc::EINVAL]);
    // PORT_HDR_GET, PORT_INFO_GET; VALE_LIST has nothing to list.
    let mut body = [0xff_u8; 64];
    assert_eq!(
        (nm::control(fd, 14, 7, "x{1", null_mut(), &mut body), &body[..9]),
        (0, &[0, 0, 0, 0, 0, 0, 0, 0, 255][..])
    );
    let mut body = [0_u8; 64];
    assert_eq!(nm::control(fd, 14, 2, "x{1", null_mut(), &mut body), 0);
    assert_eq!((&body[8..12], &body[16..20]), (&1024_u32.to_le_bytes()[..], &[1, 0, 1, 0][..]));
    assert!(body[24] > 2, "a memory of its own");
    assert_eq!(nm::control(fd, 14, 5, "", null_mut(), &mut body), libc::ENOENT);
    // What a read of netmap's device returns. A closed descriptor is netmap's no more.
    // SAFETY: `body` has 64 bytes; `fd` is this program's.
    unsafe {
        assert_eq!(nm::errno(libc::read(fd, body.as_mut_ptr().cast(), 64) as c_int), libc::EINVAL);
        assert_eq!(nm::errno(libc::close(fd)), 0);
        assert_eq!(nm::errno(libc::close(fd)), libc::EBADF);
    }
    assert_eq!(sync(0x6994), libc::EBADF);
    // The kernel handles descriptors that are not netmap's.
    let pipe = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(nm::errno(nm::ioctl(pipe.as_raw_fd(), 0x6994, null_mut())), libc::ENOTTY);
    // Success leaves `errno` unchanged.
    // SAFETY: the `errno` of this thread.
    unsafe { *libc::__errno_location() = 77 };
    let port = Port::new("y{1");
    assert_eq!(port.poll(POLLOUT, -1), POLLOUT);
    assert_eq!((port.tx_sync(), Error::last_os_error().raw_os_error()), (0, Some(77)));
}

#[test]
fn errors_are_netmaps() {
    let lab = Lab::new(module_path!());
    lab.play(&["errors"]);
    lab.all_free();
}

/// Threads with a port each, in pairs.
fn threads(_: &[String]) {
    std::thread::scope(|scope| {
        for pair in 0..6 {
            // An end that opens after the other has closed would get another pipe.
            let both = Arc::new(Barrier::new(2));
            let first = both.clone();
            scope.spawn(move || {
                let port = Port::new(&format!("x{{{pair}"));
                first.wait();
                port.send(0..30_000, 100);
            });
            scope.spawn(move || {
                let port = Port::new(&format!("x}}{pair}"));
                both.wait();
                port.receive(0..30_000);
                assert_eq!(port.poll(POLLIN, 0), 0);
            });
        }
    });
}

#[test]
fn threads_have_ports_of_their_own() {
    let lab = Lab::new(module_path!());
    lab.play(&["threads"]);
    lab.all_free();
}

/// Threads that share a descriptor: one receives, one sends, others wait for frames that do not arrive, or
/// sync.
fn shared(words: &[String]) {
    let port = Port::new(&words[0]);
    let count = number(&words[1]);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let idle: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        port.poll(libc::POLLPRI, 20);
                        assert_eq!((port.tx_sync(), port.rx_sync()), (0, 0));
                    }
                })
            })
            .collect();
        let sender = scope.spawn(|| port.send(0..count, 64));
        port.receive(0..count);
        sender.join().unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        idle.into_iter().for_each(|thread| thread.join().unwrap());
    });
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn threads_share_a_port() {
    let lab = Lab::new(module_path!());
    lab.play(&["shared x{1 100000", "shared x}1 100000"]);
    lab.all_free();
}

/// A child has its parent's port, even after the parent has closed it.
fn fork(_: &[String]) {
    let (a, b) = (Port::new("x{1"), Port::new("x}1"));
    // SAFETY: no other thread holds a lock; the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sent = std::panic::catch_unwind(|| {
            assert_eq!(b.poll(POLLIN, 5000), POLLIN);
            assert_eq!(b.rx().read(), 1);
            b.send(2..3, 1);
            // SAFETY: both descriptors are this program's. The child closes its copies; the parent still has
            // them.
            unsafe { libc::close(a.fd) + libc::close(b.fd) }
        });
        // SAFETY: ends the child without running its parent's exit handlers.
        unsafe { libc::_exit(if matches!(sent, Ok(0)) { 0 } else { 1 }) };
    }
    std::thread::sleep(Duration::from_millis(100));
    a.send(1..2, 1);
    a.receive(2..3);
    let mut status = 0;
    // SAFETY: `status` is a local that is written.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(b.poll(POLLIN, 0) & POLLERR, 0);
    a.send(0..10, 10);
    // Programs that it starts do not inherit the port, and do not affect it.
    let status = std::process::Command::new("true").status().unwrap();
    assert!(status.success());
    assert_eq!((a.tx_sync(), a.poll(POLLOUT, 0)), (0, POLLOUT));
}

#[test]
fn children_share_their_parents_port() {
    let lab = Lab::new(module_path!());
    lab.play(&["fork"]);
    lab.all_free();
}

/// `nm_open` before API 14: pipes by number, one ring.
fn legacy(_: &[String]) {
    use netmap_sys::netmap::{NIOCGINFO, NR_REG_ONE_NIC, NR_REG_PIPE_MASTER, NR_REG_PIPE_SLAVE, nmreq};
    let (a, b) = (Port::legacy("x", NR_REG_PIPE_MASTER, 3), Port::legacy("x", NR_REG_PIPE_SLAVE, 3));
    a.send(0..100, 100);
    b.receive(0..100);
    let c = Port::legacy("x{4", NR_REG_ONE_NIC, 0);
    assert_eq!(c.poll(POLLOUT, 0), POLLOUT);
    let fd = nm::open();
    // SAFETY: a struct of integers, for which zeros are valid.
    let mut request = unsafe { std::mem::zeroed::<nmreq>() };
    request.nr_version = 11;
    let ask = |request: &mut nmreq| nm::errno(nm::ioctl(fd, NIOCGINFO, (request as *mut nmreq).cast::<c_void>()));
    assert_eq!(ask(&mut request), libc::EINVAL);
    request.nr_version = 14;
    request.nr_name[..3].copy_from_slice(&[b'x', b'{', b'3'].map(|byte| byte as c_char));
    assert_eq!(ask(&mut request), 0);
    assert_eq!(request.nr_memsize as usize, a.size);
    // The file in which the kernel's module shows it.
    let size = std::fs::read_to_string("/sys/module/netmap/parameters/buf_size").unwrap();
    assert_eq!(size, "2048\n");
}

#[test]
fn requests_of_old_are_answered() {
    let lab = Lab::new(module_path!());
    lab.play(&["legacy"]);
    lab.all_free();
}

/// Duplicates of a descriptor refer to the same port; closing the last one ends it.
fn dup(_: &[String]) {
    let port = Port::new("x{1");
    let works = |fd| nm::errno(nm::ioctl(fd, 0x6994, null_mut()));
    // A descriptor in another part of the library's table, if the limit allows that: the default limit does not
    // until it is raised.
    ringpass_ipc::raise_descriptor_limit().unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let high = limit.min(3001) as c_int - 1;
    // SAFETY: duplicates of this program's descriptors; `high` is not in use.
    unsafe {
        let one = libc::dup(port.fd);
        let two = libc::fcntl(port.fd, libc::F_DUPFD_CLOEXEC, 100);
        let three = libc::dup3(port.fd, 200, libc::O_CLOEXEC);
        let four = libc::dup2(port.fd, high);
        assert_eq!((two >= 100, three, four), (true, 200, high));
        assert_eq!([one, two, three, four].map(works), [0; 4]);
        let file = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        assert_eq!((libc::dup2(file, 200), works(200)), (200, libc::ENOTTY), "another file has the number");
        assert_eq!((libc::dup2(two, 200), works(200)), (200, 0));
        assert_eq!(libc::close(port.fd), 0);
        assert_eq!((works(port.fd), works(one)), (libc::EBADF, 0));
        assert_eq!([one, 200, four].map(|fd| libc::close(fd)), [0; 3]);
        assert_eq!(works(two), 0);
        assert_eq!((libc::close_range(two as u32, two as u32, 0), works(two)), (0, libc::EBADF));
        let again = Port::with_flags("x{1", 0x800);
        assert_eq!(again.tx_sync(), 0, "exclusively: nobody has it any more");
        std::mem::forget(port);
    }
}

#[test]
fn copies_of_a_descriptor_are_the_port() {
    let lab = Lab::new(module_path!());
    lab.play(&["dup"]);
    lab.all_free();
}

/// Threads make a number now a port and now a file, while the program forks. The kernel and the library agree on
/// which it is.
fn replace(_: &[String]) {
    const TO: c_int = 200;
    let port = Port::new("x{1");
    // SAFETY: the path is NUL-terminated.
    let file = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    let is_port = || nm::errno(nm::ioctl(TO, 0x6994, null_mut())) == 0;
    let is_file = || std::fs::read_link(format!("/proc/self/fd/{TO}")).unwrap().ends_with("null");
    // A thread that panics would leave the other waiting.
    let (turn, mismatches) = (Barrier::new(2), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for old in [port.fd, file] {
            let (turn, mismatches) = (&turn, &mismatches);
            scope.spawn(move || {
                for _ in 0..5000 {
                    turn.wait();
                    // SAFETY: `old` is this program's, and nothing else has the number `TO`.
                    let duplicated = unsafe { libc::dup2(old, TO) } == TO;
                    let agree = !turn.wait().is_leader() || is_port() != is_file();
                    mismatches.fetch_add(u32::from(!duplicated || !agree), Relaxed);
                }
            });
        }
        for _ in 0..100 {
            // SAFETY: the child makes system calls only, with descriptors of its own, and ends by `_exit`.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(c_int::from(libc::dup2(port.fd, TO) != TO || libc::close(TO) != 0));
                }
                let mut status = 0;
                assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
            }
        }
    });
    assert_eq!(mismatches.into_inner(), 0);
}

#[test]
fn a_number_is_what_the_kernel_has_it_be() {
    let lab = Lab::new(module_path!());
    lab.play(&["replace"]);
    lab.all_free();
}

/// Has a port exclusively until it is killed, or is refused.
fn exclusive(words: &[String]) {
    let (fd, mut body) = (nm::open(), nm::registration(nm::ALL_NIC, 0, number(&words[1]), 0));
    assert_eq!(nm::control(fd, 14, nm::REGISTER, &words[0], null_mut(), &mut body), number(&words[2]) as c_int);
    if let Some(path) = words.get(3) {
        std::fs::write(path, "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn exclusive_ports_are_freed_by_a_kill() {
    let lab = Lab::new(module_path!());
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let mut holder = Program(lab.part(&format!("exclusive x{{1 2048 0 {}", ready.display())).spawn().unwrap());
    let start = Instant::now();
    while !ready.exists() {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.play(&["exclusive x{1 0 16", "exclusive x{1 2048 16", "exclusive x}1 0 0"]);
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    lab.all_free();
    lab.play(&["exclusive x{1 2048 0"]);
}

/// Sends whatever it can and returns whatever arrives, for ever.
fn exchange(words: &[String]) {
    let port = Port::new(&words[0]);
    loop {
        port.poll(POLLIN | POLLOUT, 5);
        let use_up = |ring: Ring| (0..ring.space().min(50)).for_each(|_| ring.advance());
        use_up(port.tx());
        use_up(port.rx());
    }
}

/// Programs are killed at any instant; the next program finds the port in order.
#[test]
fn programs_may_be_killed_at_any_instant() {
    let lab = Lab::new(module_path!());
    let _other = Program(lab.part("exchange x}1").spawn().unwrap());
    for round in 0..25_u64 {
        let mut victim = Program(lab.part("exchange x{1").spawn().unwrap());
        std::thread::sleep(Duration::from_micros(10_000 + round * 7919 % 30_000));
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
    }
    drop(_other);
    lab.all_free();
    lab.play(&["send x{1 5000 64 500", "receive x}1 5000"]);
}
