//! Registrations that see what happens at a port.

use rustix::io::Errno;

use super::asked::slots;
use super::{Asking, Ports, Registered};
use crate::request::{Mode, PortName, Register, register};
use crate::server::Refusal;
use crate::server::open_port::{OpenPort, PortsMemory, pools};
use crate::{Place, Pools, Shape};

impl Ports {
    /// Rings of a program that sees what others send and receive at a port. They lie in memory of their own, as whoever only
    /// looks is not to write.
    pub(super) fn register_monitor(
        &mut self,
        name: PortName,
        asked: &Register,
        asking: &mut Asking,
    ) -> Result<Registered, Refusal> {
        let unsupported = |why| Err(Refusal::new(Errno::OPNOTSUPP, format!("{name}: {why}")));
        if asked.flags & register::ZERO_COPY_MONITOR != 0 {
            return unsupported("a monitor without a copy (z) would hold up the port's own programs; leave the z out");
        }
        if name.pipe().is_some() {
            return unsupported("pipes have no monitors, as nobody is between their ends; put a bridge there");
        }
        if asked.mode == Mode::OneNic {
            return unsupported("a monitor sees all rings of a port; leave the ring's number out");
        }
        self.make_open(&name, &Register::default(), asking)?;
        let (key, number) = (name.port.clone(), self.number());
        let result = self.register_monitor_of(number, name, asked, asking);
        if result.is_err() {
            self.monitors.remove(&number).into_iter().for_each(|monitor| monitor.release(&mut self.memories));
            self.drop_unused_port(&key);
        }
        result
    }

    /// The rings of a monitor, and what its memory has.
    pub(super) fn monitor_memory(asked: &Register) -> Result<(Shape, Pools), Refusal> {
        // Programs count on a ring to send, if only in the descriptor.
        let shape = Shape { rings: [1; 2], slots: [2, slots(asked, 1)?] };
        Ok((shape, pools(shape, asked.extra_buffers)))
    }

    fn register_monitor_of(
        &mut self,
        number: u64,
        name: PortName,
        asked: &Register,
        asking: &mut Asking,
    ) -> Result<Registered, Refusal> {
        let (shape, pools) = Self::monitor_memory(asked)?;
        let own = asking.take(&pools)?;
        let id = self.new_memory();
        let port = self.open.get_mut(&name.port).expect("made before");
        let ways = [register::MONITOR_TX, register::MONITOR_RX].map(|way| asked.flags & way != 0);
        let serve = |served, place| match place {
            Place::Copied(buffers) => port.served.monitor(ways, served, &buffers),
            Place::Exchanged(_) => unreachable!("a memory of its own has no pool"),
        };
        let monitor = OpenPort::new(&name.port, shape, (id, PortsMemory::Own(own)), serve)?;
        let monitor = self.monitors.entry(number).or_insert(monitor);
        let receiving = Register { flags: asked.flags | register::RX_ONLY, memory_id: 0, ..asked.clone() };
        let mut registered =
            Self::register_rings(&mut self.memories, monitor, (number, asking.program), name, &receiving)?;
        registered.register.flags = asked.flags;
        port.monitors += 1;
        Ok(registered)
    }
}
