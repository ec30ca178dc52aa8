//! Layout of the shared memory (netmap API 14) on 64-bit little-endian machines.
//!
//! It consists of three pools: interface descriptors, rings and buffers. All references in it are relative, so
//! each process may map it at any address. All fields are atomics, because another process may write any of
//! them at any time. Offsets are in bytes.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Version of the interface.
pub const API: u16 = 14;
/// Oldest and newest accepted version of the interface.
pub const API_RANGE: std::ops::RangeInclusive<u16> = 14..=15;

/// An interface descriptor (`struct netmap_if`).
///
/// It is followed by the offsets from the descriptor to each ring ([`RING_OFFSETS`]), as signed 64-bit numbers:
/// Tx rings, host Tx rings, Rx rings, host Rx rings.
#[repr(C)]
pub struct Interface {
    /// Name of the interface, zero-padded.
    pub name: [AtomicU8; 16],
    /// Version of the interface: [`API`].
    pub version: AtomicU32,
    /// Flags: [`PRIVATE`].
    pub flags: AtomicU32,
    /// Number of Tx rings, without the host's.
    pub tx_rings: AtomicU32,
    /// Number of Rx rings, without the host's.
    pub rx_rings: AtomicU32,
    /// Index of the first extra buffer, or 0. Each extra buffer begins with the index of the next; 0 ends the
    /// list.
    pub extra_buffers: AtomicU32,
    /// Number of Tx rings of the host's stack, at least 1.
    pub host_tx_rings: AtomicU32,
    /// Number of Rx rings of the host's stack, at least 1.
    pub host_rx_rings: AtomicU32,
    spare: [AtomicU32; 3],
}

/// Flag in [`Interface::flags`]: no other port uses this memory.
pub const PRIVATE: u32 = 1;
/// Offset of a descriptor's first offset of a ring.
pub const RING_OFFSETS: usize = size_of::<Interface>();

/// Header of a ring (`struct netmap_ring`); its slots follow.
#[repr(C)]
pub struct RingHeader {
    /// Offset from this header to the buffer with index 0, signed.
    pub buffers: AtomicU64,
    /// Number of slots.
    pub slots: AtomicU32,
    /// Bytes of a buffer.
    pub buffer_size: AtomicU32,
    /// Number of the ring among those of its direction.
    pub id: AtomicU16,
    /// 0 for Tx, 1 for Rx.
    pub direction: AtomicU16,
    /// First slot of the application, which owns the slots from here up to `tail`. Written by the application.
    pub head: AtomicU32,
    /// Wake-up point: the application wants to be woken when `tail` moves beyond it. Written by the
    /// application.
    pub cur: AtomicU32,
    /// First slot that the application does not own. Written by the server.
    pub tail: AtomicU32,
    /// [`TIMESTAMP`], [`FORWARD`]. Written by the application.
    pub flags: AtomicU32,
    spare: AtomicU32,
    /// Time of the last synchronisation: seconds, microseconds.
    pub time: [AtomicU64; 2],
    /// Mask of the bits of a slot's pointer that are an offset into the buffer.
    pub offset_mask: AtomicU64,
    /// Alignment of buffers in bytes.
    pub alignment: AtomicU64,
    opaque: [AtomicU64; 23],
}

/// Flag in [`RingHeader::flags`]: asks the server to update `time`.
pub const TIMESTAMP: u32 = 2;
/// Flag in [`RingHeader::flags`]: slots with [`Flags::FORWARD`](crate::Flags::FORWARD) are forwarded to the
/// other side (host stack or card).
pub const FORWARD: u32 = 4;

/// A slot: index of the buffer (32 bits), bytes of the frame (16), flags (16); then a pointer or offset (64).
pub(crate) type SlotWords = [AtomicU64; 2];
/// Bytes of a slot.
pub const SLOT_BYTES: usize = size_of::<SlotWords>();

/// Number of reserved buffers at the start of the buffer pool, which are never assigned. Index 0 means "no
/// buffer".
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
    assert!(size_of::<RingHeader>() == 256 && SLOT_BYTES == 16);
};
