//! The memory that a guest shares: regions by its own addresses.

use std::ptr::NonNull;
use std::sync::Arc;

use ringpass_memory::{Error, ForeignMemory};

use super::Piece;

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

/// A region as the packet path wants it: the one that the last access hit, as the next one mostly hits it too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    guest: u64,
    len: u64,
    /// Where pieces of less than 64 KiB fit, as offsets below this one.
    near: u64,
    start: NonNull<u8>,
}

// SAFETY: a pointer that only those use who keep the memory that it leads to.
unsafe impl Send for Window {}

impl Window {
    /// Nothing.
    pub(super) const NONE: Self = Self { guest: 0, len: 0, near: 0, start: NonNull::dangling() };

    fn new(guest: u64, len: u64, start: NonNull<u8>) -> Self {
        Self { guest, len, near: len.saturating_sub(u16::MAX.into()), start }
    }

    /// Where bytes at a guest address lie here, if all of them are in this region and there are any.
    #[inline(always)]
    pub(super) fn at(&self, address: u64, len: u32) -> Option<NonNull<u8>> {
        let offset = address.wrapping_sub(self.guest);
        // The length 0 becomes one that never fits. In two steps, of which the second is rare.
        let before = len.wrapping_sub(1);
        let inside = (offset < self.near && before < u16::MAX.into()) || self.holds(offset, before);
        // SAFETY: inside the region, which lies in its mapping (`GuestMemory::new`).
        inside.then(|| unsafe { self.start.add(offset as usize) })
    }

    /// Whether there is a byte, and `before` others before it, from `offset` on.
    #[cold]
    fn holds(&self, offset: u64, before: u32) -> bool {
        before < u32::MAX && offset < self.len && u64::from(before) < self.len - offset
    }
}

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
    pub fn guest(&self, address: u64, len: u64) -> Option<NonNull<u8>> {
        let region = self.region(address)?;
        region.at(address - region.guest, len)
    }

    fn region(&self, address: u64) -> Option<&GuestRegion> {
        let index = self.regions.partition_point(|region| region.guest <= address).checked_sub(1)?;
        Some(&self.regions[index])
    }

    /// The region of a guest address.
    pub(super) fn window(&self, address: u64) -> Option<Window> {
        let region = self.region(address)?;
        let start = region.at(0, region.len)?;
        (address - region.guest < region.len).then_some(Window::new(region.guest, region.len, start))
    }

    /// The pieces of `len` bytes at a guest address, which may go on from one region into the next; `None` if not all of
    /// them are the guest's. Leaves the last region in `window`.
    pub(super) fn pieces(
        &self,
        address: u64,
        len: u32,
        window: &mut Window,
        mut each: impl FnMut(Piece),
    ) -> Option<()> {
        let (mut address, mut left) = (address, len);
        while left > 0 {
            *window = self.window(address)?;
            let here = u64::from(left).min(window.len - (address - window.guest)) as u32;
            each(Piece { start: window.at(address, here)?, len: here });
            // No region reaches the end of all addresses.
            address += u64::from(here);
            left -= here;
        }
        Some(())
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
