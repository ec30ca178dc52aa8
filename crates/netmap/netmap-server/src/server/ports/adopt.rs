//! Registrations that other processes adopt, which have got a descriptor of the connection.

use std::os::fd::OwnedFd;

use ringpass_ipc::EventNotifier;
use ringpass_netmap::protocol::{Reply, RingPeer};
use ringpass_netmap::request::{PortName, Register};
use ringpass_netmap::{Pools, Region};
use rustix::io::Errno;

use super::asked::{descriptors, shared};
use super::monitors::PipeDescriptors;
use super::{Ports, Registered};
use crate::server::RequestError;
use crate::server::open_port::OpenPort;

/// A registration with what a further process needs of it.
pub struct Adoptable {
    pub(super) name: PortName,
    pub(super) number: u64,
    pub(super) call: Option<EventNotifier>,
    pub(super) register: Register,
    pub(super) pools: Pools,
    pub(super) peer: RingPeer,
}

impl Ports {
    /// Remembers a registration by its program's user and the cookie of its connection, until it ends.
    pub fn remember(&mut self, user: u32, cookie: u64, registered: &Registered) {
        let Registered { registration, register, pools, peer, .. } = registered;
        let adoptable = Adoptable {
            name: registration.name.clone(),
            number: registration.number,
            call: registration.call.clone(),
            register: register.clone(),
            pools: *pools,
            peer: *peer,
        };
        // Another program of this user may have claimed the cookie; the kernel gives each socket its own.
        self.adoptable.insert((user, cookie), adoptable);
    }

    /// Forgets a registration that has ended.
    pub(super) fn forget_adoptable(&mut self, number: u64) {
        self.adoptable.retain(|_, adoptable| adoptable.number != number);
    }

    /// Returns the reply to a program of the same user that adopts the registration of a connection.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EOPNOTSUPP` for one without rings.
    pub fn adopt(&mut self, user: u32, cookie: u64) -> Result<(Reply, Vec<OwnedFd>), RequestError> {
        let none = || RequestError::new(Errno::NOENT, "no connection of this user has such a registration");
        let Some(Adoptable { name, number, call, register, pools, peer }) = self.adoptable.get(&(user, cookie)) else {
            return Err(none());
        };
        let pipe = name.pipe().and_then(|(parent, pipe)| self.pipes.get(&(parent.to_owned(), pipe.to_owned())));
        let (region, fds) = if let Some(port) = self.monitors.get(number).or_else(|| self.open.get(&name.port)) {
            let region = self.memories.find(port.memory_id()).ok_or_else(none)?;
            let call = call.as_ref().expect("a port with served rings wakes its programs");
            let mut fds = port.descriptors(region, call)?;
            if let Some(pipe) = pipe {
                PipeDescriptors::of(pipe)?.complete(&mut fds);
            }
            (region, fds)
        } else if let Some(pipe) = pipe {
            let region = self.memories.find(pipe.memory_id).ok_or_else(none)?;
            (region, pipe.descriptors(region, usize::from(!name.is_first_end()))?)
        } else {
            return Err(RequestError::new(
                Errno::OPNOTSUPP,
                format!("{name}: a registration without rings stays where it is"),
            ));
        };
        let text = name.port.clone();
        let reply = Reply { pools: *pools, peer: *peer, text, ..Reply::registered(register, region.file_offset()) };
        Ok((reply, fds))
    }
}

impl OpenPort {
    /// Returns the descriptors of the port for a program, which `call` wakes.
    pub(super) fn descriptors(&self, region: &Region, call: &EventNotifier) -> Result<Vec<OwnedFd>, RequestError> {
        let fds = descriptors([
            shared(region.file())?.try_clone_to_owned(),
            shared(self.memory.csb().file())?.try_clone_to_owned(),
            call.event().try_clone_to_owned(),
            self.served.kick().try_clone_to_owned(),
        ]);
        fds.map(Vec::from)
    }
}
