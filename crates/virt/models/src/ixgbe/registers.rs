//! Side effects of register reads and writes.

use std::sync::atomic::Ordering;

use ringpass_pci::registers::ixgbe::{bits::*, *};
use ringpass_pci::registers::{AccessKind, RegIndex};

use super::bits::*;
use super::decode::Settings;
use super::device::Device;
use super::doorbells::Doorbells;
use super::interrupts::Interrupts;
use super::tx::head_write_back;

/// Second addresses of registers, for drivers of older NICs (8.2.3): start, count and stride of the alias,
/// start and stride of the register.
pub(super) const ALIASES: [(u32, u32, u32, u32, u32); 9] = [
    (CTRL.offset + 4, 1, 4, CTRL.offset, 4),
    (0x02100, 16, 4, SRRCTL.at(0).offset, 0x40),
    (0x02200, 16, 4, DCA_RXCTRL.at(0).offset, 0x40),
    (0x05400, 16 * 2, 4, RAL.at(0).offset, 4),
    (0x05480, 16, 4, PSRTYPE.at(0).offset, 4),
    (0x05818, 1, 4, MRQC.offset, 4),
    (0x05C00, 32, 4, RETA.at(0).offset, 4),
    (0x06030, 16, 0x40, QPTC.at(0).offset, 4),
    (0x05C80, 10, 4, RSSRK.at(0).offset, 4),
];

/// Implemented bits of a tail register (8.2.3.8.5, 8.2.3.9.9).
pub(super) const TAIL: u32 = 0xffff;

/// Returns the address that a register has in the table, given that or an alias.
pub(super) fn canonical(offset: u32) -> u32 {
    let alias = ALIASES.iter().find_map(|&(start, count, stride, here, here_stride)| {
        let distance = offset.checked_sub(start)?;
        (distance.is_multiple_of(stride) && distance / stride < count).then_some(here + distance / stride * here_stride)
    });
    alias.unwrap_or(offset)
}

impl Device {
    /// Carries out a driver's read.
    pub(super) fn read(&mut self, offset: u32, doorbells: &Doorbells) -> u32 {
        let offset = canonical(offset);
        if let Some(cell) = doorbells.at(offset) {
            return cell.load(Ordering::Acquire);
        }
        let Some(RegIndex { row, index }) = self.registers.find(offset) else { return 0 };
        let id = Id::ALL[row];
        if let Some(value) = self.interrupts.read(id, index, &self.registers) {
            return value;
        }
        if let Some(value) = self.state(id, index) {
            return value;
        }
        match id {
            // Reading the semaphore as free acquires it (8.2.3.4.11, 10.5.4).
            Id::SWSM => {
                let value = self.registers.get(offset);
                self.registers.set(offset, value | SWSM_SMBI);
                value
            }
            _ => self.registers.read(offset),
        }
    }

    /// Returns the value of a register without the side effects of a read, for a driver whose reads nobody sees. EICR is 0.
    pub(super) fn peek(&self, offset: u32) -> u32 {
        let Some(RegIndex { row, index }) = self.registers.find(offset) else { return 0 };
        let id = Id::ALL[row];
        if let Some(value) = self.interrupts.peek(id, index) {
            return value;
        }
        match id {
            Id::EICR => 0,
            _ if TABLE[row].kind == AccessKind::WO => 0,
            _ => self.state(id, index).unwrap_or_else(|| self.registers.get(offset)),
        }
    }

    /// Returns the value of a register that shows the NIC's present state; `None` if it keeps its value.
    fn state(&self, id: Id, index: usize) -> Option<u32> {
        Some(match id {
            Id::RDH => self.rx[index].head as u32,
            Id::TDH => self.tx[index].head as u32,
            Id::STATUS => self.status(),
            Id::LINKS => self.links(),
            Id::LINKS2 => self.links2(),
            Id::ANLP1 => self.partner(),
            Id::ESDP => self.pins(),
            Id::I2CCTL => self.i2c(),
            Id::EEC => self.registers.get(EEC.offset) | self.spi.read(),
            _ => return None,
        })
    }

    /// Carries out a driver's write.
    pub(super) fn write(&mut self, offset: u32, value: u32, doorbells: &Doorbells) {
        let offset = canonical(offset);
        if let Some(cell) = doorbells.at(offset) {
            return cell.store(value & TAIL, Ordering::Release);
        }
        let Some(RegIndex { row, index }) = self.registers.find(offset) else { return };
        if let Some(trace) = &mut self.trace {
            trace.wrote(RegIndex { row, index }, value);
        }
        let id = Id::ALL[row];
        self.interrupts.resolve_vectors(id, &self.registers);
        let before = self.registers.get(offset);
        self.registers.write(offset, value);
        match id {
            // Link reset also resets the whole NIC, except for what came from the EEPROM (4.2.1).
            Id::CTRL if value & (CTRL_RST | CTRL_LRST) != 0 => self.reset(doorbells),
            Id::RDRXCTL => self.keep(offset, before, RDRXCTL_DMAIDONE),
            Id::EERD => self.registers.set(offset, self.eeprom.read(value)),
            Id::I2CCTL => self.set_i2c(value),
            Id::EEC => self.spi.write(self.registers.get(offset), &self.eeprom),
            Id::MSCA => self.mdio(value),
            Id::FDIRCTRL => self.director.start(value, &mut self.registers),
            Id::FDIRCMD => self.director.command(value, &mut self.registers),
            Id::RXDCTL => match (before & RXDCTL_ENABLE != 0, value & RXDCTL_ENABLE != 0) {
                (false, true) => self.enable_rx(index),
                (true, false) => {
                    self.rx[index].disable();
                    self.rx_enabled &= !(1 << index);
                }
                _ => {}
            },
            Id::TXDCTL => match (before & TXDCTL_ENABLE != 0, value & TXDCTL_ENABLE != 0) {
                (false, true) => self.enable_tx(index),
                (true, false) => {
                    self.tx[index].disable();
                    self.tx_enabled &= !(1 << index);
                }
                _ => {}
            },
            _ if Interrupts::is_interrupt_register(id) => self.interrupts.write(id, index, value, &self.registers),
            _ => {}
        }
        if matches!(id, Id::SRRCTL | Id::RXDCTL) {
            self.configure_rx_queue(index);
        }
        self.stale |= Settings::depend_on(id);
    }

    /// Restores read-only bits of a register that was written.
    fn keep(&mut self, offset: u32, before: u32, bits: u32) {
        self.registers.set(offset, self.registers.get(offset) & !bits | before & bits);
    }

    fn enable_rx(&mut self, queue: usize) {
        let ring = self.rx_ring(queue);
        self.counters.dma_faults += u64::from(ring.is_none());
        self.rx[queue].enable(ring);
        self.rx_enabled |= 1 << queue;
    }

    fn enable_tx(&mut self, queue: usize) {
        let get = |offset| self.registers.get(offset);
        let write_back = head_write_back(get(TDWBAL.at(queue).offset), get(TDWBAH.at(queue).offset));
        let ring = self.tx_ring(queue);
        self.counters.dma_faults += u64::from(ring.is_none());
        self.tx[queue].enable(ring, write_back);
        self.tx_enabled |= 1 << queue;
    }
}
