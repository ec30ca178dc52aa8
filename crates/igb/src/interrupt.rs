//! A vector for each queue (sections 7.3 and 8.8).

use ringpass_bus::Bus;
use ringpass_intel::Interrupt;
use ringpass_port::Error;
use ringpass_registers::igb::{bits::*, *};

/// Least time between two interrupts of a queue, in steps of 1 µs from bit 2 on (8.8).
const THROTTLE: u32 = 20 << 2;

/// Section 7.3.2.11: vectors that clear their cause and mask themselves when they fire, and what that means for idle
/// queues. None where the bus has no interrupts. The mode comes first: it says what the other registers' bits are.
pub(crate) fn enable(bus: &dyn Bus, queues: usize) -> Result<(impl Iterator<Item = Interrupt>, &'static str), Error> {
    let (window, events) = (bus.window()?, bus.interrupts(queues)?);
    if !events.is_empty() {
        let vectors = (1 << queues) - 1;
        window.write(GPIE, GPIE_MSIX_MODE | GPIE_PBA_SUPPORT | GPIE_EIAME);
        window.write(EIAC, vectors);
        window.write(EIAM, vectors);
    }
    let (cause, unmask, mask) = (EICR, EIMS, EIMC);
    let waiting = Interrupt::note(events.len());
    let interrupts = events.into_iter().enumerate();
    let interrupts =
        interrupts.map(move |(vector, event)| Interrupt { window: window.clone(), vector, event, cause, unmask, mask });
    Ok((interrupts, waiting))
}

/// Directs a queue's cause to a vector, which stays masked (8.8.13: a register has Rx and Tx of a queue, then Rx and Tx of
/// the queue that is 8 further).
pub(crate) fn attach(interrupt: &Interrupt, queue: usize) {
    let Interrupt { window, vector, .. } = interrupt;
    let (register, shift) = (IVAR.at(queue % 8), queue / 8 * 16);
    window.clear(register, 0xff << shift);
    window.set(register, (*vector as u32 | IVAR_VALID) << shift);
    window.write(EITR.at(*vector), THROTTLE);
}
