//! Two software cards with their drivers, and frames for their wires.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringpass::{
    Burst, Error, Mempool, MempoolConfig, Packet, PageSize, Port, PortConfig, QueuePair, RxQueue, TxQueue, WakeSource,
    Wakeable, drivers,
};
use ringpass_memory::{Cache, RegionConfig};
use ringpass_models::Model;
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_models::virtio::{VirtioCard, VirtioConfig};
use ringpass_pci::PciDevice;
use ringpass_virtio::features::{IN_ORDER, MRG_RXBUF, RING_PACKED};

/// Bytes of the frames: Ethernet's minimum without CRC.
pub const FRAME: usize = 60;

/// Driver of a rig and, for virtio, the kind of ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Driver for the 82599.
    Ixgbe,
    /// Driver for virtio cards that offer these feature bits in addition to the defaults without MRG_RXBUF.
    Virtio(u64),
}

impl Driver {
    /// All drivers by name. The kinds of virtio rings are those of the specification.
    pub const ALL: [(&str, Self); 7] = [
        ("ixgbe", Self::Ixgbe),
        ("virtio split", Self::Virtio(0)),
        ("virtio split, mergeable", Self::Virtio(MRG_RXBUF)),
        ("virtio split, in order", Self::Virtio(IN_ORDER)),
        ("virtio packed", Self::Virtio(RING_PACKED)),
        ("virtio packed, mergeable", Self::Virtio(RING_PACKED | MRG_RXBUF)),
        ("virtio packed, in order", Self::Virtio(RING_PACKED | IN_ORDER)),
    ];

    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, driver)| *driver == self).map_or("virtio", |(name, _)| name)
    }

    /// Creates a card for this driver in this process. Returns it as a model and as the device that the driver
    /// opens.
    fn card(self, ring: usize) -> (Arc<dyn Model>, Arc<dyn PciDevice>) {
        match self {
            Self::Ixgbe => {
                let card = Card::new(&CardConfig::default());
                (card.clone(), card)
            }
            Self::Virtio(kind) => {
                let features = VirtioConfig::DEFAULT_FEATURES & !MRG_RXBUF | kind;
                let card = VirtioCard::new(&VirtioConfig { features, queue_size: ring as u16, ..Default::default() });
                (card.clone(), card)
            }
        }
    }
}

/// Two cards and the queues of their drivers. Dropping the queues stops the cards, so they are the first field.
pub struct Rig {
    /// One queue pair for each card.
    pub queues: [QueuePair; 2],
    /// The cards, which must be stepped.
    pub cards: [Arc<dyn Model>; 2],
    _ports: [Box<dyn Port>; 2],
}

impl Rig {
    /// Opens both drivers with one queue each, in this configuration but for the MTU.
    pub fn new(driver: Driver, pages: PageSize, config: PortConfig) -> Result<Self, Error> {
        let ring = config.rx_ring;
        // The driver uses mergeable buffers only if frames may be longer than a buffer.
        let mtu = if matches!(driver, Driver::Virtio(kind) if kind & MRG_RXBUF != 0) { 9000 } else { 1500 };
        let config = PortConfig { mtu, ..config };
        let region = RegionConfig { pages, ..Default::default() };
        let pool = Mempool::new(&MempoolConfig { buffers: 4 * ring + 2048, region, ..Default::default() })?;
        let open = || {
            let (card, bus) = driver.card(ring);
            let mut port = drivers::open(bus, "bench", &config, &pool)?;
            Ok::<_, Error>((port.take_queues().remove(0), card, port))
        };
        let ((a, card_a, port_a), (b, card_b, port_b)) = (open()?, open()?);
        Ok(Self { queues: [a, b], cards: [card_a, card_b], _ports: [port_a, port_b] })
    }
}

/// Returns a valid UDP frame between documentation addresses.
pub fn frame() -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    // IPv4 with 46 bytes in all, TTL 64, UDP; 192.0.2.1 to 192.0.2.2, port 9 (discard), no UDP checksum.
    frame[12..24].copy_from_slice(&[0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    frame[34..40].copy_from_slice(&[0, 9, 0, 9, 0, 26]);
    let words = frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// A source of packets that begin with the bytes of `frame`.
pub struct Frames {
    cache: Cache,
    empty: Burst,
    size: usize,
}

impl Frames {
    /// Creates a source of packets of `size` bytes, at most `buffers` of which are in flight at a time.
    /// `buffers` should be at least 256.
    pub fn new(buffers: usize, size: usize) -> Result<Self, Error> {
        let pool = Mempool::new(&MempoolConfig { buffers, size: size.max(64), ..Default::default() })?;
        // All buffers hold the frame from the start, so that a packet costs next to nothing.
        let mut all: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
        for packet in &mut all {
            packet.set_len(size);
            packet.write(0, &frame());
        }
        drop(all);
        Ok(Self { cache: pool.cache(), empty: Burst::new(64), size })
    }

    /// Returns the next packet; `None` if all are in flight.
    #[inline]
    pub fn next(&mut self) -> Option<Packet> {
        if self.empty.is_empty() {
            self.cache.alloc(&mut self.empty);
        }
        let mut packet = self.empty.pop()?;
        packet.set_len(self.size);
        Some(packet)
    }
}

/// A card with its wire. The wire delivers as many frames as were ordered, and counts and drops those that are
/// sent.
pub struct Wire {
    card: Arc<dyn Model>,
    wire: QueuePair,
    ordered: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

impl Wire {
    /// Connects a wire to a card, which will receive frames of `size` bytes.
    pub fn new(card: &Arc<dyn Model>, size: usize) -> Result<Self, Error> {
        let (ordered, sent) = (Arc::default(), Arc::default());
        let generator = Generator { frames: Frames::new(1024, size)?, ordered: Arc::clone(&ordered) };
        let sink = Sink { sent: Arc::clone(&sent) };
        Ok(Self { card: card.clone(), wire: QueuePair { rx: Box::new(generator), tx: Box::new(sink) }, ordered, sent })
    }

    /// Steps the card until `frames` frames have come from the wire and all posted frames have been sent.
    /// Returns the number of sent frames.
    pub fn exchange(&mut self, frames: usize) -> usize {
        self.ordered.store(frames, Ordering::Relaxed);
        // In a step that moves nothing, the card may still have taken frames and dropped them.
        let mut idle = 0;
        while idle < 2 {
            let before = self.ordered.load(Ordering::Relaxed);
            let moved = self.card.step(&mut self.wire);
            idle = if moved > 0 || self.ordered.load(Ordering::Relaxed) < before { 0 } else { idle + 1 };
        }
        self.sent.swap(0, Ordering::Relaxed)
    }
}

struct Generator {
    frames: Frames,
    ordered: Arc<AtomicUsize>,
}

impl Wakeable for Generator {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Generator {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.room().min(self.ordered.load(Ordering::Relaxed));
        let sent = (0..count).map_while(|_| self.frames.next()).map(|packet| burst.push(packet)).count();
        self.ordered.fetch_sub(sent, Ordering::Relaxed);
        sent
    }
}

struct Sink {
    sent: Arc<AtomicUsize>,
}

impl TxQueue for Sink {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let count = burst.len();
        burst.clear();
        self.sent.fetch_add(count, Ordering::Relaxed);
        count
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    #[test]
    fn frames_are_udp() {
        let frame = super::frame();
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("{:?}", sliced.net) };
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { panic!("{:?}", sliced.transport) };
        assert_eq!((udp.destination_port(), udp.length()), (9, 26));
    }
}
