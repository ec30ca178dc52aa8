//! The memory that a guest shares: regions, by guest address.

use std::arch::x86_64::*;
use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Error, ForeignMemory};

use super::Piece;

/// A contiguous region of a guest's memory.
#[derive(Clone, Debug)]
pub struct GuestRegion {
    /// Guest physical address, as used in descriptors.
    pub guest: u64,
    /// Address in the front-end's address space, as used for rings.
    pub user: u64,
    /// Size in bytes.
    pub len: u64,
    /// The mapping of the region's file in this process.
    pub memory: Arc<ForeignMemory>,
    /// Offset of the region in that mapping.
    pub offset: u64,
}

impl GuestRegion {
    /// Returns the guest address of the byte at `offset`, if the region has it.
    fn guest_at(&self, offset: u64) -> Option<u64> {
        (offset < self.len).then(|| self.guest + offset)
    }

    /// Returns the address of the bytes at `offset`, if the region has `len` bytes there.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let inside = offset < self.len && len <= self.len - offset;
        // SAFETY: `GuestMemory::new` checked that `offset + len` of the region does not exceed its mapping, and
        // `offset < self.len` was just checked, so the address is inside the mapping, which does not begin at
        // 0.
        inside.then(|| unsafe { NonNull::new_unchecked(self.memory.as_ptr().add((self.offset + offset) as usize)) })
    }
}

/// The region that the last access hit, prepared for the packet path; the next access mostly hits it too.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionCache {
    guest: u64,
    len: u64,
    /// Pieces of less than 64 KiB fit if their offset is below this one.
    near: u64,
    start: NonNull<u8>,
}

// SAFETY: `start` is used only by the queue, which keeps the memory that it points to and may be sent itself.
unsafe impl Send for RegionCache {}

impl RegionCache {
    /// No region.
    pub(super) const NONE: Self = Self { guest: 0, len: 0, near: 0, start: NonNull::dangling() };

    fn new(guest: u64, len: u64, start: NonNull<u8>) -> Self {
        Self { guest, len, near: len.saturating_sub(u16::MAX.into()), start }
    }

    /// Returns the address of `len` bytes at a guest address, if all of them are in this region and `len` is
    /// not 0.
    #[inline(always)]
    pub(super) fn at(&self, address: u64, len: u32) -> Option<NonNull<u8>> {
        let offset = address.wrapping_sub(self.guest);
        // A length of 0 wraps to one that never fits. The check has two steps, the second of which is rare.
        let before = len.wrapping_sub(1);
        let inside = (offset < self.near && before < u16::MAX.into()) || self.holds(offset, before);
        // SAFETY: `offset` is inside the region, as just checked, and `GuestMemory::new` checked that the
        // region is inside its mapping.
        inside.then(|| unsafe { self.start.add(offset as usize) })
    }

    /// Returns the addresses of pieces at four guest addresses, in 64 bits each, and a register that is 0 if all four are in this region
    /// and none of the lengths, of up to 32 bits, is 0.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn at_four(&self, addresses: __m256i, lengths: __m256i) -> (__m256i, __m256i) {
        let all = |number: u64| _mm256_set1_epi64x(number as i64);
        let offsets = _mm256_sub_epi64(addresses, all(self.guest));
        let ends = _mm256_add_epi64(offsets, lengths);
        // A mapping has less than half of all addresses, so what is negative as a signed number is outside.
        let negative = _mm256_and_si256(_mm256_or_si256(offsets, ends), all(1 << 63));
        let far = _mm256_or_si256(negative, _mm256_cmpgt_epi64(ends, all(self.len)));
        let empty = _mm256_cmpeq_epi64(lengths, _mm256_setzero_si256());
        (_mm256_add_epi64(offsets, all(self.start.addr().get() as u64)), _mm256_or_si256(far, empty))
    }

    /// Returns whether the region holds `before + 1` bytes from `offset` on.
    #[cold]
    fn holds(&self, offset: u64, before: u32) -> bool {
        before < u32::MAX && offset < self.len && u64::from(before) < self.len - offset
    }
}

/// All memory that a guest shares. It never changes: when the guest's memory changes, a new object is made.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// Sorted by guest address, without overlap.
    regions: Vec<GuestRegion>,
}

impl GuestMemory {
    /// Creates a table of these regions. Fails if one is empty, wraps around, exceeds its mapping or overlaps
    /// another in guest addresses.
    pub fn new(mut regions: Vec<GuestRegion>) -> Result<Arc<Self>, Error> {
        regions.sort_by_key(|region| region.guest);
        for region in &regions {
            let mapped = region.offset.checked_add(region.len).is_some_and(|end| end <= region.memory.len() as u64);
            let ends = [region.guest, region.user].iter().all(|start| start.checked_add(region.len).is_some());
            if region.len == 0 || !mapped || !ends {
                return Err(Error::Config("a memory region that is empty, wraps round or lies outside its file"));
            }
        }
        if regions.windows(2).any(|pair| pair[0].guest + pair[0].len > pair[1].guest) {
            return Err(Error::Config("memory regions that overlap in the guest's addresses"));
        }
        Ok(Arc::new(Self { regions }))
    }

    /// Returns the regions, sorted by guest address.
    pub fn regions(&self) -> &[GuestRegion] {
        &self.regions
    }

    /// Returns the address of `len` bytes at a guest address, if all of them are in one region.
    pub fn guest(&self, address: u64, len: u64) -> Option<NonNull<u8>> {
        let region = self.region(address)?;
        region.at(address - region.guest, len)
    }

    fn region(&self, address: u64) -> Option<&GuestRegion> {
        let index = self.regions.partition_point(|region| region.guest <= address).checked_sub(1)?;
        Some(&self.regions[index])
    }

    /// Returns the region that contains a guest address.
    pub(super) fn region_cache(&self, address: u64) -> Option<RegionCache> {
        let region = self.region(address)?;
        let start = region.at(0, region.len)?;
        (address - region.guest < region.len).then_some(RegionCache::new(region.guest, region.len, start))
    }

    /// Passes to `each` the pieces of `len` bytes at a guest address, which may continue from one region into
    /// the next. Returns `None` if some of them are not the guest's memory. Leaves the last region in
    /// `region_cache`.
    pub(super) fn pieces(
        &self,
        address: u64,
        len: u32,
        region_cache: &mut RegionCache,
        mut each: impl FnMut(Piece),
    ) -> Option<()> {
        let (mut address, mut left) = (address, len);
        while left > 0 {
            *region_cache = self.region_cache(address)?;
            let here = u64::from(left).min(region_cache.len - (address - region_cache.guest)) as u32;
            each(Piece { start: region_cache.at(address, here)?, len: here });
            // This does not overflow: no region extends to the end of the address space.
            address += u64::from(here);
            left -= here;
        }
        Some(())
    }

    /// Returns the address of `len` bytes at an address of the front-end, if all of them are in one region.
    pub fn user(&self, address: u64, len: u64) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|region| region.at(address.wrapping_sub(region.user), len))
    }

    /// Returns the guest address of a byte at an address in this process; `None` if it is not the guest's.
    pub fn guest_address(&self, at: NonNull<u8>) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let start = region.memory.as_ptr().addr() as u64 + region.offset;
            region.guest_at((at.addr().get() as u64).wrapping_sub(start))
        })
    }

    /// Returns the guest address of a byte at an address of the front-end.
    pub fn guest_address_of_user(&self, address: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| region.guest_at(address.wrapping_sub(region.user)))
    }

    /// Returns whether part of the memory was lost because its owner truncated the file.
    pub fn lost(&self) -> bool {
        self.regions.iter().any(|region| region.memory.lost())
    }
}
