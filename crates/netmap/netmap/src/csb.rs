//! netmap's CSB, one entry for each ring: the application (or a guest) and the server of a ring exchange their
//! positions through it, and whether they want to be woken.
//!
//! Each field has one writer. Before it blocks, a side requests a kick and then reads the other side's
//! positions once more (*double check*). To wake, a side writes its positions and then reads whether the other
//! requests a kick. Both sides have a full barrier between the write and the read, so at least one of the two
//! sees the other. The woken side clears its own request when it continues; the other side does not.

use ringpass_memory::{Cells, Memory};

use crate::ring_lock::{Owned, SharedRing};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

/// Words that the application writes and the server reads (`struct nm_csb_atok`). Offsets: `head` 0, `cur` 4,
/// `need_kick` 8, `sync_flags` 12.
#[repr(C)]
#[derive(Default)]
pub(crate) struct CsbAtok {
    head: AtomicU32,
    cur: AtomicU32,
    need_kick: AtomicU32,
    sync_flags: AtomicU32,
    /// How often a kick was requested, by programs of this library.
    requests: AtomicU32,
    spare: [AtomicU32; 11],
}

/// Positions that an application has released, as [`Csb::read_atok`] returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// End of the released slots.
    pub head: u32,
    /// Slot beyond which it waits for slots.
    pub cur: u32,
    /// [`FORCE_READ`], [`FORCE_RECLAIM`].
    pub sync_flags: u32,
}

/// Words that the server writes and the application reads (`struct nm_csb_ktoa`). Offsets: `hwcur` 0, `hwtail` 4,
/// `need_kick` 8.
#[repr(C)]
#[derive(Default)]
pub(crate) struct CsbKtoa {
    hwcur: AtomicU32,
    hwtail: AtomicU32,
    need_kick: AtomicU32,
    /// Of a pipe: whether there are monitors. Written by the process that made the pipe.
    watched: AtomicU32,
    /// How often a kick was requested, by servers of this library.
    requests: AtomicU32,
    spare: [AtomicU32; 11],
}

/// The request for a kick that was answered last. A side that was kicked and has not yet run is not kicked again, as each kick
/// is a system call, and in a guest's CSB nobody counts requests: there [`Csb::appl_needs_kick`] and
/// [`Csb::kern_needs_kick`] decide.
#[derive(Debug, Default)]
pub(crate) struct Answered(AtomicU32);

impl Answered {
    /// Returns whether this request was not answered yet, and remembers it.
    #[cold]
    fn is_new(&self, request: u32) -> bool {
        let is_new = self.0.load(Relaxed) != request;
        self.0.store(request, Relaxed);
        is_new
    }
}

/// The lock of a ring has another owner.
pub(crate) struct Locked;

/// Both halves of the CSB entries of all rings of a port: Tx rings, then Rx rings.
pub struct Csb {
    atok: Halves<CsbAtok>,
    ktoa: Halves<CsbKtoa>,
    /// Words that the processes of an application share, in the CSB of a port.
    shared: Option<Cells<SharedRing>>,
}

#[cfg(not(loom))]
type Halves<T> = ringpass_memory::Cells<T>;
/// loom's atomics are larger than words, so they cannot lie in shared memory.
#[cfg(loom)]
type Halves<T> = Box<[T]>;

impl Csb {
    /// Returns the `entries` entries whose halves begin at the offsets `atok` and `ktoa`; `None` if
    /// they are not inside the memory, or not aligned.
    pub fn new(memory: &Memory, atok: usize, ktoa: usize, entries: usize) -> Option<Self> {
        Self::from_halves((memory, atok), (memory, ktoa), entries)
    }

    /// Like [`new`](Self::new), with each half in a memory of its own.
    pub fn from_halves(atok: (&Memory, usize), ktoa: (&Memory, usize), entries: usize) -> Option<Self> {
        Some(Self { atok: halves(atok, entries)?, ktoa: halves(ktoa, entries)?, shared: None })
    }

    /// Adds what the processes of an application share, at this offset, if the memory reaches that far: a guest's does not.
    pub(crate) fn with_shared(mut self, memory: &Memory, offset: usize) -> Self {
        self.shared = memory.cells(offset, self.entries());
        self
    }

    /// Returns the words that the processes of a ring share, if it is a port's.
    #[inline]
    pub(crate) fn shared(&self, entry: usize) -> Option<&SharedRing> {
        self.shared.as_ref().map(|shared| &shared[entry])
    }

    /// Takes the lock of a ring; `Err` if another owner has it. Without a lock, nobody else uses the ring.
    #[inline]
    pub(crate) fn lock(&self, entry: usize) -> Result<Option<Owned<'_>>, Locked> {
        self.shared(entry).map(|shared| shared.sync.acquire().ok_or(Locked)).transpose()
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.ktoa.len()
    }

    /// Stores the application's positions (netmap's `atok`, application to kernel): it has released the slots before
    /// `head`, and waits for slots beyond `cur`. Afterwards the application must check
    /// [`kern_needs_kick`](Self::kern_needs_kick).
    #[inline]
    pub fn write_atok(&self, entry: usize, head: u32, cur: u32, sync_flags: u32) {
        self.atok[entry].write(head, cur, sync_flags);
    }

    /// Loads the application's `head`, then `cur` (Acquire), and `sync_flags`, each once.
    #[inline]
    pub fn read_atok(&self, entry: usize) -> Released {
        self.atok[entry].read()
    }

    /// Whether the frames of a pipe's direction are monitored.
    #[inline]
    pub(crate) fn is_watched(&self, entry: usize) -> bool {
        self.ktoa[entry].watched.load(Relaxed) != 0
    }

    /// Stores whether the frames of a pipe's direction are monitored.
    pub(crate) fn set_watched(&self, entry: usize, watched: bool) {
        self.ktoa[entry].watched.store(watched.into(), Relaxed);
    }

    /// Whether the application requests a kick. Called by the server after it has written its positions;
    /// contains the full barrier.
    #[inline]
    pub fn appl_needs_kick(&self, entry: usize) -> bool {
        self.atok[entry].appl_needs_kick()
    }

    /// Like [`appl_needs_kick`](Self::appl_needs_kick), but `false` for a request that was answered before.
    #[inline]
    pub(crate) fn appl_asks_for_kick(&self, entry: usize, answered: &Answered) -> bool {
        let atok = &self.atok[entry];
        atok.appl_needs_kick() && answered.is_new(atok.requests.load(Relaxed))
    }

    /// Stores whether the application requests a kick from the server.
    #[inline]
    pub fn set_appl_need_kick(&self, entry: usize, wakes: bool) {
        self.atok[entry].set_need_kick(wakes);
    }

    /// Stores the server's positions (netmap's `ktoa`, kernel to application): the slots before `hwcur` are processed,
    /// and those before `hwtail` belong to the application.
    #[inline]
    pub fn write_ktoa(&self, entry: usize, hwcur: u32, hwtail: u32) {
        self.ktoa[entry].write(hwcur, hwtail);
    }

    /// Loads the server's `hwtail`, then `hwcur` (Acquire), each once. Returns `hwcur` and `hwtail`.
    #[inline]
    pub fn read_ktoa(&self, entry: usize) -> (u32, u32) {
        self.ktoa[entry].read()
    }

    /// Whether the server requests a kick. Called by the application after it has written its positions;
    /// contains the full barrier.
    #[inline]
    pub fn kern_needs_kick(&self, entry: usize) -> bool {
        self.ktoa[entry].kern_needs_kick()
    }

    /// Like [`kern_needs_kick`](Self::kern_needs_kick), but `false` for a request that was answered before.
    #[inline]
    pub(crate) fn kern_asks_for_kick(&self, entry: usize, answered: &Answered) -> bool {
        let ktoa = &self.ktoa[entry];
        ktoa.kern_needs_kick() && answered.is_new(ktoa.requests.load(Relaxed))
    }

    /// Stores whether the server requests a kick from the application.
    #[inline]
    pub fn set_kern_need_kick(&self, entry: usize, wakes: bool) {
        self.ktoa[entry].set_need_kick(wakes);
    }
}

#[cfg(not(loom))]
fn halves<T: ringpass_memory::Atomics>((memory, offset): (&Memory, usize), entries: usize) -> Option<Halves<T>> {
    memory.cells(offset, entries)
}

#[cfg(loom)]
fn halves<T: Default>(_: (&Memory, usize), entries: usize) -> Option<Halves<T>> {
    Some((0..entries).map(|_| T::default()).collect())
}

/// Bytes of one half of an entry.
pub const ENTRY: usize = 64;

#[cfg(not(loom))]
const _: () = assert!(size_of::<CsbAtok>() == ENTRY && size_of::<CsbKtoa>() == ENTRY);

/// Flag in [`Released::sync_flags`]: check for received frames even if the server assumes that there are
/// none.
pub const FORCE_READ: u32 = 1;
/// Flag in [`Released::sync_flags`]: return the slots of sent frames.
pub const FORCE_RECLAIM: u32 = 2;

impl CsbAtok {
    #[inline]
    fn write(&self, head: u32, cur: u32, sync_flags: u32) {
        self.sync_flags.store(sync_flags, Relaxed);
        // Release, `cur` first: a reader that sees the new `head` also sees this `cur` and the slots.
        self.cur.store(cur, Release);
        self.head.store(head, Release);
    }

    #[inline]
    fn read(&self) -> Released {
        let head = self.head.load(Acquire);
        let cur = self.cur.load(Acquire);
        Released { head, cur, sync_flags: self.sync_flags.load(Relaxed) }
    }

    #[inline]
    fn appl_needs_kick(&self) -> bool {
        fence(SeqCst);
        self.need_kick.load(Acquire) != 0
    }

    #[inline]
    fn set_need_kick(&self, wakes: bool) {
        if wakes {
            self.requests.fetch_add(1, Relaxed);
        }
        // Release: who sees the request also sees that it is a new one.
        self.need_kick.store(wakes.into(), Release);
        // Only a request must be ordered before the second check.
        if wakes {
            fence(SeqCst);
        }
    }
}

impl CsbKtoa {
    #[inline]
    fn write(&self, hwcur: u32, hwtail: u32) {
        // Release, `hwcur` first: a reader that sees the new `hwtail` also sees this `hwcur` and the slots.
        self.hwcur.store(hwcur, Release);
        self.hwtail.store(hwtail, Release);
    }

    #[inline]
    fn read(&self) -> (u32, u32) {
        let hwtail = self.hwtail.load(Acquire);
        (self.hwcur.load(Acquire), hwtail)
    }

    #[inline]
    fn kern_needs_kick(&self) -> bool {
        fence(SeqCst);
        self.need_kick.load(Acquire) != 0
    }

    #[inline]
    fn set_need_kick(&self, wakes: bool) {
        if wakes {
            self.requests.fetch_add(1, Relaxed);
        }
        self.need_kick.store(wakes.into(), Release);
        if wakes {
            fence(SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn words_lie_where_netmaps_do() {
        assert_eq!([offset_of!(CsbAtok, head), offset_of!(CsbAtok, cur)], [0, 4]);
        assert_eq!([offset_of!(CsbAtok, need_kick), offset_of!(CsbAtok, sync_flags)], [8, 12]);
        assert_eq!([offset_of!(CsbKtoa, hwcur), offset_of!(CsbKtoa, hwtail)], [0, 4]);
        assert_eq!(offset_of!(CsbKtoa, need_kick), 8);
    }

    #[test]
    fn what_is_written_is_read() {
        let (application, server) = (CsbAtok::default(), CsbKtoa::default());
        application.write(5, 7, FORCE_RECLAIM);
        server.write(3, 9);
        assert_eq!(application.read(), Released { head: 5, cur: 7, sync_flags: FORCE_RECLAIM });
        assert_eq!(server.read(), (3, 9));
        assert!(!application.appl_needs_kick() && !server.kern_needs_kick());
        application.set_need_kick(true);
        server.set_need_kick(true);
        assert!(application.appl_needs_kick() && server.kern_needs_kick());
        application.set_need_kick(false);
        assert!(!application.appl_needs_kick() && server.kern_needs_kick());
    }
}

/// Explores every interleaving of two threads: no wake-up is lost, and no thread wakes more often than it was
/// kicked.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// Stands in for an eventfd.
    #[derive(Default)]
    struct Notifier {
        rung: Mutex<u32>,
        changed: Condvar,
    }

    impl Notifier {
        fn ring(&self) {
            *self.rung.lock().unwrap() += 1;
            self.changed.notify_one();
        }

        /// Waits until it is signalled. Returns how often it was.
        fn wait(&self) -> u32 {
            let mut rung = self.rung.lock().unwrap();
            while *rung == 0 {
                rung = self.changed.wait(rung).unwrap();
            }
            std::mem::take(&mut rung)
        }
    }

    #[derive(Default)]
    struct Both {
        application: CsbAtok,
        server: CsbKtoa,
        kick: Notifier,
        call: Notifier,
    }

    /// Serves until it has seen `until` released slots. Returns how often it blocked.
    fn serve(both: &Both, until: u32) -> u32 {
        let (mut seen, mut slept) = (0, 0);
        let answered = Answered::default();
        loop {
            both.server.set_need_kick(false);
            loop {
                let Released { head, cur, .. } = both.application.read();
                assert!(cur >= head, "cur is not older than head");
                if head == seen {
                    break;
                }
                seen = head;
                both.server.write(head, head);
                if both.application.appl_needs_kick() && answered.is_new(both.application.requests.load(Relaxed)) {
                    both.call.ring();
                }
            }
            if seen == until {
                return slept;
            }
            both.server.set_need_kick(true);
            if both.application.read().head == seen {
                both.kick.wait();
                slept += 1;
            }
        }
    }

    /// Releases slots one by one, then waits until all are processed.
    fn send(both: &Both, slots: u32) {
        let answered = Answered::default();
        for head in 1..=slots {
            both.application.write(head, head, 0);
            if both.server.kern_needs_kick() && answered.is_new(both.server.requests.load(Relaxed)) {
                both.kick.ring();
            }
        }
        loop {
            both.application.set_need_kick(true);
            if both.server.read().1 == slots {
                return;
            }
            both.call.wait();
        }
    }

    fn explore(slots: u32, preemptions: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || {
            let both = Arc::new(Both::default());
            let sender = thread::spawn({
                let both = both.clone();
                move || send(&both, slots)
            });
            let slept = serve(&both, slots);
            assert!(slept <= slots, "{slept} sleeps for {slots} kicks");
            sender.join().unwrap();
        });
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        explore(1, None);
        explore(2, Some(2));
    }
}
