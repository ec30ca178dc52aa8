//! VALE switches: our switch, each with a worker, with ports of programs and attached ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use ringpass_memory::Mempool;
use ringpass_netmap::server::{Refusal, ServedPort, Switches};
use ringpass_netmap::vale::RingPort;
use ringpass_netmap::{Buffers, Served};
use ringpass_peer::Signal;
use ringpass_port::{Address, Port, PortConfig, Queues, State};
use ringpass_switch::{Config, MAX_PORTS, Rules, Share, Switch, Way};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::worker::{Worker, batch};
use crate::open::open_address;
use crate::options::Options;
use crate::sandbox::Sandbox;

/// All switches.
pub struct Vales {
    switches: BTreeMap<String, Vale>,
    pool: Mempool,
    options: Options,
    /// What programs may have opened and attached: what the process was started with, and nothing else.
    allowed: Vec<Address>,
    /// No port can be opened any more.
    closed: bool,
}

/// A port that is open, to be attached.
pub struct Opened {
    switch: String,
    address: String,
    port: Box<dyn Port>,
}

/// A switch with its worker. It ends when dropped.
struct Vale {
    switch: Switch,
    places: Vec<Option<Place>>,
    worker: Worker,
}

/// A port of a switch.
struct Place {
    name: String,
    /// One that was attached.
    port: Option<Box<dyn Port>>,
}

impl Vale {
    fn new(name: &str, pool: &Mempool, options: &Options) -> Result<Self, Refusal> {
        let failed = |error: ringpass_port::Error| Refusal::new(Errno::NOMEM, error);
        // As VALE: no limit of what programs may flood, and frames from nobody pass (pkt-gen's are).
        let config = Config { flood: 0, any_source: true, ..Config::default() };
        let mut switch = Switch::new(&config, &vec![Rules::default(); MAX_PORTS]).map_err(failed)?;
        let datapath = switch.datapath(pool, batch(options)).map_err(failed)?;
        let worker = Worker::spawn(name, 0, options, datapath, |datapath| datapath.round())?;
        Ok(Self { switch, places: (0..MAX_PORTS).map(|_| None).collect(), worker })
    }

    fn insert(&mut self, name: &str, queues: Queues, port: Option<Box<dyn Port>>) -> Result<usize, Refusal> {
        let free = self.places.iter().position(Option::is_none);
        let place =
            free.ok_or_else(|| Refusal::new(Errno::NOSPC, format!("a switch has {MAX_PORTS} ports at most")))?;
        self.places[place] = Some(Place { name: name.into(), port });
        let Queues { rx, tx } = queues;
        self.switch.insert(place, vec![Share { rx: vec![(rx, Way::Lookup)], tx }]);
        Ok(place)
    }

    fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }
}

impl Drop for Vale {
    fn drop(&mut self) {
        self.worker.stop();
        // Wakes the worker.
        (0..MAX_PORTS).filter(|&place| self.places[place].is_some()).for_each(|place| self.switch.remove(place));
    }
}

impl Vales {
    /// None yet. Packets are of this pool. Programs may attach the ports at `allowed`.
    pub fn new(pool: Mempool, options: Options, allowed: Vec<Address>) -> Self {
        Self { switches: BTreeMap::new(), pool, options, allowed, closed: false }
    }

    /// Start-up is over: in a sandbox no port can be opened any more.
    pub fn opened(&mut self, sandbox: Sandbox) {
        self.closed = sandbox != Sandbox::Off;
    }

    fn vale(&mut self, switch: &str) -> Result<&mut Vale, Refusal> {
        if !self.switches.contains_key(switch) {
            let made = Vale::new(switch, &self.pool, &self.options)?;
            self.switches.insert(switch.into(), made);
        }
        Ok(self.switches.get_mut(switch).expect("made just now"))
    }

    /// Empties a place; without ports, the switch goes.
    fn remove(&mut self, switch: &str, place: usize) {
        let Some(vale) = self.switches.get_mut(switch) else { return };
        vale.switch.remove(place);
        vale.places[place] = None;
        if vale.is_empty() {
            self.switches.remove(switch);
        }
    }

    /// Opens a port by its address, to be attached: `vale0:tap:x`, as whoever started the process asked for it. Programs
    /// may attach it again later.
    pub fn open_own(&mut self, name: &str) -> Result<Opened, Refusal> {
        let (switch, text) = split(name)?;
        let address: Address = text.parse().map_err(refused)?;
        let opened = self.open(switch, text, &address)?;
        self.allowed.push(address);
        Ok(opened)
    }

    /// Opens a port that a program asks for. Its address may name any file or card, so it must be one that the process was
    /// started with.
    fn open_for_program(&self, name: &str) -> Result<Opened, Refusal> {
        let (switch, text) = split(name)?;
        let denied =
            |why: &str, remedy: String| Err(Refusal::new(Errno::PERM, format!("{why}; start it with {remedy}")));
        if self.closed {
            let why = "in its sandbox the serving process opens no port";
            return denied(why, format!("--attach {name}, or with --no-sandbox --allow {text}"));
        }
        let address: Address = text.parse().map_err(refused)?;
        if !self.allowed.contains(&address) {
            let why = format!("the serving process was not started with {text}, and opens nothing else for programs");
            return denied(&why, format!("--no-sandbox --allow {text}"));
        }
        self.open(switch, text, &address)
    }

    fn open(&self, switch: &str, text: &str, address: &Address) -> Result<Opened, Refusal> {
        let config = PortConfig { rejoin: true, ..self.options.port() };
        let port = open_address(address, &config, &self.pool, &self.options).map_err(refused)?;
        Ok(Opened { switch: switch.into(), address: text.into(), port })
    }

    /// Attaches a port.
    pub fn attach(&mut self, Opened { switch, address, mut port }: Opened) -> Result<(), Refusal> {
        if self.place(&switch, &address).is_some() {
            return Err(Refusal::new(Errno::EXIST, format!("{switch}:{address} is attached already")));
        }
        let queues = port.take_queues().into_iter().next().expect("a port has a queue");
        let vale = self.vale(&switch)?;
        let inserted = vale.insert(&address, queues, Some(port));
        inserted.map(drop)
    }

    /// Takes an attached port away again.
    pub fn detach(&mut self, name: &str) -> Result<(), Refusal> {
        let (switch, address) = split(name)?;
        let none = || Refusal::new(Errno::NXIO, format!("{name} is not attached; see 'ringpass vale'"));
        let place = self.place(switch, address).ok_or_else(none)?;
        self.remove(switch, place);
        Ok(())
    }

    /// The place of an attached port.
    fn place(&self, switch: &str, address: &str) -> Option<usize> {
        let attached =
            |place: &Option<Place>| place.as_ref().is_some_and(|place| place.port.is_some() && place.name == address);
        self.switches.get(switch)?.places.iter().position(attached)
    }

    /// To be called some times a second: stations age, links are looked at; attached ports that are gone go.
    pub fn tick(&mut self, elapsed: Duration) {
        let mut gone = Vec::new();
        for (switch, vale) in &mut self.switches {
            vale.switch.tick(elapsed);
            for (number, place) in vale.places.iter_mut().enumerate() {
                let Some(Place { port: Some(port), name }) = place else { continue };
                vale.switch.set_link(number, port.link());
                if let State::Gone(why) = port.state() {
                    errln!("{switch}:{name} is gone: {why}");
                    gone.push((switch.clone(), number));
                }
            }
        }
        gone.into_iter().for_each(|(switch, place)| self.remove(&switch, place));
    }

    /// What was chosen for attached ports.
    pub fn notes(&mut self) -> Vec<String> {
        let places = self.switches.iter().flat_map(|(switch, vale)| {
            let ports = vale.places.iter().flatten().filter_map(|place| place.port.as_ref());
            ports.flat_map(move |port| {
                port.notes().into_iter().map(move |note| format!("{switch}:{}: {note}", port.name()))
            })
        });
        places.collect()
    }

    fn status(&mut self) -> Value {
        let switches = self.switches.iter_mut().map(|(name, vale)| {
            let attached = vale.places.iter_mut().flatten().filter_map(|place| {
                let port = place.port.as_mut()?;
                Some(json!({"port": place.name, "stats": port.stats()}))
            });
            let attached: Vec<Value> = attached.collect();
            let places = &vale.places;
            // What the switch has done with what came from each port, where it was not merely sent on.
            let counts = places.iter().enumerate().filter_map(|(number, place)| {
                let seen = vale.switch.counts(number);
                let counts: serde_json::Map<String, Value> =
                    seen.named().filter(|&(_, n)| n > 0).map(|(name, n)| (name.to_owned(), n.into())).collect();
                Some((place.as_ref()?.name.clone(), Value::Object(counts)))
            });
            let counts: serde_json::Map<String, Value> = counts.collect();
            let stations = vale.switch.table().into_iter().map(|entry| {
                let port = places[entry.port].as_ref().map_or("", |place| &place.name);
                json!({"mac": entry.mac.to_string(), "port": port, "age": entry.age.map(|age| age.as_secs())})
            });
            json!({"switch": name, "attached": attached, "counts": counts, "stations": stations.collect::<Vec<_>>()})
        });
        switches.collect()
    }
}

fn refused(error: ringpass_port::Error) -> Refusal {
    Refusal::new(Errno::NXIO, error)
}

/// Switch and port.
fn split(name: &str) -> Result<(&str, &str), Refusal> {
    let parts = name.split_once(':').filter(|(switch, port)| switch.starts_with("vale") && !port.is_empty());
    parts.ok_or_else(|| Refusal::new(Errno::INVAL, format!("'{name}': write SWITCH:PORT, as vale0:tap:x")))
}

/// Ports of programs come and go by this.
pub struct Attached(Rc<RefCell<Vales>>);

impl Attached {
    /// Of these switches.
    pub fn new(vales: Rc<RefCell<Vales>>) -> Self {
        Self(vales)
    }
}

/// A program's port in its place.
struct Member {
    port: RingPort,
    switch: String,
    place: usize,
    vales: Rc<RefCell<Vales>>,
}

impl Switches for Attached {
    fn open(
        &mut self,
        switch: &str,
        port: &str,
        served: Vec<Served>,
        buffers: Buffers,
    ) -> Result<Box<dyn ServedPort>, Refusal> {
        let mut vales = self.0.borrow_mut();
        let made = RingPort::new(served, &buffers, &vales.pool);
        let (ring_port, queues) = made.map_err(|error| Refusal::new(Errno::NOMEM, error))?;
        let place = vales.vale(switch)?.insert(port, queues, None)?;
        let (switch, vales) = (switch.to_owned(), self.0.clone());
        Ok(Box::new(Member { port: ring_port, switch, place, vales }))
    }

    fn attach(&mut self, name: &str) -> Result<(), Refusal> {
        let opened = self.0.borrow().open_for_program(name)?;
        self.0.borrow_mut().attach(opened)
    }

    fn detach(&mut self, name: &str) -> Result<(), Refusal> {
        self.0.borrow_mut().detach(name)
    }

    fn status(&self) -> Value {
        self.0.borrow_mut().status()
    }
}

impl ServedPort for Member {
    fn kick(&self) -> BorrowedFd<'_> {
        self.port.kick()
    }

    fn listen(&mut self, number: u64, entries: u64, call: Signal) {
        self.port.listen(number, entries, call);
    }

    fn ignore(&mut self, number: u64) {
        self.port.ignore(number);
    }

    fn counters(&self) -> Value {
        self.port.counters()
    }

    fn monitor(&self, ways: [bool; 2], served: Vec<Served>, buffers: &Buffers) -> Result<Box<dyn ServedPort>, Refusal> {
        self.port.monitor(ways, served, buffers)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.vales.borrow_mut().remove(&self.switch, self.place);
    }
}
