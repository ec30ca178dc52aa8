//! Supervision of a switch: links, lost ports, ageing, statistics, and the MAC table on request.

use std::time::Instant;

use ringpass::control::SwitchStatus;
use ringpass::{Error, Port, State, Totals};
use ringpass_switch::{Counter, Entry, Switch};
use serde_json::{Value, json};
use tracing::warn;

use super::plan::PortPlan;
use crate::run_observer::{Decision, PortPlace, RunObserver};
use crate::stats::{Fields, fields, print_line};

/// The observer of a switch's run.
pub struct SwitchObserver {
    name: String,
    switch: Switch,
    plans: Vec<PortPlan>,
    phases: Vec<PortPhase>,
    json: bool,
    start: Instant,
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
    pub fn new(name: String, switch: Switch, plans: Vec<PortPlan>, json: bool) -> Self {
        let phases = vec![PortPhase::Running; plans.len()];
        Self { name, switch, plans, phases, json, start: Instant::now() }
    }

    /// Describes a station.
    fn station(&self, entry: &Entry) -> Value {
        let seconds = entry.age.map(|age| age.as_secs());
        let port = &self.plans[entry.port].rules.name;
        json!({ "mac": entry.mac.to_string(), "vlan": entry.vlan, "port": port, "seconds": seconds, "switch": self.name })
    }

    /// Takes all ports out of the switch.
    pub fn remove_all(&mut self) {
        for (number, phase) in self.phases.iter_mut().enumerate() {
            *phase = PortPhase::Gone;
            self.switch.remove(number);
        }
    }

    fn sum(&self, counter: Counter) -> u64 {
        (0..self.plans.len()).map(|port| self.switch.counts(port).of(counter)).sum()
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
        let tunnel = self.plans[port].tunnel.iter().flat_map(|tunnel| tunnel.counts());
        self.switch.counts(port).named().chain(tunnel).collect()
    }

    fn place(&self, port: usize) -> Option<PortPlace<'_>> {
        Some(PortPlace { name: &self.plans[port].rules.name, switch: &self.name })
    }

    fn switches(&self) -> Vec<SwitchStatus> {
        let ports = self.plans.iter().map(|plan| plan.rules.name.clone()).collect();
        vec![SwitchStatus { name: self.name.clone(), ports, stations: self.switch.stations() as u64, ended: false }]
    }

    fn stations(&self, switch: Option<&str>) -> Result<Vec<Value>, String> {
        if let Some(other) = switch.filter(|name| *name != self.name) {
            return Err(format!("there is no switch '{other}', but '{}'", self.name));
        }
        Ok(self.switch.table().iter().map(|entry| self.station(entry)).collect())
    }

    /// Prints the MAC table.
    fn report(&self) {
        let name = |entry: &Entry| &self.plans[entry.port].rules.name[..];
        let entries = self.switch.table();
        if self.json {
            let stations: Vec<_> = entries.iter().map(|entry| self.station(entry)).collect();
            return print_line(&json!({ "event": "table", "stations": stations }).to_string());
        }
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
        for (number, (port, phase)) in ports.iter_mut().zip(&mut self.phases).enumerate() {
            if *phase == PortPhase::Gone {
                continue;
            }
            self.switch.set_link(number, port.link());
            match port.state() {
                State::Running => *phase = PortPhase::Running,
                State::Finished => *phase = PortPhase::Finished,
                State::Gone(why) => {
                    *phase = PortPhase::Gone;
                    self.switch.remove(number);
                    last = if why.starts_with(port.name()) { why } else { format!("{}: {why}", port.name()) };
                    warn!("{last}; the port has left the switch");
                }
            }
        }
        self.switch.tick(self.start.elapsed());
        if self.switch.ports_left() < 2 {
            return Decision::Failed(Error::Gone(format!("fewer than two ports are left; the last to go: {last}")));
        }
        match self.phases.iter().filter(|&&phase| phase == PortPhase::Running).count() {
            0 | 1 => Decision::StopWhenIdle,
            _ => Decision::Continue,
        }
    }
}
