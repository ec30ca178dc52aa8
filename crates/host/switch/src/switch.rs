//! The control side of a switch.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ringpass_memory::Mempool;
use ringpass_port::{Error, Link, MacAddress};

use crate::changes::{Change, DatapathQueues, Mailbox, QueueExchange};
use crate::config::{Config, MAX_PORTS, PortPolicy};
use crate::counters::{Counts, PortCounters};
use crate::datapath::Datapath;
use crate::egress::EgressPorts;
use crate::frame::number;
use crate::journal::{Arrival, Journal, News};
use crate::rate_limiter::RateLimiter;
use crate::state::{PortView, Shared};
use crate::table::{Entry, Key, Table};
use crate::vlan::{NO_VLAN, Vlans};

/// The control side of a switch: ports, time, counters and the MAC table.
pub struct Switch {
    shared: Arc<Shared>,
    /// Policy of each slot, and how datapaths see a port in it.
    policies: Vec<PortPolicy>,
    views: Vec<Arc<PortView>>,
    /// Limit of flooded frames of ports without one of their own.
    flood: u64,
    /// Mailboxes of the datapaths that still exist.
    mailboxes: Vec<Weak<Mailbox>>,
    /// Counters by port and datapath. Those of a removed port stay until the next port takes its slot.
    counters: Vec<Vec<Arc<PortCounters>>>,
    /// Slots that are not empty, one bit each.
    present: u64,
    ageing: u16,
    entries: usize,
}

impl Switch {
    /// Creates a switch with an empty slot for each policy. The policy applies to any port that is put into the
    /// slot.
    pub fn new(config: &Config, rules: &[PortPolicy]) -> Result<Self, Error> {
        if !(2..=MAX_PORTS).contains(&rules.len()) {
            return Err(Error::Config(format!("a switch has 2 to {MAX_PORTS} ports, not {}", rules.len())));
        }
        let ageing = u16::try_from(config.ageing.as_secs()).ok().filter(|ageing| (1..=32_400).contains(ageing));
        let Some(ageing) = ageing else {
            return Err(Error::Config("stations age after 1 to 32400 seconds (9 hours)".into()));
        };
        if !(1..=1 << 24).contains(&config.table) {
            return Err(Error::Config("the MAC table has room for 1 to 16777216 stations".into()));
        }
        let shared = Shared {
            members: Box::new([const { AtomicU64::new(0) }; 4096]),
            table: Table::new(config.table, config.moves),
            any_source: config.any_source,
            up: AtomicU64::new(0),
            start: Instant::now(),
            now: AtomicU16::new(0),
        };
        let mut switch = Self {
            shared: Arc::new(shared),
            policies: vec![PortPolicy::default(); rules.len()],
            views: rules.iter().map(|rules| Arc::new(view(config.flood, rules))).collect(),
            flood: config.flood,
            mailboxes: Vec::new(),
            counters: vec![Vec::new(); rules.len()],
            present: 0,
            ageing,
            entries: 0,
        };
        rules.iter().enumerate().try_for_each(|(port, rules)| switch.set_policy(port, rules.clone()))?;
        Ok(switch)
    }

    /// Gives a slot another policy: for the next port that is put into it, or for the one that is there, whose learned stations are forgotten. Whether
    /// that accepts lent buffers stays.
    ///
    /// Datapaths follow at the start of their next round. Until then they drop frames of VLANs that the port has left, and may send those of a VLAN that it has
    /// joined with a tag. Frames of VLANs that it had before and has afterwards are not lost.
    ///
    /// # Errors
    /// If a static station of the policy is wrong or has no room in the table. The port has the policy that it had then, an empty slot the default one.
    pub fn set_policy(&mut self, port: usize, policy: PortPolicy) -> Result<(), Error> {
        let is_present = self.present >> port & 1 != 0;
        let before = if is_present { self.policies[port].clone() } else { PortPolicy::default() };
        let lends = if is_present { before.lends } else { policy.lends };
        self.shared.table.remove_static(port);
        self.apply(port, PortPolicy { lends, ..policy });
        let added = self.add_static(port, &self.policies[port]);
        if added.is_err() {
            self.shared.table.remove_static(port);
            self.apply(port, before);
            // They had room before.
            let _ = self.add_static(port, &self.policies[port]);
        }
        if is_present {
            self.entries = self.shared.forget(port);
            for mailbox in self.mailboxes.iter().filter_map(Weak::upgrade) {
                mailbox.put(Change::View { port, view: self.views[port].clone() });
            }
        }
        added
    }

    /// Lets a policy take effect, apart from its static stations.
    fn apply(&mut self, port: usize, policy: PortPolicy) {
        for (vlan, members) in self.shared.members.iter().enumerate().take(usize::from(NO_VLAN)) {
            let bit = u64::from(policy.vlans.has(vlan as u16)) << port;
            // Only this thread changes them; datapaths see the old set or the new one, which differ by this port.
            members.store(members.load(Ordering::Relaxed) & !(1 << port) | bit, Ordering::Relaxed);
        }
        self.views[port] = Arc::new(view(self.flood, &policy));
        self.policies[port] = policy;
        for (own, view) in self.views.iter().enumerate() {
            let policy = &self.policies[own];
            let separate = |(other, rules): (usize, &PortPolicy)| {
                let together = policy.isolation.is_some() && policy.isolation == rules.isolation;
                u64::from(other != own && !together) << other
            };
            let reach = self.policies.iter().enumerate().map(separate).sum();
            view.reach.store(reach, Ordering::Relaxed);
        }
        self.shared.table.changed();
    }

    /// Adds the static stations of a port to the table.
    fn add_static(&self, port: usize, rules: &PortPolicy) -> Result<(), Error> {
        for &(mac, vlan) in &rules.stations {
            let vlan = vlan.unwrap_or(self.views[port].untagged);
            let wrong = |why: String| Err(Error::Config(format!("port '{}': station {mac}: {why}", rules.name)));
            if mac.0[0] & 1 != 0 || number(mac) == 0 {
                return wrong("no station has a group address, or zeros".into());
            }
            if vlan == NO_VLAN || !rules.vlans.has(vlan) {
                return wrong(match vlan {
                    NO_VLAN => "say in which VLAN; the port has no native one".into(),
                    vlan => format!("the port has no part in VLAN {vlan}"),
                });
            }
            if !self.shared.table.add_static(Key::new(number(mac), vlan), port) {
                return wrong("too many for the table; give it more room".into());
            }
        }
        Ok(())
    }

    /// Creates a datapath, for one worker, without queues. It copies packets into buffers of `pool`. Fails if
    /// the process has no file descriptor left.
    ///
    /// # Panics
    /// If a port is present: all datapaths must be created first.
    pub fn datapath(&mut self, pool: &Mempool, batch: usize) -> Result<Datapath, Error> {
        assert!(self.present == 0, "datapaths must be created before the first port is added");
        let mailbox = Arc::new(Mailbox::new()?);
        self.mailboxes.push(Arc::downgrade(&mailbox));
        Ok(Datapath::new(EgressPorts::new(self.policies.len(), pool.cache()), batch, mailbox, self.shared.clone()))
    }

    /// Returns the number of datapaths that were created.
    pub fn datapaths(&self) -> usize {
        self.mailboxes.len()
    }

    /// Adds a port to an empty slot, and marks it as up.
    ///
    /// `shares` has one element for each datapath, in the order of their creation. A datapath takes its element
    /// over at the start of its next round, and is woken if it sleeps. Each Rx queue may be with any datapath,
    /// but every datapath needs a Tx queue, because it sends what it receives itself. The slot's counters start
    /// from zero.
    ///
    /// # Panics
    /// If the slot is not empty, or if the number of shares is not that of datapaths.
    pub fn insert(&mut self, port: usize, shares: Vec<DatapathQueues>) {
        assert!(self.present >> port & 1 == 0, "place {port} is taken");
        assert!(shares.len() == self.mailboxes.len(), "{} shares for {} datapaths", shares.len(), self.mailboxes.len());
        self.counters[port] = shares.iter().map(|_| Arc::default()).collect();
        for ((mailbox, share), counters) in self.mailboxes.iter().zip(shares).zip(&self.counters[port]) {
            // If the datapath no longer exists, its queues are dropped here.
            if let Some(mailbox) = mailbox.upgrade() {
                let view = self.views[port].clone();
                mailbox.put(Change::Insert { port, view, share, counters: counters.clone() });
            }
        }
        self.present |= 1 << port;
        self.shared.table.divide(self.ports_left());
        self.shared.up.fetch_or(1 << port, Ordering::Relaxed);
    }

    /// Replaces the queues of a present port, in each datapath at the start of its next round, with what `each` returns for it. No
    /// frame is lost or changes its place. An empty slot is left alone.
    pub fn exchange(&mut self, port: usize, mut each: impl FnMut() -> QueueExchange) {
        if self.present >> port & 1 != 0 {
            for mailbox in self.mailboxes.iter().filter_map(Weak::upgrade) {
                mailbox.put(Change::Exchange { port, queues: each() });
            }
        }
    }

    /// Sets the time since the start, and removes aged stations. To be called several times a second.
    pub fn tick(&mut self, elapsed: Duration) {
        let now = elapsed.as_secs() as u16;
        if self.shared.now.swap(now, Ordering::Relaxed) != now {
            self.entries = self.shared.table.retain(now, |_, age| age <= self.ageing);
        }
    }

    /// Sets whether a present port has a link. Nothing is sent to a port without a link, and its stations are
    /// forgotten.
    pub fn set_link(&mut self, port: usize, link: Link) {
        let bit = 1 << port;
        if link.up {
            self.shared.up.fetch_or(bit & self.present, Ordering::Relaxed);
        } else if self.shared.up.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            self.entries = self.shared.forget(port);
        }
    }

    /// Removes a port, if the slot has one. Nothing more is sent to it, and its stations are forgotten. Each
    /// datapath drops the port's queues on its own thread at the start of its next round, and is woken if it
    /// sleeps. The slot can be filled again at once.
    pub fn remove(&mut self, port: usize) {
        self.set_link(port, Link::default());
        self.shared.table.remove_all_given(port);
        if self.present >> port & 1 != 0 {
            self.present &= !(1 << port);
            self.shared.table.divide(self.ports_left());
            for mailbox in self.mailboxes.iter().filter_map(Weak::upgrade) {
                mailbox.put(Change::Remove { port });
            }
        }
    }

    /// Returns the number of ports present.
    pub fn ports_left(&self) -> usize {
        self.present.count_ones() as usize
    }

    /// Returns the number of stations in the table, counted once a second and when a link goes down.
    pub fn stations(&self) -> usize {
        self.entries
    }

    /// Returns a handle by which a control plane places stations at ports, from any thread.
    pub fn placement(&self) -> Placement {
        Placement(self.shared.clone())
    }

    /// Begins to record the stations that are new at a port, for one reader. Those that are lost are in the [table](Self::table).
    ///
    /// # Errors
    /// If they are recorded already, or the process has no file descriptor left.
    pub fn arrivals(&self) -> Result<News<Arrival>, Error> {
        let (journal, arrivals) = Journal::new()?;
        if !self.shared.table.record(journal) {
            return Err(Error::Config("the switch's new stations have a reader already".into()));
        }
        Ok(arrivals)
    }

    /// Returns the table, sorted by VLAN and address.
    pub fn table(&self) -> Vec<Entry> {
        self.placement().table()
    }

    /// Returns the counters of a port; if the slot is empty, those of its last port.
    pub fn counts(&self, port: usize) -> Counts {
        Counts::sum(self.counters[port].iter().map(|counters| &**counters))
    }
}

/// Places stations at ports for a control plane, while frames pass.
#[derive(Clone)]
pub struct Placement(Arc<Shared>);

impl Placement {
    /// Places a station at a port, wherever it was learned before. It does not age there, and moves when its frames arrive at another port. Returns `false` if
    /// it is a static one, or the table has no room.
    pub fn place(&self, mac: MacAddress, vlan: u16, port: usize) -> bool {
        self.0.table.place_given(Key::new(number(mac), vlan), port, self.0.now.load(Ordering::Relaxed))
    }

    /// Removes a station that was placed at a port, unless it has moved.
    pub fn remove(&self, mac: MacAddress, vlan: u16, port: usize) {
        self.0.table.remove_given(Key::new(number(mac), vlan), port);
    }

    /// Returns the table, sorted by VLAN and address.
    pub fn table(&self) -> Vec<Entry> {
        let mut entries = self.0.table.entries(self.0.now.load(Ordering::Relaxed));
        entries.sort_by_key(|entry| (entry.vlan, entry.mac.0));
        entries
    }
}

/// Returns how datapaths see a port with this policy; whom it may reach is not known yet.
fn view(flood: u64, own: &PortPolicy) -> PortView {
    let mut sources: Vec<u64> = own.sources.iter().map(|&mac| number(mac)).collect();
    sources.sort_unstable();
    PortView {
        untagged: own.vlans.untagged(),
        access: matches!(own.vlans, Vlans::Access(_)),
        reach: AtomicU64::new(0),
        sources: sources.into(),
        rate_limiter: RateLimiter::new(own.flood.unwrap_or(flood)),
        lends: own.lends,
        learns: !own.given,
    }
}
