//! Tests that front-ends leave no resources behind. Descriptors, mappings and the log belong to the process, so
//! this is a single test.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::*;
use ringpass_port::Role;
use ringpass_vhost_user::*;
use ringpass_virtio::features::VERSION_1;

/// Counts log lines.
#[derive(Clone, Copy)]
struct Lines;

static LINES: AtomicUsize = AtomicUsize::new(0);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.fetch_add(line.iter().filter(|&&byte| byte == b'\n').count(), Ordering::Relaxed);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_is_left_of_front_ends() {
    tracing_subscriber::fmt().with_writer(|| Lines).init();
    ringpass_ipc::prepare_notifiers().unwrap();
    descriptors_with_every_command();
    the_same_again_and_again();
    a_flood_of_refusals();
    ten_thousand_front_ends();
}

/// Line 2 of the list of hostile inputs (`docs/security.md`). 0 to 33 descriptors with every command: unwanted ones
/// are closed.
fn descriptors_with_every_command() {
    let mut bench = Bench::new();
    let (file, event) = (memfd(MEMORY), event());
    // Descriptors are received by another process, which is started once.
    good_session(&mut bench);
    let (before, _) = resources();
    for command in Command::ALL {
        for fd in [&file, &event] {
            for count in [0, 1, 2, 8, 9, 16, 17, 33] {
                for len in [0, 8, 20, 40, 264] {
                    let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| fd.as_fd()).collect();
                    bench.front.send(&message(command as u32, Kind::Request, &vec![0; len]), &fds);
                    if bench.turn().is_some() {
                        bench.connect();
                    }
                }
            }
        }
    }
    if bench.turn().is_none() {
        hang_up(&mut bench);
    }
    let start = Instant::now();
    while resources().0 > before {
        assert!(start.elapsed() < LIMIT, "descriptors that were kept: {} instead of {before}", resources().0);
        good_session(&mut bench);
    }
}

fn hang_up(bench: &mut Bench) {
    drop(std::mem::replace(&mut bench.front, Front(UnixStream::pair().unwrap().0)));
    bench.ended();
}

/// Shares memory, and hangs up.
fn good_session(bench: &mut Bench) {
    bench.greet(VERSION_1);
    bench.share();
    hang_up(bench);
}

/// Lines 4, 6 and 8. Messages that allocate memory or descriptors, repeated many times: what they replace is
/// released.
fn the_same_again_and_again() {
    let mut bench = Bench::new();
    bench.greet(VERSION_1);
    let file = bench.share();
    bench.start(0);
    let area = InflightArea { size: MEMORY, offset: 0, queues: 4, queue_size: 256 };
    bench.tell(&Request::SetVringCall(fd_of(0)), &[event().as_fd()]);
    bench.tell(&Request::SetVringCall(fd_of(1)), &[event().as_fd()]);
    bench.tell(&Request::SetVringErr(fd_of(1)), &[event().as_fd()]);
    bench.tell(&Request::SetVringKick(fd_of(1)), &[event().as_fd()]);
    let before = resources();
    for round in 0..100_000u32 {
        // The file comes with the reply and is closed, as this read takes no descriptors.
        bench.front.send(&Request::GetInflightFd(area).message(Kind::Request), &[]);
        bench.goes_on();
        let mut reply = [0; HEADER + 24];
        bench.front.0.read_exact(&mut reply).unwrap();
        bench.tell(&Request::SetVringNum { index: 2, num: 1 + round % 32768 }, &[]);
    }
    for _ in 0..1_000 {
        bench.tell(&Request::SetVringCall(fd_of(0)), &[event().as_fd()]);
        bench.tell(&Request::SetVringCall(fd_of(1)), &[event().as_fd()]);
        bench.tell(&Request::SetVringErr(fd_of(1)), &[event().as_fd()]);
        bench.tell(&Request::SetVringKick(fd_of(1)), &[event().as_fd()]);
        // Each kick restarts a running ring.
        bench.tell(&Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
        bench.tell(&Request::SetMemTable(vec![region(0, MEMORY, 0)]), &[file.as_fd()]);
        bench.tell(&Request::AddMemReg(region(1 << 32, MEMORY, 0)), &[file.as_fd()]);
        bench.tell(&Request::RemMemReg(region(1 << 32, MEMORY, 0)), &[]);
    }
    assert_eq!(resources().0, before.0, "descriptors");
    assert!(resources().1 <= before.1 + 16, "mappings");
    bench.ask(&Request::GetVringBase { index: 0 }, &[]);
    let before = resources();
    let area = memfd(MEMORY);
    for _ in 0..1_000 {
        let asked = InflightArea { size: MEMORY, offset: 0, queues: 4, queue_size: 256 };
        bench.tell(&Request::SetInflightFd(asked), &[area.as_fd()]);
    }
    assert!(resources().0 <= before.0 + 1 && resources().1 <= before.1 + 16);
}

/// Line 9. A front-end that sends requests as fast as it can and is told of their refusal: the log stays short.
fn a_flood_of_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let _control = serve(
        Endpoint { path: path.clone(), role: Role::Listen, access: Default::default() },
        Box::new(MockDevice::default()),
    )
    .unwrap();
    let mut front = Front(UnixStream::connect(&path).unwrap());
    front.send(&Request::SetProtocolFeatures(PROTOCOL).message(Kind::Request), &[]);
    let (lines, start) = (LINES.load(Ordering::Relaxed), Instant::now());
    for _ in 0..50_000 {
        front.send(&Request::SetVringNum { index: 0, num: 0 }.message(Kind::NeedsReply), &[]);
        assert_eq!(front.reply(Command::SetVringNum), Reply::Number(1));
    }
    let (lines, seconds) = (LINES.load(Ordering::Relaxed) - lines, start.elapsed().as_secs() as usize);
    assert!(lines > 0 && lines <= 12 * (seconds + 2), "{lines} lines in {seconds} s");
}

/// Line 9. Ten thousand front-ends, each with memory and a running ring: nothing is left of them, and the log stays
/// short.
fn ten_thousand_front_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let mock = MockDevice::default();
    let control =
        serve(Endpoint { path: path.clone(), role: Role::Listen, access: Default::default() }, Box::new(mock.clone()))
            .unwrap();
    let (file, event) = (memfd(MEMORY), event());
    let front_end = || {
        let front = Front(UnixStream::connect(&path).unwrap());
        let tell = |request: Request, fds: &[_]| _ = front.try_send(&request.message(Kind::Request), fds);
        tell(Request::SetFeatures(VERSION_1), &[]);
        tell(Request::SetMemTable(vec![region(0, MEMORY, 0)]), &[file.as_fd()]);
        tell(Request::SetVringNum { index: 0, num: 256 }, &[]);
        tell(Request::SetVringAddr(address(0)), &[]);
        tell(Request::SetVringCall(fd_of(0)), &[event.as_fd()]);
        tell(Request::SetVringKick(fd_of(0)), &[event.as_fd()]);
        // Some end in the middle of a message, some with an invalid one.
        let _ = front.try_send(&[1; 5], &[event.as_fd()]);
    };
    let sessions = || mock.state().ended.len();
    let all = |count: usize| {
        let start = Instant::now();
        while sessions() < count {
            assert!(start.elapsed() < 60 * LIMIT, "{} of {count} sessions", sessions());
            let before = sessions();
            front_end();
            // Front-ends are turned away while another one is connected.
            while sessions() == before && start.elapsed() < 60 * LIMIT {
                std::thread::yield_now();
            }
        }
    };
    all(10);
    let before = resources();
    let memory = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    let (pages, lines, start) = (memory(), LINES.load(Ordering::Relaxed), Instant::now());
    all(10_000);
    let seconds = start.elapsed().as_secs() as usize;
    // The last session may still be ending.
    let ending = Instant::now();
    while resources().0 > before.0 {
        assert!(ending.elapsed() < LIMIT, "descriptors: {} and before {}", resources().0, before.0);
        std::thread::yield_now();
    }
    // Stacks and heaps of threads that close what nobody has received are kept for the next ones.
    assert!(resources().1 <= before.1 + 64, "mappings");
    assert!(memory() < pages + 4096, "{} pages more", memory() - pages);
    let lines = LINES.load(Ordering::Relaxed) - lines;
    assert!(LINES.load(Ordering::Relaxed) > 0 && lines <= 12 * (seconds + 2), "{lines} lines in {seconds} s");
    drop(control);
    assert!(mock.is_fresh());
}
