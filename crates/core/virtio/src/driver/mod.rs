//! The driver's side of virtqueues. The device is not trusted: what it writes is read once and checked against
//! what was posted. Once the device has broken the rules, its queue stays [`Broken`].

mod free_list;
mod packed;
mod pieces;
mod split;
mod vector;

use std::arch::x86_64::__m256i;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ringpass_memory::{Avx2, DmaRegion, Error, Four, Packet, Reclaimer};

use crate::layout::{MAX_SIZE, flags};

pub use packed::Packed;
pub use split::Split;

/// Configuration of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of descriptors: 1 to 32,768; a power of two for split rings.
    pub size: u16,
    /// Whether [`EVENT_IDX`](crate::features::EVENT_IDX) was negotiated.
    pub event_idx: bool,
    /// Whether [`IN_ORDER`](crate::features::IN_ORDER) was negotiated. This requires indirect tables: with them
    /// each packet takes one descriptor, so that descriptors are always used in ring order.
    pub in_order: bool,
    /// Number of descriptors in an indirect table; 0 if [`INDIRECT_DESC`](crate::features::INDIRECT_DESC) was
    /// not negotiated.
    pub indirect: u16,
    /// Size in bytes of the header that takes a descriptor of its own in each packet, for legacy devices
    /// without [`ANY_LAYOUT`](crate::features::ANY_LAYOUT); 0 for none.
    pub header: u16,
}

impl Config {
    fn check(&self, split: bool) -> Result<(), Error> {
        let size = (1..=MAX_SIZE).contains(&self.size) && (!split || self.size.is_power_of_two());
        match (size, self.in_order && self.indirect == 0) {
            (false, _) => Err(Error::Config("a virtqueue has 1 to 32768 descriptors, if split a power of two")),
            (_, true) => Err(Error::Config("a virtqueue in order needs indirect tables")),
            _ => Ok(()),
        }
    }
}

/// Kind of access that the device has to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// The device reads it.
    Read,
    /// The device writes it.
    Write,
}

impl DeviceAccess {
    fn flags(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => flags::WRITE,
        }
    }
}

/// Addresses of a queue, as the device uses them. The transport passes them to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Descriptor table, or packed ring.
    pub descriptors: u64,
    /// Driver area: the available ring, or the driver's event suppression.
    pub driver: u64,
    /// Device area: the used ring, or the device's event suppression.
    pub device: u64,
}

/// Violation of the rules by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The device returned a descriptor that it did not have, or had returned already.
    #[error("the device gave back descriptor {0}, which it did not have")]
    NotPosted(u32),
    /// The device returned more packets than it had.
    #[error("the device gave back {0} packets at once, more than it had")]
    IndexJump(u16),
}

/// Treatment of the packets that a dead device has not returned, when another device takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InflightPolicy {
    /// Make them available again. The next device repeats work that the dead one may have done in part.
    Resubmit,
    /// Leave the ring as it is. The next device knows from its inflight region which packets are in flight, and
    /// what was done to them.
    Tracked,
}

/// Result of handing a queue over to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// Position at which that device must continue, after what the dead one returned. Split: the next available
    /// index. Packed: the next available slot with its wrap counter in bit 15, and the same for used slots in
    /// the upper 16 bits.
    pub base: u32,
    /// Number of packets that the dead device returned and that were not taken yet.
    pub untaken: usize,
}

/// Calls `each` with the numbers from 0 up to but excluding `n`, until it returns `false`. Returns the number
/// of calls that returned `true`.
///
/// An iteration makes four calls, so that these share the instructions of the loop itself.
#[inline(always)]
fn by_fours(n: usize, mut each: impl FnMut(usize) -> bool) -> usize {
    let mut done = 0;
    while n - done >= 4 {
        for _ in 0..4 {
            if !each(done) {
                return done;
            }
            done += 1;
        }
    }
    while done < n && each(done) {
        done += 1;
    }
    done
}

/// Implements [`Virtqueue::post_each`] for a queue in which packets may take any descriptors, or several.
#[inline(always)]
fn post_one_by_one<Q: Virtqueue>(
    queue: &mut Q,
    config: Config,
    access: DeviceAccess,
    most: usize,
    mut next: impl FnMut(usize) -> Option<Packet>,
) -> usize {
    let needed = if config.header > 0 && config.indirect < 2 { 2 } else { 1 };
    let mut posted = 0;
    while posted < most
        && queue.room() >= needed
        && let Some(packet) = next(posted)
    {
        // There is room for it. Only one that can never be posted is dropped: it is empty, or its table is too
        // small.
        if queue.post_chain(access, packet).is_err() {
            break;
        }
        posted += 1;
    }
    posted
}

/// A packet that came back, still stored in its queue. Take it out by one of the methods; otherwise it is lost.
#[must_use]
pub struct Used<'a>(&'a MaybeUninit<Packet>);

impl<'a> Used<'a> {
    /// Creates a view of a packet in its queue's storage.
    ///
    /// # Safety
    /// `place` must be initialised, and must not be read again until it is written.
    #[inline]
    unsafe fn new(place: &'a MaybeUninit<Packet>) -> Self {
        Self(place)
    }

    /// Returns the packet, without taking it out.
    #[inline]
    pub fn packet(&self) -> &Packet {
        // SAFETY: `place` is initialised, by the contract of `new`.
        unsafe { self.0.assume_init_ref() }
    }

    /// Takes the packet out as it was posted.
    #[inline]
    pub fn whole(self) -> Packet {
        // SAFETY: `place` is initialised and is not read again, by the contract of `new`. `self` is consumed,
        // so this is the only copy that is used.
        unsafe { self.0.assume_init_read() }
    }

    /// Takes the packet out, as the bytes from `front` to `end` of its buffer.
    ///
    /// # Safety
    /// It must have been posted as [`Cache::packets`](ringpass_memory::Cache::packets) made it; `front <= end`,
    /// and `end` must not exceed its pool's buffer size.
    #[inline]
    pub unsafe fn received(self, front: usize, end: usize) -> Packet {
        // SAFETY: `self` is consumed and `place` is not read again, by the contract of `new`, so the original
        // is neither used nor dropped. The packet's origin and the range are as required by this function's
        // contract.
        unsafe { self.packet().copy_received(front, end) }
    }
}

/// The driver's side of a queue. A device writes its packets (receive) or reads them (transmit).
///
/// A posted packet belongs to the queue until the device has used it. A queue that is dropped without
/// [`reclaim`](Self::reclaim) leaks its memory and its packets, because the device may still use them.
///
/// Each packet takes one descriptor. A packet of several pieces (segments, a separate header, a request with
/// its answer) takes one descriptor for each, or an indirect table of them.
///
/// # Safety
/// [`take`](Self::take) must call `each` at most `most` times, and must pass each posted packet at most once.
/// [`post_each`](Self::post_each) must call `next` with 0, 1, 2 and so on, below `most`.
pub unsafe trait Virtqueue: Send + Sized {
    /// Returns the memory that a queue needs, in bytes.
    fn bytes(config: &Config) -> usize;

    /// Creates a queue in zeroed memory that was mapped for the device: [`bytes`](Self::bytes) bytes from
    /// `offset` of the region. `offset` must be a multiple of 4096 and, with physical addresses, the memory
    /// must be inside one page.
    fn new(region: &Arc<DmaRegion>, offset: usize, config: &Config) -> Result<Self, Error>;

    /// Returns the addresses of the queue's parts.
    fn addresses(&self) -> Addresses;

    /// Returns the number of free descriptors.
    fn room(&self) -> usize;

    /// Returns the number of packets that the device has.
    fn posted(&self) -> usize;

    /// Posts up to `most` packets of one buffer each, until `next` returns `None` or no descriptor is free.
    /// Returns the number of packets posted. `next` is called with the number of packets posted so far.
    fn post_each(&mut self, access: DeviceAccess, most: usize, next: impl FnMut(usize) -> Option<Packet>) -> usize;

    /// Posts packets of one buffer each, four at a time: up to `most`, until `next` returns `None`. Stops at the ring's end, and
    /// where [`post_each`](Self::post_each) is needed, which goes on with the rest. Returns the number of packets posted.
    /// `next` is called with the number of packets posted so far.
    ///
    /// # Safety
    /// The packets that `next` returns are not chained, and only the queue owns them from then on. `next` does not panic.
    unsafe fn post_fours(
        &mut self,
        avx2: Avx2,
        access: DeviceAccess,
        most: usize,
        next: impl FnMut(usize) -> Option<Four>,
    ) -> usize;

    /// Posts packets of one buffer each, until the iterator ends or no descriptor is free. Returns the number
    /// of packets posted.
    #[inline(always)]
    fn post_run(&mut self, access: DeviceAccess, mut packets: impl Iterator<Item = Packet>) -> usize {
        self.post_each(access, usize::MAX, |_| packets.next())
    }

    /// Posts a packet of any number of segments. Returns it in `Err` if there is no room for it now. There is
    /// never room for a packet of more pieces than the queue has descriptors or, in order, than its tables
    /// have.
    fn post_chain(&mut self, access: DeviceAccess, packet: Packet) -> Result<(), Packet>;

    /// Posts a request with its answer, a packet of one buffer: the device writes the last `written` bytes and
    /// reads the others. Returns it in `Err` if there is no room for it now.
    fn post_request(&mut self, packet: Packet, written: usize) -> Result<(), Packet>;

    /// Makes everything posted since the last call visible to the device. Returns `Some` if the device must be
    /// notified, with the position in the ring that a notification with
    /// [`NOTIFICATION_DATA`](crate::features::NOTIFICATION_DATA) carries.
    fn publish(&mut self) -> Option<u16>;

    /// Takes up to `most` packets that the device has used, and passes each to `each` with the number of bytes
    /// that the device reports to have written. That number is not checked, and means nothing for packets that
    /// the device reads. Returns the number of packets taken. If the device reports a batch by its last packet
    /// only ([`IN_ORDER`](crate::features::IN_ORDER)), the others are passed with their whole length.
    fn take(&mut self, most: usize, each: impl FnMut(Used<'_>, u32)) -> Result<usize, Broken>;

    /// Takes up to `most` packets that the device has used in order, four at a time, until `each` returns `false`. It gets the
    /// packets and, in the order 0, 2, 1, 3, the numbers of bytes that the device reports to have written. Stops at the
    /// ring's end, and where [`take`](Self::take) is needed, which goes on with the rest and finds out what is wrong.
    /// Returns the number of packets for which `each` returned `true`.
    ///
    /// # Safety
    /// If `each` returns `true`, it has moved the packets out, by copying; otherwise it has not. It does not panic.
    unsafe fn take_fours(&mut self, avx2: Avx2, most: usize, each: impl FnMut(&[Packet; 4], __m256i) -> bool) -> usize;

    /// Takes all used packets and returns their buffers to their pools. Looks at four at a time, if there is proof that
    /// the processor can. Returns the number of packets.
    fn reclaim_used(&mut self, vector: Option<Avx2>, to: &mut Reclaimer) -> Result<usize, Broken>;

    /// Enables an interrupt for the next packet that the device uses. Packets used before do not interrupt, so
    /// poll once more afterwards.
    fn arm(&mut self);

    /// Disables interrupts. This is the initial state.
    fn disarm(&mut self);

    /// Hands the queue over to another device, in place of one that has died.
    fn hand_over(&mut self, access: DeviceAccess, rest: InflightPolicy) -> Result<HandedOver, Broken>;

    /// Drops the packets that the device has. The queue must not be used afterwards.
    ///
    /// # Safety
    /// The device must not use the queue any more: the device or the queue was reset.
    unsafe fn reclaim(&mut self);
}
