//! What lies in the memory (netmap API 14), on little-endian machines of 64 bits: three pools, of interface descriptors, of
//! rings and of buffers. All references in it are relative, so that every process maps it where it likes.
//!
//! All fields are atomics: each is shared with a process that may write it at any time. Offsets are in bytes.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The version of the interface, and the oldest and newest that are accepted.
pub const API: u16 = 14;
/// See [`API`].
pub const API_RANGE: std::ops::RangeInclusive<u16> = 14..=15;

/// An interface descriptor. Behind it, offsets from the descriptor to each ring ([`RING_OFFSETS`]), as signed numbers of
/// 64 bits: Tx rings, host Tx rings, Rx rings, host Rx rings.
#[repr(C)]
pub struct Interface {
    /// Its name, with zeros behind.
    pub name: [AtomicU8; 16],
    /// [`API`].
    pub version: AtomicU32,
    /// [`PRIVATE`].
    pub flags: AtomicU32,
    /// Tx rings, without those of the host.
    pub tx_rings: AtomicU32,
    /// Rx rings, likewise.
    pub rx_rings: AtomicU32,
    /// The first of the extra buffers, each of which begins with the index of the next; 0 ends the list.
    pub extra_buffers: AtomicU32,
    /// Rings of the host's stack, of which there is at least one each.
    pub host_tx_rings: AtomicU32,
    /// See `host_tx_rings`.
    pub host_rx_rings: AtomicU32,
    spare: [AtomicU32; 3],
}

/// One of those offsets.
#[repr(transparent)]
pub struct RingOffset(pub AtomicU64);

/// In [`Interface::flags`]: the memory is no other port's.
pub const PRIVATE: u32 = 1;
/// Where the offsets of rings begin in a descriptor.
pub const RING_OFFSETS: usize = size_of::<Interface>();

/// The start of a ring; its slots follow.
#[repr(C)]
pub struct RingHeader {
    /// From here to the buffer with index 0: a signed number.
    pub buffers: AtomicU64,
    /// Slots.
    pub slots: AtomicU32,
    /// Bytes of a buffer.
    pub buffer_size: AtomicU32,
    /// Its number among those of its direction.
    pub id: AtomicU16,
    /// 0 to send, 1 to receive.
    pub direction: AtomicU16,
    /// The application's: its slots are those from here to `tail`.
    pub head: AtomicU32,
    /// The application's: wake me when `tail` is beyond this.
    pub cur: AtomicU32,
    /// The first slot that is not the application's.
    pub tail: AtomicU32,
    /// The application's: [`TIMESTAMP`], [`FORWARD`].
    pub flags: AtomicU32,
    spare: AtomicU32,
    /// When the ring was last synchronised: seconds, microseconds.
    pub time: [AtomicU64; 2],
    /// Of the bits of a slot's pointer that are an offset.
    pub offset_mask: AtomicU64,
    /// Of buffers.
    pub alignment: AtomicU64,
    opaque: [AtomicU64; 23],
}

/// In [`RingHeader::flags`]: keep `time`.
pub const TIMESTAMP: u32 = 2;
/// Likewise: slots with [`Flags::FORWARD`](crate::Flags::FORWARD) go on to the other side.
pub const FORWARD: u32 = 4;

/// A slot: index of the buffer (32 bits), bytes of the frame (16), flags (16); then a pointer or offset.
pub type SlotWords = [AtomicU64; 2];

/// Buffers that belong to nobody: 0 stands for none.
pub const RESERVED_BUFFERS: u32 = 2;

const _: () = {
    assert!(offset_of!(Interface, version) == 16 && offset_of!(Interface, flags) == 20);
    assert!(offset_of!(Interface, tx_rings) == 24 && offset_of!(Interface, rx_rings) == 28);
    assert!(offset_of!(Interface, extra_buffers) == 32 && offset_of!(Interface, host_tx_rings) == 36);
    assert!(offset_of!(Interface, host_rx_rings) == 40 && offset_of!(Interface, spare) == 44 && RING_OFFSETS == 56);
    assert!(offset_of!(RingHeader, buffers) == 0 && offset_of!(RingHeader, slots) == 8);
    assert!(offset_of!(RingHeader, buffer_size) == 12 && offset_of!(RingHeader, id) == 16);
    assert!(offset_of!(RingHeader, direction) == 18 && offset_of!(RingHeader, head) == 20);
    assert!(offset_of!(RingHeader, cur) == 24 && offset_of!(RingHeader, tail) == 28);
    assert!(offset_of!(RingHeader, flags) == 32 && offset_of!(RingHeader, time) == 40);
    assert!(offset_of!(RingHeader, offset_mask) == 56 && offset_of!(RingHeader, alignment) == 64);
    assert!(size_of::<RingHeader>() == 256 && size_of::<SlotWords>() == 16);
};
