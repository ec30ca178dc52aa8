//! The control side of a switch.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ringpass_memory::Mempool;
use ringpass_port::{Error, Link};

use crate::changes::{Change, Mailbox, Share};
use crate::config::{Config, MAX_PORTS, Rules};
use crate::counters::{Counts, PortCounters};
use crate::datapath::Datapath;
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
    /// See [`Config::any_source`].
    pub(crate) any_source: bool,
    /// Ports that are there, with a link.
    pub(crate) up: AtomicU64,
    pub(crate) start: Instant,
    /// Seconds since the start, wrapping.
    pub(crate) now: AtomicU16,
}

impl Shared {
    /// A port has a link: it has sent something, or its queue says so. The control side takes it back if it has none.
    #[inline]
    pub(crate) fn may_receive(&self, port: usize) {
        if self.up.load(Ordering::Relaxed) >> port & 1 == 0 {
            self.up.fetch_or(1 << port, Ordering::Relaxed);
        }
    }

    /// Forgets the stations that were learned at a port. Returns how many are left.
    pub(crate) fn forget(&self, port: usize) -> usize {
        self.table.retain(self.now.load(Ordering::Relaxed), |of, _| of != port)
    }
}

/// See the module.
pub struct Switch {
    shared: Arc<Shared>,
    /// Datapaths, as long as they live.
    mailboxes: Vec<Weak<Mailbox>>,
    /// By port, of each datapath. Those of a port that has gone stay until the next one comes.
    counters: Vec<Vec<Arc<PortCounters>>>,
    /// Places that are not empty.
    present: u64,
    ageing: u16,
    entries: usize,
}

fn number(mac: ringpass_port::MacAddress) -> u64 {
    mac.0.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte))
}

impl Switch {
    /// A switch with an empty place for each of these rules, which hold for every port there.
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
            any_source: config.any_source,
            up: AtomicU64::new(0),
            start: Instant::now(),
            now: AtomicU16::new(0),
        };
        let (mailboxes, counters) = (Vec::new(), vec![Vec::new(); rules.len()]);
        let switch = Self { shared: Arc::new(shared), mailboxes, counters, present: 0, ageing, entries: 0 };
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

    /// A worker's share, without queues so far. Copies are made in buffers of the pool. Fails if the process has no
    /// descriptor left.
    ///
    /// # Panics
    /// If a port is there: datapaths are made first.
    pub fn datapath(&mut self, pool: &Mempool, batch: usize) -> Result<Datapath, Error> {
        assert!(self.present == 0, "datapaths are made before ports come");
        let mailbox = Arc::new(Mailbox::new()?);
        self.mailboxes.push(Arc::downgrade(&mailbox));
        Ok(Datapath::new(Exits::new(&self.shared.ports, pool.cache()), batch, mailbox, self.shared.clone()))
    }

    /// A port comes to an empty place, and is up. Each datapath gets its share, in the order in which they were made, and
    /// takes it in before its next round; one that sleeps is woken. Any number of Rx queues may be with any of them, while
    /// each has to have a Tx queue: what one of them receives, it sends. Counters start from zero.
    ///
    /// # Panics
    /// If the place is not empty, or there is not one share for each datapath.
    pub fn insert(&mut self, port: usize, shares: Vec<Share>) {
        assert!(self.present >> port & 1 == 0, "place {port} is taken");
        assert!(shares.len() == self.mailboxes.len(), "{} shares for {} datapaths", shares.len(), self.mailboxes.len());
        self.counters[port] = shares.iter().map(|_| Arc::default()).collect();
        for ((mailbox, share), counters) in self.mailboxes.iter().zip(shares).zip(&self.counters[port]) {
            // With the last one's end, its queues are dropped.
            if let Some(mailbox) = mailbox.upgrade() {
                mailbox.put(Change::Insert { port, share, counters: counters.clone() });
            }
        }
        self.present |= 1 << port;
        self.shared.table.divide(self.ports_left());
        self.shared.up.fetch_or(1 << port, Ordering::Relaxed);
    }

    /// To be called some times a second: what time it is since the start. Stations age.
    pub fn tick(&mut self, elapsed: Duration) {
        let now = elapsed.as_secs() as u16;
        if self.shared.now.swap(now, Ordering::Relaxed) != now {
            self.entries = self.shared.table.retain(now, |_, age| age <= self.ageing);
        }
    }

    /// The link of a port that is there is up or not. Nothing is sent to a port without one, and its stations are forgotten.
    pub fn set_link(&mut self, port: usize, link: Link) {
        let bit = 1 << port;
        if link.up {
            self.shared.up.fetch_or(bit & self.present, Ordering::Relaxed);
        } else if self.shared.up.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            self.entries = self.shared.forget(port);
        }
    }

    /// A port goes, if there is one. Nothing more is sent to it, its stations are forgotten, and each datapath drops its
    /// queues before its next round, on its thread; one that sleeps is woken. The place may be filled again at once.
    pub fn remove(&mut self, port: usize) {
        self.set_link(port, Link::default());
        if self.present >> port & 1 != 0 {
            self.present &= !(1 << port);
            self.shared.table.divide(self.ports_left());
            for mailbox in self.mailboxes.iter().filter_map(Weak::upgrade) {
                mailbox.put(Change::Remove { port });
            }
        }
    }

    /// How many ports are there.
    pub fn ports_left(&self) -> usize {
        self.present.count_ones() as usize
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

    /// What was counted at a port; at the last one, if the place is empty.
    pub fn counts(&self, port: usize) -> Counts {
        Counts::sum(self.counters[port].iter().map(|counters| &**counters))
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
