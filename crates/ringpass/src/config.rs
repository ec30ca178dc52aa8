//! `Config`: how ports are opened and workers run.

use std::ffi::OsString;
use std::time::Duration;

use ringpass_memory::PageSize;
use ringpass_port::{DEFAULT_LATENCY_BUDGET, Error, Idle, PortConfig};

use crate::notice::Notices;
use crate::sandbox::{Sandbox, User};

/// Configuration of everything that moves packets. The default is what most applications want: one queue per port, ordinary
/// MTU, no offloads, huge pages if enough are free, workers that sleep when idle, no sandbox.
///
/// ```
/// use ringpass::{Config, PortConfig};
///
/// let config = Config { port: PortConfig { queues: 4, mtu: 9000, ..Default::default() }, cpu: vec![0, 1], ..Config::default() };
/// assert_eq!(config.batch, 32);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Queues, rings, MTU and offloads of each port.
    pub port: PortConfig,
    /// Number of further ports for whose packets the pool has room, because they are [added](crate::pass_on::adopt) later.
    pub room: usize,
    /// Largest burst in packets, 1 to 256.
    pub batch: usize,
    /// Pages under packets and rings. `None`: huge pages of 2 MiB if enough are free, else ordinary ones, with a notice.
    pub hugepages: Option<PageSize>,
    /// Polls without ever sleeping.
    pub poll: bool,
    /// Latency that each loop on a packet's way may add so that packets collect while it sleeps, 50 µs unless set; see
    /// [`Idle::with_latency_budget`].
    pub latency_budget: Duration,
    /// Addresses of cards that are taken even if their kernel interface is in use.
    pub take_over: Vec<String>,
    /// CPUs that workers are pinned to, one after the other. Empty: the scheduler decides.
    pub cpu: Vec<usize>,
    /// How long a run lasts. `None`: until it is stopped.
    pub time: Option<Duration>,
    /// Packets after which workers stop: exactly where they ask [`Worker::allow`](crate::Worker::allow), else to the burst. `None`: any
    /// number.
    pub count: Option<u64>,
    /// Sandbox that the program will enter, by [`sandbox::enter`](crate::sandbox::enter), once all ports are open: ports prepare what
    /// they need in it. [`Workers`](crate::Workers) report a first worker that starts without it.
    pub sandbox: Sandbox,
    /// User that a process of root becomes in the sandbox.
    pub user: User,
    /// Command line that starts a connector: the helper process that connects to a socket on behalf of a sandboxed process. The
    /// socket's path is appended, and the program must call [`sandbox::run_connector`](crate::sandbox::run_connector) with it.
    /// Needed only in a sandbox, for ports that connect to a socket and so may have to connect again.
    pub connector: Option<Vec<OsString>>,
    /// Receiver of notices.
    pub notices: Notices,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            port: PortConfig::default(),
            room: 0,
            batch: 32,
            hugepages: None,
            poll: false,
            latency_budget: DEFAULT_LATENCY_BUDGET,
            take_over: Vec::new(),
            cpu: Vec::new(),
            time: None,
            count: None,
            sandbox: Sandbox::Off,
            user: User::NOBODY,
            connector: None,
            notices: Notices::default(),
        }
    }
}

impl Config {
    /// Returns the waiting half of a loop that waits as configured.
    pub fn idle(&self) -> Idle {
        Idle::new(self.poll).with_latency_budget(self.latency_budget)
    }
}

/// Checks that the numbers of a port's configuration are in their ranges.
pub(crate) fn check_ranges(port: &PortConfig) -> Result<(), Error> {
    let ring = |descriptors: usize| (64..=4096).contains(&descriptors) && descriptors.is_power_of_two();
    let wrong = if !(1..=64).contains(&port.queues) {
        "a port has 1 to 64 queue pairs"
    } else if !ring(port.rx_ring) || !ring(port.tx_ring) {
        "the descriptors of a ring are a power of two from 64 to 4096"
    } else if !(68..=9710).contains(&port.mtu) {
        "the MTU is from 68 to 9710 bytes"
    } else {
        return Ok(());
    };
    Err(Error::Config(wrong.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_before_anything_is_opened() {
        let wrong: [fn(&mut PortConfig); 7] = [
            |port| port.queues = 0,
            |port| port.queues = 65,
            |port| port.rx_ring = 32,
            |port| port.tx_ring = 8192,
            |port| port.tx_ring = 100,
            |port| port.mtu = 67,
            |port| port.mtu = 9711,
        ];
        for change in wrong {
            let mut config = Config::default();
            change(&mut config.port);
            let error = crate::open(["model:null"], &config).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains(" to ")), "{:?}", config.port);
        }
    }
}
