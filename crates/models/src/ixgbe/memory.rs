//! The memory that the card is given and that is taken away again, and the rings in it.

use std::sync::Arc;

use ringpass_memory::{DmaRegion, ForeignMemory};
use ringpass_port::Error;
use ringpass_registers::ixgbe::*;

use super::decode::{ring_base, ring_len};
use super::device::{Device, bits};
use crate::dma::{Access, Ring};

impl Device {
    pub(super) fn map(&mut self, region: &Arc<DmaRegion>) {
        self.dma.add(region);
        self.find_rings();
    }

    pub(super) fn map_foreign(
        &mut self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<(), Error> {
        self.dma.add_foreign(iova, memory, offset, len, access)?;
        self.find_rings();
        Ok(())
    }

    pub(super) fn unmap(&mut self, iova: u64, len: u64) {
        self.dma.remove(iova, len);
        self.drop_rings(|ring| ring.overlaps(iova, len));
    }

    pub(super) fn unmap_all(&mut self) {
        self.dma.clear();
        self.drop_rings(|_| true);
    }

    /// Lets go of rings whose memory is taken away. The queues stay enabled, without a descriptor.
    fn drop_rings(&mut self, gone: impl Fn(&Ring) -> bool) {
        for queue in bits(self.rx_enabled) {
            if self.rx[queue].memory().is_some_and(&gone) {
                self.counters.dma_faults += 1;
                self.rx[queue].attach(None);
            }
        }
        for queue in bits(self.tx_enabled) {
            if self.tx[queue].memory().is_some_and(&gone) {
                self.counters.dma_faults += 1;
                self.tx[queue].attach(None);
            }
        }
    }

    /// Rings that had no memory may have it now.
    fn find_rings(&mut self) {
        for queue in bits(self.rx_enabled) {
            if self.rx[queue].memory().is_none() {
                let ring = self.rx_ring(queue);
                self.rx[queue].attach(ring);
            }
        }
        for queue in bits(self.tx_enabled) {
            if self.tx[queue].memory().is_none() {
                let ring = self.tx_ring(queue);
                self.tx[queue].attach(ring);
            }
        }
    }

    /// The ring that a queue's registers describe, if all of it is memory that the card may use.
    pub(super) fn rx_ring(&self, queue: usize) -> Option<Ring> {
        let get = |offset| self.registers.get(offset);
        let base = ring_base(get(RDBAL.at(queue).offset), get(RDBAH.at(queue).offset));
        ring_len(get(RDLEN.at(queue).offset)).and_then(|len| self.dma.ring(base, len))
    }

    /// Likewise.
    pub(super) fn tx_ring(&self, queue: usize) -> Option<Ring> {
        let get = |offset| self.registers.get(offset);
        let base = ring_base(get(TDBAL.at(queue).offset), get(TDBAH.at(queue).offset));
        ring_len(get(TDLEN.at(queue).offset)).and_then(|len| self.dma.ring(base, len))
    }
}
