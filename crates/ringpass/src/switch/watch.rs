//! The watch over a switch: links, ports that go, time, statistics, and the MAC table for who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ringpass_port::{Error, Port, State};
use ringpass_switch::{Counter, Entry, Switch};
use serde_json::json;

use super::plan::PortPlan;
use crate::run::{Verdict, Watch};
use crate::stats::{Fields, fields, say};
use crate::worker::Totals;

/// See the module.
pub struct Overseer {
    switch: Switch,
    plans: Vec<PortPlan>,
    lives: Vec<Life>,
    /// Somebody asks for the table.
    show: Arc<AtomicBool>,
    json: bool,
    start: Instant,
}

/// Where a port is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Nothing more comes from it; it still takes packets.
    Finished,
    Gone,
}

impl Overseer {
    pub fn new(switch: Switch, plans: Vec<PortPlan>, show: Arc<AtomicBool>, json: bool) -> Self {
        let lives = vec![Life::Running; plans.len()];
        Self { switch, plans, lives, show, json, start: Instant::now() }
    }

    fn sum(&self, counter: Counter) -> u64 {
        (0..self.plans.len()).map(|port| self.switch.counts(port).of(counter)).sum()
    }

    fn show_table(&self) {
        let name = |entry: &Entry| &self.plans[entry.port].rules.name[..];
        let entries = self.switch.table();
        if self.json {
            let station = |entry: &Entry| {
                let (mac, seconds) = (entry.mac.to_string(), entry.age.map(|age| age.as_secs()));
                json!({ "mac": mac, "vlan": entry.vlan, "port": name(entry), "seconds": seconds })
            };
            let stations: Vec<_> = entries.iter().map(station).collect();
            return say(&json!({ "event": "table", "stations": stations }).to_string());
        }
        say(&format!("{:<17}  vlan  {:>7}  port", "station", "seen"));
        for entry in &entries {
            let seen = entry.age.map_or("fixed".into(), |age| format!("{} s", age.as_secs()));
            let vlan = if entry.vlan == 0 { "-".into() } else { entry.vlan.to_string() };
            say(&format!("{}  {vlan:>4}  {seen:>7}  {}", entry.mac, name(entry)));
        }
    }
}

impl Watch for Overseer {
    fn fields(&mut self, totals: &Totals) -> Fields {
        fields([
            ("stations", self.switch.stations().into()),
            ("flooded", self.sum(Counter::Flooded).into()),
            ("limited", self.sum(Counter::Limited).into()),
            ("switch_drops", self.sum(Counter::TxDrops).into()),
            ("cycles_per_packet", totals.cycles_per_packet().into()),
        ])
    }

    fn extended(&self, port: usize) -> Vec<(&'static str, u64)> {
        let tunnel = self.plans[port].tunnel.iter().flat_map(|tunnel| tunnel.counts());
        self.switch.counts(port).named().chain(tunnel).collect()
    }

    /// A port that is gone leaves the switch; the others go on, as long as there are two.
    fn look(&mut self, ports: &mut [Box<dyn Port>]) -> Verdict {
        let mut last = String::new();
        for (number, (port, life)) in ports.iter_mut().zip(&mut self.lives).enumerate() {
            if *life == Life::Gone {
                continue;
            }
            self.switch.set_link(number, port.link());
            match port.state() {
                State::Running => *life = Life::Running,
                State::Finished => *life = Life::Finished,
                State::Gone(why) => {
                    *life = Life::Gone;
                    self.switch.remove(number);
                    last = if why.starts_with(port.name()) { why } else { format!("{}: {why}", port.name()) };
                    errln!("{last}; the port has left the switch");
                }
            }
        }
        self.switch.tick(self.start.elapsed());
        if self.show.swap(false, Ordering::Relaxed) {
            self.show_table();
        }
        if self.switch.ports_left() < 2 {
            return Verdict::Failed(Error::Other(format!("fewer than two ports are left; the last to go: {last}")));
        }
        match self.lives.iter().filter(|&&life| life == Life::Running).count() {
            0 | 1 => Verdict::EndWhenQuiet,
            _ => Verdict::GoOn,
        }
    }
}
