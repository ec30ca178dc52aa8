//! Two software cards with their drivers, and frames for their wires.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringpass_bus::Bus;
use ringpass_memory::{Burst, Cache, Mempool, MempoolConfig, Packet, PageSize, RegionConfig};
use ringpass_models::Model;
use ringpass_models::ixgbe::{Card, CardConfig};
use ringpass_models::virtio::{VirtioCard, VirtioConfig};
use ringpass_port::{Error, Offloads, Port, PortConfig, Queues, RxQueue, TxQueue, Wake, Wakeable};
use ringpass_virtio::features::{IN_ORDER, MRG_RXBUF, RING_PACKED};

use crate::drivers;

/// Bytes of the frames, without their checksum: the shortest that Ethernet has.
pub const FRAME: usize = 60;

/// Which driver a rig has, and with virtio which kind of ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// For the 82599.
    Ixgbe,
    /// For virtio cards that offer this beside their rings, as feature bits.
    Virtio(u64),
}

impl Driver {
    /// The drivers by name: kinds of virtio's rings are those that its specification has.
    pub const ALL: [(&str, Self); 7] = [
        ("ixgbe", Self::Ixgbe),
        ("virtio split", Self::Virtio(0)),
        ("virtio split, mergeable", Self::Virtio(MRG_RXBUF)),
        ("virtio split, in order", Self::Virtio(IN_ORDER)),
        ("virtio packed", Self::Virtio(RING_PACKED)),
        ("virtio packed, mergeable", Self::Virtio(RING_PACKED | MRG_RXBUF)),
        ("virtio packed, in order", Self::Virtio(RING_PACKED | IN_ORDER)),
    ];

    /// In tables and JSON.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, driver)| *driver == self).map_or("virtio", |(name, _)| name)
    }

    /// A card of this driver's in this process, as a model and as what its driver opens.
    fn card(self, ring: usize) -> (Arc<dyn Model>, Arc<dyn Bus>) {
        match self {
            Self::Ixgbe => {
                let card = Card::new(&CardConfig::default());
                (card.clone(), card)
            }
            Self::Virtio(kind) => {
                let features = VirtioConfig::USUAL & !MRG_RXBUF | kind;
                let card = VirtioCard::new(&VirtioConfig { features, queue_size: ring as u16, ..Default::default() });
                (card.clone(), card)
            }
        }
    }
}

/// Two cards and the queues of their drivers. Queues stop their cards when dropped, so they come first.
pub struct Rig {
    /// One pair of queues for each card.
    pub queues: [Queues; 2],
    /// The cards, to be stepped.
    pub cards: [Arc<dyn Model>; 2],
    _ports: [Box<dyn Port>; 2],
}

impl Rig {
    /// Opens both drivers with one queue each, with all offloads or none.
    pub fn new(driver: Driver, ring: usize, pages: PageSize, offloads: bool) -> Result<Self, Error> {
        let offloads = Offloads { checksum: offloads, hash: offloads, vlan: offloads, tso: offloads };
        // Mergeable buffers are taken where frames may be longer than a buffer.
        let mtu = if matches!(driver, Driver::Virtio(kind) if kind & MRG_RXBUF != 0) { 9000 } else { 1500 };
        let config = PortConfig { rx_ring: ring, tx_ring: ring, mtu, offloads, ..Default::default() };
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

/// A frame of UDP between documentation addresses, long enough to be taken for one.
fn frame() -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    // IPv4, 46 bytes with its header, TTL 64, UDP; 192.0.2.1 to 192.0.2.2, port 9 (discard), no UDP checksum.
    frame[12..24].copy_from_slice(&[0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    frame[34..40].copy_from_slice(&[0, 9, 0, 9, 0, 26]);
    let words = frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// A source of packets that begin with that frame.
pub struct Frames {
    cache: Cache,
    empty: Burst,
    size: usize,
}

impl Frames {
    /// Packets of `size` bytes. Up to so many, at least 256, are under way at a time.
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

    /// The next packet; `None` if all are under way.
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

/// A card on its wire: so many frames come as were ordered, and what is sent is counted and dropped.
pub struct Wire {
    card: Arc<dyn Model>,
    wire: Queues,
    ordered: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

impl Wire {
    /// Connects a card, to which frames of `size` bytes will come.
    pub fn new(card: &Arc<dyn Model>, size: usize) -> Result<Self, Error> {
        let (ordered, sent) = (Arc::default(), Arc::default());
        let generator = Generator { frames: Frames::new(1024, size)?, ordered: Arc::clone(&ordered) };
        let sink = Sink { sent: Arc::clone(&sent) };
        Ok(Self { card: card.clone(), wire: Queues { rx: Box::new(generator), tx: Box::new(sink) }, ordered, sent })
    }

    /// Steps the card until `frames` have come from the wire and all that was posted has been sent. Returns how many
    /// were.
    pub fn exchange(&mut self, frames: usize) -> usize {
        self.ordered.store(frames, Ordering::Relaxed);
        // A step in which nothing moves may still have taken frames and dropped them.
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
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(Wake::Turns);
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
