//! Supervision of a switch: links, lost ports, ageing, statistics, and the MAC table on request.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ringpass::control::{EndStatus, SwitchStatus};
use ringpass::{Error, Port, Ports, State, Totals};
use ringpass_evpn::Follower;
use ringpass_host_ports::LiveCapture;
use ringpass_ipc::drop_elsewhere;
use ringpass_port::FrameFilter;
use ringpass_switch::vxlan::EndState;
use ringpass_switch::{Counter, Entry, Forwarding, MAX_PORTS, PortPolicy, QueueExchange, Switch};
use serde_json::{Value, json};
use tracing::warn;

use super::plan::PortPlan;
use super::{shares, take_queues};
use crate::run_observer::{Decision, PortPlace, RunObserver};
use crate::stats::{Fields, fields, print_line};

/// The observer of a switch's run.
pub struct SwitchObserver {
    name: String,
    switch: Switch,
    slots: Vec<Slot>,
    /// MTU of its ports.
    mtu: usize,
    /// Whether the switch goes on with fewer than two ports, because others may come.
    lasting: bool,
    /// Follows FRR's tables, while the tunnel's port is there.
    evpn: Option<Follower>,
    json: bool,
    start: Instant,
}

/// A port of the switch.
struct Slot {
    plan: PortPlan,
    phase: PortPhase,
    /// Number of the port among those of the run; `None` once it was removed.
    port: Option<usize>,
    /// Who reads what passes it.
    capture: Option<LiveCapture>,
}

impl Slot {
    fn new(plan: PortPlan, port: usize) -> Self {
        Self { plan, phase: PortPhase::Running, port: Some(port), capture: None }
    }
}

/// Phase of a port's life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PortPhase {
    Running,
    /// The port's input has ended; it still accepts packets.
    Finished,
    Gone,
}

impl SwitchObserver {
    /// Creates the observer of a switch whose ports are those of the run from `first` on, with this MTU.
    pub fn new(name: String, switch: Switch, plans: Vec<PortPlan>, first: usize, mtu: usize) -> Self {
        let slot = |(number, plan)| Slot::new(plan, first + number);
        let slots = plans.into_iter().enumerate().map(slot).collect();
        Self { name, switch, slots, mtu, lasting: false, evpn: None, json: false, start: Instant::now() }
    }

    /// Keeps what follows FRR's tables for a port.
    pub fn with_evpn(self, evpn: Option<Follower>) -> Self {
        Self { evpn, ..self }
    }

    /// Prints for machines.
    pub fn with_json(self, json: bool) -> Self {
        Self { json, ..self }
    }

    /// Goes on with fewer than two ports, because others may come.
    pub fn lasting(self, lasting: bool) -> Self {
        Self { lasting, ..self }
    }

    /// Returns the number of the slot that has a port of the run.
    fn slot_of(&self, port: usize) -> Option<usize> {
        self.slots.iter().position(|slot| slot.port == Some(port))
    }

    /// Returns whether it has a port of this name.
    pub fn has(&self, name: &str) -> bool {
        self.slot_named(name).is_some()
    }

    /// Returns the number of the slot that has a port of this name.
    fn slot_named(&self, name: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.port.is_some() && slot.plan.rules.name == name)
    }

    /// Takes a port out of the switch and closes it. Returns its number, which is free now.
    ///
    /// # Errors
    /// Why not, in a line.
    pub fn remove(&mut self, name: &str, ports: &mut Ports) -> Result<usize, String> {
        let Some(number) = self.slot_named(name) else {
            let names: Vec<_> = self.names().collect();
            return Err(format!("there is no port '{name}', but {}", names.join(", ")));
        };
        let uses = |slot: &&Slot| slot.plan.pass == Some(number) || slot.plan.maps.iter().any(|map| map.to == number);
        if let Some(other) = self.slots.iter().filter(|slot| slot.port.is_some()).find(uses) {
            let other = &other.plan.rules.name;
            return Err(format!("frames of '{other}' all go to '{name}'; remove '{other}' first"));
        }
        if self.slots[number].plan.evpn.is_some() {
            self.evpn = None;
        }
        self.switch.remove(number);
        let slot = &mut self.slots[number];
        slot.phase = PortPhase::Gone;
        slot.capture = None;
        let place = slot.port.take().ok_or("the port was removed before")?;
        // A card takes a while to stop.
        drop_elsewhere(ports.take_out(place));
        Ok(place)
    }

    /// Gives a port other rules.
    ///
    /// # Errors
    /// Why not, in a line; then nothing has changed.
    pub fn set(&mut self, name: &str, rules: PortPolicy) -> Result<(), String> {
        let number = self.slot_named(name).ok_or_else(|| format!("there is no port '{name}'"))?;
        if self.slots[number].phase == PortPhase::Gone {
            return Err(format!("'{name}' is gone"));
        }
        let rules = PortPolicy { given: self.slots[number].plan.rules.given, ..rules };
        self.switch.set_policy(number, rules.clone()).map_err(|error| error.to_string())?;
        self.slots[number].plan.rules = rules;
        Ok(())
    }

    /// Begins a capture of a port, whose reader is at the other end of this socket.
    ///
    /// # Errors
    /// Why not, in a line.
    pub fn capture(&mut self, name: &str, filters: Vec<FrameFilter>, socket: OwnedFd) -> Result<(), String> {
        self.end_captures();
        let number = self.slot_named(name).ok_or_else(|| format!("there is no port '{name}'"))?;
        let slot = &mut self.slots[number];
        if slot.phase == PortPhase::Gone {
            return Err(format!("'{name}' is gone"));
        }
        if slot.capture.is_some() {
            return Err(format!("there is a capture of '{name}' already; end that"));
        }
        let capture = LiveCapture::start(socket, name, filters).map_err(|error| error.to_string())?;
        self.switch
            .exchange(number, || QueueExchange { rx: Box::new(capture.wrap_rx()), tx: Box::new(capture.wrap_tx()) });
        slot.capture = Some(capture);
        Ok(())
    }

    /// Returns how many of its ports are captured.
    pub fn captures(&self) -> usize {
        self.slots.iter().filter(|slot| slot.capture.is_some()).count()
    }

    /// Puts the queues of ports back whose captures have ended.
    fn end_captures(&mut self) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if let Some(capture) = slot.capture.take_if(|capture| capture.has_ended()) {
                let unwrap = || QueueExchange { rx: Box::new(capture.unwrap_rx()), tx: Box::new(capture.unwrap_tx()) };
                self.switch.exchange(number, unwrap);
            }
        }
    }

    /// Adds a port to the switch, at the number `place` among those of the run if that is free.
    ///
    /// # Errors
    /// Why not, in a line; then nothing has changed.
    pub fn add(
        &mut self,
        plan: PortPlan,
        mut port: Box<dyn Port>,
        ports: &mut Ports,
        place: Option<usize>,
    ) -> Result<(), String> {
        let free = self.slots.iter().position(|slot| slot.port.is_none());
        let number = free.or((self.slots.len() < MAX_PORTS).then_some(self.slots.len()));
        let number = number.ok_or_else(|| format!("switch '{}' has {MAX_PORTS} ports already", self.name))?;
        let datapaths = self.switch.datapaths();
        let queues = take_queues(&mut *port, datapaths).map_err(|error| error.to_string())?;
        // The slot of a port that was removed, or is gone.
        self.switch.remove(number);
        self.switch.set_policy(number, plan.rules.clone()).map_err(|error| error.to_string())?;
        let pool = ports.pool();
        let wrap = |queues| plan.tunnel.iter().fold(queues, |queues, tunnel| tunnel.wrap(queues, pool, self.mtu));
        let queues = queues.into_iter().map(|queues| (wrap(queues), Forwarding::Lookup)).collect();
        self.switch.insert(number, shares(queues, datapaths));
        let slot = Slot::new(plan, ports.put(place, port));
        match self.slots.get_mut(number) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().filter(|slot| slot.port.is_some()).map(|slot| &slot.plan.rules.name[..])
    }

    /// Describes all stations.
    fn described_stations(&self) -> Vec<Value> {
        // The other ends of tunnels, by port, VLAN and address.
        let mut remotes = HashMap::new();
        for (port, slot) in self.slots.iter().enumerate() {
            let Some(tunnel) = &slot.plan.tunnel else { continue };
            let untagged = slot.plan.rules.vlans.untagged();
            for station in tunnel.stations() {
                let vlan = tunnel.vlan(station.vni).flatten();
                let place = (vlan.unwrap_or(untagged), station.mac.0);
                remotes.insert((port, place), (station.remote, station.vni));
            }
        }
        let describe = |entry: &Entry| {
            let seconds = entry.age.map(|age| age.as_secs());
            let port = &self.slots[entry.port].plan.rules.name;
            let mac = entry.mac.to_string();
            let mut told =
                json!({ "mac": mac, "vlan": entry.vlan, "port": port, "seconds": seconds, "switch": self.name });
            if let Some((remote, vni)) = remotes.get(&(entry.port, (entry.vlan, entry.mac.0))) {
                told["remote"] = json!(remote);
                told["vni"] = json!(vni);
            }
            told
        };
        self.switch.table().iter().map(describe).collect()
    }

    /// Takes all ports out of the switch.
    pub fn remove_all(&mut self) {
        self.evpn = None;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            slot.phase = PortPhase::Gone;
            slot.capture = None;
            self.switch.remove(number);
        }
    }

    fn sum(&self, counter: Counter) -> u64 {
        (0..self.slots.len()).map(|port| self.switch.counts(port).of(counter)).sum()
    }
}

impl RunObserver for SwitchObserver {
    fn fields(&mut self, totals: &Totals) -> Fields {
        fields([
            ("stations", self.switch.stations().into()),
            ("flooded", self.sum(Counter::Flooded).into()),
            ("limited", self.sum(Counter::Limited).into()),
            ("switch_drops", (self.sum(Counter::TxDrops) + totals.dropped).into()),
            ("cycles_per_packet", totals.cycles_per_packet().into()),
        ])
    }

    fn extended(&self, port: usize) -> Vec<(&'static str, u64)> {
        let Some(number) = self.slot_of(port) else { return Vec::new() };
        let plan = &self.slots[number].plan;
        let tunnel = plan.tunnel.iter().flat_map(|tunnel| tunnel.counts());
        let evpn = self.evpn.iter().filter(|_| plan.evpn.is_some()).flat_map(|evpn| evpn.counts());
        self.switch.counts(number).named().chain(tunnel).chain(evpn).collect()
    }

    fn ends(&self, port: usize) -> Vec<EndStatus> {
        let tunnel = self.slot_of(port).and_then(|number| self.slots[number].plan.tunnel.as_ref());
        let status = |EndState { address, networks, stations, is_resolved }| EndStatus {
            address: address.to_string(),
            networks,
            stations: stations as u64,
            resolved: is_resolved,
        };
        tunnel.into_iter().flat_map(|tunnel| tunnel.ends()).map(status).collect()
    }

    fn place(&self, port: usize) -> Option<PortPlace<'_>> {
        let slot = &self.slots[self.slot_of(port)?];
        Some(PortPlace { name: &slot.plan.rules.name, switch: &self.name })
    }

    fn switches(&self) -> Vec<SwitchStatus> {
        let ports = self.names().map(str::to_owned).collect();
        vec![SwitchStatus { name: self.name.clone(), ports, stations: self.switch.stations() as u64, ended: false }]
    }

    fn stations(&self, switch: Option<&str>) -> Result<Vec<Value>, String> {
        if let Some(other) = switch.filter(|name| *name != self.name) {
            return Err(format!("there is no switch '{other}', but '{}'", self.name));
        }
        Ok(self.described_stations())
    }

    fn is_present(&self, port: usize) -> bool {
        self.slot_of(port).is_some()
    }

    /// Prints the MAC table.
    fn report(&self) {
        let name = |entry: &Entry| &self.slots[entry.port].plan.rules.name[..];
        if self.json {
            return print_line(&json!({ "event": "table", "stations": self.described_stations() }).to_string());
        }
        let entries = self.switch.table();
        print_line(&format!("{:<17}  vlan  {:>7}  port", "station", "seen"));
        for entry in &entries {
            let seen = entry.age.map_or("fixed".into(), |age| format!("{} s", age.as_secs()));
            let vlan = if entry.vlan == 0 { "-".into() } else { entry.vlan.to_string() };
            print_line(&format!("{}  {vlan:>4}  {seen:>7}  {}", entry.mac, name(entry)));
        }
    }

    /// Removes ports that are gone from the switch. The run continues as long as two are left.
    fn check_ports(&mut self, ports: &mut [Box<dyn Port>]) -> Decision {
        let mut last = String::new();
        for (number, Slot { phase, port, plan, capture }) in self.slots.iter_mut().enumerate() {
            let Some(port) = port.filter(|_| *phase != PortPhase::Gone) else { continue };
            let port = &mut ports[port];
            self.switch.set_link(number, port.link());
            match port.state() {
                State::Running => *phase = PortPhase::Running,
                State::Finished => *phase = PortPhase::Finished,
                State::Gone(why) => {
                    *phase = PortPhase::Gone;
                    if plan.evpn.is_some() {
                        self.evpn = None;
                    }
                    self.switch.remove(number);
                    *capture = None;
                    let (name, address) = (&plan.rules.name, port.name());
                    let why = why.strip_prefix(&format!("{address}: ")).unwrap_or(&why);
                    let place = if name == address { String::new() } else { format!(" ({address})") };
                    last = format!("{name}{place}: {why}");
                    warn!("{last}; the port has left the switch");
                }
            }
        }
        self.end_captures();
        self.switch.tick(self.start.elapsed());
        if self.lasting {
            return Decision::Continue;
        }
        if self.switch.ports_left() < 2 {
            return Decision::Failed(Error::Gone(format!("fewer than two ports are left; the last to go: {last}")));
        }
        match self.slots.iter().filter(|slot| slot.phase == PortPhase::Running).count() {
            0 | 1 => Decision::StopWhenIdle,
            _ => Decision::Continue,
        }
    }
}
