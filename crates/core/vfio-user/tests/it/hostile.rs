//! Clients that break the rules. Each loses its session, with a reason, or gets a refusal; memory and
//! descriptors are released, and the next client is served.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::*;
use ringpass_vfio_user::*;
use rustix::fs::ftruncate;
use rustix::io::Errno;

const EINVAL: u32 = 22;

/// Invalid header fields end the session, before and after the version.
#[test]
fn malformed_headers() {
    let mut bench = Bench::new();
    let header = |size: u32, flags: u32| {
        let mut bytes = message(9, &[]);
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        bytes
    };
    for bad in [
        header(0, 0),
        header(15, 0),
        header(MAX_MESSAGE as u32 + 1, 0),
        header(u32::MAX, 0),
        header(16, 2),
        header(16, 15),
    ] {
        for greeted in [false, true] {
            let raw = if greeted { Raw::greet(&mut bench) } else { Raw::connect(&mut bench) };
            raw.send(&bad, &[]);
            assert!(matches!(bench.ended(), Ended::Malformed(_)), "{bad:?}");
        }
    }
    for reply in [header(16, 1), header(16, 1 | 1 << 5)] {
        Raw::greet(&mut bench).send(&reply, &[]);
        assert!(matches!(bench.ended(), Ended::Malformed(_)));
    }
    bench.serves_a_good_client();
}

/// The first message must be VERSION, with a supported version.
#[test]
fn versions() {
    let mut bench = Bench::new();
    for command in (2..=20).chain([0, u16::MAX]) {
        let raw = Raw::connect(&mut bench);
        raw.send(&message(command, &[0; 32]), &[]);
        assert!(matches!(bench.ended(), Ended::Version(_)), "{command}");
    }
    Raw::connect(&mut bench).send(&message(1, &[1, 0, 0, 0]), &[]);
    assert!(matches!(bench.ended(), Ended::Version(_)));
    let mut raw = Raw::connect(&mut bench);
    for data in [b"[]\0".as_slice(), b"\0\0", b"{", b"{\"capabilities\":[]}\0", &[0xff; 60000]] {
        raw.send(&message(1, &[&[0, 0, 1, 0], data].concat()), &[]);
        bench.refused();
        assert_eq!(raw.reply().0, EINVAL);
    }
    // VERSION may be tried again after a refusal, but not negotiated twice.
    raw.send(&message(1, &[0; 4]), &[]);
    raw.send(&message(1, &[0; 4]), &[]);
    bench.refused();
    assert_eq!((raw.reply(), raw.reply().0), ((0, vec![0; 4]), EINVAL));
    drop(raw);
    assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Closed)));
    bench.serves_a_good_client();
}

/// Every command with a wrong size is refused, and the stream stays in step.
#[test]
fn wrong_sizes() {
    let mut bench = Bench::new();
    let mut raw = Raw::greet(&mut bench);
    let sizes = |command: u16| match command {
        2 | 5 => 32..33,
        3 => 24..25,
        4 | 6 | 7 => 16..17,
        8 => 20..21,
        13 => 0..1,
        // Reads and writes of 0 bytes are refused; several writes whose number is 0 are valid.
        15 => 8..9,
        _ => 0..0,
    };
    for command in (2..=20).chain([0, 99, 0x8000, u16::MAX]) {
        for len in 0..80 {
            if !sizes(command).contains(&len) {
                raw.send(&message(command, &vec![0; len]), &[]);
                bench.refused();
                assert_ne!(raw.reply().0, 0, "command {command} with {len} bytes");
            }
        }
    }
    raw.send(&request(&Request::DeviceInfo { argsz: 16 }), &[]);
    bench.until("a reply", |bench| bench.server.connected());
    bench.server.poll_once(&mut |_| {});
    assert_eq!(raw.reply().1.len(), 16);
    raw.send(&message(99, &vec![0; MAX_MESSAGE - HEADER]), &[]);
    bench.refused();
    assert_eq!(raw.reply().0, Errno::OPNOTSUPP.raw_os_error() as u32);
}

/// Invalid fields in messages of the right size.
#[test]
fn wrong_fields() {
    let mut bench = Bench::new();
    let mut raw = Raw::greet(&mut bench);
    let clear = 0b10_0001;
    let set = 0b10_0100;
    let irqs = |flags, index, start, count| request(&Request::SetIrqs { flags, index, start, count });
    let read = |region, offset, count| request(&Request::RegionRead { offset, region, count });
    let write = |region, offset, data: &[u8]| request(&Request::RegionWrite { offset, region, data });
    let writes = |count: u64, bytes: &[u8]| message(15, &[&count.to_ne_bytes(), bytes].concat());
    let many = |region: u32, count: u32| {
        writes(1, &[&[0; 8][..], &region.to_ne_bytes(), &count.to_ne_bytes(), &[0; 8]].concat())
    };
    for bad in [
        read(0, 0, 0),
        read(0, 0, u32::MAX),
        read(0, 0, MAX_TRANSFER as u32 + 1),
        read(0, PAGE, 1),
        read(0, PAGE - 1, 2),
        read(0, u64::MAX, 1),
        read(0, u64::MAX - 3, 8),
        read(2, 0, 1),
        read(10, 0, 1),
        read(u32::MAX, 0, 1),
        read(PCI_REGIONS, 0, 1), // only mapped
        write(1, 0, &[0]),       // only read
        write(0, PAGE, &[0]),
        write(0, PAGE - 1, &[0; 2]),
        write(CONFIG_REGION, 4096, &[0]),
        write(PCI_REGIONS, 0, &[0]),
        message(10, &[0; 17]), // one byte of data, with a count of 0
        writes(u64::MAX, &[]),
        writes(1, &[]),
        writes(0, &[0; 24]),
        writes(1 << 60, &[0; 24]),
        many(0, 0),
        many(0, 9),
        many(7777, 1),
        irqs(clear, 5, 0, 0),
        message(8, &[0; 21]),
        irqs(clear, MSIX, 0, 1),
        irqs(0, MSIX, 0, 0),
        irqs(u32::MAX, MSIX, 0, 0),
        irqs(set, MSIX, 0, VECTORS + 1),
        irqs(set, MSIX, VECTORS, 1),
        irqs(set, MSIX, u32::MAX, 2),
        irqs(set, 0, 0, 1),
        irqs(set | 2, MSIX, 0, u32::MAX),
        request(&Request::DeviceInfo { argsz: 15 }),
        request(&Request::RegionInfo { argsz: 31, index: 0 }),
        request(&Request::RegionInfo { argsz: 32, index: 10 }),
        request(&Request::RegionIoFds { argsz: 15, index: 0 }),
        request(&Request::IrqInfo { argsz: 16, index: 5 }),
        request(&Request::DmaUnmap { flags: 1, address: 0, size: PAGE }),
        request(&Request::DmaUnmap { flags: 2, address: PAGE, size: 0 }),
        request(&Request::DmaUnmap { flags: 0, address: 0, size: 0 }),
        request(&Request::DmaUnmap { flags: 0, address: 1, size: PAGE }),
        request(&Request::DmaUnmap { flags: 0, address: u64::MAX - PAGE + 1, size: 2 * PAGE }),
    ] {
        raw.send(&bad, &[]);
        bench.refused();
        assert_ne!(raw.reply().0, 0, "{bad:?}");
    }
    drop(raw);
    bench.ended();
    bench.serves_a_good_client();
}

/// Sends a descriptor with each byte of a message that never ends.
#[test]
fn descriptors_without_end() {
    let mut bench = Bench::new();
    let file = memfd(PAGE);
    let raw = Raw::greet(&mut bench);
    for byte in message(9, &[0; 64]) {
        raw.send(&[byte], &[file.as_fd()]);
    }
    assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Descriptors)), "as many as it likes");
    bench.serves_a_good_client();
}

/// Memory that is not a file in memory, and eventfds that are not eventfds.
#[test]
fn wrong_kinds_of_descriptors() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let on_disk = File::options().create_new(true).read(true).write(true).open(folder.path().join("file")).unwrap();
    on_disk.set_len(4 * PAGE).unwrap();
    let kinds: Vec<(&str, OwnedFd)> = vec![
        ("a directory", File::open(folder.path()).unwrap().into()),
        ("a pipe", rustix::pipe::pipe().unwrap().1),
        ("a socket", UnixStream::pair().unwrap().0.into()),
        ("a device", File::options().read(true).write(true).open("/dev/zero").unwrap().into()),
        ("/proc", File::open("/proc/self/maps").unwrap().into()),
        ("an epoll", rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap()),
        ("only a path", rustix::fs::open("/dev/shm", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap()),
    ];
    let map = request(&Request::DmaMap { flags: 3, offset: 0, address: PAGE, size: PAGE });
    let irq = request(&Request::SetIrqs { flags: 0b10_0100, index: MSIX, start: 3, count: 1 });
    // Files whose use or close might block end the session, with any message.
    let info = request(&Request::DeviceInfo { argsz: 16 });
    let mut ends = |fd: &OwnedFd, what: &str| {
        for message in [&map, &irq, &info] {
            let raw = Raw::greet(&mut bench);
            raw.send(message, &[fd.as_fd()]);
            assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Kind)), "{what}");
        }
    };
    kinds.iter().for_each(|(what, fd)| ends(fd, what));
    // A file of the temporary folder may be on tmpfs; then it is accepted as memory.
    if rustix::fs::fstatfs(&on_disk).unwrap().f_type != libc_tmpfs() {
        ends(&on_disk.into(), "a file on a disk");
    }
    let mut raw = Raw::greet(&mut bench);
    let mut refused = |message: &[u8], fd: &OwnedFd, what: &str| {
        raw.send(message, &[fd.as_fd()]);
        bench.refused();
        assert_ne!(raw.reply().0, 0, "{what}");
    };
    refused(&map, &event(), "an eventfd as memory");
    refused(&irq, &memfd(PAGE), "memory as an eventfd");
    let read_only: OwnedFd = {
        use std::os::fd::AsRawFd;
        let file = memfd(PAGE);
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().into()
    };
    refused(&map, &read_only, "memory that cannot be written");
    let readable = request(&Request::DmaMap { flags: 1, offset: 0, address: PAGE, size: PAGE });
    raw.send(&readable, &[read_only.as_fd()]);
    bench.until("a map", |bench| bench.server.device.maps.len() == 1);
    drop(raw);
    bench.ended();
    bench.serves_a_good_client();
}

fn libc_tmpfs() -> i64 {
    0x0102_1994
}

/// Mappings that overlap, wrap, are empty or unaligned, or exceed the file.
#[test]
fn maps_that_cannot_be() {
    let mut bench = Bench::new();
    let file = memfd(8 * PAGE);
    let mut raw = Raw::greet(&mut bench);
    let map = |flags, offset, address, size| request(&Request::DmaMap { flags, offset, address, size });
    raw.send(&map(3, 0, 16 * PAGE, 4 * PAGE), &[file.as_fd()]);
    bench.until("a map", |bench| bench.server.device.maps.len() == 1);
    assert_eq!(raw.reply().0, 0);
    let exists = Errno::EXIST.raw_os_error() as u32;
    for (bad, errno) in [
        (map(3, 0, 16 * PAGE, 4 * PAGE), exists),
        (map(3, 0, 19 * PAGE, PAGE), exists),
        (map(3, 0, 15 * PAGE, 2 * PAGE), exists),
        (map(3, 0, 15 * PAGE, 8 * PAGE), exists),
        (map(3, 0, PAGE, 0), EINVAL),
        (map(3, 0, PAGE, 9 * PAGE), EINVAL),
        (map(3, 8 * PAGE, PAGE, PAGE), EINVAL),
        (map(3, u64::MAX - PAGE + 1, PAGE, PAGE), EINVAL),
        (map(3, 0, u64::MAX - PAGE + 1, 2 * PAGE), EINVAL),
        (map(3, 0, PAGE, u64::MAX), EINVAL),
        (map(3, 0, PAGE + 1, PAGE), EINVAL),
        (map(3, 1, PAGE, PAGE), EINVAL),
        (map(3, 0, PAGE, 1), EINVAL),
        (map(0, 0, PAGE, PAGE), EINVAL),
        (map(4, 0, PAGE, PAGE), EINVAL),
    ] {
        raw.send(&bad, &[file.as_fd()]);
        bench.refused();
        assert_eq!(raw.reply().0, errno, "{bad:?}");
    }
    assert_eq!(bench.server.device.maps.len(), 1);
    // More than one file for one mapping, and more files than are allowed.
    raw.send(&map(3, 0, PAGE, PAGE), &[file.as_fd(), file.as_fd()]);
    bench.refused();
    raw.reply();
    for i in 0..80 {
        raw.send(&map(3, 0, (100 + i) * PAGE, PAGE), &[memfd(PAGE).as_fd()]);
    }
    bench.refused();
    drop(raw);
    bench.ended();
    bench.serves_a_good_client();
}

/// Files that would take up the addresses of this process. They are sparse.
#[test]
fn files_that_are_too_large_in_all() {
    let mut bench = Bench::new();
    let mut raw = Raw::greet(&mut bench);
    let map = |n: u64| request(&Request::DmaMap { flags: 3, offset: 0, address: n << 20, size: PAGE });
    let file = memfd(1 << 39);
    for (n, file) in [&file, &memfd(1 << 39), &file].into_iter().enumerate() {
        raw.send(&map(n as u64), &[file.as_fd()]);
        bench.until("a map", |bench| bench.server.device.maps.len() == n + 1);
        assert_eq!(raw.reply().0, 0);
    }
    raw.send(&map(4), &[memfd(PAGE).as_fd()]);
    bench.refused();
    assert_eq!(raw.reply().0, Errno::NOSPC.raw_os_error() as u32);
    drop(raw);
    bench.ended();
    bench.serves_a_good_client();
}

/// A mapping without a file is ignored for a ROM or another device's memory; for RAM it ends the session, with
/// advice.
#[test]
fn maps_without_a_file() {
    let mut bench = Bench::new();
    let mut raw = Raw::greet(&mut bench);
    for (address, size) in [(0xfffc_0000, 256 << 10), (0xfd00_0000, 16 << 20), (1 << 40, 1 << 30)] {
        raw.send(&request(&Request::DmaMap { flags: 3, offset: 0, address, size }), &[]);
        bench.server.poll_once(&mut |_| {});
        assert_eq!(raw.reply().0, 0);
    }
    raw.send(&request(&Request::DmaMap { flags: 3, offset: 0, address: 0, size: 0xa_0000 }), &[]);
    let why = bench.ended();
    assert!(matches!(why, Ended::NotShared) && why.to_string().contains("share=on"));
}

/// Memory that is truncated while the device uses it.
#[test]
fn memory_that_vanishes() {
    let mut bench = Bench::new();
    let file = memfd(64 * PAGE);
    let mut raw = Raw::greet(&mut bench);
    raw.send(&request(&Request::DmaMap { flags: 3, offset: 0, address: PAGE, size: 64 * PAGE }), &[file.as_fd()]);
    bench.until("a map", |bench| bench.server.device.maps.len() == 1);
    assert_eq!(raw.reply().0, 0);
    bench.server.device.touch();
    let device = bench.server.device.maps.clone();
    let other = std::thread::spawn(move || ftruncate(&file, PAGE).unwrap());
    while !device[0].1.lost() {
        bench.server.device.touch();
    }
    other.join().unwrap();
    bench.server.device.touch();
    drop(device);
    assert!(matches!(bench.ended(), Ended::MemoryLost));
    bench.serves_a_good_client();
}

/// A client that disconnects after each byte of each message.
#[test]
fn disconnects_within_every_message() {
    let mut bench = Bench::new();
    let file = memfd(PAGE);
    let messages = [
        message(1, &[0, 0, 1, 0]),
        request(&Request::DmaMap { flags: 3, offset: 0, address: PAGE, size: PAGE }),
        request(&Request::RegionWrite { offset: 0, region: 0, data: &[1; 4] }),
        request(&Request::RegionInfo { argsz: 4096, index: PCI_REGIONS }),
    ];
    for (i, message) in messages.iter().enumerate() {
        for cut in 1..message.len() {
            let raw = if i == 0 { Raw::connect(&mut bench) } else { Raw::greet(&mut bench) };
            raw.send(&message[..cut], &[file.as_fd()]);
            drop(raw);
            assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Truncated)), "message {i} up to {cut}");
        }
    }
    bench.serves_a_good_client();
}

/// Sessions whose client owes something for too long.
#[test]
fn clients_that_stop() {
    let timeout = Duration::from_millis(20);
    let mut mock = MockDevice::new();
    let mut session = |script: &dyn Fn(&Raw)| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut session = Session::with_timeout(ours.into(), timeout);
        let raw = Raw(theirs);
        script(&raw);
        let start = std::time::Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT, "no end");
            if let Err(ended) = session.handle(&mut mock) {
                session.end(&mut mock);
                return ended;
            }
        }
    };
    assert!(matches!(session(&|_| {}), Ended::MessageTimeout), "no version");
    let version = message(1, &[0; 4]);
    assert!(matches!(session(&|raw| raw.send(&version[..10], &[])), Ended::MessageTimeout), "half a version");
    let half = |raw: &Raw| raw.send(&[&version[..], &message(9, &[0; 16])[..20]].concat(), &[]);
    assert!(matches!(session(&half), Ended::MessageTimeout), "half a message");
    let deaf = |raw: &Raw| {
        raw.send(&version, &[]);
        raw.0.set_nonblocking(true).unwrap();
        let read = request(&Request::RegionRead { offset: 0, region: 0, count: 4096 });
        // As much as the socket takes; the replies are many times longer.
        while std::io::Write::write(&mut &raw.0, &read).is_ok_and(|sent| sent == read.len()) {}
    };
    assert!(matches!(session(&deaf), Ended::Lost(ConnectionLost::RepliesUnread)), "replies that nobody reads");
}

/// A client that sends without a pause is served in turns, so that the server can do other work.
#[test]
fn a_flood_does_not_keep_the_server() {
    let mut bench = Bench::new();
    let raw = Raw::greet(&mut bench);
    let mut posted = request(&Request::RegionWrite { offset: 0, region: 0, data: &[1; 4] });
    posted[8] |= 1 << 4;
    raw.0.set_nonblocking(true).unwrap();
    let flood = posted.repeat(1000);
    let mut handled = 0;
    for _ in 0..1000 {
        while std::io::Write::write(&mut &raw.0, &flood).is_ok_and(|sent| sent == flood.len()) {}
        let poll_once = bench.server.poll_once(&mut |_| {});
        assert!(poll_once <= 256, "{poll_once} messages in one turn");
        handled += poll_once;
    }
    // A turn ends after a millisecond, part of which a loaded machine may lose.
    assert!(handled > 10_000, "{handled}");
}

/// A turn is limited in time, not only in messages, because the device decides how long a message takes.
#[test]
fn a_flood_of_costly_messages_does_not_keep_the_server() {
    let mut bench = Bench::new();
    let raw = Raw::greet(&mut bench);
    let mut posted = request(&Request::RegionWrite { offset: 0, region: 0, data: &[1; 4] });
    posted[8] |= 1 << 4;
    raw.send(&posted.repeat(200), &[]);
    bench.server.device.pause = Duration::from_millis(2);
    let mut handled = 0;
    while handled < 200 {
        let poll_once = bench.server.poll_once(&mut |_| {});
        assert!((1..=2).contains(&poll_once), "{poll_once} messages in one turn");
        handled += poll_once;
    }
    bench.server.device.pause = Duration::ZERO;
}

/// One client at a time; others find their connection closed.
#[test]
fn a_second_client_is_turned_away() {
    let mut bench = Bench::new();
    let mut first = Raw::greet(&mut bench);
    let path = bench.path.clone();
    for _ in 0..20 {
        let error = bench.during(|_| Client::connect(&path, LIMIT).err().unwrap()).to_string();
        assert!(error.contains("another client"), "{error}");
    }
    assert!(bench.events.iter().any(|event| matches!(event, Event::Busy)));
    bench.events.clear();
    first.send(&request(&Request::DeviceInfo { argsz: 16 }), &[]);
    bench.server.poll_once(&mut |_| {});
    assert_eq!(first.reply().0, 0);
    drop(first);
    bench.ended();
    bench.serves_a_good_client();
}

/// An eventfd for which tens of thousands wait, so that each interrupt takes milliseconds.
#[test]
fn an_eventfd_that_takes_long_to_be_signalled() {
    let slow = ringpass_lab::SlowEventfd::new();
    let mut bench = Bench::new();
    let raw = Raw::greet(&mut bench);
    let vector = request(&Request::SetIrqs { flags: 0b10_0100, index: MSIX, start: 1, count: 1 });
    raw.send(&vector, &[slow.as_fd()]);
    bench.until("a vector", |bench| bench.server.device.vectors[1].is_some());
    bench.until("the end", |bench| {
        bench.server.device.vectors[1].iter().for_each(EventNotifier::notify);
        !bench.server.connected()
    });
    assert!(matches!(bench.ended(), Ended::SlowEventfd));
    // It is not let in again at once.
    let again = UnixStream::connect(&bench.path).unwrap();
    (0..10).for_each(|_| _ = bench.server.poll_once(&mut |event| panic!("{event:?}")));
    drop(again);
}
