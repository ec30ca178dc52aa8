//! Clients leave no resources behind. All in one test, because descriptors and mappings belong to the process.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::common::*;
use ringpass_vfio_user::*;

#[test]
fn nothing_is_left_of_clients() {
    // Created once for the whole process.
    prepare_notifiers().unwrap();
    descriptors_with_every_command();
    unmapping_under_traffic();
    ten_thousand_clients();
}

/// 0 to 33 descriptors with every command; those that are not wanted are closed.
fn descriptors_with_every_command() {
    let mut bench = Bench::new();
    let file = memfd(4 * PAGE);
    // Descriptors are received by another process, which is started once.
    bench.serves_a_good_client();
    let (before, _) = resources();
    for command in Command::ALL {
        for count in [0, 1, 2, 8, 16, 17, 33] {
            let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| file.as_fd()).collect();
            let raw = Raw::greet(&mut bench);
            let body = match command {
                Command::DmaMap => Request::DmaMap { flags: 3, offset: 0, address: PAGE, size: PAGE }.to_bytes(),
                Command::DeviceSetIrqs => {
                    Request::SetIrqs { flags: 0b10_0100, index: MSIX, start: 0, count }.to_bytes()
                }
                _ => vec![0; 16],
            };
            raw.send(&message(command as u16, &body), &fds);
            if count > MAX_FDS as u32 {
                assert!(matches!(bench.ended(), Ended::Lost(ConnectionLost::Descriptors)), "{command:?} with {count}");
            } else {
                bench.until("its turn", |bench| bench.server.connected());
                drop(raw);
                assert!(
                    matches!(bench.ended(), Ended::Lost(ConnectionLost::Closed) | Ended::NotShared),
                    "{command:?} with {count}"
                );
            }
        }
    }
    let start = Instant::now();
    while resources().0 > before {
        assert!(start.elapsed() < LIMIT, "descriptors that were kept: {} instead of {before}", resources().0);
        bench.serves_a_good_client();
    }
}

/// Memory that is unmapped and mapped again while the device uses it.
fn unmapping_under_traffic() {
    let mut bench = Bench::new();
    let file = memfd(64 * PAGE);
    let path = bench.path.clone();
    let (_, before) = resources();
    let client = std::thread::spawn(move || {
        let mut client = Client::connect(&path, LIMIT).unwrap();
        for i in 0..500u64 {
            let address = (i % 7) * 64 * PAGE;
            client.dma_map(address, 64 * PAGE, (file.as_fd(), 0), Access::ReadWrite).unwrap();
            client.dma_unmap(address, 64 * PAGE).unwrap();
        }
    });
    while !client.is_finished() {
        bench.server.poll_once(&mut |_| {});
        bench.server.device.touch();
    }
    client.join().unwrap();
    bench.until("an end", |bench| !bench.server.connected());
    assert!(resources().1 <= before + 16, "mappings are left");
}

/// Ten thousand clients, each with memory and vectors, of which nothing may remain.
fn ten_thousand_clients() {
    let mut bench = Bench::new();
    let (file, vector) = (memfd(16 * PAGE), event());
    let client = |bench: &mut Bench| {
        let raw = Raw::connect(bench);
        raw.send(&message(1, &[0; 4]), &[]);
        raw.send(&request(&Request::DmaMap { flags: 3, offset: 0, address: 0, size: 16 * PAGE }), &[file.as_fd()]);
        raw.send(&request(&Request::SetIrqs { flags: 0b10_0100, index: MSIX, start: 0, count: 1 }), &[vector.as_fd()]);
        drop(raw);
        bench.ended();
    };
    client(&mut bench);
    let before = resources();
    let memory = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    let pages = memory();
    for _ in 0..10_000 {
        client(&mut bench);
    }
    // The last one may still be closed, by another process and on another thread.
    let start = Instant::now();
    while resources().0 > before.0 {
        assert!(start.elapsed() < LIMIT, "descriptors: {} instead of {}", resources().0, before.0);
        bench.serves_a_good_client();
    }
    // Stacks and heaps of threads that close what nobody has received are kept for the next ones.
    assert!(resources().1 <= before.1 + 64, "mappings");
    assert!(memory() < pages + 4096, "{} pages more", memory() - pages);
    assert!(bench.server.device.resets >= 10_001);
    bench.serves_a_good_client();
}
