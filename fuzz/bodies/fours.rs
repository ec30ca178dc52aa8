//! Using a virtqueue four packets at a time as far as that goes, if there is proof that the processor can, and one by one
//! for the rest.

use std::arch::x86_64::*;

use ringpass_memory::{Avx2, Four, Packet};
use ringpass_virtio::driver::{Broken, DeviceAccess, Virtqueue};

/// Posts packets of one buffer each, as many as there is room for. Returns how many.
pub fn post<Q: Virtqueue>(queue: &mut Q, vector: Option<Avx2>, access: DeviceAccess, packets: Vec<Packet>) -> usize {
    let mut packets = packets.into_iter();
    // SAFETY: `avx2` is the proof that the processor has AVX2.
    let posted = vector.map_or(0, |avx2| unsafe { post_fours(avx2, queue, access, &mut packets) });
    posted + queue.post_run(access, packets)
}

#[target_feature(enable = "avx2")]
fn post_fours<Q: Virtqueue>(
    avx2: Avx2,
    queue: &mut Q,
    access: DeviceAccess,
    packets: &mut std::vec::IntoIter<Packet>,
) -> usize {
    let most = packets.len();
    let next = |_| {
        let four = packets.as_slice().first_chunk().map(|four| Four::load(four))?;
        packets.by_ref().take(4).for_each(std::mem::forget);
        Some(four)
    };
    // SAFETY: the packets are not chained, and are forgotten, so that only the queue owns them.
    unsafe { queue.post_fours(avx2, access, most, next) }
}

/// Takes up to `most` packets, like [`Virtqueue::take`], and passes each as it was posted.
pub fn take<Q: Virtqueue>(
    queue: &mut Q,
    vector: Option<Avx2>,
    most: usize,
    mut each: impl FnMut(Packet, u32),
) -> Result<usize, Broken> {
    // SAFETY: `avx2` is the proof that the processor has AVX2.
    let taken = vector.map_or(Vec::new(), |avx2| unsafe { take_fours(avx2, queue, most) });
    let fours = taken.len();
    taken.into_iter().for_each(|(packet, written)| each(packet, written));
    Ok(fours + queue.take(most - fours, |used, written| each(used.whole(), written))?)
}

#[target_feature(enable = "avx2")]
fn take_fours<Q: Virtqueue>(avx2: Avx2, queue: &mut Q, most: usize) -> Vec<(Packet, u32)> {
    let mut taken = Vec::new();
    let each = |packets: &[Packet; 4], written: __m256i| {
        let written = [
            _mm256_extract_epi64::<0>(written),
            _mm256_extract_epi64::<2>(written),
            _mm256_extract_epi64::<1>(written),
            _mm256_extract_epi64::<3>(written),
        ];
        for (packet, written) in packets.iter().zip(written) {
            // SAFETY: this function returns `true`, so that the queue gives the packet up, and only the copy is used.
            taken.push((unsafe { std::ptr::read(packet) }, written as u32));
        }
        true
    };
    // SAFETY: `each` always moves the packets out.
    let count = unsafe { queue.take_fours(avx2, most, each) };
    assert_eq!(count, taken.len());
    taken
}
