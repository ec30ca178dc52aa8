//! What a card is.

use ringpass_memory::Addressing;
use ringpass_port::MacAddress;
use ringpass_virtio::features;

use super::device::LEGACY_FEATURES;
use super::lies::Lies;

/// Which interfaces a card has (4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// I/O ports in BAR 0, as before the first standard.
    Legacy,
    /// Both.
    Transitional,
    /// Structures in memory that capabilities point to.
    #[default]
    Modern,
}

/// What a [`VirtioCard`](super::VirtioCard) is.
#[derive(Clone, Copy, Debug)]
pub struct VirtioConfig {
    /// MAC address.
    pub mac: MacAddress,
    /// Interfaces.
    pub interface: Interface,
    /// Features that are offered, of [`ringpass_virtio::features`]. `VERSION_1` follows the interface.
    pub features: u64,
    /// Most pairs of queues; more than one takes the feature `MQ`.
    pub queue_pairs: u16,
    /// Most descriptors of a queue, and with the legacy interface their number.
    pub queue_size: u16,
    /// The largest MTU, as the feature `MTU` says it.
    pub mtu: u16,
    /// Addresses that the bus says the card uses.
    pub addressing: Addressing,
    /// What it lies about.
    pub lies: Lies,
}

impl VirtioConfig {
    /// What QEMU's card offers by default.
    pub const USUAL: u64 = features::CSUM
        | features::GUEST_CSUM
        | features::MAC
        | features::GUEST_TSO4
        | features::GUEST_TSO6
        | features::GUEST_ECN
        | features::HOST_TSO4
        | features::HOST_TSO6
        | features::HOST_ECN
        | features::MRG_RXBUF
        | features::STATUS
        | features::CTRL_VQ
        | features::CTRL_RX
        | features::CTRL_VLAN
        | features::CTRL_RX_EXTRA
        | features::CTRL_MAC_ADDR
        | features::ANY_LAYOUT
        | features::INDIRECT_DESC
        | features::EVENT_IDX
        | features::ACCESS_PLATFORM
        | features::RING_RESET;

    /// Queues of the card.
    pub(super) fn queues(&self) -> usize {
        2 * usize::from(self.queue_pairs) + usize::from(self.features & features::CTRL_VQ != 0)
    }

    /// MSI-X vectors: one for each queue, one for changes of the configuration.
    pub(super) fn vectors(&self) -> usize {
        self.queues() + 1
    }

    pub(super) fn offered(&self) -> u64 {
        match self.interface {
            Interface::Legacy => self.features & LEGACY_FEATURES,
            Interface::Transitional | Interface::Modern => self.features | features::VERSION_1,
        }
    }
}

impl Default for VirtioConfig {
    fn default() -> Self {
        Self {
            mac: MacAddress([0x02, 0x1a, 0xf4, 0x10, 0x41, 1]),
            interface: Interface::Modern,
            features: Self::USUAL,
            queue_pairs: 1,
            queue_size: 256,
            mtu: 1500,
            addressing: Addressing::Virtual,
            lies: Lies::default(),
        }
    }
}
