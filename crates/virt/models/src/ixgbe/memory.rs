//! DMA memory that is mapped and unmapped, and the rings in it.

use std::sync::Arc;

use ringpass_memory::{Access, DmaMapError, DmaRegion, Memory};
use ringpass_pci::registers::ixgbe::*;

use super::bits::set_bits;
use super::decode::{ring_base, ring_len};
use super::device::Device;
use crate::dma::Ring;

impl Device {
    pub(super) fn map(&mut self, region: &Arc<DmaRegion>) -> Result<(), DmaMapError> {
        self.dma.add(region)?;
        self.find_rings();
        Ok(())
    }

    pub(super) fn map_at(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        self.dma.insert(iova, memory, access)?;
        self.find_rings();
        Ok(())
    }

    pub(super) fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        self.dma.remove(iova, len)?;
        self.drop_rings(|ring| ring.overlaps(iova, len));
        Ok(())
    }

    pub(super) fn unmap_all(&mut self) {
        self.dma.clear();
        self.drop_rings(|_| true);
    }

    /// Drops rings whose memory is unmapped. The queues stay enabled, without a descriptor.
    fn drop_rings(&mut self, gone: impl Fn(&Ring) -> bool) {
        for queue in set_bits(self.rx_enabled) {
            if self.rx[queue].memory().is_some_and(&gone) {
                self.counters.dma_faults += 1;
                self.rx[queue].attach(None);
            }
        }
        for queue in set_bits(self.tx_enabled) {
            if self.tx[queue].memory().is_some_and(&gone) {
                self.counters.dma_faults += 1;
                self.tx[queue].attach(None);
            }
        }
    }

    /// Attaches rings of enabled queues whose memory was not mapped before.
    fn find_rings(&mut self) {
        for queue in set_bits(self.rx_enabled) {
            if self.rx[queue].memory().is_none() {
                let ring = self.rx_ring(queue);
                self.rx[queue].attach(ring);
            }
        }
        for queue in set_bits(self.tx_enabled) {
            if self.tx[queue].memory().is_none() {
                let ring = self.tx_ring(queue);
                self.tx[queue].attach(ring);
            }
        }
    }

    /// Returns the Rx ring that a queue's registers describe, if all of it is mapped.
    pub(super) fn rx_ring(&self, queue: usize) -> Option<Ring> {
        let get = |offset| self.registers.get(offset);
        let base = ring_base(get(RDBAL.at(queue).offset), get(RDBAH.at(queue).offset));
        ring_len(get(RDLEN.at(queue).offset)).and_then(|len| Ring::new(&self.dma, base, len))
    }

    /// Returns the Tx ring that a queue's registers describe, if all of it is mapped.
    pub(super) fn tx_ring(&self, queue: usize) -> Option<Ring> {
        let get = |offset| self.registers.get(offset);
        let base = ring_base(get(TDBAL.at(queue).offset), get(TDBAH.at(queue).offset));
        ring_len(get(TDLEN.at(queue).offset)).and_then(|len| Ring::new(&self.dma, base, len))
    }
}
