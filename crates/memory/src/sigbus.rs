//! Surviving SIGBUS: a mapping whose memory somebody has taken away, by cutting the file short or punching a hole into it,
//! becomes zeros instead of the end of this process.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::Error;

pub(crate) const PAGE: u64 = 4096;
/// Bits of a slot's word that hold the length in pages; the others hold the number of the first page, which fits, as
/// the kernel gives no address above 2^47 unasked.
const LEN_BITS: u32 = 29;
const MAX_LEN: u64 = PAGE << LEN_BITS;

/// Has the signal handler look after a mapping. To be dropped before that is unmapped: once the kernel gives its addresses
/// to others, the handler must not know them any more.
#[derive(Debug)]
pub(crate) struct Guard(&'static Slot);

impl Guard {
    /// Looks after `len` bytes, whole pages.
    ///
    /// # Safety
    /// They are a mapping that lives longer than the guard, and may become zeros at any time: nobody has a reference to its
    /// bytes, but for atomics.
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

    /// Whether an access has found the memory gone. What is read since then are zeros, what is written goes nowhere.
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

/// A mapping that the signal handler knows of. One word says where it lies, so that the handler never sees half of it.
#[derive(Debug)]
struct Slot {
    /// First page and pages; 0 if free.
    span: AtomicU64,
    lost: AtomicBool,
}

impl Slot {
    const fn free() -> Self {
        Self { span: AtomicU64::new(0), lost: AtomicBool::new(false) }
    }

    /// Start and length, if the address is inside.
    fn holds(&self, address: u64) -> Option<(u64, u64)> {
        let span = self.span.load(Ordering::Acquire);
        let (start, len) = ((span >> LEN_BITS) * PAGE, (span & ((1 << LEN_BITS) - 1)) * PAGE);
        (start..start + len).contains(&address).then_some((start, len))
    }
}

/// Slots, and where more are. Blocks are added as they are needed, so that nobody can take the slots of others away (each
/// kind of session bounds its own mappings), and never freed, as the handler may look at them at any time.
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
        // SAFETY: null, or from `Box::into_raw` in `next_or_new`, and never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    fn next_or_new(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Self::empty()));
        match self.next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: from the box above, and published just now, so it is never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: from the box above, and not published, so nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: what another thread has published is never freed.
                unsafe { &*other }
            }
        }
    }
}

/// What was done on SIGBUS before; set before the handler is.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Installs the handler, once.
fn survive_sigbus() {
    static ONCE: Once = Once::new();
    // Miri has no signals.
    if cfg!(miri) {
        return;
    }
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
    let mut blocks = std::iter::successors(Some(&FIRST), |block| block.next());
    let found = blocks.find_map(|block| block.slots.iter().find_map(|slot| Some((slot, slot.holds(address)?))));
    if let Some((slot, (start, len))) = found {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces a guarded mapping that lives, because the access that failed was to it, and guards go before
        // their mappings. To those who hold pointers into it this is a change of its contents, which they expect at any
        // time, as `Guard::new` demands. `errno` is put back for the code that was interrupted.
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
