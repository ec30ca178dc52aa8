//! A guest that writes its rings field by field, whether they are valid or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ringpass_memory::{Avx2, DmaRegion, Error, ForeignMemory, RegionConfig};
use ringpass_virtio::device::{
    Broken, Chain, ChainBatch, CreateVirtqueue, DeviceAccess, GuestMemory, GuestRegion, Packed, Split, Virtqueue,
    VringConfig,
};
use ringpass_virtio::layout::flags::{AVAIL, USED};

use crate::device::guest::{self, USER};

/// Start of the guest's memory and of the parts of its ring, as guest addresses.
pub const MEMORY: u64 = 0x10_0000;
pub const DRIVER: u64 = MEMORY + 0x4_0000;
pub const DEVICE: u64 = MEMORY + 0x6_0000;
pub const TABLE: u64 = MEMORY + 0xc_0000;
pub const BUFFER: u64 = MEMORY + 0x10_0000;
/// End of the guest's memory, and the address at which one region ends and the next begins.
pub const END: u64 = MEMORY + 0x18_0000;
pub const SEAM: u64 = BUFFER + 0x4_0000;
/// The address inside of [`TABLE`] at which one region ends and the next begins.
pub const TABLE_SEAM: u64 = TABLE + 0x2_0000;

pub struct Guest {
    region: Arc<DmaRegion>,
    pub memory: Arc<GuestMemory>,
    pub size: u16,
    pub features: u64,
    /// Number of chains that were made available.
    available: u16,
}

impl Guest {
    pub fn new(size: u16, features: u64) -> Self {
        let len = (END - MEMORY) as usize;
        let region = DmaRegion::new(len, &RegionConfig::default()).unwrap();
        let memory = ForeignMemory::map(region.file().unwrap(), 0, len).unwrap();
        let ends = [MEMORY, TABLE_SEAM, SEAM, END];
        let part = |ends: &[u64]| GuestRegion {
            guest: ends[0],
            user: ends[0] + USER,
            len: ends[1] - ends[0],
            memory: memory.clone(),
            offset: ends[0] - MEMORY,
        };
        let memory = GuestMemory::new(ends.windows(2).map(part).collect()).unwrap();
        Self { region, memory, size, features, available: 0 }
    }

    /// Adds memory at a guest address.
    pub fn add_region(&mut self, guest: u64, len: u64) {
        let region = DmaRegion::new(len as usize, &RegionConfig::default()).unwrap();
        let memory = ForeignMemory::map(region.file().unwrap(), 0, len as usize).unwrap();
        let added = GuestRegion { guest, user: guest + USER, len, memory, offset: 0 };
        self.memory = GuestMemory::new(self.memory.regions().iter().cloned().chain([added]).collect()).unwrap();
    }

    pub fn setup(&self, base: u32) -> VringConfig {
        VringConfig {
            size: self.size,
            features: self.features,
            descriptors: MEMORY + USER,
            driver: DRIVER + USER,
            device: DEVICE + USER,
            base,
            inflight: None,
            avx2: Avx2::detect(),
        }
    }

    pub fn queue<Q: CreateVirtqueue>(&self, base: u32) -> Result<Q, Error> {
        Q::new(&self.setup(base), &self.memory)
    }

    pub fn split(&self) -> Split {
        self.queue(0).unwrap()
    }

    pub fn packed(&self) -> Packed {
        self.queue(0x8000_8000).unwrap()
    }

    fn bytes(&self, address: u64, len: usize) -> &[AtomicU8] {
        let offset = (address - MEMORY) as usize;
        assert!(offset + len <= self.region.len());
        // SAFETY: `offset + len` is inside the region, as just checked; the region lives as long as `self`;
        // bytes are always aligned, and atomics may change under a shared reference.
        unsafe { std::slice::from_raw_parts(self.region.at(offset).cast(), len) }
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        let place = self.bytes(address, bytes.len());
        place.iter().zip(bytes).for_each(|(place, &byte)| place.store(byte, Ordering::Release));
    }

    pub fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        std::array::from_fn(|i| self.bytes(address, N)[i].load(Ordering::Acquire))
    }

    pub fn read_u16(&self, address: u64) -> u16 {
        u16::from_le_bytes(self.read(address))
    }

    /// Writes a descriptor in the format of split rings.
    pub fn descriptor(&self, table: u64, index: u64, address: u64, len: u32, flags: u16, next: u16) {
        let word = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.words(table, index, address, word);
    }

    /// Writes a descriptor in the format of packed rings.
    pub fn packed_descriptor(&self, table: u64, index: u64, address: u64, len: u32, flags: u16, id: u16) {
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        self.words(table, index, address, word);
    }

    fn words(&self, table: u64, index: u64, address: u64, word: u64) {
        self.write(table + 16 * index, &address.to_le_bytes());
        self.write(table + 16 * index + 8, &word.to_le_bytes());
    }

    /// Makes a chain of a split ring available.
    pub fn offer(&mut self, head: u16) {
        self.write(DRIVER + 4 + 2 * u64::from(self.available % self.size), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.write(DRIVER + 2, &self.available.to_le_bytes());
    }

    /// Makes descriptors of a packed ring available, from slot 0 in the first wrap on: address, length, flags,
    /// id.
    pub fn offer_packed(&self, descriptors: &[(u64, u32, u16, u16)]) {
        for (slot, &(address, len, flags, id)) in descriptors.iter().enumerate().rev() {
            let turn = slot / usize::from(self.size);
            let marks = if turn.is_multiple_of(2) { AVAIL } else { USED };
            let slot = slot % usize::from(self.size);
            self.packed_descriptor(MEMORY, slot as u64, address, len, flags | marks, id);
        }
    }
}

/// Takes a burst of chains and gives them back. Returns the guest addresses and lengths of each chain's pieces.
pub fn burst<Q: Virtqueue>(guest: &Guest, queue: &mut Q, access: DeviceAccess) -> Result<Vec<Vec<(u64, u32)>>, Broken> {
    let mut taken = ChainBatch::default();
    let count = queue.take(access, 256, &mut taken)?;
    assert_eq!(count, taken.chains.len());
    let chains = taken.chains.iter().map(|chain| pieces(guest, chain, &taken)).collect();
    let given: Vec<(Chain, u32)> = taken.chains.iter().map(|chain| (*chain, 0)).collect();
    queue.push_used(given.iter().map(|(chain, written)| chain.used(*written)));
    queue.publish();
    Ok(chains)
}

pub fn pieces(guest: &Guest, chain: &Chain, taken: &ChainBatch) -> Vec<(u64, u32)> {
    let start = |region: &GuestRegion| region.memory.as_ptr().wrapping_add(region.offset as usize) as u64;
    let find = |at: u64, len: u32| {
        let inside = |region: &&GuestRegion| at >= start(region) && at - start(region) + u64::from(len) <= region.len;
        let region = guest.memory.regions().iter().find(inside).expect("a piece of the guest's memory");
        (region.guest + (at - start(region)), len)
    };
    guest::pieces(chain, taken).iter().map(|piece| find(piece.start.as_ptr() as u64, piece.len)).collect()
}
