//! Memory of other processes that devices use: a guest's, whose buffers a card receives into.

use std::sync::{Arc, Mutex, PoisonError};

use ringpass_memory::{ForeignMemory, Grant};
use ringpass_port::Error;

use crate::Bus;

/// What a device was given, and how often: several queues may receive for one guest.
#[derive(Default)]
pub struct ForeignMaps(Mutex<Vec<(Arc<ForeignMemory>, usize)>>);

impl ForeignMaps {
    /// Counts memory, after `map` has shown it to the device if that is the first time.
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

    /// Counts down, and has `unmap` take it from the device with the last.
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

/// Gives the device on a bus what a guest lends.
pub struct GrantOnBus(pub Arc<dyn Bus>);

impl Grant for GrantOnBus {
    fn grant(&self, memory: &Arc<ForeignMemory>) -> Result<(), String> {
        self.0.map_foreign(memory).map_err(|error| error.to_string())
    }

    fn revoke(&self, memory: &Arc<ForeignMemory>) {
        self.0.unmap_foreign(memory);
    }
}
