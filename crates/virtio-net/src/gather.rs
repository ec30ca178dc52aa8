//! Received frames that lie in several buffers, and what their header says of them (VIRTIO 1.3, 5.1.6.4).

use ringpass_memory::Packet;
use ringpass_port::Offloads;
use ringpass_virtio::features::{GUEST_CSUM, GUEST_TSO4, GUEST_TSO6};
use ringpass_virtio::net_header;

use crate::negotiate::{Agreed, Layout, SHORTEST};

/// Which frames need more than that their header is cut off.
#[derive(Clone, Copy)]
pub(crate) enum Needed {
    /// None.
    No,
    /// Those in several buffers.
    IfJoined,
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
    /// A frame whose end has not come yet.
    part: Option<Part>,
    /// Buffers of a faulty frame that are still to come.
    skip: u16,
}

/// The first buffers of a frame.
struct Part {
    packet: Packet,
    header: [u8; net_header::LEN],
    len: usize,
    missing: u16,
}

impl Gather {
    pub(crate) fn new(agreed: &Agreed) -> Self {
        let tso = agreed.features & (GUEST_TSO4 | GUEST_TSO6) != 0;
        let tells = agreed.has(GUEST_CSUM).then_some(Offloads { checksum: true, tso, ..Offloads::default() });
        let needed = match (tells, agreed.layout) {
            (None, Layout::Single) => Needed::No,
            (None, Layout::Merged) => Needed::IfJoined,
            _ => Needed::Always,
        };
        let (header, longest, merged) = (agreed.header, agreed.longest_received, agreed.layout == Layout::Merged);
        Self { needed, header, longest, merged, tells, part: None, skip: 0 }
    }

    #[inline]
    pub(crate) fn needed(&self) -> Needed {
        self.needed
    }

    /// Whether the next buffer belongs to a frame that has begun.
    #[inline]
    pub(crate) fn joining(&self) -> bool {
        self.part.is_some() || self.skip > 0
    }

    /// Adds what the device has written. Returns the frame at its end, `Err` at the end of a faulty one.
    #[inline]
    pub(crate) fn add(&mut self, mut packet: Packet, written: usize) -> Result<Option<Packet>, ()> {
        // Faster than what follows, and the rule: a frame in one buffer.
        if !self.joining() && !packet.is_chained() {
            let header = packet.first_chunk().copied().unwrap_or_default();
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
        let part = self.join(packet, written).map(|part| Part { missing: missing.wrapping_sub(1), ..part });
        match part {
            // One of no buffers is faulty, too.
            Some(part) if missing > 1 => {
                self.part = Some(part);
                Ok(None)
            }
            Some(part) if missing == 1 => self.finish(part.packet, &part.header, part.len),
            _ => {
                self.skip = missing.saturating_sub(1);
                if self.skip == 0 { Err(()) } else { Ok(None) }
            }
        }
    }

    /// The frame so far with what was written to these buffers; `None` if it is faulty.
    fn join(&mut self, packet: Packet, written: usize) -> Option<Part> {
        let joined = match self.part.take() {
            None => {
                let header = *packet.first_chunk()?;
                let mut packet = cut(packet, written)?;
                let len = written.checked_sub(self.header)?;
                packet.trim_front(self.header).then_some(Part { packet, header, len, missing: 0 })
            }
            Some(mut part) => {
                part.packet.append(cut(packet, written)?);
                Some(Part { len: part.len + written, ..part })
            }
        };
        // A device that never ends a frame does not get all buffers.
        joined.filter(|part| part.len <= self.longest)
    }

    /// Gives a whole frame what its header says.
    #[inline]
    fn finish(&self, mut packet: Packet, header: &[u8; net_header::LEN], len: usize) -> Result<Option<Packet>, ()> {
        let fits = (SHORTEST..=self.longest).contains(&len)
            && packet.len() >= SHORTEST
            && self.tells.is_none_or(|tells| net_header::apply(header, 0, &mut packet, tells));
        if fits { Ok(Some(packet)) } else { Err(()) }
    }
}

/// How many buffers the frame lies in that begins here, says its header.
#[inline]
pub(crate) fn merged_buffers(packet: &Packet) -> u16 {
    packet.get(net_header::LEN..net_header::LEN + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
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
    let mut rest = packet.take_rest();
    let mut missing = len.checked_sub(packet.len().min(len)).filter(|_| len > 0)?;
    let first = len - missing;
    packet.set_len(first);
    while missing > 0 {
        let mut next = rest?;
        rest = next.take_rest();
        let here = next.len().min(missing);
        missing -= here;
        next.set_len(here);
        packet.append(next);
    }
    // One after the other, as a chain may be long.
    while let Some(mut packet) = rest {
        rest = packet.take_rest();
    }
    Some(packet)
}
