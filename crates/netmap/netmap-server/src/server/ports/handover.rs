//! What the ports of a server are, for its successor.

use std::os::fd::AsFd;
use std::sync::Arc;

use ringpass_ipc::{Credentials, EventNotifier, WakeFd};
use ringpass_memory::DmaRegion;
use ringpass_netmap::protocol::RingPeer;
use ringpass_netmap::request::{PortName, Register};
use ringpass_netmap::{Pools, PortMemory, PortMemoryState, Positions, Region, RegionState};
use serde::{Deserialize, Serialize};

use super::adopt::Adoptable;
use super::asked::shared;
use super::persistent::PersistentPort;
use super::{Ports, Registration};
use crate::BufferAccess;
use crate::server::budget::PrivateMemory;
use crate::server::left::{Left, Store, broken};
use crate::server::memories::Known;
use crate::server::open_port::OpenPort;
use crate::server::pipes::Pipe;
use crate::server::users::User;
use crate::server::{COMMON_MEMORY, RequestError, ServedRings, Users};

/// All ports that a successor can go on with. Descriptors are the numbers that their store has given them.
#[derive(Serialize, Deserialize)]
pub struct PortsState {
    numbers: u64,
    last_memory: u16,
    memories: Vec<MemoryState>,
    pipes: Vec<PipeState>,
    open: Vec<OpenState>,
    persistent: Vec<(String, PersistentPort)>,
    adoptable: Vec<AdoptableState>,
}

#[derive(Serialize, Deserialize)]
struct MemoryState {
    id: u16,
    /// Number of ports and pipes in it; 0 for the common memory.
    ports: usize,
    region: RegionState,
    file: usize,
}

#[derive(Serialize, Deserialize)]
struct PipeState {
    key: (String, String),
    ends: [PortMemoryState; 2],
    csb: usize,
    call_events: [usize; 2],
    users: [Vec<UserState>; 2],
    memory_id: u16,
    tap: usize,
    monitors_event: usize,
}

/// A port of a switch.
#[derive(Serialize, Deserialize)]
struct OpenState {
    name: String,
    memory: PortMemoryState,
    csb: usize,
    memory_id: u16,
    users: Vec<UserState>,
    owner: u32,
    persistent: bool,
    header_len: usize,
    positions: Vec<Positions>,
    kick: usize,
}

/// A program that has a port; its credentials are those of its connection.
#[derive(Serialize, Deserialize)]
struct UserState {
    number: u64,
    rings: u64,
    exclusive: bool,
}

#[derive(Serialize, Deserialize)]
struct AdoptableState {
    user: u32,
    cookie: u64,
    name: String,
    number: u64,
    register: Vec<u8>,
    pools: Pools,
    peer: RingPeer,
}

/// The registration of a connection.
#[derive(Serialize, Deserialize)]
pub struct RegistrationState {
    name: String,
    number: u64,
    interface: usize,
    extra: usize,
    call: Option<usize>,
}

/// A registration of a connection, and the program behind it.
type Registered = (Registration, Credentials);

fn name(text: &str) -> Result<PortName, RequestError> {
    PortName::in_header(text).map_err(broken)
}

impl Registration {
    /// Stores its descriptor.
    pub fn state(&self, store: &mut Store<'_>) -> Result<RegistrationState, RequestError> {
        let Self { name, number, interface, extra, call } = self;
        let call = call.as_ref().map(|call| store.put(call.event())).transpose()?;
        Ok(RegistrationState { name: name.port.clone(), number: *number, interface: *interface, extra: *extra, call })
    }
}

impl RegistrationState {
    /// Returns the registration, which is one of the ports that are [resumed](Ports::resume).
    pub fn resume(self, left: &mut Left) -> Result<Registration, RequestError> {
        let Self { name: port, number, interface, extra, call } = self;
        let call = call.map(|call| EventNotifier::new(left.take(call)?).map_err(broken)).transpose()?;
        Ok(Registration { name: name(&port)?, number, interface, extra, call })
    }
}

impl Users {
    fn states(&self) -> Vec<UserState> {
        let state = |user: &User| UserState { number: user.number, rings: user.rings, exclusive: user.exclusive };
        self.all().map(state).collect()
    }

    fn resume(states: Vec<UserState>, registrations: &[Registered]) -> Self {
        let user = |UserState { number, rings, exclusive }| {
            let &(_, program) = registrations.iter().find(|(registration, _)| registration.number == number)?;
            Some(User { number, program, rings, exclusive })
        };
        states.into_iter().filter_map(user).collect()
    }
}

impl Ports {
    /// Returns whether a successor can go on with a registration.
    pub fn can_be_passed_on(&self, Registration { name, number, .. }: &Registration) -> bool {
        if self.monitors.contains_key(number) || self.nulls.contains_key(number) {
            return false;
        }
        let memory = match name.pipe() {
            Some((parent, pipe)) => self.pipes.get(&(parent.to_owned(), pipe.to_owned())).map(|pipe| pipe.memory_id),
            None if self.natives.contains_key(&name.port) => None,
            None => self.open.get(&name.port).map(OpenPort::memory_id),
        };
        memory.and_then(|id| self.memories.find(id)).is_some_and(Region::can_be_passed_on)
    }

    /// Stores all ports that a successor can go on with, and ends them here.
    pub fn leave(&mut self, store: &mut Store<'_>) -> Result<PortsState, RequestError> {
        // No frame is taken that does not find its way into another ring.
        self.open.values_mut().for_each(|port| port.served.hold(true));
        self.switches.settle();
        let mut open = Vec::new();
        let Self { open: ports, natives, memories, .. } = self;
        for (name, port) in ports {
            let can = memories.find(port.memory_id()).is_some_and(Region::can_be_passed_on);
            if !can || natives.contains_key(name) {
                continue;
            }
            let kick = store.put(port.served.kick())?;
            let header_len = port.served.header_len();
            let Some(positions) = port.served.leave() else { continue };
            open.push(OpenState {
                name: name.clone(),
                memory: port.memory.state(),
                csb: store.put(shared(port.memory.csb().file())?)?,
                memory_id: port.memory_id(),
                users: port.users.states(),
                owner: port.owner,
                persistent: port.persistent,
                header_len,
                positions,
                kick,
            });
        }
        let mut pipes = Vec::new();
        for (key, pipe) in &self.pipes {
            let [first, second] = pipe.call_events.each_ref().map(|event| store.put(event.as_fd()));
            pipes.push(PipeState {
                key: key.clone(),
                ends: pipe.ends.each_ref().map(PortMemory::state),
                csb: store.put(shared(pipe.ends[0].csb().file())?)?,
                call_events: [first?, second?],
                users: pipe.users.each_ref().map(Users::states),
                memory_id: pipe.memory_id,
                tap: store.put(pipe.tap.as_fd())?,
                monitors_event: store.put(pipe.monitors_event.as_fd())?,
            });
        }
        let mut memories = Vec::new();
        for Known { id, ports, region } in self.memories.all() {
            // The others have no port any more, or never had one.
            let used = ports > 0 || region.has_rings();
            let Some(state) = region.state().filter(|_| used) else { continue };
            memories.push(MemoryState { id, ports, region: state, file: store.put(shared(region.file())?)? });
        }
        let persistent = std::mem::take(&mut self.persistent).into_iter();
        let persistent = persistent.filter(|(_, port)| memories.iter().any(|memory| memory.id == port.memory_id));
        let adoptable = self.adoptable.iter().map(|(&(user, cookie), adoptable)| {
            let Adoptable { name, number, call: _, register, pools, peer } = adoptable;
            let (name, register) = (name.port.clone(), register.bytes().into());
            AdoptableState { user, cookie, name, number: *number, register, pools: *pools, peer: *peer }
        });
        Ok(PortsState {
            numbers: self.numbers,
            last_memory: self.memories.last(),
            pipes,
            open,
            persistent: persistent.collect(),
            adoptable: adoptable.collect(),
            memories,
        })
    }

    /// Goes on with the ports of another server. There must be none yet.
    ///
    /// # Errors
    /// Something is missing or wrong: there are still none.
    pub fn resume(
        &mut self,
        state: PortsState,
        left: &mut Left,
        registrations: &[Registered],
    ) -> Result<(), RequestError> {
        let mut replaced = None;
        let resumed = self.resume_all(state, left, registrations, &mut replaced);
        resumed.inspect_err(|_| {
            self.open.clear();
            self.pipes.clear();
            self.persistent.clear();
            self.adoptable.clear();
            self.memories.clear();
            replaced.into_iter().for_each(|common| self.memories.common = common);
        })
    }

    fn resume_all(
        &mut self,
        PortsState { numbers, last_memory, memories, pipes, open, persistent, adoptable }: PortsState,
        left: &mut Left,
        registrations: &[Registered],
        replaced: &mut Option<Region>,
    ) -> Result<(), RequestError> {
        let map = |left: &mut Left, file: usize| DmaRegion::of_file(left.take(file)?).map_err(broken);
        self.numbers = numbers;
        for MemoryState { id, ports, region, file } in memories {
            let region = Region::resume(map(left, file)?, region).map_err(broken)?;
            if id == COMMON_MEMORY {
                *replaced = Some(std::mem::replace(&mut self.memories.common, region));
            } else {
                let memory = PrivateMemory::resume(region, &self.budget);
                self.memories.resume(id, memory, ports).map_err(broken)?;
            }
        }
        self.memories.set_last(last_memory);
        self.persistent = persistent.into_iter().collect();
        for port in open {
            let csb = map(left, port.csb)?;
            let kick = WakeFd::on(left.take(port.kick)?).map_err(broken)?;
            self.resume_port(port, csb, Arc::new(kick), registrations)?;
        }
        // Frames are not taken before all of those are there that may receive them: a round that began before may not know them yet.
        self.switches.settle();
        self.open.values_mut().for_each(|port| port.served.hold(false));
        for pipe in pipes {
            let csb = map(left, pipe.csb)?;
            let region = self.memories.find(pipe.memory_id).ok_or_else(|| broken("a pipe has no memory"))?;
            let end = |state| PortMemory::resume(region, csb.clone(), state).map_err(broken);
            let [first, second] = pipe.ends.map(end);
            let [call, other] = pipe.call_events.map(|event| left.take(event));
            let resumed = Pipe::resume(
                [first?, second?],
                [call?, other?],
                pipe.users.map(|users| Users::resume(users, registrations)),
                pipe.memory_id,
                [left.take(pipe.tap)?, left.take(pipe.monitors_event)?],
                &self.budget,
            );
            self.pipes.insert(pipe.key, resumed);
        }
        for AdoptableState { user, cookie, name: port, number, register, pools, peer } in adoptable {
            let of = registrations.iter().find(|(registration, _)| registration.number == number);
            let Some((Registration { call, .. }, _)) = of else { continue };
            let register = register.first_chunk().ok_or_else(|| broken("a registration is too short"))?;
            let register = Register::parse(register).map_err(broken)?;
            let adoptable = Adoptable { name: name(&port)?, number, call: call.clone(), register, pools, peer };
            self.adoptable.insert((user, cookie), adoptable);
        }
        Ok(())
    }

    fn resume_port(
        &mut self,
        OpenState { name, memory, memory_id, users, owner, persistent, header_len, positions, .. }: OpenState,
        csb: Arc<DmaRegion>,
        kick: Arc<WakeFd>,
        registrations: &[Registered],
    ) -> Result<(), RequestError> {
        let region = self.memories.find(memory_id).ok_or_else(|| broken("a port has no memory"))?;
        let memory = PortMemory::resume(region, csb, memory).map_err(broken)?;
        let rings = memory.serve_from(region, &positions).map_err(broken)?;
        let BufferAccess::Copied(buffers) = BufferAccess::of(region) else {
            return Err(broken("a port of a switch lies in memory of a card"));
        };
        let rings = ServedRings { rings, buffers, kick, held: true };
        let switch = self.persistent.get(&name).map(|port| port.switch.clone());
        let mut served = match (switch, name.split_once(':')) {
            (Some(Some(switch)), _) => self.switches.open(&switch, &name, rings)?,
            (Some(None), _) => self.switches.open_alone(&name, rings)?,
            (None, Some((switch, port))) => self.switches.open(switch, port, rings)?,
            (None, None) => return Err(broken("a port is on no switch")),
        };
        served.set_header_len(header_len);
        let users = Users::resume(users, registrations);
        for user in users.all() {
            let of = registrations.iter().find(|(registration, _)| registration.number == user.number);
            if let Some(call) = of.and_then(|(registration, _)| registration.call.clone()) {
                served.subscribe(user.number, user.rings, call);
            }
        }
        self.open.insert(name, OpenPort::resume(served, memory, memory_id, users, (owner, persistent)));
        Ok(())
    }
}
