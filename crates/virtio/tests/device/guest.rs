//! A guest's memory: this process's own, mapped a second time for the device.

use std::sync::Arc;

use ringpass_memory::{DmaRegion, ForeignMemory, RegionConfig};
use ringpass_virtio::device::{Chain, GuestMemory, GuestRegion, Inflight, Piece, Setup, Taken};
use ringpass_virtio::driver::{Addresses, Config};
use ringpass_virtio::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC};

/// What the front-end's addresses differ by from the guest's.
pub const USER: u64 = 1 << 40;

/// Regions as guest memory; guest addresses are those here. Each is cut in two at `cut`, so that buffers there lie in two
/// regions.
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

/// What a front-end says of a new queue that a driver made so.
pub fn setup(packed: bool, config: &Config, at: Addresses) -> Setup {
    let feature = |on: bool, feature: u64| if on { feature } else { 0 };
    Setup {
        size: config.size,
        features: feature(config.event_idx, EVENT_IDX)
            | feature(config.in_order, IN_ORDER)
            | feature(config.indirect > 0, INDIRECT_DESC),
        descriptors: at.descriptors + USER,
        driver: at.driver + USER,
        device: at.device + USER,
        base: if packed { 0x8000_8000 } else { 0 },
        inflight: None,
    }
}

/// Memory in which is noted what a queue has taken.
pub fn inflight(packed: bool, size: u16) -> Inflight {
    let len = (if packed { 32 } else { 16 }) * (1 + usize::from(size));
    let region = DmaRegion::new(len, &RegionConfig::default()).expect("some KiB");
    Inflight { memory: ForeignMemory::map(region.file().unwrap(), 0, region.len()).expect("a memfd"), offset: 0, len }
}

/// All pieces of a chain.
pub fn pieces(chain: &Chain, taken: &Taken) -> Vec<Piece> {
    let (start, count) = (chain.more.0 as usize, chain.more.1 as usize);
    let more = &taken.pieces[start..start + count];
    assert!(more.iter().all(|piece| piece.len > 0));
    std::iter::once(chain.first).filter(|piece| piece.len > 0).chain(more.iter().copied()).collect()
}

/// What lies in pieces.
pub fn read(pieces: &[Piece]) -> Vec<u8> {
    // SAFETY: memory that the test keeps, and which nobody writes meanwhile.
    let bytes =
        |piece: &Piece| unsafe { std::slice::from_raw_parts(piece.start.as_ptr(), piece.len as usize) }.to_vec();
    pieces.iter().flat_map(bytes).collect()
}

/// Fills the first `len` bytes of pieces.
pub fn fill(pieces: &[Piece], mut len: usize, value: u8) {
    for piece in pieces {
        let here = len.min(piece.len as usize);
        // SAFETY: likewise.
        unsafe { std::ptr::write_bytes(piece.start.as_ptr(), value, here) };
        len -= here;
    }
    assert_eq!(len, 0, "pieces of so many bytes");
}
