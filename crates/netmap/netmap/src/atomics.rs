//! Types of the layout that several processes may access concurrently.

use ringpass_memory::Atomics;

use crate::layout::{Interface, RingHeader};

// SAFETY: sixteen `AtomicU8` and ten `AtomicU32`, 56 bytes without padding: `layout` asserts the offsets and
// the size (`RING_OFFSETS`).
unsafe impl Atomics for Interface {}
// SAFETY: sixteen `AtomicU32`, without padding: `csb` asserts the size of 64 bytes.
#[cfg(not(loom))]
unsafe impl Atomics for crate::csb::CsbAtok {}
// SAFETY: sixteen `AtomicU32`, without padding: `csb` asserts the size of 64 bytes.
#[cfg(not(loom))]
unsafe impl Atomics for crate::csb::CsbKtoa {}
// SAFETY: two `AtomicU32` and seven `AtomicU64`, 64 bytes without padding, which `ring_lock` asserts as the size.
unsafe impl Atomics for crate::ring_lock::SharedRing {}
// SAFETY: atomic integers that add up to 256 bytes, which `layout` asserts as the size, so there is no padding.
unsafe impl Atomics for RingHeader {}
