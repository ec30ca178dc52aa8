//! Registrations of pipes' ends.

use std::os::fd::OwnedFd;

use ringpass_ipc::Credentials;
use ringpass_netmap::Region;
use ringpass_netmap::protocol::RingPeer;
use ringpass_netmap::request::{PortName, Register};
use rustix::io::Errno;

use super::asked::{Rings, admit, bound, descriptors, granted, shared};
use super::{Ports, Registered, Registration, new_shape};
use crate::server::open_port::OpenPort;
use crate::server::pipes::Pipe;
use crate::server::{COMMON_MEMORY, RequestError};

impl Pipe {
    /// Returns the descriptors of an end, for a program.
    pub(super) fn descriptors(&self, region: &Region, end: usize) -> Result<Vec<OwnedFd>, RequestError> {
        let fds = descriptors([
            shared(region.file())?.try_clone_to_owned(),
            shared(self.ends[0].csb().file())?.try_clone_to_owned(),
            self.call_events[end].try_clone(),
            self.call_events[1 - end].try_clone(),
            self.tap.try_clone(),
            self.monitors_event.try_clone(),
        ]);
        fds.map(Vec::from)
    }
}

impl Ports {
    /// Registers an end of a pipe, which is created if neither end is open.
    pub(super) fn register_pipe(
        &mut self,
        name: PortName,
        asked: &Register,
        program: Credentials,
    ) -> Result<Registered, RequestError> {
        let (parent, pipe) = name.pipe().expect("a pipe's name");
        let (key, end) = ((parent.to_owned(), pipe.to_owned()), usize::from(!name.is_first_end()));
        let id = match self.pipes.get(&key) {
            Some(pipe) => pipe.memory_id,
            None if asked.memory_id != 0 => asked.memory_id,
            None => self.memory_of_parent(parent),
        };
        if ![0, id].contains(&asked.memory_id) {
            return Err(RequestError::new(
                Errno::INVAL,
                format!("{name} lies in memory {id}, as its first program said"),
            ));
        }
        self.check_memory(&name, id)?;
        if !self.pipes.contains_key(&key) {
            // As in netmap, the numbers are those of the first end, whichever is opened first.
            let shape = new_shape(asked)?;
            let made = Pipe::new((id, self.memories.region(id)), (parent, pipe), shape, &self.budget)?;
            self.memories.enter(id);
            self.pipes.insert(key.clone(), made);
        }
        let result = self.register_end(&key, end, name, asked, program);
        if result.is_err() {
            self.drop_unused(&key);
        }
        result
    }

    /// Returns the memory in which pipes of a port lie: its own, or the common one if there is no such port.
    fn memory_of_parent(&self, parent: &str) -> u16 {
        let native = || self.natives.get(parent).map(|native| native.memory_id());
        let persistent = || self.persistent.get(parent).map(|port| port.memory_id);
        self.open.get(parent).map(OpenPort::memory_id).or_else(persistent).or_else(native).unwrap_or(COMMON_MEMORY)
    }

    fn register_end(
        &mut self,
        key: &(String, String),
        end: usize,
        name: PortName,
        asked: &Register,
        program: Credentials,
    ) -> Result<Registered, RequestError> {
        let number = self.number();
        let pipe = self.pipes.get_mut(key).expect("made before");
        let region = self.memories.region(pipe.memory_id);
        let bound = bound(&name, asked, pipe.ends[end].shape())?;
        let fds = pipe.descriptors(region, end)?;
        let (interface, others) = admit(
            &name,
            asked,
            (number, program),
            Rings { memory: &pipe.ends[end], region, users: &mut pipe.users[end] },
            bound,
        )?;
        // An end whose positions are broken stays so: its programs are responsible for that.
        if pipe.users[end].count() == 1 {
            let _ = pipe.reinit(region, end);
        }
        let peer = RingPeer::Pipe { other: pipe.ends[1 - end].interface() as u64, first: end == 0 };
        let shape = pipe.ends[end].shape();
        let extra = region.alloc_extra_buffers(interface, asked.extra_buffers as usize);
        let register = granted(asked, region, (interface, extra), shape, pipe.memory_id);
        let registration = Registration { name, number, interface, extra, call: None };
        Ok(Registered { registration, register, pools: *region.pools(), peer, fds, others })
    }

    /// Frees a pipe that neither a program nor a monitor uses.
    pub(super) fn drop_unused(&mut self, key: &(String, String)) {
        if self.pipes.get(key).is_some_and(Pipe::is_unused) {
            let pipe = self.pipes.remove(key).expect("it is there");
            let region = self.memories.region(pipe.memory_id);
            let id = pipe.memory_id;
            pipe.release(region);
            self.memories.leave(id);
        }
    }
}
