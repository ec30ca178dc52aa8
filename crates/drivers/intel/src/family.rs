//! Differences between the families of cards: the registers of each, and the steps of its datasheet.

use ringpass_pci::PciDevice;
use ringpass_pci::registers::{DMA, RO, RW, Reg, RegArray, W1S, WO, Window};
use ringpass_port::{Error, Link, PortConfig, Rule, Stats};

use crate::device::{Device, RxErrors};

/// A family of cards. A value of the type is what the driver remembers of a card: sums of its counters, filters in
/// use.
///
/// [`IntelPort`](crate::IntelPort) calls these functions in their order here. They are no part of the packet path.
pub trait Family: Send + Sized {
    /// Members of the family, each with the PCI device ids of its cards.
    const MODELS: &'static [(&'static str, &'static [u16])];
    /// Largest MTU in bytes.
    const MAX_MTU: usize;
    /// Whether [`steer`](Self::steer) is implemented.
    const STEERS: bool;
    /// `true` if the card has counters for each queue.
    const COUNTS_QUEUES: bool;
    /// The registers that all families have.
    const REGISTERS: Registers;
    /// Error bits in the descriptors of received frames.
    const RX_ERRORS: RxErrors;

    /// Resets and initialises the card in the datasheet's order, up to the queues, which stay disabled.
    fn init(device: &Device, config: &PortConfig) -> Result<Self, Error>;

    /// Returns the card's number of a queue of the port.
    fn hw_queue(&self, queue: usize) -> usize {
        queue
    }

    /// Sets buffer size and thresholds of the disabled Rx queue `q`. Each of its buffers has `kib` KiB.
    fn set_up_rx(window: &Window, q: usize, kib: u32, config: &PortConfig);

    /// Returns the register that routes the interrupts of Rx queue `q` to a vector, and the position of its entry
    /// there.
    fn rx_route(q: usize) -> (Reg<RW>, u32);

    /// Sets the thresholds of the disabled Tx queue `q`.
    fn set_up_tx(window: &Window, q: usize);

    /// Enables reception, after the queues were started; empty where that comes before.
    fn enable_rx(_: &Window) {}

    /// Returns a further note on the card, to be printed at start. `ordinary` pages are those of 4 KiB.
    fn note(_bus: &dyn PciDevice, _ordinary: bool) -> Option<String> {
        None
    }

    /// Returns the state of the link.
    fn link(window: &Window) -> Link;

    /// Adds what the card has counted since the last call, in all and for each queue of the port where the card does so
    /// ([`COUNTS_QUEUES`](Self::COUNTS_QUEUES)). Its counters clear on read.
    fn count(&mut self, window: &Window, stats: &mut Stats, queues: &mut [Stats]);

    /// Returns counters beyond those of [`Stats`].
    fn extended(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Steers the frames that match a rule to a queue of the port.
    fn steer(&mut self, _window: &Window, _rule: &Rule, _queue: usize) -> Result<(), Error> {
        Err(Error::Unsupported("the driver of this card does not steer frames to queues".into()))
    }

    /// Stops the card. Called when port and queues are gone.
    fn stop(window: &Window);
}

/// The registers of all Rx queues, or of all Tx queues, in the datasheets' order.
pub struct RingRegisters {
    /// RDBAL and RDBAH, or TDBAL and TDBAH.
    pub(crate) base: [RegArray<DMA>; 2],
    /// RDLEN or TDLEN.
    pub(crate) len: RegArray<RW>,
    /// RDH or TDH.
    pub(crate) head: RegArray<RW>,
    /// RDT or TDT.
    pub(crate) tail: RegArray<RW>,
    /// RXDCTL or TXDCTL.
    pub(crate) control: RegArray<RW>,
}

/// Registers that all families have, at addresses of their own, and the values that differ. The names are those of
/// the datasheets.
pub struct Registers {
    /// STATUS, which reads as ones when the card is gone.
    pub(crate) status: Reg<RO>,
    /// RAL and RAH; a reset loads the first pair from the EEPROM.
    pub(crate) receive_address: [RegArray<RW>; 2],
    /// The register with the promiscuous modes, and their bits.
    pub(crate) promiscuous: (Reg<RW>, u32),
    /// Those of Rx queues.
    pub(crate) rx: RingRegisters,
    /// Those of Tx queues.
    pub(crate) tx: RingRegisters,
    /// TDWBAL and TDWBAH of each Tx queue.
    pub(crate) head_write_back: [RegArray<DMA>; 2],
    /// RSSRK, the key.
    pub(crate) rss_key: RegArray<RW>,
    /// RETA: the queue of each hash, four in a register.
    pub(crate) rss_queues: RegArray<RW>,
    /// MRQC, and its value for RSS over IPv4 and IPv6, TCP and UDP.
    pub(crate) rss_mode: (Reg<RW>, u32),
    /// GPIE, and its value for MSI-X with auto-mask.
    pub(crate) interrupt_mode: (Reg<RW>, u32),
    /// EIAC: the vectors that clear their cause.
    pub(crate) auto_clear: Reg<RW>,
    /// EIAM: the vectors that mask themselves.
    pub(crate) auto_mask: Reg<RW>,
    /// EIMS, which unmasks vectors.
    pub(crate) unmask: Reg<W1S>,
    /// EIMC, which masks vectors.
    pub(crate) mask: Reg<WO>,
    /// EITR of each vector, and its value.
    pub(crate) throttle: (RegArray<RW>, u32),
}
