//! The memory that a guest shares: regions by its own addresses.

use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Error, ForeignMemory};

/// A stretch of a guest's memory.
#[derive(Clone, Debug)]
pub struct GuestRegion {
    /// Where the guest has it: addresses in descriptors.
    pub guest: u64,
    /// Where the front-end has it: addresses of rings.
    pub user: u64,
    /// Bytes.
    pub len: u64,
    /// The file's mapping here.
    pub memory: Arc<ForeignMemory>,
    /// Where in that the region begins.
    pub offset: u64,
}

impl GuestRegion {
    /// Where the bytes at `offset` lie, if the region has so many there.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let inside = offset < self.len && len <= self.len - offset;
        // SAFETY: `GuestMemory::new` checked that the region lies in its mapping.
        inside.then(|| unsafe { NonNull::new_unchecked(self.memory.as_ptr().add((self.offset + offset) as usize)) })
    }
}

/// Which region the last access hit; the next one mostly hits it too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint(usize);

/// All memory that a guest shares. Never changed: a change of the guest's memory is another object.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// By guest address; none overlap.
    regions: Vec<GuestRegion>,
}

impl GuestMemory {
    /// A table of these regions; an error if one is empty, wraps round, does not lie in its mapping or overlaps another.
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

    /// The regions, by guest address.
    pub fn regions(&self) -> &[GuestRegion] {
        &self.regions
    }

    /// Where `len` bytes at a guest address lie here, if all of them are in one region.
    #[inline]
    pub fn guest(&self, address: u64, len: u64, hint: &mut Hint) -> Option<NonNull<u8>> {
        if let Some(region) = self.regions.get(hint.0)
            && let Some(start) = region.at(address.wrapping_sub(region.guest), len)
        {
            return Some(start);
        }
        self.search(address, len, hint)
    }

    #[cold]
    fn search(&self, address: u64, len: u64, hint: &mut Hint) -> Option<NonNull<u8>> {
        let index = self.regions.partition_point(|region| region.guest <= address).checked_sub(1)?;
        let region = &self.regions[index];
        let start = region.at(address - region.guest, len)?;
        hint.0 = index;
        Some(start)
    }

    /// Likewise of an address of the front-end's.
    pub fn user(&self, address: u64, len: u64) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|region| region.at(address.wrapping_sub(region.user), len))
    }

    /// Whether a part of it was taken away by its owner, who cut the file short.
    pub fn lost(&self) -> bool {
        self.regions.iter().any(|region| region.memory.lost())
    }
}
