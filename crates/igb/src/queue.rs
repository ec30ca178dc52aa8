//! What the card is told of a pair of queues.

use ringpass_intel::{Interrupt, Memory, Ring, Rx, Setup, Tx, WrittenHead};
use ringpass_port::{Error, Queues};
use ringpass_registers::igb::{bits::*, *};

use crate::interrupt;

/// Sections 4.5.9.2 and 4.5.10: base and length; buffer size and thresholds; enable.
pub(crate) fn start(q: usize, memory: Memory, setup: Setup, interrupt: Option<Interrupt>) -> Result<Queues, Error> {
    let ((device, _, pool), (rx, tx, head)) = (setup, memory);
    let window = &device.window;
    let rest = [RDLEN, RDH, RDT, RXDCTL].map(|registers| registers.at(q));
    // SAFETY: the registers of Rx queue `q`, which stands still; the memory is mapped for the card.
    let ring = unsafe { Ring::new(device, rx, [RDBAL.at(q), RDBAH.at(q)], rest) };
    // 8.10.2: buffers of so many KiB; a queue without descriptors drops rather than hold up the others.
    let kib = (pool.buffer_size() / 1024) as u32 & SRRCTL_BSIZEPACKET;
    window.write(SRRCTL.at(q), SRRCTL_DESCTYPE_ADV_ONEBUF | SRRCTL_DROP_EN | kib);
    // 8.10.10: prefetch at 8 and 8 descriptors; write back each at once.
    window.write(RXDCTL.at(q), 8 | 8 << 8 | 1 << 16);
    interrupt.iter().for_each(|interrupt| interrupt::attach(interrupt, q));
    let rx = Box::new(Rx::start(ring, kib, setup, interrupt)?);

    let rest = [TDLEN, TDH, TDT, TXDCTL].map(|registers| registers.at(q));
    // SAFETY: likewise of Tx queue `q`.
    let ring = unsafe { Ring::new(device, tx, [TDBAL.at(q), TDBAH.at(q)], rest) };
    // SAFETY: the registers for that; the head lies in the same region as the ring, whose `drop` stops the queue before
    // that goes.
    let head = head.map(|head| unsafe { WrittenHead::start(window, [TDWBAL.at(q), TDWBAH.at(q)], head) });
    // 8.12.13: prefetch at 8 and 1 descriptors; write back at once, as reports are rare already (WTHRESH 0).
    window.write(TXDCTL.at(q), 8 | 1 << 8);
    Ok(Queues { rx, tx: Box::new(Tx::start(ring, head, setup)?) })
}
