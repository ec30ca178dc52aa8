//! The driver's side of virtqueues. The device is not trusted: what it writes is read once and checked against what was
//! posted, and a queue whose device broke the rules stays [`Broken`].

mod packed;
mod split;

use std::sync::Arc;

use ringpass_memory::{DmaRegion, Error, Packet};

pub use packed::Packed;
pub use split::Split;

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Descriptors: 1 to 32,768; for split rings a power of two.
    pub size: u16,
    /// [`EVENT_IDX`](crate::features::EVENT_IDX) was negotiated.
    pub event_idx: bool,
    /// [`IN_ORDER`](crate::features::IN_ORDER) was negotiated.
    pub in_order: bool,
    /// Descriptors of an indirect table; 0 if [`INDIRECT_DESC`](crate::features::INDIRECT_DESC) was not negotiated.
    pub indirect: u16,
    /// The first so many bytes of each packet lie in a descriptor of their own (legacy devices without
    /// [`ANY_LAYOUT`](crate::features::ANY_LAYOUT)); 0 for none.
    pub header: u16,
}

/// Where a queue lies, on the device's side: what the transport tells the device.
#[derive(Clone, Copy, Debug)]
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
    /// It says that it wrote more than there was room for.
    #[error("the device says that it wrote {len} bytes to a buffer of {room}")]
    TooLong {
        /// What it says.
        len: u32,
        /// What there was.
        room: u32,
    },
    /// Its index moved by more than it had.
    #[error("the device gave back {0} buffers at once, more than it had")]
    Jump(u16),
}

/// The driver's side of a queue, whose packets a device writes (received ones) or reads (those to be sent).
///
/// A packet that is posted belongs to the queue until the device has used it. Dropped without [`reclaim`](Self::reclaim),
/// a queue never gives its memory back, nor the packets, because the device may still use them.
pub trait Virtqueue: Send + Sized {
    /// Bytes of memory that a queue takes.
    fn bytes(config: &Config) -> usize;

    /// A queue in zeroed memory that was mapped for the device: `bytes` from `offset` of the region, which must be a
    /// multiple of 4096 and, with physical addresses, inside one page.
    fn new(region: &Arc<DmaRegion>, offset: usize, config: &Config) -> Result<Self, Error>;

    /// Where it lies.
    fn addresses(&self) -> Addresses;

    /// Descriptors that are free. A packet takes one, or one for each of its segments and for its header apart; with
    /// indirect tables one in any case.
    fn room(&self) -> usize;

    /// Packets that the device has.
    fn posted(&self) -> usize;

    /// Posts packets of one buffer each for the device to write all of their bytes, until the iterator ends or there is
    /// no room. Returns how many.
    fn post_empty(&mut self, packets: impl Iterator<Item = Packet>) -> usize;

    /// Posts a packet for the device to read; `Err` with the packet if there is no room for it now.
    fn post(&mut self, packet: Packet) -> Result<(), Packet>;

    /// Posts a packet, of whose bytes the device reads those up to `written` from the end and writes these: a request
    /// with its answer. `Err` if there is no room for it now, which takes two descriptors.
    fn post_request(&mut self, packet: Packet, written: usize) -> Result<(), Packet>;

    /// Shows the device what was posted since the last time. `Some` if it must be notified, with what the upper half of
    /// a notification with [`NOTIFICATION_DATA`](crate::features::NOTIFICATION_DATA) holds.
    fn publish(&mut self) -> Option<u16>;

    /// Takes back up to `most` packets that the device has used, each with the bytes that it says it wrote (at most
    /// those that it could). Returns how many.
    fn take(&mut self, most: usize, each: impl FnMut(Packet, usize)) -> Result<usize, Broken>;

    /// Asks for an interrupt when the device uses the next packet. What it used before does not interrupt: look once
    /// more.
    fn arm(&mut self);

    /// Asks for no interrupts; so it is at first.
    fn disarm(&mut self);

    /// Drops the packets that the device has.
    ///
    /// # Safety
    /// The device no longer uses the queue: it or the queue was reset.
    unsafe fn reclaim(&mut self);
}
