//! A guest's memory: memory of this process, mapped a second time for the device.

use std::sync::Arc;

use ringpass_memory::{Avx2, DmaRegion, ForeignMemory, RegionConfig};
use ringpass_virtio::device::{Chain, ChainBatch, GuestMemory, GuestRegion, Inflight, Piece, VringConfig};
use ringpass_virtio::driver::{Addresses, Config};
use ringpass_virtio::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC};

/// Difference between the front-end's addresses and the guest's.
pub const USER: u64 = 1 << 40;

/// Makes guest memory of regions; guest addresses are this process's. Each region is split in two at `cut`, so
/// that a buffer there spans two regions.
pub fn memory(regions: &[(&Arc<DmaRegion>, Option<usize>)]) -> Arc<GuestMemory> {
    let mut parts = Vec::new();
    for (region, cut) in regions {
        let memory = ForeignMemory::map(region.file().unwrap(), 0, region.len()).expect("a memfd");
        let cut = cut.unwrap_or(region.len()).min(region.len());
        for (offset, end) in [(0, cut), (cut, region.len())] {
            if offset < end {
                let guest = region.iova(0) + offset as u64;
                let (offset, len) = (offset as u64, (end - offset) as u64);
                parts.push(GuestRegion { guest, user: guest + USER, len, memory: memory.clone(), offset });
            }
        }
    }
    GuestMemory::new(parts).expect("regions apart")
}

/// Returns the configuration that a front-end passes for a new queue that a driver has created.
pub fn setup(packed: bool, config: &Config, at: Addresses) -> VringConfig {
    let feature = |on: bool, feature: u64| if on { feature } else { 0 };
    VringConfig {
        size: config.size,
        features: feature(config.event_idx, EVENT_IDX)
            | feature(config.in_order, IN_ORDER)
            | feature(config.indirect > 0, INDIRECT_DESC),
        descriptors: at.descriptors + USER,
        driver: at.driver + USER,
        device: at.device + USER,
        base: if packed { 0x8000_8000 } else { 0 },
        inflight: None,
        avx2: Avx2::detect(),
    }
}

/// Returns memory that tracks the chains of a queue in flight.
pub fn inflight(packed: bool, size: u16) -> Inflight {
    let len = (if packed { 32 } else { 16 }) * (1 + usize::from(size));
    let region = DmaRegion::new(len, &RegionConfig::default()).expect("some KiB");
    Inflight { memory: ForeignMemory::map(region.file().unwrap(), 0, region.len()).expect("a memfd"), offset: 0, len }
}

/// Returns all pieces of a chain.
pub fn pieces(chain: &Chain, taken: &ChainBatch) -> Vec<Piece> {
    let (start, count) = (chain.more.0 as usize, chain.more.1 as usize);
    let more = &taken.pieces[start..start + count];
    assert!(more.iter().all(|piece| piece.len > 0));
    std::iter::once(chain.first).filter(|piece| piece.len > 0).chain(more.iter().copied()).collect()
}

/// Returns the contents of pieces.
pub fn read(pieces: &[Piece]) -> Vec<u8> {
    // SAFETY: pieces lie in guest memory that the calling test keeps, and the tests that call this write to it
    // only between calls.
    let bytes =
        |piece: &Piece| unsafe { std::slice::from_raw_parts(piece.start.as_ptr(), piece.len as usize) }.to_vec();
    pieces.iter().flat_map(bytes).collect()
}

/// Fills the first `len` bytes of pieces.
pub fn fill(pieces: &[Piece], mut len: usize, value: u8) {
    for piece in pieces {
        let here = len.min(piece.len as usize);
        // SAFETY: pieces lie in guest memory that the calling test keeps, `here` is at most the piece's length,
        // and no other thread or reference accesses the memory in the tests that call this.
        unsafe { std::ptr::write_bytes(piece.start.as_ptr(), value, here) };
        len -= here;
    }
    assert_eq!(len, 0, "pieces of so many bytes");
}
