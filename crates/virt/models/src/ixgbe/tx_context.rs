//! Parts of the NIC that its Tx rings share.

use ringpass_memory::{Cache, DmaMap, Mempool, MempoolConfig, Packet};

use super::decode::Settings;
use super::limits::MAX_FRAME_LEN;
use super::stats::Counters;

/// The NIC's own buffers for frames on their way to the wire.
pub(super) struct Buffers {
    cache: Cache,
    /// Buffers for frames that are too long for `cache`.
    jumbo: Mempool,
}

impl Buffers {
    /// Size of most buffers in bytes.
    pub(super) const SIZE: usize = 2048;

    pub(super) fn new() -> Self {
        let pool = |buffers, size| {
            Mempool::new(&MempoolConfig { buffers, size, ..Default::default() })
                .expect("some MiB of ordinary pages for the model's frames")
        };
        Self { cache: pool(2048, Self::SIZE).cache(), jumbo: pool(64, MAX_FRAME_LEN) }
    }

    /// Takes up to `want` empty packets with room for [`SIZE`](Self::SIZE) bytes.
    #[inline]
    pub(super) fn take(&mut self, want: usize) -> impl Iterator<Item = Packet> {
        self.cache.take(want)
    }

    #[inline]
    pub(super) fn alloc(&mut self, len: usize) -> Option<Packet> {
        if len > Self::SIZE {
            return self.jumbo.alloc();
        }
        self.cache.take(1).next()
    }
}

/// Parts of the NIC that a ring needs.
pub(super) struct Context<'a> {
    pub(super) dma: &'a DmaMap,
    pub(super) settings: &'a Settings,
    pub(super) buffers: &'a mut Buffers,
    pub(super) counters: &'a mut Counters,
    /// Buffer for assembling a segment.
    pub(super) segment: &'a mut Vec<u8>,
}
