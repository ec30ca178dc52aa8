//! Parameters of a ring, collected from several messages until the ring can be started.

use std::os::fd::OwnedFd;

use ringpass_ipc::EventNotifier;
use ringpass_memory::Avx2;
use ringpass_virtio::device::{GuestMemory, VringConfig};
use ringpass_virtio::features::{EVENT_IDX, RING_PACKED};
use ringpass_virtio::layout::MAX_SIZE;

use crate::inflight::InflightMemory;
use crate::memory_table::MemoryTable;
use crate::message::refuse;
use crate::{Device, QueueStart, Refusal, VringAddr, VringBase};

/// Notification from the guest that buffers are available.
pub(crate) enum Kick {
    /// The guest does not kick; the ring is polled.
    Polled,
    /// The guest signals an eventfd.
    Eventfd(OwnedFd),
}

/// Parameters of a ring as the front-end has sent them.
#[derive(Default)]
pub(crate) struct Ring {
    pub(crate) size: Option<u16>,
    pub(crate) address: Option<VringAddr>,
    pub(crate) base: Option<VringBase>,
    /// Kick of a ring that is about to start; it moves to the device at the start.
    pub(crate) kick: Option<Kick>,
    pub(crate) call: Option<EventNotifier>,
    pub(crate) error: Option<EventNotifier>,
    /// Configuration of the ring if it is running.
    pub(crate) running: Option<VringConfig>,
}

impl Ring {
    /// Starts the ring if all parameters are known; the kick is what front-ends send last. If the start
    /// fails, the kick is dropped: the same parameters would fail again, so the next attempt needs another
    /// kick.
    pub(crate) fn start(
        &mut self,
        queue: usize,
        features: u64,
        (table, inflight): (&MemoryTable, Option<&InflightMemory>),
        device: &mut dyn Device,
    ) -> Result<(), Refusal> {
        let (Some(size), Some(address), false) = (self.size, self.address, table.is_empty()) else { return Ok(()) };
        let Some(kick) = self.kick.take() else { return Ok(()) };
        if features & RING_PACKED == 0 && !size.is_power_of_two() {
            return refuse(format!("split ring {queue} of {size} descriptors, which is not a power of two"));
        }
        let VringAddr { descriptors, available: driver, used: device_part, .. } = address;
        let base = initial_base(self.base, size, features)?;
        let inflight = inflight.map(|inflight| inflight.of(queue, size, features)).transpose()?;
        let setup = VringConfig {
            size,
            features,
            descriptors,
            driver,
            device: device_part,
            base,
            inflight,
            avx2: Avx2::detect(),
        };
        check_parts(&setup, table.memory())?;
        let kick = match kick {
            Kick::Polled => None,
            Kick::Eventfd(eventfd) => Some(eventfd),
        };
        let start = QueueStart { setup: setup.clone(), memory: table.memory().clone(), kick, call: self.call.clone() };
        device.start(queue, start).map_err(Refusal)?;
        self.running = Some(setup);
        Ok(())
    }

    /// Stops the ring if it is running. Returns its position, for the next start.
    pub(crate) fn stop(&mut self, queue: usize, device: &mut dyn Device) -> Result<VringBase, Refusal> {
        self.kick = None;
        if self.running.take().is_some() {
            self.base = Some(device.stop(queue).map_err(Refusal)?);
        }
        Ok(self.base.unwrap_or(0))
    }

    /// Stops the ring and forgets all parameters but the call and error eventfds, which front-ends send once
    /// and expect to persist.
    pub(crate) fn reset(&mut self, queue: usize, device: &mut dyn Device) -> Result<(), Refusal> {
        self.stop(queue, device)?;
        *self = Self { call: self.call.take(), error: self.error.take(), ..Self::default() };
        Ok(())
    }
}

/// Checks the size of a ring.
pub(crate) fn size(num: u32) -> Result<u16, Refusal> {
    match u16::try_from(num) {
        Ok(size @ 1..=MAX_SIZE) => Ok(size),
        _ => refuse(format!("a ring of {num} descriptors; 1 to {MAX_SIZE} can be")),
    }
}

/// Returns the position at which a ring begins, derived from the position that the front-end has sent.
///
/// For packed rings, the lower half sets both available and used position. DPDK's front-end sends no upper
/// half, and QEMU's differs only if chains are in flight, which the inflight area records more precisely.
fn initial_base(told: Option<VringBase>, size: u16, features: u64) -> Result<VringBase, Refusal> {
    const WRAP: u32 = 1 << 15;
    if features & RING_PACKED == 0 {
        let base = told.unwrap_or(0);
        return if base <= u16::MAX.into() { Ok(base) } else { refuse(format!("a ring that begins at {base:#x}")) };
    }
    let next = told.unwrap_or(WRAP) & 0xffff;
    if next & !WRAP >= u32::from(size) {
        return refuse(format!("a packed ring of {size} descriptors that begins at {:#x}", next & !WRAP));
    }
    Ok(next | next << 16)
}

/// Checks that a ring's parts are aligned (virtio 2.7, 2.8) and lie in memory.
pub(crate) fn check_parts(setup: &VringConfig, memory: &GuestMemory) -> Result<(), Refusal> {
    let size = u64::from(setup.size);
    let parts = if setup.features & RING_PACKED == 0 {
        let event = if setup.features & EVENT_IDX == 0 { 0 } else { 2 };
        [
            ("descriptors", setup.descriptors, 16 * size, 16),
            ("available ring", setup.driver, 4 + 2 * size + event, 2),
            ("used ring", setup.device, 4 + 8 * size + event, 4),
        ]
    } else {
        [
            ("descriptors", setup.descriptors, 16 * size, 16),
            ("driver's event suppression", setup.driver, 4, 4),
            ("device's event suppression", setup.device, 4, 4),
        ]
    };
    for (what, at, len, align) in parts {
        if !at.is_multiple_of(align) {
            return refuse(format!("a ring with its {what} at {at:#x}, which is not aligned to {align}"));
        }
        if memory.user(at, len).is_none() {
            return refuse(format!("a ring with its {what}, {len:#x} bytes at {at:#x}, in no memory region"));
        }
    }
    Ok(())
}
