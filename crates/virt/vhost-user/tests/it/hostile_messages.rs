//! Tests of front-ends that send invalid messages: each loses its session with a reason, or its request is refused;
//! memory and descriptors are released, and the next front-end is served.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_vhost_user::*;
use ringpass_virtio::features::VERSION_1;

/// Returns the payload sizes of a command that is supported.
fn sizes(command: Command) -> Vec<usize> {
    use Command::*;
    match command {
        GetFeatures | SetOwner | ResetOwner | GetProtocolFeatures | GetQueueNum => vec![0],
        ResetDevice | GetMaxMemSlots | GetStatus | SetLogFd => vec![0],
        SetLogBase => vec![16],
        SetFeatures | SetProtocolFeatures | SendRarp | NetSetMtu | SetStatus => vec![8],
        SetVringNum | SetVringBase | GetVringBase | SetVringEnable => vec![8],
        SetVringKick | SetVringCall | SetVringErr => vec![8],
        SetVringAddr | AddMemReg | RemMemReg => vec![40],
        GetInflightFd | SetInflightFd => vec![20, 24],
        // Of a table without regions.
        SetMemTable => vec![8, 264],
        _ => vec![],
    }
}

/// Line 1 of the list of hostile inputs (`docs/security.md`). Every command, and some unknown ones, with payloads
/// of every length: wrong lengths are refused.
#[test]
fn wrong_sizes() {
    let mut bench = Bench::new();
    for command in (0..=50).chain([99, 1 << 16, u32::MAX]) {
        let right = Command::of(command).map_or(vec![], sizes);
        for len in (0..=80).chain([263, 264, 265, MAX_PAYLOAD]) {
            let parsed = Request::parse(command, &vec![0; len]);
            assert_eq!(parsed.is_ok(), right.contains(&len), "{} with {len} bytes", CommandName(command));
            if parsed.is_err() {
                bench.front.send(&message(command, Kind::Request, &vec![0; len]), &[]);
                let ended = bench.ended();
                assert!(matches!(ended, Ended::Refused(name, _) if name == CommandName(command)), "{ended}");
            }
        }
    }
}

/// Lines 1 and 7. The message for people names what was asked for.
#[test]
fn what_is_not_offered_is_refused_by_its_name() {
    let mut bench = Bench::new();
    for (command, words) in [
        (Command::PostcopyAdvise, "POSTCOPY_ADVISE was refused: postcopy migration is not offered"),
        (Command::IotlbMsg, "IOTLB_MSG was refused: an IOMMU is not offered"),
        (Command::GetConfig, "GET_CONFIG was refused: not offered"),
        (Command::SetBackendReqFd, "SET_BACKEND_REQ_FD was refused: not offered"),
    ] {
        let end = [[0xff; 8], [1, 0, 0, 0, 0, 0, 0, 0]].concat();
        for payload in [vec![], vec![0; 16], vec![0xff; 16], end] {
            for fds in [&[][..], &[memfd(1).as_fd()], &[event().as_fd()]] {
                bench.front.send(&message(command as u32, Kind::Request, &payload), fds);
                assert!(bench.ended().to_string().starts_with(words), "{words}");
            }
        }
        bench.greet(VERSION_1);
        bench.front.send(&message(command as u32, Kind::NeedsReply, &[0; 16]), &[]);
        bench.goes_on();
        assert_eq!(bench.front.reply(command), Reply::Number(1), "the session goes on");
        bench.front.send(&message(command as u32, Kind::Request, &[0; 16]), &[]);
        bench.ended();
    }
    bench.front.send(&message(99, Kind::Request, &[]), &[]);
    assert_eq!(bench.ended().to_string(), "request 99 was refused: a command that no specification has");
}

/// Line 1. Invalid header fields.
#[test]
fn malformed_headers() {
    let mut bench = Bench::new();
    let header = |flags: u32, size: u32| {
        let fields = [Command::GetFeatures as u32, flags, size];
        fields.iter().flat_map(|field| field.to_ne_bytes()).collect::<Vec<u8>>()
    };
    for flags in [0, 2, 3, 8, u32::MAX] {
        bench.front.send(&header(flags, 0), &[]);
        assert!(matches!(bench.ended(), Ended::Malformed(Malformed::Version(_))), "{flags:#x}");
    }
    for size in [MAX_PAYLOAD as u32 + 1, 1 << 31, u32::MAX] {
        bench.front.send(&header(1, size), &[]);
        assert!(matches!(bench.ended(), Ended::Malformed(Malformed::Size(_))), "{size:#x}");
    }
    for reply in [1 | 1 << 2, 1 | 1 << 2 | 1 << 3] {
        bench.front.send(&header(reply, 0), &[]);
        assert!(matches!(bench.ended(), Ended::Reply));
    }
}

/// Lines 1 and 9. A session that ends inside a message, after each of its bytes; and one that stalls there.
#[test]
fn messages_that_do_not_end() {
    let mut bench = Bench::new();
    let file = memfd(MEMORY);
    let table = Request::SetMemTable(vec![region(0, MEMORY, 0)]).message(Kind::Request);
    for end in 1..table.len() {
        bench.front.send(&table[..end], &[file.as_fd()]);
        bench.goes_on();
        drop(std::mem::replace(&mut bench.front, Front(UnixStream::pair().unwrap().0)));
        assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Truncated)), "after {end} bytes");
    }
    // Sending byte by byte is slow but valid.
    for (at, byte) in table.iter().enumerate() {
        let fds = [file.as_fd()];
        bench.front.send(&[*byte], if at == 0 { &fds } else { &[] });
        bench.goes_on();
    }
    assert_eq!(bench.mock.state().memories, 1);
    // Nothing, half a header, half a payload: each times out.
    drop(std::mem::replace(&mut bench.front, Front(UnixStream::pair().unwrap().0)));
    bench.timeout = Duration::from_millis(20);
    let mut since = Instant::now();
    assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Closed)));
    for part in [0, 5, HEADER, HEADER + 3] {
        if part > 0 {
            bench.front.send(&table[..part], &[]);
        }
        let ended = loop {
            assert!(since.elapsed() < LIMIT, "no end after {part} bytes");
            if let Some(ended) = bench.turn() {
                break ended;
            }
        };
        assert!(
            matches!(ended, Ended::Lost(ConnectionLost::MessageTimeout)) && since.elapsed() > bench.timeout,
            "{part} bytes"
        );
        since = Instant::now();
        bench.connect();
    }
}

/// Line 9. A session that ends inside each message, with and without descriptors that have already arrived.
#[test]
fn ends_inside_each_message() {
    let mut bench = Bench::new();
    let event = event();
    for command in Command::ALL {
        for len in sizes(command) {
            let bytes = message(command as u32, Kind::Request, &vec![0; len]);
            for end in [1, HEADER - 1, HEADER + len / 2, HEADER + len - 1] {
                if !(1..bytes.len()).contains(&end) {
                    continue;
                }
                for fds in [&[][..], &[event.as_fd(); 3]] {
                    bench.greet(VERSION_1).share();
                    bench.start(0);
                    bench.front.send(&bytes[..end], fds);
                    bench.goes_on();
                    drop(std::mem::replace(&mut bench.front, Front(UnixStream::pair().unwrap().0)));
                    assert!(
                        matches!(bench.ended(), Ended::Lost(ConnectionLost::Truncated)),
                        "{command} after {end} bytes"
                    );
                }
            }
        }
    }
}

/// Line 9. Replies that are not read: a flood of requests ends when there is no room for replies.
#[test]
fn replies_that_are_not_read() {
    let mut bench = Bench::new();
    bench.timeout = Duration::from_millis(20);
    drop(std::mem::replace(&mut bench.front, Front(UnixStream::pair().unwrap().0)));
    bench.ended();
    bench.front.0.set_nonblocking(true).unwrap();
    let question = Request::GetFeatures.message(Kind::Request);
    let mut asked = 0;
    let ended = loop {
        while bench.front.try_send(&question, &[]).is_ok_and(|sent| sent == question.len()) {
            asked += 1;
            assert!(asked < 1_000_000, "it takes as many as it likes");
        }
        if let Some(ended) = bench.turn() {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(matches!(ended, Ended::Lost(ConnectionLost::RepliesUnread)), "{ended}");
}

/// Line 2. 0 to 33 descriptors with every command: too many or too few are refused, and none is kept.
#[test]
fn wrong_numbers_of_descriptors() {
    let mut bench = Bench::new();
    let event = event();
    for command in Command::ALL {
        for len in sizes(command) {
            let payload = vec![0; len];
            let request = Request::parse(command as u32, &payload).unwrap();
            for count in [0, 1, 2, 8, 9, 15, 16, 17, 33] {
                if request.fds().contains(&count) {
                    continue;
                }
                let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| event.as_fd()).collect();
                bench.front.send(&message(command as u32, Kind::Request, &payload), &fds);
                let ended = bench.ended();
                match count {
                    ..=16 => assert!(matches!(ended, Ended::Refused(..)), "{command} with {count}: {ended}"),
                    _ => assert!(
                        matches!(ended, Ended::Lost(ConnectionLost::Descriptors)),
                        "{command} with {count}: {ended}"
                    ),
                }
            }
        }
    }
    // One descriptor with each byte of a message that may have eight.
    for byte in Request::SetMemTable(vec![region(0, MEMORY, 0); 8]).message(Kind::Request) {
        bench.front.send(&[byte], &[event.as_fd()]);
        if let Some(ended) = bench.turn() {
            return assert!(matches!(ended, Ended::Lost(ConnectionLost::Descriptors)), "{ended}");
        }
    }
    panic!("as many as it likes");
}

/// Line 2; line 10, for calls by a pipe; line 13, for read-only memory. Descriptors of the wrong kind of file.
#[test]
fn wrong_kinds_of_descriptors() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let read_only: OwnedFd = {
        use std::os::fd::AsRawFd;
        let file = memfd(MEMORY);
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().into()
    };
    let kinds: Vec<(&str, OwnedFd)> = vec![
        ("a directory", File::open(folder.path()).unwrap().into()),
        ("an end of a pipe", rustix::pipe::pipe().unwrap().1),
        ("a socket", UnixStream::pair().unwrap().0.into()),
        ("a device", File::options().read(true).write(true).open("/dev/zero").unwrap().into()),
        ("/proc", File::open("/proc/self/maps").unwrap().into()),
        ("an epoll", rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap()),
        ("only a path", rustix::fs::open("/dev/shm", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap()),
    ];
    let memory = Request::SetMemTable(vec![region(0, MEMORY, 0)]);
    let more = Request::AddMemReg(region(1 << 30, MEMORY, 0));
    let inflight = Request::SetInflightFd(InflightArea { size: MEMORY, offset: 0, queues: 2, queue_size: 64 });
    let eventfds = [Request::SetVringKick(fd_of(0)), Request::SetVringCall(fd_of(0)), Request::SetVringErr(fd_of(0))];
    // Files whose use or closing may block end the session, with whatever message they come.
    for (what, fd) in &kinds {
        for request in [&memory, &more, &inflight, &Request::GetFeatures].into_iter().chain(&eventfds) {
            let mut end = || {
                bench.greet(VERSION_1);
                bench.front.send(&request.message(Kind::Request), &[fd.as_fd()]);
                bench.ended()
            };
            // On a busy machine, processes that took descriptors before may still be about to end, and then no other
            // process takes any.
            let ends = std::iter::repeat_with(|| {
                let ended = end();
                if matches!(ended, Ended::Lost(ConnectionLost::Unclosed)) {
                    std::thread::sleep(Duration::from_millis(100));
                }
                ended
            });
            let ended = ends.take(100).find(|ended| !matches!(ended, Ended::Lost(ConnectionLost::Unclosed)));
            assert!(matches!(ended, Some(Ended::Lost(ConnectionLost::Kind))), "{what}: {ended:?}");
        }
    }
    for request in &eventfds {
        for fd in [memfd(8), read_only.try_clone().unwrap()] {
            bench.greet(VERSION_1);
            assert!(bench.refused(request, &[fd.as_fd()]).contains("eventfd"));
        }
    }
    for request in [&memory, &more, &inflight] {
        for fd in [event(), read_only.try_clone().unwrap()] {
            bench.greet(VERSION_1);
            assert!(!bench.refused(request, &[fd.as_fd()]).is_empty());
        }
    }
}

/// Line 3. Messages that name a ring that does not exist.
#[test]
fn wrong_rings() {
    let mut bench = Bench::new();
    for index in [4, 128, 255, 256, 1 << 16, 1 << 16 | 1, u32::MAX] {
        for request in [
            Request::SetVringNum { index, num: 256 },
            Request::SetVringBase { index, base: 0 },
            Request::SetVringAddr(VringAddr { index, ..address(0) }),
            Request::GetVringBase { index },
            Request::SetVringEnable { index, on: true },
        ] {
            bench.greet(VERSION_1);
            assert!(bench.refused(&request, &[]).contains(&format!("ring {index}, of 4")));
        }
        // The low eight bits are the ring here, and the ninth means that no descriptor comes.
        for command in [Command::SetVringKick, Command::SetVringCall, Command::SetVringErr] {
            let payload = u64::from(index) | if index == 256 { 4 } else { 0 };
            for (payload, fds) in [(payload, 1), (payload | 1 << 63, 1), (payload | 1 << 8, 0)] {
                let event = event();
                let fds = vec![event.as_fd(); fds];
                bench.front.send(&message(command as u32, Kind::Request, &payload.to_ne_bytes()), &fds);
                assert!(matches!(bench.ended(), Ended::Refused(..)), "{command} {payload:#x}");
            }
        }
    }
    // A missing descriptor, and an unannounced one.
    for (polled, fds) in [(false, 0), (true, 1)] {
        for request in [Request::SetVringKick, Request::SetVringCall, Request::SetVringErr] {
            bench.greet(VERSION_1);
            bench.refused(&request(VringFd { index: 0, polled }), &vec![event().as_fd(); fds]);
        }
    }
    bench.front.send(&message(Command::SetVringEnable as u32, Kind::Request, &[0, 0, 0, 0, 2, 0, 0, 0]), &[]);
    assert!(matches!(bench.ended(), Ended::Refused(..)), "on is 1");
}

/// Line 5. A protocol feature that was not negotiated is refused; one that is not offered cannot be negotiated.
#[test]
fn protocol_features() {
    let mut bench = Bench::new();
    let one = [memfd(MEMORY)];
    let area = InflightArea { size: MEMORY, offset: 0, queues: 2, queue_size: 64 };
    for (request, fds) in [
        (Request::SendRarp([2; 6]), 0),
        (Request::NetSetMtu(1500), 0),
        (Request::GetInflightFd(area), 0),
        (Request::SetInflightFd(area), 1),
        (Request::ResetDevice, 0),
        (Request::GetMaxMemSlots, 0),
        (Request::AddMemReg(region(0, MEMORY, 0)), 1),
        (Request::RemMemReg(region(0, MEMORY, 0)), 0),
        (Request::SetStatus(1), 0),
        (Request::GetStatus, 0),
        (Request::SetLogBase { size: 8, offset: 0 }, 1),
        (Request::SetLogFd, 1),
    ] {
        bench.tell(&Request::SetProtocolFeatures(features::REPLY_ACK), &[]);
        let fds: Vec<BorrowedFd<'_>> = one.iter().take(fds).map(AsFd::as_fd).collect();
        assert!(bench.refused(&request, &fds).contains("not agreed on"), "{request:?}");
    }
    for bit in (0..64).filter(|bit| PROTOCOL & 1 << bit == 0) {
        bench.front.send(&Request::SetProtocolFeatures(1 << bit).message(Kind::Request), &[]);
        assert!(matches!(bench.ended(), Ended::Refused(..)), "bit {bit}");
    }
    // Without REPLY_ACK nothing is acknowledged, whatever the header requests.
    bench.front.send(&Request::SetOwner.message(Kind::NeedsReply), &[]);
    assert_eq!(bench.ask(&Request::GetFeatures, &[]), Reply::Number(OFFERED));
}
