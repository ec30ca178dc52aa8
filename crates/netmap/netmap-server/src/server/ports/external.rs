//! Memories that programs bring along.

use std::os::fd::{AsFd, OwnedFd};

use ringpass_memory::ForeignMemory;
use ringpass_netmap::request::AskedMemory;
use rustix::io::Errno;

use super::Ports;
use crate::server::RequestError;
use crate::server::budget::PrivateMemory;
use crate::server::memories::ExternalPlace;

impl Ports {
    /// Makes a memory of a program's file, from `offset` on, unless it is one already; then `asked` has no effect but its size. The
    /// caller is in it until [`leave_external`](Self::leave_external). Returns it as granted.
    ///
    /// # Errors
    /// `EINVAL` for a file that is not in memory, or shorter; `ENOMEM` if the pools do not fit, or there is no budget left.
    pub fn bring_memory(
        &mut self,
        file: OwnedFd,
        offset: u64,
        asked: &AskedMemory,
    ) -> Result<AskedMemory, RequestError> {
        let invalid = |why: String| RequestError::new(Errno::INVAL, format!("memory of the program: {why}"));
        let len = usize::try_from(asked.size).map_err(|_| invalid("it is too large".into()))?;
        let stat = rustix::fs::fstat(file.as_fd()).map_err(|errno| invalid(errno.to_string()))?;
        let place = ExternalPlace { file: (stat.st_dev, stat.st_ino), range: (offset, asked.size) };
        let id = match self.memories.external_at(place) {
            Some(id) => {
                self.memories.enter(id);
                id
            }
            None => {
                let why = "it is too small for a ring with its buffers";
                let too_small = || RequestError::new(Errno::NOMEM, format!("memory of the program: {why}"));
                let pools = asked.fitting().ok_or_else(too_small)?;
                let memory =
                    ForeignMemory::map_shared(file, offset, len).map_err(|error| invalid(error.to_string()))?;
                self.memories.add_external(PrivateMemory::external(pools, memory, &self.budget)?, place)
            }
        };
        Ok(AskedMemory { id, ..*asked })
    }

    /// Ends what [`bring_memory`](Self::bring_memory) has begun. Ports may still lie there.
    pub fn leave_external(&mut self, id: u16) {
        self.memories.leave(id);
    }
}
