//! What the card is told if it is to say more of a received frame than its bytes, or receives longer ones.

use ringpass_intel::RxErrors;
use ringpass_port::PortConfig;
use ringpass_registers::Window;
use ringpass_registers::ixgbe::{bits::*, descriptor::*, *};

/// Section 7.1.6.2.
pub(crate) const ERRORS: RxErrors = RxErrors { mac: RX_RXE, l3: RX_IPE, l4: RX_L4E };

/// The card as a whole.
pub(crate) fn enable(window: &Window, config: &PortConfig) {
    // 8.2.3.22.13: the longest frame with its CRC; the card adds 4 bytes for a VLAN tag by itself.
    if config.mtu > 1500 {
        window.write(MAXFRS, ((config.mtu + 18) << 16) as u32);
        window.set(HLREG0, HLREG0_JUMBOEN);
    }
    // 8.2.3.7.5: report the RSS hash rather than the checksum of fragments.
    if config.offloads.any() {
        window.set(RXCSUM, RXCSUM_PCSD | RXCSUM_IPPCSE);
    }
}

/// A queue that stands still.
pub(crate) fn enable_on(window: &Window, queue: usize, config: &PortConfig) {
    if config.offloads.vlan {
        window.set(RXDCTL.at(queue), RXDCTL_VME); // 8.2.3.8.6: the tag goes to the descriptor
    }
}
