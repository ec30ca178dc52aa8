//! Native ports of the server.

use ringpass_netmap::request::{Mode, PortName, Register};
use ringpass_netmap::{Region, Shape};
use rustix::io::Errno;

use super::Ports;
use super::asked::slots;
use crate::server::open_port::OpenPort;
use crate::server::{Native, RequestError};

/// Largest number of rings of the host's stack, in each direction.
const MAX_HOST_RINGS: u16 = 16;

impl Ports {
    pub(super) fn make_native(&mut self, name: &PortName, asked: &Register) -> Result<(), RequestError> {
        let shape = self.native_shape(name, asked)?;
        let native = self.natives.get_mut(&name.port).expect("it has a shape");
        let usual = native.memory_id();
        let id = if asked.memory_id == 0 { usual } else { asked.memory_id };
        // Where buffers are exchanged, they are those of one memory. Else frames are copied to any that was made for programs.
        if id != usual && (native.exchanges() || !self.memories.is_private(id)) {
            return Err(RequestError::new(
                Errno::INVAL,
                format!("{name} lies in memory {usual}, not {id}; write @{usual}, or no memory"),
            ));
        }
        self.memories.enter(id);
        let native = self.natives.get_mut(&name.port).expect("it has a shape");
        let serve = |served, region: &Region| native.join(served, region);
        let port = OpenPort::new(&name.port, shape, (id, &mut self.memories), serve)?;
        self.open.insert(name.port.clone(), port);
        Ok(())
    }

    /// Returns the rings of a native port that is to be opened.
    pub(super) fn native_shape(&self, name: &PortName, asked: &Register) -> Result<Shape, RequestError> {
        let native = self.natives.get(&name.port).ok_or_else(|| {
            let others = "there are VALE ports (vale0:x), pipes (netmap:x{1, netmap:x}1) and what 'ringpass netmapd --port' opened";
            RequestError::new(Errno::NXIO, format!("{name} is not a port; {others}"))
        })?;
        let host_rings =
            if native.has_host() { asked.host_rings.map(|rings| rings.clamp(1, MAX_HOST_RINGS)) } else { [0; 2] };
        let slots = [slots(asked, 0)?, slots(asked, 1)?];
        Ok(Shape { rings: [native.rings(); 2], slots, host_rings })
    }

    /// Sets the memory of native ports that exchange buffers; see
    /// [`Server::exchange`](crate::server::Server::exchange).
    pub fn exchange(&mut self, region: Region) {
        self.memories.exchanged = Some(region);
    }

    /// Adds a native port; see [`Server::serve`](crate::server::Server::serve).
    pub fn serve(&mut self, name: &str, port: Box<dyn Native>) -> Result<(), RequestError> {
        let parsed = format!("netmap:{name}").parse::<PortName>()?;
        PortName::in_header(name)?;
        if parsed.port != name || parsed.mode != Mode::AllNic || parsed.vale().or(name.split_once(['{', '}'])).is_some()
        {
            return Err(RequestError::new(
                Errno::INVAL,
                format!("'{name}' is not a name for a port; write one like eth0"),
            ));
        }
        if port.exchanges() && self.memories.exchanged.is_none() {
            return Err(RequestError::new(
                Errno::INVAL,
                format!("{name}: there is no memory whose buffers are exchanged"),
            ));
        }
        if self.natives.insert(name.into(), port).is_some() {
            return Err(RequestError::new(Errno::EXIST, format!("two ports are called {name}")));
        }
        Ok(())
    }

    /// Returns the native ports that are gone, and why.
    pub fn gone(&mut self) -> Vec<(String, String)> {
        self.natives.iter_mut().filter_map(|(name, port)| Some((name.clone(), port.gone()?))).collect()
    }

    /// Removes a native port, which no program has any more.
    pub fn forget(&mut self, name: &str) {
        // It need not be attached.
        let _ = self.detach_native(name);
        self.natives.remove(name);
    }
}
