//! Received frames that lie in several buffers, and what their header says of them (VIRTIO 1.3, 5.1.6.4).

use ringpass_memory::{Assembly, Packet};
use ringpass_port::{Offloads, fill_checksum};
use ringpass_virtio::features::{GUEST_CSUM, GUEST_TSO4, GUEST_TSO6};
use ringpass_virtio::net_header;

use crate::negotiate::{Agreed, Layout, SHORTEST};

/// Which frames need more than that their header is cut off.
#[derive(Clone, Copy)]
pub(crate) enum Needed {
    /// None.
    No,
    /// Those of which the header says something: that they lie in several buffers, or may lack their checksum.
    IfSpecial,
    /// All.
    Always,
}

/// How a queue makes frames of buffers.
pub(crate) struct Gather {
    needed: Needed,
    /// Bytes in front of the frame.
    header: usize,
    /// Longest frame.
    longest: usize,
    /// The header says how many buffers a frame has.
    merged: bool,
    /// What is told of frames; `None` if the header says nothing of use.
    tells: Option<Offloads>,
    /// See [`Agreed::left_out`].
    left_out: bool,
    /// A frame whose end has not come yet: its buffers, and what is known of it.
    pieces: Assembly,
    part: Option<Part>,
    /// Buffers of a faulty frame that are still to come.
    skip: u16,
}

/// What is known of a frame whose first buffers have come.
struct Part {
    header: [u8; net_header::LEN],
    /// Buffers that are still to come.
    missing: u16,
}

impl Gather {
    /// For a queue with buffers of `size` bytes.
    pub(crate) fn new(agreed: &Agreed, size: usize) -> Self {
        let tso = agreed.features & (GUEST_TSO4 | GUEST_TSO6) != 0;
        let tells = agreed.has(GUEST_CSUM).then_some(Offloads { checksum: true, tso, ..Offloads::default() });
        let needed = match (tells, agreed.layout) {
            (None, Layout::Single) if !agreed.left_out => Needed::No,
            (None, Layout::Single | Layout::Merged) => Needed::IfSpecial,
            _ => Needed::Always,
        };
        let (header, longest, merged) = (agreed.header, agreed.longest_received, agreed.layout == Layout::Merged);
        let pieces = Assembly::new(longest, size);
        Self { needed, header, longest, merged, tells, left_out: agreed.left_out, pieces, part: None, skip: 0 }
    }

    #[inline]
    pub(crate) fn needed(&self) -> Needed {
        self.needed
    }

    /// Whether a buffer that begins a frame has all of it, and its header says nothing of use.
    #[inline(always)]
    pub(crate) fn is_plain(&self, packet: &Packet) -> bool {
        (!self.merged || merged_buffers(packet) == 1) && !(self.left_out && vouches(packet))
    }

    /// Whether the next buffer belongs to a frame that has begun.
    #[inline]
    pub(crate) fn joining(&self) -> bool {
        self.part.is_some() || self.skip > 0
    }

    /// Gives up a frame whose end will not come. `false` if there is none.
    pub(crate) fn abandon(&mut self) -> bool {
        let joining = self.joining();
        self.pieces.clear();
        (self.part, self.skip) = (None, 0);
        joining
    }

    /// Adds what the device has written. Returns the frame at its end, `Err` at the end of a faulty one.
    #[inline]
    pub(crate) fn add(&mut self, mut packet: Packet, written: usize) -> Result<Option<Packet>, ()> {
        // Faster than what follows, and the rule: a frame in one buffer.
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
        // One of no buffers is faulty, too.
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

    /// Adds what was written to these buffers to the frame. Returns the frame's header; `None` if it is faulty.
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

    /// Gives a whole frame what its header says.
    #[inline]
    fn finish(&self, mut packet: Packet, header: &[u8; net_header::LEN], len: usize) -> Result<Option<Packet>, ()> {
        let fits = (SHORTEST..=self.longest).contains(&len)
            && packet.len() >= SHORTEST
            && self.tells.is_none_or(|tells| net_header::apply(header, 0, &mut packet, tells));
        if fits && self.left_out && net_header::vouches(header[0]) {
            fill_checksum(&mut packet);
        }
        if fits { Ok(Some(packet)) } else { Err(()) }
    }
}

/// Whether the header in front of a frame vouches for it.
#[inline(always)]
fn vouches(packet: &Packet) -> bool {
    packet.array(0).is_some_and(|[flags]| net_header::vouches(flags))
}

/// How many buffers the frame lies in that begins here, says its header.
#[inline]
pub(crate) fn merged_buffers(packet: &Packet) -> u16 {
    packet.array(net_header::LEN).map_or(0, u16::from_le_bytes)
}

/// Cuts a packet of one buffer down to its first `len` bytes; `false` if it has fewer.
fn shorten(packet: &mut Packet, len: usize) -> bool {
    let fits = len <= packet.len();
    if fits {
        packet.set_len(len);
    }
    fits
}

/// The first `len` bytes of a packet of one or several buffers; `None` if it has fewer, or none are wanted.
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
    use crate::negotiate::Circumstances;
    use crate::transport::Pairs;

    const BUFFERS: usize = 64;
    const SIZE: usize = 256;

    /// With buffers of [`SIZE`] bytes and an MTU of 1000.
    fn gather(features: u64, tso: bool) -> Gather {
        let offloads = Offloads { checksum: tso, tso, ..Offloads::default() };
        let config = PortConfig { mtu: 1000, offloads, ..Default::default() };
        let circumstances =
            Circumstances { config: &config, buffer: SIZE, legacy: false, iommu: false, pairs: Pairs::ByCommand };
        Gather::new(&Agreed::new(VERSION_1 | features, &circumstances).expect("can be worked with"), SIZE)
    }

    fn pool() -> Mempool {
        Mempool::new(&MempoolConfig { buffers: BUFFERS, size: SIZE, ..Default::default() }).unwrap()
    }

    /// A buffer as it was posted, with a header in it.
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
        let (pool, mut gather) = (pool(), gather(MRG_RXBUF, false));
        assert!(gather.add(buffer(&pool, 3), SIZE).unwrap().is_none());
        assert!(gather.joining());
        assert!(gather.add(buffer(&pool, 9), SIZE).unwrap().is_none());
        let frame = gather.add(buffer(&pool, 9), 100).unwrap().expect("the frame");
        assert_eq!(frame.segments().map(|part| part.len()).collect::<Vec<_>>(), [SIZE - 12, SIZE, 100]);
        assert!(!gather.joining());
        assert_eq!(gather.add(buffer(&pool, 1), 72).unwrap().expect("a frame in one buffer").len(), 60);
    }

    #[test]
    fn a_faulty_frame_takes_its_own_buffers_along_and_no_more() {
        let (pool, mut gather) = (pool(), gather(MRG_RXBUF, false));
        for (first, second) in [(SIZE + 1, 10), (SIZE, SIZE + 1), (11, 10), (0, 10), (SIZE, 0)] {
            assert!(gather.add(buffer(&pool, 3), first).unwrap().is_none(), "{first}");
            assert!(gather.add(buffer(&pool, 0), second).unwrap().is_none(), "{second}");
            assert!(gather.add(buffer(&pool, 0), 10).is_err(), "{first}, {second}");
            assert!(gather.add(buffer(&pool, 1), 72).unwrap().is_some(), "the next one");
        }
        assert!(gather.add(buffer(&pool, 0), 72).is_err(), "in no buffers");
        // Longer than the MTU allows: no more buffers are held.
        for _ in 0..5 {
            assert!(gather.add(buffer(&pool, 6), SIZE).unwrap().is_none());
        }
        assert!(gather.part.is_none());
    }

    /// Of a device that does not offer GUEST_CSUM: what it vouches for may lack its checksum, in one buffer or several.
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
            let (pool, mut gather) = (pool(), gather(MRG_RXBUF | features, false));
            let bytes = [&[valid, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0][..], &udp].concat();
            let mut pieces = bytes.chunks(SIZE).map(|piece| {
                let mut packet = buffer(&pool, 0);
                packet.write(0, piece);
                (packet, piece.len())
            });
            let (first, len) = pieces.next().unwrap();
            assert!(!gather.is_plain(&first));
            assert!(gather.add(first, len).unwrap().is_none());
            let (second, len) = pieces.next().unwrap();
            let frame = gather.add(second, len).unwrap().expect("a frame");
            let received: Vec<u8> = frame.segments().flat_map(|segment| segment.to_vec()).collect();
            assert!(&received == expected, "{features:#x}, {valid}");
            let mut one = buffer(&pool, 1);
            one.write(0, &[valid]);
            assert_eq!(gather.is_plain(&one), features != 0 || valid == 0);
        }
    }

    #[test]
    fn a_frame_that_never_ends_takes_few_buffers() {
        let (pool, mut gather) = (pool(), gather(MRG_RXBUF, false));
        // A byte each, of 65,535 buffers: far from the longest frame.
        assert!(gather.add(buffer(&pool, u16::MAX), 13).unwrap().is_none());
        for _ in 1..BUFFERS - 10 {
            assert!(gather.add(buffer(&pool, 0), 1).unwrap().is_none());
        }
        assert!(gather.joining());
        let left: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
        // 1018 bytes take four buffers; twice that and one more are accepted.
        assert!(left.len() >= BUFFERS - 9, "{} of {BUFFERS} are left", left.len());
    }

    #[test]
    fn chains_are_cut() {
        let (pool, mut gather) = (pool(), gather(0, false));
        for (written, parts) in [(72, vec![60]), (SIZE, vec![SIZE - 12]), (SIZE + 1, vec![SIZE - 12, 1])] {
            let mut chain = buffer(&pool, 0);
            (0..4).for_each(|_| chain.append(buffer(&pool, 0)));
            let frame = gather.add(chain, written).unwrap().expect("a frame");
            assert_eq!(frame.segments().map(|part| part.len()).collect::<Vec<_>>(), parts);
        }
        for written in [0, 12, 25, 1031, 5 * SIZE + 1, usize::MAX] {
            let mut chain = buffer(&pool, 0);
            (0..4).for_each(|_| chain.append(buffer(&pool, 0)));
            assert!(gather.add(chain, written).is_err(), "{written}");
        }
    }

    proptest! {
        /// Whatever a device writes, frames keep to their bounds, and no buffer is lost.
        #[test]
        fn any_headers_and_lengths_are_survived(
            tso: bool,
            writes in prop::collection::vec((any::<[u8; 10]>(), 0..5u16, 0..300usize, any::<bool>()), 0..200),
        ) {
            let pool = pool();
            let mut gather = gather(MRG_RXBUF | GUEST_CSUM | GUEST_TSO4, tso);
            // Segments of 64 KiB would take more than there is.
            gather.longest = 2000;
            gather.pieces = Assembly::new(2000, SIZE);
            for (header, buffers, written, ip) in writes {
                let mut packet = buffer(&pool, buffers);
                packet.write(0, &header);
                if ip {
                    packet.write(24, &[8, 0, 0x45, 0]);
                    packet.write(35, &[6]);
                    packet.write(58, &[0x50]);
                }
                if let Ok(Some(frame)) = gather.add(packet, written) {
                    prop_assert!((SHORTEST..=2000).contains(&frame.total_len()));
                    prop_assert!(frame.segments().all(|part| !part.is_empty() && part.len() <= SIZE));
                    prop_assert!(frame.headers().is_none_or(|headers| headers.payload_start() <= frame.len()));
                }
            }
            drop(gather);
            let left: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
            prop_assert_eq!(left.len(), BUFFERS);
        }
    }
}
