//! Head write-back (7.2.3.5.2): the card reports sent frames by writing its head to memory, not in descriptors.

use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::DmaArray;
use ringpass_registers::ixgbe::bits::TDWBAL_HEAD_WB_EN;
use ringpass_registers::{DMA, Reg, Window};

use crate::ring::Ring;

/// Where the card writes the head of a Tx ring, in the same region as the ring.
pub struct WrittenHead(DmaArray<AtomicU32>);

impl WrittenHead {
    /// Has the card write the head of a queue that stands still. Takes the registers for the address (low, high).
    ///
    /// # Safety
    /// The registers are for that; the memory is mapped for the card, and its region is kept until the queue has stopped.
    pub unsafe fn start(window: &Window, registers: [Reg<DMA>; 2], memory: DmaArray<AtomicU32>) -> Self {
        let address = memory.iova() | u64::from(TDWBAL_HEAD_WB_EN);
        // SAFETY: as the caller promises.
        unsafe { window.write_dma(registers, address) };
        Self(memory)
    }

    /// Whether the card is done with the oldest `n` descriptors.
    pub(crate) fn sent(&self, ring: &Ring, n: usize) -> bool {
        let head = self.0[0].load(Ordering::Acquire) as usize;
        (n..=ring.posted()).contains(&ring.index(head.wrapping_sub(ring.head)))
    }
}
