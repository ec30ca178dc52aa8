//! What a session drives: starts, stops and moves the guest's queues.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ringpass_memory::Lending;

use ringpass_peer::{Kick, Signal};
use ringpass_port::MacAddress;
use ringpass_vhost_user::{Base, Device, Start};
use ringpass_virtio::device::{GuestMemory, Packed, Setup, Split, Virtqueue};
use ringpass_virtio::features::{IN_ORDER, RING_PACKED};

use crate::agreed::{Agreed, Takes};
use crate::lend::Mapped;
use crate::shared::Shared;
use crate::vring::{Ring, Running, State, with_ring};

/// How long a card may take to let go of the guest's buffers.
const LIMIT: Duration = Duration::from_secs(1);

/// The device behind a port, for whoever runs its sessions.
pub struct Backend {
    shared: Arc<Shared>,
    features: u64,
    /// A guest has come since the last one left.
    session: bool,
}

impl Backend {
    pub(crate) fn new(shared: &Arc<Shared>, features: u64) -> Self {
        Self { shared: shared.clone(), features, session: false }
    }

    /// Of queues that the guest sends with: which pair waits for its kicks.
    fn waits(queue: usize) -> Option<usize> {
        (queue % 2 == 1).then_some(queue / 2)
    }

    fn begin_session(&mut self) {
        if !std::mem::replace(&mut self.session, true) {
            self.shared.sessions.fetch_add(1, Relaxed);
        }
    }

    /// What a card may borrow of a queue; queues that the guest sends with are not lent.
    fn lending(&self, queue: usize) -> Option<&Lending> {
        self.shared.lendings.get(queue / 2).filter(|_| queue.is_multiple_of(2)).map(|lending| &**lending)
    }

    /// Lends the buffers of a queue, if it moves packets and a card wants them.
    fn map(&self, queue: usize) {
        let Some(lending) = self.lending(queue) else { return };
        let moving = |state: &mut State| {
            let running = state.moving().filter(|running| running.mapped.is_none() && !running.in_order)?;
            Some((running.size, running.memory.clone()))
        };
        let Some((size, memory)) = moving(&mut self.shared.vrings[queue].lock()) else { return };
        // A card that did not let go in time may have done so since.
        if self.settle(queue, lending, Duration::ZERO).is_err() {
            return;
        }
        let regions: Vec<_> = memory.regions().iter().map(|region| region.memory.clone()).collect();
        match lending.begin(size, &regions) {
            // This thread alone starts and stops queues: it is still the same one.
            Ok(Some(lent)) => {
                if let Some(running) = &mut self.shared.vrings[queue].lock().running {
                    running.mapped = Some(Mapped::new(lent, size));
                }
            }
            Ok(None) => {}
            Err(why) => tracing::warn!("queue {queue} is not mapped, frames are copied: {why}"),
        }
    }

    /// Ends that: afterwards no card has a buffer of the queue. On an error the card may still have some, and keeps the
    /// guest's memory until it has let go.
    fn unmap(&self, queue: usize) -> Result<(), String> {
        if let Some(running) = &mut self.shared.vrings[queue].lock().running {
            running.mapped = None;
        }
        let Some(lending) = self.lending(queue) else { return Ok(()) };
        self.settle(queue, lending, LIMIT)
    }

    /// Waits until nothing of a queue is lent any more.
    fn settle(&self, queue: usize, lending: &Lending, limit: Duration) -> Result<(), String> {
        if lending.is_idle() {
            return Ok(());
        }
        // Whoever has borrowed may sleep.
        self.shared.kicks.iter().for_each(Kick::wake);
        lending.end(limit)?;
        if let Some(running) = &mut self.shared.vrings[queue].lock().running {
            // What will not come any more goes back to the guest without a frame.
            let call = with_ring!(&mut running.ring, ring => {
                ring.give_rest();
                ring.publish()
            });
            if call {
                running.call();
            }
        }
        Ok(())
    }

    /// Takes the guest's memory from the card, unless it may still use it.
    fn revoke(&self, queue: usize) {
        self.lending(queue).into_iter().for_each(|lending| _ = lending.revoke());
    }

    /// Takes a queue out of work: nobody uses its ring any more.
    fn take_out(&self, queue: usize) -> Option<Running> {
        let running = self.shared.vrings[queue].lock().running.take()?;
        if let (Some(pair), Some(kick)) = (Self::waits(queue), &running.kick) {
            self.shared.kicks[pair].unwatch(kick);
        }
        Some(running)
    }

    /// Frames take their way by what the guest has now, and whoever sleeps looks.
    fn changed(&self) {
        self.shared.set_routes();
        self.shared.kicks.iter().for_each(Kick::wake);
    }
}

fn open_ring(setup: &Setup, memory: &Arc<GuestMemory>) -> Result<Ring, ringpass_memory::Error> {
    Ok(if setup.features & RING_PACKED == 0 {
        Ring::Split(Split::new(setup, memory)?)
    } else {
        Ring::Packed(Packed::new(setup, memory)?)
    })
}

impl Device for Backend {
    fn features(&self) -> u64 {
        // Buffers that are lent come back in any order.
        if self.shared.lends.load(Relaxed) { self.features & !IN_ORDER } else { self.features }
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
                let set = with_ring!(&mut running.ring, ring => ring.set_memory(memory));
                set.map_err(|error| format!("queue {queue} in the guest's changed memory: {error}"))?;
            }
        }
        (0..self.shared.vrings.len()).for_each(|queue| self.map(queue));
        Ok(())
    }

    fn start(&mut self, queue: usize, start: Start) -> Result<(), String> {
        let Start { setup, memory, kick, call } = start;
        let ring = open_ring(&setup, &memory).map_err(|error| format!("queue {queue}: {error}"))?;
        let (agreed, size) = (Agreed::new(setup.features), setup.size.into());
        let in_order = setup.features & IN_ORDER != 0;
        let pair = Self::waits(queue);
        let kick = kick.filter(|_| pair.is_some());
        if let (Some(pair), Some(kick)) = (pair, &kick) {
            let watched = self.shared.kicks[pair].watch(kick);
            watched.map_err(|error| format!("the kick descriptor cannot be waited on: {error}"))?;
        }
        let running = Running { ring, agreed, size, in_order, memory, kick, call, mapped: None, broken: false };
        // A back-end before this one may have given buffers back and not lived to say so.
        running.call();
        self.begin_session();
        self.shared.set_takes(agreed.takes);
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

    fn set_call(&mut self, queue: usize, call: Option<Signal>) {
        let mut state = self.shared.vrings[queue].lock();
        if let Some(running) = &mut state.running {
            let before = std::mem::replace(&mut running.call, call);
            // What the other one was raised for may not have been seen.
            running.call();
            drop((state, before));
        }
    }

    fn stop(&mut self, queue: usize) -> Result<Base, String> {
        self.unmap(queue)?;
        let running = self.take_out(queue).ok_or(format!("queue {queue} does not run"))?;
        self.changed();
        Ok(with_ring!(&running.ring, ring => ring.base()))
    }

    fn announce(&mut self, mac: MacAddress) {
        self.shared.announcement.set(Some(mac));
        self.shared.kicks[0].wake();
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        const LEAST: u16 = 68;
        let most = self.shared.mtu;
        if mtu < LEAST || usize::from(mtu) > most {
            return Err(format!(
                "the guest's MTU of {mtu} is not between {LEAST} and this port's {most}; use --mtu {mtu}"
            ));
        }
        self.shared.set_guest_mtu(mtu.into());
        Ok(())
    }

    fn fault(&mut self) -> Option<String> {
        // Somebody may have begun to borrow since the queues were started.
        (0..self.shared.vrings.len()).for_each(|queue| self.map(queue));
        self.shared.take_fault()
    }

    fn disconnected(&mut self, why: &str) {
        for (queue, vring) in self.shared.vrings.iter().enumerate() {
            vring.lock().enabled = false;
            if let Err(why) = self.unmap(queue) {
                tracing::warn!("queue {queue}: {why}; the card keeps the guest's memory until it lets go");
            }
            self.revoke(queue);
            self.take_out(queue);
        }
        self.shared.set_takes(Takes::Plain);
        self.shared.set_guest_mtu(self.shared.mtu);
        self.shared.announcement.set(None);
        self.shared.take_fault();
        *self.shared.last_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.session = false;
        self.changed();
    }
}
