//! The loops over descriptors four at a time, with AVX2. Each does what the portable loop of `rx` or `tx` does, as long as
//! whole groups of four need nothing else; the portable loop goes on with the rest.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};

use ringpass_memory::{Avx2, Buffer, Four, Packet, read_descriptors, write_descriptors};
use ringpass_pci::registers::ixgbe::descriptor::*;

use crate::frame::{ETHERNET_HEADER, Good, MIN_FRAME, SEND_WHOLE};
use crate::ring::Descriptor;

/// Takes good frames, four at a time. Returns how many packets it has written to `places`; their buffers must not be used
/// again.
///
/// # Safety
/// The buffers are initialised, and frames of up to `good.longest` bytes beyond an Ethernet header fit into them.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn take(
    _: Avx2,
    good: Good,
    descriptors: &[Descriptor],
    buffers: &[MaybeUninit<Buffer>],
    places: &mut [MaybeUninit<Packet>],
) -> usize {
    let mask = _mm256_set1_epi64x((RX_DD | RX_EOP | good.errors) as i64);
    let done = _mm256_set1_epi64x((RX_DD | RX_EOP) as i64);
    let (least, most) = (ETHERNET_HEADER as i64, (good.longest + ETHERNET_HEADER) as i64);
    let (least, most) = (_mm256_set1_epi64x(least), _mm256_set1_epi64x(most));
    let groups =
        descriptors.as_chunks::<4>().0.iter().zip(buffers.as_chunks::<4>().0).zip(places.as_chunks_mut::<4>().0);
    let mut taken = 0;
    for ((descriptors, buffers), places) in groups {
        let [low, high] = read_descriptors(descriptors);
        let status = _mm256_unpackhi_epi64(low, high);
        let lengths =
            _mm256_and_si256(_mm256_srli_epi64::<{ RX_LENGTH_SHIFT as i32 }>(status), _mm256_set1_epi64x(0xffff));
        let faults = _mm256_xor_si256(_mm256_and_si256(status, mask), done);
        let short = _mm256_cmpgt_epi64(least, lengths);
        let long = _mm256_cmpgt_epi64(lengths, most);
        let bad = _mm256_or_si256(faults, _mm256_or_si256(short, long));
        if _mm256_testz_si256(bad, bad) == 0 {
            break;
        }
        // SAFETY: the buffers are initialised and belong to the packets from now on, by this function's contract. The lengths
        // have just been checked.
        unsafe { Four::of_buffers(buffers, lengths).write(places) };
        taken += 4;
    }
    // Orders the reads of the status before those of the frames, as the `Acquire` of the portable loop.
    fence(Ordering::Acquire);
    taken
}

/// Posts free buffers, four at a time. Returns how many it has moved from the front of `fresh` to that of `places`.
///
/// # Safety
/// The buffers in `fresh` are initialised, and those that are moved are not used again.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn refill(
    _: Avx2,
    descriptors: &[Descriptor],
    places: &mut [MaybeUninit<Buffer>],
    fresh: &[MaybeUninit<Buffer>],
) -> usize {
    let mut posted = 0;
    let groups = fresh.as_chunks::<4>().0.iter().zip(descriptors.as_chunks::<4>().0).zip(places.as_chunks_mut::<4>().0);
    for ((fresh, descriptors), places) in groups {
        for i in 0..4 {
            // SAFETY: the buffer is initialised, by this function's contract, and used only in its place from now on.
            let buffer: &mut Buffer = places[i].write(unsafe { fresh[i].assume_init_read() });
            let words = _mm_set_epi64x(0, buffer.iova() as i64);
            let descriptor = (&raw const descriptors[i]).cast_mut().cast();
            // SAFETY: a descriptor is 16 bytes long, aligned to them, and consists of atomics, so it may change behind a
            // shared reference.
            unsafe { _mm_store_si128(descriptor, words) };
        }
        posted += 4;
    }
    posted
}

/// Posts frames in one buffer each, four at a time. Returns how many packets it has posted; these are to be forgotten.
///
/// Frames are sent if they have up to `longest` bytes more than [`MIN_FRAME`].
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn post(
    _: Avx2,
    longest: usize,
    packets: &[Packet],
    descriptors: &[Descriptor],
    places: &mut [MaybeUninit<Buffer>],
) -> usize {
    let (least, most) = (MIN_FRAME as i64, (MIN_FRAME + longest) as i64);
    let (least, most) = (_mm256_set1_epi64x(least), _mm256_set1_epi64x(most));
    let command = _mm256_set1_epi64x(SEND_WHOLE as i64);
    let groups =
        packets.as_chunks::<4>().0.iter().zip(descriptors.as_chunks::<4>().0).zip(places.as_chunks_mut::<4>().0);
    let mut posted = 0;
    for ((packets, descriptors), places) in groups {
        let four = Four::load(packets);
        // Negative, and so too short, for a packet in several buffers.
        let lengths = four.lengths();
        let bad = _mm256_or_si256(_mm256_cmpgt_epi64(least, lengths), _mm256_cmpgt_epi64(lengths, most));
        if _mm256_testz_si256(bad, bad) == 0 {
            break;
        }
        let both = _mm256_or_si256(lengths, _mm256_slli_epi64::<{ TX_PAYLEN_SHIFT as i32 }>(lengths));
        let (addresses, words) = (four.iovas(packets), _mm256_or_si256(both, command));
        let halves = [_mm256_unpacklo_epi64(addresses, words), _mm256_unpackhi_epi64(addresses, words)];
        write_descriptors(descriptors, halves);
        // SAFETY: the packets are not chained, by the check above, and the caller forgets them.
        unsafe { four.copy_buffers(places) };
        posted += 4;
    }
    posted
}
