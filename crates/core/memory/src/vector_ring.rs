//! Accesses of AVX2 to four items of a ring that is shared with a device.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Reads four descriptors once, two to a register. Their words are each read as a whole, as an aligned 16-byte part of a
/// register is where AVX is (Intel SDM volume 3, 9.1.1; AMD64 APM volume 2, 7.3.2).
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub fn read_descriptors(descriptors: &[[AtomicU64; 2]; 4]) -> [__m256i; 2] {
    let (low, high);
    // SAFETY: two registers are four descriptors long. Assembly, because the device may write them at the same time: the
    // compiler neither splits nor repeats this access.
    unsafe {
        asm!("vmovdqu {low}, [{at}]", "vmovdqu {high}, [{at} + 32]", at = in(reg) descriptors, low = out(ymm_reg) low,
            high = out(ymm_reg) high, options(readonly, nostack, preserves_flags));
    }
    [low, high]
}

/// Writes four descriptors, two from a register.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub fn write_descriptors(descriptors: &[[AtomicU64; 2]; 4], [low, high]: [__m256i; 2]) {
    let pairs = descriptors.as_ptr().cast::<__m256i>().cast_mut();
    // SAFETY: two registers are four descriptors long. These consist of atomics, so they may change behind a shared reference.
    unsafe {
        _mm256_storeu_si256(pairs, low);
        _mm256_storeu_si256(pairs.add(1), high);
    }
}

/// Reads four numbers once, the first into the lowest 16 bits.
#[inline]
pub fn read_numbers(numbers: &[AtomicU16; 4]) -> u64 {
    let read;
    // SAFETY: the register is four numbers long. Assembly, because the device may write them at the same time: the compiler
    // neither splits nor repeats this access.
    unsafe {
        asm!("mov {read}, [{at}]", at = in(reg) numbers, read = out(reg) read,
            options(readonly, nostack, preserves_flags));
    }
    read
}

/// Reads four pairs of numbers once. Which of them belong together is for the caller to know: the device may write them
/// at the same time.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub fn read_pairs(pairs: &[[AtomicU32; 2]; 4]) -> __m256i {
    let read;
    // SAFETY: a register is four pairs long. Assembly, because the device may write them at the same time: the compiler
    // neither splits nor repeats this access.
    unsafe {
        asm!("vmovdqu {read}, [{at}]", at = in(reg) pairs, read = out(ymm_reg) read,
            options(readonly, nostack, preserves_flags));
    }
    read
}
