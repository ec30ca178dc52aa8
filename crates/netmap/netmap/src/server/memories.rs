//! The memories that exist as long as the server.

use serde_json::{Value, json};

use crate::{Pools, Region};

/// Number of the memory for pipes, and for ports whose programs request it. All programs that have it trust
/// each other.
pub const COMMON_MEMORY: u16 = 1;
/// Number of the memory whose buffers are exchanged with packets of native ports. All programs that have it
/// trust each other.
pub const ZERO_COPY_MEMORY: u16 = 2;

/// The memories that exist as long as the server.
pub struct Memories {
    /// Memory [`COMMON_MEMORY`].
    pub common: Region,
    /// Memory [`ZERO_COPY_MEMORY`], in which nothing is copied.
    pub exchanged: Option<Region>,
}

impl Memories {
    /// Returns the memory of a port that has no private one.
    ///
    /// # Panics
    /// If there is no memory with this number.
    pub fn shared(&mut self, id: u16) -> &mut Region {
        match id {
            ZERO_COPY_MEMORY => self.exchanged.as_mut().expect("a port lies in it"),
            _ => &mut self.common,
        }
    }

    /// Returns a memory by its number.
    pub fn find(&self, id: u16) -> Option<&Region> {
        match id {
            COMMON_MEMORY => Some(&self.common),
            ZERO_COPY_MEMORY => self.exchanged.as_ref(),
            _ => None,
        }
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
