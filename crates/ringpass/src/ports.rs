//! `Ports`: what [`open`](crate::open()) returns.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ringpass_host_ports::Null;
use ringpass_ipc::wait_for_drops;
use ringpass_memory::Mempool;
use ringpass_port::{Error, Port, PortConfig, QueuePair, State, Stats};

use crate::map::take_queue_pairs;
use crate::sandbox::Needs;

/// Open ports with the pool that their packets come from, in the order of their addresses. Dereferences to a slice of
/// [`Port`]s.
///
/// ```
/// use ringpass::{Config, Port};
///
/// let mut ports = ringpass::open(["model:null", "null"], &Config::default())?;
/// let queues = ports.take_queues();
/// for port in ports.iter_mut() {
///     let stats = port.stats();
///     println!("{}: {} frames received, {} lost", port.name(), stats.rx_packets, stats.rx_drops);
/// }
/// drop(queues);
/// ports.close()?;
/// # Ok::<(), ringpass::Error>(())
/// ```
///
/// The queues are taken once and may then move to other threads. A device is stopped when its port and all of its queues have been
/// dropped. Ports that are dropped without [closing](Self::close) them also complete what they write elsewhere, but only their log
/// tells what was lost.
pub struct Ports {
    /// Dropped before the pool, so that packets return to it.
    ports: Vec<Box<dyn Port>>,
    pool: Mempool,
    needs: Needs,
}

impl Ports {
    /// Puts together ports that were opened one by one, with the pool that their packets come from.
    pub fn new(ports: Vec<Box<dyn Port>>, pool: Mempool, needs: Needs) -> Self {
        Self { ports, pool, needs }
    }

    /// Adds a port.
    pub fn push(&mut self, port: impl Port + 'static) {
        self.ports.push(Box::new(port));
    }

    /// Puts a port into the place of this number, from which one was [taken out](Self::take_out), or behind the last one; returns its number.
    pub fn put(&mut self, place: Option<usize>, port: Box<dyn Port>) -> usize {
        match place.filter(|place| *place < self.ports.len()) {
            Some(place) => {
                self.ports[place] = port;
                place
            }
            None => {
                self.ports.push(port);
                self.ports.len() - 1
            }
        }
    }

    /// Takes a port out. Its number stays, with a port that receives nothing and drops all. A device is stopped when the port and all of its queues have
    /// been dropped.
    ///
    /// # Panics
    /// If there is no port of this number.
    pub fn take_out(&mut self, port: usize) -> Box<dyn Port> {
        let empty = Null::open(&PortConfig { queues: 0, ..PortConfig::default() });
        std::mem::replace(&mut self.ports[port], Box::new(empty))
    }

    /// Takes the only queue pair of the only port.
    ///
    /// # Errors
    /// If there is not exactly one port with one queue pair, or it was taken before.
    pub fn take_one(&mut self) -> Result<QueuePair, Error> {
        let [queues] = self.take_first()?;
        Ok(queues)
    }

    /// Takes the queue pairs of two ports with one queue pair each.
    ///
    /// # Errors
    /// If there are not exactly two ports with one queue pair each, or they were taken before.
    pub fn take_pair(&mut self) -> Result<[QueuePair; 2], Error> {
        self.take_first()
    }

    fn take_first<const N: usize>(&mut self) -> Result<[QueuePair; N], Error> {
        let wrong = |what: String| Error::Config(format!("{what}; take_queues takes any number"));
        let ports = <&mut [Box<dyn Port>; N]>::try_from(&mut self.ports[..]);
        let ports = ports.map_err(|_| wrong(format!("the number of ports is not {N}")))?;
        let mut taken = Vec::new();
        for port in ports {
            let mut queues = port.take_queues();
            match (queues.pop(), queues.is_empty()) {
                (Some(only), true) => taken.push(only),
                _ => {
                    return Err(wrong(format!(
                        "{} does not have exactly one queue pair, or it was taken before",
                        port.name()
                    )));
                }
            }
        }
        Ok(taken.try_into().unwrap_or_else(|_| unreachable!("one for each of N ports")))
    }

    /// Takes all queue pairs of all ports: a list for each port. The lists are empty if they were taken before.
    pub fn take_queues(&mut self) -> Vec<Vec<QueuePair>> {
        self.ports.iter_mut().map(|port| port.take_queues()).collect()
    }

    /// Takes all queue pairs of all ports, for one worker each: a list for each worker, with one queue pair of each port, in the
    /// order of the ports. Ports with fewer queues than others leave those of the others without a worker, which is refused.
    ///
    /// ```
    /// use ringpass::{Config, PortConfig};
    ///
    /// let config = Config { port: PortConfig { queues: 4, ..Default::default() }, ..Config::default() };
    /// let mut ports = ringpass::open(["model:null", "model:null", "null"], &config)?;
    /// let workers = ports.take_queues_by_worker()?;
    /// assert_eq!(workers.iter().map(Vec::len).collect::<Vec<_>>(), [3; 4]);
    /// # Ok::<(), ringpass::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the ports do not have equally many queues, or they were taken before.
    pub fn take_queues_by_worker(&mut self) -> Result<Vec<Vec<QueuePair>>, Error> {
        let queues = self.take_queues();
        let workers = queues.first().map_or(0, Vec::len);
        if workers == 0 || queues.iter().any(|of_port| of_port.len() != workers) {
            let numbers: Vec<usize> = queues.iter().map(Vec::len).collect();
            return Err(Error::Config(format!(
                "the ports have {numbers:?} queue pairs to take; give all of them equally many"
            )));
        }
        let mut by_worker: Vec<Vec<QueuePair>> = (0..workers).map(|_| Vec::new()).collect();
        for of_port in queues {
            by_worker.iter_mut().zip(of_port).for_each(|(of_worker, pair)| of_worker.push(pair));
        }
        Ok(by_worker)
    }

    /// Takes the queues of two ports and pairs them up, one pair of queues for each worker. With `mapped`, each Rx queue receives
    /// directly into the buffers of the guest behind the opposite port; see [`take_queue_pairs`].
    ///
    /// # Errors
    /// If there are not two ports, or `mapped` is asked for and neither has a guest.
    pub fn take_queue_pairs(&mut self, mapped: bool) -> Result<Vec<(QueuePair, QueuePair)>, Error> {
        let [a, b] = &mut self.ports[..] else {
            return Err(Error::Config("queues are paired between two ports".into()));
        };
        take_queue_pairs([a, b], mapped)
    }

    /// Returns the pool that all packets come from.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Returns what these ports need of a sandbox.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Returns the choices that were made as the ports were opened, each line with the name of its port.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for port in &self.ports {
            notes.extend(port.notes().into_iter().map(|note| format!("{}: {note}", port.name())));
        }
        notes
    }

    /// Returns the counters of each port since it was opened.
    pub fn stats(&mut self) -> Vec<Stats> {
        self.ports.iter_mut().map(|port| port.stats()).collect()
    }

    /// Returns the counters of each queue pair of each port since it was opened: a list for each port, which is empty where the port
    /// does not count by queue (Intel's 82576 and its kin).
    ///
    /// ```
    /// use ringpass::{Config, PortConfig};
    ///
    /// let config = Config { port: PortConfig { queues: 4, ..Default::default() }, ..Config::default() };
    /// let mut ports = ringpass::open(["model:null", "null"], &config)?;
    /// for (port, queues) in ports.queue_stats().iter().enumerate() {
    ///     for (queue, stats) in queues.iter().enumerate() {
    ///         println!("port {port}, queue {queue}: {} frames received", stats.rx_packets);
    ///     }
    /// }
    /// # Ok::<(), ringpass::Error>(())
    /// ```
    pub fn queue_stats(&mut self) -> Vec<Vec<Stats>> {
        self.ports.iter_mut().map(|port| port.queue_stats()).collect()
    }

    /// Checks that all ports still work. Returns whether one has delivered all of its input (the end of a capture file).
    ///
    /// # Errors
    /// If the device, interface or peer behind a port has disappeared; the text says which.
    pub fn check(&mut self) -> Result<bool, Error> {
        check_ports(&mut self.ports)
    }

    /// Completes what the ports write elsewhere, such as capture files, and closes them. To be called when the queues have been
    /// dropped.
    ///
    /// # Errors
    /// If something could not be written (the text says what is missing), or if packet buffers have not come back to the pool: a
    /// card that fails to stop keeps those to which it may still write, and queues and packets that the caller still holds are
    /// missing too. All ports are closed even so.
    pub fn close(self) -> Result<(), Error> {
        let all = self.pool.capacity();
        match self.close_and_count()? {
            0 => Ok(()),
            missing => Err(Error::Fault(format!(
                "{missing} of {all} packet buffers have not come back: a card still writes to them, or a queue or packet was not \
                 dropped before the ports were closed"
            ))),
        }
    }

    /// Closes the ports as [`close`](Self::close) does; returns the number of packet buffers that have not come back.
    ///
    /// # Errors
    /// If something could not be written.
    pub fn close_and_count(mut self) -> Result<usize, Error> {
        // All of them, also after a failure, which is the first one's.
        let ends: Vec<_> = self.ports.iter_mut().map(|port| port.finish()).collect();
        self.ports.clear();
        // Queues of ports that have left a switch return theirs on other threads.
        wait_for_drops(Duration::from_secs(1));
        let missing = self.pool.outstanding(1);
        tracing::debug!("packet buffers: {missing} of {} are missing", self.pool.capacity());
        ends.into_iter().collect::<Result<(), _>>().map(|()| missing)
    }
}

/// Checks that ports still work, as [`Ports::check`] does.
///
/// # Errors
/// If the device, interface or peer behind a port has disappeared; the text says which.
pub fn check_ports(ports: &mut [Box<dyn Port>]) -> Result<bool, Error> {
    let mut finished = false;
    for port in ports {
        match port.state() {
            State::Running => {}
            State::Finished => finished = true,
            State::Gone(why) if why.starts_with(port.name()) => return Err(Error::Gone(why)),
            State::Gone(why) => return Err(Error::Gone(format!("{}: {why}", port.name()))),
        }
    }
    Ok(finished)
}

impl Deref for Ports {
    type Target = [Box<dyn Port>];

    fn deref(&self) -> &Self::Target {
        &self.ports
    }
}

impl DerefMut for Ports {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.ports
    }
}
