//! The thread between FRR's tables and a switch.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_port::{Error, MacAddress};
use ringpass_switch::vxlan::{Address, Changes, Station, Tunnel};
use ringpass_switch::{Arrival, News, Placement};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::announcer::Announcer;
use crate::claims::{Claimed, Claims};
use crate::devices::{AGEING, Device};
use crate::fdb::{Change, Entry, Fdb, Neighbour, Whole};

/// Time between two announcements of a station: a third of what the bridge remembers.
const REFRESH: Duration = Duration::from_secs(AGEING / 3);
/// Time until tables are asked for again that could not be read.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two looks at what stations say of themselves, so that those that say much take no time from the rest.
const HEARING: Duration = Duration::from_millis(20);
/// Messages that are read before other things get their turn.
const MOST_MESSAGES: usize = 256;

/// Descriptors of the networks' devices. They are opened before a process gives up its rights.
pub struct Files {
    vnis: Vec<u32>,
    fdb: Fdb,
    announcer: Announcer,
}

impl Files {
    /// Opens those of these networks.
    ///
    /// # Errors
    /// A TAP is not there or cannot be opened, or the kernel has no netlink.
    pub fn open(vnis: &[u32]) -> Result<Self, Error> {
        Ok(Self { vnis: vnis.to_vec(), fdb: Fdb::open()?, announcer: Announcer::open(vnis)? })
    }
}

/// The tunnel's place in the switch.
pub struct Site {
    /// The tunnel, whose ends are [given](ringpass_switch::vxlan::Ends::Given).
    pub tunnel: Tunnel,
    /// Places stations.
    pub placement: Placement,
    /// Says which stations are new.
    pub arrivals: News<Arrival>,
    /// The tunnel's port.
    pub port: usize,
    /// VLAN of frames without a tag at that port, to which a network without a VLAN of its own belongs.
    pub untagged: u16,
}

#[derive(Default)]
struct Counters {
    /// Entries that FRR added, for stations and ends.
    added: AtomicU64,
    /// Entries that FRR removed.
    removed: AtomicU64,
    /// Entries that could not be followed: an end that cannot be reached, or no room.
    refused: AtomicU64,
    /// Frames that told FRR of a station.
    announced: AtomicU64,
    /// Times that whole tables were read.
    resyncs: AtomicU64,
}

/// The thread that follows FRR's tables and announces stations. It ends when this is dropped, within a moment; remotes and stations stay.
pub struct Follower {
    stop: Arc<OwnedFd>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// The process has no descriptor or no thread left.
    pub fn start(files: Files, site: Site) -> Result<Self, Error> {
        let stop = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let stop = Arc::new(stop.map_err(|errno| Error::os("an eventfd for EVPN", errno))?);
        let counters = Arc::new(Counters::default());
        let heard = site.tunnel.heard()?;
        let mut following = Following {
            networks: networks(&files.vnis, &site),
            files,
            site,
            devices: HashMap::new(),
            due: None,
            heard,
            claims: Claims::default(),
            refusals: HashSet::new(),
            counters: counters.clone(),
        };
        let own = stop.clone();
        let thread = std::thread::Builder::new().name("evpn".into()).spawn(move || following.run(&own));
        let thread = thread.map_err(|source| Error::os("a thread for EVPN", source))?;
        Ok(Self { stop, counters, thread: Some(thread) })
    }

    /// Returns what it has done so far, with the names of the counters.
    pub fn counts(&self) -> [(&'static str, u64); 5] {
        let Counters { added, removed, refused, announced, resyncs } = &*self.counters;
        [
            ("evpn_added", added),
            ("evpn_removed", removed),
            ("evpn_refused", refused),
            ("evpn_announced", announced),
            ("evpn_resyncs", resyncs),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The write fails only if the counter is full; then the eventfd is readable already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// VLANs in the switch, by network.
fn networks(vnis: &[u32], site: &Site) -> HashMap<u32, u16> {
    let vlan = |&vni: &u32| Some((vni, site.tunnel.vlan(vni)?.unwrap_or(site.untagged)));
    vnis.iter().filter_map(vlan).collect()
}

/// State of the thread.
struct Following {
    files: Files,
    site: Site,
    /// VLANs in the switch, by network.
    networks: HashMap<u32, u16>,
    /// The networks' devices, by index.
    devices: HashMap<u32, (Device, u32)>,
    /// When whole tables must be read.
    due: Option<Instant>,
    /// Addresses that this host's stations say of themselves.
    heard: News<Address>,
    claims: Claims,
    /// Reasons for which entries were refused, each of which is said once.
    refusals: HashSet<String>,
    counters: Arc<Counters>,
}

impl Following {
    fn run(&mut self, stop: &OwnedFd) {
        self.due = Some(Instant::now());
        let (mut refresh, mut listen) = (Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            if self.due.is_some_and(|due| due <= now) {
                let whole = self.read_tables();
                self.due = (!whole).then(|| Instant::now() + RETRY);
            }
            if refresh <= now {
                self.announce_all();
                refresh = Instant::now() + REFRESH;
            }
            let is_listening = listen <= now;
            let until = self.due.map_or(refresh, |due| due.min(refresh));
            let until = if is_listening { until } else { until.min(listen) };
            let wait = until.saturating_duration_since(Instant::now());
            let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
            let mut ready = [
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(&self.files.fdb, PollFlags::IN),
                PollFd::new(&self.site.arrivals, PollFlags::IN),
                PollFd::new(&self.heard, if is_listening { PollFlags::IN } else { PollFlags::empty() }),
            ];
            // After a signal, it looks again.
            let _ = poll(&mut ready, Some(&wait));
            let [stopped, changed, arrived, said] = ready.map(|one| !one.revents().is_empty());
            if stopped {
                return;
            }
            if changed {
                self.read_changes();
            }
            if arrived {
                self.announce_new();
            }
            if said {
                self.announce_said();
                listen = Instant::now() + HEARING;
            }
        }
    }

    /// Follows what has changed since the last time.
    fn read_changes(&mut self) {
        let mut changes = Vec::new();
        if !self.files.fdb.read_changes(MOST_MESSAGES, |change| changes.push(change)) {
            self.due = Some(Instant::now());
        }
        self.follow(changes, false);
    }

    /// Reads all devices and all of their tables. Returns `false` if the kernel did not say all.
    fn read_tables(&mut self) -> bool {
        count(&self.counters.resyncs);
        let mut changes = Vec::new();
        let fdb = &mut self.files.fdb;
        let tables = [Whole::Devices, Whole::Entries, Whole::Neighbours];
        let whole = tables.iter().all(|&what| fdb.read_all(what, |change| changes.push(change)));
        self.devices.clear();
        self.follow(changes, whole);
        whole
    }

    /// Follows changes, devices first. If they are `all` there is, what was followed before and is not among them is removed.
    fn follow(&mut self, changes: Vec<Change>, all: bool) {
        changes.iter().for_each(|change| self.follow_device(change));
        let (site, networks) = (&self.site, &self.networks);
        let mut book = Book { devices: &self.devices, networks, site, counters: &self.counters, refused: Vec::new() };
        let result = site.tunnel.change(|to| {
            if all {
                to.begin_all();
            }
            changes.iter().for_each(|change| book.follow(to, change));
            if all {
                to.end_all(|vni, mac| displace(site, networks, vni, mac));
            }
        });
        let refused = book.refused;
        self.say(refused, result);
    }

    /// Follows a device that is new, or gone. The table of a new one is read as a whole.
    fn follow_device(&mut self, change: &Change) {
        match change {
            Change::Device(name, index) => {
                let own = Device::named(name).filter(|(_, vni)| self.networks.contains_key(vni));
                if let Some(device) = own
                    && self.devices.insert(*index, device) != Some(device)
                {
                    self.due = Some(Instant::now());
                }
            }
            Change::DeviceGone(index) => {
                if self.devices.remove(index).is_some() {
                    self.due = Some(Instant::now());
                }
            }
            Change::Added(_) | Change::Removed(_) | Change::Address(_) | Change::AddressGone(..) => {}
        }
    }

    /// Warns of each reason once.
    fn say(&mut self, refused: Vec<Error>, result: Result<(), Error>) {
        const MOST: usize = 64;
        for error in refused.into_iter().chain(result.err()) {
            let why = error.to_string();
            if self.refusals.len() < MOST && !self.refusals.contains(&why) {
                warn!("EVPN: {why}");
                self.refusals.insert(why);
            }
        }
    }

    /// Announces the stations that are new.
    fn announce_new(&mut self) {
        let mut new = Vec::new();
        let known = self.site.arrivals.read(|arrival| new.push(arrival));
        if !known {
            self.announce_all();
            return;
        }
        for arrival in new {
            self.announce(arrival.mac, arrival.vlan, arrival.port);
        }
    }

    /// Announces all of this host's stations, and their addresses. Forgets addresses of stations that are no longer here.
    fn announce_all(&mut self) {
        let mut here = HashSet::new();
        let own = self.site.port;
        for entry in self.site.placement.table().iter().filter(|entry| entry.port != own) {
            self.announce(entry.mac, entry.vlan, entry.port);
            here.insert((entry.vlan, entry.mac.0));
        }
        let networks = &self.networks;
        self.claims.retain(|vni, mac| networks.get(&vni).is_some_and(|vlan| here.contains(&(*vlan, mac.0))));
        self.claims.all().into_iter().for_each(|address| self.announce_address(address));
    }

    /// Announces the addresses of this host's stations that are new.
    fn announce_said(&mut self) {
        let mut said = Vec::new();
        // Those that are lost are said again.
        self.heard.read(|address| said.push(address));
        for address in said {
            match self.claims.add(address) {
                Claimed::New => self.announce_address(address),
                Claimed::Known => {}
                Claimed::Refused => {
                    count(&self.counters.refused);
                    let why =
                        "stations of this host say they have more addresses than are announced (512, and 16 of one)";
                    self.say(vec![Error::Config(why.into())], Ok(()));
                }
            }
        }
    }

    fn announce_address(&mut self, address: Address) {
        let announced = self.files.announcer.announce_address(address);
        self.note(address.vni, announced);
    }

    fn announce(&mut self, mac: MacAddress, vlan: u16, port: usize) {
        if port == self.site.port {
            return;
        }
        let Some((&vni, _)) = self.networks.iter().find(|(_, own)| **own == vlan) else { return };
        let announced = self.files.announcer.announce(vni, mac);
        self.note(vni, announced);
    }

    /// Counts an announcement, or says why there was none.
    fn note(&mut self, vni: u32, announced: Result<(), Errno>) {
        match announced {
            Ok(()) => count(&self.counters.announced),
            Err(errno) => {
                let error = Error::os(format!("{}; its stations are not announced", Device::Tap.name(vni)), errno);
                self.say(vec![error], Ok(()));
            }
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Takes a station that is no longer behind the tunnel out of the switch's table.
fn displace(site: &Site, networks: &HashMap<u32, u16>, vni: u32, mac: MacAddress) {
    if let Some(&vlan) = networks.get(&vni) {
        site.placement.remove(mac, vlan, site.port);
    }
}

/// Returns whether an entry stands for all stations that are not known.
fn is_all(mac: MacAddress) -> bool {
    mac.0 == [0; 6]
}

/// The devices and the switch, for following an entry.
struct Book<'a> {
    devices: &'a HashMap<u32, (Device, u32)>,
    networks: &'a HashMap<u32, u16>,
    site: &'a Site,
    counters: &'a Counters,
    refused: Vec<Error>,
}

impl Book<'_> {
    fn follow(&mut self, changes: &mut Changes, change: &Change) {
        match *change {
            Change::Added(Entry { device, mac, remote }) => {
                if let Some(vni) = self.network(Device::Vxlan, device) {
                    self.add(changes, Station { vni, mac, remote });
                }
            }
            Change::Removed(Entry { device, mac, remote }) => {
                if let Some(vni) = self.network(Device::Vxlan, device) {
                    self.remove(changes, Station { vni, mac, remote });
                }
            }
            Change::Address(Neighbour { device, ip, mac, is_router }) => {
                if let Some(vni) = self.network(Device::Bridge, device) {
                    match changes.add_address(Address { vni, ip, mac, is_router }) {
                        Ok(()) => count(&self.counters.added),
                        Err(error) => self.refuse(error),
                    }
                }
            }
            Change::AddressGone(device, ip) => {
                if let Some(vni) = self.network(Device::Bridge, device) {
                    changes.remove_address(vni, ip);
                }
            }
            Change::Device(..) | Change::DeviceGone(_) => {}
        }
    }

    /// Returns the network whose device of a kind has this index.
    fn network(&self, kind: Device, index: u32) -> Option<u32> {
        self.devices.get(&index).filter(|(device, _)| *device == kind).map(|(_, vni)| *vni)
    }

    fn remove(&mut self, changes: &mut Changes, station: Station) {
        let Station { vni, mac, remote } = station;
        count(&self.counters.removed);
        if is_all(mac) {
            changes.remove_remote(vni, remote);
        } else if changes.remove_station(station) {
            displace(self.site, self.networks, vni, mac);
        }
    }

    fn add(&mut self, changes: &mut Changes, station: Station) {
        let Station { vni, mac, remote } = station;
        // One that is said again, as tables were read anew, may have come to a port of ours meanwhile.
        let added =
            if is_all(mac) { changes.add_remote(vni, remote).map(|()| false) } else { changes.add_station(station) };
        match (added, self.networks.get(&vni)) {
            (Ok(is_new), Some(&vlan)) => {
                count(&self.counters.added);
                if is_new && !self.site.placement.place(mac, vlan, self.site.port) {
                    let why =
                        "the switch's table has no room for a station of another host, whose frames go to all ports";
                    self.refuse(Error::Config(why.into()));
                }
            }
            (Err(error), _) => self.refuse(error),
            (Ok(_), None) => {}
        }
    }

    fn refuse(&mut self, error: Error) {
        count(&self.counters.refused);
        self.refused.push(error);
    }
}
