//! Null ports: rings that nobody serves. Programs open them to have extra buffers of a memory.

use std::os::fd::OwnedFd;

use ringpass_netmap::protocol::{FDS, RingPeer};
use ringpass_netmap::request::{PortName, Register};
use ringpass_netmap::{PortMemory, Region, Shape};
use rustix::io::Errno;

use super::asked::{bound, descriptors, granted, shared};
use super::{Ports, Registered, Registration};
use crate::server::RequestError;

/// A null port, which belongs to one registration.
pub struct NullPort {
    memory: PortMemory,
    /// Number of the memory that it lies in.
    memory_id: u16,
}

impl Ports {
    /// Registers a null port, with as many rings and slots as requested. Its name means nothing. As in netmap, it
    /// lies in a memory that exists already.
    pub(super) fn register_null(&mut self, name: &str, asked: &Register) -> Result<Registered, RequestError> {
        let name = PortName::null(name);
        let id = asked.memory_id;
        if id == 0 {
            return Err(RequestError::new(
                Errno::INVAL,
                format!("{name}: a null port names the memory that it lies in"),
            ));
        }
        self.check_memory(&name, id)?;
        let shape = Shape { rings: asked.rings, slots: asked.slots, host_rings: [0; 2] };
        let rooms = [0, 1].map(|way| shape.rings[way] == 0 || MIN_SLOTS <= shape.slots[way]);
        if rooms.contains(&false) {
            return Err(RequestError::new(Errno::INVAL, format!("{name}: a ring has {MIN_SLOTS} slots or more")));
        }
        let bound = bound(&name, asked, shape)?;
        let number = self.number();
        let events = [super::super::eventfd()?, super::super::eventfd()?];
        let region = self.memories.region(id);
        // Nobody serves the rings.
        let (memory, _) = PortMemory::new(region, &name.port, shape, id > crate::server::ZERO_COPY_MEMORY)?;
        let registered = Self::null_descriptors(region, &memory, events).and_then(|fds| {
            let interface = memory.bind(region, bound)?;
            let extra = region.alloc_extra_buffers(interface, asked.extra_buffers as usize);
            let register = granted(asked, region, (interface, extra), shape, id);
            let pools = *region.pools();
            let registration = Registration { name, number, interface, extra, call: None };
            Ok(Registered {
                registration,
                register,
                pools,
                peer: RingPeer::Server,
                fds: fds.into(),
                others: String::new(),
            })
        });
        match registered {
            Ok(registered) => {
                self.memories.enter(id);
                self.nulls.insert(number, NullPort { memory, memory_id: id });
                Ok(registered)
            }
            Err(refusal) => {
                memory.release(region);
                Err(refusal)
            }
        }
    }

    fn null_descriptors(
        region: &Region,
        memory: &PortMemory,
        [call, kick]: [OwnedFd; 2],
    ) -> Result<[OwnedFd; FDS], RequestError> {
        descriptors([
            shared(region.file())?.try_clone_to_owned(),
            shared(memory.csb().file())?.try_clone_to_owned(),
            Ok(call),
            Ok(kick),
        ])
    }

    /// Frees a null port, whose program is gone.
    pub(super) fn unregister_null(&mut self, port: NullPort, interface: usize, extra: usize) {
        let NullPort { memory, memory_id } = port;
        let region = self.memories.region(memory_id);
        region.free_extra_buffers(interface, extra);
        region.release_interface(interface);
        memory.release(region);
        self.memories.leave(memory_id);
    }
}

/// Smallest number of slots of a ring.
const MIN_SLOTS: u32 = 2;
