//! Supervision of a service: that of each of its switches, which end one by one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringpass::control::{EndStatus, Request, SwitchStatus};
use ringpass::pass_on::adopt;
use ringpass::{Address, Config, Error, Port, PortConfig, Ports, Totals};
use serde_json::{Value, json};

use super::programs::Programs;
use super::reload::Reloader;
use crate::config_file::{self, Outline};
use crate::run_observer::{Decision, PortPlace, RunObserver};
use crate::stats::Fields;
use crate::switch::observer::SwitchObserver;

/// A switch of a service.
pub(super) struct Part {
    name: String,
    observer: SwitchObserver,
    /// Set by a worker that has failed.
    failed: Arc<AtomicBool>,
    ended: bool,
}

impl Part {
    pub(super) fn new(name: String, observer: SwitchObserver, failed: Arc<AtomicBool>) -> Self {
        Self { name, observer, failed, ended: false }
    }

    /// Looks at its ports; returns what ends it, once.
    fn check(&mut self, ports: &mut [Box<dyn Port>]) -> Result<bool, Error> {
        let name = &self.name;
        if self.failed.load(Ordering::Relaxed) {
            self.observer.remove_all();
            return Err(Error::Fault(format!("switch '{name}': a worker has failed; its ports are out")));
        }
        match self.observer.check_ports(ports) {
            Decision::Failed(error) => Err(Error::Gone(format!("switch '{name}': {error}"))),
            Decision::StopWhenIdle => Ok(true),
            Decision::Continue => Ok(false),
        }
    }
}

/// Returns the part that has a port of this name.
fn part_with<'a>(parts: &'a mut [Part], port: &str) -> Result<&'a mut Part, String> {
    let none = || format!("there is no port '{port}'; 'ringpass ctl list' shows those there are");
    parts.iter_mut().find(|part| part.observer.has(port)).ok_or_else(none)
}

/// The observer of a service's run.
pub(super) struct ServiceObserver {
    parts: Vec<Part>,
    /// What they consist of now.
    outline: Outline,
    /// Configuration of a port that is added.
    config: PortConfig,
    /// Number of ports that may still be added.
    room: usize,
    /// Numbers of ports that were removed.
    free: Vec<usize>,
    /// Who applies the file at SIGHUP, if anybody may change the service.
    reloader: Option<Reloader>,
    programs: Programs,
}

impl ServiceObserver {
    pub(super) fn new(
        parts: Vec<Part>,
        outline: Outline,
        config: &Config,
        (reloader, programs): (Option<Reloader>, Programs),
    ) -> Self {
        // A port that is added ends with its interface: nobody could open that again.
        let port = PortConfig { rejoin: false, ..config.port };
        Self { parts, outline, config: port, room: config.room, free: Vec::new(), reloader, programs }
    }

    /// Drops the switches; returns the other programs, which may serve some of their ports.
    pub(super) fn into_programs(self) -> Programs {
        self.programs
    }

    /// Adds a port to a switch.
    fn add(
        &mut self,
        switch: &str,
        port: &Value,
        descriptors: Vec<OwnedFd>,
        ports: &mut Ports,
    ) -> Result<Value, String> {
        let plan = config_file::port(port)?;
        let name = &plan.rules.name;
        if self.parts.iter().any(|part| part.observer.has(name)) {
            return Err(format!("there is a port '{name}' already; give this one another name"));
        }
        if self.room == 0 {
            return Err(
                "there is no room for the packets of another port; remove one, or give [control] more 'room'".into()
            );
        }
        let names = || self.parts.iter().map(|part| &part.name[..]).collect::<Vec<_>>().join(", ");
        let none = || format!("there is no switch '{switch}', but {}", names());
        let number = self.parts.iter().position(|part| part.name == switch).ok_or_else(none)?;
        let part = &mut self.parts[number];
        if part.ended {
            return Err(format!("switch '{switch}' has ended"));
        }
        let address: Address = plan.address.parse().map_err(|error: Error| error.to_string())?;
        let opened = adopt(&address, descriptors, &self.config, ports.pool()).map_err(|error| error.to_string())?;
        let name = name.clone();
        part.observer.add(plan, opened, ports, self.free.last().copied())?;
        if let Some(there) = self.outline.switches.get_mut(switch) {
            there.ports.insert(name, port.clone());
        }
        self.free.pop();
        self.room -= 1;
        Ok(json!({}))
    }

    /// Gives a port of a switch other rules.
    fn set(&mut self, name: &str, keys: &Value) -> Result<Value, String> {
        let part = part_with(&mut self.parts, name)?;
        let switch = self.outline.switches.get_mut(&part.name);
        let there = switch.and_then(|switch| switch.ports.get_mut(name));
        let there = there.ok_or_else(|| format!("'{name}' is one of a pair, which has no rules"))?;
        if !config_file::rules_alone_differ(there, keys) {
            return Err(format!(
                "of '{name}', only {} can be changed; remove it and add it again",
                config_file::RULES.join(", ")
            ));
        }
        part.observer.set(name, config_file::rules(keys)?)?;
        *there = keys.clone();
        Ok(json!({}))
    }

    /// Begins a capture of a port.
    fn capture(&mut self, port: &str, filters: &[String], descriptors: Vec<OwnedFd>) -> Result<Value, String> {
        const MOST: usize = 8;
        if self.parts.iter().map(|part| part.observer.captures()).sum::<usize>() >= MOST {
            return Err(format!("there are {MOST} captures already; end one"));
        }
        let filters = filters.iter().map(|filter| filter.parse()).collect::<Result<_, _>>()?;
        let socket = descriptors.into_iter().next().ok_or("the request comes without a socket")?;
        part_with(&mut self.parts, port)?.observer.capture(port, filters, socket)?;
        Ok(json!({}))
    }

    /// Takes a port out of its switch.
    fn remove(&mut self, port: &str, ports: &mut Ports) -> Result<Value, String> {
        self.free.push(part_with(&mut self.parts, port)?.observer.remove(port, ports)?);
        self.outline.switches.values_mut().for_each(|switch| drop(switch.ports.remove(port)));
        self.room += 1;
        Ok(json!({}))
    }

    /// Returns the part that has a port.
    fn part_of(&self, port: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.observer.is_present(port))
    }
}

impl RunObserver for ServiceObserver {
    /// Returns the sums over all parts.
    fn fields(&mut self, totals: &Totals) -> Fields {
        let mut sums = Fields::new();
        for part in &mut self.parts {
            for (name, value) in part.observer.fields(totals) {
                let sum = match (sums.get(&name).and_then(Value::as_u64), value.as_u64()) {
                    (Some(before), Some(more)) => Value::from(before + more),
                    _ => value,
                };
                sums.insert(name, sum);
            }
        }
        sums
    }

    fn extended(&self, port: usize) -> Vec<(&'static str, u64)> {
        self.part_of(port).map(|part| part.observer.extended(port)).unwrap_or_default()
    }

    fn ends(&self, port: usize) -> Vec<EndStatus> {
        self.part_of(port).map(|part| part.observer.ends(port)).unwrap_or_default()
    }

    fn place(&self, port: usize) -> Option<PortPlace<'_>> {
        self.part_of(port)?.observer.place(port)
    }

    fn switches(&self) -> Vec<SwitchStatus> {
        let with_end = |part: &Part| {
            let switches = part.observer.switches().into_iter();
            switches.map(|switch| SwitchStatus { ended: part.ended, ..switch }).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(with_end).collect()
    }

    fn stations(&self, switch: Option<&str>) -> Result<Vec<Value>, String> {
        if let Some(other) = switch.filter(|name| self.parts.iter().all(|part| part.name != *name)) {
            let names: Vec<_> = self.parts.iter().map(|part| &part.name[..]).collect();
            return Err(format!("there is no switch '{other}', but {}", names.join(", ")));
        }
        let wanted = self.parts.iter().filter(|part| switch.is_none_or(|name| part.name == name));
        Ok(wanted.filter_map(|part| part.observer.stations(None).ok()).flatten().collect())
    }

    fn is_present(&self, port: usize) -> bool {
        self.part_of(port).is_some()
    }

    fn plan(&self) -> Result<Value, String> {
        serde_json::to_value(&self.outline).map_err(|error| error.to_string())
    }

    fn room(&self) -> usize {
        self.room
    }

    fn change(&mut self, request: &Request, descriptors: Vec<OwnedFd>, ports: &mut Ports) -> Result<Value, String> {
        match request {
            Request::Add { switch, port } => self.add(switch, port, descriptors, ports),
            Request::Remove { port } => self.remove(port, ports),
            Request::Set { port, keys } => self.set(port, keys),
            Request::Capture { port, filters } => self.capture(port, filters, descriptors),
            _ => Err("this is not a change".into()),
        }
    }

    fn report(&self) {
        self.parts.iter().for_each(|part| part.observer.report());
    }

    /// Looks at all parts. The run ends with the last of them, with its error.
    fn check_ports(&mut self, ports: &mut [Box<dyn Port>]) -> Decision {
        self.reloader.iter().for_each(Reloader::check);
        self.programs.check();
        let mut idle = true;
        let mut last = None;
        for part in &mut self.parts {
            if part.ended {
                continue;
            }
            match part.check(ports) {
                Ok(stops) => idle &= stops,
                Err(error) => {
                    part.ended = true;
                    tracing::error!("{error}");
                    last = Some(error);
                }
            }
        }
        match last {
            Some(error) if self.parts.iter().all(|part| part.ended) => Decision::Failed(error),
            _ if idle => Decision::StopWhenIdle,
            _ => Decision::Continue,
        }
    }
}
