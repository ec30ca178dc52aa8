//! The card, as shared by its port and its queues.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ringpass_memory::Mempool;
use ringpass_pci::PciDevice;
use ringpass_pci::registers::{Readable, Reg, Window};
use ringpass_port::{Error, HangFlags, PortConfig};

/// Error bits in the status of a written-back descriptor.
#[derive(Clone, Copy)]
pub struct RxErrors {
    /// MAC errors (RXE): CRC, symbol or length.
    pub(crate) mac: u64,
    /// Wrong checksum of the IPv4 header (IPE).
    pub(crate) l3: u64,
    /// Wrong checksum of TCP, UDP or SCTP (L4E).
    pub(crate) l4: u64,
}

/// State shared by a port and its queues. The card is stopped when the last owner is dropped.
pub struct Device {
    /// The card's registers.
    pub(crate) window: Window,
    /// The bus that the card is on.
    pub(crate) bus: Arc<dyn PciDevice>,
    /// Received frames that queues dropped because of the length or the errors that the card reported.
    pub(crate) rx_faulty: AtomicU64,
    /// Frames that queues refused to send because of their length or an invalid offload request.
    pub(crate) tx_refused: AtomicU64,
    /// Hang reports of the queues.
    pub(crate) hang: HangFlags,
    pub(crate) rx_errors: RxErrors,
    stop: fn(&Window),
}

/// Arguments that all queues of a port are started with.
#[derive(Clone, Copy)]
pub(crate) struct QueueContext<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) config: &'a PortConfig,
    /// Pool of the buffers to receive into.
    pub(crate) pool: &'a Mempool,
}

impl Device {
    /// Opens the card's registers. `stop` ends reception; it is called when the last owner drops the device.
    pub(crate) fn new(bus: Arc<dyn PciDevice>, rx_errors: RxErrors, stop: fn(&Window)) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            window: bus.window()?,
            bus,
            rx_faulty: Default::default(),
            tx_refused: Default::default(),
            hang: Default::default(),
            rx_errors,
            stop,
        }))
    }

    /// Polls a register for up to 1 s until the bits in `mask` equal `want`; an error if they do not.
    pub(crate) fn wait(&self, reg: Reg<impl Readable + Copy>, mask: u32, want: u32) -> Result<(), Error> {
        self.window.wait(reg, mask, want, Duration::from_secs(1)).map_err(|timeout| {
            Error::Gone(format!("the card does not answer: {timeout}; reset it or power it off and on"))
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        (self.stop)(&self.window);
        let _ = self.bus.set_bus_master(false);
    }
}
