//! Bits of the command register in a device's configuration space (PCI Local Bus 3.0, 6.2.2).

/// Offset of the command register; 16 bits.
pub(crate) const COMMAND: u64 = 4;

/// The device responds to accesses to its I/O ports.
pub(crate) const IO: u16 = 1 << 0;

/// The device responds to accesses to its memory BARs.
pub(crate) const MEMORY: u16 = 1 << 1;

/// The device may start DMA and send message-signalled interrupts.
pub(crate) const BUS_MASTER: u16 = 1 << 2;

/// The device does not assert its INTx line: no driver here would handle it, and other devices may share it.
pub(crate) const INTX_DISABLE: u16 = 1 << 10;
