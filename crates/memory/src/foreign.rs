//! Memory of another process, by descriptor. That process may take it away while it is used here.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once};

use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;
use crate::error::os;

/// A file of another process (or a device's memory), mapped and shared with it. If that process cuts the file short, accesses see zeros from
/// then on instead of ending this process by SIGBUS, and [`lost`](Self::lost) says so.
#[derive(Debug)]
pub struct ForeignMemory {
    start: NonNull<u8>,
    len: usize,
    /// What is mapped: `len`, up to whole pages of the file's.
    mapped: usize,
    /// The file and where in it this begins, if others are to map it too.
    file: Option<(OwnedFd, u64)>,
    slot: &'static Slot,
}

// SAFETY: a range of memory that any thread may access, by pointer only.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Maps `len` bytes from `offset` of a file in memory (a memfd, of /dev/shm, of hugetlbfs), to read and to write.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        Self::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    /// As [`map`](Self::map), with the file kept, for devices that are to map it [too](Self::file).
    pub fn map_shared(file: OwnedFd, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        let mut memory = Self::new(file.as_fd(), offset, len, ProtFlags::READ | ProtFlags::WRITE)?;
        memory.file = Some((file, offset));
        Ok(Arc::new(memory))
    }

    /// As [`map`](Self::map), only to read. A write through [`as_ptr`](Self::as_ptr) ends the process.
    pub fn map_read_only(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        Self::new(file, offset, len, ProtFlags::READ).map(Arc::new)
    }

    /// Maps `len` bytes of a device's memory (a BAR) from `offset` of a file in which the kernel shows it, in whole pages. If the
    /// device goes away or stops answering, accesses see zeros, as in memory of another process.
    pub fn map_device(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Arc<Self>, Error> {
        if len == 0 || !(offset | len as u64).is_multiple_of(PAGE) {
            return Err(Error::Config("memory of a device: empty, or not of whole pages"));
        }
        Self::mapped(file, offset, (len, len), ProtFlags::READ | ProtFlags::WRITE).map(Arc::new)
    }

    fn new(file: BorrowedFd<'_>, offset: u64, len: usize, access: ProtFlags) -> Result<Self, Error> {
        // A file on a disk or of FUSE could keep an access waiting as long as its owner likes.
        let kind = rustix::fs::fstatfs(file).map_err(|errno| os("memory of another process")(errno.into()))?.f_type;
        if ![libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&kind) {
            return Err(Error::Config("memory of another process must be a memfd, or a file of /dev/shm or hugetlbfs"));
        }
        let stat = rustix::fs::fstat(file).map_err(|errno| os("memory of another process")(errno.into()))?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::Config("memory of another process must be a file"));
        }
        let end = offset.checked_add(len as u64);
        if len == 0 || end.is_none_or(|end| end > stat.st_size as u64) {
            return Err(Error::Config("memory of another process: empty, or beyond the end of its file"));
        }
        // Huge pages are mapped, replaced and unmapped as a whole.
        let page = if kind == libc::HUGETLBFS_MAGIC { stat.st_blksize as usize } else { PAGE as usize };
        let mapped = len.checked_next_multiple_of(page).unwrap_or(usize::MAX);
        Self::mapped(file, offset, (len, mapped), access)
    }

    /// Maps `len` bytes, and what follows up to whole pages of the file.
    fn mapped(
        file: BorrowedFd<'_>,
        offset: u64,
        (len, mapped): (usize, usize),
        access: ProtFlags,
    ) -> Result<Self, Error> {
        if mapped as u64 >= MAX_LEN {
            return Err(Error::Config("memory of another process: 2 TiB or more in one piece"));
        }
        survive_sigbus();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(null_mut(), mapped, access, MapFlags::SHARED, file, offset) };
        let start = start.map_err(|errno| os("mapping memory of another process")(errno.into()))?;
        let Some(slot) = Slot::take(start as u64, mapped as u64) else {
            // SAFETY: the mapping just made, which nobody has seen.
            let _ = unsafe { rustix::mm::munmap(start, mapped) };
            return Err(Error::Config("too many mappings of other processes' memory; end some of their sessions"));
        };
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        Ok(Self { start, len, mapped, file: None, slot })
    }

    /// The first byte. What lies there may change at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that are mapped: whole pages of the file's.
    pub fn mapped_len(&self) -> usize {
        self.mapped
    }

    /// The file, and where in it this begins; `None` unless it was kept.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.file.as_ref().map(|(file, offset)| (file.as_fd(), *offset))
    }

    /// Whether an access has found the file cut short. What is read since then are zeros, what is written goes nowhere.
    pub fn lost(&self) -> bool {
        self.slot.lost.load(Ordering::Relaxed)
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping; pointers into it are used while the object lives only.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
        self.slot.give_back();
    }
}

const PAGE: u64 = 4096;
/// Bits of a slot's word that hold the length in pages; the others hold the number of the first page, which fits, as
/// the kernel gives no address above 2^47 unasked.
const LEN_BITS: u32 = 29;
const MAX_LEN: u64 = PAGE << LEN_BITS;
/// Mappings at a time: one for each guest's memory, and some more while it is exchanged.
const SLOTS: usize = 1024;

/// A mapping that the signal handler knows of. One word says where it lies, so that the handler never sees half of it.
#[derive(Debug)]
struct Slot {
    /// First page and pages; 0 if free.
    span: AtomicU64,
    lost: AtomicBool,
}

static MAPPINGS: [Slot; SLOTS] = [const { Slot { span: AtomicU64::new(0), lost: AtomicBool::new(false) } }; SLOTS];

impl Slot {
    fn take(start: u64, len: u64) -> Option<&'static Self> {
        let span = ((start / PAGE) << LEN_BITS) | (len / PAGE);
        let claim = |slot: &&Self| slot.span.compare_exchange(0, span, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        MAPPINGS.iter().find(claim)
    }

    fn give_back(&self) {
        self.lost.store(false, Ordering::Relaxed);
        self.span.store(0, Ordering::Release);
    }

    /// Start and length, if the address is inside.
    fn holds(&self, address: u64) -> Option<(u64, u64)> {
        let span = self.span.load(Ordering::Acquire);
        let (start, len) = ((span >> LEN_BITS) * PAGE, (span & ((1 << LEN_BITS) - 1)) * PAGE);
        (start..start + len).contains(&address).then_some((start, len))
    }
}

/// What was done on SIGBUS before; set before the handler is.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Installs the handler, once.
fn survive_sigbus() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a `sigaction` of zeros is valid; both pointers are to such. The handler does only what a signal
        // handler may: atomics, mmap, sigaction, and what was there before.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, null(), &raw mut before);
            BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, null_mut());
        }
    });
}

/// Puts zeros in place of a mapping whose file was cut short: all of it, because replacing it page by page would let
/// another process use up the mappings that the kernel grants. Other errors go where they went before.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with `SA_SIGINFO` the kernel gives a valid `siginfo_t`; for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() } as u64;
    let found = MAPPINGS.iter().find_map(|slot| Some((slot, slot.holds(address)?)));
    if let Some((slot, (start, len))) = found {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces a mapping of a `ForeignMemory` that lives, because the access that failed was to it. To
        // those who hold pointers into it this is a change of its contents, which they expect at any time. `errno` is
        // put back for the code that was interrupted.
        let replaced = unsafe {
            let errno = *libc::__errno_location();
            let replaced = libc::mmap(start as *mut c_void, len as usize, access, flags, -1, 0);
            *libc::__errno_location() = errno;
            replaced
        };
        if replaced != libc::MAP_FAILED {
            return slot.lost.store(true, Ordering::Relaxed);
        }
    }
    // SAFETY: `survive_sigbus` has set it before this handler, and never frees it. What it holds is the kernel's word
    // for the handler of that time, called as its flags say.
    unsafe {
        let before = &*BEFORE.load(Ordering::Acquire);
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // The access happens again when this handler returns, and ends the process.
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, null_mut());
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
