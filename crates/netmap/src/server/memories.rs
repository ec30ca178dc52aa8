//! The memories that are there as long as the server is.

use serde_json::{Value, json};

use crate::{Pools, Region};

/// The number of the memory that pipes lie in, and ports whose programs ask for it. All who have it trust each other.
pub const COMMON: u16 = 1;
/// The number of the memory whose buffers are exchanged with packets of ports of the machine. Likewise.
pub const EXCHANGED: u16 = 2;

/// See the module.
pub struct Memories {
    /// See [`COMMON`].
    pub common: Region,
    /// See [`EXCHANGED`]. Nobody copies in it.
    pub exchanged: Option<Region>,
}

impl Memories {
    /// One that a port lies in which has none of its own.
    ///
    /// # Panics
    /// If there is none of this number.
    pub fn shared(&mut self, id: u16) -> &mut Region {
        match id {
            EXCHANGED => self.exchanged.as_mut().expect("a port lies in it"),
            _ => &mut self.common,
        }
    }

    /// By its number.
    pub fn find(&self, id: u16) -> Option<&Region> {
        match id {
            COMMON => Some(&self.common),
            EXCHANGED => self.exchanged.as_ref(),
            _ => None,
        }
    }

    /// What they have: buffers that are free, in all, and of the pool.
    pub fn status(&self) -> [Value; 2] {
        let status = |region: &Region| {
            let Pools { buffers, buffer_size, .. } = *region.pools();
            let mut status = json!({"buffers": buffers, "free": region.free_buffers(), "buffer_size": buffer_size});
            if let Some(exchange) = region.exchange() {
                let [_, programs, own] = exchange.books();
                (status["programs"], status["pool"]) = (programs.into(), own.into());
            }
            status
        };
        [status(&self.common), self.exchanged.as_ref().map_or(Value::Null, status)]
    }
}
