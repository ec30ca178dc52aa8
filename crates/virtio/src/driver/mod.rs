//! The driver's side of virtqueues. The device is not trusted: what it writes is read once and checked against what was
//! posted, and a queue whose device broke the rules stays [`Broken`].

mod loose;
mod packed;
mod pieces;
mod split;

use std::mem::MaybeUninit;
use std::sync::Arc;

use ringpass_memory::{DmaRegion, Error, Packet, Reclaimer};

use crate::layout::{MAX_SIZE, flags};

pub use packed::Packed;
pub use split::Split;

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Descriptors: 1 to 32,768; for split rings a power of two.
    pub size: u16,
    /// [`EVENT_IDX`](crate::features::EVENT_IDX) was negotiated.
    pub event_idx: bool,
    /// [`IN_ORDER`](crate::features::IN_ORDER) was negotiated. Only with indirect tables: then each packet takes one
    /// descriptor, and these come in order by themselves.
    pub in_order: bool,
    /// Descriptors of an indirect table; 0 if [`INDIRECT_DESC`](crate::features::INDIRECT_DESC) was not negotiated.
    pub indirect: u16,
    /// The first so many bytes of each packet lie in a descriptor of their own (legacy devices without
    /// [`ANY_LAYOUT`](crate::features::ANY_LAYOUT)); 0 for none.
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

/// What the device does to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads it.
    Read,
    /// It writes it.
    Write,
}

impl Access {
    fn flags(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => flags::WRITE,
        }
    }
}

/// Where a queue lies, on the device's side: what the transport tells the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Descriptor table or ring.
    pub descriptors: u64,
    /// Driver area: available ring, or driver's event suppression.
    pub driver: u64,
    /// Device area: used ring, or device's event suppression.
    pub device: u64,
}

/// What a device did that devices may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It gave back what it had not, or had given back already.
    #[error("the device gave back descriptor {0}, which it did not have")]
    NotPosted(u32),
    /// It gave back more than it had.
    #[error("the device gave back {0} packets at once, more than it had")]
    Jump(u16),
}

/// What becomes of the packets that a dead device has not given back, when another takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreturned {
    /// They are made available anew. What the dead device was at work on is done again.
    Anew,
    /// The ring stays as it is: the next device has it noted which they are, and what was done to them.
    Noted,
}

/// A queue that was handed over to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// Where that one is to go on, behind what the dead one gave back: split, the next available index; packed, the next
    /// available slot with its wrap counter in bit 15, and in the upper half the same of the used ones.
    pub base: u32,
    /// Packets that the dead one gave back and that were not taken yet.
    pub untaken: usize,
}

/// A packet that came back, still where the queue kept it. It is taken out by one of the methods; otherwise it is lost.
#[must_use]
pub struct Used<'a>(&'a MaybeUninit<Packet>);

impl<'a> Used<'a> {
    /// # Safety
    /// The place is initialised, and is not looked at again until it is written.
    #[inline]
    unsafe fn new(place: &'a MaybeUninit<Packet>) -> Self {
        Self(place)
    }

    /// The packet, to look at.
    #[inline]
    pub fn packet(&self) -> &Packet {
        // SAFETY: initialised, said `new`.
        unsafe { self.0.assume_init_ref() }
    }

    /// As it was posted.
    #[inline]
    pub fn whole(self) -> Packet {
        // SAFETY: the only copy that is used, as `self` is gone.
        unsafe { self.0.assume_init_read() }
    }

    /// Its bytes from `front` to `end`.
    ///
    /// # Safety
    /// It was posted as [`Cache::packets`](ringpass_memory::Cache::packets) made it; `front <= end`, and `end` is at most
    /// its pool's buffer size.
    #[inline]
    pub unsafe fn received(self, front: usize, end: usize) -> Packet {
        // SAFETY: the only copy that is used, as `self` is gone; the rest says the caller.
        unsafe { self.packet().copy_received(front, end) }
    }
}

/// The driver's side of a queue, whose packets a device writes (received ones) or reads (those to be sent).
///
/// A packet that is posted belongs to the queue until the device has used it. Dropped without [`reclaim`](Self::reclaim),
/// a queue never gives its memory back, nor the packets, because the device may still use them.
///
/// Each packet takes one descriptor; one with several pieces (segments, a header apart, a request with its answer) takes
/// one for each, or an indirect table of them.
///
/// # Safety
/// [`take`](Self::take) calls no more often than it was asked to, and hands out each packet that was posted once.
pub unsafe trait Virtqueue: Send + Sized {
    /// Bytes of memory that a queue takes.
    fn bytes(config: &Config) -> usize;

    /// A queue in zeroed memory that was mapped for the device: `bytes` from `offset` of the region, which must be a
    /// multiple of 4096 and, with physical addresses, inside one page.
    fn new(region: &Arc<DmaRegion>, offset: usize, config: &Config) -> Result<Self, Error>;

    /// Where it lies.
    fn addresses(&self) -> Addresses;

    /// Descriptors that are free.
    fn room(&self) -> usize;

    /// Packets that the device has.
    fn posted(&self) -> usize;

    /// Posts packets of one buffer each, until the iterator ends or there is no room for another. Returns how many.
    fn post_run(&mut self, access: Access, packets: impl Iterator<Item = Packet>) -> usize;

    /// Posts a packet of any number of segments; `Err` with it if there is no room for it now. One of more pieces than
    /// the queue has descriptors, or in order than its tables have, never finds any.
    fn post_chain(&mut self, access: Access, packet: Packet) -> Result<(), Packet>;

    /// Posts a packet of one buffer, whose last `written` bytes the device writes and whose others it reads: a request
    /// with its answer. `Err` with it if there is no room for it now.
    fn post_request(&mut self, packet: Packet, written: usize) -> Result<(), Packet>;

    /// Shows the device what was posted since the last time. `Some` if it must be notified, with the position in the
    /// ring that a notification with [`NOTIFICATION_DATA`](crate::features::NOTIFICATION_DATA) carries.
    fn publish(&mut self) -> Option<u16>;

    /// Takes back up to `most` packets that the device has used, each with the bytes that it says it wrote: this is not
    /// checked, and means nothing for packets that it reads. Returns how many. Of a batch of which the device names only
    /// the last ([`IN_ORDER`](crate::features::IN_ORDER)), the others count as written whole.
    fn take(&mut self, most: usize, each: impl FnMut(Used<'_>, u32)) -> Result<usize, Broken>;

    /// As `take`, for all that was used, and gives the buffers back.
    fn take_back(&mut self, to: &mut Reclaimer) -> Result<usize, Broken>;

    /// Asks for an interrupt when the device uses the next packet. What it used before does not interrupt: look once
    /// more.
    fn arm(&mut self);

    /// Asks for no interrupts; so it is at first.
    fn disarm(&mut self);

    /// Hands the queue over to another device, in place of one that has died.
    fn hand_over(&mut self, access: Access, rest: Unreturned) -> Result<HandedOver, Broken>;

    /// Drops the packets that the device has. The queue is of no use any more.
    ///
    /// # Safety
    /// The device no longer uses the queue: it or the queue was reset.
    unsafe fn reclaim(&mut self);
}
