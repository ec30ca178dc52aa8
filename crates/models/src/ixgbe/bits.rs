//! Bits that only a model needs, in addition to those that drivers use.

/// CTRL (8.2.3.1.1): PCIe master disable.
pub(super) const CTRL_MASTER_DISABLE: u32 = 1 << 2;
/// STATUS (8.2.3.1.2): link up.
pub(super) const STATUS_LINK_UP: u32 = 1 << 7;
/// STATUS: PCIe master enable status.
pub(super) const STATUS_MASTER_ENABLE: u32 = 1 << 19;
/// EICR (8.2.3.5.1): link status change.
pub(super) const EICR_LSC: u32 = 1 << 20;
/// EERD (8.2.3.2.2): address of the word.
pub(super) const EERD_ADDRESS_SHIFT: u32 = 2;
/// EERD: the word read.
pub(super) const EERD_DATA_SHIFT: u32 = 16;
/// HLREG0 (8.2.3.22.8): report frames whose length field does not fit.
pub(super) const HLREG0_RXLNGTHERREN: u32 = 1 << 27;
/// MCSTCTRL (8.2.3.7.3): which bits of the address are hashed.
pub(super) const MCSTCTRL_MO_MASK: u32 = 0b11;
/// VLNCTRL (8.2.3.7.2): value that the CFI bit must have.
pub(super) const VLNCTRL_CFI: u32 = 1 << 28;
/// VLNCTRL: check the CFI bit.
pub(super) const VLNCTRL_CFIEN: u32 = 1 << 29;
/// VLNCTRL: VLAN filter enable.
pub(super) const VLNCTRL_VFE: u32 = 1 << 30;
/// RXCSUM (8.2.3.7.5): the RSS hash is reported, not the fragment checksum.
pub(super) const RXCSUM_PCSD: u32 = 1 << 13;
/// MRQC (8.2.3.7.12): multiple queues mode.
pub(super) const MRQC_MRQE_MASK: u32 = 0xf;
/// SRRCTL (8.2.3.8.7): kind of descriptor.
pub(super) const SRRCTL_DESCTYPE_MASK: u32 = 0b111 << 25;
/// RXPBSIZE (8.2.3.8.9): size in KiB.
pub(super) const RXPBSIZE_SHIFT: u32 = 10;

/// Rx write-back (7.1.6.2): the address passed the multicast hash only.
pub(super) const RX_PIF: u64 = 1 << 7;
/// Tx (7.2.3.2.4): type of the descriptor.
pub(super) const TX_DTYP_MASK: u64 = 0b1111 << 20;
/// Tx: a context for offloads (7.2.3.2.3).
pub(super) const TX_DTYP_CONTEXT: u64 = 0b0010 << 20;
/// Tx: insert a VLAN tag.
pub(super) const TX_VLE: u64 = 1 << 30;
/// Tx: segment a TCP stream.
pub(super) const TX_TSE: u64 = 1 << 31;
