//! Registrations that monitor a port.

use ringpass_netmap::request::{Mode, PortName, Register, register};
use ringpass_netmap::{Pools, Region, Shape};
use rustix::io::Errno;

use super::asked::slots;
use super::{Ports, Registered, Requester};
use crate::BufferAccess;
use crate::server::RequestError;
use crate::server::open_port::{OpenPort, pools};

impl Ports {
    /// Registers a monitor: rings of a program that gets copies of what others send and receive at a port. They
    /// lie in private memory, because a monitor must not be able to write to the port's.
    pub(super) fn register_monitor(
        &mut self,
        name: PortName,
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let unsupported = |why| Err(RequestError::new(Errno::OPNOTSUPP, format!("{name}: {why}")));
        if asked.flags & register::ZERO_COPY_MONITOR != 0 {
            return unsupported("a monitor without a copy (z) would hold up the port's own programs; leave the z out");
        }
        if name.pipe().is_some() {
            return unsupported("pipes have no monitors, as nobody is between their ends; put a bridge there");
        }
        if asked.mode == Mode::OneNic {
            return unsupported("a monitor sees all rings of a port; leave the ring's number out");
        }
        self.make_open(&name, &Register::default(), requester)?;
        let (key, number) = (name.port.clone(), self.number());
        let result = self.register_monitor_of(number, name, asked, requester);
        if result.is_err() {
            self.monitors.remove(&number).into_iter().for_each(|monitor| monitor.release(&mut self.memories));
            self.drop_unused_port(&key);
        }
        result
    }

    /// Returns the rings of a monitor, and the pools of its memory.
    pub(super) fn monitor_memory(asked: &Register) -> Result<(Shape, Pools), RequestError> {
        // Programs rely on a Tx ring, if only in the descriptor.
        let shape = Shape { rings: [1; 2], slots: [2, slots(asked, 1)?], host_rings: [0; 2] };
        Ok((shape, pools(shape, asked.extra_buffers)))
    }

    fn register_monitor_of(
        &mut self,
        number: u64,
        name: PortName,
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let (shape, pools) = Self::monitor_memory(asked)?;
        let own = requester.take(&pools)?;
        let id = self.memories.add(own);
        let port = self.open.get_mut(&name.port).expect("made before");
        let ways = [register::MONITOR_TX, register::MONITOR_RX].map(|way| asked.flags & way != 0);
        let serve = |served, region: &Region| match BufferAccess::of(region) {
            BufferAccess::Copied(buffers) => port.served.monitor(ways, served, &buffers),
            BufferAccess::ZeroCopy(_) => unreachable!("a memory of its own has no pool"),
        };
        let monitor = OpenPort::new(&name.port, shape, (id, &mut self.memories), serve)?;
        let monitor = self.monitors.entry(number).or_insert(monitor);
        let receiving = Register { flags: asked.flags | register::RX_ONLY, memory_id: 0, ..asked.clone() };
        let mut registered =
            Self::register_rings(&mut self.memories, monitor, (number, requester.program), name, &receiving)?;
        registered.register.flags = asked.flags;
        port.monitors += 1;
        Ok(registered)
    }
}
