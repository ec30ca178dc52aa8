//! The rings of a session: which of them are running, and what may change meanwhile.

use std::os::fd::OwnedFd;

use ringpass_ipc::{EventNotifier, check_eventfd};
use ringpass_virtio::device::GuestMemory;

use crate::inflight::InflightMemory;
use crate::memory_table::MemoryTable;
use crate::message::refuse;
use crate::ring::{self, Kick, Ring, check_parts};
use crate::{Device, Refusal, VringAddr, VringBase};

pub(crate) struct Rings(Vec<Ring>);

impl Rings {
    pub(crate) fn new(queues: usize) -> Self {
        assert!(queues.is_multiple_of(2) && queues <= 256, "{queues} queues");
        Self((0..queues).map(|_| Ring::default()).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        let count = self.0.len();
        let missing = || Refusal(format!("ring {index}, of {count}"));
        self.0.get_mut(index as usize).ok_or_else(missing)
    }

    /// Returns a ring that must be stopped because one of its parameters is to change.
    fn stopped_ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        match self.ring(index)? {
            ring if ring.running.is_some() => refuse(format!("a change of ring {index} while it runs")),
            ring => Ok(ring),
        }
    }

    /// Refuses a change that affects all rings while one of them is running.
    pub(crate) fn require_all_stopped(&self) -> Result<(), Refusal> {
        match self.0.iter().position(|ring| ring.running.is_some()) {
            Some(index) => refuse(format!("a change for all rings while ring {index} runs")),
            None => Ok(()),
        }
    }

    /// Handles SET_VRING_NUM.
    pub(crate) fn set_size(&mut self, index: u32, num: u32) -> Result<(), Refusal> {
        self.stopped_ring(index)?.size = Some(ring::size(num)?);
        Ok(())
    }

    /// Handles SET_VRING_ADDR.
    pub(crate) fn set_address(&mut self, address: VringAddr) -> Result<(), Refusal> {
        // It asks for writes to the used ring to be logged, which they are when all are.
        const LOG: u32 = 1;
        if address.flags & !LOG != 0 {
            return refuse(format!("a ring with flags {:#x}", address.flags));
        }
        let address = VringAddr { flags: 0, ..address };
        // A front-end that begins to log says the addresses of running rings again.
        if self.ring(address.index)?.address != Some(address) {
            self.stopped_ring(address.index)?.address = Some(address);
        }
        Ok(())
    }

    /// Handles SET_VRING_BASE.
    pub(crate) fn set_base(&mut self, index: u32, base: VringBase) -> Result<(), Refusal> {
        self.stopped_ring(index)?.base = Some(base);
        Ok(())
    }

    /// Handles SET_VRING_KICK: the ring is to start. A running ring is restarted at its position.
    pub(crate) fn set_kick(
        &mut self,
        index: u8,
        kick: Option<OwnedFd>,
        device: &mut dyn Device,
    ) -> Result<(), Refusal> {
        let ring = self.ring(index.into())?;
        if let Some(kick) = &kick {
            check_eventfd(kick).map_err(|error| Refusal(error.to_string()))?;
        }
        ring.stop(index.into(), device)?;
        ring.kick = Some(kick.map_or(Kick::Polled, Kick::Eventfd));
        Ok(())
    }

    /// Handles SET_VRING_CALL.
    pub(crate) fn set_call(
        &mut self,
        index: u8,
        call: Option<OwnedFd>,
        device: &mut dyn Device,
    ) -> Result<(), Refusal> {
        let ring = self.ring(index.into())?;
        ring.call = signal(call)?;
        if ring.running.is_some() {
            device.set_call(index.into(), ring.call.clone());
        }
        Ok(())
    }

    /// Handles SET_VRING_ERR.
    pub(crate) fn set_error(&mut self, index: u8, error: Option<OwnedFd>) -> Result<(), Refusal> {
        self.ring(index.into())?.error = signal(error)?;
        Ok(())
    }

    /// Returns whether a call eventfd takes so long to be signalled that no more signals are sent.
    pub(crate) fn has_slow_eventfd(&self) -> bool {
        EventNotifier::any_slow(self.0.iter().filter_map(|ring| ring.call.as_ref()))
    }

    /// Signals the error eventfds of all rings.
    pub(crate) fn signal_error(&self) {
        self.0.iter().filter_map(|ring| ring.error.as_ref()).for_each(EventNotifier::notify);
    }

    /// Handles SET_VRING_ENABLE.
    pub(crate) fn enable(&mut self, index: u32, on: bool, device: &mut dyn Device) -> Result<(), Refusal> {
        self.ring(index)?;
        device.enable(index as usize, on);
        Ok(())
    }

    pub(crate) fn enable_all(&self, on: bool, device: &mut dyn Device) {
        (0..self.0.len()).for_each(|queue| device.enable(queue, on));
    }

    /// Starts all rings whose parameters are complete.
    pub(crate) fn start(
        &mut self,
        features: u64,
        memory: (&MemoryTable, Option<&InflightMemory>),
        device: &mut dyn Device,
    ) -> Result<(), Refusal> {
        self.0.iter_mut().enumerate().try_for_each(|(queue, ring)| ring.start(queue, features, memory, device))
    }

    /// Handles GET_VRING_BASE.
    pub(crate) fn stop(&mut self, index: u32, device: &mut dyn Device) -> Result<VringBase, Refusal> {
        self.ring(index)?.stop(index as usize, device)
    }

    /// Resets all rings to their initial state.
    pub(crate) fn reset(&mut self, device: &mut dyn Device) -> Result<(), Refusal> {
        self.0.iter_mut().enumerate().try_for_each(|(queue, ring)| ring.reset(queue, device))
    }

    /// Checks that all running rings lie in `memory`.
    pub(crate) fn check_within(&self, memory: &GuestMemory) -> Result<(), Refusal> {
        self.0.iter().filter_map(|ring| ring.running.as_ref()).try_for_each(|setup| check_parts(setup, memory))
    }
}

fn signal(eventfd: Option<OwnedFd>) -> Result<Option<EventNotifier>, Refusal> {
    eventfd.map(EventNotifier::new).transpose().map_err(|error| Refusal(error.to_string()))
}
