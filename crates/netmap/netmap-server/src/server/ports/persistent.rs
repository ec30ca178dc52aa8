//! Persistent ports: VALE ports that exist without a program and without a switch, under a name of their own. Programs open
//! them by that name, or as ports of the switch that they are attached to. What is sent to one without a switch is dropped.

use std::collections::BTreeSet;

use ringpass_ipc::Credentials;
use ringpass_netmap::request::{PortName, Register};
use ringpass_netmap::{Pools, Region, Shape};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Ports, Requester, new_shape};
use crate::BufferAccess;
use crate::server::open_port::{OpenPort, pools};
use crate::server::{Administrators, RequestError, ServedRings, ZERO_COPY_MEMORY};

/// A persistent port. It is [open](Ports::open) while it is attached or a program uses it.
#[derive(Serialize, Deserialize)]
pub struct PersistentPort {
    /// User ID of the program that created it.
    pub(super) owner: u32,
    shape: Shape,
    /// Number of its memory, in which it is counted until it is deleted.
    pub(super) memory_id: u16,
    /// The switch that it is attached to.
    pub(super) switch: Option<String>,
}

/// Largest number of persistent ports of one user.
const MAX_PERSISTENT_PORTS: usize = 64;
/// Bytes of the longest name of a persistent port, as of the kernel's interfaces.
const MAX_NAME_LEN: usize = 15;

impl PersistentPort {
    /// Rings of the port, and the number of its memory.
    pub(super) fn found(&self) -> (Shape, u16) {
        (self.shape, self.memory_id)
    }
}

impl Ports {
    /// Parses the name in a request's header. A port of a switch that is a persistent port, and a pipe of such a port, get
    /// the persistent port's own name.
    pub(super) fn parse_name(&self, name: &str) -> Result<PortName, RequestError> {
        let mut parsed = PortName::in_header(name)?;
        let (port, pipe) = match parsed.pipe() {
            Some((parent, _)) => parsed.port.split_at(parent.len()),
            None => (&parsed.port[..], ""),
        };
        let vale = if port.starts_with("vale") { port.split_once(':') } else { None };
        let own = vale.filter(|(switch, own)| {
            self.persistent.get(*own).is_some_and(|persistent| persistent.switch.as_deref() == Some(switch))
        });
        if let Some((_, own)) = own {
            parsed.port = format!("{own}{pipe}");
        }
        Ok(parsed)
    }

    /// Returns the pools of the memory that must be allocated before a persistent port is [created](Self::create_persistent).
    pub fn needs_of_persistent(&self, name: &str, asked: &Register, user: u32) -> Result<Vec<Pools>, RequestError> {
        self.check_persistent(name, user)?;
        let shape = new_shape(asked)?;
        Ok((asked.memory_id == 0).then(|| pools(shape, 0)).into_iter().collect())
    }

    /// Checks that a user may create a persistent port with this name.
    fn check_persistent(&self, name: &str, user: u32) -> Result<(), RequestError> {
        let invalid = |why: &str| Err(RequestError::new(Errno::INVAL, format!("'{name}': {why}")));
        if name.starts_with("vale") {
            return invalid("a persistent port has a name without a switch, and is attached to one later");
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !(1..=MAX_NAME_LEN).contains(&name.len()) || !name.bytes().all(is_name) {
            return invalid("a persistent port is called by up to 15 letters, digits, '_', '.' and '-'");
        }
        if self.switches.is_address(name) {
            return invalid("this is the address of a port; choose another name");
        }
        if self.persistent.contains_key(name) || self.natives.contains_key(name) {
            return Err(RequestError::new(Errno::EXIST, format!("{name} exists already; see 'ringpass vale'")));
        }
        self.check_room()?;
        let own = self.persistent.values().filter(|port| port.owner == user).count();
        if own >= MAX_PERSISTENT_PORTS {
            let why = format!("limit of {MAX_PERSISTENT_PORTS} persistent ports of a user reached; delete one first");
            return Err(RequestError::new(Errno::NOSPC, why));
        }
        Ok(())
    }

    /// Creates a persistent port. Returns its rings, and the number of its memory.
    pub fn create_persistent(
        &mut self,
        name: &str,
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<(Shape, u16), RequestError> {
        let owner = requester.program.uid;
        self.check_persistent(name, owner)?;
        let shape = new_shape(asked)?;
        let memory_id = match asked.memory_id {
            0 => self.memories.add(requester.take(&pools(shape, 0))?),
            ZERO_COPY_MEMORY => {
                let why =
                    format!("{name}: in memory {ZERO_COPY_MEMORY} are buffers that a card uses; leave the number out");
                return Err(RequestError::new(Errno::INVAL, why));
            }
            id => {
                self.check_memory(&PortName::in_header(name)?, id)?;
                self.memories.enter(id);
                id
            }
        };
        let port = PersistentPort { owner, shape, memory_id, switch: None };
        let found = port.found();
        self.persistent.insert(name.into(), port);
        Ok(found)
    }

    /// Deletes a persistent port.
    pub fn delete_persistent(&mut self, name: &str, program: Credentials) -> Result<(), RequestError> {
        let port = self.controlled(name, program)?;
        let busy = |why: String| Err(RequestError::new(Errno::BUSY, format!("{name}: {why}")));
        if let Some(switch) = &port.switch {
            return busy(format!("it is attached to {switch}; detach it first"));
        }
        if self.open.contains_key(name) || self.pipes.keys().any(|(parent, _)| parent == name) {
            return busy("programs use it; end them first".into());
        }
        let port = self.persistent.remove(name);
        port.into_iter().for_each(|port| self.memories.leave(port.memory_id));
        Ok(())
    }

    /// Returns a persistent port that a program may attach, detach or delete.
    pub(super) fn controlled(&self, name: &str, program: Credentials) -> Result<&PersistentPort, RequestError> {
        let none = || RequestError::new(Errno::NXIO, format!("{name} is not a persistent port; see 'ringpass vale'"));
        let port = self.persistent.get(name).ok_or_else(none)?;
        if program.uid != port.owner && !self.is_administrator(program) {
            let why =
                format!("{name}: it was created by user {}; ask them, or the user who runs this process", port.owner);
            return Err(RequestError::new(Errno::PERM, why));
        }
        Ok(port)
    }

    /// Whether a program's user may control what others have created.
    pub(super) fn is_administrator(&self, program: Credentials) -> bool {
        let Administrators { users, group } = &self.administrators;
        program.uid == 0 || users.contains(&program.uid) || *group == Some(program.gid)
    }

    /// Opens a persistent port, on its switch if it is attached to one.
    pub(super) fn open_persistent(&mut self, name: &str) -> Result<(), RequestError> {
        let Self { persistent, memories, switches, open, .. } = self;
        let none = || RequestError::new(Errno::NXIO, format!("{name} is not a persistent port"));
        let PersistentPort { owner, shape, memory_id, switch } = persistent.get(name).ok_or_else(none)?;
        memories.enter(*memory_id);
        let serve = |served, region: &Region| match (BufferAccess::of(region), switch) {
            (BufferAccess::Copied(buffers), Some(switch)) => {
                switches.open(switch, name, ServedRings::new(served, buffers)?)
            }
            (BufferAccess::Copied(buffers), None) => switches.open_alone(name, ServedRings::new(served, buffers)?),
            (BufferAccess::ZeroCopy(_), _) => unreachable!("refused when the port was created"),
        };
        let mut port = OpenPort::new(name, *shape, (*memory_id, memories), serve)?;
        port.owner = *owner;
        port.persistent = switch.is_some();
        open.insert(name.into(), port);
        Ok(())
    }

    /// Bytes of private memory of all persistent ports.
    pub fn persistent_bytes(&self) -> usize {
        // Ports may share a memory.
        let memories: BTreeSet<u16> = self.persistent.values().map(|port| port.memory_id).collect();
        memories.into_iter().map(|id| self.memories.bytes(id)).sum()
    }

    /// Status of the persistent ports, by name.
    pub(super) fn persistent_status(&self) -> Value {
        let port = |(name, port): (&String, &PersistentPort)| {
            let PersistentPort { owner, shape: Shape { rings, slots, .. }, memory_id, switch } = port;
            let programs = self.open.get(name).map_or(0, |port| port.users.count());
            json!({
                "port": name, "switch": switch, "memory": memory_id, "rings": rings, "slots": slots, "user": owner,
                "registrations": programs,
            })
        };
        self.persistent.iter().map(port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::COMMON_MEMORY;

    fn program(uid: u32) -> Credentials {
        Credentials { pid: 1, uid, gid: uid + 1 }
    }

    /// Creates a port in the common memory, for which no memory is allocated.
    fn create(ports: &mut Ports, name: &str, uid: u32) -> Result<(Shape, u16), Errno> {
        let mut requester = Requester { program: program(uid), made: Vec::new() };
        let asked = Register { memory_id: COMMON_MEMORY, ..Register::default() };
        ports.create_persistent(name, &asked, &mut requester).map_err(|error| error.errno)
    }

    fn ports() -> Ports {
        let pools = Pools { interfaces: 8, ring_bytes: 1 << 20, buffers: 4096, ..Pools::default() };
        Ports::new(pools, Box::new(())).expect("no ports")
    }

    #[test]
    fn ports_are_controlled_by_their_user_and_administrators() {
        let mut ports = ports();
        ports.administrators = Administrators { users: vec![7], group: Some(21) };
        // The last one is of that group.
        for administrator in [0, 7, 1000, 20] {
            create(&mut ports, "a", 1000).expect("a port");
            assert_eq!(create(&mut ports, "a", 1001), Err(Errno::EXIST));
            let attach = |ports: &mut Ports, uid| {
                ports.attach("vale0:a", &Register::default(), program(uid)).map(drop).map_err(|error| error.errno)
            };
            assert_eq!(attach(&mut ports, 1001), Err(Errno::PERM));
            assert_eq!(ports.delete_persistent("a", program(1001)).map_err(|error| error.errno), Err(Errno::PERM));
            // There are no switches here; the port is what it was before.
            assert_eq!(attach(&mut ports, administrator), Err(Errno::NXIO));
            assert!(ports.persistent["a"].switch.is_none() && ports.open.is_empty());
            assert_eq!(ports.delete_persistent("a", program(administrator)), Ok(()));
        }
    }

    #[test]
    fn each_user_has_a_limit() {
        let mut ports = ports();
        let mut count = |uid| {
            let created = |number: &usize| create(&mut ports, &format!("p{uid}_{number}"), uid).is_ok();
            (0..2 * MAX_PERSISTENT_PORTS).take_while(created).count()
        };
        assert_eq!([count(1000), count(1001), count(0)], [MAX_PERSISTENT_PORTS; 3]);
        assert_eq!(create(&mut ports, "more", 1000), Err(Errno::NOSPC));
    }

    #[test]
    fn names_are_those_of_interfaces() {
        let mut ports = ports();
        for name in ["", "vale0:a", "vale", "a:b", "a b", "a/b", "a{1", "a}1", "sixteen_letters_", "é", "a\n"] {
            assert_eq!(create(&mut ports, name, 0), Err(Errno::INVAL), "{name}");
        }
        for name in ["a", "br-lan", "eth0.100", "fifteen_letters"] {
            assert!(create(&mut ports, name, 0).is_ok(), "{name}");
        }
    }
}
