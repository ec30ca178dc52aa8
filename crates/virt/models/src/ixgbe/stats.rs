//! Counters: the statistics registers (8.2.3.23), and the model's own totals.

use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::*;

use super::filter::{Cast, destination};

/// Totals since the NIC was created. Byte counts are without CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames written to the driver's memory.
    pub rx_packets: u64,
    /// Bytes of the frames written to the driver's memory.
    pub rx_bytes: u64,
    /// Received frames that no filter accepted.
    pub rx_filtered: u64,
    /// Received frames that were too long.
    pub rx_oversize: u64,
    /// Received frames for a queue with no descriptor, or too few for the frame's length.
    pub rx_no_descriptor: u64,
    /// Received frames for a queue that was not enabled.
    pub rx_queue_disabled: u64,
    /// Received frames dropped because the packet buffer was full.
    pub rx_buffer_full: u64,
    /// Frames received while the link was down.
    pub rx_no_link: u64,
    /// Frames sent to the wire.
    pub tx_packets: u64,
    /// Bytes of the frames sent to the wire.
    pub tx_bytes: u64,
    /// Frames to be sent that were dropped because their descriptors were invalid.
    pub tx_malformed: u64,
    /// Frames to be sent that were dropped because the model had no free buffer: the wire holds them all.
    pub tx_no_buffer: u64,
    /// Accesses to memory that was not mapped, and rings that are not in mapped memory. Each affected frame is
    /// lost.
    pub dma_faults: u64,
    /// Lies told.
    pub lies: u64,
}

/// Frames of one step and direction, to be added to the registers at the end of the step.
#[derive(Clone, Copy, Default)]
pub(super) struct Batch {
    pub(super) packets: u64,
    /// Bytes, with CRC.
    pub(super) octets: u64,
    pub(super) multicast: u64,
    pub(super) broadcast: u64,
    pub(super) minimal: u64,
    /// Frames by length with CRC: up to 127 bytes, 255, 511, 1023, and longer.
    sizes: [u64; 5],
}

/// Frames of equal length to one address, as most neighbours are, which are counted together.
#[derive(Default)]
pub(super) struct Neighbours {
    /// Length and destination address.
    of: (usize, u64),
    count: u64,
}

impl Neighbours {
    /// Counts a good frame in the batch, at the latest at the [end](Self::end).
    #[inline(always)]
    pub(super) fn add(&mut self, frame: &[u8], to: &mut Batch) {
        let of = (frame.len(), destination(frame));
        if of != self.of {
            std::mem::replace(self, Self { of, count: 0 }).end(to);
        }
        self.count += 1;
    }

    pub(super) fn end(self, to: &mut Batch) {
        to.add_equal(self.of.0, Cast::of(self.of.1), self.count);
    }
}

impl Batch {
    /// Counts a good frame of `len` bytes without CRC.
    #[inline]
    pub(super) fn add(&mut self, len: usize, cast: Cast) {
        self.add_equal(len, cast, 1);
    }

    /// Counts good frames.
    pub(super) fn add_all<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        let mut neighbours = Neighbours::default();
        frames.for_each(|frame| neighbours.add(frame, self));
        neighbours.end(self);
    }

    /// Counts `count` good frames of one length and kind of address.
    pub(super) fn add_equal(&mut self, len: usize, cast: Cast, count: u64) {
        self.packets += count;
        self.octets += (len as u64 + 4) * count;
        let counted_if = |holds: bool| if holds { count } else { 0 };
        self.multicast += counted_if(cast == Cast::Multicast);
        self.broadcast += counted_if(cast == Cast::Broadcast);
        self.minimal += counted_if(len == 60);
        // Bits of the length: 7 for up to 127 bytes.
        let size = (usize::BITS - (len + 4).leading_zeros()).clamp(7, 11) - 7;
        self.sizes[size as usize] += count;
    }

    /// Adds to the six size registers, of which `first` counts the shortest frames.
    fn count_sizes(&self, registers: &mut RegisterFile, first: u32) {
        let [short, rest @ ..] = self.sizes;
        count(registers, first, self.minimal);
        count(registers, first + 4, short - self.minimal);
        (2..).zip(rest).for_each(|(i, packets)| count(registers, first + 4 * i, packets));
    }
}

/// Adds to a counter register, which saturates at its maximum (8.2.3.23).
pub(super) fn count(registers: &mut RegisterFile, offset: u32, n: u64) {
    if n > 0 {
        let value = u64::from(registers.get(offset)).saturating_add(n);
        registers.set(offset, u32::try_from(value).unwrap_or(u32::MAX));
    }
}

/// Adds to a counter of 36 bits in two registers.
pub(super) fn count_octets(registers: &mut RegisterFile, low: u32, high: u32, n: u64) {
    let value = u64::from(registers.get(low)) | u64::from(registers.get(high)) << 32;
    let value = (value + n).min((1 << 36) - 1);
    registers.set(low, value as u32);
    registers.set(high, (value >> 32) as u32);
}

/// Counts a received bad frame of `len` bytes without CRC (8.2.3.23.59).
pub(super) fn count_bad(registers: &mut RegisterFile, len: usize) {
    count(registers, TPR.offset, 1);
    count_octets(registers, TORL.offset, TORH.offset, len as u64 + 4);
}

pub(super) fn count_rx(registers: &mut RegisterFile, batch: &Batch) {
    count(registers, TPR.offset, batch.packets);
    count(registers, GPRC.offset, batch.packets);
    count(registers, MPRC.offset, batch.multicast);
    count(registers, BPRC.offset, batch.broadcast);
    batch.count_sizes(registers, PRC64.offset);
    count_octets(registers, GORCL.offset, GORCH.offset, batch.octets);
    count_octets(registers, TORL.offset, TORH.offset, batch.octets);
    count(registers, RXNFGPC.offset, batch.packets);
    count_octets(registers, RXNFGBCL.offset, RXNFGBCH.offset, batch.octets);
}

pub(super) fn count_tx(registers: &mut RegisterFile, batch: &Batch) {
    count(registers, TPT.offset, batch.packets);
    count(registers, GPTC.offset, batch.packets);
    count(registers, MPTC.offset, batch.multicast);
    count(registers, BPTC.offset, batch.broadcast);
    batch.count_sizes(registers, PTC64.offset);
    count_octets(registers, GOTCL.offset, GOTCH.offset, batch.octets);
}
