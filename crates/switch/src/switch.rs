//! The control side of a switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::Mempool;
use ringpass_port::{Error, Link, TxQueue};

use crate::config::{Config, MAX_PORTS, Rules};
use crate::counters::{Counts, PortCounters};
use crate::datapath::{Datapath, Ingress};
use crate::exits::Exits;
use crate::limit::Limit;
use crate::table::{Entry, Key, Table};
use crate::vlan::{NO_VLAN, Vlans};

/// What datapaths know of a port.
pub(crate) struct PortView {
    /// The VLAN of frames without a tag, either way.
    pub(crate) untagged: u16,
    /// It refuses frames with a tag.
    pub(crate) access: bool,
    /// Ports that it may send to, up or not: neither itself nor those of its isolation group.
    pub(crate) reach: u64,
    /// The only stations that may send from here, in order; empty for all.
    pub(crate) sources: Box<[u64]>,
    pub(crate) limit: Limit,
    /// It takes packets in buffers that are lent.
    pub(crate) lends: bool,
}

/// What datapaths and the control side share. Sets of ports are words, a bit for each.
pub(crate) struct Shared {
    pub(crate) ports: Box<[PortView]>,
    /// By VLAN, the ports that have a part in it.
    pub(crate) members: Box<[u64; 4096]>,
    pub(crate) table: Table,
    /// Ports with a link.
    pub(crate) up: AtomicU64,
    /// Ports that are there.
    pub(crate) present: AtomicU64,
    pub(crate) start: Instant,
    /// Seconds since the start, wrapping.
    pub(crate) now: AtomicU16,
}

impl Shared {
    /// All ports.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (MAX_PORTS - self.ports.len())
    }
}

/// See the module.
pub struct Switch {
    shared: Arc<Shared>,
    /// By worker.
    counters: Vec<Arc<[PortCounters]>>,
    ageing: u16,
    entries: usize,
}

fn number(mac: ringpass_port::MacAddress) -> u64 {
    mac.0.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte))
}

impl Switch {
    /// A switch with a port for each of these rules, all there and up.
    pub fn new(config: &Config, rules: &[Rules]) -> Result<Self, Error> {
        if !(2..=MAX_PORTS).contains(&rules.len()) {
            return Err(Error::Other(format!("a switch has 2 to {MAX_PORTS} ports, not {}", rules.len())));
        }
        let ageing = u16::try_from(config.ageing.as_secs()).ok().filter(|ageing| (1..=32_400).contains(ageing));
        let Some(ageing) = ageing else {
            return Err(Error::Other("stations age after 1 to 32400 seconds (9 hours)".into()));
        };
        if !(1..=1 << 24).contains(&config.table) {
            return Err(Error::Other("the MAC table has room for 1 to 16777216 stations".into()));
        }
        let mut members = Box::new([0; 4096]);
        for (vlan, members) in members.iter_mut().enumerate().take(usize::from(NO_VLAN)) {
            let has = |(port, rules): (usize, &Rules)| u64::from(rules.vlans.has(vlan as u16)) << port;
            *members = rules.iter().enumerate().map(has).sum();
        }
        let shared = Shared {
            ports: rules.iter().enumerate().map(|(port, own)| view(config, rules, port, own)).collect(),
            members,
            table: Table::new(config.table, config.moves),
            up: AtomicU64::new(0),
            present: AtomicU64::new(0),
            start: Instant::now(),
            now: AtomicU16::new(0),
        };
        shared.up.store(shared.all(), Ordering::Relaxed);
        shared.present.store(shared.all(), Ordering::Relaxed);
        let switch = Self { shared: Arc::new(shared), counters: Vec::new(), ageing, entries: 0 };
        rules.iter().enumerate().try_for_each(|(port, rules)| switch.fix(port, rules))?;
        Ok(switch)
    }

    /// Puts stations of a port into the table for good.
    fn fix(&self, port: usize, rules: &Rules) -> Result<(), Error> {
        for &(mac, vlan) in &rules.stations {
            let vlan = vlan.unwrap_or(self.shared.ports[port].untagged);
            let wrong = |why: String| Err(Error::Other(format!("port '{}': station {mac}: {why}", rules.name)));
            if mac.0[0] & 1 != 0 || number(mac) == 0 {
                return wrong("no station has a group address, or zeros".into());
            }
            if vlan == NO_VLAN || !rules.vlans.has(vlan) {
                return wrong(match vlan {
                    NO_VLAN => "say in which VLAN; the port has no native one".into(),
                    vlan => format!("the port has no part in VLAN {vlan}"),
                });
            }
            if !self.shared.table.fix(Key::new(number(mac), vlan), port) {
                return wrong("too many for the table; give it more room".into());
            }
        }
        Ok(())
    }

    /// A worker's share: some Rx queues, and a Tx queue of each port in their order. Copies are made in buffers of the
    /// pool.
    ///
    /// # Panics
    /// If there is not one Tx queue for each port, or a number of a port is none.
    pub fn datapath(
        &mut self,
        ingress: Vec<Ingress>,
        egress: Vec<Box<dyn TxQueue>>,
        pool: &Mempool,
        batch: usize,
    ) -> Datapath {
        let ports = self.shared.ports.len();
        assert!(egress.len() == ports && ingress.iter().all(|ingress| ingress.port < ports), "queues of {ports} ports");
        let counters: Arc<[PortCounters]> = (0..ports).map(|_| PortCounters::default()).collect();
        self.counters.push(counters.clone());
        let exits = Exits::new(egress, &self.shared.ports, pool.cache(), counters.clone());
        Datapath::new(ingress, exits, batch, self.shared.clone(), counters)
    }

    /// To be called some times a second: what time it is since the start. Stations age.
    pub fn tick(&mut self, elapsed: Duration) {
        let now = elapsed.as_secs() as u16;
        if self.shared.now.swap(now, Ordering::Relaxed) != now {
            self.entries = self.shared.table.retain(now, |_, age| age <= self.ageing);
        }
    }

    /// A port's link is up or not. Nothing is sent to a port without one, and its stations are forgotten.
    pub fn set_link(&mut self, port: usize, link: Link) {
        let bit = 1 << port;
        if link.up {
            self.shared.up.fetch_or(bit, Ordering::Relaxed);
        } else if self.shared.up.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            self.entries = self.shared.table.retain(self.now(), |of, _| of != port);
        }
    }

    /// A port is gone for good: datapaths drop its queues.
    pub fn remove(&mut self, port: usize) {
        self.set_link(port, Link::default());
        self.shared.present.fetch_and(!(1 << port), Ordering::Relaxed);
    }

    /// How many ports are there.
    pub fn ports_left(&self) -> usize {
        self.shared.present.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Stations in the table, at the last change of the second.
    pub fn stations(&self) -> usize {
        self.entries
    }

    /// The table, by VLAN and address.
    pub fn table(&self) -> Vec<Entry> {
        let mut entries = self.shared.table.entries(self.now());
        entries.sort_by_key(|entry| (entry.vlan, entry.mac.0));
        entries
    }

    /// What was counted at a port.
    pub fn counts(&self, port: usize) -> Counts {
        Counts::sum(self.counters.iter().map(|counters| &counters[port]))
    }

    fn now(&self) -> u16 {
        self.shared.now.load(Ordering::Relaxed)
    }
}

fn view(config: &Config, all: &[Rules], port: usize, own: &Rules) -> PortView {
    let separate = |(other, rules): (usize, &Rules)| {
        let together = own.isolation.is_some() && own.isolation == rules.isolation;
        u64::from(other != port && !together) << other
    };
    let mut sources: Vec<u64> = own.sources.iter().map(|&mac| number(mac)).collect();
    sources.sort_unstable();
    PortView {
        untagged: own.vlans.untagged(),
        access: matches!(own.vlans, Vlans::Access(_)),
        reach: all.iter().enumerate().map(separate).sum(),
        sources: sources.into(),
        limit: Limit::new(own.flood.unwrap_or(config.flood)),
        lends: own.lends,
    }
}
