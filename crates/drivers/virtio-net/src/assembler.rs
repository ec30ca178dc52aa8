//! Making frames from received buffers and their headers (VIRTIO 1.3, 5.1.6.4).

use ringpass_memory::{Assembly, Packet};
use ringpass_port::{Offloads, fill_checksum};
use ringpass_virtio::features::{GUEST_CSUM, GUEST_TSO4, GUEST_TSO6};
use ringpass_virtio::net_header;

use crate::negotiate::{MIN_FRAME_LEN, Negotiated, RxLayout};

/// Which frames need more processing than removing their header.
#[derive(Clone, Copy)]
pub(crate) enum Needed {
    /// None.
    No,
    /// Frames whose header announces several buffers, or a checksum that may be missing.
    IfSpecial,
    /// All.
    Always,
}

/// Makes frames from a queue's buffers.
pub(crate) struct FrameAssembler {
    needed: Needed,
    /// Length in bytes of the header in front of each frame.
    header: usize,
    /// Longest valid frame in bytes.
    longest: usize,
    /// Whether the header gives the number of buffers of a frame (MRG_RXBUF).
    merged: bool,
    /// Offloads to take from the header; `None` if it has nothing of use.
    rx_offloads: Option<Offloads>,
    /// See [`Negotiated::may_omit_checksum`].
    may_omit_checksum: bool,
    /// Buffers of a frame that is not complete yet, and what is known of it.
    pieces: Assembly,
    part: Option<Part>,
    /// Remaining buffers of a faulty frame, to be dropped.
    skip: u16,
}

/// State of a frame whose first buffers have arrived.
struct Part {
    header: [u8; net_header::LEN],
    /// Buffers that have not arrived yet.
    missing: u16,
}

impl FrameAssembler {
    /// Creates the assembler of a queue with buffers of `size` bytes.
    pub(crate) fn new(negotiated: &Negotiated, size: usize) -> Self {
        let tso = negotiated.features & (GUEST_TSO4 | GUEST_TSO6) != 0;
        let rx_offloads = negotiated.has(GUEST_CSUM).then_some(Offloads { checksum: true, tso, ..Offloads::default() });
        let needed = match (rx_offloads, negotiated.layout) {
            (None, RxLayout::Single) if !negotiated.may_omit_checksum => Needed::No,
            (None, RxLayout::Single | RxLayout::Merged) => Needed::IfSpecial,
            _ => Needed::Always,
        };
        let (header, longest, merged) =
            (negotiated.header, negotiated.max_rx_len, negotiated.layout == RxLayout::Merged);
        let pieces = Assembly::new(longest, size);
        Self {
            needed,
            header,
            longest,
            merged,
            rx_offloads,
            may_omit_checksum: negotiated.may_omit_checksum,
            pieces,
            part: None,
            skip: 0,
        }
    }

    #[inline]
    pub(crate) fn needed(&self) -> Needed {
        self.needed
    }

    /// Returns whether a frame that begins in this buffer is complete and its header can be ignored.
    #[inline(always)]
    pub(crate) fn is_plain(&self, packet: &Packet) -> bool {
        (!self.merged || merged_buffers(packet) == 1) && !(self.may_omit_checksum && is_checksum_valid(packet))
    }

    /// Returns whether the next buffer belongs to a frame that has begun.
    #[inline]
    pub(crate) fn joining(&self) -> bool {
        self.part.is_some() || self.skip > 0
    }

    /// Drops a frame that will not be completed. Returns whether there was one.
    pub(crate) fn abandon(&mut self) -> bool {
        let joining = self.joining();
        self.pieces.clear();
        (self.part, self.skip) = (None, 0);
        joining
    }

    /// Adds a buffer or chain, of which the device wrote `written` bytes. Returns the frame when it is
    /// complete, `Err` at the end of a faulty one.
    #[inline]
    pub(crate) fn add(&mut self, mut packet: Packet, written: usize) -> Result<Option<Packet>, ()> {
        // Fast path for the common case: a frame in one buffer.
        if !self.joining() && !packet.is_chained() {
            let header = packet.array(0).unwrap_or_default();
            let whole = !self.merged || merged_buffers(&packet) == 1;
            if whole && shorten(&mut packet, written) && packet.trim_front(self.header) {
                return self.finish(packet, &header, written - self.header);
            }
        }
        self.add_part(packet, written)
    }

    #[inline(never)]
    fn add_part(&mut self, packet: Packet, written: usize) -> Result<Option<Packet>, ()> {
        if self.skip > 0 {
            self.skip -= 1;
            return if self.skip == 0 { Err(()) } else { Ok(None) };
        }
        let missing = match &self.part {
            Some(part) => part.missing,
            None if self.merged => merged_buffers(&packet),
            None => 1,
        };
        // A frame of no buffers is faulty, too.
        let header = self.join(packet, written).filter(|_| missing > 0);
        let missing = missing.saturating_sub(1);
        match header {
            Some(header) if missing > 0 => {
                self.part = Some(Part { header, missing });
                Ok(None)
            }
            Some(header) => {
                let len = self.pieces.len();
                self.pieces.take().map_or(Err(()), |packet| self.finish(packet, &header, len))
            }
            None => {
                self.pieces.clear();
                self.skip = missing;
                if self.skip == 0 { Err(()) } else { Ok(None) }
            }
        }
    }

    /// Adds the bytes written to this buffer or chain to the current frame. Returns the frame's header; `None`
    /// if the frame is faulty.
    fn join(&mut self, packet: Packet, written: usize) -> Option<[u8; net_header::LEN]> {
        let begun = self.part.take();
        let header = match &begun {
            None => packet.array(0)?,
            Some(part) => part.header,
        };
        let mut packet = cut(packet, written)?;
        if begun.is_none() && !packet.trim_front(self.header) {
            return None;
        }
        self.pieces.add(packet).then_some(header)
    }

    /// Validates a complete frame, and sets flags and metadata from its header.
    #[inline]
    fn finish(&self, mut packet: Packet, header: &[u8; net_header::LEN], len: usize) -> Result<Option<Packet>, ()> {
        let fits = (MIN_FRAME_LEN..=self.longest).contains(&len)
            && packet.len() >= MIN_FRAME_LEN
            && self.rx_offloads.is_none_or(|rx_offloads| net_header::apply(header, 0, &mut packet, rx_offloads));
        if fits && self.may_omit_checksum && net_header::is_checksum_valid(header[0]) {
            fill_checksum(&mut packet);
        }
        if fits { Ok(Some(packet)) } else { Err(()) }
    }
}

/// Returns whether the header in front of a frame says that its checksum is valid.
#[inline(always)]
fn is_checksum_valid(packet: &Packet) -> bool {
    packet.array(0).is_some_and(|[flags]| net_header::is_checksum_valid(flags))
}

/// Returns the number of buffers of the frame that begins here, as its header gives it.
#[inline]
pub(crate) fn merged_buffers(packet: &Packet) -> u16 {
    packet.array(net_header::LEN).map_or(0, u16::from_le_bytes)
}

/// Shortens a packet of one buffer to `len` bytes. Returns `false` if it has fewer.
fn shorten(packet: &mut Packet, len: usize) -> bool {
    let fits = len <= packet.len();
    if fits {
        packet.set_len(len);
    }
    fits
}

/// Shortens a packet of one or several buffers to `len` bytes. Returns `None` if it has fewer, or if `len` is
/// 0.
fn cut(mut packet: Packet, len: usize) -> Option<Packet> {
    if !(1..=packet.total_len()).contains(&len) {
        return None;
    }
    packet.truncate(len);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringpass_memory::{Mempool, MempoolConfig};
    use ringpass_port::PortConfig;
    use ringpass_virtio::features::*;

    use super::*;
    use crate::negotiate::NegotiationContext;
    use crate::transport::Pairs;

    const BUFFERS: usize = 64;
    const SIZE: usize = 256;

    /// Returns an assembler for buffers of [`SIZE`] bytes and an MTU of 1000.
    fn assembler(features: u64, tso: bool) -> FrameAssembler {
        let offloads = Offloads { checksum: tso, tso, ..Offloads::default() };
        let config = PortConfig { mtu: 1000, offloads, ..Default::default() };
        let circumstances =
            NegotiationContext { config: &config, buffer: SIZE, legacy: false, iommu: false, pairs: Pairs::ByCommand };
        FrameAssembler::new(&Negotiated::new(VERSION_1 | features, &circumstances).expect("can be worked with"), SIZE)
    }

    fn pool() -> Mempool {
        Mempool::new(&MempoolConfig { buffers: BUFFERS, size: SIZE, ..Default::default() }).unwrap()
    }

    /// Returns a buffer as it was posted, with a header that says `buffers`.
    fn buffer(pool: &Mempool, buffers: u16) -> Packet {
        let mut packet = pool.alloc().expect("a buffer is left");
        packet.set_len(SIZE);
        packet.write(0, &[buffers as u8; SIZE]);
        packet.write(0, &[0; 10]);
        packet.write(10, &buffers.to_le_bytes());
        packet
    }

    #[test]
    fn buffers_become_one_frame() {
        let (pool, mut assembler) = (pool(), assembler(MRG_RXBUF, false));
        assert!(assembler.add(buffer(&pool, 3), SIZE).unwrap().is_none());
        assert!(assembler.joining());
        assert!(assembler.add(buffer(&pool, 9), SIZE).unwrap().is_none());
        let frame = assembler.add(buffer(&pool, 9), 100).unwrap().expect("the frame");
        assert_eq!(frame.segments().map(|part| part.len()).collect::<Vec<_>>(), [SIZE - 12, SIZE, 100]);
        assert!(!assembler.joining());
        assert_eq!(assembler.add(buffer(&pool, 1), 72).unwrap().expect("a frame in one buffer").len(), 60);
    }

    #[test]
    fn a_faulty_frame_takes_its_own_buffers_along_and_no_more() {
        let (pool, mut assembler) = (pool(), assembler(MRG_RXBUF, false));
        for (first, second) in [(SIZE + 1, 10), (SIZE, SIZE + 1), (11, 10), (0, 10), (SIZE, 0)] {
            assert!(assembler.add(buffer(&pool, 3), first).unwrap().is_none(), "{first}");
            assert!(assembler.add(buffer(&pool, 0), second).unwrap().is_none(), "{second}");
            assert!(assembler.add(buffer(&pool, 0), 10).is_err(), "{first}, {second}");
            assert!(assembler.add(buffer(&pool, 1), 72).unwrap().is_some(), "the next one");
        }
        assert!(assembler.add(buffer(&pool, 0), 72).is_err(), "in no buffers");
        // A frame longer than the MTU allows does not hold on to further buffers.
        for _ in 0..5 {
            assert!(assembler.add(buffer(&pool, 6), SIZE).unwrap().is_none());
        }
        assert!(assembler.part.is_none());
    }

    /// A device that does not offer GUEST_CSUM may leave out the checksum of a frame that it vouches for, in
    /// one buffer or several.
    #[test]
    fn checksums_that_were_left_out_are_filled_in() {
        let mut udp = vec![0; 400];
        udp[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        udp[16..18].copy_from_slice(&386_u16.to_be_bytes());
        (udp[22], udp[23], udp[39]) = (64, 17, 0x72);
        udp[38..40].copy_from_slice(&366_u16.to_be_bytes());
        udp[42..].fill(1);
        // Pseudo header: 17 + 366; ports 0, length 366, 179 words of 0x0101.
        let sum = 17 + 366 + 366 + 179 * 0x101_u32;
        let right = !((sum & 0xffff) + (sum >> 16)) as u16;
        let mut right_frame = udp.clone();
        right_frame[40..42].copy_from_slice(&right.to_be_bytes());
        for (features, valid, expected) in [(0, 2, &right_frame), (0, 0, &udp), (GUEST_CSUM, 2, &udp)] {
            let (pool, mut assembler) = (pool(), assembler(MRG_RXBUF | features, false));
            let bytes = [&[valid, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0][..], &udp].concat();
            let mut pieces = bytes.chunks(SIZE).map(|piece| {
                let mut packet = buffer(&pool, 0);
                packet.write(0, piece);
                (packet, piece.len())
            });
            let (first, len) = pieces.next().unwrap();
            assert!(!assembler.is_plain(&first));
            assert!(assembler.add(first, len).unwrap().is_none());
            let (second, len) = pieces.next().unwrap();
            let frame = assembler.add(second, len).unwrap().expect("a frame");
            let received: Vec<u8> = frame.segments().flat_map(|segment| segment.to_vec()).collect();
            assert!(&received == expected, "{features:#x}, {valid}");
            let mut one = buffer(&pool, 1);
            one.write(0, &[valid]);
            assert_eq!(assembler.is_plain(&one), features != 0 || valid == 0);
        }
    }

    #[test]
    fn a_frame_that_never_ends_takes_few_buffers() {
        let (pool, mut assembler) = (pool(), assembler(MRG_RXBUF, false));
        // One byte in each of 65,535 buffers: far below the length limit.
        assert!(assembler.add(buffer(&pool, u16::MAX), 13).unwrap().is_none());
        for _ in 1..BUFFERS - 10 {
            assert!(assembler.add(buffer(&pool, 0), 1).unwrap().is_none());
        }
        assert!(assembler.joining());
        let left: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
        // 1018 bytes fill four buffers; twice that many and one more are accepted.
        assert!(left.len() >= BUFFERS - 9, "{} of {BUFFERS} are left", left.len());
    }

    #[test]
    fn chains_are_cut() {
        let (pool, mut assembler) = (pool(), assembler(0, false));
        for (written, parts) in [(72, vec![60]), (SIZE, vec![SIZE - 12]), (SIZE + 1, vec![SIZE - 12, 1])] {
            let mut chain = buffer(&pool, 0);
            (0..4).for_each(|_| chain.append(buffer(&pool, 0)));
            let frame = assembler.add(chain, written).unwrap().expect("a frame");
            assert_eq!(frame.segments().map(|part| part.len()).collect::<Vec<_>>(), parts);
        }
        for written in [0, 12, 25, 1031, 5 * SIZE + 1, usize::MAX] {
            let mut chain = buffer(&pool, 0);
            (0..4).for_each(|_| chain.append(buffer(&pool, 0)));
            assert!(assembler.add(chain, written).is_err(), "{written}");
        }
    }

    proptest! {
        /// Whatever a device writes, frames stay within their limits and no buffer is lost.
        #[test]
        fn any_headers_and_lengths_are_survived(
            tso: bool,
            writes in prop::collection::vec((any::<[u8; 10]>(), 0..5u16, 0..300usize, any::<bool>()), 0..200),
        ) {
            let pool = pool();
            let mut assembler = assembler(MRG_RXBUF | GUEST_CSUM | GUEST_TSO4, tso);
            // Segments of 64 KiB would need more buffers than the pool has.
            assembler.longest = 2000;
            assembler.pieces = Assembly::new(2000, SIZE);
            for (header, buffers, written, ip) in writes {
                let mut packet = buffer(&pool, buffers);
                packet.write(0, &header);
                if ip {
                    packet.write(24, &[8, 0, 0x45, 0]);
                    packet.write(35, &[6]);
                    packet.write(58, &[0x50]);
                }
                if let Ok(Some(frame)) = assembler.add(packet, written) {
                    prop_assert!((MIN_FRAME_LEN..=2000).contains(&frame.total_len()));
                    prop_assert!(frame.segments().all(|part| !part.is_empty() && part.len() <= SIZE));
                    prop_assert!(frame.headers().is_none_or(|headers| headers.payload_start() <= frame.len()));
                }
            }
            drop(assembler);
            let left: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
            prop_assert_eq!(left.len(), BUFFERS);
        }
    }
}
