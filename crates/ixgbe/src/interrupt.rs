//! A vector for each queue (sections 4.6.6 and 8.2.3.5).

use ringpass_bus::Bus;
use ringpass_intel::Interrupt;
use ringpass_port::Error;
use ringpass_registers::ixgbe::{bits::*, *};

/// Least time between two interrupts of a queue (8.2.3.5.12): 10 steps of 2 µs.
const THROTTLE: u32 = 10 << 3;

/// Section 4.6.6: vectors that clear their cause and mask themselves when they fire, and what that means for idle queues.
/// None where the bus has no interrupts.
pub(crate) fn enable(bus: &dyn Bus, queues: usize) -> Result<(impl Iterator<Item = Interrupt>, &'static str), Error> {
    let (window, events) = (bus.window()?, bus.interrupts(queues)?);
    if !events.is_empty() {
        let vectors = (1 << queues) - 1;
        window.write(GPIE, GPIE_MSIX_MODE | GPIE_PBA_SUPPORT | GPIE_OCD | GPIE_EIAME);
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

/// Directs a queue's cause to a vector (8.2.3.5.16: four entries a register, those of Rx are even), which stays masked.
pub(crate) fn attach(interrupt: &Interrupt, queue: usize) {
    let Interrupt { window, vector, .. } = interrupt;
    let (register, shift) = (IVAR.at(queue / 2), queue % 2 * 16);
    window.clear(register, 0xff << shift);
    window.set(register, (*vector as u32 | IVAR_VALID) << shift);
    window.write(EITR.at(*vector), THROTTLE);
}
