//! Memory for the ports of one client, or of several that trust each other: pools of descriptors, rings and buffers.

mod books;
mod extra;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, Exchange, ExchangeConfig, RegionConfig};

use crate::layout::{API, Interface, PRIVATE, RESERVED_BUFFERS, RING_OFFSETS, RingOffset};
#[cfg(not(loom))]
use crate::{Buffers, Place};
use crate::{Direction, Memory, Ring, Slot};
use books::Books;

/// How many objects of which size a region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Interface descriptors.
    pub interfaces: u32,
    /// Bytes for all rings.
    pub ring_bytes: usize,
    /// Buffers, with the two that are nobody's.
    pub buffers: u32,
    /// Bytes of a buffer: 64 to 65,536, whole cache lines.
    pub buffer_size: u32,
}

impl Default for Pools {
    /// One port with a pair of rings of 1024 slots, and as many buffers again.
    fn default() -> Self {
        Self { interfaces: 2, ring_bytes: 4 * (20 << 10), buffers: 4098, buffer_size: 2048 }
    }
}

/// What a region cannot give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It was not made, or cannot be.
    #[error("a netmap region has 3 or more buffers of 64 to 65536 bytes in whole cache lines, and room for a ring")]
    Pools,
    /// Out of descriptors.
    #[error("the region has no interface descriptor left; close a port, or give it more")]
    Interfaces,
    /// Out of room for rings.
    #[error("the region has no room left for a ring of {0} bytes; ask for fewer slots, or give it more")]
    Rings(usize),
    /// Out of buffers.
    #[error("the region has {left} buffers left of {wanted} that are wanted; close a port, or give it more")]
    Buffers {
        /// What there is.
        left: usize,
        /// What was asked for.
        wanted: usize,
    },
}

const LINE: usize = 64;
/// Of a descriptor: with room for 121 rings.
const INTERFACE_BYTES: usize = 1024;

/// A region, as its owner knows it: what is taken and what is free stands in memory of its own.
pub struct Region {
    file: Arc<DmaRegion>,
    memory: Memory,
    pools: Pools,
    free_interfaces: Vec<u32>,
    /// Stretches of the ring pool, by their start: bytes.
    free_rings: BTreeMap<usize, usize>,
    free_buffers: Vec<u32>,
    books: Books,
    /// Rings by their offset.
    rings: BTreeMap<usize, Ring>,
}

impl Region {
    /// Makes one, with nothing taken.
    pub fn new(pools: Pools, config: &RegionConfig) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let pools = pools.checked()?;
        let file = DmaRegion::new(pools.buffers_at() + pools.buffers as usize * pools.buffer_size as usize, config)?;
        let books = Books::Own(vec![false; pools.buffers as usize]);
        Ok(Self::with(pools, file.clone().into(), file, books, pools.buffers))
    }

    /// As [`new`](Self::new), with a pool of packets in it, of the last `own` buffers: those of rings are exchanged for the pool's
    /// ([`exchange`](Self::exchange)). As nobody is to touch a buffer but by that, [`memory`](Self::memory) ends before them.
    pub fn exchanging(
        pools: Pools,
        own: u32,
        config: &RegionConfig,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let pools = pools.checked()?;
        let free = pools.buffers.checked_sub(own).filter(|&free| free > RESERVED_BUFFERS).ok_or(Error::Pools)?;
        let (front, size) = (pools.buffers_at(), pools.buffer_size as usize);
        let (buffers, own) = (pools.buffers as usize, own as usize);
        let exchange = Exchange::new(&ExchangeConfig { front, buffers, own, size, region: *config })?;
        let file = exchange.pool().region().clone();
        Ok(Self::with(pools, Memory::first(&file, front), file, Books::Exchanged(exchange), free))
    }

    /// With buffers up to `end` free.
    fn with(pools: Pools, memory: Memory, file: Arc<DmaRegion>, books: Books, end: u32) -> Self {
        Self {
            memory,
            file,
            pools,
            free_interfaces: (0..pools.interfaces).rev().collect(),
            free_rings: [(pools.rings_at(), pools.ring_bytes)].into(),
            free_buffers: (RESERVED_BUFFERS..end).rev().collect(),
            books,
            rings: BTreeMap::new(),
        }
    }

    /// What it has.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The pool in it, and how buffers are exchanged with it; `None`: without a pool.
    pub fn exchange(&self) -> Option<&Arc<Exchange>> {
        self.books.exchange()
    }

    /// How whoever serves its rings reaches their buffers.
    #[cfg(not(loom))]
    pub fn place(&self) -> Place {
        match self.exchange() {
            Some(exchange) => Place::Exchanged(exchange.clone()),
            None => Buffers::of(&self.memory, &self.pools).expect("a region has its buffers").into(),
        }
    }

    /// Its memory here.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its memory, for others to map. With a pool in it, nobody of this process is to reach buffers by that.
    pub fn file(&self) -> &Arc<DmaRegion> {
        &self.file
    }

    /// Takes a descriptor and fills it in. Returns its offset.
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

    /// Gives a descriptor back.
    pub fn release_interface(&mut self, offset: usize) {
        self.free_interfaces.push((offset / INTERFACE_BYTES) as u32);
    }

    /// Says in a descriptor where its ring with this number lies; `None`: it has none.
    pub fn set_ring(&self, interface: usize, number: usize, ring: Option<usize>) {
        let place = interface + RING_OFFSETS + 8 * number;
        let word = self.memory.cells::<RingOffset>(place, 1).expect("in the pool");
        word[0].0.store(ring.map_or(0, |ring| ring.wrapping_sub(interface) as u64), Relaxed);
    }

    /// Takes room for a ring and fills its header in; slots have buffers if they are `filled`, else none. Returns the ring
    /// and its offset. On an error nothing is taken.
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
        header.tail.store(if direction == Direction::Tx { slots - 1 } else { 0 }, Relaxed);
        for position in 0..slots {
            let buffer = if filled { self.take_buffer().expect("counted above") } else { 0 };
            ring.set(position, Slot { buffer, ..Slot::default() });
        }
        self.rings.insert(offset, Ring::new(&self.memory, offset, slots).expect("in the pool"));
        Ok((ring, offset))
    }

    /// Gives a ring's room back, and what buffers are in it and in no other ring of the region: programs may have exchanged
    /// them, lost some, or written anything there. With the last ring, all buffers come back.
    ///
    /// # Panics
    /// If there is no ring at that offset.
    pub fn release_ring(&mut self, offset: usize) {
        let ring = self.rings.remove(&offset).expect("a ring of this region");
        self.release_room(&ring, offset);
        if self.rings.is_empty() {
            (RESERVED_BUFFERS..self.pools.buffers).for_each(|buffer| _ = self.give_back(buffer));
            self.free_buffers.sort_unstable_by(|one, other| other.cmp(one));
            return;
        }
        let others = self.buffers_in_rings();
        for buffer in in_use(&ring) {
            if !others.contains(&buffer) {
                self.give_back(buffer);
            }
        }
    }

    /// What slots say.
    fn buffers_in_rings(&self) -> HashSet<u32> {
        self.rings.values().flat_map(in_use).collect()
    }

    /// A buffer is free again, if it was taken and is not the pool's now. Returns whether it is.
    fn give_back(&mut self, buffer: u32) -> bool {
        let taken = self.books.give_back(buffer);
        if taken {
            self.free_buffers.push(buffer);
        }
        taken
    }

    fn take_buffer(&mut self) -> Option<u32> {
        let buffer = self.free_buffers.pop()?;
        assert!(self.books.take(buffer), "what is listed as free is");
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

    /// Takes so many buffers beside those of rings, or none. They come back with the last ring.
    pub fn extra_buffers(&mut self, wanted: usize) -> Result<Vec<u32>, Error> {
        let left = self.free_buffers.len();
        if wanted > left {
            return Err(Error::Buffers { left, wanted });
        }
        Ok((0..wanted).map_while(|_| self.take_buffer()).collect())
    }

    /// Buffers that are free.
    pub fn free_buffers(&self) -> usize {
        self.free_buffers.len()
    }

    /// Where a slot's bytes lie, of those that an application says: the buffer's offset in the memory and a length that fits.
    /// `None` if there is no such buffer, or not so much room in it.
    #[inline]
    pub fn check(&self, slot: Slot) -> Option<(usize, usize)> {
        self.pools.check(slot)
    }
}

/// The buffers of a ring's slots.
fn in_use(ring: &Ring) -> Vec<u32> {
    (0..ring.slots()).map(|position| ring.slot(position).buffer).collect()
}

impl Pools {
    /// Bytes of a region with these pools, in whole pages.
    pub fn bytes(&self) -> usize {
        let buffers = (self.buffers as usize).saturating_mul(self.buffer_size as usize);
        self.buffers_at().saturating_add(buffers).next_multiple_of(4096)
    }

    /// If they can be, with room for rings in whole cache lines.
    fn checked(self) -> Result<Self, Error> {
        let Self { interfaces, ring_bytes, buffers, buffer_size } = self;
        let sizes = (64..=65_536).contains(&buffer_size) && (buffer_size as usize).is_multiple_of(LINE);
        if !sizes || interfaces == 0 || buffers <= RESERVED_BUFFERS || ring_bytes < Ring::bytes(2) {
            return Err(Error::Pools);
        }
        Ok(Self { ring_bytes: ring_bytes.next_multiple_of(LINE), ..self })
    }

    /// Where the rings begin.
    pub fn rings_at(&self) -> usize {
        self.interfaces as usize * INTERFACE_BYTES
    }

    /// Where the first buffer lies: on a page.
    pub fn buffers_at(&self) -> usize {
        (self.rings_at() + self.ring_bytes).next_multiple_of(4096)
    }

    /// See [`Region::check`].
    #[inline]
    pub fn check(&self, slot: Slot) -> Option<(usize, usize)> {
        let right = (RESERVED_BUFFERS..self.buffers).contains(&slot.buffer) && u32::from(slot.len) <= self.buffer_size;
        right.then(|| (self.buffers_at() + slot.buffer as usize * self.buffer_size as usize, slot.len.into()))
    }
}
