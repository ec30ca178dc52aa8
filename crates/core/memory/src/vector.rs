//! Four packets at a time in the registers of AVX2, for the rings of cards.

use std::arch::x86_64::*;
use std::mem::{MaybeUninit, offset_of};

use crate::{Buffer, Flags, Packet};

/// Proof that the processor has AVX2.
///
/// Functions that take it and have the target feature may be called by functions without it, in an `unsafe` block.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the proof, or `None` on a processor without AVX2.
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

/// Handles and fields of four packets, in lanes of 64 bits.
///
/// The lanes are in the order 0, 2, 1, 3, which the unpack instructions make of two registers with two packets each,
/// and of which they make two registers with two descriptors each. So nothing has to cross the halves of a register.
#[derive(Clone, Copy)]
pub struct Four {
    handles: __m256i,
    fields: __m256i,
    /// The offsets in the fields once more, as 64-bit numbers, so that they are worked out once.
    offsets: __m256i,
}

// A packet's layout: a handle, then its fields, of which the length has the lower half of 64 bits.
const _: () = assert!(size_of::<Buffer>() == 8 && offset_of!(Packet, buffer) == 0 && size_of::<Packet>() == 16);
const _: () =
    assert!(offset_of!(Packet, len) == 8 && offset_of!(Packet, offset) == 12 && offset_of!(Packet, flags) == 14);

impl Four {
    /// Reads the handles and fields of four packets.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn load(packets: &[Packet; 4]) -> Self {
        let pairs = packets.as_ptr().cast::<__m256i>();
        // SAFETY: the four packets are two registers long, without padding, and borrowed.
        let [low, high] = unsafe { [_mm256_loadu_si256(pairs), _mm256_loadu_si256(pairs.add(1))] };
        let fields = _mm256_unpackhi_epi64(low, high);
        // The offset is a signed 16-bit number: with its sign flipped it is 0x8000 more than with its sign extended.
        let flipped = _mm256_xor_si256(_mm256_srli_epi64::<32>(fields), _mm256_set1_epi64x(0x8000));
        let flipped = _mm256_and_si256(flipped, _mm256_set1_epi64x(0xffff));
        let offsets = _mm256_sub_epi64(flipped, _mm256_set1_epi64x(0x8000));
        Self { handles: _mm256_unpacklo_epi64(low, high), fields, offsets }
    }

    /// Makes packets without flags of buffers, with `lengths` in the order 0, 2, 1, 3.
    ///
    /// # Safety
    /// The processor has AVX2. The buffers are initialised and are not used again, as only the packets own them. Each length is at most its
    /// pool's buffer size.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub unsafe fn of_buffers(buffers: &[MaybeUninit<Buffer>; 4], lengths: __m256i) -> Self {
        // SAFETY: four handles are one register long.
        let handles = unsafe { _mm256_loadu_si256(buffers.as_ptr().cast()) };
        // A length in 64 bits is a packet's fields with the offset 0 and no flags.
        let handles = _mm256_permute4x64_epi64::<0b11_01_10_00>(handles);
        Self { handles, fields: lengths, offsets: _mm256_setzero_si256() }
    }

    /// Writes the packets to their places.
    ///
    /// # Safety
    /// The processor has AVX2. Only the packets in these places are used from here on.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub unsafe fn write(self, places: &mut [MaybeUninit<Packet>; 4]) {
        let pairs = places.as_mut_ptr().cast::<__m256i>();
        // SAFETY: four places are two registers long. Handles and fields are those of packets.
        unsafe {
            _mm256_storeu_si256(pairs, _mm256_unpacklo_epi64(self.handles, self.fields));
            _mm256_storeu_si256(pairs.add(1), _mm256_unpackhi_epi64(self.handles, self.fields));
        }
    }

    /// Returns the lengths, as 64-bit numbers. That of a [chained](Packet::is_chained) packet is negative.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn lengths(self) -> __m256i {
        self.lengths_without(Flags::CHAINED)
    }

    /// Returns the lengths, as 64-bit numbers. That of a packet with any of these flags is negative or above `u32::MAX`.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn lengths_without(self, flags: Flags) -> __m256i {
        let flags = i64::from(flags.bits()) << 48;
        _mm256_and_si256(self.fields, _mm256_set1_epi64x(flags | 0xffff_ffff))
    }

    /// Returns the packets cut to the bytes from `front` to `ends` of their buffers, like [`Packet::copy_received`].
    ///
    /// # Safety
    /// The processor has AVX2. The packets are as [`Cache::packets`](crate::Cache::packets) made them. `front` is at most each end, which
    /// is at most its pool's buffer size.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub unsafe fn received(self, front: u8, ends: __m256i) -> Self {
        // The offset grows by what the length loses.
        let fields = _mm256_add_epi64(ends, _mm256_set1_epi64x((i64::from(front) << 32) - i64::from(front)));
        Self { fields, offsets: _mm256_set1_epi64x(front.into()), ..self }
    }

    /// Returns the numbers of free bytes in front of the frames.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn headrooms(self, packets: &[Packet; 4]) -> __m256i {
        let pair = |low: usize, high: usize| {
            let [low, high] = [low, high].map(|i| i32::from(packets[i].buffer.slot().headroom));
            _mm_insert_epi16::<4>(_mm_insert_epi16::<0>(_mm_setzero_si128(), low), high)
        };
        _mm256_add_epi64(_mm256_set_m128i(pair(1, 3), pair(0, 2)), self.offsets)
    }

    /// Returns the packets with `n` bytes more in front.
    ///
    /// # Safety
    /// The processor has AVX2. Each packet has a headroom of `n` bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub unsafe fn prepend(self, n: u8) -> Self {
        let longer = _mm256_add_epi32(self.fields, _mm256_set1_epi64x(n.into()));
        let fields = _mm256_sub_epi16(longer, _mm256_set1_epi64x(i64::from(n) << 32));
        Self { fields, offsets: _mm256_sub_epi64(self.offsets, _mm256_set1_epi64x(n.into())), ..self }
    }

    /// Returns the addresses of the frames on the device's side.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn iovas(self, packets: &[Packet; 4]) -> __m256i {
        let pair = |low: usize, high: usize| {
            let [low, high] = [low, high].map(|i| (&raw const packets[i].buffer.slot().iova).cast());
            // SAFETY: both point to 64 bits of a slot, which is not written while its buffer is outside the depot.
            unsafe { _mm_castpd_si128(_mm_loadh_pd(_mm_load_sd(low), high)) }
        };
        _mm256_add_epi64(_mm256_set_m128i(pair(1, 3), pair(0, 2)), self.offsets)
    }

    /// Writes the handles to the places of buffers, like [`Packet::copy_buffer`].
    ///
    /// # Safety
    /// The processor has AVX2. The packets are not chained, and are forgotten: neither used nor dropped.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy_buffers(self, places: &mut [MaybeUninit<Buffer>; 4]) {
        let handles = _mm256_permute4x64_epi64::<0b11_01_10_00>(self.handles);
        // SAFETY: four handles are one register long.
        unsafe { _mm256_storeu_si256(places.as_mut_ptr().cast(), handles) };
    }
}
