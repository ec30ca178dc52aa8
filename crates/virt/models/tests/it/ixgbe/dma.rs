//! DMA to memory of another process: mapped in pieces of a page, scattered, and unmapped at any time.

use std::sync::Arc;

use ringpass_memory::{Access, DmaArray, DmaRegion, ForeignMemory, Memory, RegionConfig};
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::Window;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::descriptor::*;
use ringpass_pci::registers::ixgbe::*;
use ringpass_port::QueuePair;
use ringpass_testing::Wire;

use crate::ixgbe::driver::{Word, frame, own_mac, scripted};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
/// Start of the driver's memory as the NIC sees it, and its layout: rings of 512 descriptors (two pages each),
/// then buffers of 2 KiB.
const BASE: u64 = 0x1_0000_0000;
const RX_RING: u64 = BASE;
const TX_RING: u64 = BASE + 2 * PAGE;
const BUFFERS: u64 = BASE + 4 * PAGE;

struct Guest {
    card: Arc<Card>,
    window: Window,
    queues: QueuePair,
    wire: Wire,
    memory: Memory,
    words: DmaArray<Word>,
    region: Arc<DmaRegion>,
    tail: [u32; 2],
}

/// Returns the offset of an address in the file, where no page is next to its neighbours.
fn place(iova: u64) -> usize {
    let page = (iova - BASE) / PAGE;
    ((page * 37 % PAGES) * PAGE + (iova - BASE) % PAGE) as usize
}

impl Guest {
    fn new() -> Self {
        let region = DmaRegion::new((PAGES * PAGE) as usize, &RegionConfig::default()).unwrap();
        let memory = ForeignMemory::map(region.file().unwrap(), 0, region.len()).unwrap().into();
        let words = DmaArray::new(&region, 0, region.len() / 8).unwrap();
        let card = Card::new(&CardConfig::default());
        let (queues, wire) = scripted();
        let guest = Self { window: card.window().unwrap(), card, queues, wire, memory, words, region, tail: [0; 2] };
        (0..PAGES).for_each(|page| guest.map(BASE + page * PAGE, Access::ReadWrite));
        guest.card.set_bus_master(true).unwrap();
        guest.start();
        guest
    }

    fn map(&self, iova: u64, access: Access) {
        self.map_page(iova, place(iova), access);
    }

    /// Maps the page at `offset` of the file.
    fn map_page(&self, iova: u64, offset: usize, access: Access) {
        self.card.map_at(iova, self.memory.part(offset, PAGE as usize).unwrap(), access).unwrap();
    }

    fn word(&self, iova: u64) -> &Word {
        &self.words[place(iova) / 8]
    }

    fn bytes(&self, iova: u64, len: u64) -> Vec<u8> {
        (iova..iova + len).map(|at| self.word(at & !7).load().to_le_bytes()[at as usize % 8]).collect()
    }

    fn start(&self) {
        // SAFETY: all of `PAGES` is mapped for the NIC, and the NIC stops using memory as soon as it is
        // unmapped.
        unsafe {
            self.window.write_dma([RDBAL.at(0), RDBAH.at(0)], RX_RING);
            self.window.write_dma([TDBAL.at(0), TDBAH.at(0)], TX_RING);
        }
        self.window.write(RDLEN.at(0), 512 * 16);
        self.window.write(TDLEN.at(0), 512 * 16);
        self.window.write(SRRCTL.at(0), SRRCTL_DESCTYPE_ADV_ONEBUF | 2);
        self.window.write(FCTRL, FCTRL_UPE | FCTRL_BAM);
        self.window.write(DMATXCTL, DMATXCTL_TE);
        self.window.write(RXDCTL.at(0), RXDCTL_ENABLE);
        self.window.write(TXDCTL.at(0), TXDCTL_ENABLE);
        self.window.write(RXCTRL, RXCTRL_RXEN);
    }

    /// Posts a buffer and returns the address of its descriptor.
    fn post(&mut self, buffer: u64) -> u64 {
        let at = RX_RING + u64::from(self.tail[0]) * 16;
        self.word(at).store(buffer);
        self.word(at + 8).store(0);
        self.tail[0] = (self.tail[0] + 1) % 512;
        self.window.write(RDT.at(0), self.tail[0]);
        at
    }

    fn send(&mut self, buffer: u64, len: u64) -> u64 {
        let at = TX_RING + u64::from(self.tail[1]) * 16;
        self.word(at).store(buffer);
        let command = TX_DTYP_DATA | TX_DEXT | TX_EOP | TX_IFCS | TX_RS;
        self.word(at + 8).store(command | len | len << TX_PAYLEN_SHIFT);
        self.tail[1] = (self.tail[1] + 1) % 512;
        self.window.write(TDT.at(0), self.tail[1]);
        self.card.step(&mut self.queues);
        at
    }

    fn arrive(&mut self, bytes: &[u8]) {
        self.wire.frames().to_card.push_back(bytes.to_vec());
        self.card.step(&mut self.queues);
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wire.frames().from_card)
    }

    fn faults(&self) -> u64 {
        self.card.counters().dma_faults
    }

    /// Returns the whole memory, to find changes.
    fn snapshot(&self) -> Vec<u64> {
        self.words.iter().map(Word::load).collect()
    }
}

#[test]
fn rings_and_frames_lie_over_scattered_pages() {
    let mut guest = Guest::new();
    // Frames across a page boundary, through all of both rings and around their ends.
    let buffer = BUFFERS + PAGE - 100;
    for i in 0..1100 {
        let bytes = frame(own_mac(), 200 + i % 7);
        let at = guest.post(buffer);
        guest.arrive(&bytes);
        assert_eq!(guest.word(at + 8).load() & (RX_DD | RX_EOP), RX_DD | RX_EOP, "frame {i}");
        assert_eq!(guest.bytes(buffer, bytes.len() as u64), bytes);
        let at = guest.send(buffer, bytes.len() as u64);
        assert_eq!(guest.word(at + 8).load() & TX_DD, TX_DD);
        assert_eq!(guest.sent(), [bytes]);
    }
    assert_eq!(guest.faults(), 0);
}

#[test]
fn what_was_taken_away_is_not_touched() {
    let mut guest = Guest::new();
    let (first, second) = (BUFFERS, BUFFERS + PAGE);
    let bytes = frame(own_mac(), 300);
    guest.card.unmap(second, PAGE).unwrap();
    // A frame that would end in that page is not written at all.
    let at = guest.post(second - 100);
    let before = guest.bytes(first, 2 * PAGE);
    guest.arrive(&bytes);
    assert_eq!(guest.bytes(first, 2 * PAGE), before);
    assert_eq!(guest.word(at + 8).load() & RX_DD, RX_DD, "the descriptor says that something was wrong");
    assert_eq!(guest.faults(), 1);
    guest.send(second, 100);
    assert_eq!((guest.sent().len(), guest.faults()), (0, 2));
    // The page is mapped again.
    guest.map(second, Access::ReadWrite);
    guest.post(second - 100);
    guest.arrive(&bytes);
    assert_eq!((guest.bytes(second - 100, 300), guest.faults()), (bytes, 2));
}

#[test]
fn a_ring_that_was_taken_away_stalls_until_it_is_back() {
    let mut guest = Guest::new();
    let bytes = frame(own_mac(), 100);
    guest.post(BUFFERS);
    guest.post(BUFFERS);
    guest.arrive(&bytes);
    // One of the two pages of either ring.
    guest.card.unmap(RX_RING + PAGE, 2 * PAGE).unwrap();
    assert_eq!(guest.faults(), 2, "a fault for each ring");
    let before = guest.snapshot();
    guest.window.write(TDT.at(0), 5);
    guest.arrive(&bytes);
    assert_eq!(guest.snapshot(), before);
    guest.window.write(TDT.at(0), 0);
    guest.map(RX_RING + PAGE, Access::ReadWrite);
    guest.map(TX_RING, Access::ReadWrite);
    guest.arrive(&bytes);
    assert_eq!(guest.word(RX_RING + 16 + 8).load() & RX_DD, RX_DD, "where it was");
    guest.send(BUFFERS, 100);
    assert_eq!(guest.sent(), [bytes]);
}

#[test]
fn memory_that_may_only_be_read_is_not_written() {
    let mut guest = Guest::new();
    guest.card.unmap(BUFFERS, PAGE).unwrap();
    guest.map(BUFFERS, Access::Read);
    guest.post(BUFFERS);
    let before = guest.bytes(BUFFERS, PAGE);
    guest.arrive(&frame(own_mac(), 100));
    assert_eq!((guest.bytes(BUFFERS, PAGE), guest.faults()), (before, 1));
    guest.send(BUFFERS, 100);
    assert_eq!((guest.sent().len(), guest.faults()), (1, 1));
}

#[test]
fn maps_do_not_overlap_and_stay_inside_their_memory() {
    let guest = Guest::new();
    let map = |iova, offset, len| guest.card.map_at(iova, guest.memory.part(offset, len).unwrap(), Access::ReadWrite);
    let free = BASE + PAGES * PAGE;
    for (iova, offset, len, why) in [
        (BASE - 1, 0, 2, "overlaps"),
        (free - 1, 0, 2, "overlaps"),
        (BASE - PAGE, 0, guest.region.len(), "overlaps"),
        (free, 0, 0, "empty"),
        (u64::MAX, 0, 2, "last address"),
    ] {
        let error = map(iova, offset, len).expect_err(why).to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    }
    let outside = [(0, guest.region.len() + 1), (usize::MAX, 2)].map(|(offset, len)| guest.memory.part(offset, len));
    assert!(outside.iter().all(Option::is_none), "behind the memory");
    // Maps at both ends of the address space.
    map(u64::MAX - 7, 0, 8).unwrap();
    map(0, 0, 8).unwrap();
    guest.card.unmap(0, u64::MAX).unwrap();
    map(0, 0, 8).expect("taken away");
    map(u64::MAX - 7, 0, 8).expect_err("its last byte is still there");
    guest.card.unmap_all();
    map(u64::MAX - 7, 0, 8).unwrap();
}

#[test]
fn thousands_of_maps_are_found() {
    let mut guest = Guest::new();
    // Guests with an IOMMU map each huge page as 512 maps, and unmap them by powers of two.
    for i in 0..8192 {
        let (iova, offset) = (BASE + (PAGES + i) * PAGE, place(BUFFERS));
        guest.map_page(iova, offset, Access::ReadWrite);
    }
    let bytes = frame(own_mac(), 100);
    for i in [0, 4095, 8191] {
        guest.post(BASE + (PAGES + i) * PAGE);
        guest.arrive(&bytes);
        assert_eq!(guest.bytes(BUFFERS, 100), bytes);
    }
    guest.card.unmap(BASE + PAGES * PAGE, 8192 * PAGE).unwrap();
    guest.post(BASE + PAGES * PAGE);
    guest.arrive(&bytes);
    assert_eq!(guest.faults(), 1);
}

#[test]
fn memory_that_is_cut_short_costs_nothing_else() {
    let file = rustix::fs::memfd_create("shrinks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, PAGES * PAGE).unwrap();
    let memory = ForeignMemory::map(std::os::fd::AsFd::as_fd(&file), 0, (PAGES * PAGE) as usize).unwrap();
    let mut guest = Guest::new();
    guest.card.unmap(BUFFERS, PAGE).unwrap();
    guest
        .card
        .map_at(BUFFERS, Memory::from(memory.clone()).part(0, PAGE as usize).unwrap(), Access::ReadWrite)
        .unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    guest.post(BUFFERS);
    guest.arrive(&frame(own_mac(), 100));
    assert!(memory.lost());
    guest.post(BUFFERS + PAGE);
    guest.arrive(&frame(own_mac(), 100));
    assert_eq!(guest.bytes(BUFFERS + PAGE, 100), frame(own_mac(), 100));
}
