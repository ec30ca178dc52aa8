//! How the card reports sent frames: in every 32nd descriptor, or by writing its head to memory (head write-back,
//! 7.2.3.5.2).

use std::sync::atomic::{AtomicU32, Ordering};

use ringpass_memory::DmaArray;
use ringpass_pci::registers::ixgbe::bits::TDWBAL_HEAD_WB_EN;
use ringpass_pci::registers::{DMA, Reg, Window};

use crate::ring::Ring;

/// Interval, in descriptors, at which the card is asked to report completion (RS); buffers are reclaimed in
/// groups of this size (7.2.3.5.1).
pub(crate) const RS_INTERVAL: usize = 32;

/// Memory where the card writes the head of a Tx ring; in the same region as the ring.
pub(crate) struct HeadWriteBack(DmaArray<AtomicU32>);

impl HeadWriteBack {
    /// Enables head write-back for a stopped queue. `registers` are those for the address (low, high half).
    ///
    /// # Safety
    /// The registers are those for the write-back address. The memory is mapped for the card, and its region is
    /// kept until the queue has stopped.
    pub(crate) unsafe fn start(window: &Window, registers: [Reg<DMA>; 2], memory: DmaArray<AtomicU32>) -> Self {
        let address = memory.iova() | u64::from(TDWBAL_HEAD_WB_EN);
        // SAFETY: the memory is mapped for the card and kept until the queue has stopped, by this function's
        // contract.
        unsafe { window.write_dma(registers, address) };
        Self(memory)
    }

    /// Returns whether the card has finished the oldest [`RS_INTERVAL`] descriptors.
    pub(crate) fn sent(&self, ring: &Ring) -> bool {
        let head = self.0[0].load(Ordering::Acquire) as usize;
        (RS_INTERVAL..=ring.posted()).contains(&ring.index(head.wrapping_sub(ring.head)))
    }
}
