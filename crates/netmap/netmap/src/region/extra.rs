//! Extra buffers that a program requests besides those of its rings: a list that begins in its interface
//! descriptor and is linked by the first bytes of each buffer.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::Region;
use ringpass_memory::Cells;

use crate::Slot;
use crate::layout::Interface;

impl Region {
    /// Allocates up to `wanted` extra buffers for the program of a descriptor (netmap's `netmap_extra_alloc`).
    /// Returns how many.
    pub fn alloc_extra_buffers(&mut self, interface: usize, wanted: usize) -> usize {
        let most = wanted.min(self.free_buffers());
        let next = (0..most).fold(0, |next, _| self.alloc_linked(next).expect("there are so many"));
        self.first_extra(interface)[0].extra_buffers.store(next, Relaxed);
        most
    }

    /// Frees the buffers in the program's list, at most `most` (netmap's `netmap_extra_free`). It ends at the
    /// first that is not allocated to a program or is in a ring. Buffers that are in no list are freed with the
    /// last ring.
    pub fn free_extra_buffers(&mut self, interface: usize, most: usize) {
        if most == 0 {
            return;
        }
        let in_rings = self.buffers_in_rings();
        let mut next = self.first_extra(interface)[0].extra_buffers.load(Relaxed);
        for _ in 0..most {
            if in_rings.get(next as usize).is_some_and(|&in_ring| in_ring) {
                return;
            }
            let Some(link) = self.free_linked(next) else { return };
            next = link;
        }
    }

    fn first_extra(&self, interface: usize) -> Cells<Interface> {
        self.memory().cells(interface, 1).expect("in the pool")
    }

    /// Allocates a buffer whose first bytes hold the index of the next.
    fn alloc_linked(&mut self, next: u32) -> Option<u32> {
        let Some(exchange) = self.exchange() else {
            let buffer = self.alloc_buffer()?;
            self.link(buffer).expect("a buffer of this region")[0].store(next, Relaxed);
            return Some(buffer);
        };
        // The link is written first: once the buffer is a program's, it may be named and exchanged.
        let exchange = exchange.clone();
        let buffer = self.free_buffers.pop()?;
        assert!(exchange.alloc_external_linked(buffer, next), "what is listed as free is");
        Some(buffer)
    }

    /// Frees a buffer if it is allocated. Returns the index of the next one in the list.
    fn free_linked(&mut self, buffer: u32) -> Option<u32> {
        if let Some(exchange) = self.exchange() {
            let next = exchange.free_external_linked(buffer)?;
            self.free_buffers.push(buffer);
            return Some(next);
        }
        let next = self.link(buffer)?[0].load(Relaxed);
        self.free_buffer(buffer).then_some(next)
    }

    /// The first bytes of a buffer, which hold the index of the next.
    fn link(&self, buffer: u32) -> Option<Cells<AtomicU32>> {
        let (start, _) = self.check(Slot { buffer, len: 4, ..Slot::default() })?;
        self.memory().cells(start, 1)
    }
}
