//! Statistics registers (8.2.3.23). All of them clear on read, so the values are summed here.

use ringpass_port::Stats;
use ringpass_registers::Window;
use ringpass_registers::ixgbe::*;

/// Adds what the card has counted since the last call.
///
/// The 32-bit counters wrap after 288 s at line rate, so call this more often than that. Queue counters count what
/// reached memory, without the stripped CRC; `GOTC` includes the CRC that the card appends.
pub(crate) fn count(window: &Window, stats: &mut Stats) {
    let read = |reg| u64::from(window.read(reg));
    stats.rx_packets += read(QPRC.at(0));
    stats.rx_bytes += read(QBRC_L.at(0)) + (read(QBRC_H.at(0)) << 32);
    stats.rx_drops += (0..8).map(|buffer| read(MPC.at(buffer))).sum::<u64>() + read(QPRDC.at(0));
    stats.rx_drops += [CRCERRS, ILLERRC, ERRBC, RLEC, RUC, ROC].map(read).iter().sum::<u64>();
    let sent = read(GPTC);
    stats.tx_packets += sent;
    // Subtract the CRCs from the running sum, not from this reading: a frame sent between the two reads has
    // its octets in this reading and its count in the next.
    let octets = stats.tx_bytes + read(GOTCL) + (read(GOTCH) << 32);
    stats.tx_bytes = octets.saturating_sub(4 * sent);
}
