//! Kinds of ports.

use ringpass_pci::registers::ixgbe::bits::*;

use super::bits::*;

/// Kind of the NIC's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// An SFP+ cage with a module in it.
    Fiber,
    /// A backplane, with auto-negotiation.
    Backplane,
    /// Twisted pair, with a PHY.
    Copper,
}

impl Media {
    /// Returns the kind of port of a NIC with this PCI device id.
    pub(super) fn of(device: u16) -> Self {
        match device {
            0x10f7 | 0x10f8 | 0x10f9 | 0x10fc | 0x1514 | 0x1517 | 0x152a => Self::Backplane,
            0x1528 | 0x1560 | 0x1563 | 0x15d1 | 0x151c => Self::Copper,
            _ => Self::Fiber,
        }
    }

    /// Returns AUTOC's link mode as the EEPROM sets it (8.2.3.22.19).
    pub(super) fn link_mode(self) -> u32 {
        match self {
            Self::Fiber => AUTOC_LMS_10G_SERIAL,
            Self::Backplane | Self::Copper => AUTOC_LMS_KX4_KX_KR,
        }
    }
}
