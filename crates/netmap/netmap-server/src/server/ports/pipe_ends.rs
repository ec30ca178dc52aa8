//! Registrations of pipes' ends.

use std::os::fd::OwnedFd;

use ringpass_ipc::Credentials;
use ringpass_netmap::protocol::RingPeer;
use ringpass_netmap::request::{PortName, Register};
use ringpass_netmap::{Pools, Region, Shape};
use rustix::io::Errno;

use super::asked::{Rings, admit, bound, descriptors, granted, shared};
use super::{Ports, Registered, Registration, Requester, new_shape};
use crate::server::RequestError;
use crate::server::open_port::{OpenPort, buffers_of_pipe, pools_of_pipes};
use crate::server::pipes::Pipe;

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
        requester: &mut Requester,
    ) -> Result<Registered, RequestError> {
        let (parent, pipe) = name.pipe().expect("a pipe's name");
        let (key, end) = ((parent.to_owned(), pipe.to_owned()), usize::from(!name.is_first_end()));
        match self.pipes.get(&key) {
            None => self.make_pipe(&name, key.clone(), asked, requester)?,
            Some(pipe) if ![0, pipe.memory_id].contains(&asked.memory_id) => {
                let why = format!("{name} lies in memory {}, as its first program said", pipe.memory_id);
                return Err(RequestError::new(Errno::INVAL, why));
            }
            Some(_) => {}
        }
        let result = self.register_end(&key, end, name, asked, requester.program);
        if result.is_err() {
            self.drop_unused(&key);
        }
        result
    }

    /// Creates a pipe in the memory that is asked for, or in that of its port.
    fn make_pipe(
        &mut self,
        name: &PortName,
        key: (String, String),
        asked: &Register,
        requester: &mut Requester,
    ) -> Result<(), RequestError> {
        // As in netmap, the numbers are those of the first end, whichever is opened first.
        let shape = new_shape(asked)?;
        let id = if asked.memory_id == 0 { self.memory_for_pipe(&key.0, shape) } else { Some(asked.memory_id) };
        let id = match id {
            Some(id) => {
                self.check_memory(name, id)?;
                self.memories.enter(id);
                id
            }
            None => self.memories.add(requester.take(&pools_of_pipes(shape, asked.extra_buffers))?),
        };
        match Pipe::new((id, self.memories.region(id)), (&key.0, &key.1), shape, &self.budget) {
            Ok(pipe) => _ = self.pipes.insert(key, pipe),
            Err(error) => {
                self.memories.leave(id);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the pools of the memory that must be allocated for a pipe: as in netmap, pipes of a port that does not exist have
    /// memory of their own.
    pub(super) fn needs_of_pipe(&self, name: &PortName, asked: &Register) -> Result<Option<Pools>, RequestError> {
        let (parent, pipe) = name.pipe().expect("a pipe's name");
        let is_there = self.pipes.contains_key(&(parent.to_owned(), pipe.to_owned()));
        let shape = new_shape(asked)?;
        if is_there || asked.memory_id != 0 || self.memory_for_pipe(parent, shape).is_some() {
            return Ok(None);
        }
        Ok(Some(pools_of_pipes(shape, asked.extra_buffers)))
    }

    /// Returns the memory in which a further pipe of a port lies: the port's own, or that of other pipes, as far as they have room, if
    /// there is no such port.
    fn memory_for_pipe(&self, parent: &str, shape: Shape) -> Option<u16> {
        let open = self.open.get(parent).map(OpenPort::memory_id);
        let persistent = || self.persistent.get(parent).map(|port| port.memory_id);
        let native = || self.natives.get(parent).map(|native| native.memory_id());
        let pipes = || {
            let first = (parent.to_owned(), String::new());
            let mut memories =
                self.pipes.range(first..).take_while(|((of, _), _)| of == parent).map(|(_, pipe)| pipe.memory_id);
            let has_room = |region: &Region| region.free_buffers() >= buffers_of_pipe(shape) as usize;
            memories.find(|&id| self.memories.find(id).is_some_and(has_room))
        };
        open.or_else(persistent).or_else(native).or_else(pipes)
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
