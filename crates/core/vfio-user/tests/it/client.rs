//! A well-behaved client and server, in one process and in two.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_memory::ForeignMemory;
use ringpass_vfio_user::*;

#[test]
fn a_device_is_used() {
    let mut bench = Bench::new();
    bench.during(|path| {
        let mut client = Client::connect(path, LIMIT).unwrap();
        assert_eq!(client.device_info().unwrap(), DeviceInfo { regions: 10, irqs: 5 });
        assert_eq!(client.irq_info(MSIX).unwrap().count, VECTORS);
        assert_eq!(client.irq_info(0).unwrap().count, 0);
        let (bar, file) = client.region_info(0).unwrap();
        assert!(bar.size == PAGE && bar.readable && bar.writable && !bar.mappable && file.is_none());
        let mut id = [0; 4];
        client.read(CONFIG_REGION, 0, &mut id).unwrap();
        assert_eq!(u32::from_le_bytes(id), 0x10fb_8086);
        // Accesses of every width, and one at the end of the region.
        for (offset, data) in [(0, vec![1u8]), (2, vec![2; 2]), (8, vec![3; 8]), (0, vec![5; 4096]), (4095, vec![6])] {
            client.write(0, offset, &data).unwrap();
            let mut back = vec![0; data.len()];
            client.read(0, offset, &mut back).unwrap();
            assert_eq!(back, data);
        }
        good_client(&mut client);
        // Refusals that the protocol provides for; the connection continues.
        let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
        refused(client.read(0, 4095, &mut [0; 2]));
        refused(client.read(8, 0, &mut [0; 1]));
        refused(client.irq_info(5).map(drop));
        refused(client.region_info(10).map(drop));
        refused(client.set_vectors(MSIX, &(0..=VECTORS).map(|_| event()).collect::<Vec<_>>()));
        client.clear_vectors(MSIX).unwrap();
        client.reset().unwrap();
        client.read(0, 0, &mut id).unwrap();
        assert_eq!(id, [0; 4]);
    });
    assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Closed)));
}

#[test]
fn doorbells_are_memory_of_both() {
    let mut bench = Bench::new();
    let (doorbells, memory) = bench.during(|path| {
        let mut client = Client::connect(path, LIMIT).unwrap();
        let (info, file) = client.region_info(PCI_REGIONS).unwrap();
        let (events, fds) = client.region_io_events(PCI_REGIONS).unwrap();
        assert_eq!(events, [IoEvent { offset: 1024, size: 4, fd: 0 }]);
        assert_eq!(rustix::io::write(&fds[0], &1u64.to_ne_bytes()), Ok(8));
        assert_eq!(client.region_io_events(0).unwrap().0, []);
        let memory = ForeignMemory::map(file.unwrap().as_fd(), info.offset, info.size as usize).unwrap();
        (info.doorbells.unwrap(), memory)
    });
    let cell = doorbells.cells[0].of(0x104).unwrap();
    assert_eq!((cell, doorbells.asleep), (64, 1024));
    // SAFETY: `cell` is 64, checked above, and `memory` maps a page of 4096 bytes that lives until the end of
    // the test.
    unsafe { memory.as_ptr().add(cell as usize).write_volatile(9) };
    let region = bench.server.device.region(PCI_REGIONS);
    let other = ForeignMemory::map(region.mapping.unwrap().file, 0, PAGE as usize).unwrap();
    // SAFETY: `cell` is 64, checked above, and `other` maps a page of 4096 bytes that lives until the end of
    // the test.
    assert_eq!(unsafe { other.as_ptr().add(cell as usize).read_volatile() }, 9);
}

/// The client learns the size from a reply that is cut, and gets the descriptor with the whole.
#[test]
fn a_reply_that_is_cut_carries_no_descriptor() {
    let (mut dispatcher, mut device) = (Dispatcher::default(), MockDevice::new());
    let mut ask = |message: Vec<u8>| {
        let (header, body) = message.split_first_chunk().unwrap();
        let reply = dispatcher.message(Header::parse(header).unwrap(), body, Vec::new(), &mut device);
        let reply = reply.unwrap().unwrap();
        (reply.bytes[HEADER..].to_vec(), reply.fds.len())
    };
    ask(message(1, &[0, 0, 1, 0]));
    let region = |argsz| Request::RegionInfo { argsz, index: PCI_REGIONS };
    let events = |argsz| Request::RegionIoFds { argsz, index: PCI_REGIONS };
    for (fixed, of) in [(32, &region as &dyn Fn(u32) -> Request<'static>), (16, &events)] {
        let (cut, fds) = ask(request(&of(fixed as u32)));
        assert_eq!((cut.len(), fds), (fixed, 0));
        let size = u32::from_ne_bytes(*cut.first_chunk().unwrap());
        assert!(size as usize > fixed);
        assert_eq!(ask(request(&of(size - 1))), (cut, 0));
        let (whole, fds) = ask(request(&of(size)));
        assert_eq!((whole.len(), fds), (size as usize, 1));
    }
}

#[test]
fn interrupts_and_memory_reach_the_device() {
    let mut bench = Bench::new();
    let (memory, events) = (memfd(8 * PAGE), [event(), event(), event()]);
    for page in 0..8 {
        rustix::io::pwrite(&memory, &[page as u8], page * PAGE).unwrap();
    }
    let mut client = bench.during(|path| {
        let mut client = Client::connect(path, LIMIT).unwrap();
        client.dma_map(1 << 32, 4 * PAGE, (memory.as_fd(), 2 * PAGE), Access::ReadWrite).unwrap();
        client.dma_map(0, PAGE, (memory.as_fd(), 0), Access::Read).unwrap();
        client.set_vectors(MSIX, &events.each_ref().map(|event| event.try_clone().unwrap())).unwrap();
        client
    });
    let mock = &bench.server.device;
    assert_eq!(
        mock.maps
            .iter()
            .map(|(iova, memory)| (*iova, memory.raw(0, 1).unwrap().to_vec(), memory.len()))
            .collect::<Vec<_>>(),
        [(1 << 32, vec![2], 4 << 12), (0, vec![0], 1 << 12)]
    );
    for (vector, event) in mock.vectors.iter().flatten().zip(&events) {
        vector.notify();
        assert_eq!(rustix::io::read(event, &mut [0; 8]), Ok(8));
    }
    bench.during(|_| {
        client.dma_unmap(0, PAGE).unwrap();
        client.dma_unmap(5 * PAGE, PAGE).unwrap(); // nothing is mapped there, which is not an error
        client.clear_vectors(MSIX).unwrap();
    });
    assert_eq!(bench.server.device.maps.len(), 1);
    assert!(bench.server.device.vectors.iter().all(Option::is_none));
}

/// Environment variable with the path of the server, set for the child process that runs the test below.
const CHILD: &str = "RINGPASS_VFIO_USER_CHILD";

#[test]
fn between_processes() {
    if let Some(path) = std::env::var_os(CHILD) {
        let mut client = Client::connect(Path::new(&path), LIMIT).unwrap();
        good_client(&mut client);
        client.write(0, 0, &[1; 4]).unwrap();
        client.read(0, 0, &mut [0; 4]).unwrap();
        // The child kills itself while the server holds what it has given away.
        client.dma_map(0, PAGE, (memfd(PAGE).as_fd(), 0), Access::ReadWrite).unwrap();
        client.set_vectors(MSIX, &[event()]).unwrap();
        std::process::abort();
    }
    let mut bench = Bench::new();
    for _ in 0..2 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client::between_processes"])
            .env(CHILD, &bench.path)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        bench.ended();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(6));
    }
    bench.serves_a_good_client();
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mute");
    let missing = Client::connect(&path, LIMIT).err().unwrap().to_string();
    assert!(missing.contains("is a server running there"), "{missing}");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let error = Client::connect(&path, Duration::from_millis(50)).err().unwrap();
    assert!(matches!(error, Error::ConnectionLost(_)) && start.elapsed() < LIMIT, "{error}");
    drop(listener);
}

#[test]
fn a_server_that_dies_is_given_up_at_once_and_for_good() {
    let mut bench = Bench::new();
    let mut client = bench.during(|path| Client::connect(path, LIMIT).unwrap());
    drop(bench);
    let start = Instant::now();
    for _ in 0..100 {
        assert!(matches!(client.read(0, 0, &mut [0; 4]), Err(Error::ConnectionLost(_))));
        assert!(client.write(0, 0, &[0; 4]).is_err());
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_client_believes_no_server() {
    // Each server answers every request with these bytes.
    let answer = |id: u16, command: u16, size: u32, kind, body: &[u8]| {
        [&Header { id, command, size, kind, error: 0 }.to_bytes(), body].concat()
    };
    let version = answer(1, 1, 20, Kind::Reply, &[0, 0, 1, 0]);
    for (bad, why) in [
        (vec![0xff; 64], "a header"),
        (answer(1, 1, 8, Kind::Reply, &[]), "a header"),
        (answer(1, 1, u32::MAX, Kind::Reply, &[]), "a header"),
        (answer(2, 1, 20, Kind::Reply, &[0, 0, 1, 0]), "something else"),
        (answer(1, 1, 20, Kind::Command, &[0, 0, 1, 0]), "a command"),
        (answer(1, 1, 20, Kind::Reply, &[9, 0, 1, 0]), "version 9.1"),
        (answer(1, 1, 16, Kind::Reply, &[]), "shorter"),
        ([version.clone(), answer(2, 9, 16 + 17, Kind::Reply, &[0; 17])].concat(), "another length"),
        ([version.clone(), answer(2, 9, 16, Kind::Reply, &[])].concat(), "another length"),
        ([version.clone(), answer(2, 9, 1000, Kind::Reply, &[])].concat(), "closed"),
    ] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &theirs, &bad).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let client = Client::from_socket(ours.into(), LIMIT);
        let result = client.and_then(|mut client| client.read(0, 0, &mut [0; 4]));
        let error = result.err().unwrap_or_else(|| panic!("{why}")).to_string();
        assert!(error.contains(why), "{error}, instead of {why}");
    }
}

/// The next client may connect before the server has noticed that the last one is gone.
#[test]
fn the_next_client_is_let_in_at_once() {
    let mut bench = Bench::new();
    let mut poll_once = || bench.server.poll_once(&mut |event| bench.events.push(event));
    let first = UnixStream::connect(&bench.path).unwrap();
    poll_once();
    drop(first);
    let _next = UnixStream::connect(&bench.path).unwrap();
    poll_once();
    let events = &bench.events;
    assert!(matches!(events[..], [Event::Connected, Event::Ended(_), Event::Connected]), "{events:?}");
}
