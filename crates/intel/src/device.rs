//! A card, as its port and its queues share it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ringpass_bus::Bus;
use ringpass_memory::Mempool;
use ringpass_port::{Error, PortConfig};
use ringpass_registers::{Readable, Reg, Window};

use crate::hang::Hang;
use crate::rx_offload::RxErrors;

/// What the port and its queues share. The card stops when the last of them is dropped.
pub struct Device {
    /// The card's registers.
    pub window: Window,
    /// How it is reached.
    pub bus: Arc<dyn Bus>,
    /// Frames that the queues dropped for what the card said of them.
    pub rx_faulty: AtomicU64,
    /// Frames that the queues dropped for their length.
    pub tx_refused: AtomicU64,
    /// Whether queues stand still.
    pub hang: Hang,
    pub(crate) rx_errors: RxErrors,
    stop: fn(&Window),
}

/// What all queues of a port are started with: the card, what is asked of the port, and where buffers come from.
pub type Setup<'a> = (&'a Arc<Device>, &'a PortConfig, &'a Mempool);

impl Device {
    /// A card on its bus. `stop` ends reception, once nobody uses it any more.
    pub fn new(bus: Arc<dyn Bus>, rx_errors: RxErrors, stop: fn(&Window)) -> Result<Arc<Self>, Error> {
        let (rx_faulty, tx_refused, hang) = Default::default();
        Ok(Arc::new(Self { window: bus.window()?, bus, rx_faulty, tx_refused, hang, rx_errors, stop }))
    }

    /// Waits for a reset, an enabled queue and the like.
    pub fn wait(&self, reg: Reg<impl Readable + Copy>, mask: u32, want: u32) -> Result<(), Error> {
        self.window.wait(reg, mask, want, Duration::from_secs(1)).map_err(|timeout| {
            Error::Other(format!("the card does not answer: {timeout}; reset it or power it off and on"))
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        (self.stop)(&self.window);
        let _ = self.bus.set_bus_master(false);
    }
}

/// Whether a card can do what is asked of its port. It has 1 to 16 queues.
pub fn check(config: &PortConfig, largest_mtu: usize) -> Result<(), Error> {
    let PortConfig { queues, rx_ring, tx_ring, mtu, .. } = *config;
    let ring = |size: usize| size.is_power_of_two() && (64..=4096).contains(&size);
    let ensure = |right, otherwise| if right { Ok(()) } else { Err(Error::Other(otherwise)) };
    let rings = format!("rings of {rx_ring} and {tx_ring} descriptors; take a power of two, 64 to 4096");
    ensure(ring(rx_ring) && ring(tx_ring), rings)?;
    ensure((1..=16).contains(&queues), format!("{queues} queues; the card has 1 to 16"))?;
    ensure((68..=largest_mtu).contains(&mtu), format!("an MTU of {mtu}; take 68 to {largest_mtu}"))
}
