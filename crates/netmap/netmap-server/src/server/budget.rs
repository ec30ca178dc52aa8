//! The limit of memory for programs, and the allocation of private memory. Memory is allocated on separate threads, because populating
//! a gigabyte takes seconds, in which other programs have to be served.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ringpass_ipc::{LARGE_MEMORY, drop_elsewhere};
use ringpass_memory::{ForeignMemory, RegionConfig};
use ringpass_netmap::{Pools, Region};
use rustix::io::Errno;

use super::RequestError;

/// Memory of all ports with private memory, allocated or being allocated, and of switches. Clones are the same budget.
#[derive(Clone, Debug)]
pub struct Budget {
    total: usize,
    used: Arc<AtomicUsize>,
}

/// A part of the budget, returned when dropped.
#[derive(Debug)]
pub struct Reservation {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

/// One program may use a quarter of the budget.
const PROGRAMS: usize = 4;

impl Budget {
    /// Creates a budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        Self { total, used: Arc::default() }
    }

    /// Bytes in all, and bytes in use.
    pub fn state(&self) -> [usize; 2] {
        [self.total, self.used.load(Relaxed)]
    }

    /// Takes `bytes` for something else than a port's private memory, such as the tables of a switch; `what` is its name.
    ///
    /// # Errors
    /// ENOMEM if fewer are left.
    pub fn reserve(&self, what: &str, bytes: usize) -> Result<Reservation, RequestError> {
        let left = self.total.saturating_sub(self.used.load(Relaxed));
        if bytes > left {
            let [wanted, left, total] = [bytes.div_ceil(MIB), left / MIB, self.total / MIB];
            let why = format!(
                "{what}: {wanted} MiB of memory are wanted, and {left} of {total} MiB are left; close ports, or start 'ringpass \
                 netmapd' with a larger --memory"
            );
            return Err(RequestError::new(Errno::NOMEM, why));
        }
        Ok(self.take(bytes))
    }

    /// Takes `bytes`, which may be more than are left.
    pub(super) fn take(&self, bytes: usize) -> Reservation {
        self.used.fetch_add(bytes, Relaxed);
        Reservation { bytes, used: self.used.clone() }
    }

    /// Checks that a program, which already has `held` bytes of the budget, may have as many more.
    fn check(&self, name: &str, bytes: usize, held: usize) -> Result<(), RequestError> {
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
            return Err(RequestError::new(Errno::NOMEM, why));
        }
        Ok(())
    }

    /// Starts to allocate memory with these pools for a program, which already has `held` bytes of the budget.
    /// `made` becomes readable when it is allocated.
    pub fn make(
        &self,
        name: &str,
        pools: Vec<Pools>,
        held: usize,
        made: &Arc<OwnedFd>,
    ) -> Result<PendingMemory, RequestError> {
        let bytes = pools.iter().try_fold(0_usize, |sum, pools| sum.checked_add(pools.bytes())).unwrap_or(usize::MAX);
        self.check(name, bytes, held)?;
        let reservation = |pools: Pools| {
            let bytes = pools.bytes();
            (pools, self.take(bytes))
        };
        let wanted: Vec<_> = pools.into_iter().map(reservation).collect();
        let ((sender, receiver), done) = (channel(), made.clone());
        let work = move || {
            let made: Result<Vec<_>, RequestError> =
                wanted.into_iter().map(|(pools, reservation)| PrivateMemory::new(pools, reservation)).collect();
            // If the program is gone, its memory is dropped here.
            let _ = sender.send(made);
            #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
            let _ = rustix::io::write(&done, &1_u64.to_ne_bytes());
        };
        std::thread::Builder::new()
            .name("netmap-memory".into())
            .stack_size(256 << 10)
            .spawn(work)
            .map_err(|error| RequestError::new(Errno::AGAIN, format!("{name}: a thread to make memory: {error}")))?;
        Ok(PendingMemory(receiver))
    }
}

const MIB: usize = 1 << 20;

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// Memory that is being allocated.
pub struct PendingMemory(Receiver<Result<Vec<PrivateMemory>, RequestError>>);

impl PendingMemory {
    /// Returns the allocated memory, or why there is none; `None` if that is not known yet.
    pub fn made(&self) -> Option<Result<Vec<PrivateMemory>, RequestError>> {
        match self.0.try_recv() {
            Ok(made) => Some(made),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(RequestError::new(Errno::NOMEM, "making memory has failed"))),
        }
    }
}

/// A port's private memory, with its part of the budget.
pub struct PrivateMemory {
    /// The memory.
    pub region: Region,
    /// Declared after the memory, so that it is dropped after it.
    reservation: Reservation,
}

impl PrivateMemory {
    fn new(pools: Pools, reservation: Reservation) -> Result<Self, RequestError> {
        Ok(Self { region: Region::new(pools, &RegionConfig::default())?, reservation })
    }

    /// Goes on with memory of another server, which may be more than the budget.
    pub fn resume(region: Region, budget: &Budget) -> Self {
        Self { reservation: budget.take(region.bytes()), region }
    }

    /// Makes a region of a program's own memory. It counts as if it were the server's, as the server keeps books of it.
    pub fn external(pools: Pools, memory: Arc<ForeignMemory>, budget: &Budget) -> Result<Self, RequestError> {
        budget.check("the program's own memory", memory.len(), 0)?;
        let reservation = budget.take(memory.len());
        Ok(Self { region: Region::external(pools, memory)?, reservation })
    }

    /// Bytes of the budget.
    pub fn bytes(&self) -> usize {
        self.reservation.bytes
    }

    /// Removes the memory with these pools from the allocated ones.
    pub fn take(made: &mut Vec<Self>, pools: &Pools) -> Option<Self> {
        let at = made.iter().position(|own| own.region.pools() == pools)?;
        Some(made.swap_remove(at))
    }

    /// Frees the memory; on another thread if it is large, because the kernel takes a while to free a gigabyte.
    pub fn release(self) {
        if self.bytes() > LARGE_MEMORY {
            drop_elsewhere(self);
        }
    }
}
