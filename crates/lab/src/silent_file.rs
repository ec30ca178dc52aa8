//! A file whose `close` blocks.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A file of a file system (FUSE) that answers requests to open it and none to close or stat it (linux/fuse.h).
/// When it is dropped, the kernel aborts all requests that still wait. Needs root and `/dev/fuse`.
///
/// While it exists, this process must start no program and must not end: both close the file, and block for ever.
pub struct SilentFile {
    file: Option<OwnedFd>,
    stop: Arc<AtomicBool>,
    flushes: Arc<AtomicU32>,
    server: Option<JoinHandle<()>>,
}

impl SilentFile {
    /// Mounts the file system where nobody else sees it, and opens the file.
    #[allow(unsafe_code, reason = "a mount namespace for one thread")]
    pub fn new() -> Self {
        let fuse = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        rustix::io::ioctl_fionbio(&fuse, true).expect("non-blocking mode");
        let stop = Arc::<AtomicBool>::default();
        let flushes = Arc::<AtomicU32>::default();
        let (raw, shared) = (fuse.as_raw_fd(), (stop.clone(), flushes.clone()));
        // Mounted on a thread in a mount namespace of its own. The namespace ends with the thread; the open
        // file outlives it.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let mounted = std::thread::spawn(move || {
            // SAFETY: only the working directory and the mount namespace are unshared. The descriptor table
            // stays shared, so every descriptor remains valid in all threads.
            unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }.expect("a mount namespace (as root)");
            mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).expect("a private mount");
            let options = std::ffi::CString::new(format!("fd={raw},rootmode=40000,user_id=0,group_id=0,allow_other"));
            let options = options.expect("no zero in it");
            mount("silent", &path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*options).expect("a FUSE mount");
            OwnedFd::from(File::open(path.join("file")).expect("the file"))
        });
        let server = std::thread::spawn(move || serve(fuse, &shared));
        let file = mounted.join().expect("mounted");
        Self { file: Some(file), stop, flushes, server: Some(server) }
    }

    /// Returns how many `close` calls have begun, none of which ends.
    pub fn flushes(&self) -> u32 {
        self.flushes.load(Ordering::Relaxed)
    }
}

impl Default for SilentFile {
    fn default() -> Self {
        Self::new()
    }
}

impl AsFd for SilentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("open until dropped").as_fd()
    }
}

impl Drop for SilentFile {
    fn drop(&mut self) {
        // The server ends first, which aborts all requests, so that closing the file does not block.
        self.stop.store(true, Ordering::Relaxed);
        self.server.take().into_iter().for_each(|server| _ = server.join());
        self.file = None;
    }
}

/// Serves until told to stop. The device is then closed, which aborts all requests.
fn serve(mut fuse: File, (stop, flushes): &(Arc<AtomicBool>, Arc<AtomicU32>)) {
    let mut request = vec![0; 1 << 17];
    while !stop.load(Ordering::Relaxed) {
        let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::new(&fuse, PollFlags::IN)], Some(&limit));
        let Ok(len) = fuse.read(&mut request) else { continue };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        assert!(len >= 40);
        let attributes = |directory: bool| {
            let mode: u32 = if directory { 0o040_755 } else { 0o100_644 };
            let mut bytes = vec![0; 88];
            bytes[0] = if directory { 1 } else { 2 };
            bytes[60..64].copy_from_slice(&mode.to_ne_bytes());
            bytes[64] = 1;
            bytes
        };
        let body = match word(4) {
            // INIT: version 7.31, writes of one page.
            26 => {
                let mut body = vec![0; 64];
                (body[0], body[4]) = (7, 31);
                body[20..24].copy_from_slice(&4096u32.to_ne_bytes());
                Ok(body)
            }
            // LOOKUP: node 2.
            1 => Ok([&[2, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32], &attributes(false)].concat()),
            // GETATTR of the root. For the file it is never answered, see below.
            3 if word(16) == 1 => Ok([&[0; 16][..], &attributes(true)].concat()),
            // OPEN.
            14 => Ok(vec![0; 16]),
            // FLUSH.
            25 => {
                flushes.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // STATFS, RELEASE, GETATTR of the file.
            17 | 18 | 3 => continue,
            // Not implemented (ENOSYS).
            _ => Err(-38i32),
        };
        let (error, body) = body.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let size = 16 + body.len() as u32;
        let head = [&size.to_ne_bytes()[..], &error.to_ne_bytes(), &request[8..16]].concat();
        let _ = fuse.write(&[head, body].concat());
    }
}
