//! Interrupts: MSI-X vectors, or the ISR register without them (4.1.4.5).

use ringpass_ipc::EventNotifier;

/// The value that stands for no vector (4.1.5.1.2).
pub(super) const NO_VECTOR: u16 = 0xffff;

const ISR_QUEUE: u8 = 1;
const ISR_CONFIG: u8 = 2;

pub(super) struct Interrupts {
    vectors: Box<[Option<EventNotifier>]>,
    isr: u8,
    /// Vector of configuration changes.
    pub(super) config_vector: u16,
}

impl Interrupts {
    pub(super) fn new(vectors: usize) -> Self {
        Self { vectors: (0..vectors).map(|_| None).collect(), isr: 0, config_vector: NO_VECTOR }
    }

    /// Returns whether MSI-X is in use: at least one vector has an event.
    pub(super) fn msix(&self) -> bool {
        self.vectors.iter().any(Option::is_some)
    }

    pub(super) fn set_vector(&mut self, vector: usize, event: Option<EventNotifier>) {
        self.vectors[vector] = event;
    }

    /// Returns what a vector register reads after a write: the vector, or [`NO_VECTOR`] if the device has no
    /// such vector.
    pub(super) fn accept(&self, vector: u16) -> u16 {
        if usize::from(vector) < self.vectors.len() { vector } else { NO_VECTOR }
    }

    /// Sends the interrupt of a queue.
    pub(super) fn queue(&mut self, vector: u16) {
        self.fire(vector, ISR_QUEUE);
    }

    /// Sends the interrupt for a configuration change.
    pub(super) fn config(&mut self) {
        self.fire(self.config_vector, ISR_CONFIG);
    }

    fn fire(&mut self, vector: u16, isr: u8) {
        if !self.msix() {
            self.isr |= isr;
        } else if let Some(Some(event)) = self.vectors.get(usize::from(vector)) {
            event.notify();
        }
    }

    pub(super) fn storm(&mut self) {
        (0..self.vectors.len() as u16).for_each(|vector| self.fire(vector, ISR_QUEUE));
    }

    /// Reads the ISR register, which clears it.
    pub(super) fn take_isr(&mut self) -> u8 {
        std::mem::take(&mut self.isr)
    }

    pub(super) fn reset(&mut self) {
        (self.isr, self.config_vector) = (0, NO_VECTOR);
    }
}
