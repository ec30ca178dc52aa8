//! Rx queue mapping: buffers that belong to somebody else, such as a guest, are lent to a queue, so that a card receives
//! directly into the memory where the frames are to go. After Kawashima, *Software Physical/Virtual Rx Queue Mapping* (IEEE
//! TNSM 2021).
//!
//! A [`Lender`] (a virtqueue) lends to a [`Borrower`] (the Rx queue of a card) through a [`Lending`], which both share for their
//! whole lives. Guests come and go meanwhile. Each *lease*, from [`Lending::begin`] to [`Lending::end`], has a
//! [pool](ringpass_memory::LentPool) of its own, made of the guest's buffers. [`Port::lending`](crate::Port::lending) and
//! [`RxQueue::borrow_from`](crate::RxQueue::borrow_from) are how an application brings the two together.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringpass_memory::{Buffer, ForeignMemory, LentCache, LentPool, LentPoolId, Loans, Packet};

/// The side that lends buffers, such as a virtqueue.
pub trait Lender: Send + Sync {
    /// Lends available buffers, as far as `loans` has room. Lends nothing if `loans` is for another lease than
    /// the lender's own.
    fn lend(&self, loans: &mut Loans<'_>);
}

/// Gives a device access to the memory that lent buffers lie in.
pub trait Grant: Send + Sync {
    /// Lets the device access this memory, at its addresses in this process. The error is one line, with cause
    /// and remedy.
    fn grant(&self, memory: &Arc<ForeignMemory>) -> Result<(), String>;

    /// Takes the access away. The device must have been told to stop using the memory before.
    fn revoke(&self, memory: &Arc<ForeignMemory>);
}

/// A lease, for its lender: the identity of its pool.
pub type Lease = LentPoolId;

/// State that a lender and a borrower share.
pub struct Lending {
    lender: Box<dyn Lender>,
    /// Number of begins and ends of leases so far.
    lease: AtomicU32,
    inner: Mutex<Inner>,
    host_buffers: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// The borrower's device; `None` if there is no borrower.
    device: Option<Device>,
    /// Devices of former borrowers, which may still use buffers of the lease.
    departed: Vec<Device>,
    /// The lease that is running: its pool, and the guest's memory.
    running: Option<(LentPool, Arc<[Arc<ForeignMemory>]>)>,
    /// The pool of a lease that was ended while buffers were still out: the device may still use its memory.
    ending: Option<LentPool>,
}

/// A borrower's device, and the memory that it has been granted.
struct Device {
    grant: Box<dyn Grant>,
    granted: Vec<Arc<ForeignMemory>>,
}

impl Device {
    /// Revokes the access to all memory but `memory`, and grants that.
    fn set_granted(&mut self, memory: &[Arc<ForeignMemory>]) -> Result<(), String> {
        let Self { grant, granted } = self;
        let among = |one: &Arc<ForeignMemory>, all: &[_]| all.iter().any(|other| Arc::ptr_eq(one, other));
        granted.extract_if(.., |old| !among(old, memory)).for_each(|old| grant.revoke(&old));
        for new in memory {
            if !among(new, granted) {
                grant.grant(new)?;
                granted.push(new.clone());
            }
        }
        Ok(())
    }

    fn revoke_all(&mut self) {
        self.granted.drain(..).for_each(|memory| self.grant.revoke(&memory));
    }
}

impl Inner {
    /// Returns how many buffers and handles of the borrower are out.
    fn outstanding(&self) -> usize {
        let pools = self.running.iter().map(|(pool, _)| pool).chain(&self.ending);
        pools.map(|pool| pool.outstanding(1)).sum()
    }

    /// Whether nothing of the last lease is out any more.
    fn has_ended(&mut self) -> bool {
        // The borrower's handle counts too; the borrower drops it when it has noticed the end.
        self.ending.take_if(|pool| pool.outstanding(1) == 0);
        self.revoke_departed();
        self.ending.is_none()
    }

    /// Revokes the access of former borrowers' devices, unless they may still use the memory.
    fn revoke_departed(&mut self) {
        if self.outstanding() == 0 {
            self.departed.drain(..).for_each(|mut device| device.revoke_all());
        }
    }
}

impl Lending {
    /// Largest number of buffers that are lent at a time.
    pub const MAX_BUFFERS: usize = LentPool::MAX_BUFFERS;

    /// Creates a lending without a borrower, in which nothing is lent yet.
    pub fn new(lender: Box<dyn Lender>) -> Arc<Self> {
        Arc::new(Self {
            lender,
            lease: Default::default(),
            inner: Default::default(),
            host_buffers: Default::default(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a lease of up to `slots` buffers at a time, from a guest with this memory, which the borrower's device
    /// is granted. Returns `None` if there is no borrower, or if buffers of the previous lease are still out.
    ///
    /// # Errors
    /// If the device cannot be granted the memory.
    ///
    /// # Panics
    /// If a lease is running, or `slots` exceeds [`MAX_BUFFERS`](Self::MAX_BUFFERS).
    pub fn begin(&self, slots: usize, memory: &[Arc<ForeignMemory>]) -> Result<Option<Lease>, String> {
        let mut inner = self.inner();
        if !inner.has_ended() {
            return Ok(None);
        }
        let Inner { device: Some(device), running, .. } = &mut *inner else { return Ok(None) };
        assert!(running.is_none(), "one lease at a time");
        device.set_granted(memory)?;
        let memory: Arc<[_]> = memory.into();
        let pool = LentPool::new(slots, memory.clone());
        let lent = pool.id();
        *running = Some((pool, memory));
        self.lease.fetch_add(1, Ordering::Release);
        Ok(Some(lent))
    }

    /// Ends the lease and waits until everything lent has come back, for at most `limit`. The lender must not lend
    /// any more from this call on. Buffers that were not completed belong to the lender again, without a frame.
    ///
    /// # Errors
    /// If the limit passes. The lease is then still ending: this function can be called again, no other lease
    /// begins meanwhile, and the device keeps access to the memory, as it may still write there.
    pub fn end(&self, limit: Duration) -> Result<(), String> {
        {
            let mut inner = self.inner();
            if let Some((pool, _)) = inner.running.take() {
                inner.ending = Some(pool);
                self.lease.fetch_add(1, Ordering::Release);
            }
        }
        let start = Instant::now();
        loop {
            let mut inner = self.inner();
            if inner.has_ended() {
                return Ok(());
            }
            if start.elapsed() >= limit {
                let (out, ms) = (inner.outstanding(), limit.as_millis());
                return Err(format!("{out} lent buffers did not come back within {ms} ms"));
            }
            drop(inner);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether no lease is running or ending.
    pub fn is_idle(&self) -> bool {
        let inner = self.inner();
        inner.running.is_none() && inner.ending.is_none()
    }

    /// Revokes the access of the borrower's device to all memory. Returns `false` and does nothing while a
    /// lease is running or buffers of one are out; the next call, or the next lease, revokes it then.
    pub fn revoke(&self) -> bool {
        let mut inner = self.inner();
        if inner.running.is_some() || !inner.has_ended() {
            return false;
        }
        inner.device.iter_mut().for_each(Device::revoke_all);
        true
    }

    /// Returns how many buffers of its own the borrower used because too few were lent.
    pub fn host_buffers(&self) -> u64 {
        self.host_buffers.load(Ordering::Relaxed)
    }

    /// Whether there is a borrower.
    pub fn has_borrower(&self) -> bool {
        self.inner().device.is_some()
    }
}

impl Drop for Lending {
    /// Revokes what former borrowers' devices were granted. A device that may still write to the memory keeps it.
    fn drop(&mut self) {
        self.inner().revoke_departed();
    }
}

impl fmt::Debug for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// The side that borrows buffers. Belongs to one queue.
///
/// When it is dropped, the access of its device is revoked: at once if all buffers are back, else when the lease ends.
pub struct Borrower {
    lending: Arc<Lending>,
    lease: u32,
    cache: LentCache,
}

impl Borrower {
    /// Creates the borrower for a queue of a device, which needs buffers of at least `least` bytes. It joins a
    /// lease that is running at its first [`renew`](Self::renew).
    ///
    /// # Errors
    /// If the lending has a borrower already, or the device cannot be granted the memory of the lease that is running.
    pub fn new(lending: &Arc<Lending>, grant: Box<dyn Grant>, least: usize) -> Result<Self, String> {
        let mut inner = lending.inner();
        if inner.device.is_some() {
            return Err("two queues cannot be mapped to one; map each to a queue of its own".into());
        }
        let mut device = Device { grant, granted: Vec::new() };
        if let Some((_, memory)) = &inner.running {
            device.set_granted(memory).inspect_err(|_| device.revoke_all())?;
        }
        inner.device = Some(device);
        Ok(Self { lending: lending.clone(), lease: 0, cache: LentCache::new(least) })
    }

    /// Whether a lease has begun or ended since the last [`renew`](Self::renew). If so, the queue must return
    /// all buffers of the old lease, and then call `renew`. A device that has such buffers must be told to stop
    /// using them first.
    #[inline]
    pub fn changed(&self) -> bool {
        self.lending.lease.load(Ordering::Relaxed) != self.lease
    }

    /// Drops the old lease, and joins the one that is running now, if any.
    pub fn renew(&mut self) {
        let inner = self.lending.inner();
        self.lease = self.lending.lease.load(Ordering::Acquire);
        self.cache.set_pool(inner.running.as_ref().map(|(pool, _)| pool.clone()));
    }

    /// Takes up to `want` buffers, in the order in which they were lent: those that came back unused first, new ones
    /// from the lender only if there are none.
    #[inline]
    pub fn borrow(&mut self, want: usize) -> impl ExactSizeIterator<Item = Buffer> {
        self.cache.take(want, |loans| self.lending.lender.lend(loans))
    }

    /// Whether there is a lease, so that buffers may be lent.
    #[inline]
    pub fn has_lease(&self) -> bool {
        self.cache.has_pool()
    }

    /// Whether a packet's buffer was lent in the current lease.
    #[inline]
    pub fn is_lent(&self, packet: &Packet) -> bool {
        self.cache.is_lent(packet)
    }

    /// Counts buffers of its own that the queue used because too few were lent.
    pub fn count_host_buffers(&self, buffers: usize) {
        self.lending.host_buffers.fetch_add(buffers as u64, Ordering::Relaxed);
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        self.cache.set_pool(None);
        let mut inner = self.lending.inner();
        let device = inner.device.take();
        inner.departed.extend(device);
        inner.revoke_departed();
    }
}
