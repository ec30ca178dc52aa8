//! Memory of other processes that devices access, for instance a guest's buffers that a card receives into.

use std::sync::{Arc, Mutex, PoisonError};

use ringpass_memory::ForeignMemory;
use ringpass_port::Error;

/// Foreign memory that a device was given, with a use count: several queues may receive for one guest.
#[derive(Default)]
pub struct ForeignMaps(Mutex<Vec<(Arc<ForeignMemory>, usize)>>);

impl ForeignMaps {
    /// Adds a use of `memory`. On the first use, `map` is called to give the memory to the device.
    pub fn add(&self, memory: &Arc<ForeignMemory>, map: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match maps.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory)) {
            Some((_, count)) => *count += 1,
            None => {
                map()?;
                maps.push((memory.clone(), 1));
            }
        }
        Ok(())
    }

    /// Removes a use of `memory`. After the last use, `unmap` is called to take the memory from the device.
    pub fn remove(&self, memory: &Arc<ForeignMemory>, unmap: impl FnOnce()) {
        let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = maps.iter().position(|(known, _)| Arc::ptr_eq(known, memory)) else { return };
        maps[at].1 -= 1;
        if maps[at].1 == 0 {
            unmap();
            maps.remove(at);
        }
    }
}
