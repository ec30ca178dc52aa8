//! Lines that are wanted soon. Between two processors a line takes longer than all work on a packet, so that many must be
//! under way at a time.

use super::Access;

/// Bytes of a line.
pub(super) const LINE: usize = 64;

/// Brings a line into the cache while other work goes on; with [`Access::Write`], for this processor alone.
#[inline(always)]
pub(super) fn prefetch<T>(line: *const T, access: Access) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
    // SAFETY: hints without architectural effect, whatever the address. Processors without `prefetchw` treat it as no
    // operation.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        match access {
            Access::Read => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
            Access::Write => {
                std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, nomem))
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (line, access);
}

/// The lines in which a frame begins: header, addresses, all of a short one.
#[inline(always)]
pub(super) fn prefetch_frame(start: *const u8, access: Access) {
    prefetch(start, access);
    prefetch(start.wrapping_add(LINE), access);
}
