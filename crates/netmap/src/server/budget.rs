//! How much memory programs' ports may take, and how it is made: on threads of their own, as populating a gigabyte takes
//! seconds in which others want to be served.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ringpass_memory::RegionConfig;
use rustix::io::Errno;

use super::Refusal;
use crate::{Pools, Region};

/// The memory of all ports that have memory of their own, made or being made.
pub struct Budget {
    total: usize,
    used: Arc<AtomicUsize>,
}

/// A part of the budget, given back when dropped.
struct Share {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

/// One program may take a quarter of the budget.
const PROGRAMS: usize = 4;

impl Budget {
    /// A budget of so many bytes.
    pub fn new(total: usize) -> Self {
        Self { total, used: Arc::default() }
    }

    /// Bytes in all, and those that are taken.
    pub fn state(&self) -> [usize; 2] {
        [self.total, self.used.load(Relaxed)]
    }

    /// Changes the number of bytes. What is taken stays.
    pub fn set_total(&mut self, total: usize) {
        self.total = total;
    }

    /// Begins to make memory with these pools for a program, which has so many bytes of the budget already. `made` becomes
    /// readable when it is there.
    pub fn make(&self, name: &str, pools: Vec<Pools>, held: usize, made: &Arc<OwnedFd>) -> Result<Making, Refusal> {
        let bytes = pools.iter().try_fold(0_usize, |sum, pools| sum.checked_add(pools.bytes())).unwrap_or(usize::MAX);
        let ([total, used], most) = (self.state(), self.total / PROGRAMS);
        let left = total.saturating_sub(used).min(most.saturating_sub(held));
        if bytes > left {
            let why = format!(
                "{name}: {} MiB of memory are wanted, and {} MiB are left, of {} MiB for one program and {} MiB for all; ask for \
                 fewer rings, slots or buffers, close ports, or start 'ringpass netmapd' with a larger --memory",
                bytes.div_ceil(MIB),
                left / MIB,
                most / MIB,
                total / MIB
            );
            return Err(Refusal::new(Errno::NOMEM, why));
        }
        let share = |pools: Pools| {
            let bytes = pools.bytes();
            self.used.fetch_add(bytes, Relaxed);
            (pools, Share { bytes, used: self.used.clone() })
        };
        let wanted: Vec<_> = pools.into_iter().map(share).collect();
        let ((sender, receiver), done) = (channel(), made.clone());
        let work = move || {
            let made: Result<Vec<_>, Refusal> =
                wanted.into_iter().map(|(pools, share)| Own::new(pools, share)).collect();
            // If the program is gone, what was made for it goes here.
            let _ = sender.send(made);
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            let _ = rustix::io::write(&done, &1_u64.to_ne_bytes());
        };
        spawn(work).map_err(|error| Refusal::new(Errno::AGAIN, format!("{name}: a thread to make memory: {error}")))?;
        Ok(Making(receiver))
    }
}

const MIB: usize = 1 << 20;

/// Starts a thread for memory.
fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("netmap-memory".into()).stack_size(256 << 10).spawn(work).map(drop)
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// Memory that is being made.
pub struct Making(Receiver<Result<Vec<Own>, Refusal>>);

impl Making {
    /// What was made, or why not; `None`: not yet.
    pub fn made(&self) -> Option<Result<Vec<Own>, Refusal>> {
        match self.0.try_recv() {
            Ok(made) => Some(made),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(Refusal::new(Errno::NOMEM, "making memory has failed"))),
        }
    }
}

/// A port's own memory, and its share of the budget.
pub struct Own {
    /// The memory.
    pub region: Region,
    /// After the memory.
    share: Share,
}

impl Own {
    fn new(pools: Pools, share: Share) -> Result<Self, Refusal> {
        Ok(Self { region: Region::new(pools, &RegionConfig::default())?, share })
    }

    /// Bytes of the budget.
    pub fn bytes(&self) -> usize {
        self.share.bytes
    }

    /// Takes what has these pools out of what was made.
    pub fn take(made: &mut Vec<Self>, pools: &Pools) -> Option<Self> {
        let at = made.iter().position(|own| own.region.pools() == pools)?;
        Some(made.swap_remove(at))
    }

    /// Gives it back, on another thread if there is much: the kernel takes a while to free a gigabyte.
    pub fn release(self) {
        const MUCH: usize = 16 * MIB;
        if self.bytes() > MUCH {
            // Without a thread it is dropped here.
            let _ = spawn(move || drop(self));
        }
    }
}
