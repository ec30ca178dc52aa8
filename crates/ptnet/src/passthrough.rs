//! Serves a port to one guest after the other.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_port::{Error, Idle, Wake, Wakeable};
use ringpass_vfio_user::{self as vfio_user, Event, Listener, Server, Waiter, prepare_signals};
use rustix::event::PollFlags;

use crate::{Counters, GuestPort, Memdev, Ptnet, Shared};

/// Which of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The memory.
    Memory,
    /// The port.
    Port,
}

/// A port and its memory, each at a socket. All that is done happens in [`serve`](Self::serve), on one thread: so a guest's
/// commands take effect at once, and whatever ends a session ends with the session.
pub struct Passthrough {
    served: Served,
    idle: Idle,
}

/// What is waited for.
struct Served {
    memory: Server<Memdev>,
    port: Server<Ptnet>,
    bell: Waiter,
    /// The sockets are to be looked at in each turn: the thread is about to sleep, or was woken.
    attentive: bool,
    /// Turns since they were.
    turns: u32,
}

/// While it is awake, it looks at the sockets once in so many turns: the guest does not kick then.
const TURNS: u32 = 32;

impl Passthrough {
    /// A port to be served at two sockets, with its memory. `bell` is that by which the port's other side wakes this one.
    pub fn new(
        memory: Shared,
        port: GuestPort,
        bell: Waiter,
        [memory_at, port_at]: [Listener; 2],
    ) -> Result<Self, Error> {
        let os = |what: &str| {
            let what = what.to_owned();
            move |source| Error::Os { what, source }
        };
        prepare_signals().map_err(os("interrupts for guests"))?;
        let (memory, port) = (Server::new(memory_at, Memdev::new(memory)), Server::new(port_at, Ptnet::new(port)));
        Ok(Self { served: Served { memory, port, bell, attentive: false, turns: TURNS }, idle: Idle::new(false) })
    }

    /// What the port has seen of its guests.
    pub fn counters(&self) -> &Arc<Counters> {
        self.served.port.device.counters()
    }

    /// Serves as long as it is to `go_on`, which is asked at least ten times a second. What happened is handed to `report`.
    pub fn serve(&mut self, go_on: impl Fn() -> bool, report: &mut dyn FnMut(Device, Event)) {
        while go_on() {
            let moved = self.turn(report);
            self.idle.after(moved, &mut [&mut self.served]);
        }
    }

    /// Does what there is to do, without waiting. Returns whether that was anything.
    fn turn(&mut self, report: &mut dyn FnMut(Device, Event)) -> usize {
        let Served { memory, port, attentive, turns, .. } = &mut self.served;
        let mut done = port.device.look();
        *turns += 1;
        if *attentive || *turns >= TURNS {
            *turns = 0;
            done += turn(memory, &mut |event| report(Device::Memory, event));
            done += turn(port, &mut |event| report(Device::Port, event));
        }
        done
    }

    /// Ends the sessions. The port stays as it stands.
    pub fn end(mut self) {
        self.served.memory.end();
        self.served.port.end();
    }
}

/// The client's messages, then the next client: that one may have come because the last has just gone.
fn turn<D: vfio_user::Device>(server: &mut Server<D>, report: &mut dyn FnMut(Event)) -> usize {
    let handled = server.serve(report);
    server.welcome(report);
    handled
}

impl Wakeable for Served {
    fn arm(&mut self) {
        self.attentive = true;
        self.port.device.arm();
    }

    fn disarm(&mut self) {
        self.port.device.disarm();
        self.attentive = false;
        // What has woken may be a message.
        self.turns = TURNS;
        self.bell.clear();
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        for (fd, flags) in self.memory.wait_on().chain(self.port.wait_on()) {
            each(Wake::Readable(fd));
            // A client that does not take its answers.
            if flags.contains(PollFlags::OUT) {
                each(Wake::Turns);
            }
        }
        if self.port.device.is_serving() {
            each(Wake::Readable(self.bell.as_fd()));
        }
    }
}
