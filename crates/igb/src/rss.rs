//! Several queues: which one a frame goes to.

use ringpass_registers::Window;
use ringpass_registers::igb::{bits::*, *};

/// Section 7.1.1.7: frames are spread over the queues by a hash of their addresses and ports. The repeating key (Woo and
/// Park, 2012) gives both directions of a flow the same hash.
pub(crate) fn spread(window: &Window, queues: usize) {
    (0..10).for_each(|i| window.write(RSSRK.at(i), 0x5a6d_5a6d));
    for i in 0..32 {
        let entries = std::array::from_fn(|byte| ((i * 4 + byte) % queues) as u8);
        window.write(RETA.at(i), u32::from_le_bytes(entries));
    }
    let ipv4 = MRQC_RSS_IPV4 | MRQC_RSS_TCP_IPV4 | MRQC_RSS_UDP_IPV4;
    let ipv6 = MRQC_RSS_IPV6 | MRQC_RSS_TCP_IPV6 | MRQC_RSS_UDP_IPV6;
    window.write(MRQC, MRQC_RSS | ipv4 | ipv6);
}
