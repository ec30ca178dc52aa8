//! Head write-back (7.2.3.5.2).

use std::sync::atomic::AtomicU32;

use ringpass_intel::WrittenHead;
use ringpass_memory::DmaArray;
use ringpass_registers::Window;
use ringpass_registers::ixgbe::{TDWBAH, TDWBAL};

/// Has the card write the head of Tx queue `q`, which stands still.
///
/// # Safety
/// The memory is mapped for the card; its region is kept until the queue has stopped.
pub(crate) unsafe fn start(window: &Window, q: usize, memory: DmaArray<AtomicU32>) -> WrittenHead {
    // SAFETY: as the caller promises; the registers are those for the address.
    unsafe { WrittenHead::start(window, [TDWBAL.at(q), TDWBAH.at(q)], memory) }
}
