//! Serves a port to one guest after the other.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ringpass_port::{Error, Idle, WakeSource, Wakeable};
use ringpass_vfio_user::{self as vfio_user, Event, EventWaiter, Listener, Server, prepare_notifiers};
use rustix::event::PollFlags;

use crate::{Counters, GuestPort, Memdev, Ptnet, SharedRegion};

/// One of the two devices of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The device with the memory.
    Memory,
    /// The port.
    Port,
}

/// A port and its memory, each served at a socket.
///
/// All work is done in [`serve`](Self::serve), on one thread. A guest's commands therefore take effect at once, and
/// nothing of a session remains after its end.
pub struct Passthrough {
    devices: Devices,
    idle: Idle,
}

/// The devices and what wakes the thread.
struct Devices {
    memory: Server<Memdev>,
    port: Server<Ptnet>,
    call_event: EventWaiter,
    /// Whether every poll must check the sockets: the thread is about to sleep, or was woken.
    check_sockets: bool,
    /// Polls since the sockets were last checked.
    polls: u32,
}

/// While the thread is awake it checks the sockets once in this many polls; the guest does not kick then.
const SOCKET_CHECK_INTERVAL: u32 = 32;

impl Passthrough {
    /// Prepares to serve a port and its memory at two sockets. `call_event` is the event by which the port's other
    /// side wakes this one.
    pub fn new(
        memory: SharedRegion,
        port: GuestPort,
        call_event: EventWaiter,
        [memory_at, port_at]: [Listener; 2],
    ) -> Result<Self, Error> {
        let os = |what: &str| {
            let what = what.to_owned();
            move |source| Error::os(what, source)
        };
        prepare_notifiers().map_err(os("interrupts for guests"))?;
        let (memory, port) = (Server::new(memory_at, Memdev::new(memory)), Server::new(port_at, Ptnet::new(port)));
        Ok(Self {
            devices: Devices { memory, port, call_event, check_sockets: false, polls: SOCKET_CHECK_INTERVAL },
            idle: Idle::new(false),
        })
    }

    /// Sets how much latency its sleeps may add so that slots collect; see [`ringpass_port::WaitPolicy::new`].
    pub fn set_latency_budget(&mut self, budget: Duration) {
        self.idle = Idle::default().with_latency_budget(budget);
    }

    /// Returns the port's counters.
    pub fn counters(&self) -> &Arc<Counters> {
        self.devices.port.device.counters()
    }

    /// Serves until `go_on` returns `false`; it is called at least ten times a second. Events are handed to
    /// `report`.
    pub fn serve(&mut self, go_on: impl Fn() -> bool, report: &mut dyn FnMut(Device, Event)) {
        while go_on() {
            let moved = self.poll_once(report);
            self.idle.after(moved, &mut [&mut self.devices]);
        }
    }

    /// Handles what has arrived, without waiting. Returns 0 if nothing had.
    fn poll_once(&mut self, report: &mut dyn FnMut(Device, Event)) -> usize {
        let Devices { memory, port, check_sockets, polls, .. } = &mut self.devices;
        let mut done = port.device.sync_rings();
        *polls += 1;
        if *check_sockets || *polls >= SOCKET_CHECK_INTERVAL {
            *polls = 0;
            done += poll_once(memory, &mut |event| report(Device::Memory, event));
            done += poll_once(port, &mut |event| report(Device::Port, event));
        }
        done
    }

    /// Ends the sessions. The port's rings keep their positions.
    pub fn end(mut self) {
        self.devices.memory.end();
        self.devices.port.end();
    }
}

/// Handles the client's messages, then accepts the next client: it may have come because the current one has just
/// gone.
fn poll_once<D: vfio_user::Device>(server: &mut Server<D>, report: &mut dyn FnMut(Event)) -> usize {
    let handled = server.serve(report);
    server.accept_client(report);
    handled
}

impl Wakeable for Devices {
    fn arm(&mut self) {
        self.check_sockets = true;
        self.port.device.arm();
    }

    fn disarm(&mut self) {
        self.port.device.disarm();
        self.check_sockets = false;
        // The wake-up may have been caused by a message.
        self.polls = SOCKET_CHECK_INTERVAL;
        self.call_event.clear();
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        for (fd, flags) in self.memory.wait_on().chain(self.port.wait_on()) {
            each(WakeSource::Readable(fd));
            // A client that does not read its replies.
            if flags.contains(PollFlags::OUT) {
                each(WakeSource::Polled);
            }
        }
        if self.port.device.is_serving() {
            each(WakeSource::Readable(self.call_event.as_fd()));
        }
    }
}
