//! VALE switches, with ports of programs and attached ports.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringpass::{Address, Burst, Config, Flags, Mempool, Port, PortConfig, QueuePair, State};
use ringpass_host_ports::cable;
use ringpass_ipc::{EventNotifier, drop_elsewhere};
use ringpass_netmap::{Kring, Offsets, Positions, Region};
use ringpass_netmap_server::{
    Budget, RequestError, Reservation, RingPort, ServedPort, ServedRings, SwitchLinks, SwitchPlace, Switches, Watched,
};
use ringpass_port::{SoftwareOffload, TxQueue};
use ringpass_switch::{Config as SwitchConfig, DatapathQueues, Forwarding, MAX_PORTS, PortPolicy, Switch};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::worker::{SwitchWorker, SwitchWorkers, batch};
use crate::stats::note_lines;
use ringpass::open::open_address;
use ringpass::sandbox::{Needs, Sandbox};

/// All VALE switches of the process.
pub struct ValeSwitches {
    switches: BTreeMap<String, ValeSwitch>,
    pool: Mempool,
    config: Config,
    /// Addresses that programs may have opened and attached: those from the command line only.
    allowed: Vec<Address>,
    budget: Budget,
    workers: SwitchWorkers,
    /// Number of the next switch.
    next: u64,
    /// Set in the sandbox, where no port can be opened any more.
    closed: bool,
}

/// An open port that is to be attached.
pub struct PendingPort {
    switch: String,
    address: String,
    port: Box<dyn Port>,
}

/// A switch with the worker that serves it until this is dropped.
struct ValeSwitch {
    /// Number by which the worker knows the switch, never reused.
    number: u64,
    /// Number by which programs know it; `None` if it is not listed.
    index: Option<u16>,
    switch: Switch,
    slots: Vec<Option<SwitchPort>>,
    worker: Rc<SwitchWorker>,
    _tables: Reservation,
}

/// Bytes of the budget for a switch: its tables and bursts take 0.6 MiB.
const TABLES: usize = 1 << 20;

/// Packets that a cable to a native port has room for, in each direction.
const CABLE: usize = 512;

/// Sending queue of a cable to a native port.
struct CableTx(Box<dyn TxQueue>);

impl TxQueue for CableTx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.0.tx_burst(burst)
    }
}

/// A port of a switch.
struct SwitchPort {
    name: String,
    /// The port itself if it was attached; `None` for a program's port.
    port: Option<Box<dyn Port>>,
}

impl ValeSwitch {
    fn insert(&mut self, name: &str, queues: QueuePair, port: Option<Box<dyn Port>>) -> Result<usize, RequestError> {
        let free = self.slots.iter().position(Option::is_none);
        let slot =
            free.ok_or_else(|| RequestError::new(Errno::NOSPC, format!("a switch has {MAX_PORTS} ports at most")))?;
        self.slots[slot] = Some(SwitchPort { name: name.into(), port });
        let QueuePair { rx, tx } = queues;
        self.switch.insert(slot, vec![DatapathQueues { rx: vec![(rx, Forwarding::Lookup)], tx }]);
        Ok(slot)
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }
}

impl Drop for ValeSwitch {
    fn drop(&mut self) {
        self.worker.leave(self.number);
    }
}

impl ValeSwitches {
    /// Creates an empty set of switches that take packets from `pool`. Programs may attach the ports in
    /// `allowed`. The switches' tables are part of the budget.
    pub fn new(pool: Mempool, config: Config, allowed: Vec<Address>, budget: Budget) -> Self {
        let workers = SwitchWorkers::new(config.clone());
        Self { switches: BTreeMap::new(), pool, config, allowed, budget, workers, next: 0, closed: false }
    }

    /// Ends start-up: in a sandbox no port can be opened any more.
    pub fn opened(&mut self, sandbox: Sandbox) {
        self.closed = sandbox != Sandbox::Off;
    }

    fn vale(&mut self, switch: &str) -> Result<&mut ValeSwitch, RequestError> {
        if !self.switches.contains_key(switch) {
            let made = self.make(switch)?;
            self.switches.insert(switch.into(), made);
        }
        Ok(self.switches.get_mut(switch).expect("made just now"))
    }

    fn make(&mut self, name: &str) -> Result<ValeSwitch, RequestError> {
        let failed = |error: ringpass::Error| RequestError::new(Errno::NOMEM, error);
        let tables = self.budget.reserve(name, TABLES)?;
        // As in VALE: programs may flood without limit, and frames with a group or zero source address pass
        // (pkt-gen's do).
        let config = SwitchConfig { flood: 0, any_source: true, ..SwitchConfig::default() };
        let mut switch = Switch::new(&config, &vec![PortPolicy::default(); MAX_PORTS]).map_err(failed)?;
        let datapath = switch.datapath(&self.pool, batch(&self.config)).map_err(failed)?;
        let number = self.next;
        self.next += 1;
        let worker = self.workers.serve(number, Box::new(datapath))?;
        let slots = (0..MAX_PORTS).map(|_| None).collect();
        let index = name.starts_with("vale").then(|| self.free_index());
        Ok(ValeSwitch { number, index, switch, slots, worker, _tables: tables })
    }

    /// Returns the lowest number that no switch has.
    fn free_index(&self) -> u16 {
        let taken: BTreeSet<u16> = self.switches.values().filter_map(|vale| vale.index).collect();
        (0..u16::MAX).find(|index| !taken.contains(index)).expect("their tables take more memory than there is")
    }

    /// Returns the place of a port by its name.
    fn find(&self, name: &str) -> Option<SwitchPlace> {
        let (switch, port) = name.split_once(':')?;
        let vale = self.switches.get(switch)?;
        let slot = vale.slots.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.name == port))?;
        Some(SwitchPlace { switch: vale.index?, port: slot as u32 })
    }

    /// Returns the first port at or after a place, with its name.
    fn next_port(&self, from: SwitchPlace) -> Option<(SwitchPlace, String)> {
        let first = |vale: &ValeSwitch| {
            let index = vale.index.filter(|&index| index >= from.switch)?;
            let start = if index == from.switch { from.port as usize } else { 0 };
            let slot = start + vale.slots.get(start..)?.iter().position(Option::is_some)?;
            Some(SwitchPlace { switch: index, port: slot as u32 })
        };
        let places = self.switches.iter().filter_map(|(name, vale)| Some((first(vale)?, name, vale)));
        let (place, switch, vale) = places.min_by_key(|&(place, ..)| place)?;
        let port = vale.slots[place.port as usize].as_ref()?;
        Some((place, format!("{switch}:{}", port.name)))
    }

    /// Removes a port from its slot, and the switch with its last port.
    fn remove(&mut self, switch: &str, slot: usize) {
        let Some(vale) = self.switches.get_mut(switch) else { return };
        vale.switch.remove(slot);
        // A card's port may wait for its queues to stop.
        if let Some(port) = vale.slots[slot].take().and_then(|slot| slot.port) {
            drop_elsewhere(port);
        }
        if vale.is_empty() {
            self.switches.remove(switch);
        }
    }

    /// Opens a port of the command line, such as `vale0:tap:x`, that is to be attached. Programs may attach it
    /// again later.
    pub fn open_configured(&mut self, name: &str, needs: &mut Needs) -> Result<PendingPort, RequestError> {
        let (switch, text) = split(name)?;
        let address: Address = text.parse().map_err(open_refusal)?;
        let opened = self.open(switch, text, &address, needs)?;
        self.allowed.push(address);
        Ok(opened)
    }

    /// Opens a port for a program. Its address could name any file or card, so only ports from the command line
    /// are allowed.
    fn open_for_program(&self, name: &str) -> Result<PendingPort, RequestError> {
        let (switch, text) = split(name)?;
        let denied =
            |why: &str, remedy: String| Err(RequestError::new(Errno::PERM, format!("{why}; start it with {remedy}")));
        let not_a_port = |error: ringpass::Error| {
            RequestError::new(Errno::INVAL, format!("there is no persistent port '{text}', and {error}"))
        };
        let address: Address = text.parse().map_err(not_a_port)?;
        if self.closed {
            let why = "in its sandbox the serving process opens no port";
            return denied(why, format!("--attach {name}, or with --no-sandbox --allow {text}"));
        }
        if !self.allowed.contains(&address) {
            let why = format!("the serving process was not started with {text}, and opens nothing else for programs");
            return denied(&why, format!("--no-sandbox --allow {text}"));
        }
        self.open(switch, text, &address, &mut Needs::default())
    }

    fn open(
        &self,
        switch: &str,
        text: &str,
        address: &Address,
        needs: &mut Needs,
    ) -> Result<PendingPort, RequestError> {
        let port_config = PortConfig { rejoin: true, ..self.config.port };
        let port = open_address(address, &port_config, &self.pool, &self.config, needs).map_err(open_refusal)?;
        Ok(PendingPort { switch: switch.into(), address: text.into(), port })
    }

    /// Attaches an open port to its switch. Returns its number there.
    pub fn attach(&mut self, PendingPort { switch, address, mut port }: PendingPort) -> Result<usize, RequestError> {
        if self.slot(&switch, &address).is_some() {
            return Err(RequestError::new(Errno::BUSY, format!("{switch}:{address} is attached already")));
        }
        let queues = port.take_queues().into_iter().next().expect("a port has a queue");
        let vale = self.vale(&switch)?;
        vale.insert(&address, queues, Some(port))
    }

    /// Attaches one end of a cable to a switch. Returns the port's number there, and the queues of the other end.
    fn connect(&mut self, switch: &str, port: &str) -> Result<(usize, QueuePair), RequestError> {
        // A cable has an event for each direction, and panics without descriptors for them.
        let spare = || eventfd(0, EventfdFlags::CLOEXEC);
        let spares = (0..4).map(|_| spare()).collect::<Result<Vec<_>, _>>();
        drop(spares.map_err(|errno| RequestError::new(Errno::MFILE, format!("{switch}:{port}: {errno}")))?);
        let (mut near, mut far) = cable(&format!("{switch}:{port}"), CABLE);
        let QueuePair { rx, tx } = near.take_queues().pop().expect("a cable has a queue");
        // The port behind it need not have any offloads.
        let tx = Box::new(SoftwareOffload::new(CableTx(tx), Flags::default(), &self.pool));
        let slot = self.vale(switch)?.insert(port, QueuePair { rx, tx }, Some(Box::new(near)))?;
        Ok((slot, far.take_queues().pop().expect("a cable has a queue")))
    }

    /// Detaches a port from its switch and closes it. Returns the number that it had there.
    pub fn detach(&mut self, name: &str) -> Result<usize, RequestError> {
        let (switch, address) = split(name)?;
        let none = || RequestError::new(Errno::NXIO, format!("{name} is not attached; see 'ringpass vale'"));
        let slot = self.slot(switch, address).ok_or_else(none)?;
        self.remove(switch, slot);
        Ok(slot)
    }

    /// Returns the slot of an attached port.
    fn slot(&self, switch: &str, address: &str) -> Option<usize> {
        let attached =
            |slot: &Option<SwitchPort>| slot.as_ref().is_some_and(|slot| slot.port.is_some() && slot.name == address);
        self.switches.get(switch)?.slots.iter().position(attached)
    }

    /// Ages stations, updates links and removes attached ports that are gone. To be called several times a
    /// second.
    pub fn tick(&mut self, elapsed: Duration) {
        let mut gone = Vec::new();
        for (switch, vale) in &mut self.switches {
            vale.switch.tick(elapsed);
            for (number, slot) in vale.slots.iter_mut().enumerate() {
                let Some(SwitchPort { port: Some(port), name }) = slot else { continue };
                vale.switch.set_link(number, port.link());
                if let State::Gone(why) = port.state() {
                    errln!("{switch}:{name} is gone: {why}");
                    gone.push((switch.clone(), number));
                }
            }
        }
        gone.into_iter().for_each(|(switch, slot)| self.remove(&switch, slot));
    }

    /// Returns the notes on the config chosen for attached ports.
    pub fn notes(&mut self) -> Vec<String> {
        let slots = self.switches.iter().flat_map(|(switch, vale)| {
            let ports = vale.slots.iter().flatten().filter_map(|slot| slot.port.as_ref());
            ports.flat_map(move |port| note_lines(&format!("{switch}:{}", port.name()), &port.notes()))
        });
        slots.collect()
    }

    fn status(&mut self) -> Value {
        let listed = self.switches.iter_mut().filter(|(_, vale)| vale.index.is_some());
        let switches = listed.map(|(name, vale)| {
            let attached = vale.slots.iter_mut().flatten().filter_map(|slot| {
                let port = slot.port.as_mut()?;
                Some(json!({"port": slot.name, "stats": port.stats()}))
            });
            let attached: Vec<Value> = attached.collect();
            let slots = &vale.slots;
            // Counters of what the switch did with frames from each port other than forwarding them.
            let counts = slots.iter().enumerate().filter_map(|(number, slot)| {
                let seen = vale.switch.counts(number);
                let counts: serde_json::Map<String, Value> =
                    seen.named().filter(|&(_, n)| n > 0).map(|(name, n)| (name.to_owned(), n.into())).collect();
                Some((slot.as_ref()?.name.clone(), Value::Object(counts)))
            });
            let counts: serde_json::Map<String, Value> = counts.collect();
            let stations = vale.switch.table().into_iter().map(|entry| {
                let port = slots[entry.port].as_ref().map_or("", |slot| &slot.name);
                json!({"mac": entry.mac.to_string(), "port": port, "age": entry.age.map(|age| age.as_secs())})
            });
            json!({"switch": name, "attached": attached, "counts": counts, "stations": stations.collect::<Vec<_>>()})
        });
        switches.collect()
    }
}

fn open_refusal(error: ringpass::Error) -> RequestError {
    RequestError::new(Errno::NXIO, error)
}

/// Splits a name into switch and port.
fn split(name: &str) -> Result<(&str, &str), RequestError> {
    let parts = name.split_once(':').filter(|(switch, port)| switch.starts_with("vale") && !port.is_empty());
    parts.ok_or_else(|| RequestError::new(Errno::INVAL, format!("'{name}': write SWITCH:PORT, such as vale0:tap:x")))
}

/// Handle through which programs' ports join and leave the switches.
pub struct SwitchesHandle(Rc<RefCell<ValeSwitches>>);

impl SwitchesHandle {
    /// Creates a handle to these switches.
    pub fn new(vales: Rc<RefCell<ValeSwitches>>) -> Self {
        Self(vales)
    }
}

/// A program's port in its slot of a switch.
struct ProgramMember {
    port: RingPort,
    switch: String,
    slot: usize,
    vales: Rc<RefCell<ValeSwitches>>,
}

impl Switches for SwitchesHandle {
    fn open(&mut self, switch: &str, port: &str, rings: ServedRings) -> Result<Box<dyn ServedPort>, RequestError> {
        let mut vales = self.0.borrow_mut();
        let made = RingPort::new(rings, &vales.pool);
        let (ring_port, queues) = made.map_err(|error| RequestError::new(Errno::NOMEM, error))?;
        let slot = vales.vale(switch)?.insert(port, queues, None)?;
        let (switch, vales) = (switch.to_owned(), self.0.clone());
        Ok(Box::new(ProgramMember { port: ring_port, switch, slot, vales }))
    }

    /// The port is alone on a switch that is not listed.
    fn open_alone(&mut self, port: &str, rings: ServedRings) -> Result<Box<dyn ServedPort>, RequestError> {
        self.open(&format!("netmap:{port}"), port, rings)
    }

    fn attach(&mut self, name: &str) -> Result<u32, RequestError> {
        let opened = self.0.borrow().open_for_program(name)?;
        self.0.borrow_mut().attach(opened).map(|slot| slot as u32)
    }

    fn detach(&mut self, name: &str) -> Result<u32, RequestError> {
        self.0.borrow_mut().detach(name).map(|slot| slot as u32)
    }

    fn connect(&mut self, name: &str, host: bool) -> Result<(u32, SwitchLinks), RequestError> {
        let (switch, port) = split(name)?;
        let host_port = format!("{port}^");
        let mut vales = self.0.borrow_mut();
        if host && vales.find(&format!("{switch}:{host_port}")).is_some() {
            return Err(RequestError::new(Errno::BUSY, format!("{name}^ is a program's port")));
        }
        let (slot, own) = vales.connect(switch, port)?;
        let connected = host.then(|| vales.connect(switch, &host_port)).transpose();
        let host = connected.inspect_err(|_| vales.remove(switch, slot))?.map(|(_, queues)| queues);
        Ok((slot as u32, SwitchLinks { own, host, pool: vales.pool.clone() }))
    }

    fn is_address(&self, text: &str) -> bool {
        text.parse::<Address>().is_ok()
    }

    fn find(&self, name: &str) -> Option<SwitchPlace> {
        self.0.borrow().find(name)
    }

    fn next(&self, from: SwitchPlace) -> Option<(SwitchPlace, String)> {
        self.0.borrow().next_port(from)
    }

    fn settle(&mut self) {
        let until = Instant::now() + Duration::from_secs(1);
        self.0.borrow().switches.values().for_each(|vale| vale.worker.settle(until));
    }

    fn status(&self) -> Value {
        self.0.borrow_mut().status()
    }
}

impl ServedPort for ProgramMember {
    fn kick(&self) -> BorrowedFd<'_> {
        self.port.kick()
    }

    fn subscribe(&mut self, number: u64, entries: u64, call: EventNotifier) {
        self.port.subscribe(number, entries, call);
    }

    fn unsubscribe(&mut self, number: u64) {
        self.port.unsubscribe(number);
    }

    fn set_offsets(&mut self, offsets: &dyn Fn(usize) -> Offsets) {
        self.port.set_offsets(offsets);
    }

    fn hold(&mut self, held: bool) {
        self.port.hold(held);
    }

    fn leave(&mut self) -> Option<Vec<Positions>> {
        self.port.leave()
    }

    fn counters(&self) -> Value {
        self.port.counters()
    }

    fn header_len(&self) -> usize {
        self.port.header_len()
    }

    fn set_header_len(&mut self, len: usize) -> bool {
        self.port.set_header_len(len)
    }

    fn monitor(
        &self,
        watched: Watched,
        served: Vec<Kring>,
        region: &Region,
    ) -> Result<Box<dyn ServedPort>, RequestError> {
        self.port.monitor(watched, served, region)
    }
}

impl Drop for ProgramMember {
    fn drop(&mut self) {
        self.vales.borrow_mut().remove(&self.switch, self.slot);
    }
}
