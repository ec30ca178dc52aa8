//! The loops that take chains of one descriptor each, four at a time with AVX2. Each does what the portable loop does, as long as whole
//! groups of four are in order and need nothing else; the portable loop goes on with the rest.

use std::arch::x86_64::*;
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicU16, Ordering, fence};

use ringpass_memory::{Avx2, read_descriptors, read_numbers};

use super::chains::RawDescriptor;
use super::memory::RegionCache;
use super::{Chain, Piece};

// A chain's layout, 8 bytes each: id and number of descriptors, address of the first piece, its length, no more pieces.
const _: () = assert!(size_of::<Chain>() == 32 && offset_of!(Chain, id) == 0 && offset_of!(Chain, descriptors) == 2);
const _: () = assert!(offset_of!(Chain, first) == 8 && offset_of!(Chain, more) == 24 && size_of::<(u32, u32)>() == 8);
const _: () = assert!(offset_of!(Piece, start) == 0 && offset_of!(Piece, len) == 8 && size_of::<Piece>() == 16);

/// Checks of descriptors, and places for the chains.
pub(super) struct Taking<'a, P> {
    /// The flags that each descriptor must have.
    pub(super) flags: u16,
    /// Set for chains that the device has, by their ids.
    pub(super) marks: &'a mut [u8],
    pub(super) region: RegionCache,
    pub(super) places: &'a mut [MaybeUninit<Chain>],
    /// Prefetches the frame at an address.
    pub(super) prefetch: P,
}

/// Takes chains of a split ring whose ids grow by 1. Returns their number, a multiple of 4.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn take_split<P: Fn(*const u8)>(
    _: Avx2,
    available: &[AtomicU16],
    descriptors: &[RawDescriptor],
    to: Taking<P>,
) -> usize {
    let flags = u64::from(to.flags) << 32;
    let flags = Check { first: flags, step: 0, mask: 0xffff << 32 };
    let mut taken = 0;
    for (available, places) in available.as_chunks::<4>().0.iter().zip(to.places.as_chunks_mut::<4>().0) {
        let numbers = read_numbers(available);
        let id = usize::from(numbers as u16);
        let Some(marks) = to.marks.get_mut(id..).and_then(|marks| marks.first_chunk_mut::<4>()) else { break };
        let Some(descriptors) = descriptors.get(id..).and_then(|rest| rest.first_chunk::<4>()) else { break };
        // Four times the id, with 0, 1, 2 and 3 added; none of these overflows, as all four are ids.
        if numbers != id as u64 * 0x1_0001_0001_0001 + 0x3_0002_0001_0000 {
            break;
        }
        let [low, high] = read_descriptors(descriptors);
        let words = _mm256_unpackhi_epi64(low, high);
        if !take(id as u16, _mm256_unpacklo_epi64(low, high), words, flags, marks, &to.region, places) {
            break;
        }
        places.iter().for_each(|place| (to.prefetch)(start(place)));
        taken += 4;
    }
    taken
}

/// Takes chains of a packed ring whose ids grow by 1. Returns their number, a multiple of 4.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn take_packed<P: Fn(*const u8)>(_: Avx2, ring: &[RawDescriptor], to: Taking<P>) -> usize {
    let mut taken = 0;
    for (descriptors, places) in ring.as_chunks::<4>().0.iter().zip(to.places.as_chunks_mut::<4>().0) {
        let [low, high] = read_descriptors(descriptors);
        let words = _mm256_unpackhi_epi64(low, high);
        let id = (_mm_cvtsi128_si64(_mm256_castsi256_si128(words)) >> 32) as u16;
        let first = u64::from(id) << 32 | u64::from(to.flags) << 48;
        let check = Check { first, step: 1 << 32, mask: 0xffff_ffff << 32 };
        let Some(marks) = to.marks.get_mut(id.into()..).and_then(|marks| marks.first_chunk_mut::<4>()) else { break };
        if !take(id, _mm256_unpacklo_epi64(low, high), words, check, marks, &to.region, places) {
            break;
        }
        places.iter().for_each(|place| (to.prefetch)(start(place)));
        taken += 4;
    }
    taken
}

/// Returns the address of a chain's first piece, which `take` has written.
#[inline(always)]
fn start(place: &MaybeUninit<Chain>) -> *const u8 {
    // SAFETY: `take_split` and `take_packed` call this for places only that `take` has written.
    unsafe { place.assume_init_ref() }.first.start.as_ptr()
}

/// The value that descriptors' second words must have where `mask` is set: `first`, and `step` more for each further one.
#[derive(Clone, Copy)]
struct Check {
    first: u64,
    step: u64,
    mask: u64,
}

/// Takes four chains whose ids are `id` and those after it, of descriptors in the order 0, 2, 1, 3. Returns `false`, and takes none, unless the
/// device has none of them, and all four pass the check and lie in the region.
#[inline]
#[target_feature(enable = "avx2")]
fn take(
    id: u16,
    addresses: __m256i,
    words: __m256i,
    check: Check,
    marks: &mut [u8; 4],
    region: &RegionCache,
    places: &mut [MaybeUninit<Chain>; 4],
) -> bool {
    // Orders the reads of the flags before those of the frames, as the `Acquire` of the portable loop.
    fence(Ordering::Acquire);
    let expected = four(check.first, check.step);
    let wrong = _mm256_and_si256(_mm256_xor_si256(words, expected), _mm256_set1_epi64x(check.mask as i64));
    let lengths = _mm256_and_si256(words, _mm256_set1_epi64x(0xffff_ffff));
    let (starts, outside) = region.at_four(addresses, lengths);
    let wrong = _mm256_or_si256(wrong, outside);
    if _mm256_testz_si256(wrong, wrong) == 0 || *marks != [0; 4] {
        return false;
    }
    *marks = [1; 4];
    let ids = four(u64::from(id) | 1 << 16, 1);
    let (heads, tails) = (_mm256_unpacklo_epi64(ids, starts), _mm256_unpackhi_epi64(ids, starts));
    let none = _mm256_setzero_si256();
    let (lens, ends) = (_mm256_unpacklo_epi64(lengths, none), _mm256_unpackhi_epi64(lengths, none));
    let chains = [
        _mm256_permute2x128_si256::<0x20>(heads, lens),
        _mm256_permute2x128_si256::<0x31>(heads, lens),
        _mm256_permute2x128_si256::<0x20>(tails, ends),
        _mm256_permute2x128_si256::<0x31>(tails, ends),
    ];
    for (place, chain) in places.iter_mut().zip(chains) {
        // SAFETY: a place is one register long, and the register holds a chain's fields, as asserted above. The address is inside a
        // mapping, so it is not 0.
        unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), chain) };
    }
    true
}

/// Returns four numbers that grow by `step`, in the order 0, 2, 1, 3, which the unpack instructions make of two registers with two
/// descriptors each.
#[inline]
#[target_feature(enable = "avx2")]
fn four(first: u64, step: u64) -> __m256i {
    let number = |at: u64| (step * at) as i64;
    let steps = _mm256_set_epi64x(number(3), number(1), number(2), number(0));
    _mm256_add_epi64(_mm256_set1_epi64x(first as i64), steps)
}
