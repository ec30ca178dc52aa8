//! What the card is told if it is to say more of a received frame than its bytes, or receives longer ones.

use ringpass_intel::{OVERHEAD, RxErrors};
use ringpass_port::PortConfig;
use ringpass_registers::Window;
use ringpass_registers::igb::{bits::*, descriptor::*, *};

/// Section 7.1.5.2.
pub(crate) const ERRORS: RxErrors = RxErrors { mac: RX_RXE, l3: RX_IPE, l4: RX_L4E };

/// The longest frame that the card is to receive; what it is to say of frames; tags.
pub(crate) fn enable(window: &Window, config: &PortConfig) {
    // 8.10: a length that has the CRC, and the VLAN tag too.
    if config.mtu > 1500 {
        window.write(RLPML, (config.mtu + OVERHEAD + 4) as u32);
        window.set(RCTL, RCTL_LPE);
    }
    // SCTP's checksum is left out: the card gets it wrong for the shortest frames (Linux's igb, `igb_rx_checksum`). RSS
    // needs the hash in the place of a checksum.
    window.write(RXCSUM, RXCSUM_IPOFLD | RXCSUM_TUOFLD | RXCSUM_PCSD);
    if config.offloads.vlan {
        window.set(CTRL, CTRL_VME);
    }
}
