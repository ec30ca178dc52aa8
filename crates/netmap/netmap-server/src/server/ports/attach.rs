//! Attaching ports to switches, and detaching them.

use std::ops::Range;

use ringpass_ipc::Credentials;
use ringpass_netmap::Shape;
use ringpass_netmap::request::{Mode, Register, ValePolling};
use rustix::io::Errno;

use super::Ports;
use crate::PollingMode;
use crate::native::may_run_on;
use crate::server::open_port::SLOTS;
use crate::server::{RequestError, SwitchPlace};

/// An attached port.
pub struct Attached {
    /// Number of the port in its switch.
    pub index: u32,
    /// Number of its memory.
    pub memory_id: u16,
}

/// A native port that is attached.
pub(super) struct AttachedNative {
    switch: String,
    /// Whether the host's stack is attached as well.
    host: bool,
    /// Whether its thread polls without pause.
    polls: bool,
}

/// Splits the name of a port on a switch, `valeSWITCH:PORT`. The port may be an address.
fn split(name: &str) -> Result<(&str, &str), RequestError> {
    let is_switch = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let parts = name.split_once(':');
    let parts = parts.filter(|(switch, port)| switch.starts_with("vale") && is_switch(switch) && !port.is_empty());
    parts.ok_or_else(|| RequestError::new(Errno::INVAL, format!("'{name}': write SWITCH:PORT, such as vale0:tap:x")))
}

/// Returns how a port with so many rings each way is to be polled, or why it cannot be.
fn polling_mode(asked: ValePolling, rings: u16) -> Result<PollingMode, String> {
    let mode = match asked {
        ValePolling { mode: ValePolling::SINGLE_CPU, first_cpu, cpus: 1 } => PollingMode::OneCpu(first_cpu),
        ValePolling { mode: ValePolling::MULTI_CPU, first_cpu: first, cpus: 1.. } => {
            let end = first.checked_add(asked.cpus).filter(|&end| end <= u32::from(rings));
            PollingMode::CpuPerQueue(first..end.ok_or(format!("it has {rings} rings; ring N is polled on CPU N"))?)
        }
        asked => return Err(format!("{asked:?} is not a way to poll")),
    };
    let mut cpus = match mode.clone() {
        PollingMode::OneCpu(cpu) => cpu..=cpu,
        PollingMode::CpuPerQueue(Range { start, end }) => start..=end - 1,
    };
    match cpus.find(|&cpu| !may_run_on(cpu)) {
        Some(cpu) => Err(format!("this process does not run on CPU {cpu}")),
        None => Ok(mode),
    }
}

impl Ports {
    /// Attaches a port to a switch: a persistent or native port by its name, or a port by an address that the server was started
    /// with.
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
        let host = asked.mode == Mode::NicAndHost;
        if self.natives.contains_key(port) {
            return self.attach_native(switch, port, host, program);
        }
        if host {
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

    /// Attaches a native port, with `host` together with the host's stack behind it.
    fn attach_native(
        &mut self,
        switch: &str,
        port: &str,
        host: bool,
        program: Credentials,
    ) -> Result<Attached, RequestError> {
        self.check_administrator(port, program)?;
        self.check_detached(port)?;
        let native = self.natives.get_mut(port).expect("checked before");
        if self.open.contains_key(port) {
            return Err(RequestError::new(Errno::BUSY, format!("{port}: programs use it; end them first")));
        }
        if host && !native.has_host() {
            let why =
                format!("{port} has no rings of the host's stack; start 'ringpass netmapd' with --host {port}=ADDRESS");
            return Err(RequestError::new(Errno::INVAL, why));
        }
        let memory_id = native.memory_id();
        let (index, links) = self.switches.connect(&format!("{switch}:{port}"), host)?;
        native.attach(links);
        self.attached.insert(port.into(), AttachedNative { switch: switch.into(), host, polls: false });
        Ok(Attached { index, memory_id })
    }

    /// Has an attached native port polled on a CPU without pause, or not any more (`None`).
    pub fn poll_on(
        &mut self,
        name: &str,
        polling: Option<ValePolling>,
        program: Credentials,
    ) -> Result<(), RequestError> {
        let invalid = |why: String| Err(RequestError::new(Errno::INVAL, format!("{name}: {why}")));
        let (switch, port) = split(name)?;
        if self.switches.find(name).is_none() {
            return Err(RequestError::new(Errno::NXIO, format!("no port {name}")));
        }
        let attached = self.attached.get(port).filter(|attached| attached.switch == switch);
        let unsupported = |why: &str| Err(RequestError::new(Errno::OPNOTSUPP, format!("{name}: {why}")));
        let Some(polls) = attached.map(|attached| attached.polls) else {
            return unsupported("only native ports are polled");
        };
        self.check_administrator(port, program)?;
        let native = self.natives.get_mut(port).expect("attached ports are served");
        let mode = match polling {
            Some(_) if polls => return Err(RequestError::new(Errno::BUSY, format!("{name} is polled already"))),
            Some(polling) => match polling_mode(polling, native.rings()) {
                Ok(mode) => Some(mode),
                Err(why) => return invalid(why),
            },
            None if polls => None,
            None => return invalid("it is not polled".into()),
        };
        let polls = mode.is_some();
        native.poll(mode)?;
        self.attached.get_mut(port).into_iter().for_each(|attached| attached.polls = polls);
        Ok(())
    }

    fn check_administrator(&self, port: &str, program: Credentials) -> Result<(), RequestError> {
        if self.is_administrator(program) {
            return Ok(());
        }
        let why = format!(
            "{port}: only root, the user who runs this process and 'netmapd --admin-group' attach and detach native ports"
        );
        Err(RequestError::new(Errno::PERM, why))
    }

    /// Returns the rings that an attached native port would have, and the number of its memory.
    pub(super) fn find_attached(&self, port: &str) -> Option<(Shape, u16)> {
        let native = self.natives.get(port).filter(|_| self.attached.contains_key(port))?;
        let host_rings = [u16::from(native.has_host()); 2];
        Some((Shape { rings: [native.rings(); 2], slots: [SLOTS; 2], host_rings }, native.memory_id()))
    }

    /// Checks that a native port is not attached to a switch.
    pub(super) fn check_detached(&self, port: &str) -> Result<(), RequestError> {
        match self.attached.get(port) {
            Some(AttachedNative { switch, .. }) => {
                Err(RequestError::new(Errno::BUSY, format!("{port} is attached to {switch}; detach it first")))
            }
            None => Ok(()),
        }
    }

    /// Detaches a native port, if it is attached. Returns the number that it had in its switch.
    pub(super) fn detach_native(&mut self, port: &str) -> Result<u32, RequestError> {
        let none = || RequestError::new(Errno::NXIO, format!("{port} is not attached; see 'ringpass vale'"));
        let AttachedNative { switch, host, .. } = self.attached.remove(port).ok_or_else(none)?;
        if let Some(native) = self.natives.get_mut(port) {
            // Ending threads cannot fail.
            let _ = native.poll(None);
            native.detach();
        }
        if host {
            let _ = self.switches.detach(&format!("{switch}:{port}^"));
        }
        self.switches.detach(&format!("{switch}:{port}"))
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
        let is_attached = |(native, attached): (&String, &AttachedNative)| {
            attached.switch == switch && port.strip_suffix('^').unwrap_or(port) == native
        };
        if self.attached.iter().any(is_attached) {
            let native = port.strip_suffix('^').unwrap_or(port);
            self.check_administrator(native, program)?;
            if native != port {
                let why = format!("{name} is detached together with {switch}:{native}");
                return Err(RequestError::new(Errno::INVAL, why));
            }
            if self.attached.get(native).is_some_and(|attached| attached.polls) {
                return Err(RequestError::new(Errno::BUSY, format!("{name} is polled; disable that first")));
            }
            return self.detach_native(native);
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

#[cfg(test)]
mod tests {
    use ringpass_netmap::{Kring, Pools, Region};
    use serde_json::Value;

    use super::*;
    use crate::SwitchLinks;
    use crate::server::{Native, ServedPort};

    struct Fake;

    impl Native for Fake {
        fn rings(&self) -> u16 {
            1
        }

        fn has_host(&self) -> bool {
            false
        }

        fn exchanges(&self) -> bool {
            false
        }

        fn join(&mut self, _: Vec<Kring>, _: &Region) -> Result<Box<dyn ServedPort>, RequestError> {
            unreachable!("no program opens it")
        }

        fn attach(&mut self, _: SwitchLinks) {
            unreachable!("there are no switches")
        }

        fn detach(&mut self) {}

        fn poll(&mut self, _: Option<PollingMode>) -> Result<(), RequestError> {
            Ok(())
        }

        fn gone(&mut self) -> Option<String> {
            None
        }

        fn status(&self) -> Value {
            Value::Null
        }
    }

    #[test]
    fn native_ports_are_attached_by_administrators() {
        let pools = Pools { interfaces: 8, ring_bytes: 1 << 20, buffers: 4096, ..Pools::default() };
        let mut ports = Ports::new(pools, Box::new(())).expect("no ports");
        ports.administrators.users.push(7);
        ports.serve("nic", Box::new(Fake)).expect("a port");
        let attach = |ports: &mut Ports, mode, uid| {
            let asked = Register { mode, ..Register::default() };
            let attached = ports.attach("vale0:nic", &asked, Credentials { pid: 1, uid, gid: uid });
            attached.map(drop).map_err(|error| error.errno)
        };
        assert_eq!(attach(&mut ports, Mode::AllNic, 1000), Err(Errno::PERM));
        for administrator in [0, 7] {
            // There are no switches here; the port is what it was before.
            assert_eq!(attach(&mut ports, Mode::AllNic, administrator), Err(Errno::NXIO));
            assert!(ports.attached.is_empty());
            assert_eq!(
                attach(&mut ports, Mode::NicAndHost, administrator),
                Err(Errno::INVAL),
                "it has no host's stack"
            );
        }
        ports.attached.insert("nic".into(), AttachedNative { switch: "vale0".into(), host: true, polls: false });
        let mut detach =
            |name: &str, uid| ports.detach(name, Credentials { pid: 1, uid, gid: uid }).map_err(|error| error.errno);
        assert_eq!(detach("vale0:nic", 1000), Err(Errno::PERM));
        assert_eq!(detach("vale0:nic^", 1000), Err(Errno::PERM));
        assert_eq!(detach("vale0:nic^", 7), Err(Errno::INVAL), "with the port only");
        assert_eq!(detach("vale1:nic", 7), Err(Errno::NXIO));
    }
}
