//! The vhost-user device behind a port: starts and stops the guest's queues and follows changes of its
//! memory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ringpass_port::lending::Lending;

use ringpass_ipc::{EventNotifier, WakeFd};
use ringpass_port::MacAddress;
use ringpass_vhost_user::{Device, DirtyLog, Ended, QueueStart, VringBase};
use ringpass_virtio::device::{CreateVirtqueue, GuestMemory, Packed, Split, Virtqueue, VringConfig};
use ringpass_virtio::features::{IN_ORDER, RING_PACKED};

use crate::lend::LentQueue;
use crate::negotiated::{GuestOffloads, Negotiated};
use crate::shared::Shared;
use crate::turn::TurnWatch;
use crate::vring::{Ring, Running, State, with_ring};

/// Longest time that a NIC may take to return the guest's buffers.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(1);

/// The vhost-user device behind a port, driven by the code that runs its sessions.
pub struct Backend {
    shared: Arc<Shared>,
    features: u64,
    /// Present while the guest migrates. No buffers are lent meanwhile, as what cards write cannot be logged.
    log: Option<Arc<DirtyLog>>,
    /// Whether a guest has started a queue since the last one disconnected.
    session: bool,
}

impl Backend {
    pub(crate) fn new(shared: &Arc<Shared>, features: u64) -> Self {
        Self { shared: shared.clone(), features, log: None, session: false }
    }

    /// Returns the pair whose Rx queue waits for the kicks of `queue`; `None` for queues on which the guest
    /// receives.
    fn kick_pair(queue: usize) -> Option<usize> {
        (queue % 2 == 1).then_some(queue / 2)
    }

    fn begin_session(&mut self) {
        if !std::mem::replace(&mut self.session, true) {
            self.shared.sessions.fetch_add(1, Relaxed);
        }
    }

    /// Returns the lending of a queue; `None` for queues on which the guest sends, which are never lent.
    fn lending(&self, queue: usize) -> Option<&Lending> {
        self.shared.lendings.get(queue / 2).filter(|_| queue.is_multiple_of(2)).map(|lending| &**lending)
    }

    /// Starts to lend the buffers of a queue if the queue is active and a NIC queue wants them.
    fn map(&self, queue: usize) {
        let Some(lending) = self.lending(queue).filter(|_| self.log.is_none()) else { return };
        let active = |state: &mut State| {
            let running = state.active().filter(|running| running.mapped.is_none() && !running.in_order())?;
            Some((running.size(), running.memory.clone()))
        };
        let Some((size, memory)) = active(&mut self.shared.vrings[queue].lock()) else { return };
        // A NIC that missed the timeout of the previous lease may have returned its buffers by now.
        if self.await_returns(queue, lending, Duration::ZERO).is_err() {
            return;
        }
        let regions: Vec<_> = memory.regions().iter().map(|region| region.memory.clone()).collect();
        match lending.begin(size, &regions) {
            // Only this thread starts and stops queues, so the queue is still the one that was inspected above.
            Ok(Some(lent)) => {
                if let Some(running) = &mut self.shared.vrings[queue].lock().running {
                    running.mapped = Some(LentQueue::new(lent, size));
                }
            }
            Ok(None) => {}
            Err(why) => tracing::warn!("queue {queue} is not mapped, frames are copied: {why}"),
        }
    }

    /// Ends the lease of a queue. After success no NIC holds a buffer of the queue. After an error the NIC
    /// may still hold some, and keeps the guest's memory until it has returned them.
    fn unmap(&self, queue: usize) -> Result<(), String> {
        if let Some(running) = &mut self.shared.vrings[queue].lock().running {
            running.mapped = None;
        }
        let Some(lending) = self.lending(queue) else { return Ok(()) };
        self.await_returns(queue, lending, RECLAIM_TIMEOUT)
    }

    /// Waits up to `limit` until all lent buffers of a queue have been returned.
    fn await_returns(&self, queue: usize, lending: &Lending, limit: Duration) -> Result<(), String> {
        if lending.is_idle() {
            return Ok(());
        }
        // Threads that have borrowed buffers may be blocked.
        self.shared.kicks.iter().for_each(WakeFd::wake);
        lending.end(limit)?;
        if let Some(running) = &mut self.shared.vrings[queue].lock().running {
            // Chains that come back unused are returned to the guest without a frame.
            let call = with_ring!(&mut running.ring, ring => {
                ring.push_rest_unwritten();
                ring.publish()
            });
            if call {
                running.call();
            }
        }
        Ok(())
    }

    /// Takes the guest's memory from the NIC, unless the NIC may still use it.
    fn revoke(&self, queue: usize) {
        self.lending(queue).into_iter().for_each(|lending| _ = lending.revoke());
    }

    /// Removes a queue's running state: nobody uses its ring afterwards.
    fn detach(&self, queue: usize) -> Option<Running> {
        let running = self.shared.vrings[queue].lock().running.take()?;
        if let (Some(pair), Some(kick)) = (Self::kick_pair(queue), &running.kick) {
            self.shared.kicks[pair].unwatch(kick);
        }
        Some(running)
    }

    /// Applies the guest's current queues to the routes and wakes all blocked workers.
    fn changed(&self) {
        self.shared.set_routes();
        self.shared.kicks.iter().for_each(WakeFd::wake);
    }
}

fn open_ring(setup: &VringConfig, memory: &Arc<GuestMemory>) -> Result<Ring, ringpass_memory::Error> {
    Ok(if setup.features & RING_PACKED == 0 {
        Ring::Split(Split::new(setup, memory)?)
    } else {
        Ring::Packed(Packed::new(setup, memory)?)
    })
}

impl Device for Backend {
    fn features(&self) -> u64 {
        // Lent buffers come back in any order.
        if self.shared.lending_enabled.load(Relaxed) { self.features & !IN_ORDER } else { self.features }
    }

    fn queues(&self) -> usize {
        self.shared.vrings.len()
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<(), String> {
        for queue in 0..self.shared.vrings.len() {
            self.unmap(queue)?;
        }
        for (queue, vring) in self.shared.vrings.iter().enumerate() {
            if let Some(running) = &mut vring.lock().running {
                running.memory = memory.clone();
                running.set_log(self.log.as_ref());
                let set = with_ring!(&mut running.ring, ring => ring.set_memory(memory));
                set.map_err(|error| format!("queue {queue} in the guest's changed memory: {error}"))?;
            }
        }
        (0..self.shared.vrings.len()).for_each(|queue| self.map(queue));
        Ok(())
    }

    fn start(&mut self, queue: usize, start: QueueStart) -> Result<(), String> {
        let QueueStart { setup, memory, kick, call } = start;
        let ring = open_ring(&setup, &memory).map_err(|error| format!("queue {queue}: {error}"))?;
        let negotiated = Negotiated::new(setup.features);
        let pair = Self::kick_pair(queue);
        let kick = kick.filter(|_| pair.is_some());
        if let (Some(pair), Some(kick)) = (pair, &kick) {
            let watched = self.shared.kicks[pair].watch(kick);
            watched.map_err(|error| format!("the kick descriptor cannot be waited on: {error}"))?;
        }
        let mut running = Running {
            ring,
            setup,
            log: None,
            negotiated,
            memory,
            kick,
            call,
            mapped: None,
            turns: TurnWatch::default(),
            broken: false,
        };
        running.set_log(self.log.as_ref());
        // A previous back-end may have returned buffers and died before it interrupted the guest.
        running.call();
        self.begin_session();
        self.shared.set_guest_offloads(negotiated.guest_offloads);
        self.shared.vrings[queue].lock().running = Some(running);
        self.map(queue);
        self.changed();
        Ok(())
    }

    fn enable(&mut self, queue: usize, on: bool) {
        self.shared.vrings[queue].lock().enabled = on;
        if on {
            self.map(queue);
        } else if let Err(why) = self.unmap(queue) {
            tracing::warn!("queue {queue}: {why}");
        }
        self.changed();
    }

    fn set_call(&mut self, queue: usize, call: Option<EventNotifier>) {
        let mut state = self.shared.vrings[queue].lock();
        if let Some(running) = &mut state.running {
            let before = std::mem::replace(&mut running.call, call);
            // The guest may not have seen a notification sent to the previous eventfd.
            running.call();
            drop((state, before));
        }
    }

    fn stop(&mut self, queue: usize) -> Result<VringBase, String> {
        self.unmap(queue)?;
        let running = self.detach(queue).ok_or(format!("queue {queue} does not run"))?;
        self.changed();
        Ok(with_ring!(&running.ring, ring => ring.base()))
    }

    fn set_log(&mut self, log: Option<Arc<DirtyLog>>) -> Result<(), String> {
        if log.is_some() {
            (0..self.shared.vrings.len()).try_for_each(|queue| self.unmap(queue))?;
        }
        self.log = log;
        let running = self.shared.vrings.iter().map(|vring| vring.lock());
        running.for_each(|mut state| state.running.iter_mut().for_each(|running| running.set_log(self.log.as_ref())));
        (0..self.shared.vrings.len()).for_each(|queue| self.map(queue));
        Ok(())
    }

    fn announce(&mut self, mac: MacAddress) {
        self.shared.announcement.set(Some(mac));
        self.shared.kicks[0].wake();
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        const MIN_MTU: u16 = 68;
        let most = self.shared.mtu;
        if mtu < MIN_MTU || usize::from(mtu) > most {
            return Err(format!(
                "the guest's MTU of {mtu} is not between {MIN_MTU} and this port's {most}; use --mtu {mtu}"
            ));
        }
        self.shared.set_guest_mtu(mtu.into());
        Ok(())
    }

    fn fault(&mut self) -> Option<Ended> {
        // A NIC queue may have begun to borrow since the queues were started.
        (0..self.shared.vrings.len()).for_each(|queue| self.map(queue));
        self.shared.faults.take()
    }

    fn disconnected(&mut self, why: &str) {
        self.log = None;
        for (queue, vring) in self.shared.vrings.iter().enumerate() {
            vring.lock().enabled = false;
            if let Err(why) = self.unmap(queue) {
                tracing::warn!("queue {queue}: {why}; the card keeps the guest's memory until it lets go");
            }
            self.revoke(queue);
            self.detach(queue);
        }
        self.shared.set_guest_offloads(GuestOffloads::Plain);
        self.shared.set_guest_mtu(self.shared.mtu);
        self.shared.announcement.set(None);
        self.shared.faults.take();
        *self.shared.last_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.session = false;
        self.changed();
    }
}
