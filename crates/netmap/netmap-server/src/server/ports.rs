//! All registered ports, and the memory that they lie in.

mod adopt;
mod asked;
mod attach;
mod external;
mod handover;
mod monitors;
mod natives;
mod nulls;
mod offsets;
mod persistent;
mod pipe_ends;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use ringpass_ipc::{Credentials, EventNotifier};
use ringpass_memory::RegionConfig;
use ringpass_netmap::protocol::RingPeer;
use ringpass_netmap::request::{Mode, PortInfo, PortName, Register, register};
use ringpass_netmap::{Pools, PortMemory, Region, Shape};
use rustix::io::Errno;
use serde_json::{Value, json};

use asked::{Rings, admit, bound, entries, granted, slots};

use super::budget::{Budget, PrivateMemory};
use super::memories::Memories;
use super::open_port::{OpenPort, pools};
use super::pipes::Pipe;
use adopt::Adoptable;
pub use attach::Attached;
use attach::AttachedNative;
pub use handover::{PortsState, RegistrationState};
use nulls::NullPort;
use persistent::PersistentPort;

use super::{Administrators, Native, RequestError, ServedRings, Switches, Users};
use crate::BufferAccess;
use crate::vale::header;

/// Resources that a registration holds until it ends. A clone is the same registration.
#[derive(Clone)]
pub struct Registration {
    name: PortName,
    /// Number of the registration, never reused.
    number: u64,
    /// Offset of its interface descriptor.
    interface: usize,
    /// Number of extra buffers that it was given.
    extra: usize,
    /// Eventfd by which the program is woken; `None` where the server does not wake it.
    call: Option<EventNotifier>,
}

impl Registration {
    /// Name of the port.
    pub fn port(&self) -> &str {
        &self.name.port
    }

    /// Returns whether the program's eventfd takes so long to be signalled that no more signals are sent.
    pub fn has_slow_eventfd(&self) -> bool {
        EventNotifier::any_slow(self.call.iter())
    }
}

/// A registration, with the contents of the reply.
pub struct Registered {
    /// The registration.
    pub registration: Registration,
    /// The registration as granted.
    pub register: Register,
    /// Pools of the memory.
    pub pools: Pools,
    /// Other side of the rings.
    pub peer: RingPeer,
    /// Descriptors that the reply carries; see [`FDS`](ringpass_netmap::protocol::FDS).
    pub fds: Vec<OwnedFd>,
    /// Programs that have the same rings, in words; empty if there are none.
    pub others: String,
}

/// A program that makes a request, and the memory that was allocated for it.
pub struct Requester {
    /// Its credentials.
    pub program: Credentials,
    /// Memory with the pools that [`Ports::needs`] has returned.
    pub made: Vec<PrivateMemory>,
}

impl Requester {
    fn take(&mut self, pools: &Pools) -> Result<PrivateMemory, RequestError> {
        let none = || RequestError::new(Errno::AGAIN, "no memory was made for this port; ask again");
        PrivateMemory::take(&mut self.made, pools).ok_or_else(none)
    }
}

/// Largest number of rings of a VALE port or a pipe, in each direction.
const MAX_RINGS: u16 = PortMemory::MAX_PIPE_RINGS;
/// Largest number of slots of all rings of a direction together, which bounds the time that the server takes for a port.
const MAX_SLOTS: u32 = 1 << 17;
/// Flags that make a registration a monitor.
const MONITOR: u64 = register::MONITOR_RX | register::MONITOR_TX | register::ZERO_COPY_MONITOR;
/// Bytes of all private memory, by default.
const MEMORY: usize = 1 << 30;
/// Largest number of ports.
const MAX_OPEN_PORTS: usize = 1000;

/// Largest number of VALE switches on which one user has ports.
const MAX_SWITCHES: usize = 64;

/// Returns the rings of a VALE port or a pipe that is to be created: as many as requested, as far as the limits allow.
fn new_shape(asked: &Register) -> Result<Shape, RequestError> {
    let rings = asked.rings.map(|rings| rings.clamp(1, MAX_RINGS));
    let slots = [slots(asked, 0)?, slots(asked, 1)?];
    let slots = [0, 1].map(|way| slots[way].min(MAX_SLOTS / u32::from(rings[way])));
    Ok(Shape { rings, slots, host_rings: [0; 2] })
}

/// All registered ports and their memory.
pub struct Ports {
    memories: Memories,
    pipes: BTreeMap<(String, String), Pipe>,
    /// Ports of switches, and native and persistent ports that a program has. Persistent ports have their own name here,
    /// attached or not.
    open: BTreeMap<String, OpenPort>,
    natives: BTreeMap<String, Box<dyn Native>>,
    /// Ports that exist without a program.
    persistent: BTreeMap<String, PersistentPort>,
    /// Native ports that are attached to a switch.
    attached: BTreeMap<String, AttachedNative>,
    /// Rings of monitoring programs, by the number of their registration.
    monitors: BTreeMap<u64, OpenPort>,
    /// Null ports, by the number of their registration.
    nulls: BTreeMap<u64, NullPort>,
    /// Registrations that other processes may adopt, by the user and the cookie of their connection.
    adoptable: BTreeMap<(u32, u64), Adoptable>,
    switches: Box<dyn Switches>,
    /// Limit of the private memory.
    pub budget: Budget,
    /// Users who may control the ports of others, besides root.
    pub administrators: Administrators,
    numbers: u64,
    /// Statuses that programs have read in part, with their user.
    held_statuses: Vec<(u32, Weak<str>)>,
}

/// Most statuses that the programs of one user may have read in part at the same time.
const MAX_HELD_STATUSES: usize = 4;

impl Ports {
    /// Creates the state without ports. The common memory has these pools.
    pub fn new(common: Pools, switches: Box<dyn Switches>) -> Result<Self, RequestError> {
        let memories = Memories::new(Region::new(common, &RegionConfig::default())?);
        let budget = Budget::new(MEMORY);
        Ok(Self {
            memories,
            pipes: Default::default(),
            open: Default::default(),
            natives: Default::default(),
            persistent: Default::default(),
            attached: Default::default(),
            monitors: Default::default(),
            nulls: Default::default(),
            adoptable: Default::default(),
            switches,
            budget,
            administrators: Administrators::default(),
            numbers: 0,
            held_statuses: Vec::new(),
        })
    }

    /// Returns the pools of the memory that must be allocated for a program before its port is
    /// [registered](Self::register).
    pub fn needs(&self, name: &str, asked: &Register) -> Result<Vec<Pools>, RequestError> {
        let mut needs = Vec::new();
        if asked.mode == Mode::Null {
            return Ok(needs);
        }
        let name = self.parse_name(name)?;
        let monitor = asked.flags & MONITOR != 0;
        if name.pipe().is_some() {
            if monitor && asked.flags & register::ZERO_COPY_MONITOR == 0 {
                needs.push(self.monitor_memory(&name, asked)?.1);
            } else if !monitor {
                needs.extend(self.needs_of_pipe(&name, asked)?);
            }
            return Ok(needs);
        }
        if name.vale().is_some() && !self.open.contains_key(&name.port) && !monitor {
            let shape = new_shape(asked)?;
            needs.extend((asked.memory_id == 0).then(|| pools(shape, asked.extra_buffers)));
        }
        if monitor && asked.flags & register::ZERO_COPY_MONITOR == 0 {
            needs.push(self.monitor_memory(&name, asked)?.1);
        }
        Ok(needs)
    }

    /// Returns the properties that a VALE port or a pipe would have if a program registered it, and the pools of its memory;
    /// `None` if it, or its memory, exists, or it is no such port.
    pub fn would_have(&self, name: &str, asked: &Register) -> Result<Option<(PortInfo, Pools)>, RequestError> {
        let needs = self.needs(name, asked)?;
        let Some(pools) = needs.first() else { return Ok(None) };
        let Shape { rings, slots, .. } = new_shape(asked)?;
        let (memory_size, memory_id) = (pools.bytes() as u64, self.memories.free_number());
        Ok(Some((PortInfo { memory_size, slots, rings, host_rings: [0; 2], memory_id }, *pools)))
    }

    /// Registers a port by its name in a request's header.
    pub fn register(
        &mut self,
        name: &str,
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        if asked.mode == Mode::Null {
            self.check_room()?;
            return self.register_null(name, asked);
        }
        let name = self.parse_name(name)?;
        if matches!(asked.mode, Mode::PipeMaster | Mode::PipeSlave) {
            let why = format!("{name}: modes for pipes ended with API 11; append the pipe's end to the port's name");
            return Err(RequestError::new(Errno::INVAL, why));
        }
        if name.pipe().is_some() && !matches!(asked.mode, Mode::AllNic | Mode::OneNic) {
            return Err(RequestError::new(Errno::INVAL, format!("{name}: pipes have no rings of the host's stack")));
        }
        if name.vale().is_some() && matches!(asked.mode, Mode::Host | Mode::NicAndHost | Mode::OneHost) {
            return Err(RequestError::new(
                Errno::INVAL,
                format!("{name}: VALE ports have no rings of the host's stack"),
            ));
        }
        self.check_room()?;
        if asked.flags & MONITOR != 0 {
            return self.register_monitor(name, asked, requester);
        }
        if name.pipe().is_some() {
            self.register_pipe(name, asked, requester)
        } else {
            self.register_open(name, asked, requester)
        }
    }

    /// Checks that there may be another port.
    fn check_room(&self) -> Result<(), RequestError> {
        let unused = self.persistent.keys().filter(|name| !self.open.contains_key(*name)).count();
        let ports = self.pipes.len() + self.open.len() + self.monitors.len() + self.nulls.len() + unused;
        if ports >= MAX_OPEN_PORTS {
            let why = format!("{MAX_OPEN_PORTS} ports are open already; close some");
            return Err(RequestError::new(Errno::NOSPC, why));
        }
        Ok(())
    }

    /// Checks that a user may have a port on this switch.
    fn check_switches(&self, switch: &str, user: u32) -> Result<(), RequestError> {
        let own = self.open.iter().filter(|(_, port)| port.owner == user).filter_map(|(name, _)| name.split_once(':'));
        let own = own.map(|(switch, _)| switch).filter(|switch| switch.starts_with("vale"));
        let persistent = self.persistent.values().filter(|port| port.owner == user);
        let own: BTreeSet<&str> = own.chain(persistent.filter_map(|port| port.switch.as_deref())).collect();
        if own.len() >= MAX_SWITCHES && !own.contains(switch) {
            let why =
                format!("this user has ports on {MAX_SWITCHES} switches already; use one of those, or close some");
            return Err(RequestError::new(Errno::NOSPC, why));
        }
        Ok(())
    }

    /// Checks that there is a memory with this number.
    fn check_memory(&self, name: &PortName, id: u16) -> Result<(), RequestError> {
        let none = || RequestError::new(Errno::INVAL, format!("{name}: there is no memory {id}; leave the number out"));
        self.memories.find(id).map(drop).ok_or_else(none)
    }

    fn register_open(
        &mut self,
        name: PortName,
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let key = name.port.clone();
        self.make_open(&name, asked, requester)?;
        let number = self.number();
        let port = self.open.get_mut(&key).expect("made before");
        let result = Self::register_rings(&mut self.memories, port, (number, requester.program), name, asked);
        if result.is_err() {
            self.drop_unused_port(&key);
        }
        result
    }

    /// Creates a port of a switch, or opens a native port, unless it is open already.
    fn make_open(&mut self, name: &PortName, asked: &Register, requester: &mut Requester) -> Result<(), RequestError> {
        match name.vale() {
            _ if self.open.contains_key(&name.port) => Ok(()),
            Some(_) => self.make_vale(name, asked, requester),
            None if self.persistent.contains_key(&name.port) => self.open_persistent(&name.port),
            None => {
                self.check_detached(&name.port)?;
                self.make_native(name, asked)
            }
        }
    }

    fn make_vale(&mut self, name: &PortName, asked: &Register, requester: &mut Requester) -> Result<(), RequestError> {
        let shape = new_shape(asked)?;
        let (switch, port) = name.vale().expect("a VALE port's name");
        let owner = requester.program.uid;
        if self.switches.find(&name.port).is_some() {
            return Err(RequestError::new(
                Errno::BUSY,
                format!("{name} is attached to the switch; choose another name"),
            ));
        }
        self.check_switches(switch, owner)?;
        let id = match asked.memory_id {
            0 => self.memories.add(requester.take(&pools(shape, asked.extra_buffers))?),
            id => {
                self.check_memory(name, id)?;
                self.memories.enter(id);
                id
            }
        };
        let serve = |served, region: &Region| match BufferAccess::of(region) {
            BufferAccess::Copied(buffers) => self.switches.open(switch, port, ServedRings::new(served, buffers)?),
            BufferAccess::ZeroCopy(_) => Err(RequestError::new(
                Errno::INVAL,
                "this memory is another port's, whose buffers a card uses; leave the number out",
            )),
        };
        let mut port = OpenPort::new(&name.port, shape, (id, &mut self.memories), serve)?;
        port.owner = owner;
        self.open.insert(name.port.clone(), port);
        Ok(())
    }

    fn register_rings(
        memories: &mut Memories,
        port: &mut OpenPort,
        (number, program): (u64, Credentials),
        name: PortName,
        asked: &Register,
    ) -> Result<Registered, RequestError> {
        if ![0, port.memory_id()].contains(&asked.memory_id) {
            return Err(RequestError::new(Errno::INVAL, format!("{name} lies in memory {}", port.memory_id())));
        }
        if port.served.header_len() > 0 && asked.flags & register::ACCEPTS_VNET_HEADER == 0 {
            let why = format!(
                "{name}: its frames have headers, which this program does not say it accepts (NR_ACCEPT_VNET_HDR)"
            );
            return Err(RequestError::new(Errno::IO, why));
        }
        let (shape, memory_id) = (port.memory.shape(), port.memory_id());
        let bound = bound(&name, asked, shape)?;
        let call = EventNotifier::new(super::eventfd()?);
        let call = call.map_err(|error| RequestError::new(Errno::NOSYS, error))?;
        let region = memories.region(memory_id);
        let fds = port.descriptors(region, &call)?;
        let entries = entries(shape, &bound);
        let (interface, others) = admit(
            &name,
            asked,
            (number, program),
            Rings { memory: &port.memory, region, users: &mut port.users },
            bound,
        )?;
        port.served.subscribe(number, entries, call.clone());
        let extra = region.alloc_extra_buffers(interface, asked.extra_buffers as usize);
        let register = granted(asked, region, (interface, extra), shape, memory_id);
        let pools = *region.pools();
        let registration = Registration { name, number, interface, extra, call: Some(call) };
        Ok(Registered { registration, register, pools, peer: RingPeer::Server, fds, others })
    }

    /// Ends a registration, whose program is gone. Ports that are unused then are closed.
    pub fn unregister(&mut self, registration: Registration) {
        let Registration { name, number, interface, extra, call: _ } = registration;
        self.forget_adoptable(number);
        if let Some(null) = self.nulls.remove(&number) {
            self.unregister_null(null, interface, extra);
        } else if let Some(monitor) = self.monitors.remove(&number) {
            // Its memory may be that of the port, and stay.
            let region = self.memories.region(monitor.memory_id());
            region.free_extra_buffers(interface, extra);
            region.release_interface(interface);
            monitor.release(&mut self.memories);
            if let Some((parent, pipe)) = name.pipe() {
                let key = (parent.to_owned(), pipe.to_owned());
                self.pipes.get_mut(&key).into_iter().for_each(|pipe| pipe.remove_monitor(number));
                self.drop_unused(&key);
            } else {
                self.open.get_mut(&name.port).into_iter().for_each(|port| port.monitors -= 1);
                self.drop_unused_port(&name.port);
            }
        } else if let Some((parent, pipe)) = name.pipe() {
            let key = (parent.to_owned(), pipe.to_owned());
            if let Some(pipe) = self.pipes.get_mut(&key) {
                let region = self.memories.region(pipe.memory_id);
                region.free_extra_buffers(interface, extra);
                region.release_interface(interface);
                pipe.users[usize::from(!name.is_first_end())].leave(number);
            }
            self.drop_unused(&key);
        } else if let Some(port) = self.open.get_mut(&name.port) {
            let region = self.memories.region(port.memory_id());
            region.free_extra_buffers(interface, extra);
            region.release_interface(interface);
            port.served.unsubscribe(number);
            port.users.leave(number);
            self.drop_unused_port(&name.port);
        }
    }

    fn drop_unused_port(&mut self, key: &str) {
        if self.open.get(key).is_some_and(OpenPort::is_unused) {
            self.open.remove(key).into_iter().for_each(|port| port.release(&mut self.memories));
        }
    }

    /// Returns whether there are persistent ports, or native ports on a switch.
    pub fn has_lasting_ports(&self) -> bool {
        !self.persistent.is_empty() || !self.attached.is_empty()
    }

    /// Returns the bytes of the header in front of a port's frames.
    pub fn header_len(&self, name: &str) -> Result<usize, RequestError> {
        let parsed = self.parse_name(name)?;
        let other = || self.natives.contains_key(&parsed.port) || matches!(self.find(name), Ok(Some(_)));
        match self.open.get(&parsed.port) {
            Some(port) => Ok(port.served.header_len()),
            None if other() => Ok(0),
            None => Err(RequestError::new(Errno::NXIO, format!("{parsed} is not a port; open it first"))),
        }
    }

    /// Changes the length of the header in front of a port's frames, for programs of the port's user and administrators.
    pub fn set_header_len(&mut self, name: &str, len: u32, program: Credentials) -> Result<(), RequestError> {
        let name = self.parse_name(name)?;
        let len = len as usize;
        if !header::LENGTHS.contains(&len) {
            let why = format!("{name}: a header has 10 or 12 bytes, as virtio-net's, or 0 for none; not {len}");
            return Err(RequestError::new(Errno::INVAL, why));
        }
        let none = || RequestError::new(Errno::NXIO, format!("{name} is not a port of a VALE switch that is open"));
        let is_administrator = self.is_administrator(program);
        let port = self.open.get_mut(&name.port).ok_or_else(none)?;
        if program.uid != port.owner && !is_administrator {
            return Err(RequestError::new(Errno::PERM, format!("{name} is another user's port")));
        }
        if port.served.set_header_len(len) { Ok(()) } else { Err(none()) }
    }

    /// The VALE switches.
    pub fn switches(&self) -> &dyn Switches {
        &*self.switches
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns the rings of a port and the number of its memory, if it is open.
    pub fn find(&self, name: &str) -> Result<Option<(Shape, u16)>, RequestError> {
        let name = self.parse_name(name)?;
        let end = usize::from(!name.is_first_end());
        let pipe = name.pipe().and_then(|(parent, pipe)| self.pipes.get(&(parent.to_owned(), pipe.to_owned())));
        let pipe = pipe.map(|pipe| (pipe.ends[end].shape(), pipe.memory_id));
        let vale = self.open.get(&name.port).map(|port| (port.memory.shape(), port.memory_id()));
        let persistent = self.persistent.get(&name.port).map(PersistentPort::found);
        Ok(pipe.or(vale).or(persistent).or_else(|| self.find_attached(&name.port)))
    }

    /// Open ports of switches, by their names there.
    fn vale_ports(&self) -> BTreeMap<String, &OpenPort> {
        let name = |name: &String| match self.persistent.get(name) {
            Some(persistent) => persistent.switch.as_ref().map(|switch| format!("{switch}:{name}")),
            None => name.starts_with("vale").then(|| name.clone()),
        };
        self.open.iter().filter_map(|(own, port)| Some((name(own)?, port))).collect()
    }

    /// Returns a memory by its number.
    pub fn region(&self, id: u16) -> Option<&Region> {
        self.memories.find(id)
    }

    /// Records that a program of this user keeps a status, of which it has read a part.
    ///
    /// # Errors
    /// EAGAIN if programs of the user keep too many.
    pub fn hold_status(&mut self, user: u32, text: &Rc<str>) -> Result<(), RequestError> {
        let held = &mut self.held_statuses;
        held.retain(|(_, text)| text.strong_count() > 0);
        let known = held.iter().any(|(_, other)| std::ptr::addr_eq(other.as_ptr(), Rc::as_ptr(text)));
        if !known && held.iter().filter(|(of, _)| *of == user).count() >= MAX_HELD_STATUSES {
            let why = format!("{MAX_HELD_STATUSES} programs of this user are reading the status already; try again");
            return Err(RequestError::new(Errno::AGAIN, why));
        }
        if !known {
            held.push((user, Rc::downgrade(text)));
        }
        Ok(())
    }

    /// Status of all ports, by name.
    pub fn status(&self) -> Value {
        let pipes = self.pipes.iter().map(|((parent, name), pipe)| {
            let registrations = pipe.users.each_ref().map(Users::count);
            let Shape { rings, slots, .. } = pipe.ends[0].shape();
            json!({"parent": parent, "pipe": name, "memory": pipe.memory_id, "rings": rings, "slots": slots, "registrations": registrations, "pids": pipe.users.each_ref().map(Users::pids), "monitors": pipe.monitors()})
        });
        let open = |name: &str, port: &OpenPort| {
            let Shape { rings, slots, .. } = port.memory.shape();
            json!({
                "port": name, "memory": port.memory_id(), "rings": rings, "slots": slots,
                "registrations": port.users.count(), "pids": port.users.pids(), "monitors": port.monitors, "stays": port.persistent, "counters": port.served.counters(),
            })
        };
        let vale = self.vale_ports().into_iter().map(|(name, port)| open(&name, port));
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
            "persistent": self.persistent_status(),
            "ports": ports.collect::<Vec<_>>(),
            "monitors": monitors.collect::<Vec<_>>(),
            "pipes": pipes.collect::<Vec<_>>(),
            "common": common,
            "exchanged": exchanged,
            "memory": {"total": self.budget.state()[0], "used": self.budget.state()[1]},
        })
    }
}
