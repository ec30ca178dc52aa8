//! SIGBUS handling: a mapping whose memory was taken away, by truncating the file or punching a hole into it,
//! is replaced by zeros instead of ending this process.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::Error;

pub(crate) const PAGE: u64 = 4096;
/// Number of bits of `Slot::span` that hold the length in pages. The others hold the number of the first page,
/// which fits, as the kernel returns no address above 2^47 unless asked to.
const LEN_BITS: u32 = 29;
const MAX_LEN: u64 = PAGE << LEN_BITS;

/// Registers a mapping with the signal handler. Must be dropped before the mapping is unmapped: once the kernel
/// reuses its addresses, the handler must not know them any more.
#[derive(Debug)]
pub(crate) struct Guard(&'static Slot);

impl Guard {
    /// Registers `len` bytes from `start`, whole pages.
    ///
    /// # Safety
    /// The bytes are a mapping that outlives the guard. They may become zeros at any time, so nobody has a
    /// reference to them, except to atomics.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Result<Self, Error> {
        let (start, len) = (start as u64, len as u64);
        if len >= MAX_LEN {
            return Err(Error::Config("memory to be shared: 2 TiB or more in one piece"));
        }
        survive_sigbus();
        let span = ((start / PAGE) << LEN_BITS) | (len / PAGE);
        let claim = |slot: &&Slot| slot.span.compare_exchange(0, span, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let mut block = &FIRST;
        loop {
            match block.slots.iter().find(claim) {
                Some(slot) => return Ok(Self(slot)),
                None => block = block.next_or_new(),
            }
        }
    }

    /// Whether an access found the memory gone. Since then reads return zeros, and writes have no effect on the file.
    pub(crate) fn lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.lost.store(false, Ordering::Relaxed);
        self.0.span.store(0, Ordering::Release);
    }
}

/// A mapping that the signal handler knows. Its position is one atomic word, so the handler never sees half of
/// an update.
#[derive(Debug)]
struct Slot {
    /// Number of the first page and length in pages; 0 if the slot is free.
    span: AtomicU64,
    lost: AtomicBool,
}

impl Slot {
    const fn free() -> Self {
        Self { span: AtomicU64::new(0), lost: AtomicBool::new(false) }
    }

    /// Returns start and length of the mapping if it contains the address.
    fn holds(&self, address: u64) -> Option<(u64, u64)> {
        let span = self.span.load(Ordering::Acquire);
        let (start, len) = ((span >> LEN_BITS) * PAGE, (span & ((1 << LEN_BITS) - 1)) * PAGE);
        (start..start + len).contains(&address).then_some((start, len))
    }
}

/// A block of slots, and a link to the next. Blocks are added as needed, so that nobody can use up the slots of others
/// (each kind of session bounds its own mappings). They are never freed, as the handler may read them at any time.
struct Block {
    slots: [Slot; 256],
    next: AtomicPtr<Block>,
}

static FIRST: Block = Block::empty();

impl Block {
    const fn empty() -> Self {
        Self { slots: [const { Slot::free() }; 256], next: AtomicPtr::new(null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: null, or from `Box::into_raw` in `next_or_new`, which publishes blocks that are never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    fn next_or_new(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Self::empty()));
        match self.next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `new` comes from `Box::into_raw` and has just been published, so it is never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: `new` comes from `Box::into_raw` and was not published, so nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: `other` is not null, as the exchange expected null and failed; a published block is
                // never freed.
                unsafe { &*other }
            }
        }
    }
}

/// The previous action for SIGBUS; set before the handler is installed.
static OLD_ACTION: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Installs the handler on the first call.
fn survive_sigbus() {
    static ONCE: Once = Once::new();
    // Miri has no signals.
    if cfg!(miri) {
        return;
    }
    ONCE.call_once(|| {
        // SAFETY: a zeroed `sigaction` is valid, and both pointers lead to such. The handler does only what a
        // signal handler may do: atomics, mmap, sigaction, and calling the previous handler.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, null(), &raw mut before);
            OLD_ACTION.store(Box::into_raw(Box::new(before)), Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, null_mut());
        }
    });
}

/// Replaces a mapping whose file was truncated by zeros. All of it is replaced: doing so page by page would let
/// another process use up the number of mappings that the kernel allows. Other errors go to the previous handler.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with `SA_SIGINFO` the kernel passes a valid `siginfo_t`; for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() } as u64;
    let mut blocks = std::iter::successors(Some(&FIRST), |block| block.next());
    let found = blocks.find_map(|block| block.slots.iter().find_map(|slot| Some((slot, slot.holds(address)?))));
    if let Some((slot, (start, len))) = found {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the mapping exists, because the access that failed was to it, and a guard is dropped before
        // its mapping. To code that holds pointers into it, this is a change of its content, which such code
        // expects at any time, as `Guard::new` requires. `errno` is restored for the interrupted code.
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
    // SAFETY: `survive_sigbus` sets `OLD_ACTION` before it installs this handler, and never frees it. Its
    // content comes from the kernel and describes the previous handler, which is called as its flags require.
    unsafe {
        let before = &*OLD_ACTION.load(Ordering::Acquire);
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // When this handler returns, the access faults again and ends the process.
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
