//! Tx rings (7.2.3): advanced data descriptors over any number of buffers, written back by DD or by head.

use std::sync::atomic::Ordering;

use ringpass_memory::{Burst, Cache, DmaArray, Mempool, MempoolConfig, Packet};
use ringpass_registers::ixgbe::{bits::*, descriptor::*};

use super::bits::*;
use super::decode::Settings;
use super::stats::Counters;
use crate::dma::{Descriptor, DmaMap, Hint, Intent, prefetch_descriptors};

/// Queues of the card.
pub(super) const QUEUES: usize = 128;
/// Packets that a ring sends in one step.
pub(super) const BURST: usize = 64;
/// Descriptors that one step looks at: contexts and malformed ones make no packet.
const DESCRIPTORS: usize = 4 * BURST;
/// Longest frame that the card sends, with its CRC (7.2.1.1).
const LONGEST: usize = 15_872;

/// The card's own memory for frames on their way to the wire.
pub(super) struct Buffers {
    cache: Cache,
    /// For the frames that are too long for the others.
    jumbo: Mempool,
}

impl Buffers {
    pub(super) fn new() -> Self {
        let pool = |buffers, size| {
            Mempool::new(&MempoolConfig { buffers, size, ..Default::default() })
                .expect("some MiB of ordinary pages for the model's frames")
        };
        Self { cache: pool(2048, 2048).cache(), jumbo: pool(64, LONGEST) }
    }

    #[inline]
    fn alloc(&mut self, len: usize) -> Option<Packet> {
        if len > self.cache.pool().buffer_size() {
            return self.jumbo.alloc();
        }
        self.cache.take(1).next()
    }
}

/// The frame whose descriptors are being fetched.
#[derive(Default)]
enum Gather {
    #[default]
    Nothing,
    /// So many bytes of the whole have been fetched.
    Part { packet: Packet, fetched: usize, insert_crc: bool },
    /// The frame is lost; its other descriptors are skipped.
    Lost,
}

/// The card's side of a Tx ring.
#[derive(Default)]
pub(super) struct TxRing {
    memory: Option<DmaArray<Descriptor>>,
    pub(super) head: usize,
    /// Descriptors from the head on that the driver has posted.
    ready: usize,
    /// Where the head is written to, instead of DD (7.2.3.5.2).
    write_back: Option<u64>,
    gather: Gather,
    hint: Hint,
    write_back_hint: Hint,
}

/// What a ring needs of the card.
pub(super) struct Context<'a> {
    pub(super) dma: &'a DmaMap,
    pub(super) settings: &'a Settings,
    pub(super) buffers: &'a mut Buffers,
    pub(super) counters: &'a mut Counters,
}

impl TxRing {
    /// TXDCTL.ENABLE was set.
    pub(super) fn enable(&mut self, memory: Option<DmaArray<Descriptor>>, write_back: Option<u64>) {
        *self = Self { memory, write_back, ..Self::default() };
    }

    pub(super) fn disable(&mut self) {
        // The head stays to be read.
        *self = Self { head: self.head, ..Self::default() };
    }

    /// Takes over the driver's tail, and brings the first descriptors into the cache. A tail outside the ring offers
    /// none.
    #[inline]
    pub(super) fn set_tail(&mut self, tail: u32) {
        let Some(ring) = &self.memory else { return };
        let (len, tail) = (ring.len(), tail as usize);
        self.ready = if tail >= len { 0 } else { (tail + len - self.head) % len };
        prefetch_descriptors(ring, self.head, self.ready.min(BURST), Intent::Read);
    }

    /// Fetches frames from the ring until the burst is full or the ring is empty.
    pub(super) fn fetch(&mut self, out: &mut Burst, context: &mut Context) {
        let Some(ring) = self.memory.take() else { return };
        let len = ring.len();
        let mut reported = None;
        for _ in 0..self.ready.min(DESCRIPTORS) {
            if out.room() == 0 {
                break;
            }
            let Some(Descriptor([address, command])) = ring.get(self.head) else { break };
            let word = command.load(Ordering::Relaxed);
            self.descriptor(address.load(Ordering::Relaxed), word, out, context);
            self.head = if self.head + 1 == len { 0 } else { self.head + 1 };
            if word & TX_RS != 0 {
                reported = Some(self.head);
                if self.write_back.is_none() {
                    command.store(TX_DD, Ordering::Release);
                }
            }
        }
        if let Some((address, head)) = self.write_back.zip(reported)
            && !context.dma.store(address, head as u32, &mut self.write_back_hint)
        {
            context.counters.dma_faults += 1;
        }
        self.memory = Some(ring);
    }

    #[inline]
    fn descriptor(&mut self, address: u64, command: u64, out: &mut Burst, context: &mut Context) {
        const KIND: u64 = TX_DTYP_MASK | TX_DEXT | TX_EOP | TX_IFCS | TX_VLE | TX_TSE;
        let len = command as usize & 0xffff;
        if command & KIND == TX_DTYP_DATA | TX_DEXT | TX_EOP | TX_IFCS
            && (60..LONGEST - 4).contains(&len)
            && (command >> TX_PAYLEN_SHIFT) as usize == len
            && context.settings.append_crc
            && matches!(self.gather, Gather::Nothing)
        {
            return self.whole(address, len, out, context);
        }
        self.part(address, command, out, context);
    }

    /// The usual descriptor: a frame in one buffer. What `part` does, without its detours.
    #[inline]
    fn whole(&mut self, address: u64, len: usize, out: &mut Burst, context: &mut Context) {
        let Some(mut packet) = context.buffers.alloc(len) else {
            context.counters.tx_no_buffer += 1;
            return;
        };
        packet.set_len(len);
        if context.dma.read(address, &mut packet, &mut self.hint) {
            out.push(packet);
        } else {
            context.counters.dma_faults += 1;
        }
    }

    /// Any descriptor.
    fn part(&mut self, address: u64, command: u64, out: &mut Burst, context: &mut Context) {
        if command & (TX_DTYP_MASK | TX_DEXT) == TX_DTYP_CONTEXT | TX_DEXT {
            return;
        }
        self.gather = match std::mem::take(&mut self.gather) {
            Gather::Nothing => Self::start(command, context),
            gather => gather,
        };
        self.gather = match std::mem::take(&mut self.gather) {
            Gather::Part { packet, fetched, insert_crc } => {
                self.append(address, command, packet, fetched, insert_crc, context)
            }
            gather => gather,
        };
        if command & TX_EOP != 0 {
            match std::mem::take(&mut self.gather) {
                Gather::Part { packet, fetched, insert_crc } if fetched == packet.len() => {
                    finish(packet, insert_crc, out, context);
                }
                Gather::Part { .. } => context.counters.tx_malformed += 1,
                Gather::Nothing | Gather::Lost => {}
            }
        }
    }

    /// The first descriptor of a frame: PAYLEN is the length of the whole.
    #[inline]
    fn start(command: u64, context: &mut Context) -> Gather {
        let len = (command >> TX_PAYLEN_SHIFT) as usize;
        if len == 0 || len > LONGEST - 4 || command & (TX_TSE | TX_VLE) != 0 {
            context.counters.tx_malformed += 1;
            return Gather::Lost;
        }
        // Room for padding.
        let Some(mut packet) = context.buffers.alloc(len.max(60)) else {
            context.counters.tx_no_buffer += 1;
            return Gather::Lost;
        };
        packet.set_len(len);
        Gather::Part { packet, fetched: 0, insert_crc: command & TX_IFCS != 0 }
    }

    #[inline]
    fn append(
        &mut self,
        address: u64,
        command: u64,
        mut packet: Packet,
        fetched: usize,
        insert_crc: bool,
        context: &mut Context,
    ) -> Gather {
        let len = command as usize & 0xffff;
        let is_data = command & (TX_DTYP_MASK | TX_DEXT) == TX_DTYP_DATA | TX_DEXT;
        let Some(part) = packet.get_mut(fetched..fetched + len).filter(|part| is_data && !part.is_empty()) else {
            context.counters.tx_malformed += 1;
            return Gather::Lost;
        };
        if !context.dma.read(address, part, &mut self.hint) {
            context.counters.dma_faults += 1;
            return Gather::Lost;
        }
        Gather::Part { packet, fetched: fetched + len, insert_crc }
    }
}

/// A frame that is complete: its CRC and padding, then onto the wire, which carries frames without CRC.
#[inline]
fn finish(mut packet: Packet, insert_crc: bool, out: &mut Burst, context: &mut Context) {
    if !(insert_crc && context.settings.append_crc) {
        // The driver wrote the CRC itself.
        let data = packet.len().saturating_sub(4);
        if packet.len() <= 4 || super::crc::crc32(&packet[..data]).to_le_bytes() != packet[data..] {
            context.counters.tx_malformed += 1;
            return;
        }
        packet.set_len(data);
    } else if context.settings.pad && packet.len() < 60 {
        let len = packet.len();
        packet.set_len(60);
        packet[len..].fill(0);
    }
    out.push(packet);
}

/// The head write-back address of a queue, from TDWBAL and TDWBAH (8.2.3.9.11, 8.2.3.9.12).
pub(super) fn head_write_back(low: u32, high: u32) -> Option<u64> {
    (low & TDWBAL_HEAD_WB_EN != 0).then_some(u64::from(high) << 32 | u64::from(low & !0b11))
}
