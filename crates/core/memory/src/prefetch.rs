//! Prefetches cache lines. Moving a line between two processors takes longer than all work on a packet, so many
//! transfers must be in flight at a time.

use crate::Access;

/// Prefetches a cache line; with [`Access::ReadWrite`], for exclusive use by this processor.
#[inline(always)]
pub fn prefetch<T>(line: *const T, access: Access) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
    // SAFETY: prefetches are hints without architectural effect, whatever the address. Processors without
    // `prefetchw` treat it as no operation.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        match access {
            Access::Read => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
            Access::ReadWrite => {
                std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, nomem))
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (line, access);
}
