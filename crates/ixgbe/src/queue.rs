//! What the card is told of a pair of queues.

use ringpass_intel::{Interrupt, Memory, Ring, Rx, Setup, Tx};
use ringpass_port::{Error, Queues};
use ringpass_registers::ixgbe::{bits::*, *};

use crate::{head_write_back, interrupt, rx_offload};

/// Sections 4.6.7.1 and 4.6.8.1: base and length; buffer size and thresholds; enable.
pub(crate) fn start(q: usize, memory: Memory, setup: Setup, interrupt: Option<Interrupt>) -> Result<Queues, Error> {
    let ((device, config, pool), (rx, tx, head)) = (setup, memory);
    let rest = [RDLEN, RDH, RDT, RXDCTL].map(|registers| registers.at(q));
    // SAFETY: the registers of Rx queue `q`, which stands still; the memory is mapped for the card.
    let ring = unsafe { Ring::new(device, rx, [RDBAL.at(q), RDBAH.at(q)], rest) };
    // 8.2.3.8.7: buffers of so many KiB; a queue without descriptors drops rather than hold up the others.
    let kib = (pool.buffer_size() / 1024) as u32 & SRRCTL_BSIZEPACKET;
    device.window.write(SRRCTL.at(q), SRRCTL_DESCTYPE_ADV_ONEBUF | SRRCTL_DROP_EN | kib);
    rx_offload::enable_on(&device.window, q, config);
    interrupt.iter().for_each(|interrupt| interrupt::attach(interrupt, q));
    let rx = Box::new(Rx::start(ring, kib, setup, interrupt)?);

    let rest = [TDLEN, TDH, TDT, TXDCTL].map(|registers| registers.at(q));
    // SAFETY: likewise of Tx queue `q`.
    let ring = unsafe { Ring::new(device, tx, [TDBAL.at(q), TDBAH.at(q)], rest) };
    // SAFETY: the head lies in the same region as the ring, whose `drop` stops the queue before that goes.
    let head = head.map(|head| unsafe { head_write_back::start(&device.window, q, head) });
    // 8.2.3.9.10: prefetch at 36 and 8 descriptors; write back at once, as reports are rare already (WTHRESH 0).
    device.window.write(TXDCTL.at(q), 36 | 8 << 8);
    Ok(Queues { rx, tx: Box::new(Tx::start(ring, head, setup)?) })
}
