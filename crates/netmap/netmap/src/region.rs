//! Memory for the ports of one program, or of several that trust each other: pools of interface descriptors,
//! rings and buffers.

mod extra;
mod owners;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, ForeignMemory, Memory, RegionConfig, SwapPoolConfig};
use serde::{Deserialize, Serialize};

use crate::layout::{API, Interface, PRIVATE, RESERVED_BUFFERS, RING_OFFSETS};
use crate::pools::Pools;
use crate::{Direction, Ring, SharedPool, Slot};
use owners::BufferOwners;

/// A region's pools are invalid or exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The pools are invalid: nothing was allocated.
    #[error("a netmap region has 3 or more buffers of 64 to 65536 bytes in whole cache lines, and room for a ring")]
    Pools,
    /// No interface descriptor is left.
    #[error("the region has no interface descriptor left; close a port, or give it more")]
    Interfaces,
    /// No room is left for a ring of this many bytes.
    #[error("the region has no room left for a ring of {0} bytes; ask for fewer slots, or give it more")]
    Rings(usize),
    /// Too few buffers are left.
    #[error("the region has {left} buffers left of {wanted} that are wanted; close a port, or give it more")]
    Buffers {
        /// Number of buffers left.
        left: usize,
        /// Number of buffers wanted.
        wanted: usize,
    },
}

impl From<Error> for ringpass_port::Error {
    fn from(error: Error) -> Self {
        Self::Config(error.to_string())
    }
}

const LINE: usize = 64;
/// Bytes of an interface descriptor: room for 121 rings.
const INTERFACE_BYTES: usize = 1024;

/// A region, for its owner: which objects are allocated is kept outside of the shared memory.
pub struct Region {
    file: SharedFile,
    memory: Memory,
    pools: Pools,
    free_interfaces: Vec<u32>,
    /// Free ranges of the ring pool: start and length, in bytes.
    free_rings: BTreeMap<usize, usize>,
    free_buffers: Vec<u32>,
    owners: BufferOwners,
    /// Allocated rings by offset.
    rings: BTreeMap<usize, Ring>,
}

/// Books of a region's owner: all that a successor has to know, besides the [file](Region::file).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegionState {
    pools: Pools,
    free_interfaces: Vec<u32>,
    /// Offset and slots of each ring.
    rings: Vec<(usize, u32)>,
    /// Allocated buffers: first of each range, and number.
    allocated: Vec<(u32, u32)>,
}

/// The file by which others map a region.
enum SharedFile {
    /// Memory that this process has allocated.
    Own(Arc<DmaRegion>),
    /// Memory of a program, which keeps its file.
    External(Arc<ForeignMemory>),
}

impl Region {
    /// Creates a region with nothing allocated.
    pub fn new(pools: Pools, config: &RegionConfig) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let pools = pools.checked()?;
        let file = DmaRegion::new(pools.buffers_at() + pools.buffers as usize * pools.buffer_size as usize, config)?;
        let owners = BufferOwners::Own(vec![false; pools.buffers as usize]);
        Ok(Self::with(pools, file.clone().into(), SharedFile::Own(file), owners, pools.buffers))
    }

    /// Creates a region with nothing allocated in memory of a program, which was [mapped with its file](ForeignMemory::map_shared).
    ///
    /// # Errors
    /// The pools are invalid, or the memory has too little room for them.
    pub fn external(
        pools: Pools,
        memory: Arc<ForeignMemory>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let pools = pools.checked()?;
        let buffers = (pools.buffers as usize).checked_mul(pools.buffer_size as usize);
        let end = buffers.and_then(|bytes| bytes.checked_add(pools.buffers_at()));
        if end.is_none_or(|end| end > memory.len()) || memory.file().is_none() {
            return Err(Error::Pools.into());
        }
        let owners = BufferOwners::Own(vec![false; pools.buffers as usize]);
        Ok(Self::with(pools, memory.clone().into(), SharedFile::External(memory), owners, pools.buffers))
    }

    /// Like [`new`](Self::new), with the last `own` buffers as a pool of packets. Buffers of slots are
    /// exchanged for the pool's ([`exchange`](Self::exchange)). As buffers must be accessed through that alone,
    /// [`memory`](Self::memory) ends before all buffers.
    pub fn exchanging(
        pools: Pools,
        own: u32,
        config: &RegionConfig,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let pools = pools.checked()?;
        let free = pools.buffers.checked_sub(own).filter(|&free| free > RESERVED_BUFFERS).ok_or(Error::Pools)?;
        let (front, size) = (pools.buffers_at(), pools.buffer_size as usize);
        let (buffers, own) = (pools.buffers as usize, own as usize);
        let exchange = SharedPool::new(&SwapPoolConfig { front, buffers, own, size, region: *config })?;
        let file = exchange.pool().region().clone();
        let memory = Memory::first(&file, front);
        Ok(Self::with(pools, memory, SharedFile::Own(file), BufferOwners::ZeroCopy(exchange), free))
    }

    /// Returns whether any ring is allocated.
    pub fn has_rings(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Returns whether there is an interface descriptor at an offset.
    pub(crate) fn has_interface(&self, offset: usize) -> bool {
        offset.is_multiple_of(INTERFACE_BYTES) && offset / INTERFACE_BYTES < self.pools.interfaces as usize
    }

    /// Returns whether another process can go on with the region as its owner: not with a program's own memory, nor if buffers are exchanged.
    pub fn can_be_passed_on(&self) -> bool {
        matches!((&self.file, &self.owners), (SharedFile::Own(_), BufferOwners::Own(_)))
    }

    /// Returns what a successor has to know, besides the [file](Self::file). `None` if it
    /// [cannot](Self::can_be_passed_on) go on.
    pub fn state(&self) -> Option<RegionState> {
        let (SharedFile::Own(_), BufferOwners::Own(taken)) = (&self.file, &self.owners) else { return None };
        let mut allocated: Vec<(u32, u32)> = Vec::new();
        for buffer in (0..self.pools.buffers).filter(|&buffer| taken[buffer as usize]) {
            match allocated.last_mut() {
                Some((first, number)) if *first + *number == buffer => *number += 1,
                _ => allocated.push((buffer, 1)),
            }
        }
        let rings = self.rings.iter().map(|(&offset, ring)| (offset, ring.slots())).collect();
        Some(RegionState { pools: self.pools, free_interfaces: self.free_interfaces.clone(), rings, allocated })
    }

    /// Goes on with a region that another process has owned, of which this is the memory.
    ///
    /// # Errors
    /// The state does not fit to the memory.
    pub fn resume(file: Arc<DmaRegion>, state: RegionState) -> Result<Self, &'static str> {
        let RegionState { pools, free_interfaces, rings, allocated } = state;
        let pools = pools.checked().map_err(|_| "the pools of a memory are invalid")?;
        let end = (pools.buffers as usize).checked_mul(pools.buffer_size as usize);
        if end.and_then(|end| end.checked_add(pools.buffers_at())).is_none_or(|end| end > file.len()) {
            return Err("a memory is smaller than its pools");
        }
        let owners = BufferOwners::Own(vec![false; pools.buffers as usize]);
        let mut region = Self::with(pools, file.clone().into(), SharedFile::Own(file), owners, pools.buffers);
        if free_interfaces.iter().any(|&free| free >= pools.interfaces) {
            return Err("a memory has fewer interface descriptors than are free");
        }
        region.free_interfaces = free_interfaces;
        for (offset, slots) in rings {
            region.take_ring_again(offset, slots).ok_or("the rings of a memory overlap")?;
        }
        for (first, number) in allocated {
            let last = first.checked_add(number).filter(|&last| first >= RESERVED_BUFFERS && last <= pools.buffers);
            let last = last.ok_or("a memory has fewer buffers than are allocated")?;
            (first..last).for_each(|buffer| _ = region.owners.take(buffer));
        }
        let free = |buffer: &u32| !matches!(&region.owners, BufferOwners::Own(taken) if taken[*buffer as usize]);
        region.free_buffers = (RESERVED_BUFFERS..pools.buffers).rev().filter(free).collect();
        Ok(region)
    }

    /// Allocates the room of a ring that exists already.
    fn take_ring_again(&mut self, offset: usize, slots: u32) -> Option<()> {
        let bytes = Ring::bytes(slots).next_multiple_of(LINE);
        let (&start, &len) = self.free_rings.range(..=offset).next_back()?;
        let end = offset.checked_add(bytes).filter(|&end| end <= start + len && offset.is_multiple_of(LINE))?;
        let ring = Ring::new(&self.memory, offset, slots)?;
        self.free_rings.remove(&start);
        for (start, end) in [(start, offset), (end, start + len)].into_iter().filter(|(start, end)| start < end) {
            self.free_rings.insert(start, end - start);
        }
        self.rings.insert(offset, ring);
        Some(())
    }

    /// Creates the region with the buffers before `end` free.
    fn with(pools: Pools, memory: Memory, file: SharedFile, owners: BufferOwners, end: u32) -> Self {
        Self {
            memory,
            file,
            pools,
            free_interfaces: (0..pools.interfaces).rev().collect(),
            free_rings: [(pools.rings_at(), pools.ring_bytes)].into(),
            free_buffers: (RESERVED_BUFFERS..end).rev().collect(),
            owners,
            rings: BTreeMap::new(),
        }
    }

    /// The region's pools.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The pool of packets in this region, with the exchange of its buffers; `None` if there is none.
    pub fn exchange(&self) -> Option<&Arc<SharedPool>> {
        self.owners.exchange()
    }

    /// The region's memory in this process.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the file of the region's memory, to be mapped by others, from [`file_offset`](Self::file_offset) on.
    pub fn file(&self) -> Result<BorrowedFd<'_>, ringpass_memory::Error> {
        match &self.file {
            SharedFile::Own(region) => region.file(),
            SharedFile::External(memory) => Ok(memory.file().expect("checked when it was created").0),
        }
    }

    /// Returns the region's memory if this process has allocated it; `None` for a program's own.
    pub fn allocated(&self) -> Option<&Arc<DmaRegion>> {
        match &self.file {
            SharedFile::Own(region) => Some(region),
            SharedFile::External(_) => None,
        }
    }

    /// Returns where the region begins in its file, in bytes.
    pub fn file_offset(&self) -> u64 {
        match &self.file {
            SharedFile::Own(_) => 0,
            SharedFile::External(memory) => memory.file().map_or(0, |(_, offset)| offset),
        }
    }

    /// Returns the bytes of the region's memory.
    pub fn bytes(&self) -> usize {
        match &self.file {
            SharedFile::Own(region) => region.len(),
            SharedFile::External(memory) => memory.len(),
        }
    }

    /// Allocates an interface descriptor and fills it in. `rings` counts Tx, host Tx, Rx and host Rx rings;
    /// `private` sets [`PRIVATE`]. Returns its offset.
    pub fn interface(&mut self, name: &str, rings: [u32; 4], private: bool) -> Result<usize, Error> {
        if rings.iter().sum::<u32>() as usize > (INTERFACE_BYTES - RING_OFFSETS) / 8 {
            return Err(Error::Interfaces);
        }
        let offset = self.free_interfaces.pop().ok_or(Error::Interfaces)? as usize * INTERFACE_BYTES;
        let interface = &self.memory.cells::<Interface>(offset, 1).expect("in the pool")[0];
        let bytes = name.bytes().take(15).chain(std::iter::repeat(0));
        interface.name.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Relaxed));
        interface.version.store(API.into(), Relaxed);
        interface.flags.store(if private { PRIVATE } else { 0 }, Relaxed);
        let [tx, host_tx, rx, host_rx] = rings;
        for (to, count) in [
            (&interface.tx_rings, tx),
            (&interface.rx_rings, rx),
            (&interface.host_tx_rings, host_tx),
            (&interface.host_rx_rings, host_rx),
            (&interface.extra_buffers, 0),
        ] {
            to.store(count, Relaxed);
        }
        Ok(offset)
    }

    /// Frees an interface descriptor.
    pub fn release_interface(&mut self, offset: usize) {
        self.free_interfaces.push((offset / INTERFACE_BYTES) as u32);
    }

    /// Sets the offset of a descriptor's ring `number`; `None` if it has no such ring.
    pub fn set_ring(&self, interface: usize, number: usize, ring: Option<usize>) {
        let offset = interface + RING_OFFSETS + 8 * number;
        let word = self.memory.cells::<AtomicU64>(offset, 1).expect("in the pool");
        word[0].store(ring.map_or(0, |ring| ring.wrapping_sub(interface) as u64), Relaxed);
    }

    /// Allocates a ring and fills in its header. Its slots get buffers if `filled`, else none. Returns the ring
    /// and its offset; on an error nothing is allocated.
    pub fn ring(&mut self, direction: Direction, id: u16, slots: u32, filled: bool) -> Result<(Ring, usize), Error> {
        let bytes = Ring::bytes(slots).next_multiple_of(LINE);
        let buffers = if filled { slots as usize } else { 0 };
        if buffers > self.free_buffers.len() {
            return Err(Error::Buffers { left: self.free_buffers.len(), wanted: buffers });
        }
        let first = self.free_rings.iter().find(|&(_, &len)| len >= bytes).map(|(&start, &len)| (start, len));
        let (offset, len) = first.ok_or(Error::Rings(bytes))?;
        self.free_rings.remove(&offset);
        if len > bytes {
            self.free_rings.insert(offset + bytes, len - bytes);
        }
        let ring = Ring::new(&self.memory, offset, slots).expect("in the pool");
        let header = ring.header();
        header.buffers.store(self.pools.buffers_at().wrapping_sub(offset) as u64, Relaxed);
        header.slots.store(slots, Relaxed);
        header.buffer_size.store(self.pools.buffer_size, Relaxed);
        header.id.store(id, Relaxed);
        header.direction.store(u16::from(direction == Direction::Rx), Relaxed);
        for word in [&header.head, &header.cur, &header.flags] {
            word.store(0, Relaxed);
        }
        header.offset_mask.store(0, Relaxed);
        header.tail.store(if direction == Direction::Tx { slots - 1 } else { 0 }, Relaxed);
        for position in 0..slots {
            let buffer = if filled { self.alloc_buffer().expect("counted above") } else { 0 };
            ring.set(position, Slot { buffer, ..Slot::default() });
        }
        self.rings.insert(offset, Ring::new(&self.memory, offset, slots).expect("in the pool"));
        Ok((ring, offset))
    }

    /// Returns the ring at an offset, if there is one.
    pub(crate) fn ring_at(&self, offset: usize) -> Option<&Ring> {
        self.rings.get(&offset)
    }

    /// Returns the ring at an offset once more.
    pub(crate) fn ring_again(&self, offset: usize) -> Option<Ring> {
        Ring::new(&self.memory, offset, self.ring_at(offset)?.slots())
    }

    /// Frees rings, and the buffers in their slots that no other ring of the region names: programs may have
    /// exchanged them, lost some, or written anything there. With the last ring, all buffers are freed. Takes
    /// time in proportion to the slots of all rings, however many are freed.
    ///
    /// # Panics
    /// If there is no ring at one of these offsets.
    pub fn release_rings(&mut self, offsets: &[usize]) {
        let mut released = Vec::new();
        for &offset in offsets {
            let ring = self.rings.remove(&offset).expect("a ring of this region");
            self.release_room(&ring, offset);
            released.push(ring);
        }
        if self.rings.is_empty() {
            (RESERVED_BUFFERS..self.pools.buffers).for_each(|buffer| _ = self.free_buffer(buffer));
            self.free_buffers.sort_unstable_by(|one, other| other.cmp(one));
            return;
        }
        let others = self.buffers_in_rings();
        for buffer in released.iter().flat_map(in_use) {
            if !others.get(buffer as usize).is_some_and(|&in_ring| in_ring) {
                self.free_buffer(buffer);
            }
        }
    }

    /// Returns for each buffer whether a slot of any ring names it.
    fn buffers_in_rings(&self) -> Vec<bool> {
        let mut in_rings = vec![false; self.pools.buffers as usize];
        for buffer in self.rings.values().flat_map(in_use) {
            if let Some(in_ring) = in_rings.get_mut(buffer as usize) {
                *in_ring = true;
            }
        }
        in_rings
    }

    /// Frees a buffer if it is allocated and not the pool's. Returns whether it was freed.
    fn free_buffer(&mut self, buffer: u32) -> bool {
        let taken = self.owners.free_buffer(buffer);
        if taken {
            self.free_buffers.push(buffer);
        }
        taken
    }

    fn alloc_buffer(&mut self) -> Option<u32> {
        let buffer = self.free_buffers.pop()?;
        assert!(self.owners.take(buffer), "what is listed as free is");
        Some(buffer)
    }

    fn release_room(&mut self, ring: &Ring, offset: usize) {
        let (mut start, mut len) = (offset, Ring::bytes(ring.slots()).next_multiple_of(LINE));
        if let Some((&before, &bytes)) = self.free_rings.range(..offset).next_back()
            && before + bytes == offset
        {
            self.free_rings.remove(&before);
            (start, len) = (before, bytes + len);
        }
        if let Some(bytes) = self.free_rings.remove(&(start + len)) {
            len += bytes;
        }
        self.free_rings.insert(start, len);
    }

    /// Allocates `wanted` buffers besides those of rings, or none. They are freed with the last ring.
    pub fn extra_buffers(&mut self, wanted: usize) -> Result<Vec<u32>, Error> {
        let left = self.free_buffers.len();
        if wanted > left {
            return Err(Error::Buffers { left, wanted });
        }
        Ok((0..wanted).map_while(|_| self.alloc_buffer()).collect())
    }

    /// Number of free buffers.
    pub fn free_buffers(&self) -> usize {
        self.free_buffers.len()
    }

    /// Validates a slot that an application has written. Returns the buffer's offset in the memory and the
    /// length of the frame; `None` if the buffer does not exist or is too small.
    #[inline]
    pub fn check(&self, slot: Slot) -> Option<(usize, usize)> {
        self.pools.check(slot)
    }
}

/// Buffers that a ring's slots name.
fn in_use(ring: &Ring) -> impl Iterator<Item = u32> {
    (0..ring.slots()).map(|position| ring.slot(position).buffer)
}

/// Largest room for rings in bytes, more than any program could use. With it, offsets in a region cannot overflow.
const MAX_RING_BYTES: usize = 1 << 40;

/// Largest size of a buffer in bytes: what a slot's length of 16 bits can name, and one.
const MAX_BUFFER_BYTES: u32 = 1 << 16;

impl Pools {
    /// Bytes of a region with these pools, rounded up to pages.
    pub fn bytes(&self) -> usize {
        let buffers = self.buffers as usize * self.buffer_size as usize;
        (self.buffers_at() + buffers).next_multiple_of(4096)
    }

    /// Returns whether offsets in a region with these pools can be computed, which those that another process names may not be.
    pub(crate) fn are_bounded(&self) -> bool {
        self.ring_bytes <= MAX_RING_BYTES && self.buffer_size <= MAX_BUFFER_BYTES
    }

    /// Returns [`buffers_at`](Self::buffers_at); `None` if no region can have such pools.
    pub(crate) fn checked_buffers_at(&self) -> Option<usize> {
        self.are_bounded().then(|| self.buffers_at())
    }

    /// Validates the pools, and rounds the room for rings up to cache lines.
    pub(crate) fn checked(self) -> Result<Self, Error> {
        let Self { interfaces, ring_bytes, buffers, buffer_size } = self;
        let sizes = self.are_bounded() && buffer_size >= 64 && (buffer_size as usize).is_multiple_of(LINE);
        if !sizes || interfaces == 0 || buffers <= RESERVED_BUFFERS || ring_bytes < Ring::bytes(2) {
            return Err(Error::Pools);
        }
        Ok(Self { ring_bytes: ring_bytes.next_multiple_of(LINE), ..self })
    }

    /// Offset of the first ring.
    pub fn rings_at(&self) -> usize {
        self.interfaces as usize * INTERFACE_BYTES
    }

    /// Offset of buffer 0, aligned to a page.
    pub fn buffers_at(&self) -> usize {
        (self.rings_at() + self.ring_bytes).next_multiple_of(4096)
    }

    /// Validates a slot; see [`Region::check`].
    #[inline]
    pub fn check(&self, slot: Slot) -> Option<(usize, usize)> {
        let right = (RESERVED_BUFFERS..self.buffers).contains(&slot.buffer) && u32::from(slot.len) <= self.buffer_size;
        right.then(|| (self.buffers_at() + slot.buffer as usize * self.buffer_size as usize, slot.len.into()))
    }
}
