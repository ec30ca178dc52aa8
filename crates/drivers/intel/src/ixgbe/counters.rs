//! Statistics registers (8.2.3.23). All of them clear on read, so the values are summed here.

use ringpass_pci::registers::Window;
use ringpass_pci::registers::ixgbe::*;
use ringpass_port::Stats;

/// Gives each of the port's queues, at most 16, counters of its own, and clears them (4.6.5: by reading).
pub(crate) fn start(window: &Window, hw_queues: impl Iterator<Item = usize>) {
    let mut queues = Vec::new();
    for (counter, q) in hw_queues.enumerate() {
        // 8.2.3.23.71, 8.2.3.23.73: four queues in a register.
        let entry = (counter as u32) << (q % 4 * 8);
        window.set(RQSMR.at(q / 4), entry);
        window.set(TQSM.at(q / 4), entry);
        queues.push(Stats::default());
    }
    count(window, &mut Stats::default(), &mut queues);
}

/// Adds what the card has counted since the last call, in all and for each queue.
///
/// The 32-bit counters wrap after 288 s at line rate, so call this more often than that. Queue counters count what
/// reached memory, without the stripped CRC; `GOTC` includes the CRC that the card appends.
pub(crate) fn count(window: &Window, stats: &mut Stats, queues: &mut [Stats]) {
    let read = |reg| u64::from(window.read(reg));
    for (counter, queue) in queues.iter_mut().enumerate() {
        let packets = read(QPRC.at(counter));
        let bytes = read(QBRC_L.at(counter)) + (read(QBRC_H.at(counter)) << 32);
        let drops = read(QPRDC.at(counter));
        for sum in [&mut *queue, &mut *stats] {
            sum.rx_packets += packets;
            sum.rx_bytes += bytes;
            sum.rx_drops += drops;
        }
        queue.tx_packets += read(QPTC.at(counter));
        queue.tx_bytes += read(QBTC_L.at(counter)) + (read(QBTC_H.at(counter)) << 32);
    }
    stats.rx_drops += (0..8).map(|buffer| read(MPC.at(buffer))).sum::<u64>();
    stats.rx_drops += [CRCERRS, ILLERRC, ERRBC, RLEC, RUC, ROC].map(read).iter().sum::<u64>();
    let sent = read(GPTC);
    stats.tx_packets += sent;
    // Subtract the CRCs from the running sum, not from this reading: a frame sent between the two reads has
    // its octets in this reading and its count in the next.
    let octets = stats.tx_bytes + read(GOTCL) + (read(GOTCH) << 32);
    stats.tx_bytes = octets.saturating_sub(4 * sent);
}
