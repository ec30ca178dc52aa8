//! Frames as the cards take them: limits of their length, and the command that sends one.

use ringpass_pci::registers::ixgbe::descriptor::{TX_DEXT, TX_DTYP_DATA, TX_EOP, TX_IFCS};

/// Length of an Ethernet header in bytes. Shorter frames have no EtherType and count as faulty.
pub(crate) const ETHERNET_HEADER: usize = 14;
/// Bytes of a frame beyond its payload: Ethernet header and one VLAN tag.
pub(crate) const OVERHEAD: usize = 18;
/// Shortest frame in bytes that may be given to the card, which pads longer ones to the Ethernet minimum.
pub(crate) const MIN_FRAME: usize = 17;
/// Command bits of each data descriptor. The card appends the CRC.
pub(crate) const SEND: u64 = TX_DTYP_DATA | TX_IFCS | TX_DEXT;
/// Command bits of a frame in one buffer.
pub(crate) const SEND_WHOLE: u64 = SEND | TX_EOP;

/// Conditions for a good received frame in one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Good {
    /// Error bits that a good frame's status does not have.
    pub(crate) errors: u64,
    /// Largest valid length of a frame, in bytes without the Ethernet header: limited by the MTU and by what a buffer
    /// holds.
    pub(crate) longest: usize,
}
