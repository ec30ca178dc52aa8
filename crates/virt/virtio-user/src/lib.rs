//! The vhost-user front-end: a virtio network device for programs and containers, implemented by another process.
//!
//! The driver is the one for PCI devices; only the transport differs. Rings and packets lie in memory files, which
//! the front-end passes to the back-end over a Unix socket. No privilege is needed. When a back-end dies, another
//! one can take its place.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod device;
mod event;
mod reconnect_thread;
mod session;
mod source;
mod stoppable_thread;
mod transport;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::Mempool;
use ringpass_pci::PciDevice;
use ringpass_port::{Error, Port, PortConfig, PortDecorator, QueuePair, State, VirtioUserConfig};
use ringpass_virtio_net::VirtioNet;

use device::UserDevice;
use transport::Backend;

/// A port over a virtio network device that a vhost-user back-end implements.
pub struct VirtioUser {
    driver: VirtioNet,
    device: Arc<UserDevice>,
}

impl VirtioUser {
    /// Connects to a back-end and brings its device up. As a client, this requires that the back-end is already
    /// listening; as a server, it waits up to 10 s for the back-end to connect.
    ///
    /// Received packets belong to `pool`. Packets to be sent must belong to it, too, because the back-end is given
    /// no other memory.
    pub fn open(name: &str, config: &VirtioUserConfig, port: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let port = PortConfig { queues: config.queues.unwrap_or(port.queues), ..*port };
        let device = UserDevice::open(name, config, &port).map_err(|error| error.of(name))?;
        let bus: Arc<dyn PciDevice> = device.clone();
        let driver = VirtioNet::open_over(Box::new(Backend::new(&device)), bus, name, &port, pool);
        // A failure of the session is the cause of the driver's error.
        match device.failure() {
            Some(why) => Err(Error::Gone(why.clone()).of(name)),
            None => Ok(Self { driver: driver?, device }),
        }
    }
}

impl PortDecorator for VirtioUser {
    fn inner(&self) -> &dyn Port {
        &self.driver
    }

    fn inner_mut(&mut self) -> &mut dyn Port {
        &mut self.driver
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        let mut all = self.driver.extended();
        all.push(("reconnects", self.device.reconnects.load(Relaxed)));
        all
    }

    fn state(&mut self) -> State {
        match self.device.failure() {
            Some(why) => State::Gone(format!("{}: {why}", self.driver.name())),
            None => self.driver.state(),
        }
    }

    /// Takes the queues and starts the reconnect thread: from now on another back-end can replace one that dies.
    /// The thread is not started earlier because it must run without privileges.
    fn take_queues(&mut self) -> Vec<QueuePair> {
        reconnect_thread::start(&self.device);
        self.driver.take_queues()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.driver.notes();
        notes.push(self.device.note());
        notes
    }
}
