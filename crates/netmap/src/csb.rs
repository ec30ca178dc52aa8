//! The block by which an application (or a guest) and whoever serves its ring tell each other where they are, and whether
//! they want to be woken: netmap's CSB, one entry for each ring.
//!
//! Each side has words that it alone writes. To sleep, a side says that it wants to be woken, then looks once more at the
//! other's words (*double check*); to wake, a side writes its words, then looks whether the other wants that. Between
//! writing and looking lies a full barrier on both sides, so that one of the two sees the other. Whoever is woken does not
//! have its wish cleared by the other side: it takes it back itself, when it goes on.

#[cfg(not(loom))]
use crate::{Cells, Memory};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

/// What the application writes and the server reads. Offsets: `head` 0, `cur` 4, `need_kick` 8, `sync_flags` 12.
#[repr(C)]
#[derive(Default)]
pub struct FromApplication {
    head: AtomicU32,
    cur: AtomicU32,
    need_kick: AtomicU32,
    sync_flags: AtomicU32,
    spare: [AtomicU32; 12],
}

/// What the server writes and the application reads. Offsets: `hwcur` 0, `hwtail` 4, `need_kick` 8.
#[repr(C)]
#[derive(Default)]
pub struct FromServer {
    hwcur: AtomicU32,
    hwtail: AtomicU32,
    need_kick: AtomicU32,
    spare: [AtomicU32; 13],
}

/// Both sides' entries of all rings of a port: Tx rings, then Rx rings.
#[cfg(not(loom))]
pub struct Csb {
    application: Cells<FromApplication>,
    server: Cells<FromServer>,
}

#[cfg(not(loom))]
impl Csb {
    /// Entries at two offsets of a memory; `None` if they are not inside, or not aligned.
    pub fn new(memory: &Memory, application: usize, server: usize, entries: usize) -> Option<Self> {
        Self::in_two((memory, application), (memory, server), entries)
    }

    /// As [`new`](Self::new), with the two sides' entries each in a memory of its own.
    pub fn in_two(application: (&Memory, usize), server: (&Memory, usize), entries: usize) -> Option<Self> {
        let (application, server) = (application.0.cells(application.1, entries)?, server.0.cells(server.1, entries)?);
        Some(Self { application, server })
    }

    /// How many entries there are.
    pub fn entries(&self) -> usize {
        self.server.len()
    }

    /// What the application says of a ring.
    pub fn application(&self, entry: usize) -> &FromApplication {
        &self.application[entry]
    }

    /// What the server says of it.
    pub fn server(&self, entry: usize) -> &FromServer {
        &self.server[entry]
    }
}

/// Bytes of an entry.
pub const ENTRY: usize = 64;

#[cfg(not(loom))]
const _: () = assert!(size_of::<FromApplication>() == ENTRY && size_of::<FromServer>() == ENTRY);

/// In [`FromApplication`]'s `sync_flags`: look for frames, whatever the server thinks.
pub const FORCE_READ: u32 = 1;
/// Likewise: give sent slots back.
pub const FORCE_RECLAIM: u32 = 2;

impl FromApplication {
    /// The application has given up the slots before `head`, and waits for more than those before `cur`. Returns nothing: see
    /// [`FromServer::wants_a_kick`].
    #[inline]
    pub fn write(&self, head: u32, cur: u32, sync_flags: u32) {
        self.sync_flags.store(sync_flags, Relaxed);
        // `cur` is never seen older than `head`, nor a slot.
        self.cur.store(cur, Release);
        self.head.store(head, Release);
    }

    /// `head`, `cur` and `sync_flags`, each read once.
    #[inline]
    pub fn read(&self) -> (u32, u32, u32) {
        let head = self.head.load(Acquire);
        (head, self.cur.load(Acquire), self.sync_flags.load(Relaxed))
    }

    /// Asked by the server, when it has written its positions: whether the application wants to be woken.
    #[inline]
    pub fn wants_a_call(&self) -> bool {
        fence(SeqCst);
        self.need_kick.load(Relaxed) != 0
    }

    /// Whether the application wants to be woken by the server.
    #[inline]
    pub fn want(&self, wakes: bool) {
        self.need_kick.store(wakes.into(), Relaxed);
        // Only the wish has to come before the second look.
        if wakes {
            fence(SeqCst);
        }
    }
}

impl FromServer {
    /// The server is done with the slots before `hwcur`, and those before `hwtail` are the application's.
    #[inline]
    pub fn write(&self, hwcur: u32, hwtail: u32) {
        // `hwcur` is never seen older than `hwtail`, nor a slot.
        self.hwcur.store(hwcur, Release);
        self.hwtail.store(hwtail, Release);
    }

    /// `hwcur` and `hwtail`, each read once.
    #[inline]
    pub fn read(&self) -> (u32, u32) {
        let hwtail = self.hwtail.load(Acquire);
        (self.hwcur.load(Acquire), hwtail)
    }

    /// Asked by the application, when it has written its positions: whether the server wants to be woken.
    #[inline]
    pub fn wants_a_kick(&self) -> bool {
        fence(SeqCst);
        self.need_kick.load(Relaxed) != 0
    }

    /// Whether the server wants to be woken by the application.
    #[inline]
    pub fn want(&self, wakes: bool) {
        self.need_kick.store(wakes.into(), Relaxed);
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
        assert_eq!([offset_of!(FromApplication, head), offset_of!(FromApplication, cur)], [0, 4]);
        assert_eq!([offset_of!(FromApplication, need_kick), offset_of!(FromApplication, sync_flags)], [8, 12]);
        assert_eq!([offset_of!(FromServer, hwcur), offset_of!(FromServer, hwtail)], [0, 4]);
        assert_eq!(offset_of!(FromServer, need_kick), 8);
    }

    #[test]
    fn what_is_written_is_read() {
        let (application, server) = (FromApplication::default(), FromServer::default());
        application.write(5, 7, FORCE_RECLAIM);
        server.write(3, 9);
        assert_eq!((application.read(), server.read()), ((5, 7, FORCE_RECLAIM), (3, 9)));
        assert!(!application.wants_a_call() && !server.wants_a_kick());
        application.want(true);
        server.want(true);
        assert!(application.wants_a_call() && server.wants_a_kick());
        application.want(false);
        assert!(!application.wants_a_call() && server.wants_a_kick());
    }
}

/// Every interleaving of two threads: nobody sleeps while there is something to do, and nobody turns in circles.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// An eventfd.
    #[derive(Default)]
    struct Bell {
        rung: Mutex<u32>,
        changed: Condvar,
    }

    impl Bell {
        fn ring(&self) {
            *self.rung.lock().unwrap() += 1;
            self.changed.notify_one();
        }

        /// Returns how often it was rung.
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
        application: FromApplication,
        server: FromServer,
        kick: Bell,
        call: Bell,
    }

    /// Serves until it has seen so many slots given up. Returns how often it slept.
    fn serve(both: &Both, until: u32) -> u32 {
        let (mut seen, mut slept) = (0, 0);
        loop {
            both.server.want(false);
            loop {
                let (head, cur, _) = both.application.read();
                assert!(cur >= head, "cur is not older than head");
                if head == seen {
                    break;
                }
                seen = head;
                both.server.write(head, head);
                if both.application.wants_a_call() {
                    both.call.ring();
                }
            }
            if seen == until {
                return slept;
            }
            both.server.want(true);
            if both.application.read().0 == seen {
                both.kick.wait();
                slept += 1;
            }
        }
    }

    /// Gives up slots one by one; in the end waits until all are done with.
    fn send(both: &Both, slots: u32) {
        for head in 1..=slots {
            both.application.write(head, head, 0);
            if both.server.wants_a_kick() {
                both.kick.ring();
            }
        }
        loop {
            both.application.want(true);
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
