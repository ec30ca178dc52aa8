//! Copying between packets and memory that others may write at any time.

/// Copies `len` bytes. Short copies, the common case, need no call. Where source and destination overlap, as
/// they may if a buffer is lent twice, the destination holds bytes of either.
///
/// # Safety
/// `len` bytes from `from` are readable, and `len` bytes from `to` are writable. Nobody holds a `&mut`
/// reference to either.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    type Line = [u8; 16];
    // SAFETY: `len` bytes are accessible on both sides, by this function's contract, and all accesses below end
    // at `len` at most. Accesses that overlap write the same bytes twice; if somebody changes the source in
    // between, either value, as any copy of shared memory may.
    unsafe {
        let line = |offset: usize| {
            let bytes = from.add(offset).cast::<Line>().read_unaligned();
            to.add(offset).cast::<Line>().write_unaligned(bytes);
        };
        if len.wrapping_sub(32) <= 32 {
            line(0);
            line(16);
            line(len - 32);
            line(len - 16);
        } else if len.wrapping_sub(64) <= 64 {
            line(0);
            line(16);
            line(32);
            line(48);
            line(len - 64);
            line(len - 48);
            line(len - 32);
            line(len - 16);
        } else {
            std::ptr::copy(from, to, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_are_copied() {
        let from: Vec<u8> = (0..400).map(|i| i as u8 ^ 0x5a).collect();
        for len in 0..300 {
            let mut to = vec![0; 400];
            // SAFETY: both have 400 bytes, and `len` is below 300.
            unsafe { copy(from[3..].as_ptr(), to[5..].as_mut_ptr(), len) };
            assert_eq!(to[5..5 + len], from[3..3 + len]);
            assert!(to[..5].iter().chain(&to[5 + len..]).all(|&byte| byte == 0), "{len}");
        }
    }
}
