//! A simple device, which accesses a queue directly in its memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use ringpass_virtio::driver::{Addresses, Config};
use ringpass_virtio::layout::{NO_NOTIFY, event, flags};

/// The kind of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Split,
    Packed,
}

/// A piece of memory that the device reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub len: u32,
    pub write: bool,
}

/// A chain that the device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub id: u16,
    pub slots: u16,
    pub pieces: Vec<Piece>,
}

/// Returns the atomics at an address that the driver named, which is in the test's own memory.
pub fn at<T>(address: u64) -> &'static T {
    let pointer = address as usize as *const T;
    assert!(pointer.is_aligned(), "{address:#x}");
    // SAFETY: alignment was just checked. `Device` checks table addresses against the ring's region, the parts
    // of the ring come from the queue's own addresses, and the oracle compares those of buffers with what it
    // posted. All of this outlives the device. Atomics may change under a shared reference.
    unsafe { &*pointer }
}

/// A device that follows the specification (sections 2.7 and 2.8). Positions increase forever; the ring holds
/// their lower bits.
pub struct Device {
    kind: Kind,
    config: Config,
    at: Addresses,
    /// Addresses of the queue's memory.
    memory: std::ops::Range<u64>,
    /// Number of chains (split) or slots (packed) that the device has taken.
    pub taken: u64,
    /// Number of chains (split) or slots (packed) that the device has given back.
    pub used: u64,
    /// Those given back since `interrupts` was last called.
    fresh: u64,
    /// The notifications that it has asked for: all, none, or one at a position.
    pub asked: Asked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Always,
    Never,
    At(u64),
}

fn needs(event: u64, new: u64, old: u64) -> bool {
    (new as u16).wrapping_sub(event as u16).wrapping_sub(1) < (new as u16).wrapping_sub(old as u16)
}

impl Device {
    pub fn new(kind: Kind, config: &Config, at: Addresses, memory: std::ops::Range<u64>) -> Self {
        // Zeroed memory asks for a notification of the first packet, or of all.
        let asked = if config.event_idx && kind == Kind::Split { Asked::At(0) } else { Asked::Always };
        Self { kind, config: *config, at, memory, taken: 0, used: 0, fresh: 0, asked }
    }

    fn size(&self) -> u64 {
        self.config.size.into()
    }

    /// Returns the wrap counter at a position. It is 1 in the first wrap.
    fn wrap(&self, position: u64) -> bool {
        (position / self.size()).is_multiple_of(2)
    }

    fn encoded(&self, position: u64) -> u16 {
        (position % self.size()) as u16 | u16::from(self.wrap(position)) << 15
    }

    fn descriptor(&self, table: u64, index: u64) -> (u64, u32, u16, u16) {
        let address = table + 16 * index;
        assert!(self.memory.contains(&address) && self.memory.contains(&(address + 15)), "a table outside the memory");
        let [first, second] = at::<[AtomicU64; 2]>(address);
        let second = second.load(Ordering::Acquire);
        (first.load(Ordering::Relaxed), second as u32, (second >> 32) as u16, (second >> 48) as u16)
    }

    /// Takes the next available chain.
    pub fn next(&mut self) -> Option<Chain> {
        let chain = match self.kind {
            Kind::Split => self.next_split(),
            Kind::Packed => self.next_packed(),
        }?;
        assert!(!chain.pieces.is_empty() && chain.pieces.iter().all(|piece| piece.len > 0), "{chain:?}");
        assert!(chain.pieces.is_sorted_by_key(|piece| piece.write), "read before written: {chain:?}");
        Some(chain)
    }

    fn next_split(&mut self) -> Option<Chain> {
        let waiting = at::<AtomicU16>(self.at.driver + 2).load(Ordering::Acquire).wrapping_sub(self.taken as u16);
        assert!(waiting <= self.config.size, "the available index jumps by {waiting}");
        if waiting == 0 {
            return None;
        }
        let id = at::<AtomicU16>(self.at.driver + 4 + 2 * (self.taken % self.size())).load(Ordering::Relaxed);
        assert!(id < self.config.size);
        if self.config.in_order {
            assert_eq!(u64::from(id), self.taken % self.size(), "in order, descriptors are taken in ring order");
        }
        let (mut pieces, mut slots, mut index, mut table) = (Vec::new(), 0, u64::from(id), None);
        loop {
            let (address, len, flags, next) = self.descriptor(table.map_or(self.at.descriptors, |(at, _)| at), index);
            slots += u16::from(table.is_none());
            if flags & flags::INDIRECT != 0 {
                assert!(table.is_none() && flags & flags::NEXT == 0 && len > 0 && len % 16 == 0 && slots == 1);
                assert!(len / 16 <= u32::from(self.config.indirect), "a table of {len} bytes");
                (table, index) = (Some((address, u64::from(len) / 16)), 0);
                continue;
            }
            pieces.push(Piece { address, len, write: flags & flags::WRITE != 0 });
            assert!(pieces.len() <= 64, "a loop");
            if flags & flags::NEXT == 0 {
                break;
            }
            index = next.into();
            assert!(index < table.map_or(self.size(), |(_, count)| count), "next is {next}");
        }
        self.taken += 1;
        Some(Chain { id, slots, pieces })
    }

    fn next_packed(&mut self) -> Option<Chain> {
        let is_available = |position: u64, flags: u16| {
            let wrap = self.wrap(position);
            (flags & flags::AVAIL != 0) == wrap && (flags & flags::USED != 0) != wrap
        };
        let entry = |position: u64| self.descriptor(self.at.descriptors, position % self.size());
        let (mut pieces, mut position) = (Vec::new(), self.taken);
        let (mut address, mut len, mut id, mut flags) = entry(position);
        if !is_available(position, flags) {
            return None;
        }
        loop {
            assert!(is_available(position, flags), "a chain of which not all is available");
            position += 1;
            if flags & flags::INDIRECT != 0 {
                assert!(flags & flags::NEXT == 0 && pieces.is_empty() && len > 0 && len % 16 == 0);
                assert!(len / 16 <= u32::from(self.config.indirect), "a table of {len} bytes");
                for i in 0..u64::from(len / 16) {
                    let (address, len, _, flags) = self.descriptor(address, i);
                    assert_eq!(flags & !flags::WRITE, 0, "other flags mean nothing in a table");
                    pieces.push(Piece { address, len, write: flags & flags::WRITE != 0 });
                }
            } else {
                pieces.push(Piece { address, len, write: flags & flags::WRITE != 0 });
            }
            if flags & flags::NEXT == 0 {
                break;
            }
            (address, len, id, flags) = entry(position);
        }
        let slots = (position - self.taken) as u16;
        assert!(slots <= self.config.size, "longer than the ring");
        self.taken = position;
        Some(Chain { id, slots, pieces })
    }

    /// Gives chains back, each with the number of bytes written. With `named`, only the last of them gets an
    /// entry, at the position of the first (2.7.9, 2.8.7).
    pub fn give(&mut self, chains: &[(Chain, u32)], named: bool) {
        let first = self.used;
        let mut entries = Vec::new();
        for (chain, written) in chains {
            entries.push((if named { first } else { self.used }, chain.id, *written));
            let step = if self.kind == Kind::Split { 1 } else { u64::from(chain.slots) };
            (self.used, self.fresh) = (self.used + step, self.fresh + step);
        }
        if named {
            entries.drain(..entries.len() - 1);
        }
        for &(position, id, written) in entries.iter().rev() {
            match self.kind {
                Kind::Split => {
                    let [first, second] = at::<[AtomicU32; 2]>(self.at.device + 4 + 8 * (position % self.size()));
                    first.store(id.into(), Ordering::Relaxed);
                    second.store(written, Ordering::Relaxed);
                }
                Kind::Packed => {
                    let marks = if self.wrap(position) { flags::AVAIL | flags::USED } else { 0 };
                    let [_, second] = at::<[AtomicU64; 2]>(self.at.descriptors + 16 * (position % self.size()));
                    let word = u64::from(written) | u64::from(id) << 32 | u64::from(marks) << 48;
                    second.store(word, Ordering::Release);
                }
            }
        }
        if self.kind == Kind::Split {
            at::<AtomicU16>(self.at.device + 2).store(self.used as u16, Ordering::Release);
        }
    }

    /// Returns whether the driver wants an interrupt for what was given back since the last call.
    pub fn interrupts(&mut self) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        let old = self.used - fresh;
        if fresh == 0 {
            return false;
        }
        match self.kind {
            Kind::Split if self.config.event_idx => {
                let event = at::<AtomicU16>(self.at.driver + 4 + 2 * self.size()).load(Ordering::Relaxed);
                needs(event.into(), self.used, old)
            }
            Kind::Split => at::<AtomicU16>(self.at.driver).load(Ordering::Relaxed) & NO_NOTIFY == 0,
            Kind::Packed => {
                let word = at::<AtomicU32>(self.at.driver).load(Ordering::Relaxed);
                match (word >> 16) as u16 {
                    event::ENABLE => true,
                    event::DISABLE => false,
                    event::DESCRIPTOR if self.config.event_idx => {
                        (old..self.used).any(|position| self.encoded(position) == word as u16)
                    }
                    other => panic!("event suppression {other}"),
                }
            }
        }
    }

    /// Asks for notifications, as far as this kind of ring can express it.
    pub fn ask(&mut self, asked: Asked) {
        self.asked = match (self.kind, asked) {
            // With the event index it can only express a position, which may be far away.
            (Kind::Split, Asked::Always) if self.config.event_idx => Asked::At(self.taken),
            (Kind::Split, Asked::Never) if self.config.event_idx => Asked::At(self.taken + 0x8000),
            (_, Asked::At(_)) if !self.config.event_idx => Asked::Always,
            _ => asked,
        };
        match (self.kind, self.asked) {
            (Kind::Split, Asked::At(position)) => {
                at::<AtomicU16>(self.at.device + 4 + 8 * self.size()).store(position as u16, Ordering::Relaxed);
            }
            (Kind::Split, asked) => {
                let flags = if asked == Asked::Never { NO_NOTIFY } else { 0 };
                at::<AtomicU16>(self.at.device).store(flags, Ordering::Relaxed);
            }
            (Kind::Packed, asked) => {
                let word = match asked {
                    Asked::Always => u32::from(event::ENABLE) << 16,
                    Asked::Never => u32::from(event::DISABLE) << 16,
                    Asked::At(position) => u32::from(event::DESCRIPTOR) << 16 | u32::from(self.encoded(position)),
                };
                at::<AtomicU32>(self.at.device).store(word, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether a driver that advances from position `old` to `new` must notify.
    pub fn wants(&self, new: u64, old: u64) -> bool {
        match (self.kind, self.asked) {
            _ if new == old => false,
            (_, Asked::Always) => true,
            (_, Asked::Never) => false,
            (Kind::Split, Asked::At(position)) => needs(position, new, old),
            (Kind::Packed, Asked::At(position)) => {
                (old..new).any(|other| self.encoded(other) == self.encoded(position))
            }
        }
    }

    /// Returns the value that a notification carries for a position (4.1.5.2).
    pub fn position(&self, position: u64) -> u16 {
        if self.kind == Kind::Split { position as u16 } else { self.encoded(position) }
    }
}

/// Chains that the device has taken and not given back.
pub type Held = VecDeque<Chain>;
