//! Configuration of a device.

use ringpass_memory::Addressing;
use ringpass_port::MacAddress;
use ringpass_virtio::features;

use super::lies::Lies;

/// Features that the legacy interface can offer (2.2.2): the lower 32 bits.
pub(super) const LEGACY_FEATURES: u64 = 0xffff_ffff;

/// Interfaces that a device offers (4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// Only the legacy interface of virtio 0.9: I/O ports in BAR 0.
    Legacy,
    /// Both interfaces.
    Transitional,
    /// Only the modern interface: structures in memory, located by PCI capabilities.
    #[default]
    Modern,
}

/// Configuration of a [`VirtioCard`](super::VirtioCard).
#[derive(Clone, Copy, Debug)]
pub struct VirtioConfig {
    /// MAC address.
    pub mac: MacAddress,
    /// Interfaces.
    pub interface: Interface,
    /// Offered features, bits of [`ringpass_virtio::features`]. `VERSION_1` is added according to the
    /// interface.
    pub features: u64,
    /// Largest number of queue pairs, 1 to 256. A driver needs the feature `MQ` to use more than one.
    pub queue_pairs: u16,
    /// Largest number of descriptors of a queue. With the legacy interface every queue has this size.
    pub queue_size: u16,
    /// Largest MTU in bytes, as the feature `MTU` reports it.
    pub mtu: u16,
    /// Kind of DMA addresses that the device reports to use.
    pub addressing: Addressing,
    /// Lies that the device tells.
    pub lies: Lies,
}

impl VirtioConfig {
    /// Features that QEMU's device offers by default.
    pub const DEFAULT_FEATURES: u64 = features::CSUM
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

    /// Returns the number of queues, including the control queue.
    pub(super) fn queues(&self) -> usize {
        2 * usize::from(self.queue_pairs) + usize::from(self.features & features::CTRL_VQ != 0)
    }

    /// Returns the number of MSI-X vectors: one for each queue, and one for configuration changes.
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
            features: Self::DEFAULT_FEATURES,
            queue_pairs: 1,
            queue_size: 256,
            mtu: 1500,
            addressing: Addressing::Virtual,
            lies: Lies::default(),
        }
    }
}
