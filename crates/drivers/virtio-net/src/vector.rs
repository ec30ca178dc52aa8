//! Plain frames four at a time, with AVX2. Each function does what the portable loop of `rx` or `tx` does, as long as whole
//! groups of four need nothing else; the portable loop goes on with the rest.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use ringpass_memory::{Avx2, Cache, Flags, Four, Packet};
use ringpass_virtio::driver::{DeviceAccess, Virtqueue};

use crate::empty_header::REQUESTS;
use crate::negotiate::MIN_FRAME_LEN;

/// Packets that were posted or taken, and their bytes without headers.
pub(crate) struct Moved {
    pub(crate) packets: usize,
    pub(crate) bytes: u64,
}

/// Takes received frames of up to `span` bytes beyond [`MIN_FRAME_LEN`] behind a header of `HEADER` bytes, while `is_plain`
/// returns `true` for all four. They are the first packets of `places`.
///
/// # Safety
/// The queue's packets were posted as [`Cache::packets`] makes them, with buffers in which such frames fit. `is_plain` does not
/// panic.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn take<Q: Virtqueue, const HEADER: usize>(
    avx2: Avx2,
    queue: &mut Q,
    span: usize,
    places: &mut [MaybeUninit<Packet>],
    is_plain: impl Fn(&Packet) -> bool,
) -> Moved {
    const { assert!(HEADER <= u8::MAX as usize) };
    let least = HEADER + MIN_FRAME_LEN;
    let [least, most] = [_mm256_set1_epi64x(least as i64), _mm256_set1_epi64x((least + span) as i64)];
    let mut bytes = _mm256_setzero_si256();
    let room = places.len();
    let mut places = places.as_chunks_mut::<4>().0.iter_mut();
    let each = |packets: &[Packet; 4], written: __m256i| {
        let wrong = _mm256_or_si256(_mm256_cmpgt_epi64(least, written), _mm256_cmpgt_epi64(written, most));
        if _mm256_testz_si256(wrong, wrong) == 0 || !packets.iter().all(&is_plain) {
            return false;
        }
        let Some(places) = places.next() else { return false };
        bytes = _mm256_add_epi64(bytes, written);
        // SAFETY: the packets are as `Cache::packets` makes them, and what was written is as long as a header and a frame
        // that fits into their buffers, by this function's contract and the check above. Only the places own the packets, as
        // the queue gives them up.
        unsafe { Four::load(packets).received(HEADER as u8, written).write(places) };
        true
    };
    // SAFETY: `each` returns `true` exactly if it has moved the packets to their places. It cannot panic.
    let packets = unsafe { queue.take_fours(avx2, room, each) };
    Moved { packets, bytes: sum(bytes) - (packets * HEADER) as u64 }
}

/// Posts free buffers of `size` bytes, up to `room` of them. Returns how many.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn refill<Q: Virtqueue>(avx2: Avx2, queue: &mut Q, cache: &mut Cache, room: usize) -> usize {
    let size = _mm256_set1_epi64x(cache.pool().buffer_size() as i64);
    // The buffers are in the cache now, so that it has four whenever four are taken out.
    let ready = cache.buffers(room).len();
    let next = |_| {
        let buffers = cache.run(4).first_chunk()?;
        // SAFETY: `Cache::run` returns buffers, and this is the only use of them. `size` is their pool's buffer size.
        Some(unsafe { Four::of_buffers(buffers, size) })
    };
    // SAFETY: the packets have just been made of buffers out of the cache, so only the queue owns them.
    unsafe { queue.post_fours(avx2, DeviceAccess::Write, ready, next) }
}

/// Posts frames in one buffer each that request nothing, with `HEADER` bytes of zeros in front. Frames are sent if they have up
/// to `span` bytes more than [`MIN_FRAME_LEN`]. The packets that were posted are to be forgotten.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn post<Q: Virtqueue, const HEADER: usize>(
    avx2: Avx2,
    queue: &mut Q,
    span: usize,
    waiting: &[Packet],
) -> Moved {
    const { assert!(HEADER <= u8::MAX as usize) };
    let least = MIN_FRAME_LEN as i64;
    let [least, most] = [_mm256_set1_epi64x(least), _mm256_set1_epi64x(least + span as i64)];
    let header = _mm256_set1_epi64x(HEADER as i64);
    let mut bytes = _mm256_setzero_si256();
    let mut fours = waiting.as_chunks::<4>().0.iter();
    let next = |_| {
        let packets = fours.next()?;
        let four = Four::load(packets);
        // Out of range for a packet that requests something or is in several buffers.
        let lengths = four.lengths_without(REQUESTS.or(Flags::CHAINED));
        let wrong = _mm256_or_si256(_mm256_cmpgt_epi64(least, lengths), _mm256_cmpgt_epi64(lengths, most));
        let wrong = _mm256_or_si256(wrong, _mm256_cmpgt_epi64(header, four.headrooms(packets)));
        if _mm256_testz_si256(wrong, wrong) == 0 {
            return None;
        }
        // SAFETY: each packet has a headroom of `HEADER` bytes and a frame of `MIN_FRAME_LEN` or more, as has just been checked.
        if !unsafe { have_zeros::<HEADER>(packets) } {
            for packet in packets {
                let header = packet.as_ptr().wrapping_sub(HEADER).cast::<[u8; HEADER]>();
                // SAFETY: the packet has a headroom of `HEADER` bytes, as has just been checked, which are its owner's and are
                // reached through raw pointers only. An array of bytes needs no alignment.
                unsafe { header.write([0; HEADER]) };
            }
        }
        bytes = _mm256_add_epi64(bytes, lengths);
        // SAFETY: each packet has a headroom of `HEADER` bytes: the comparison with the headrooms has let these pass.
        Some(unsafe { four.prepend(HEADER as u8) })
    };
    // SAFETY: the packets are not chained, as has been checked, and the caller forgets them. `next` cannot panic.
    let packets = unsafe { queue.post_fours(avx2, DeviceAccess::Read, waiting.len(), next) };
    Moved { packets, bytes: sum(bytes) }
}

/// Returns whether there are `HEADER` zeros in front of each frame, so that none need to be written, which would take cache
/// lines from the core that reads them.
///
/// # Safety
/// Each packet has a headroom of `HEADER` bytes, and a frame of [`MIN_FRAME_LEN`] or more.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn have_zeros<const HEADER: usize>(packets: &[Packet; 4]) -> bool {
    const { assert!(HEADER <= 16 && HEADER + MIN_FRAME_LEN >= 16) };
    let mut bits = _mm_setzero_si128();
    for packet in packets {
        let header = packet.as_ptr().wrapping_sub(HEADER);
        // SAFETY: a header and the start of a frame are 16 bytes or more, all inside the packet's buffer, whose memory is
        // initialised and reached through raw pointers only.
        bits = _mm_or_si128(bits, unsafe { _mm_loadu_si128(header.cast()) });
    }
    let [low, high] = [u64::MAX, u64::MAX >> (64 - 8 * (HEADER - 8))];
    _mm_testz_si128(bits, _mm_set_epi64x(high as i64, low as i64)) == 1
}

/// Returns the sum of four numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(numbers: __m256i) -> u64 {
    let halves = _mm_add_epi64(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
    (_mm_cvtsi128_si64(halves) + _mm_extract_epi64::<1>(halves)) as u64
}
