//! Shared memory that records chains in flight, so that the record outlives either end ("Inflight I/O
//! tracking"). The back-end creates it; the front-end keeps it and passes it to the next back-end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use ringpass_virtio::device::Inflight;
use ringpass_virtio::features::RING_PACKED;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::message::refuse;
use crate::{InflightArea, Refusal};

/// Returns the size in bytes of one queue's part: QueueRegionSplit or QueueRegionPacked with an entry per
/// descriptor.
fn part(features: u64, queue_size: u16) -> usize {
    let (head, entry) = if features & RING_PACKED == 0 { (16, 16) } else { (32, 32) };
    head + entry * usize::from(queue_size)
}

/// Returns the distance in bytes between the parts of two queues; parts begin on a cache line.
fn stride(features: u64, queue_size: u16) -> usize {
    part(features, queue_size).next_multiple_of(64)
}

/// Checks the number of queues and their size. Returns the size of the area in bytes.
fn check(area: &InflightArea, features: u64, queues: usize) -> Result<usize, Refusal> {
    if area.queues == 0 || usize::from(area.queues) > queues {
        return refuse(format!("what is in flight of {} queues; there are {queues}", area.queues));
    }
    if area.queue_size == 0 || area.queue_size > 1 << 15 {
        return refuse(format!("what is in flight of queues of {} descriptors", area.queue_size));
    }
    Ok(stride(features, area.queue_size) * usize::from(area.queues))
}

/// Creates an area ("GET_INFLIGHT_FD") of zeros, the state of an unused one. The back-end does not keep the
/// file.
pub(crate) fn create(asked: &InflightArea, features: u64, queues: usize) -> Result<(InflightArea, OwnedFd), Refusal> {
    let len = check(asked, features, queues)? as u64;
    let make = || {
        let file = rustix::fs::memfd_create("vhost-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    };
    let file =
        make().map_err(|errno: rustix::io::Errno| Refusal(format!("no memory for what is in flight: {errno}")))?;
    Ok((InflightArea { size: len, offset: 0, ..*asked }, file))
}

/// An area that the front-end has passed back.
pub(crate) struct InflightMemory {
    memory: Arc<ForeignMemory>,
    area: InflightArea,
}

impl InflightMemory {
    /// Maps an area ("SET_INFLIGHT_FD").
    pub(crate) fn map(area: InflightArea, file: &OwnedFd, features: u64, queues: usize) -> Result<Self, Refusal> {
        let least = check(&area, features, queues)?;
        if area.size < least as u64 {
            return refuse(format!("{:#x} bytes for what is in flight, which takes {least:#x}", area.size));
        }
        let memory = ForeignMemory::map(file.as_fd(), area.offset, least);
        Ok(Self { memory: memory.map_err(|error| Refusal(error.to_string()))?, area })
    }

    /// Returns a queue's part. Checks again that the area has room for it, as the features may have changed
    /// since `map`.
    pub(crate) fn of(&self, queue: usize, size: u16, features: u64) -> Result<Inflight, Refusal> {
        let (offset, len) = (queue * stride(features, self.area.queue_size), part(features, self.area.queue_size));
        if queue >= usize::from(self.area.queues) || size > self.area.queue_size || offset + len > self.memory.len() {
            return refuse(format!(
                "a ring of {size} descriptors that has no room in what is noted of those in flight"
            ));
        }
        Ok(Inflight { memory: self.memory.clone(), offset, len })
    }

    /// Returns whether the memory was taken away.
    pub(crate) fn lost(&self) -> bool {
        self.memory.lost()
    }
}
