//! Attaching ports to switches, and detaching them.

use ringpass_ipc::Credentials;
use ringpass_netmap::request::{Mode, Register};
use rustix::io::Errno;

use super::Ports;
use crate::server::{RequestError, SwitchPlace};

/// An attached port.
pub struct Attached {
    /// Number of the port in its switch.
    pub index: u32,
    /// Number of its memory.
    pub memory_id: u16,
}

/// Splits the name of a port on a switch, `valeSWITCH:PORT`. The port may be an address.
fn split(name: &str) -> Result<(&str, &str), RequestError> {
    let is_switch = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let parts = name.split_once(':');
    let parts = parts.filter(|(switch, port)| switch.starts_with("vale") && is_switch(switch) && !port.is_empty());
    parts.ok_or_else(|| RequestError::new(Errno::INVAL, format!("'{name}': write SWITCH:PORT, such as vale0:tap:x")))
}

impl Ports {
    /// Attaches a port to a switch: a persistent port by its name, or a port by an address that the server was started with.
    pub fn attach(&mut self, name: &str, asked: &Register, program: Credentials) -> Result<Attached, RequestError> {
        let (switch, port) = split(name)?;
        if !matches!(asked.mode, Mode::AllNic | Mode::NicAndHost) {
            return Err(RequestError::new(Errno::INVAL, format!("{name}: a port is attached with all of its rings")));
        }
        if self.switches.find(name).is_some() {
            return Err(RequestError::new(Errno::BUSY, format!("{name} is attached already, or a program's port")));
        }
        if self.persistent.contains_key(port) {
            return self.attach_persistent(switch, port, program);
        }
        if self.natives.contains_key(port) {
            let why = format!("{name}: native ports are not attached; start 'ringpass netmapd' with --attach");
            return Err(RequestError::new(Errno::OPNOTSUPP, why));
        }
        if asked.mode == Mode::NicAndHost {
            return Err(RequestError::new(Errno::INVAL, format!("{name} has no rings of the host's stack")));
        }
        let index = self.switches.attach(name)?;
        // Programs take a number above 1 for memory that is the port's own.
        let memory_id = if asked.memory_id == 0 { self.memories.take_number() } else { asked.memory_id };
        Ok(Attached { index, memory_id })
    }

    fn attach_persistent(&mut self, switch: &str, port: &str, program: Credentials) -> Result<Attached, RequestError> {
        let persistent = self.controlled(port, program)?;
        let busy = |why: String| Err(RequestError::new(Errno::BUSY, format!("{port}: {why}")));
        if let Some(other) = &persistent.switch {
            return busy(format!("it is attached to {other} already; detach it first"));
        }
        if self.open.contains_key(port) {
            return busy("programs use it without a switch; end them first".into());
        }
        let (owner, memory_id) = (persistent.owner, persistent.memory_id);
        self.check_switches(switch, owner)?;
        self.set_switch(port, Some(switch));
        if let Err(refusal) = self.open_persistent(port) {
            self.set_switch(port, None);
            return Err(refusal);
        }
        let place = self.switches.find(&format!("{switch}:{port}"));
        Ok(Attached { index: place.map_or(0, |SwitchPlace { port, .. }| port), memory_id })
    }

    fn set_switch(&mut self, port: &str, switch: Option<&str>) {
        let port = self.persistent.get_mut(port);
        port.into_iter().for_each(|port| port.switch = switch.map(str::to_owned));
    }

    /// Detaches a port from its switch. Returns the number that it had there.
    pub fn detach(&mut self, name: &str, program: Credentials) -> Result<u32, RequestError> {
        let (switch, port) = split(name)?;
        if self.open.contains_key(name) {
            let why = format!("{name} is a program's port; it ends with the program");
            return Err(RequestError::new(Errno::INVAL, why));
        }
        if self.persistent.get(port).is_none_or(|persistent| persistent.switch.as_deref() != Some(switch)) {
            return self.switches.detach(name);
        }
        self.controlled(port, program)?;
        if self.open.get(port).is_some_and(|open| open.users.count() > 0 || open.monitors > 0) {
            return Err(RequestError::new(Errno::BUSY, format!("{name}: programs use it; end them first")));
        }
        let place = self.switches.find(name);
        self.set_switch(port, None);
        self.open.remove(port).into_iter().for_each(|open| open.release(&mut self.memories));
        Ok(place.map_or(0, |SwitchPlace { port, .. }| port))
    }
}
