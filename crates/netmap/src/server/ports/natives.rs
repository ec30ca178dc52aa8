//! Ports of the machine.

use rustix::io::Errno;

use super::Ports;
use super::asked::slots;
use crate::request::{Mode, PortName, Register};
use crate::server::open_port::{OpenPort, PortsMemory};
use crate::server::{COMMON, EXCHANGED, Native, Refusal};
use crate::{Region, Shape};

impl Ports {
    pub(super) fn make_native(&mut self, name: &PortName, asked: &Register) -> Result<(), Refusal> {
        let native = self.natives.get_mut(&name.port).ok_or_else(|| {
            let others = "there are VALE ports (vale0:x), pipes (netmap:x{1, netmap:x}1) and what 'ringpass netmapd --port' opened";
            Refusal::new(Errno::NXIO, format!("{name} is no port; {others}"))
        })?;
        let id = if native.exchanges() { EXCHANGED } else { COMMON };
        if ![0, id].contains(&asked.memory_id) {
            return Err(Refusal::new(
                Errno::INVAL,
                format!("{name} lies in memory {id}, as its buffers are exchanged or not"),
            ));
        }
        let shape = Shape { rings: [native.rings(); 2], slots: [slots(asked, 0)?, slots(asked, 1)?] };
        let serve = |served, place| native.join(served, &place);
        let port = OpenPort::new(&name.port, shape, (id, PortsMemory::Shared(self.memories.shared(id))), serve)?;
        self.open.insert(name.port.clone(), port);
        Ok(())
    }

    /// See [`Server::exchange`](super::Server::exchange).
    pub fn exchange(&mut self, region: Region) {
        self.memories.exchanged = Some(region);
    }

    /// See [`Server::serve`](super::Server::serve).
    pub fn serve(&mut self, name: &str, port: Box<dyn Native>) -> Result<(), Refusal> {
        let parsed = format!("netmap:{name}").parse::<PortName>()?;
        if parsed.port != name || parsed.mode != Mode::AllNic || parsed.vale().or(name.split_once(['{', '}'])).is_some()
        {
            return Err(Refusal::new(Errno::INVAL, format!("'{name}' is no name for a port; write one like eth0")));
        }
        if port.exchanges() && self.memories.exchanged.is_none() {
            return Err(Refusal::new(Errno::INVAL, format!("{name}: there is no memory whose buffers are exchanged")));
        }
        if self.natives.insert(name.into(), port).is_some() {
            return Err(Refusal::new(Errno::EXIST, format!("two ports are called {name}")));
        }
        Ok(())
    }

    /// Ports of the machine that are gone, and why.
    pub fn gone(&mut self) -> Vec<(String, String)> {
        self.natives.iter_mut().filter_map(|(name, port)| Some((name.clone(), port.gone()?))).collect()
    }

    /// Lets go of a port of the machine, which no program has any more.
    pub fn forget(&mut self, name: &str) {
        self.natives.remove(name);
    }
}
