//! The memories of ports, by number: two that exist as long as the server, and the private ones.

use std::collections::BTreeMap;

use ringpass_netmap::{Pools, Region};
use serde_json::{Value, json};

use super::budget::PrivateMemory;

/// Number of the memory of native ports that copy frames, and of ports whose programs request it. All programs that have it
/// trust each other.
pub const COMMON_MEMORY: u16 = 1;
/// Number of the memory whose buffers are exchanged with packets of native ports. All programs that have it
/// trust each other.
pub const ZERO_COPY_MEMORY: u16 = 2;

/// The memories of ports.
pub struct Memories {
    /// Memory [`COMMON_MEMORY`].
    pub common: Region,
    /// Memory [`ZERO_COPY_MEMORY`], in which nothing is copied.
    pub exchanged: Option<Region>,
    /// Memories that were made for a port, by their number.
    private: BTreeMap<u16, Private>,
    /// The last number given to one.
    last: u16,
}

/// A memory that was made for a port. Pipes and further ports may lie there, too.
struct Private {
    memory: PrivateMemory,
    /// Where it lies, if it is a program's own.
    place: Option<ExternalPlace>,
    /// Number of ports, pipes and connections in it; with the last one it is freed.
    ports: usize,
}

/// A memory, and what is known of it.
pub struct Known<'a> {
    /// Its number.
    pub id: u16,
    /// Number of ports, pipes and connections in it; 0 if it is not private.
    pub ports: usize,
    /// The memory.
    pub region: &'a Region,
}

/// Where a program's own memory lies. Programs that bring the same along share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalPlace {
    /// Device and inode of its file.
    pub file: (u64, u64),
    /// First byte, and number of bytes.
    pub range: (u64, u64),
}

impl Memories {
    /// Creates the memories of a server without ports.
    pub fn new(common: Region) -> Self {
        Self { common, exchanged: None, private: BTreeMap::new(), last: ZERO_COPY_MEMORY }
    }

    /// Adds the memory that was made for a port, which is [in](Self::enter) it. Returns its number.
    pub fn add(&mut self, memory: PrivateMemory) -> u16 {
        self.insert(memory, None)
    }

    /// Adds a program's own memory, which the program's connection is in. Returns its number.
    pub fn add_external(&mut self, memory: PrivateMemory, place: ExternalPlace) -> u16 {
        self.insert(memory, Some(place))
    }

    /// Returns the number of the memory at a place, if a program has brought that along already.
    pub fn external_at(&self, place: ExternalPlace) -> Option<u16> {
        self.private.iter().find(|(_, private)| private.place == Some(place)).map(|(&id, _)| id)
    }

    fn insert(&mut self, memory: PrivateMemory, place: Option<ExternalPlace>) -> u16 {
        let id = self.take_number();
        self.private.insert(id, Private { memory, place, ports: 1 });
        id
    }

    /// Returns the number for a further memory, and remembers it as the last one given.
    pub fn take_number(&mut self) -> u16 {
        self.last = self.free_number();
        self.last
    }

    /// Returns the number that a further memory would get.
    pub fn free_number(&self) -> u16 {
        next_memory(self.last, |number| self.private.contains_key(&number))
    }

    /// Goes on with a memory of another server, which has this number of ports and pipes.
    ///
    /// # Errors
    /// It has none, or there is one with this number.
    pub fn resume(&mut self, id: u16, memory: PrivateMemory, ports: usize) -> Result<(), &'static str> {
        if id <= ZERO_COPY_MEMORY || ports == 0 || self.private.contains_key(&id) {
            return Err("the number of a memory is wrong");
        }
        self.private.insert(id, Private { memory, place: None, ports });
        Ok(())
    }

    /// The last number that was given to a memory.
    pub fn last(&self) -> u16 {
        self.last
    }

    /// Sets the last number that was given to a memory.
    pub fn set_last(&mut self, last: u16) {
        self.last = last.max(ZERO_COPY_MEMORY);
    }

    /// Returns all memories.
    pub fn all(&self) -> impl Iterator<Item = Known<'_>> {
        let common = [Known { id: COMMON_MEMORY, ports: 0, region: &self.common }].into_iter();
        let exchanged = self.exchanged.iter().map(|region| Known { id: ZERO_COPY_MEMORY, ports: 0, region });
        let private = self.private.iter();
        let private = private.map(|(&id, private)| Known { id, ports: private.ports, region: &private.memory.region });
        common.chain(exchanged).chain(private)
    }

    /// Frees all private memories.
    pub fn clear(&mut self) {
        self.private.clear();
    }

    /// Returns whether a memory was made for a port, or brought along by a program.
    pub fn is_private(&self, id: u16) -> bool {
        self.private.contains_key(&id)
    }

    /// Counts a port or pipe that lies in a memory.
    pub fn enter(&mut self, id: u16) {
        self.private.get_mut(&id).into_iter().for_each(|private| private.ports += 1);
    }

    /// Removes a port or pipe from a memory, which has freed all that it had there. A private memory without any
    /// is freed.
    pub fn leave(&mut self, id: u16) {
        let Some(private) = self.private.get_mut(&id) else { return };
        private.ports -= 1;
        if private.ports == 0 {
            self.private.remove(&id).into_iter().for_each(|private| private.memory.release());
        }
    }

    /// Returns the memory of a port.
    ///
    /// # Panics
    /// If there is no memory with this number.
    pub fn region(&mut self, id: u16) -> &mut Region {
        match id {
            COMMON_MEMORY => &mut self.common,
            ZERO_COPY_MEMORY => self.exchanged.as_mut().expect("a port lies in it"),
            _ => &mut self.private.get_mut(&id).expect("a port lies in it").memory.region,
        }
    }

    /// Returns a memory by its number.
    pub fn find(&self, id: u16) -> Option<&Region> {
        match id {
            COMMON_MEMORY => Some(&self.common),
            ZERO_COPY_MEMORY => self.exchanged.as_ref(),
            _ => self.private.get(&id).map(|private| &private.memory.region),
        }
    }

    /// Bytes that a memory takes of the budget.
    pub fn bytes(&self, id: u16) -> usize {
        self.private.get(&id).map_or(0, |private| private.memory.bytes())
    }

    /// Status of each: free buffers, all buffers, and those of the pool.
    pub fn status(&self) -> [Value; 2] {
        let status = |region: &Region| {
            let Pools { buffers, buffer_size, .. } = *region.pools();
            let mut status = json!({"buffers": buffers, "free": region.free_buffers(), "buffer_size": buffer_size});
            if let Some(exchange) = region.exchange() {
                let [_, programs, own] = exchange.owner_counts();
                (status["programs"], status["pool"]) = (programs.into(), own.into());
            }
            status
        };
        [status(&self.common), self.exchanged.as_ref().map_or(Value::Null, status)]
    }
}

/// Returns the first number after `last` that no memory has. Numbers wrap, and programs exchange buffers between ports
/// whose memories have the same one. There are fewer memories than numbers (`MAX_OPEN_PORTS`).
fn next_memory(last: u16, is_taken: impl Fn(u16) -> bool) -> u16 {
    let after = |last: u16| last.checked_add(1).unwrap_or(ZERO_COPY_MEMORY + 1);
    let mut free = after(last);
    while is_taken(free) {
        free = after(free);
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_memories_have_the_same_number() {
        let is_taken = |number| [3, 4, 6, u16::MAX].contains(&number);
        assert_eq!([2, 4, 5, u16::MAX - 1].map(|last| next_memory(last, is_taken)), [5, 5, 7, 5]);
        assert_eq!(next_memory(u16::MAX, |_| false), ZERO_COPY_MEMORY + 1);
    }
}
