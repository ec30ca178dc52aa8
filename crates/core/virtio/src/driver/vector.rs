//! The loops over rings four items at a time, with AVX2. Each does what the portable loop does, as long as whole groups of
//! four need nothing else; the portable loop goes on with the rest.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ringpass_memory::{Avx2, Four, Packet, read_descriptors, read_pairs, write_descriptors};

use super::pieces::Descriptor;

/// The words of descriptors next to each other, besides lengths.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The first descriptor's word.
    pub(super) first: u64,
    /// Difference of each to the one before.
    pub(super) step: u64,
}

impl Words {
    /// Returns the words of the first four descriptors, in the order 0, 2, 1, 3.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn four(self) -> __m256i {
        let word = |at: u64| self.first.wrapping_add(self.step * at) as i64;
        _mm256_set_epi64x(word(3), word(1), word(2), word(0))
    }

    /// Returns what a word has more than the one four descriptors before.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn stride(self) -> __m256i {
        _mm256_set1_epi64x(4 * self.step as i64)
    }
}

/// Makes packets of one buffer each available, until `next`, which is called with their number so far, returns `None`.
/// Returns that number. The first descriptor's second word is written last, after all others.
///
/// # Safety
/// Only the places own the packets that `next` returns.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn post(
    _: Avx2,
    words: Words,
    descriptors: &[Descriptor],
    places: &mut [MaybeUninit<Packet>],
    mut next: impl FnMut(usize) -> Option<Four>,
) -> usize {
    let (mut four_words, stride) = (words.four(), words.stride());
    // Without flags, a descriptor of a packed ring is not available.
    let mut shown = _mm256_set_epi64x(-1, -1, 0, -1);
    let mut first = 0;
    let mut posted = 0;
    for (descriptors, places) in descriptors.as_chunks::<4>().0.iter().zip(places.as_chunks_mut::<4>().0) {
        let Some(four) = next(posted) else { break };
        // SAFETY: only the places own the packets, by this function's contract.
        unsafe { four.write(places) };
        // SAFETY: the places have just been written, and `MaybeUninit<Packet>` has the layout of `Packet`.
        let packets = unsafe { &*(&raw const *places).cast::<[Packet; 4]>() };
        let (addresses, words) = (four.iovas(packets), _mm256_add_epi64(four_words, four.lengths()));
        if posted == 0 {
            first = _mm256_extract_epi64::<0>(words) as u64;
        }
        let low = _mm256_and_si256(_mm256_unpacklo_epi64(addresses, words), shown);
        write_descriptors(descriptors, [low, _mm256_unpackhi_epi64(addresses, words)]);
        four_words = _mm256_add_epi64(four_words, stride);
        shown = _mm256_set1_epi64x(-1);
        posted += 4;
    }
    if posted > 0 {
        descriptors[0][1].store(first, Ordering::Release);
    }
    posted
}

/// Takes packets of a split ring that were used in order, whose numbers are `start` and those after it. Passes each four to
/// `each`, with the bytes written to them, until it returns `false`. Returns how many were passed before.
///
/// # Safety
/// The packets are initialised, and the device has published all of these entries.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn used_entries(
    _: Avx2,
    start: u32,
    entries: &[[AtomicU32; 2]],
    packets: &[MaybeUninit<Packet>],
    mut each: impl FnMut(&[Packet; 4], __m256i) -> bool,
) -> usize {
    let number = |at: u32| i64::from(start + at);
    let mut expected = _mm256_set_epi64x(number(3), number(2), number(1), number(0));
    let mut taken = 0;
    for (entries, packets) in entries.as_chunks::<4>().0.iter().zip(packets.as_chunks::<4>().0) {
        let read = read_pairs(entries);
        let wrong = _mm256_blend_epi32::<0b1010_1010>(_mm256_xor_si256(read, expected), _mm256_setzero_si256());
        if _mm256_testz_si256(wrong, wrong) == 0 {
            break;
        }
        // In the order 0, 2, 1, 3.
        let written = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_srli_epi64::<32>(read));
        // SAFETY: the packets are initialised, by this function's contract, and `MaybeUninit<Packet>` has the layout of
        // `Packet`.
        let packets = unsafe { &*(&raw const *packets).cast::<[Packet; 4]>() };
        if !each(packets, written) {
            break;
        }
        expected = _mm256_add_epi64(expected, _mm256_set1_epi64x(4));
        taken += 4;
    }
    taken
}

/// Takes packets of a packed ring that were used in order. Passes each four to `each`, with the bytes written to them, until
/// it returns `false`. Returns how many were passed before.
///
/// The upper half of the first descriptor's second word must be `start` where `mask` is set, and that of each further one be
/// 1 more.
///
/// # Safety
/// The packets are initialised.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn used_descriptors(
    _: Avx2,
    [start, mask]: [u32; 2],
    descriptors: &[Descriptor],
    packets: &[MaybeUninit<Packet>],
    mut each: impl FnMut(&[Packet; 4], __m256i) -> bool,
) -> usize {
    let words = Words { first: u64::from(start) << 32, step: 1 << 32 };
    let (mut expected, stride) = (words.four(), words.stride());
    let mask = _mm256_set1_epi64x((u64::from(mask) << 32) as i64);
    let mut taken = 0;
    for (descriptors, packets) in descriptors.as_chunks::<4>().0.iter().zip(packets.as_chunks::<4>().0) {
        let [low, high] = read_descriptors(descriptors);
        let words = _mm256_unpackhi_epi64(low, high);
        let wrong = _mm256_xor_si256(_mm256_and_si256(words, mask), expected);
        if _mm256_testz_si256(wrong, wrong) == 0 {
            break;
        }
        // Orders the reads of the flags before those of the frames, as the `Acquire` of the portable loop.
        fence(Ordering::Acquire);
        let written = _mm256_and_si256(words, _mm256_set1_epi64x(0xffff_ffff));
        // SAFETY: the packets are initialised, by this function's contract, and `MaybeUninit<Packet>` has the layout of
        // `Packet`.
        let packets = unsafe { &*(&raw const *packets).cast::<[Packet; 4]>() };
        if !each(packets, written) {
            break;
        }
        expected = _mm256_add_epi64(expected, stride);
        taken += 4;
    }
    taken
}
