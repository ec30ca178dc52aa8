//! Receive side scaling (RSS): spreading frames over several queues.

use ringpass_pci::registers::Window;

use crate::family::Registers;

/// Spreads frames over the queues by a hash of their addresses and ports (82599: 7.1.2.8, 82576: 7.1.1.7). The
/// repeating key (Woo and Park, 2012) gives both directions of a flow the same hash.
pub(crate) fn spread(window: &Window, registers: &Registers, queues: usize) {
    (0..10).for_each(|i| window.write(registers.rss_key.at(i), 0x5a6d_5a6d));
    for i in 0..32 {
        let entries = std::array::from_fn(|byte| ((i * 4 + byte) % queues) as u8);
        window.write(registers.rss_queues.at(i), u32::from_le_bytes(entries));
    }
    let (mrqc, mode) = registers.rss_mode;
    window.write(mrqc, mode);
}
