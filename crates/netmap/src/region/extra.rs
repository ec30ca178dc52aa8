//! Buffers that a program asks for beside those of its rings: a list that begins in its descriptor and goes on in the first
//! bytes of each.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::Region;
use crate::layout::Interface;
use crate::{Cells, Slot};

impl Region {
    /// Takes so many buffers, or as many as there are, for the program of a descriptor. Returns how many.
    pub fn lend_extra_buffers(&mut self, interface: usize, wanted: usize) -> usize {
        let most = wanted.min(self.free_buffers());
        let next = (0..most).fold(0, |next, _| self.take_linked(next).expect("there are so many"));
        self.first_extra(interface)[0].extra_buffers.store(next, Relaxed);
        most
    }

    /// Takes back what the program has left in its list, up to so many buffers: those that are a program's, and in no
    /// ring. What is in no list comes back with the last ring.
    pub fn take_back_extra_buffers(&mut self, interface: usize, most: usize) {
        let in_rings = self.buffers_in_rings();
        let mut next = self.first_extra(interface)[0].extra_buffers.load(Relaxed);
        for _ in 0..most {
            if in_rings.contains(&next) {
                return;
            }
            let Some(link) = self.give_back_linked(next) else { return };
            next = link;
        }
    }

    fn first_extra(&self, interface: usize) -> Cells<Interface> {
        self.memory().cells(interface, 1).expect("in the pool")
    }

    /// Takes a buffer that says which one comes next.
    fn take_linked(&mut self, next: u32) -> Option<u32> {
        let Some(exchange) = self.exchange() else {
            let buffer = self.take_buffer()?;
            self.link(buffer).expect("a buffer of this region")[0].store(next, Relaxed);
            return Some(buffer);
        };
        // Written before it is a program's, who may name it at once.
        let exchange = exchange.clone();
        let buffer = self.free_buffers.pop()?;
        assert!(exchange.lend_with(buffer, next), "what is listed as free is");
        Some(buffer)
    }

    /// A buffer is free again, if it was taken. Returns which one it says comes next.
    fn give_back_linked(&mut self, buffer: u32) -> Option<u32> {
        if let Some(exchange) = self.exchange() {
            let next = exchange.take_back_with(buffer)?;
            self.free_buffers.push(buffer);
            return Some(next);
        }
        let next = self.link(buffer)?[0].load(Relaxed);
        self.give_back(buffer).then_some(next)
    }

    /// The start of a buffer, which says which one comes next.
    fn link(&self, buffer: u32) -> Option<Cells<AtomicU32>> {
        let (start, _) = self.check(Slot { buffer, len: 4, ..Slot::default() })?;
        self.memory().cells(start, 1)
    }
}
