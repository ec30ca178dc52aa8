//! Registrations that monitor a port.

use std::os::fd::OwnedFd;

use ringpass_netmap::protocol::RingPeer;
use ringpass_netmap::request::{PortName, Register, register};
use ringpass_netmap::{Direction, Pools, Region, Shape};
use rustix::io::Errno;

use super::asked::{bound, descriptors, slots};
use super::{MAX_SLOTS, Memories, Ports, Registered, Requester};
use crate::server::open_port::{OpenPort, pools};
use crate::server::pipes::{Pipe, PipeMonitor};
use crate::server::{RequestError, ServedPort, Watched};

/// Place of the eventfd that wakes the program among the descriptors of a registration.
const CALL_EVENT: usize = 2;

/// Descriptors that a monitor of a pipe has besides those of its rings.
pub(super) struct PipeDescriptors {
    /// Eventfd that wakes the monitor, in place of that of its registration.
    event: OwnedFd,
    /// Memory in which the frames are.
    tap: OwnedFd,
}

impl PipeDescriptors {
    pub(super) fn of(pipe: &Pipe) -> Result<Self, RequestError> {
        let [event, tap] = descriptors([pipe.monitors_event.try_clone(), pipe.tap.try_clone()])?;
        Ok(Self { event, tap })
    }

    /// Completes the descriptors of a monitor's rings.
    pub(super) fn complete(self, fds: &mut Vec<OwnedFd>) {
        fds[CALL_EVENT] = self.event;
        fds.push(self.tap);
    }
}

impl Ports {
    /// Registers a monitor: rings of a program that gets copies of what others send and receive at a port. They
    /// lie in private memory, because a monitor must not be able to write to the port's. netmap's monitors without a copy
    /// lie in the memory of the port; here, such a monitor gets copies there, as nobody can tell one from the other.
    pub(super) fn register_monitor(
        &mut self,
        name: PortName,
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let mut asked = asked.clone();
        if asked.flags & register::ZERO_COPY_MONITOR != 0 {
            // As in netmap, it gets both directions.
            asked.flags |= register::MONITOR_TX | register::MONITOR_RX;
        }
        let flags = asked.flags;
        let (shape, pools) = self.monitor_memory(&name, &asked)?;
        let receiving = Register { flags: asked.flags | register::RX_ONLY, memory_id: 0, ..asked.clone() };
        let asked = Asked { watched: watched(&name, &receiving, shape)?, receiving, shape, pools };
        let number = self.number();
        let result = match name.pipe() {
            Some((parent, pipe)) => {
                let key = (parent.to_owned(), pipe.to_owned());
                let result = self.register_pipe_monitor(number, &key, name, asked, requester);
                if result.is_err() {
                    self.pipes.get_mut(&key).into_iter().for_each(|pipe| pipe.remove_monitor(number));
                }
                result
            }
            None => self.register_port_monitor(number, name, asked, requester),
        };
        if result.is_err() {
            self.monitors.remove(&number).into_iter().for_each(|monitor| monitor.release(&mut self.memories));
        }
        let mut registered = result?;
        registered.register.flags = flags;
        Ok(registered)
    }

    /// Returns the rings of a monitor of a port, and the pools of its memory.
    pub(super) fn monitor_memory(&self, name: &PortName, asked: &Register) -> Result<(Shape, Pools), RequestError> {
        let shape = monitor_shape(self.shape_of(name)?, asked)?;
        Ok((shape, pools(shape, asked.extra_buffers)))
    }

    /// Registers a monitor of an end of a pipe. The programs of the pipe copy the frames, and that of the monitor fills its rings
    /// with them.
    fn register_pipe_monitor(
        &mut self,
        number: u64,
        key: &(String, String),
        name: PortName,
        asked: Asked,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let Asked { receiving, watched, shape, pools } = asked;
        let end = usize::from(!name.is_first_end());
        let pipe = self.pipes.get_mut(key).expect("it has rings");
        let of_pipe = PipeDescriptors::of(pipe)?;
        let (rings, memory_id) = (pipe.ends[0].shape().rings, pipe.memory_id);
        let serving = PipeMonitor::new()?;
        let id = Self::monitors_memory(&mut self.memories, memory_id, &receiving, &pools, requester)?;
        pipe.add_monitor(number, end, watched);
        let serve = |_, _: &Region| Ok(Box::new(serving) as Box<dyn ServedPort>);
        let monitor = OpenPort::new(&name.port, shape, (id, &mut self.memories), serve)?;
        let monitor = self.monitors.entry(number).or_insert(monitor);
        let program = (number, requester.program);
        let mut registered = Self::register_rings(&mut self.memories, monitor, program, name, &receiving)?;
        of_pipe.complete(&mut registered.fds);
        registered.peer = RingPeer::Monitored { rings, first: end == 0 };
        Ok(registered)
    }

    /// Takes the memory in which a monitor's rings lie: that of the port, or one of its own. Returns its number.
    fn monitors_memory(
        memories: &mut Memories,
        ports: u16,
        receiving: &Register,
        pools: &Pools,
        requester: &mut Requester,
    ) -> Result<u16, RequestError> {
        if receiving.flags & register::ZERO_COPY_MONITOR == 0 {
            return Ok(memories.add(requester.take(pools)?));
        }
        memories.enter(ports);
        Ok(ports)
    }

    /// Returns the rings of a port, or of an end of a pipe, which a program must have.
    fn shape_of(&self, name: &PortName) -> Result<Shape, RequestError> {
        let none = |what: &str| {
            let why = format!("{name}: no program has this {what}, so there is nothing to monitor; open it first");
            RequestError::new(Errno::INVAL, why)
        };
        if let Some((parent, pipe)) = name.pipe() {
            let end = usize::from(!name.is_first_end());
            let pipe = self.pipes.get(&(parent.to_owned(), pipe.to_owned()));
            let open = pipe.filter(|pipe| pipe.users[end].count() > 0);
            return open.map(|pipe| pipe.ends[end].shape()).ok_or_else(|| none("end of the pipe"));
        }
        if let Some(port) = self.open.get(&name.port) {
            return Ok(port.memory.shape());
        }
        if name.vale().is_none() && !self.persistent.contains_key(&name.port) {
            // Other errors if there is no such port, or if a switch has it.
            self.check_detached(&name.port)?;
            self.native_shape(name, &Register::default())?;
        }
        Err(none("port"))
    }

    fn register_port_monitor(
        &mut self,
        number: u64,
        name: PortName,
        asked: Asked,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let Asked { receiving, watched, shape, pools } = asked;
        let port = self.open.get_mut(&name.port).expect("it has rings");
        let id = Self::monitors_memory(&mut self.memories, port.memory_id(), &receiving, &pools, requester)?;
        let serve = |served, region: &Region| port.served.monitor(watched, served, region);
        let monitor = OpenPort::new(&name.port, shape, (id, &mut self.memories), serve)?;
        let monitor = self.monitors.entry(number).or_insert(monitor);
        let program = (number, requester.program);
        let registered = Self::register_rings(&mut self.memories, monitor, program, name, &receiving)?;
        port.monitors += 1;
        Ok(registered)
    }
}

/// A monitor that is to be registered.
struct Asked {
    /// The registration, of Rx rings only.
    receiving: Register,
    watched: Watched,
    shape: Shape,
    /// Pools of its memory, unless it lies in the port's.
    pools: Pools,
}

/// Returns the rings of a monitor: an Rx ring for each number of a ring that the port has, with as many slots as the port's unless
/// another number is requested.
fn monitor_shape(port: Shape, asked: &Register) -> Result<Shape, RequestError> {
    let most = |rings: [u16; 2]| rings[0].max(rings[1]);
    let (rings, host_rings) = (most(port.rings), most(port.host_rings));
    let slots = if asked.slots[1] == 0 { port.slots[1] } else { slots(asked, 1)? };
    let slots = slots.min(MAX_SLOTS / u32::from(rings + host_rings));
    // Programs rely on a Tx ring, if only in the descriptor.
    Ok(Shape { rings: [1, rings], slots: [2, slots], host_rings: [0, host_rings] })
}

/// Returns what a monitor gets copies of, by the rings of its own that the registration covers.
fn watched(name: &PortName, receiving: &Register, shape: Shape) -> Result<Watched, RequestError> {
    let covers = bound(name, receiving, shape)?;
    let all = 0..shape.rings[1] + shape.host_rings[1];
    let rings = all.map(|id| u64::from(covers(Direction::Rx, id)) << id).sum();
    let ways = [register::MONITOR_TX, register::MONITOR_RX].map(|way| receiving.flags & way != 0);
    Ok(Watched { ways, rings })
}
