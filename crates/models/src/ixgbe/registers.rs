//! What reading and writing registers does beyond keeping values.

use std::sync::atomic::Ordering;

use ringpass_registers::Access;
use ringpass_registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::decode::{Settings, ring_base, ring_len};
use super::device::Device;
use super::doorbells::Doorbells;
use super::tx::head_write_back;

/// Registers that are reached at a second address too, for drivers of older cards (8.2.3): start, count, stride there,
/// start and stride here.
const ALIASES: [(u32, u32, u32, u32, u32); 6] = [
    (CTRL.offset + 4, 1, 4, CTRL.offset, 4),
    (0x02100, 16, 4, SRRCTL.at(0).offset, 0x40),
    (0x05400, 16 * 2, 4, RAL.at(0).offset, 4),
    (0x05818, 1, 4, MRQC.offset, 4),
    (0x05C00, 32, 4, RETA.at(0).offset, 4),
    (0x05C80, 10, 4, RSSRK.at(0).offset, 4),
];

/// The address that a register has in the table.
fn canonical(offset: u32) -> u32 {
    let alias = ALIASES.iter().find_map(|&(start, count, stride, here, here_stride)| {
        let index = offset.checked_sub(start)? / stride;
        (offset.is_multiple_of(4) && index < count).then_some(here + index * here_stride)
    });
    alias.unwrap_or(offset)
}

impl Device {
    /// A driver's read.
    pub(super) fn read(&mut self, offset: u32, doorbells: &Doorbells) -> u32 {
        let offset = canonical(offset);
        if let Some(cell) = doorbells.at(offset) {
            return cell.load(Ordering::Acquire);
        }
        let Some(Access { row, index }) = self.registers.find(offset) else { return 0 };
        match Id::ALL[row] {
            Id::RDH => self.rx[index].head as u32,
            Id::TDH => self.tx[index].head as u32,
            Id::STATUS => self.status(),
            Id::LINKS => self.links(),
            // Cleared on read, because GPIE.OCD is 0 (8.2.3.5.1).
            Id::EICR => {
                let causes = self.registers.get(offset);
                self.registers.set(offset, 0);
                causes
            }
            _ => self.registers.read(offset),
        }
    }

    /// A driver's write.
    pub(super) fn write(&mut self, offset: u32, value: u32, doorbells: &Doorbells) {
        let offset = canonical(offset);
        if let Some(cell) = doorbells.at(offset) {
            return cell.store(value, Ordering::Release);
        }
        let Some(Access { row, index }) = self.registers.find(offset) else { return };
        let before = self.registers.get(offset);
        self.registers.write(offset, value);
        let id = Id::ALL[row];
        match id {
            // Link reset resets the whole card too, but for what the EEPROM gave (4.2.1).
            Id::CTRL if value & (CTRL_RST | CTRL_LRST) != 0 => self.reset(doorbells),
            Id::EIMC => {
                let mask = self.registers.get(EIMS.offset);
                self.registers.set(EIMS.offset, mask & !value);
            }
            Id::EEC => self.keep(offset, before, EEC_PRES | EEC_AUTO_RD),
            Id::RDRXCTL => self.keep(offset, before, RDRXCTL_DMAIDONE),
            Id::EERD if value & EERD_START != 0 => {
                let address = value >> EERD_ADDRESS_SHIFT & 0x3fff;
                let word = u32::from(self.eeprom.word(address as usize));
                let done = EERD_DONE | address << EERD_ADDRESS_SHIFT | word << EERD_DATA_SHIFT;
                self.registers.set(offset, done);
            }
            Id::SRRCTL => self.rx[index].configure(value),
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
            _ => {}
        }
        self.stale |= Settings::depend_on(id);
    }

    /// Keeps read-only bits of a register that was written.
    fn keep(&mut self, offset: u32, before: u32, bits: u32) {
        self.registers.set(offset, self.registers.get(offset) & !bits | before & bits);
    }

    fn enable_rx(&mut self, queue: usize) {
        let get = |offset| self.registers.get(offset);
        let base = ring_base(get(RDBAL.at(queue).offset), get(RDBAH.at(queue).offset));
        let ring = ring_len(get(RDLEN.at(queue).offset)).and_then(|len| self.dma.ring(base, len));
        self.counters.dma_faults += u64::from(ring.is_none());
        self.rx[queue].enable(ring);
        self.rx_enabled |= 1 << queue;
    }

    fn enable_tx(&mut self, queue: usize) {
        let get = |offset| self.registers.get(offset);
        let base = ring_base(get(TDBAL.at(queue).offset), get(TDBAH.at(queue).offset));
        let ring = ring_len(get(TDLEN.at(queue).offset)).and_then(|len| self.dma.ring(base, len));
        let write_back = head_write_back(get(TDWBAL.at(queue).offset), get(TDWBAH.at(queue).offset));
        self.counters.dma_faults += u64::from(ring.is_none());
        self.tx[queue].enable(ring, write_back);
        self.tx_enabled |= 1 << queue;
    }

    fn status(&self) -> u32 {
        let disabled = self.registers.get(CTRL.offset) & CTRL_MASTER_DISABLE != 0;
        let link = if self.link.up { STATUS_LINK_UP } else { 0 };
        link | if disabled { 0 } else { STATUS_MASTER_ENABLE }
    }

    fn links(&self) -> u32 {
        let speed = match self.link.mbps {
            0..1_000 => LINKS_SPEED_100M,
            1_000..10_000 => LINKS_SPEED_1G,
            10_000.. => LINKS_SPEED_10G,
        };
        if self.link.up { LINKS_UP | speed } else { 0 }
    }
}
