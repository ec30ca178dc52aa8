//! The command register in a device's configuration space (PCI Local Bus 3.0, 6.2.2).

/// Its offset; 16 bits.
pub(crate) const COMMAND: u64 = 4;

/// The device answers at its I/O ports.
pub(crate) const IO: u16 = 1 << 0;

/// The device answers at its BARs in memory.
pub(crate) const MEMORY: u16 = 1 << 1;

/// The device may start DMA and write its interrupts.
pub(crate) const BUS_MASTER: u16 = 1 << 2;

/// The device keeps its interrupt line down: nobody here would answer it, and other devices may share it.
pub(crate) const NO_LINE: u16 = 1 << 10;
