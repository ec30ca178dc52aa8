//! Tests of memory of another process, and of what that process may do to it.
#![cfg(not(miri))]

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Error, ForeignMemory};
use rustix::fs::{MemfdFlags, SealFlags, ftruncate, memfd_create};

const PAGE: usize = 4096;

fn memfd(len: usize) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len as u64).unwrap();
    file
}

fn read(memory: &ForeignMemory, offset: usize) -> u8 {
    assert!(offset < memory.len());
    // SAFETY: the line above checked that `offset` is inside the mapping.
    unsafe { memory.as_ptr().add(offset).read_volatile() }
}

fn write(memory: &ForeignMemory, offset: usize, value: u8) {
    assert!(offset < memory.len());
    // SAFETY: the line above checked that `offset` is inside the mapping.
    unsafe { memory.as_ptr().add(offset).write_volatile(value) }
}

#[test]
fn both_sides_see_the_same() {
    let file = memfd(4 * PAGE);
    let whole = ForeignMemory::map(file.as_fd(), 0, 4 * PAGE).unwrap();
    let part = ForeignMemory::map(file.as_fd(), PAGE as u64, 100).unwrap();
    let readable = ForeignMemory::map_read_only(file.as_fd(), PAGE as u64, 100).unwrap();
    write(&whole, PAGE + 99, 7);
    assert_eq!((read(&part, 99), read(&readable, 99), part.len()), (7, 7, 100));
    assert!(!whole.lost() && !part.lost());
}

#[test]
fn what_is_no_memory_is_refused() {
    let file = memfd(2 * PAGE);
    let refused = |file: &OwnedFd, offset: u64, len: usize| {
        let error = ForeignMemory::map(file.as_fd(), offset, len).unwrap_err();
        assert!(matches!(error, Error::Config(_) | Error::Os { .. }), "{error}");
    };
    refused(&file, 0, 0);
    refused(&file, 0, 2 * PAGE + 1);
    refused(&file, PAGE as u64, 2 * PAGE);
    refused(&file, 2 * PAGE as u64, 1);
    refused(&file, u64::MAX, 2);
    refused(&file, 1, 1); // not whole pages
    let sparse = memfd(0);
    ftruncate(&sparse, 1 << 42).unwrap();
    refused(&sparse, 0, 1 << 42);
    refused(&rustix::pipe::pipe().unwrap().0, 0, 1);
    refused(&std::fs::File::open("/proc/self/maps").unwrap().into(), 0, 1);
    refused(&std::fs::File::open("/dev/shm").unwrap().into(), 0, 1);
    refused(&std::fs::File::open("/dev/zero").unwrap().into(), 0, 1);
    refused(&std::os::unix::net::UnixStream::pair().unwrap().0.into(), 0, 1);
    let sealed = memfd(PAGE);
    rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    refused(&sealed, 0, PAGE);
    assert_eq!(read(&ForeignMemory::map_read_only(sealed.as_fd(), 0, PAGE).unwrap(), 0), 0);
}

#[test]
fn a_file_cut_short_reads_as_zeros() {
    let file = memfd(8 * PAGE);
    let other = memfd(PAGE);
    let (cut, kept) = (ForeignMemory::map(file.as_fd(), 0, 8 * PAGE), ForeignMemory::map(other.as_fd(), 0, PAGE));
    let (cut, kept) = (cut.unwrap(), kept.unwrap());
    write(&cut, 5 * PAGE, 1);
    write(&kept, 0, 2);
    ftruncate(&file, PAGE as u64).unwrap();
    assert!(!cut.lost(), "before anybody looked");
    assert_eq!(read(&cut, 5 * PAGE), 0);
    assert!(cut.lost());
    write(&cut, 7 * PAGE, 3);
    assert_eq!((read(&kept, 0), kept.lost()), (2, false));
    drop(cut);
    let next = ForeignMemory::map(file.as_fd(), 0, PAGE).unwrap();
    assert!(!next.lost(), "the mark is not inherited");
}

#[test]
fn threads_lose_it_together() {
    let file = memfd(64 * PAGE);
    let memory = ForeignMemory::map(file.as_fd(), 0, 64 * PAGE).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !memory.lost() {
                    (0..64).for_each(|page| write(&memory, page * PAGE, 1));
                }
                (0..64).for_each(|page| _ = read(&memory, page * PAGE));
            });
        }
        ftruncate(&file, 0).unwrap();
    });
    assert!(memory.lost());
}

#[test]
fn many_come_and_go() {
    let file = memfd(PAGE);
    let map = || ForeignMemory::map(file.as_fd(), 0, PAGE);
    for _ in 0..10_000 {
        map().unwrap();
    }
    // There is no limit on mappings that one session could use up for others; each session bounds its own.
    let all: Vec<Arc<ForeignMemory>> = (0..5000).map(|_| map().unwrap()).collect();
    ftruncate(&file, 0).unwrap();
    assert_eq!(read(&all[4999], 0), 0);
    assert!(all[4999].lost() && !all[0].lost());
}

/// A new mapping that the kernel puts where an old one was is not mistaken for the old one.
#[test]
fn memory_that_others_map_after_it_is_left_alone() {
    const MANY: usize = 64;
    let (stop, whole, short) = (AtomicBool::new(false), memfd(MANY * PAGE), memfd(0));
    let end = Instant::now() + Duration::from_secs(3);
    let mut wrong = 0;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let memory = ForeignMemory::map(whole.as_fd(), 0, MANY * PAGE).unwrap();
                    write(&memory, 0, 1);
                }
            });
        }
        while wrong == 0 && Instant::now() < end {
            // Has the length of the others together, so that it lies where one of them did.
            ftruncate(&short, (MANY * PAGE) as u64).unwrap();
            let cut = ForeignMemory::map(short.as_fd(), 0, MANY * PAGE).unwrap();
            ftruncate(&short, 0).unwrap();
            let zero = read(&cut, 0);
            // Fails if the handler still knew a mapping that is gone and put zeros there, or did not find this one.
            wrong += usize::from(zero != 0 || !cut.lost());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong, 0, "mappings became zeros instead of another");
}

/// A SIGBUS that is not about such memory still ends the process. Runs in a child process, which this test starts.
#[test]
fn other_faults_are_not_hidden() {
    const CHILD: &str = "RINGPASS_FOREIGN_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let (foreign, own) = (memfd(PAGE), memfd(PAGE));
        let foreign = ForeignMemory::map(foreign.as_fd(), 0, PAGE).unwrap();
        let map = memmap2::MmapOptions::new().len(PAGE).map_raw(&own).unwrap();
        ftruncate(&own, 0).unwrap();
        // SAFETY: the address is mapped. That the access raises SIGBUS is the purpose of the test.
        unsafe { map.as_ptr().read_volatile() };
        unreachable!("{foreign:?}");
    }
    let test = std::env::current_exe().unwrap();
    let child =
        Command::new(test).args(["--exact", "foreign::other_faults_are_not_hidden"]).env(CHILD, "1").output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
    assert_eq!(signal, Some(libc::SIGBUS), "{child:?}");
}

/// Files without content, which together would take up all addresses of this process.
#[test]
fn addresses_are_left_for_others() {
    let (large, small) = (memfd(1 << 40), memfd(4096));
    let map = |file: &OwnedFd, len| ForeignMemory::map(file.as_fd(), 0, len);
    let mut mapped = Vec::new();
    let error = loop {
        match map(&large, 1 << 40) {
            Ok(memory) => mapped.push(memory),
            Err(error) => break error,
        }
    };
    // Other tests of this process may have some.
    let most = ForeignMemory::MAX_PER_PROCESS >> 40;
    assert!((most - 1..=most).contains(&mapped.len()), "{} TiB", mapped.len());
    assert!(error.to_string().contains("64 TiB"), "{error}");
    mapped.pop();
    // It is unmapped by another thread.
    let start = Instant::now();
    while let Err(error) = map(&small, 4096) {
        assert!(start.elapsed() < Duration::from_secs(20), "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Freeing much memory takes long, which whoever drops a mapping as the last one does not wait for.
#[test]
fn much_memory_is_freed_elsewhere() {
    const LEN: usize = 256 << 20;
    let filled = || {
        let file = memfd(LEN);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEN as u64).unwrap();
        file
    };
    let measured = |file: OwnedFd, memory: Arc<ForeignMemory>| {
        drop(file);
        let start = Instant::now();
        drop(memory);
        start.elapsed()
    };
    // The best of some rounds, as this thread may be preempted.
    let mut best = [Duration::MAX; 2];
    for _ in 0..5 {
        let file = filled();
        let memory = ForeignMemory::map_kept(file.as_fd(), 0, LEN).unwrap();
        best[0] = best[0].min(measured(file, memory));
        let file = filled();
        let memory = ForeignMemory::map(file.as_fd(), 0, LEN).unwrap();
        best[1] = best[1].min(measured(file, memory));
    }
    println!("256 MiB: {:?} here, {:?} elsewhere", best[0], best[1]);
    assert!(best[1] < best[0] / 5, "{best:?}");
}
