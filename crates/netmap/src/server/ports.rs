//! All ports that programs have registered, and the memory that they lie in.

mod asked;
mod monitors;
mod natives;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use ringpass_memory::RegionConfig;
use ringpass_peer::{Credentials, Signal};
use rustix::io::Errno;
use serde_json::{Value, json};

use asked::{admit, bound, descriptors, each_ring, full_name, granted, out_of_descriptors, shared, slots};

use super::budget::{Budget, Own};
use super::memories::{COMMON, EXCHANGED, Memories};
use super::open_port::{OpenPort, PortsMemory, pools};
use super::pipes::Pipe;
use super::{Native, Refusal, Switches, Users};
use crate::protocol::{Behind, Granted};
use crate::request::{Mode, PortInfo, PortName, Register, register};
use crate::{Place, Pools, Region, Shape};

/// What a registration has, until it ends.
pub struct Registration {
    name: PortName,
    /// Its number, which no other has or had.
    number: u64,
    /// Its descriptor.
    interface: usize,
    /// Buffers that it was lent beside those of rings.
    extra: usize,
}

impl Registration {
    /// The port.
    pub fn port(&self) -> &str {
        &self.name.port
    }
}

/// A registration, and what its program is told.
pub struct Registered {
    /// What was taken.
    pub registration: Registration,
    /// The answer.
    pub register: Register,
    /// See [`Granted`].
    pub granted: Granted,
    /// See [`Granted`].
    pub fds: [OwnedFd; crate::protocol::FDS],
    /// Which programs have the same rings, in words; empty: none.
    pub others: String,
}

/// A program that asks, and the memory that was made for it.
pub struct Asking {
    /// Who it is.
    pub program: Credentials,
    /// What [`Ports::needs`] said.
    pub made: Vec<Own>,
}

impl Asking {
    fn take(&mut self, pools: &Pools) -> Result<Own, Refusal> {
        let none = || Refusal::new(Errno::AGAIN, "no memory was made for this port; ask again");
        Own::take(&mut self.made, pools).ok_or_else(none)
    }
}

/// Rings of a port to send, or to receive.
const MOST_RINGS: u16 = 8;
/// What a monitor's registration has.
const MONITOR: u64 = register::MONITOR_RX | register::MONITOR_TX | register::ZERO_COPY_MONITOR;
/// Bytes of ports' own memory, if nobody says.
const MEMORY: usize = 1 << 30;
/// Ports at a time.
const MOST_PORTS: usize = 1000;

/// The rings of a VALE port that is to be made, and whether it lies in the common memory.
fn vale_shape(name: &PortName, asked: &Register) -> Result<(Shape, bool), Refusal> {
    let rings = asked.rings.map(|rings| rings.max(1));
    if rings.iter().any(|&rings| rings > MOST_RINGS) {
        let why = format!("{name}: a port has at most {MOST_RINGS} rings a direction");
        return Err(Refusal::new(Errno::INVAL, why));
    }
    let shape = Shape { rings, slots: [slots(asked, 0)?, slots(asked, 1)?] };
    match asked.memory_id {
        0 | COMMON => Ok((shape, asked.memory_id == COMMON)),
        id => Err(Refusal::new(Errno::INVAL, format!("{name}: memory {id} is another port's"))),
    }
}

/// See the module.
pub struct Ports {
    memories: Memories,
    pipes: BTreeMap<(String, String), Pipe>,
    /// Ports of switches, and those of the machine that a program has.
    open: BTreeMap<String, OpenPort>,
    natives: BTreeMap<String, Box<dyn Native>>,
    /// Programs' rings that see what happens at a port, by the number of their registration.
    monitors: BTreeMap<u64, OpenPort>,
    switches: Box<dyn Switches>,
    /// Of ports with memory of their own.
    pub budget: Budget,
    numbers: u64,
    next_memory: u16,
}

impl Ports {
    /// None yet. The common memory has these pools.
    pub fn new(common: Pools, switches: Box<dyn Switches>) -> Result<Self, Refusal> {
        let memories = Memories { common: Region::new(common, &RegionConfig::default())?, exchanged: None };
        let (pipes, open, natives, monitors) = Default::default();
        let budget = Budget::new(MEMORY);
        Ok(Self { memories, pipes, open, natives, monitors, switches, budget, numbers: 0, next_memory: EXCHANGED })
    }

    /// The memory that has to be made for a program before its port is [registered](Self::register) or [kept](Self::keep).
    pub fn needs(&self, name: &str, asked: &Register) -> Result<Vec<Pools>, Refusal> {
        let name = full_name(name, asked)?;
        let mut needs = Vec::new();
        if name.pipe().is_some() {
            return Ok(needs);
        }
        let monitor = asked.flags & MONITOR != 0;
        if name.vale().is_some() && !self.open.contains_key(&name.port) {
            // A monitor of a port that is not there makes the usual one.
            let usual = Register::default();
            let (shape, shared) = vale_shape(&name, if monitor { &usual } else { asked })?;
            needs.extend((!shared).then(|| pools(shape, if monitor { 0 } else { asked.extra_buffers })));
        }
        if monitor {
            needs.push(Self::monitor_memory(asked)?.1);
        }
        Ok(needs)
    }

    /// What a VALE port that is not there would have, if a program registered it; `None`: it is there, or is no such port.
    pub fn would_have(&self, name: &str, asked: &Register) -> Result<Option<PortInfo>, Refusal> {
        let needs = self.needs(name, asked)?;
        let Some(pools) = needs.first() else { return Ok(None) };
        let (Shape { rings, slots }, _) = vale_shape(&full_name(name, asked)?, asked)?;
        let (memory_size, memory_id) = (pools.bytes() as u64, Self::memory_after(self.next_memory));
        Ok(Some(PortInfo { memory_size, slots, rings, host_rings: [0; 2], memory_id }))
    }

    /// Registers a port by its name as it stands in a request's header.
    pub fn register(&mut self, name: &str, asked: &Register, asking: &mut Asking) -> Result<Registered, Refusal> {
        let name = full_name(name, asked)?;
        if matches!(asked.mode, Mode::Host | Mode::OneHost) {
            return Err(Refusal::new(Errno::INVAL, format!("{name} has no rings of the host's stack")));
        }
        if self.pipes.len() + self.open.len() + self.monitors.len() >= MOST_PORTS {
            return Err(Refusal::new(Errno::NOSPC, format!("{MOST_PORTS} ports are there already; close some")));
        }
        if asked.flags & MONITOR != 0 {
            return self.register_monitor(name, asked, asking);
        }
        if name.pipe().is_some() {
            self.register_pipe(name, asked, asking.program)
        } else {
            self.register_open(name, asked, asking)
        }
    }

    fn register_pipe(&mut self, name: PortName, asked: &Register, program: Credentials) -> Result<Registered, Refusal> {
        let (parent, pipe, first) = name.pipe().expect("a pipe's name");
        let (key, end) = ((parent.to_owned(), pipe.to_owned()), usize::from(!first));
        let id = self.pipes.get(&key).map_or(asked.memory_id.max(COMMON), |pipe| pipe.memory_id);
        if ![0, id].contains(&asked.memory_id) || self.memories.find(id).is_none() {
            let why = format!(
                "{name}: pipes lie in memory {COMMON}, or {EXCHANGED} if a card has it, as their first program says"
            );
            return Err(Refusal::new(Errno::INVAL, why));
        }
        if !self.pipes.contains_key(&key) {
            let made = Pipe::new((id, self.memories.shared(id)), parent, pipe, slots(asked, 0)?)?;
            self.pipes.insert(key.clone(), made);
        }
        let result = self.register_end(&key, end, name, asked, program);
        if result.is_err() {
            self.drop_unused(&key);
        }
        result
    }

    fn register_end(
        &mut self,
        key: &(String, String),
        end: usize,
        name: PortName,
        asked: &Register,
        program: Credentials,
    ) -> Result<Registered, Refusal> {
        let number = self.number();
        let pipe = self.pipes.get_mut(key).expect("made before");
        let region = self.memories.shared(pipe.memory_id);
        let bound = bound(&name, asked, pipe.ends[end].shape())?;
        let fds = [
            shared(region.file())?.try_clone_to_owned(),
            shared(pipe.ends[0].csb())?.try_clone_to_owned(),
            pipe.bells[end].try_clone(),
            pipe.bells[1 - end].try_clone(),
        ];
        let fds = descriptors(fds)?;
        let (interface, others) =
            admit(&name, asked, (number, program), (&pipe.ends[end], region, &mut pipe.users[end]), bound)?;
        // An end that was clobbered stays as it is: that is between its programs.
        if pipe.users[end].count() == 1 {
            let _ = pipe.begin_again(region, end);
        }
        let behind = Behind::Pipe { other: pipe.ends[1 - end].interface() as u64, first: end == 0 };
        let shape = pipe.ends[end].shape();
        let extra = region.lend_extra_buffers(interface, asked.extra_buffers as usize);
        let register = granted(asked, region, (interface, extra), shape, pipe.memory_id);
        let registration = Registration { name, number, interface, extra };
        Ok(Registered { registration, register, granted: Granted { pools: *region.pools(), behind }, fds, others })
    }

    fn register_open(&mut self, name: PortName, asked: &Register, asking: &mut Asking) -> Result<Registered, Refusal> {
        let key = name.port.clone();
        self.make_open(&name, asked, asking)?;
        let number = self.number();
        let port = self.open.get_mut(&key).expect("made before");
        let result = Self::register_rings(&mut self.memories, port, (number, asking.program), name, asked);
        if result.is_err() {
            self.drop_unused_port(&key);
        }
        result
    }

    /// A port of a switch, or of the machine, is there from now on.
    fn make_open(&mut self, name: &PortName, asked: &Register, asking: &mut Asking) -> Result<(), Refusal> {
        match name.vale() {
            _ if self.open.contains_key(&name.port) => Ok(()),
            Some(_) => self.make_vale(name, asked, asking),
            None => self.make_native(name, asked),
        }
    }

    /// A number for one more memory.
    fn new_memory(&mut self) -> u16 {
        self.next_memory = Self::memory_after(self.next_memory);
        self.next_memory
    }

    fn memory_after(last: u16) -> u16 {
        last.checked_add(1).unwrap_or(EXCHANGED + 1)
    }

    fn make_vale(&mut self, name: &PortName, asked: &Register, asking: &mut Asking) -> Result<(), Refusal> {
        let (shape, shared) = vale_shape(name, asked)?;
        let memory = if shared {
            (COMMON, PortsMemory::Shared(&mut self.memories.common))
        } else {
            let own = asking.take(&pools(shape, asked.extra_buffers))?;
            (self.new_memory(), PortsMemory::Own(own))
        };
        let (switch, port) = name.vale().expect("a VALE port's name");
        let serve = |served, place| match place {
            Place::Copied(buffers) => self.switches.open(switch, port, served, buffers),
            Place::Exchanged(_) => Err(Refusal::new(Errno::INVAL, "a switch copies frames, which nobody does there")),
        };
        let port = OpenPort::new(&name.port, shape, memory, serve)?;
        self.open.insert(name.port.clone(), port);
        Ok(())
    }

    fn register_rings(
        memories: &mut Memories,
        port: &mut OpenPort,
        (number, program): (u64, Credentials),
        name: PortName,
        asked: &Register,
    ) -> Result<Registered, Refusal> {
        if ![0, port.memory_id()].contains(&asked.memory_id) {
            return Err(Refusal::new(Errno::INVAL, format!("{name} lies in memory {}", port.memory_id())));
        }
        let (shape, memory_id) = (port.memory.shape(), port.memory_id());
        let bound = bound(&name, asked, shape)?;
        let bell = super::eventfd()?;
        let call = Signal::new(bell.try_clone().map_err(out_of_descriptors)?);
        let call = call.map_err(|error| Refusal::new(Errno::NOSYS, error))?;
        let region = port.own.as_mut().map_or_else(|| memories.shared(memory_id), |own| &mut own.region);
        let fds = [
            shared(region.file())?.try_clone_to_owned(),
            shared(port.memory.csb())?.try_clone_to_owned(),
            Ok(bell),
            port.served.kick().try_clone_to_owned(),
        ];
        let fds = descriptors(fds)?;
        let entry = |(entry, bound): (usize, bool)| u64::from(bound) << entry;
        let all = each_ring(shape).map(|(direction, id)| bound(direction, id));
        let entries = all.enumerate().map(entry).sum();
        let (interface, others) =
            admit(&name, asked, (number, program), (&port.memory, region, &mut port.users), bound)?;
        port.served.listen(number, entries, call);
        let extra = region.lend_extra_buffers(interface, asked.extra_buffers as usize);
        let register = granted(asked, region, (interface, extra), shape, memory_id);
        let granted = Granted { pools: *region.pools(), behind: Behind::Server };
        let registration = Registration { name, number, interface, extra };
        Ok(Registered { registration, register, granted, fds, others })
    }

    /// Ends a registration: its program is gone. Ports that nobody has registered go.
    pub fn unregister(&mut self, registration: Registration) {
        let Registration { name, number, interface, extra } = registration;
        if let Some((parent, pipe, first)) = name.pipe() {
            let key = (parent.to_owned(), pipe.to_owned());
            if let Some(pipe) = self.pipes.get_mut(&key) {
                let region = self.memories.shared(pipe.memory_id);
                region.take_back_extra_buffers(interface, extra);
                region.release_interface(interface);
                pipe.users[usize::from(!first)].leave(number);
            }
            self.drop_unused(&key);
        } else if let Some(monitor) = self.monitors.remove(&number) {
            // Its memory goes with it.
            monitor.release(&mut self.memories);
            self.open.get_mut(&name.port).into_iter().for_each(|port| port.monitors -= 1);
            self.drop_unused_port(&name.port);
        } else if let Some(port) = self.open.get_mut(&name.port) {
            let region = port.region(&mut self.memories);
            region.take_back_extra_buffers(interface, extra);
            region.release_interface(interface);
            port.served.ignore(number);
            port.users.leave(number);
            self.drop_unused_port(&name.port);
        }
    }

    fn drop_unused(&mut self, key: &(String, String)) {
        let unused = |pipe: &Pipe| pipe.users.iter().all(|users| users.count() == 0);
        if self.pipes.get(key).is_some_and(unused) {
            let pipe = self.pipes.remove(key).expect("it is there");
            let region = self.memories.shared(pipe.memory_id);
            pipe.release(region);
        }
    }

    fn drop_unused_port(&mut self, key: &str) {
        if self.open.get(key).is_some_and(OpenPort::is_unused) {
            self.open.remove(key).into_iter().for_each(|port| port.release(&mut self.memories));
        }
    }

    /// Makes a VALE port that stays without a program, or lets it go.
    pub fn keep(&mut self, name: &str, asked: Option<(&Register, &mut Asking)>) -> Result<(), Refusal> {
        let name = full_name(name, &Register::default())?;
        let none = || Refusal::new(Errno::NXIO, format!("{name} is no port of a VALE switch"));
        if name.vale().is_none() || name.pipe().is_some() {
            return Err(none());
        }
        let stays = asked.is_some();
        match asked {
            Some(_) if self.open.contains_key(&name.port) => {
                return Err(Refusal::new(Errno::EXIST, format!("{name} is there already")));
            }
            Some((asked, asking)) => self.make_vale(&name, asked, asking)?,
            None => {}
        }
        self.open.get_mut(&name.port).ok_or_else(none)?.stays = stays;
        self.drop_unused_port(&name.port);
        Ok(())
    }

    /// Bytes of ports that stay without a program.
    pub fn kept(&self) -> usize {
        let kept = self.open.values().filter(|port| port.stays);
        kept.filter_map(|port| port.own.as_ref()).map(Own::bytes).sum()
    }

    /// Who has the switches.
    pub fn switches(&mut self) -> &mut dyn Switches {
        &mut *self.switches
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// What a port has, and the number of its memory, if it is there.
    pub fn find(&self, name: &str) -> Result<Option<(Shape, u16)>, Refusal> {
        let name = full_name(name, &Register::default())?;
        let pipe = name.pipe().and_then(|(parent, pipe, _)| self.pipes.get(&(parent.to_owned(), pipe.to_owned())));
        let pipe = pipe.map(|pipe| (pipe.ends[0].shape(), pipe.memory_id));
        let vale = self.open.get(&name.port).map(|port| (port.memory.shape(), port.memory_id()));
        Ok(pipe.or(vale))
    }

    /// The names of VALE ports, in order.
    pub fn vale_ports(&self) -> impl Iterator<Item = &str> {
        self.open.keys().map(|name| &name[..]).filter(|name| name.starts_with("vale"))
    }

    /// A memory by its number.
    pub fn region(&self, id: u16) -> Option<&Region> {
        let mut all = self.open.values().chain(self.monitors.values());
        let own = || all.find(|port| port.memory_id() == id).and_then(|port| Some(&port.own.as_ref()?.region));
        self.memories.find(id).or_else(own)
    }

    /// What there is.
    pub fn status(&self) -> Value {
        let pipes = self.pipes.iter().map(|((parent, name), pipe)| {
            let registrations = pipe.users.each_ref().map(Users::count);
            json!({"parent": parent, "pipe": name, "memory": pipe.memory_id, "slots": pipe.ends[0].shape().slots[0], "registrations": registrations, "pids": pipe.users.each_ref().map(Users::pids)})
        });
        let open = |name: &str, port: &OpenPort| {
            let Shape { rings, slots } = port.memory.shape();
            json!({
                "port": name, "memory": port.memory_id(), "rings": rings, "slots": slots,
                "registrations": port.users.count(), "pids": port.users.pids(), "monitors": port.monitors, "stays": port.stays, "counters": port.served.counters(),
            })
        };
        let vale = self.vale_ports().map(|name| open(name, &self.open[name]));
        let ports = self.natives.iter().map(|(name, native)| {
            let programs = self.open.get(name).map(|port| open(name, port));
            json!({"port": name, "status": native.status(), "programs": programs})
        });
        let monitors = self.monitors.values().map(|monitor| {
            json!({"memory": monitor.memory_id(), "counters": monitor.served.counters(), "port": monitor.memory.name()})
        });
        let [common, exchanged] = self.memories.status();
        json!({
            "switches": self.switches.status(),
            "vale": vale.collect::<Vec<_>>(),
            "ports": ports.collect::<Vec<_>>(),
            "monitors": monitors.collect::<Vec<_>>(),
            "pipes": pipes.collect::<Vec<_>>(),
            "common": common,
            "exchanged": exchanged,
            "memory": {"total": self.budget.state()[0], "used": self.budget.state()[1]},
        })
    }
}
